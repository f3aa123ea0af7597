//! Rules for names and tags, and metric lines, with arbitrary bytes.

use std::path::Path;

use howdah_statsd::{
    preview::RulePreview,
    settings::{PrometheusSettings, StatsdSettings},
};

use super::Shape;

/// Keys and values of rules, and lines.
pub const FRAGMENTS: &[&[u8]] = &[
    b"[[statsd.rules]]\n",
    b"[statsd.static-tags]\n",
    b"id = 'x'\n",
    b"name = '*.b*.**'\n",
    b"name = '**'\n",
    b"name-regex = '^(a|b)([0-9]+)$'\n",
    b"type = 'counter'\n",
    b"tags = { a = 'b*' }\n",
    b"rename = 'x.${1}.$2'\n",
    b"drop-tags = ['a*']\n",
    b"keep-tags = ['b']\n",
    b"add-tags = { c = '$0' }\n",
    b"action = 'drop'\n",
    b"action = 'allow'\n",
    b"\n\n",
    b"a7.b.c:1|c|#a:b,c",
    b"|#",
    b";a=b",
    b"$1",
    b"*",
    b"\xc3\xa9",
];

/// Checks that the settings before an empty line, if they are valid, have the same effect on each
/// line after it twice, and leave no metric without a name.
pub fn run(input: &[u8]) -> Shape {
    let text = String::from_utf8_lossy(input);
    let (settings, lines) = text.split_once("\n\n").unwrap_or((&text, "a7.b.c:1|c|#a:b,c"));
    let settings = format!("[statsd]\n{settings}");
    let mut read = match StatsdSettings::read(&settings, Path::new("h.toml"), "host") {
        Ok(read) => read,
        Err(wrong) => return Shape::each(wrong.0.iter().map(|remark| remark.key.clone())),
    };
    // A mapping file is not part of the input.
    read.settings.backends.prometheus = Some(PrometheusSettings::default());
    let Ok(preview) = RulePreview::new(&read.settings) else { return Shape::of(()) };
    Shape::each(lines.lines().filter(|line| !line.is_empty()).map(|line| {
        let metrics = preview.metrics(line);
        assert_eq!(metrics, preview.metrics(line));
        let metrics = metrics.unwrap_or_default();
        for keys in metrics.iter().filter_map(|metric| metric.keys.as_ref()) {
            let has_name = !keys.sent.base().is_empty() || line.starts_with([':', ';', '|']);
            assert!(has_name, "{keys:?}");
        }
        metrics.iter().map(|metric| (metric.rules.len(), metric.keys.is_some())).collect::<Vec<_>>()
    }))
}
