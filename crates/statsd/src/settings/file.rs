//! Reads settings files of all supported formats into [`StatsdSettings`].

use std::path::Path;

use howdah_settings::{Diagnostic, KeyLocations, SettingsErrors, SettingsSection, SettingsText};

use super::{
    StatsdSettings, etsy_config,
    literal::{self, ExpressionContext},
};

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

/// The format of a settings file, detected by its first character outside of comments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingsFormat {
    /// TOML with a `[statsd]` section.
    Howdah,
    /// An object literal: etsy's `config.js`, or the Perl server's JSON.
    Literal,
}

impl StatsdSettings {
    /// Parses the text of the settings file `file`. `host` is the machine's name, for
    /// `require('os').hostname()`.
    ///
    /// # Errors
    ///
    /// The text has none of the formats or contains invalid values, or a howdah.toml contains
    /// unknown keys. In files of other servers unknown keys are warnings, because those servers
    /// ignore them.
    pub fn read(text: &str, file: &Path, host: &str) -> Result<ParsedSettings, SettingsErrors> {
        Self::read_with(text, file, host, &|_| None)
    }

    /// Like [`read`](Self::read), with `variable` to look up environment variables for
    /// `process.env.NAME`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](Self::read).
    pub fn read_with(
        text: &str,
        file: &Path,
        host: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ParsedSettings, SettingsErrors> {
        let (read, locations) = if literal::is_literal(text) {
            let read = etsy_config::read(text, file, ExpressionContext { host, variable })?;
            (read, KeyLocations::new(file, Vec::new()))
        } else {
            toml_section(&SettingsText::new(text, file))?
        };
        let violations: Vec<_> = read.settings.violations(&locations).collect();
        if violations.is_empty() { Ok(read) } else { Err(SettingsErrors(violations)) }
    }

    /// Returns the violations of rules that apply to all formats.
    fn violations(&self, locations: &KeyLocations) -> impl Iterator<Item = Diagnostic> {
        let limits = &self.limits;
        let rules = [
            (
                self.flush_interval.as_millis() == 0,
                "flush-interval",
                "must be at least a millisecond",
            ),
            (
                limits.keys == 0 || limits.keys > 1 << 30,
                "limits.keys",
                "must be between 1 and 1073741824",
            ),
            (
                limits.key_bytes == 0 || limits.key_bytes > usize::from(u16::MAX),
                "limits.key-bytes",
                "must be between 1 and 65535",
            ),
            (
                limits.set_members == 0 || limits.member_bytes == 0,
                "limits",
                "set-members and member-bytes must be at least 1",
            ),
            (
                self.aggregation
                    .percentiles
                    .iter()
                    .any(|p| !(-100.0..=100.0).contains(p) || *p == 0.0),
                "aggregation.percentiles",
                "must be between -100 and 100, and not 0",
            ),
            (
                !(0.0..=100.0).contains(&self.key_flush.percent),
                "key-flush.percent",
                "must be between 0 and 100",
            ),
            (self.listen.is_empty(), "listen", "at least one listener is required"),
        ];
        let violated = rules.into_iter().filter(|(violated, _, _)| *violated);
        let tls = self.listen.iter().filter_map(|one| Some(("listen", one.tls_violation()?)));
        let exec = self.backends.exec.iter();
        let exec = exec.filter_map(|exec| Some(("backends.exec", exec.violation()?)));
        let violated = violated.map(|(_, key, text)| (key, text)).chain(tls).chain(exec);
        violated.map(|(key, text)| locations.diagnostic(key, text))
    }
}

/// Reads the section `[statsd]` of a howdah.toml. Other sections are for other commands.
fn toml_section(text: &SettingsText<'_>) -> Result<(ParsedSettings, KeyLocations), SettingsErrors> {
    if !text.parse()?.contains_key("statsd") {
        let why = "there is no [statsd] section, and the file is not an object literal { … }";
        return Err(SettingsErrors(vec![Diagnostic::new(text.file(), 0, "", why)]));
    }
    let SettingsSection { settings, errors, locations } = text.section("statsd", None)?;
    if !errors.is_empty() {
        return Err(SettingsErrors(errors));
    }
    let mut config_lines = Vec::new();
    flatten_section("", &text.section("statsd", None)?.settings, &mut config_lines);
    let (format, warnings) = (SettingsFormat::Howdah, Vec::new());
    Ok((ParsedSettings { settings, format, warnings, config_lines }, locations))
}

/// Flattens a section into lines `key: value` and `section > key: value`, without secrets: the
/// management port shows the lines to all its clients.
fn flatten_section(path: &str, table: &toml::Table, lines: &mut Vec<String>) {
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
            "flush-interval: 10s",
            "listen > 1 > address: 127.0.0.1:0",
            "listen > 1 > type: udp",
        ]
    );
}
