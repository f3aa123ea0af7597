//! The pages of a rehearsal and of a recording in a headless Chromium.
//!
//! The pages and pictures of them stay in `target/tmp/rehearsal-page`.

#![allow(
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test that cannot go on fails, helpers included"
)]

mod benchmark;
#[allow(dead_code, reason = "shared with the tests of the binary, which use other parts of it")]
mod browser;
mod recording;
mod sample;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use self::{
    browser::Browser,
    sample::{HOSTILE, page},
};

fn folder() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rehearsal-page");
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The page in a browser, and its file.
fn open(test: &str) -> (Browser, PathBuf) {
    let file = folder().join(format!("{test}.html"));
    fs::write(&file, page().to_html()).unwrap();
    let mut browser = Browser::start(test);
    browser.resize(1280, 900);
    browser.open(&file);
    browser.wait_until("the script has run", "'ready' in document.documentElement.dataset");
    (browser, file)
}

/// The verdicts of the queries that are shown, from top to bottom.
fn verdicts(browser: &mut Browser) -> Vec<String> {
    let shown = browser.eval(
        "Array.from(document.querySelectorAll('#query-table > tbody:not([hidden]) td.rank'), \
         (cell) => cell.textContent.trim().replace(/^\\S+ /, ''))",
    );
    serde_json::from_value(shown).unwrap()
}

/// The first words of the queries that are shown, from top to bottom.
fn texts(browser: &mut Browser) -> Vec<String> {
    let shown = browser.eval(
        "Array.from(document.querySelectorAll('#query-table > tbody:not([hidden]) td.text code'), \
         (code) => code.textContent)",
    );
    serde_json::from_value(shown).unwrap()
}

fn sorted_by(browser: &mut Browser) -> Value {
    browser.eval(
        "Array.from(document.querySelectorAll('#query-table th[aria-sort]'), (head) => \
         [head.dataset.key, head.getAttribute('aria-sort')])",
    )
}

#[test]
fn page_opens_without_problems_and_hostile_text_is_inert() {
    let (mut browser, file) = open("hostile");
    assert_eq!(browser.problems(&file), [""; 0]);
    assert_eq!(browser.eval("typeof window.pwned"), "undefined");
    assert!(texts(&mut browser).contains(&HOSTILE.to_owned()));
    assert_eq!(browser.eval("document.images.length"), 0);
    assert_eq!(browser.eval("document.scripts.length"), 4);
    // Markup that got into the page anyway would not run: the policy is in force.
    browser.eval(
        "(() => { const script = document.createElement('script'); script.textContent = \
         'window.pwned = 1'; document.body.append(script); })()",
    );
    assert_eq!(browser.eval("typeof window.pwned"), "undefined");
    let problems = browser.problems(&file);
    assert!(
        problems.len() == 1 && problems[0].contains("Content Security Policy"),
        "violations are noticed: {problems:?}"
    );
}

#[test]
fn queries_are_sorted_by_click_and_by_key() {
    let (mut browser, file) = open("sort");
    assert_eq!(sorted_by(&mut browser), json!([["impact", "descending"]]));
    let by_impact = texts(&mut browser);
    assert!(by_impact[0].starts_with("select o.id"));

    browser.click("#query-table th.calls button");
    assert_eq!(sorted_by(&mut browser), json!([["calls", "descending"]]));
    assert_eq!(texts(&mut browser)[..2], ["begin", "commit"]);

    // The button has the focus now.
    browser.press("Enter", 13, "\r");
    assert_eq!(sorted_by(&mut browser), json!([["calls", "ascending"]]));
    assert_eq!(texts(&mut browser)[0], "vacuum analyze carts");

    browser.press("Tab", 9, "");
    browser.press(" ", 32, " ");
    assert_eq!(sorted_by(&mut browser), json!([["p50", "descending"]]));

    // A query without a factor comes last in both directions.
    browser.click("#query-table th.factor button");
    let last = texts(&mut browser).split_off(11);
    browser.click("#query-table th.factor button");
    assert_eq!(sorted_by(&mut browser), json!([["factor", "ascending"]]));
    assert_eq!(texts(&mut browser).split_off(11), last);

    browser.click("#query-table th.rank button");
    let verdicts = verdicts(&mut browser);
    assert_eq!(verdicts[..5], ["slower", "slower", "slower", "faster", "undecided"]);
    assert_eq!(browser.problems(&file), [""; 0]);
}

