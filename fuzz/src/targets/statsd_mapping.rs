//! Mapping files for Prometheus names, with arbitrary bytes.

use howdah_statsd::{backends::map_counter_name, settings::PrometheusSettings};

use super::Shape;

/// Keys and values of the format, and YAML features that it does not allow.
pub const WORDS: &[&[u8]] = &[
    b"mappings:\n",
    b"- match: \"a.*.b\"\n",
    b"  name: x_${1}_total\n",
    b"  labels: { k: \"$1\" }\n",
    b"  match_type: regex\n",
    b"  action: drop\n",
    b"  match_metric_type: counter\n",
    b"  observer_type: histogram\n",
    b"  histogram_options: { buckets: [1, 2] }\n",
    b"  ttl: 1h\n",
    b"  scale: 0.1\n",
    b"defaults:\n",
    b"  glob_disable_ordering: true\n",
    b"&x ",
    b"*x",
    b"<<: ",
    b"!!binary ",
    b"[[[[[[[[",
    b"{",
    b"}",
    b"|\n",
    b"(a|b)*",
    b"$0",
    b"$99",
    b"---\n",
];

/// Checks that a file either gives each name a mapping, or is refused with an existing line number,
/// and always with the same result.
pub fn run(input: &[u8]) -> Shape {
    let text = String::from_utf8_lossy(input);
    // YAML also treats a lone carriage return as a line break; an error at the end of the file is
    // reported on the line after the last.
    let lines = 2 + text.replace("\r\n", "\n").matches(['\n', '\r']).count();
    let settings = PrometheusSettings::default();
    Shape::each(["", "a.b", "a.x.b", "test.dispatcher.fast.ok"].map(|name| {
        let first = map_counter_name(&text, &settings, name).map_err(|(line, _)| line);
        assert_eq!(first, map_counter_name(&text, &settings, name).map_err(|(line, _)| line));
        match first {
            Ok(Some(mapped)) => (true, (mapped.len() + 1).ilog2(), usize::from(mapped == name)),
            Ok(None) => (true, 0, 2),
            Err(line) => {
                assert!(line <= lines, "line {line} of {lines}");
                (false, 0, line)
            }
        }
    }))
}
