//! The reply to the command `cut`: samples that rules drop or change, and those of keys beyond the
//! limits of their prefixes.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use crate::{
    flush::{PrefixTally, RuleTally},
    js::JsValue,
};

/// Returns one line per rule and limited prefix: samples and keys, and the seconds since the rule
/// became effective or the limit was reached. The most recent keys follow, indented.
pub(super) fn cut_text(rules: &[RuleTally], prefixes: &[PrefixTally], now: SystemTime) -> String {
    let mut text = String::new();
    for tally in rules {
        let _ = writeln!(
            text,
            "rule {}: dropped {} changed {} keys {} seconds {}",
            tally.id,
            tally.dropped,
            tally.changed,
            tally.keys,
            age(tally.since, now)
        );
        for example in &tally.examples {
            let _ = writeln!(text, "  {example}");
        }
    }
    for tally in prefixes {
        let _ = writeln!(
            text,
            "prefix {}: limit {} keys {} cut_samples {} cut_keys {} seconds {}",
            tally.prefix,
            tally.limit,
            tally.keys,
            tally.cut_samples,
            tally.cut_keys,
            age(tally.since, now)
        );
        for example in &tally.examples {
            let _ = writeln!(text, "  {example}");
        }
    }
    text
}

/// Returns the same as [`cut_text`], for JSON.
pub(super) fn cut_value(rules: &[RuleTally], prefixes: &[PrefixTally], now: SystemTime) -> JsValue {
    let number = |number: u64| JsValue::Number(number as f64);
    let text = |text: &str| JsValue::Text(text.into());
    let examples = |examples: &VecDeque<String>| {
        JsValue::Array(examples.iter().map(|example| text(example)).collect())
    };
    let rules = rules.iter().map(|tally| {
        JsValue::Object(vec![
            ("id".into(), text(&tally.id)),
            ("dropped".into(), number(tally.dropped)),
            ("changed".into(), number(tally.changed)),
            ("keys".into(), number(tally.keys)),
            ("seconds".into(), number(age(tally.since, now))),
            ("examples".into(), examples(&tally.examples)),
        ])
    });
    let prefixes = prefixes.iter().map(|tally| {
        JsValue::Object(vec![
            ("prefix".into(), text(&tally.prefix)),
            ("limit".into(), number(tally.limit as u64)),
            ("keys".into(), number(tally.keys as u64)),
            ("cut_samples".into(), number(tally.cut_samples)),
            ("cut_keys".into(), number(tally.cut_keys as u64)),
            ("seconds".into(), number(age(tally.since, now))),
            ("examples".into(), examples(&tally.examples)),
        ])
    });
    JsValue::Object(vec![
        ("rules".into(), JsValue::Array(rules.collect())),
        ("prefixes".into(), JsValue::Array(prefixes.collect())),
    ])
}

/// Returns the full seconds since a time.
fn age(since: SystemTime, now: SystemTime) -> u64 {
    now.duration_since(since).unwrap_or(Duration::ZERO).as_secs()
}
