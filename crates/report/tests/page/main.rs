//! The page of a rehearsal in a headless Chromium.

mod browser;
mod sample;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::json;

use self::{browser::Browser, sample::page};

/// A folder for the test's files, which stay there for readers.
fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rehearsal-page");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The page in a browser.
fn open(name: &str) -> (Browser, PathBuf) {
    let file = folder().join(format!("{name}.html"));
    fs::write(&file, page().to_html()).unwrap();
    let mut browser = Browser::start(name);
    browser.resize(1280, 900);
    browser.open(&file);
    (browser, file)
}

/// The queries in the order on the page, as the starts of their texts.
const SHOWN: &str = "Array.from(document.querySelectorAll('tbody[data-index]:not([hidden]) td.text code'), \
                     (code) => code.textContent.slice(0, 12))";

#[test]
fn page_matches_pictures() {
    let (mut browser, file) = open("pictures");
    let folder = folder();
    for (scheme, width, name) in [
        ("light", 1280, "light"),
        ("dark", 1280, "dark"),
        ("light", 390, "narrow"),
        ("dark", 390, "narrow-dark"),
    ] {
        browser.set_scheme(scheme);
        browser.resize(width, 844);
        browser.wait_until("charts have the width", "document.querySelector('.plot').clientWidth === document.querySelector('.uplot').clientWidth");
        browser.screenshot(&folder.join(format!("{name}-window.png")), false);
        browser.screenshot(&folder.join(format!("{name}.png")), true);
    }
    browser.print(&folder.join("page.pdf"));
    assert!(fs::read(folder.join("page.pdf")).unwrap().starts_with(b"%PDF"));
    assert_eq!(browser.problems(&file), [""; 0]);
    let _ = (SHOWN, json!(1));
}
