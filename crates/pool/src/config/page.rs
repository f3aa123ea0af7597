//! Pages of the reference that are made from tables of the code.

use std::{fs, path::Path};

/// Compares a page of the reference with what it should be; writes it with `INSTA_UPDATE=always`.
#[track_caller]
pub(super) fn is_kept(name: &str, page: &str) {
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference");
    let path = reference.join(name);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        fs::write(&path, page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "{} is another than the tables say", path.display());
}