#[test]
fn queries_are_filtered_by_text_and_verdict() {
    let (mut browser, file) = open("filter");
    browser.click("#query-filter [name=text]");
    for letter in ["S", "t", "O", "c", "k"] {
        browser.press(letter, u32::from(letter.to_uppercase().as_bytes()[0]), letter);
    }
    assert_eq!(texts(&mut browser).len(), 2);
    assert_eq!(
        browser.eval("document.getElementById('query-count').textContent"),
        "2 of 13 queries"
    );

    browser.click("#query-filter [value=slower]");
    assert_eq!(verdicts(&mut browser), ["undecided"]);
    browser.click("#query-filter [value=undecided]");
    assert_eq!(verdicts(&mut browser), [""; 0]);
    assert_eq!(browser.eval("document.getElementById('no-query').hidden"), false);

    // A link from the verdict shows its query in spite of the filter.
    browser.click(".reasons li:nth-child(2) a");
    browser.wait_until(
        "the details are open",
        "document.querySelector('#query-table > tbody:target')?.hidden === false && \
         document.querySelector('#query-table > tbody:target details').open",
    );
    assert_eq!(browser.problems(&file), [""; 0]);
}

/// Number of points of a chart that have been drawn upon.
const DRAWN: &str = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, \
                     canvas.height).data.filter((value, index) => index % 4 === 3 && value).length";

/// Texts of the marks of the time axis cannot be read from a canvas, but the slider has its ends.
const WINDOW: &str =
    "['min', 'max'].map((end) => Number(document.getElementById('time-slider')[end]))";

#[test]
fn charts_are_drawn_hovered_and_zoomed() {
    let (mut browser, file) = open("charts");
    let drawn = format!("Array.from(document.querySelectorAll('.plot canvas'), {DRAWN})");
    browser
        .wait_until("every chart is drawn", &format!("{drawn}.every((points) => points > 2000)"));
    assert_eq!(browser.eval("document.querySelectorAll('.plot canvas').length"), 13);
    assert_eq!(browser.eval(WINDOW), json!([0, 179]));

    browser.hover("[data-panel='0'] .u-over");
    let values = "Array.from(document.querySelectorAll('.chart .values'), (values) => \
                  values.textContent)";
    browser.wait_until("all charts show values", &format!("{values}.every((text) => text)"));
    let values = browser.eval(values);
    let throughput = values[0].as_str().unwrap();
    assert!(throughput.starts_with("a1 1.") && throughput.contains("b2 "), "{throughput}");
    // The probe was not attached to the last run.
    assert!(!values[7].as_str().unwrap().contains("a2"), "{values}");
    let now = browser.eval("document.getElementById('time-now').textContent");
    assert!(now == "at 1:29" || now == "at 1:30", "{now}");

    browser.drag("[data-panel='3'] .u-over", 0.25, 0.5);
    browser.wait_until("all charts are zoomed", &format!("{WINDOW}[1] < 95"));
    let window = browser.eval(WINDOW);
    assert!((40..50).contains(&window[0].as_i64().unwrap()), "{window}");
    browser.click("[data-zoom=all]");
    browser.wait_until("all is shown", &format!("{WINDOW}[1] === 179"));
    browser.click("[data-zoom='in']");
    browser.wait_until("it is zoomed in", &format!("{WINDOW}[1] === 134"));

    // By keyboard: the slider moves the time of all charts.
    browser.eval("document.getElementById('time-slider').focus()");
    browser.press("End", 35, "");
    browser.wait_until(
        "the time is shown",
        "document.getElementById('time-now').textContent === 'at 2:14'",
    );
    let spoken =
        browser.eval("document.getElementById('time-slider').getAttribute('aria-valuetext')");
    assert!(spoken.as_str().unwrap().starts_with("at 2:14; Throughput: a1 1."), "{spoken}");

    browser.click("[data-run='1']");
    browser.wait_until(
        "a run is hidden",
        "!document.querySelector('[data-panel=\"0\"] .values').textContent.includes('b1')",
    );
    assert_eq!(browser.problems(&file), [""; 0]);
}

