//! Test helper for reference pages that are generated from tables in the code.

use std::{fs, path::Path};

/// Compares a reference page with its generated contents, or writes it if `INSTA_UPDATE=always` is
/// set.
#[track_caller]
pub(super) fn assert_up_to_date(name: &str, page: &str) {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference");
    let path = reference.join(name);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&path, page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{} differs from the tables in the code", path.display());
}
