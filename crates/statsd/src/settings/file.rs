//! Reads settings files of all supported formats into [`StatsdSettings`].

use std::path::Path;

use howdah_settings::{Diagnostic, KeyLocations, SettingsErrors, SettingsSection, SettingsText};

use super::{
    StatsdSettings, etsy_config,
    literal::{self, ExpressionContext},
    parsed::{ParsedSettings, SettingsFormat, flatten_section},
};

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
        violated.map(|(_, key, text)| locations.diagnostic(key, text))
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
