//! Reads a `pgbouncer.ini` into [`Config`].
//!
//! Each key is a row of a table: the `[pool]` key it sets, or the reason why it has no effect,
//! which is logged as a warning. A key without a row is an error, since PgBouncer does not know it
//! either. Source: the manual of PgBouncer 1.25, config(5).

mod differences;
mod entries;
mod import;
mod keys;
#[cfg(test)]
mod reference_page;

use std::path::{Path, PathBuf};

use howdah_settings::{Diagnostic, KeyLocations, SettingsErrors, nearest};

use super::{
    AuthConfig, AuthMethod, Config, ListenConfig, LogConfig, ShutdownMode,
    file::{FileContents, read_text},
    ini::{self, IniLine},
};

pub use self::{
    entries::{DATABASE_KEYS, USER_KEYS},
    keys::{KEYS, KeyEffect, PgbouncerKey},
};

/// Maximum nesting depth of `%include`.
const INCLUDES_MAX: usize = 10;

/// Sections that a `pgbouncer.ini` may have.
const SECTIONS: [&str; 4] = ["databases", "pgbouncer", "users", "peers"];

pub(super) fn is_section(name: &str) -> bool {
    SECTIONS.contains(&name)
}

/// Reads a file and its included files.
///
/// # Errors
///
/// A line, section or included file could not be read, so the values of some keys are unknown and
/// the settings cannot be checked as a whole.
pub(super) fn read(text: &str, file: &Path) -> Result<FileContents, SettingsErrors> {
    let IniReader {
        config, warnings, differences, errors, invalid_keys, locations, is_broken, ..
    } = IniReader::read_all(text, file);
    if is_broken {
        Err(SettingsErrors(errors))
    } else {
        let locations = KeyLocations::new(file, locations);
        Ok(FileContents { config, warnings, differences, errors, invalid_keys, locations })
    }
}

/// Returns PgBouncer's defaults, which differ from those of `howdah.toml`.
pub fn defaults() -> Config {
    Config {
        listen: ListenConfig { addresses: Vec::new(), ..ListenConfig::default() },
        auth: AuthConfig { method: AuthMethod::Md5, ..AuthConfig::default() },
        shutdown_mode: ShutdownMode::WaitForClients,
        allow_cleartext_password: true,
        log: LogConfig { syslog_name: "pgbouncer".to_owned(), ..LogConfig::default() },
        ..Config::default()
    }
}

/// The result of applying a key: a warning, if any, or the reason why the key or its value is
/// invalid.
type IniKeyResult = Result<Option<&'static str>, String>;

struct IniReader {
    config: Config,
    section: Option<&'static str>,
    /// Keys of section `[pgbouncer]` that the file sets.
    keys: Vec<&'static str>,
    warnings: Vec<Diagnostic>,
    /// Keys that the file sets and whose effect differs from PgBouncer's.
    differences: Vec<Diagnostic>,
    errors: Vec<Diagnostic>,
    /// Keys of `[pool]` whose values are invalid.
    invalid_keys: Vec<String>,
    /// Keys of `[pool]` that the file sets, with file and line.
    locations: Vec<(String, PathBuf, usize)>,
    /// Whether a line, section or included file could not be read, so that the keys it sets are
    /// unknown.
    is_broken: bool,
}

impl IniReader {
    fn read(text: &str, file: &Path) -> Result<Self, SettingsErrors> {
        let reader = Self::read_all(text, file);
        if reader.errors.is_empty() { Ok(reader) } else { Err(SettingsErrors(reader.errors)) }
    }

    fn read_all(text: &str, file: &Path) -> Self {
        let mut reader = Self {
            config: defaults(),
            section: None,
            keys: Vec::new(),
            warnings: Vec::new(),
            differences: Vec::new(),
            errors: Vec::new(),
            invalid_keys: Vec::new(),
            locations: Vec::new(),
            is_broken: false,
        };
        reader.read_lines(text, file, 0);
        reader.ignore_peers_without_own_number();
        reader
    }

