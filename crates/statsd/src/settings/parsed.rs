//! [`ParsedSettings`]: the result of reading a settings file.

use howdah_settings::Diagnostic;

use super::StatsdSettings;

/// The result of reading a settings file.
#[derive(Clone, Debug)]
pub struct ParsedSettings {
    /// The settings, validated.
    pub settings: StatsdSettings,
    /// The format of the file.
    pub format: SettingsFormat,
    /// Keys without effect, and other warnings.
    pub warnings: Vec<Diagnostic>,
    /// The settings as displayed by `config` at the management port.
    pub config_lines: Vec<String>,
}

/// The format of a settings file, detected by its content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFormat {
    /// TOML with a `[statsd]` section.
    Howdah,
    /// An object literal: etsy's `config.js`, or the Perl server's JSON.
    Literal,
    /// YAML of the Datadog agent: `datadog.yaml`.
    Datadog,
    /// TOML, YAML or JSON of gostatsd.
    Gostatsd,
    /// INI of statsite.
    Statsite,
    /// TOML of Telegraf: `telegraf.conf`.
    Telegraf,
    /// Flags of statsd_exporter.
    StatsdExporter,
    /// A mapping file of statsd_exporter, which runs it with its default flags.
    ExporterMapping,
}

/// Flattens a section into lines `key: value` and `section > key: value`, without secrets: the
/// management port shows the lines to all its clients.
pub(super) fn flatten_section(path: &str, table: &toml::Table, lines: &mut Vec<String>) {
    for (key, value) in table {
        let path = if path.is_empty() { key.clone() } else { format!("{path} > {key}") };
        match value {
            toml::Value::Table(section) => flatten_section(&path, section, lines),
            toml::Value::Array(items) if items.iter().any(toml::Value::is_table) => {
                let sections = items.iter().filter_map(toml::Value::as_table);
                for (number, section) in (1..).zip(sections) {
                    flatten_section(&format!("{path} > {number}"), section, lines);
                }
            }
            // Arguments of a program may contain passwords.
            toml::Value::Array(words) if key == "command" => {
                let program = words.first().and_then(toml::Value::as_str).unwrap_or_default();
                lines.push(format!("{path}: {program}"));
            }
            // The path of a webhook is often a secret.
            toml::Value::String(url)
                if path.starts_with("backends > webhook > ") && key == "url" =>
            {
                let url = without_secrets(key, url);
                let origin = url.splitn(4, '/').take(3).collect::<Vec<_>>().join("/");
                lines.push(format!("{path}: {origin}"));
            }
            toml::Value::String(text) => {
                lines.push(format!("{path}: {}", without_secrets(key, text)));
            }
            other => lines.push(format!("{path}: {other}")),
        }
    }
}

/// Returns the value of a key without the parts that may be secret: the user, password and
/// parameters of a URL, and the whole of a connection string, password or token.
fn without_secrets(key: &str, value: &str) -> String {
    const HIDDEN: &str = "(hidden)";
    match key {
        "connection" | "password" | "token" => HIDDEN.to_owned(),
        _ => match value.split_once("://") {
            Some((scheme, rest)) => {
                let (place, _) = rest.split_once('?').unwrap_or((rest, ""));
                let (authority, path) = place.split_once('/').unwrap_or((place, ""));
                let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
                let slash = if path.is_empty() { "" } else { "/" };
                format!("{scheme}://{host}{slash}{path}")
            }
            None => value.to_owned(),
        },
    }
}

#[test]
fn shown_settings_have_no_secrets() {
    let text = r#"
        [statsd]
        flush-interval = "10s"
        [[statsd.listen]]
        type = "udp"
        address = "127.0.0.1:0"
        [[statsd.backends.influx]]
        url = "http://joe:hunter2@influx:8086/api/v2/write?token=hunter3"
        [[statsd.backends.postgres]]
        connection = "postgresql://joe:hunter4@db/metrics"
        [[statsd.backends.exec]]
        command = ["/usr/bin/sink", "--token", "hunter5"]
        [[statsd.backends.webhook]]
        url = "https://hooks:443/services/hunter6"
    "#;
    let table: toml::Table = toml::from_str(text).unwrap();
    let mut lines = Vec::new();
    flatten_section("", table["statsd"].as_table().unwrap(), &mut lines);
    lines.sort();
    assert_eq!(
        lines,
        [
            "backends > exec > 1 > command: /usr/bin/sink",
            "backends > influx > 1 > url: http://influx:8086/api/v2/write",
            "backends > postgres > 1 > connection: (hidden)",
            "backends > webhook > 1 > url: https://hooks:443",
            "flush-interval: 10s",
            "listen > 1 > address: 127.0.0.1:0",
            "listen > 1 > type: udp",
        ]
    );
}
