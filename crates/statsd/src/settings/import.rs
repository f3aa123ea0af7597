//! Converts the settings files of servers other than etsy's and the Perl server.
//!
//! Each format has a module. It reads the file as a tree of [`LiteralNode`]s, whatever the file's
//! syntax is, and sets what our settings can express. A key without an equivalent causes a warning
//! that says what to do instead. No file of another server opens a port that this server would not
//! open, so the management port is off unless the file has one.

mod datadog;
mod exporter;
mod format;
mod gostatsd;
mod rules;
mod statsite;
mod telegraf;
mod tree;

use std::{path::Path, time::Duration};

use howdah_settings::{Diagnostic, SettingsErrors, duration_from_seconds, nearest};

use super::{
    ListenSettings, StatsdLogLevel, StatsdSettings,
    etsy_config::{ValueProblem, number},
    go_values,
    literal::{self, ExpressionContext, Literal, LiteralEntry, LiteralNode},
    parsed::{ParsedSettings, SettingsFormat, flatten_section},
};

#[cfg(test)]
use crate::{MetricName, aggregate::MetricType, rules::MetricRules};

pub(super) use self::{
    datadog::read as read_datadog,
    exporter::{read_flags, read_mapping},
    format::detect,
    statsite::read as read_statsite,
    telegraf::read as read_telegraf,
};

/// Reads a file of gostatsd, in any of its syntaxes.
pub(super) fn read_gostatsd(
    text: &str,
    file: &Path,
    context: ExpressionContext<'_>,
) -> Result<ParsedSettings, SettingsErrors> {
    let tree = if literal::is_literal(text) {
        literal::parse(text, context).map_err(|error| {
            SettingsErrors(vec![Diagnostic::new(file, error.line, "", error.reason)])
        })?
    } else {
        tree::from_toml(text, file).or_else(|_| tree::from_yaml(text, file))?
    };
    gostatsd::read(&tree, file)
}

/// Keys without an effect here, each with the advice for the user.
type KeyAdvice = [(&'static str, &'static str)];

/// A key that is not converted.
#[derive(Clone, Copy)]
struct UnusedKey<'k> {
    line: usize,
    /// Path of the key's section; empty at the top level.
    section: &'k str,
    key: &'k str,
}

/// The settings converted so far, and what the user should know about the file.
struct Conversion<'f> {
    file: &'f Path,
    settings: StatsdSettings,
    warnings: Vec<Diagnostic>,
    errors: Vec<Diagnostic>,
}

impl<'f> Conversion<'f> {
    fn new(file: &'f Path) -> Self {
        let settings = StatsdSettings { management: None, ..StatsdSettings::default() };
        Self { file, settings, warnings: Vec::new(), errors: Vec::new() }
    }

    fn warn(&mut self, line: usize, key: &str, text: impl Into<String>) {
        self.warnings.push(Diagnostic::new(self.file, line, key, text));
    }

    fn error(&mut self, line: usize, key: &str, text: impl Into<String>) {
        self.errors.push(Diagnostic::new(self.file, line, key, text));
    }

    /// Records the outcome of reading one entry.
    fn record(&mut self, entry: &LiteralEntry, path: &str, outcome: Result<(), ValueProblem>) {
        if let Err(why) = outcome {
            self.error(entry.line, path, why);
        }
    }

    /// Warns about a key that is not converted: with its advice, or as unknown, with the nearest
    /// of the `known` keys.
    fn warn_unused(&mut self, entry: UnusedKey<'_>, advice: &KeyAdvice, known: &[&str]) {
        let UnusedKey { line, section, key } = entry;
        let path = if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") };
        if let Some((_, text)) = advice.iter().find(|(name, _)| name.eq_ignore_ascii_case(key)) {
            return self.warn(line, &path, *text);
        }
        let all = known.iter().copied().chain(advice.iter().map(|(name, _)| *name));
        let hint = nearest(key, all).map(|known| format!(" (did you mean `{known}`?)"));
        self.warn(line, &path, format!("unknown key, ignored{}", hint.unwrap_or_default()));
    }

    /// Returns the settings, or all errors. Diagnostics are ordered by line.
    fn finish(mut self, format: SettingsFormat) -> Result<ParsedSettings, SettingsErrors> {
        self.errors.sort_by_key(|error| error.line);
        self.warnings.sort_by_key(|warning| warning.line);
        if !self.errors.is_empty() {
            return Err(SettingsErrors(self.errors));
        }
        let mut config_lines = Vec::new();
        // Paths come from a text, so they are UTF-8, and the section can be written.
        if let Ok(section) = self.settings.changed_keys() {
            flatten_section("", &section, &mut config_lines);
        }
        let Self { settings, warnings, .. } = self;
        Ok(ParsedSettings { settings, format, warnings, config_lines })
    }
}

/// Returns the entries of an object, or the error for another value.
fn entries(node: &LiteralNode) -> Result<&[LiteralEntry], ValueProblem> {
    match &node.value {
        Literal::Object(entries) => Ok(entries),
        _ => Err("must be a section with keys".to_owned()),
    }
}

/// Returns the value of the last entry with this name, if it is set.
fn find<'n>(entries: &'n [LiteralEntry], key: &str) -> Option<&'n LiteralEntry> {
    let is_it = |entry: &&LiteralEntry| entry.key.eq_ignore_ascii_case(key) && is_set(&entry.value);
    entries.iter().rev().find(is_it)
}

fn is_set(node: &LiteralNode) -> bool {
    node.value != Literal::Null
}

/// Returns a scalar as text.
fn text(node: &LiteralNode) -> Result<String, ValueProblem> {
    match &node.value {
        Literal::Text(text) => Ok(text.clone()),
        Literal::Number(number) => Ok(crate::js::JsNumber(*number).to_string()),
        Literal::Bool(value) => Ok(value.to_string()),
        _ => Err("must be text".to_owned()),
    }
}