    /// Removes the peers if `peer_id` is not set or 0, which turns peering off.
    fn ignore_peers_without_own_number(&mut self) {
        if self.config.peers.own_number() > 0 || self.config.peers.all().next().is_none() {
            return;
        }
        self.config.peers.clear();
        let line = self.locations.iter().rfind(|(key, ..)| key == "peers");
        if let Some((_, file, line)) = line {
            let why = "has no effect without `peer_id`";
            self.warnings.push(Diagnostic::new(file, *line, "[peers]", why));
        }
    }

    fn read_lines(&mut self, text: &str, file: &Path, depth: usize) {
        for (number, line) in ini::lines(text) {
            let at = |key: &str, text: &str| Diagnostic::new(file, number, key, text);
            match line {
                IniLine::Section(name) => {
                    self.section = SECTIONS.into_iter().find(|known| *known == name);
                    if self.section.is_none() {
                        self.is_broken = true;
                        let known = SECTIONS.join(", ");
                        self.errors.push(at(name, &format!("no such section (known: {known})")));
                    }
                }
                IniLine::Pair { key, value } => {
                    let ours = self.target_key(key);
                    match self.apply_pair(key, value) {
                        Ok(None) => {
                            let is_key = self.section == Some("pgbouncer");
                            let text = differences::difference_of_value(key, value);
                            let text = text.filter(|_| is_key);
                            self.differences.extend(text.map(|text| at(key, text)));
                        }
                        Ok(Some(warning)) => self.warnings.push(at(key, warning)),
                        Err(why) => {
                            self.is_broken |= self.section.is_none();
                            // For an entry, any of its keys may be affected.
                            let is_entry = matches!(self.section, Some("databases" | "users"));
                            let any_of = |ours| if is_entry { format!("{ours}.*") } else { ours };
                            self.invalid_keys.extend(ours.clone().map(any_of));
                            self.errors.push(at(key, &why));
                        }
                    }
                    self.locations.extend(ours.map(|ours| (ours, file.to_owned(), number)));
                }
                IniLine::Include(name) => {
                    if let Err(why) = self.include(name, file, depth) {
                        self.is_broken = true;
                        self.errors.push(at("%include", &why));
                    }
                }
                IniLine::Invalid(why) => {
                    self.is_broken = true;
                    self.errors.push(at("", why));
                }
            }
        }
    }

    /// Reads an included file in place. A relative name is resolved against the folder of the
    /// including file.
    fn include(&mut self, name: &str, file: &Path, depth: usize) -> Result<(), String> {
        if depth >= INCLUDES_MAX {
            return Err(format!("includes are nested more than {INCLUDES_MAX} deep"));
        }
        let path = file.parent().unwrap_or(Path::new("")).join(name);
        let text =
            read_text(&path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        self.read_lines(&text, &path, depth + 1);
        Ok(())
    }

    /// Returns the key of `[pool]` that a pair sets; for a misspelt key, that of the nearest valid
    /// one.
    fn target_key(&self, key: &str) -> Option<String> {
        match self.section? {
            section @ ("databases" | "users") => {
                Some(format!("{section}.{}", entries::unquoted(key)))
            }
            "peers" => Some("peers".to_owned()),
            "pgbouncer" => match nearest(key, KEYS.iter().map(|known| known.name)) {
                Some(name) => Config::find_key(name).map(str::to_owned),
                None => None,
            },
            _ => None,
        }
    }

    fn apply_pair(&mut self, key: &str, value: &str) -> IniKeyResult {
        let config = &mut self.config;
        match self.section {
            Some("databases") => entries::database(config, key, value),
            Some("users") => entries::user(config, key, value),
            Some("peers") => entries::peer(config, key, value),
            Some(_) => {
                self.keys.extend(KEYS.iter().map(|known| known.name).find(|name| *name == key));
                keys::apply(config, key, value)
            }
            None => Err("is not in a known section".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests;