/// Contrast of text with its background, for all elements with text of their own: those below 4.5.
const LOW_CONTRAST: &str = "(() => {
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((part) => part / 255)
    .map((part) => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
    .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = rgb(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) return color;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const element of document.querySelectorAll('body *:not(script):not(svg *)')) {
    const own = Array.from(element.childNodes).some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility()) continue;
    const one = luminance(rgb(getComputedStyle(element).color)), other = luminance(ground(element));
    const contrast = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (contrast < 4.5) low.push(`${element.className} ${element.textContent.slice(0, 30)}: ${contrast.toFixed(2)}`);
  }
  return low;
})()";

#[test]
fn colours_follow_the_scheme_and_have_contrast() {
    let (mut browser, file) = open("colours");
    browser.eval(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })",
    );
    let ground = "getComputedStyle(document.body).backgroundColor";
    let mut grounds = Vec::new();
    for scheme in ["light", "dark"] {
        browser.set_scheme(scheme);
        grounds.push(browser.eval(ground));
        assert_eq!(browser.eval(LOW_CONTRAST), json!([]), "{scheme}");
    }
    assert_eq!(grounds, ["rgb(255, 255, 255)", "rgb(20, 24, 31)"]);
    assert_eq!(browser.problems(&file), [""; 0]);
}

#[test]
fn narrow_page_does_not_scroll_sideways() {
    let (mut browser, file) = open("narrow");
    browser.resize(390, 844);
    browser.eval(
        "document.querySelectorAll('details').forEach((details) => { details.open = true; })",
    );
    browser.wait_until(
        "charts have the width",
        "document.querySelector('.plot').clientWidth === document.querySelector('.uplot').clientWidth",
    );
    let width = "[document.documentElement.scrollWidth, document.body.scrollWidth]";
    assert_eq!(browser.eval(width), json!([390, 390]));
    // Heads are out of sight, so that queries are sorted by a list.
    browser.eval("document.querySelector('[name=sort]').focus()");
    assert_eq!(browser.eval("document.querySelector('[name=sort]').checkVisibility()"), true);
    browser.press("v", 86, "v");
    assert_eq!(sorted_by(&mut browser), json!([["rank", "ascending"]]));
    assert_eq!(browser.problems(&file), [""; 0]);
}

#[test]
fn verdict_is_above_the_fold_at_any_width() {
    let (mut browser, _) = open("fold");
    for (width, height) in [(1280, 720), (768, 1024), (390, 844)] {
        browser.resize(width, height);
        let bottom =
            browser.eval("document.querySelector('.tiles').getBoundingClientRect().bottom");
        assert!(bottom.as_f64().unwrap() < f64::from(height), "{width} × {height}: {bottom}");
    }
}

#[test]
fn elements_have_names_for_screen_readers() {
    let (mut browser, _) = open("names");
    let tree = browser.call("Accessibility.getFullAXTree", &json!({}));
    let nodes = tree["nodes"].as_array().unwrap();
    let named =
        ["button", "link", "checkbox", "searchbox", "combobox", "slider", "region", "image"];
    let nameless: Vec<_> = nodes
        .iter()
        .filter(|node| node["ignored"] == false)
        .filter(|node| named.iter().any(|role| node["role"]["value"] == *role))
        .filter(|node| node["name"]["value"].as_str().unwrap_or_default().trim().is_empty())
        .collect();
    assert!(nameless.is_empty(), "{nameless:?}");
    let headings = nodes.iter().filter(|node| node["role"]["value"] == "heading").count();
    assert!(headings > 10, "{headings}");
}

