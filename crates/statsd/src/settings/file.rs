//! Reads settings files of all supported formats into [`StatsdSettings`].

use std::path::Path;

use howdah_settings::{Diagnostic, KeyLocations, SettingsErrors, SettingsSection, SettingsText};

use super::{
    PrefixLimit, StatsdSettings, etsy_config, import,
    literal::ExpressionContext,
    parsed::{ParsedSettings, SettingsFormat, flatten_section},
    rules::expand_variables,
};
use crate::rules::MetricRules;

impl StatsdSettings {
    /// Parses the text of the settings file `file`. `host` is the machine's name, for
    /// `require('os').hostname()`.
    ///
    /// # Errors
    ///
    /// The text has none of the formats or contains invalid values, or a howdah.toml contains
    /// unknown keys. In files of other servers unknown keys are warnings, because their files
    /// contain keys of other parts, of other versions and of extensions.
    pub fn read(text: &str, file: &Path, host: &str) -> Result<ParsedSettings, SettingsErrors> {
        Self::read_with(text, file, host, &|_| None)
    }

    /// Like [`read`](Self::read), with `variable` to look up environment variables for
    /// `process.env.NAME` in etsy's files, `${NAME}` in Telegraf's, and static tags.
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
        let no_lines = KeyLocations::new(file, Vec::new());
        let context = ExpressionContext { host, variable };
        let (mut read, locations) = match import::detect(text, file, context)? {
            SettingsFormat::Howdah => toml_section(&SettingsText::new(text, file))?,
            SettingsFormat::Literal => (etsy_config::read(text, file, context)?, no_lines),
            SettingsFormat::Datadog => (import::read_datadog(text, file)?, no_lines),
            SettingsFormat::Gostatsd => (import::read_gostatsd(text, file, context)?, no_lines),
            SettingsFormat::Statsite => (import::read_statsite(text, file)?, no_lines),
            SettingsFormat::Telegraf => (import::read_telegraf(text, file, context)?, no_lines),
            SettingsFormat::StatsdExporter => (import::read_flags(text, file)?, no_lines),
            SettingsFormat::ExporterMapping => (import::read_mapping(file)?, no_lines),
        };
        let mut violations: Vec<_> = read.settings.violations(&locations).collect();
        let is_ours = read.format == SettingsFormat::Howdah;
        for (tag, value) in &mut read.settings.static_tags {
            let key = format!("static-tags.{tag}");
            match expand_variables(value, host, variable) {
                _ if tag.is_empty() => {
                    violations.push(locations.diagnostic(&key, "a tag must have a key"));
                }
                // Other servers' files have no variables there, or have been expanded.
                _ if !is_ours => {}
                Ok(expanded) => *value = expanded,
                Err(text) => violations.push(locations.diagnostic(&key, text)),
            }
        }
        violations.extend(read.settings.rule_problems(&locations));
        violations.extend(read.settings.prefix_problems(&locations));
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
        let kafka = self.backends.kafka.iter();
        let kafka = kafka.filter_map(|kafka| Some(("backends.kafka", kafka.violation()?)));
        let forward = self.backends.forward.iter();
        let forward = forward.filter_map(|one| Some(("backends.forward", one.violation()?)));
        let violated = violated.map(|(_, key, text)| (key, text));
        let violated = violated.chain(tls).chain(exec).chain(kafka).chain(forward);
        violated.map(|(key, text)| locations.diagnostic(key, text))
    }
}

impl StatsdSettings {
    /// Returns the problems with limits of prefixes.
    fn prefix_problems(&self, locations: &KeyLocations) -> Vec<Diagnostic> {
        let limits = &self.limits.prefix;
        let problem = |(at, limit): (usize, &PrefixLimit)| {
            let (key, text) = match limit {
                PrefixLimit { prefix, .. } if prefix.is_empty() || prefix.contains(';') => {
                    ("prefix", "must not be empty or contain tags")
                }
                PrefixLimit { keys: 0, .. } => ("keys", "must be at least 1"),
                _ if limits[..at].iter().any(|other| other.prefix == limit.prefix) => {
                    ("prefix", "the prefix has another limit above")
                }
                _ => return None,
            };
            Some(locations.diagnostic(&format!("limits.prefix[{at}].{key}"), text))
        };
        limits.iter().enumerate().filter_map(problem).collect()
    }

    /// Returns the problems with rules.
    fn rule_problems(&self, locations: &KeyLocations) -> impl Iterator<Item = Diagnostic> {
        let (_, problems) = MetricRules::compile(&self.rules, &self.static_tags);
        problems.into_iter().map(|problem| {
            let rule = problem.rule.map_or_else(String::new, |rule| format!("[{rule}]"));
            let dot = if problem.key.is_empty() { "" } else { "." };
            locations.diagnostic(&format!("rules{rule}{dot}{}", problem.key), problem.text)
        })
    }
}

/// Reads the section `[statsd]` of a howdah.toml. Other sections are for other commands.
fn toml_section(text: &SettingsText<'_>) -> Result<(ParsedSettings, KeyLocations), SettingsErrors> {
    let SettingsSection { settings, errors, locations } = text.section("statsd", None)?;
    if !errors.is_empty() {
        return Err(SettingsErrors(errors));
    }
    let mut config_lines = Vec::new();
    flatten_section("", &text.section("statsd", None)?.settings, &mut config_lines);
    let (format, warnings) = (SettingsFormat::Howdah, Vec::new());
    Ok((ParsedSettings { settings, format, warnings, config_lines }, locations))
}

#[test]
fn problems_of_rules_have_line_and_key() {
    let text = "[statsd]\n[[statsd.rules]]\nname = 'a.*'\nrename = 'b.$2'\n\
                [[statsd.rules]]\nname-regex = '('\naction = 'drop'\n\
                [[statsd.rules]]\nname = 'x'\n[statsd.static-tags]\nhost = '$HOST'\n";
    let read = |text: &str| StatsdSettings::read(text, Path::new("h.toml"), "web1");
    let errors = read(text).unwrap_err().to_string();
    let lines: Vec<&str> = errors.lines().collect();
    for (line, start) in lines.iter().zip([
        "h.toml:11: static-tags.host: the environment variable HOST is not set",
        "h.toml:4: rules[0].rename: $2 has nothing to refer to",
        "h.toml:6: rules[1].name-regex: \"(\" is not a valid regular expression",
        "h.toml:8: rules[2]: the rule does nothing",
    ]) {
        assert!(line.starts_with(start), "{line}");
    }
    let unknown = "[statsd]\n[[statsd.rules]]\nnmae = 'a'\naction = 'deny'\n";
    let errors = read(unknown).unwrap_err().to_string();
    assert!(errors.starts_with("h.toml:3: rules[0].nmae: unknown key"), "{errors}");
    assert!(errors.contains("h.toml:4: rules[0].action: unknown variant `deny`"), "{errors}");
    let limits = "[statsd]\n[[statsd.limits.prefix]]\nprefix = ''\nkeys = 1\n\
                  [[statsd.limits.prefix]]\nprefix = 'a.'\nkeys = 0\n";
    assert_eq!(
        read(limits).unwrap_err().to_string(),
        "h.toml:3: limits.prefix[0].prefix: must not be empty or contain tags\n\
         h.toml:7: limits.prefix[1].keys: must be at least 1"
    );
    let tags = "[statsd]\nstatic-tags = { host = '$HOSTNAME' }\n";
    assert_eq!(read(tags).unwrap().settings.static_tags["host"], "web1");
}
