//! Reads settings files of all supported formats into [`StatsdSettings`].

use std::path::Path;

use howdah_settings::{Diagnostic, KeyLocations, SettingsErrors, SettingsSection, SettingsText};

use super::{
    StatsdSettings, etsy_config, import,
    literal::ExpressionContext,
    parsed::{ParsedSettings, SettingsFormat, flatten_section},
};

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
    /// `process.env.NAME` in etsy's files and `${NAME}` in Telegraf's.
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
        let (read, locations) = match import::detect(text, file, context)? {
            SettingsFormat::Howdah => toml_section(&SettingsText::new(text, file))?,
            SettingsFormat::Literal => (etsy_config::read(text, file, context)?, no_lines),
            SettingsFormat::Datadog => (import::read_datadog(text, file)?, no_lines),
            SettingsFormat::Gostatsd => (import::read_gostatsd(text, file, context)?, no_lines),
            SettingsFormat::Statsite => (import::read_statsite(text, file)?, no_lines),
            SettingsFormat::Telegraf => (import::read_telegraf(text, file, variable)?, no_lines),
            SettingsFormat::StatsdExporter => (import::read_flags(text, file)?, no_lines),
            SettingsFormat::ExporterMapping => (import::read_mapping(file)?, no_lines),
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
    let SettingsSection { settings, errors, locations } = text.section("statsd", None)?;
    if !errors.is_empty() {
        return Err(SettingsErrors(errors));
    }
    let mut config_lines = Vec::new();
    flatten_section("", &text.section("statsd", None)?.settings, &mut config_lines);
    let (format, warnings, mapping) = (SettingsFormat::Howdah, Vec::new(), None);
    Ok((ParsedSettings { settings, format, warnings, config_lines, mapping }, locations))
}