#[test]
fn page_is_complete_without_scripts() {
    let file = folder().join("no-script.html");
    fs::write(&file, page().to_html()).unwrap();
    let mut browser = Browser::start("no-script");
    browser.call("Emulation.setScriptExecutionDisabled", &json!({ "value": true }));
    browser.resize(1280, 900);
    browser.open(&file);
    let text = browser.eval("document.querySelector('main').innerText");
    let text = text.as_str().unwrap();
    for part in
        ["select o.id", "14.3×", "+49.4 s", "Throughput", "126\u{202f}007", "random_page_cost"]
    {
        assert!(text.contains(part), "{part}");
    }
    assert!(text.contains("The charts are drawn by a script in this page."));
    // Controls that would do nothing are not shown.
    let shown = "Array.from(document.querySelectorAll('button, input, select')).filter((element) => \
                 element.checkVisibility()).length";
    assert_eq!(browser.eval(shown), 0);
    browser.screenshot(&folder().join("no-script.png"), true);
}

/// Texts must not move under the eyes of readers while the scripts start.
#[test]
fn nothing_moves_while_the_page_loads() {
    let (mut browser, _) = open("shifts");
    let shifts = browser.eval(
        "new Promise((resolve) => { const shifts = []; new PerformanceObserver((list) => \
         shifts.push(...list.getEntries().map((entry) => [entry.value, \
         entry.sources.map((source) => source.node?.outerHTML?.slice(0, 80))]))).observe({ type: \
         'layout-shift', buffered: true }); setTimeout(() => resolve(shifts), 500); })",
    );
    assert_eq!(shifts, json!([]));
}

/// An application with thousands of different statements, rehearsed for two hours.
#[test]
fn large_page_stays_usable() {
    let mut large = page();
    large.queries = (0..3000)
        .map(|number| {
            let mut query = large.queries[number % large.queries.len()].clone();
            query.fingerprint = format!("{number:016x}");
            query.impact_us = 1e6 - number as f64;
            query
        })
        .collect();
    for values in large.time_lines.panels.iter_mut().flat_map(|panel| &mut panel.values) {
        *values = values.iter().copied().cycle().take(values.len() * 40).collect();
    }
    let file = folder().join("large.html");
    let html = large.to_html();
    assert!(html.len() < 25_000_000, "{}", html.len());
    fs::write(&file, html).unwrap();
    let mut browser = Browser::start("large");
    browser.resize(1280, 900);
    browser.open(&file);
    browser.wait_until("the script has run", "'ready' in document.documentElement.dataset");
    browser.click("#query-table th.calls button");
    assert_eq!(sorted_by(&mut browser), json!([["calls", "descending"]]));
    assert_eq!(texts(&mut browser)[0], "begin");
    assert_eq!(browser.eval("document.querySelectorAll('details').length"), 400);
    assert_eq!(browser.problems(&file), [""; 0]);
}

/// The pictures are for readers; the test only checks that they can be made.
#[test]
fn page_has_pictures_and_prints() {
    let (mut browser, file) = open("pictures");
    for (scheme, width, name) in [
        ("light", 1280, "light"),
        ("dark", 1280, "dark"),
        ("light", 390, "narrow"),
        ("dark", 390, "narrow-dark"),
    ] {
        browser.set_scheme(scheme);
        browser.resize(width, 844);
        browser.wait_until(
            "charts have the width",
            "document.querySelector('.plot').clientWidth === \
             document.querySelector('.uplot').clientWidth",
        );
        browser.screenshot(&folder().join(format!("{name}-window.png")), false);
        browser.screenshot(&folder().join(format!("{name}.png")), true);
    }
    browser.set_scheme("light");
    browser.resize(1280, 900);
    browser.drag("[data-panel='2'] .u-over", 0.2, 0.6);
    browser.hover("[data-panel='2'] .u-over");
    browser.wait_until("values are shown", "document.querySelector('.values').textContent");
    browser.screenshot(&folder().join("hover-window.png"), false);
    browser.click("[data-zoom=all]");
    let pdf = folder().join("page.pdf");
    browser.resize(1280, 844);
    browser.print(&pdf);
    assert!(fs::read(pdf).unwrap().starts_with(b"%PDF"));
    assert_eq!(browser.problems(&file), [""; 0]);
}
