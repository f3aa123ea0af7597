//! `howdah rehearse --live`, and the reference page of the files that a rehearsal writes.

use std::{
    collections::BTreeSet,
    fs,
    io::{BufReader, Read as _},
    net::SocketAddr,
    path::Path,
};

use serde_json::Value;

use crate::{
    browser::Browser,
    howdah,
    rehearse::{Fixture, INDEX, client, start},
    report_serve::{assert_refusals, get},
    text, wait_for_value,
};

#[test]
fn page_follows_a_rehearsal_and_opens_its_report() {
    let Some(fixture) = Fixture::new() else { return };
    client(&fixture.change, "shop").query(&format!("drop index {INDEX}")).unwrap();
    // Slow enough for a page to see runs in progress.
    let mut child = start(
        &fixture,
        &["--runs", "2", "--warm-up", "0", "--rate", "0.2", "--live", "127.0.0.1:0"],
    );
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut messages = String::new();
    let url = wait_for_value(&mut stderr, &mut messages, "live: ");
    let address: SocketAddr =
        url.strip_prefix("http://").unwrap().trim_end_matches('/').parse().unwrap();
    let mut browser = Browser::start("live");
    browser.resize(1280, 900);
    browser.open_url(&url);
    browser.wait_until("the state arrives", "'ready' in document.documentElement.dataset");
    assert_refusals(address, "/");
    assert_refusals(address, "/state");
    assert_eq!(get(address, "/report.html").status, 404, "there is no report yet");
    assert_eq!(get(address, "/rehearsal.json").status, 404);
    let page = get(address, "/");
    let policy = page.header("content-security-policy").unwrap();
    assert!(
        policy.contains("script-src 'sha256-") && policy.contains("connect-src 'self'"),
        "{policy}"
    );
    assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");

    wait_until(&mut browser, "a run is shown", "document.querySelector('#run-table tbody .key')");
    let drawn = "Array.from(document.querySelectorAll('.values'))\
                 .slice(0, 1).some((values) => values.textContent.includes('a1'))";
    wait_until(&mut browser, "points of the first run", drawn);
    let state: Value = serde_json::from_str(&get(address, "/state").body).unwrap();
    assert_eq!(state["phase"], "running", "{state}");
    assert!(state["points"].as_array().is_some_and(|points| !points.is_empty()), "{state}");
    assert_eq!(state["runs"].as_array().map(Vec::len), Some(4), "{state}");
    wait_until(
        &mut browser,
        "a finished run",
        "Array.from(document.querySelectorAll('#run-table tbody tr'), (row) => \
         row.cells[1].textContent).includes('finished')",
    );
    let steps = browser.eval("document.querySelectorAll('#steps li.done').length");
    assert!(steps.as_u64() >= Some(2), "{steps}");
    let pictures = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rehearsal-page");
    fs::create_dir_all(&pictures).unwrap();
    browser.screenshot(&pictures.join("live.png"), true);
    browser.resize(390, 844);
    let width = "document.documentElement.scrollWidth === 390";
    browser.wait_until("charts have the width of the page", width);
    browser.screenshot(&pictures.join("live-narrow.png"), true);
    browser.resize(1280, 900);
    assert_eq!(browser.problems_except(|other| other.starts_with(&url)), [""; 0]);

    wait_until(&mut browser, "the report is open", "location.pathname === '/report.html'");
    // A busy machine may make the runs incomparable.
    let heading = "/^. (Failed|Not comparable):/.test(document.querySelector('h1')?.textContent)";
    wait_until(&mut browser, "the verdict is shown", heading);
    assert_eq!(browser.problems_except(|other| other.starts_with(&url)), [""; 0]);
    stderr.read_to_string(&mut messages).unwrap();
    let code = child.wait().unwrap().code();
    assert!([Some(3), Some(4)].contains(&code), "{code:?}: {messages}");
    // The page of the report stays, although its server has ended.
    let charts = "document.querySelectorAll('.plot canvas').length > 3";
    wait_until(&mut browser, "the charts are drawn", charts);

    every_key_is_documented(&fixture);
}

/// Waits for a minute, because a rehearsal takes its time.
fn wait_until(browser: &mut Browser, what: &str, expression: &str) {
    let timeout = std::time::Duration::from_secs(90);
    howdah_lab::wait_until(what, timeout, || browser.is_true(expression));
}

/// Keys whose values have the names of settings, extensions and options as keys.
const MAPS: [&str; 3] = ["settings", "extensions", "options"];

fn collect_keys(value: &Value, is_map: bool, keys: &mut BTreeSet<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect_keys(value, false, keys)),
        Value::Object(fields) => {
            for (name, value) in fields {
                if !is_map {
                    keys.insert(name.clone());
                }
                // `comparison` has a page of its own, with a test of its own.
                if name != "comparison" || is_map {
                    collect_keys(value, !is_map && MAPS.contains(&name.as_str()), keys);
                }
            }
        }
        _ => {}
    }
}

/// The keys of both files of a real rehearsal have rows on the page, and the page has no others.
fn every_key_is_documented(fixture: &Fixture) {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/src/reference/rehearsal.md");
    let page = fs::read_to_string(page).unwrap();
    let mut keys = BTreeSet::new();
    collect_keys(&fixture.report("out"), false, &mut keys);
    let journal = fs::read(fixture.path("out").join("rehearsal.json")).unwrap();
    collect_keys(&serde_json::from_slice(&journal).unwrap(), false, &mut keys);
    assert!(keys.contains("schedule_error_p99_us") && keys.contains("analyzed_s"), "{keys:?}");
    let missing: Vec<_> =
        keys.iter().filter(|key| !page.contains(&format!("| `{key}` |"))).collect();
    assert!(missing.is_empty(), "not on docs/src/reference/rehearsal.md: {missing:?}");
    // The table of files comes before the tables of keys.
    let (_, tables) = page.split_once("\n## ").unwrap();
    for row in tables.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        assert!(cells.len() >= 4 && cells[1..4].iter().all(|cell| !cell.is_empty()), "{row}");
    }
}

#[test]
fn address_of_the_page_is_checked_before_the_rehearsal() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("log"), "").unwrap();
    let refused = howdah(folder.path())
        .args(["rehearse", "log", "--base", "host=/nowhere", "--change", "host=/nowhere"])
        .args(["-o", "out", "--live", "0.0.0.0:0"])
        .assert()
        .code(1);
    let message = text(&refused.get_output().stderr);
    assert!(message.contains("0.0.0.0:0 is not a loopback address"), "{message}");
    assert!(!folder.path().join("out").exists());
}