fn boolean(node: &LiteralNode) -> Result<bool, ValueProblem> {
    match text(node)?.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" | "t" => Ok(true),
        "false" | "no" | "off" | "0" | "f" => Ok(false),
        _ => Err("must be true or false".to_owned()),
    }
}

/// Returns a whole number of at least 0.
fn whole<T: TryFrom<u64>>(node: &LiteralNode) -> Result<T, ValueProblem> {
    let number = number(node)?;
    let whole = number.fract() == 0.0 && (0.0..=9e15).contains(&number);
    let value = whole.then_some(number as u64).and_then(|number| T::try_from(number).ok());
    value.ok_or_else(|| format!("{} is not a valid number here", crate::js::JsNumber(number)))
}

/// Returns the texts of a list, or of one text in which they are separated by spaces or commas.
fn text_list(node: &LiteralNode) -> Result<Vec<String>, ValueProblem> {
    match &node.value {
        Literal::List(items) => items.iter().map(text).collect(),
        Literal::Null => Ok(Vec::new()),
        _ => {
            let text = text(node)?;
            let parts = text.split([' ', ',', '\t', '\n']).filter(|part| !part.is_empty());
            Ok(parts.map(str::to_owned).collect())
        }
    }
}

fn host_and_port(text: &str, default_port: u16) -> Result<(String, u16), ValueProblem> {
    go_values::host_and_port(text, default_port)
        .ok_or_else(|| format!("{text:?} is not a host with a port"))
}

/// Parses a duration of Go, of at most 100 years as in TOML.
fn go_duration(text: &str) -> Option<Duration> {
    let duration = go_values::duration(text)?;
    duration_from_seconds(duration.as_secs_f64()).map(|_| duration)
}

/// Converts a quantile such as `0.95` to a percentage.
fn percent(quantile: &str) -> Result<f64, ValueProblem> {
    let number = quantile.parse().ok().filter(|number| *number > 0.0 && *number < 1.0);
    let number: f64 = number.ok_or_else(|| format!("{quantile:?} is not between 0 and 1"))?;
    // 0.29 * 100 is not 29.
    Ok((number * 1e12).round() / 1e10)
}

/// Returns the names of a statistic of percentiles for `calculated`. The one with `percent` selects
/// those of whole percentages only.
fn percent_names(statistic: &str, percentiles: &[f64]) -> Vec<String> {
    let fractions = percentiles.iter().filter(|percent| percent.fract() != 0.0);
    let fractions = fractions.map(|percent| percent.to_string().replacen('.', "_", 1));
    let labels = ["percent".to_owned()].into_iter().chain(fractions);
    labels.map(|label| format!("{statistic}_{label}")).collect()
}

/// Returns the URL of InfluxDB's write endpoint, with the parameters that have a value.
fn influx_url(server: &str, path: &str, parameters: &[(&str, Option<String>)]) -> String {
    let present = parameters.iter().filter_map(|(name, value)| Some((name, value.as_deref()?)));
    let present = present.filter(|(_, value)| !value.is_empty());
    let query: Vec<String> =
        present.map(|(name, value)| format!("{name}={}", percent_encoded(value))).collect();
    format!("{}{path}?{}", server.trim_end_matches('/'), query.join("&"))
}

/// Encodes text as the value of a URL's parameter.
fn percent_encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(byte.into());
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

/// Sets the receive buffer of listeners for datagrams.
fn set_buffer(listeners: &mut [ListenSettings], bytes: usize) {
    for listener in listeners {
        if let ListenSettings::Udp { buffer_bytes, .. }
        | ListenSettings::Unixgram { buffer_bytes, .. } = listener
        {
            *buffer_bytes = bytes;
        }
    }
}

/// Parses the name of a log level of programs in C, Go or Python.
fn log_level(name: &str) -> Result<StatsdLogLevel, ValueProblem> {
    match name.to_ascii_lowercase().as_str() {
        "off" | "critical" | "fatal" | "panic" | "error" => Ok(StatsdLogLevel::Error),
        "warn" | "warning" => Ok(StatsdLogLevel::Warn),
        "info" | "notice" => Ok(StatsdLogLevel::Info),
        "debug" | "trace" => Ok(StatsdLogLevel::Debug),
        _ => Err(format!("{name:?} is not a log level")),
    }
}

/// Reads a file by all rules, and asserts that its settings written as TOML are equal settings.
#[cfg(test)]
fn read_and_convert(name: &str, text: &str) -> ParsedSettings {
    let read = StatsdSettings::read(text, Path::new(name), "host").expect(text);
    let written = read.settings.to_toml().expect("TOML");
    let again = StatsdSettings::read(&written, Path::new("howdah.toml"), "host").expect(&written);
    assert_eq!(again.settings, read.settings, "{written}");
    read
}

/// Returns a counter's name and tags after the rules of a file; `None` if one drops it.
#[cfg(test)]
fn renamed(text: &str, name: &str) -> Option<String> {
    let settings = read_and_convert("settings", text).settings;
    let (rules, problems) = MetricRules::compile(&settings.rules, &settings.static_tags);
    assert_eq!(problems, []);
    let name = MetricName::new(name);
    rules.apply(&name, MetricType::Counter).key.map(|key| key.graphite_text())
}

/// Returns the warnings as shown to users.
#[cfg(test)]
fn warnings(read: &ParsedSettings) -> Vec<String> {
    read.warnings.iter().map(ToString::to_string).collect()
}

/// Returns the errors in a file as shown to users.
#[cfg(test)]
fn errors(name: &str, text: &str) -> String {
    StatsdSettings::read(text, Path::new(name), "host").expect_err(text).to_string()
}
