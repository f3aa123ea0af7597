//! Converts panics of the Parquet decoder to errors.

use std::{
    cell::Cell,
    panic::{self, AssertUnwindSafe},
    path::Path,
    sync::Once,
};

use parquet::errors::ParquetError;

use crate::error::{Corruption, ReadError};

/// Runs the decoder, whose arithmetic panics on some damaged files, and returns such a panic as an
/// error.
///
/// The objects that `decode` uses must not be used again after an error, as they may be in an
/// inconsistent state.
pub(super) fn catch_decoder_panics<T>(
    path: &Path,
    decode: impl FnOnce() -> Result<T, ParquetError>,
) -> Result<T, ReadError> {
    match catch_silently(decode) {
        Ok(decoded) => decoded.map_err(|source| ReadError::from_parquet(path.to_owned(), source)),
        Err(message) => Err(ReadError::Damaged {
            path: path.to_owned(),
            source: Corruption::Decoder { message },
        }),
    }
}

thread_local! {
    static DECODING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `decode`; returns the message of a panic, which is not printed because the error includes
/// it.
///
/// The hook that prints panics is global to the process. The first call installs one that is silent
/// for threads that are decoding, and calls the previous hook for all others.
fn catch_silently<T>(decode: impl FnOnce() -> T) -> Result<T, String> {
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
        let message = payload.downcast_ref::<String>().map(String::as_str);
        let message = message.or_else(|| payload.downcast_ref::<&str>().copied());
        message.unwrap_or("no reason given").to_owned()
    })
}

#[test]
fn decoder_panic_becomes_error_with_message() {
    let error =
        catch_decoder_panics::<()>(Path::new("a.parquet"), || panic!("column {} is negative", 7));
    let error = error.expect_err("it panicked");
    assert_eq!(error.to_string(), "a.parquet is damaged");
    let source = std::error::Error::source(&error).map(ToString::to_string);
    assert_eq!(source.as_deref(), Some("the Parquet decoder failed: column 7 is negative"));
    assert_eq!(
        catch_decoder_panics(Path::new("a.parquet"), || Ok(7)).expect("nothing is wrong"),
        7
    );
}
