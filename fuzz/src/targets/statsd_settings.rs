//! Settings files of statsd servers, with arbitrary bytes.

use std::path::Path;

use howdah_statsd::settings::{ParsedSettings, SettingsErrors, StatsdSettings};

use super::Shape;

/// Keys, values and punctuation of all formats.
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
    b"static-tags = { a = '$$' }",
    b"dogstatsd_port: 1\n",
    b"tags: [a, 'b:c']\n",
    b"statsd_metric_namespace: x\n",
    b"- match: 'a.*'\n",
    b"name: b\n",
    b"metrics-addr = ':1'\n",
    b"backends = 'stdout'\n",
    b"filters = ['f']\n",
    b"[filter.f]\n",
    b"match-metrics = ['a*']\n",
    b"match-tags = ['a:b']\n",
    b"drop-metric = true\n",
    b"drop-tags = ['a:*']\n",
    b"[statsite]\n",
    b"stream_cmd = cat\n",
    b"[[inputs.statsd]]\n",
    b"service_address = ':1'\n",
    b"namepass = ['a*']\n",
    b"tagexclude = ['a']\n",
    b"[[outputs.influxdb]]\n",
    b"${A:-b}",
    b"--statsd.listen-udp=:1 ",
    b"mappings:\n",
];

/// Checks that a file gives either settings, which are equal after conversion to our format, or
/// diagnostics with existing line numbers.
pub fn run(input: &[u8]) -> Shape {
    let text = String::from_utf8_lossy(input);
    // YAML also treats a lone carriage return as a line break, and reports an error at the end of
    // the file on the line after the last.
    let lines = 2 + text.replace("\r\n", "\n").matches(['\n', '\r']).count();
    match read(&text) {
        Ok(read) => {
            assert!(!read.settings.flush_interval.is_zero() && !read.settings.listen.is_empty());
            assert!(read.warnings.iter().all(|warning| warning.line <= lines));
            let written = read.settings.to_toml().expect("settings from a text");
            let again = self::read(&written).expect(&written);
            assert_eq!(again.settings, read.settings, "{written}");
            Shape::of((read.format as u8, read.warnings.len(), read.settings.rules.len()))
        }
        Err(wrong) => {
            assert!(!wrong.0.is_empty());
            assert!(wrong.0.iter().all(|remark| remark.line <= lines), "{wrong}");
            Shape::each(wrong.0.iter().map(|remark| remark.key.clone()))
        }
    }
}

fn read(text: &str) -> Result<ParsedSettings, SettingsErrors> {
    StatsdSettings::read(text, Path::new("h.toml"), "host.example.org")
}
