//! Settings files of statsd servers, with arbitrary bytes.

use std::path::Path;

use howdah_statsd::settings::StatsdSettings;

use super::Shape;

/// Keys, values and punctuation of all three formats.
pub const WORDS: &[&[u8]] = &[
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"'",
    b"\"",
    b"`${",
    b"//",
    b"/*",
    b"*/",
    b"#",
    b"\n",
    b"port: 8125",
    b"backends: ['./backends/console']",
    b"graphite: { globalSuffix: require('os').hostname().split('.')[0] }",
    b"percentThreshold: [90, -10]",
    b"histogram: [ { metric: '', bins: [1, 'inf'] } ]",
    b"deleteIdleStats: true",
    b"\\u00e9",
    b"\\x4",
    b"1e999",
    b"0x10",
    b"[statsd]",
    b"flush-interval = '1s'",
    b"[[statsd.listen]]",
    b"type = 'udp'",
];

/// Checks that a file gives either settings or diagnostics with existing line numbers.
pub fn run(input: &[u8]) -> Shape {
    let text = String::from_utf8_lossy(input);
    let lines = 1 + text.matches('\n').count();
    match StatsdSettings::read(&text, Path::new("h.toml"), "host.example.org") {
        Ok(read) => {
            assert!(!read.settings.flush_interval.is_zero() && !read.settings.listen.is_empty());
            assert!(read.warnings.iter().all(|warning| warning.line <= lines));
            Shape::of((
                read.format == howdah_statsd::settings::SettingsFormat::Howdah,
                read.warnings.len(),
            ))
        }
        Err(wrong) => {
            assert!(!wrong.0.is_empty());
            assert!(wrong.0.iter().all(|remark| remark.line <= lines), "{wrong}");
            Shape::each(wrong.0.iter().map(|remark| remark.key.clone()))
        }
    }
}
