//! Reads settings files of all supported formats into [`StatsdSettings`].

use std::fmt;

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
    pub warnings: Vec<SettingsDiagnostic>,
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

/// An error or warning about a key of a settings file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingsDiagnostic {
    /// The line, from 1; 0 if unknown.
    pub line: usize,
    /// The key with its path, `graphite.legacyNamespace`; empty if the message does not concern a
    /// key, or already names it.
    pub key: String,
    /// The text of the error or warning.
    pub text: String,
}

impl fmt::Display for SettingsDiagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.text)
    }
}

/// The errors found in a settings file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsErrors(pub Vec<SettingsDiagnostic>);

impl fmt::Display for SettingsErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, diagnostic) in self.0.iter().enumerate() {
            let end = if at == 0 { "" } else { "\n" };
            write!(f, "{end}{diagnostic}")?;
        }
        Ok(())
    }
}

impl StatsdSettings {
    /// Parses the text of a settings file. `host` is the machine's name, for
    /// `require('os').hostname()`.
    ///
    /// # Errors
    ///
    /// The text has none of the formats or contains invalid values, or a howdah.toml contains
    /// unknown keys. In files of other servers unknown keys are warnings, because those servers
    /// ignore them.
    pub fn read(text: &str, host: &str) -> Result<ParsedSettings, SettingsErrors> {
        Self::read_with(text, host, &|_| None)
    }

    /// Like [`read`](Self::read), with `variable` to look up environment variables for
    /// `process.env.NAME`.
    ///
    /// # Errors
    ///
    /// Returns the same errors as [`read`](Self::read).
    pub fn read_with(
        text: &str,
        host: &str,
        variable: &dyn Fn(&str) -> Option<String>,
    ) -> Result<ParsedSettings, SettingsErrors> {
        let read = if literal::is_literal(text) {
            etsy_config::read(text, ExpressionContext { host, variable })
        } else {
            toml_section(text)
        }?;
        let violations = read.settings.violations();
        if violations.is_empty() { Ok(read) } else { Err(SettingsErrors(violations)) }
    }

    /// Returns the violations of rules that apply to all formats.
    fn violations(&self) -> Vec<SettingsDiagnostic> {
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
        violated
            .map(|(_, key, text)| SettingsDiagnostic {
                line: 0,
                key: key.to_owned(),
                text: text.to_owned(),
            })
            .collect()
    }
}

fn toml_section(text: &str) -> Result<ParsedSettings, SettingsErrors> {
    /// The part of howdah.toml that this crate reads; other sections are for other commands.
    #[derive(serde::Deserialize)]
    struct HowdahToml {
        statsd: Option<StatsdSettings>,
    }
    let diagnose = |line: usize, text: String| {
        SettingsErrors(vec![SettingsDiagnostic { line, key: String::new(), text }])
    };
    let file: HowdahToml = toml::from_str(text).map_err(|error| {
        let line = error.span().map_or(0, |span| 1 + text[..span.start].matches('\n').count());
        diagnose(line, error.message().to_owned())
    })?;
    let settings = file.statsd.ok_or_else(|| {
        diagnose(
            0,
            "the file has no [statsd] section and is not an object literal { … }".to_owned(),
        )
    })?;
    let table: toml::Table = toml::from_str(text).unwrap_or_default();
    let mut config_lines = Vec::new();
    if let Some(toml::Value::Table(section)) = table.get("statsd") {
        flatten_section("", section, &mut config_lines);
    }
    Ok(ParsedSettings {
        settings,
        format: SettingsFormat::Howdah,
        warnings: Vec::new(),
        config_lines,
    })
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
    "#;
    let table: toml::Table = toml::from_str(text).unwrap();
    let mut lines = Vec::new();
    flatten_section("", table["statsd"].as_table().unwrap(), &mut lines);
    lines.sort();
    assert_eq!(
        lines,
        [
            "backends > influx > 1 > url: http://influx:8086/api/v2/write",
            "backends > postgres > 1 > connection: (hidden)",
            "flush-interval: 10s",
            "listen > 1 > address: 127.0.0.1:0",
            "listen > 1 > type: udp",
        ]
    );
}
