//! Keeping the Parquet decoder's panics from the person who reads a damaged file.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Once,
};

use parquet::errors::ParquetError;

use crate::error::{Damage, ReadError};

/// Runs the decoder, whose arithmetic panics on some damaged files: bad data must be an error here.
///
/// What `decode` works on must not be used again after an error, as it may be half changed.
pub(super) fn guarded<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, ReadError> {
    match quietly(decode) {
        Ok(decoded) => decoded.map_err(|source| ReadError::from_parquet(path.to_owned(), source)),
        Err(message) => {
            Err(ReadError::Damaged { path: path.to_owned(), source: Damage::Decoder { message } })
        }
    }
}

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `decode`; a panic becomes what it said, and is not printed: the error says it once.
///
/// The hook that prints panics belongs to the whole process. The first call puts one in front of it
/// that steps aside for every thread that is not decoding.
fn quietly<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !DECODING.get() {
                usual(info);
            }
        }));
    });
    DECODING.set(true);
    let decoded = panic::catch_unwind(AssertUnwindSafe(decode));
    DECODING.set(false);
    decoded.map_err(|payload| {
        let said = payload.downcast_ref::<String>().map(String::as_str);
        let said = said.or_else(|| payload.downcast_ref::<&str>().copied());
        said.unwrap_or("no reason given").to_owned()
    })
}

#[test]
fn a_panic_of_the_decoder_is_an_error_that_says_why() {
    let error = guarded::<()>(Path::new("a.parquet"), || panic!("column {} is negative", 7));
    let error = error.expect_err("it panicked");
    assert_eq!(error.to_string(), "a.parquet is damaged");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("the decoder gave up: column 7 is negative"));
    assert_eq!(guarded(Path::new("a.parquet"), || Ok(7)).expect("nothing is wrong"), 7);
}
