//! `howdah.toml`: defaults for the options of all commands.
//!
//! A key is the long name of an option. Global options come first, and those of one command are in
//! the section named after it; `[capture.import]` is the section of a subcommand:
//!
//! ```toml
//! log-level = "info"
//!
//! [replay]
//! rate = 2
//! map-user = ["app=app_test"]
//! ```
//!
//! `[metrics.statsd]` sets an option of every command that has metrics. `[statsd]` and `[pool]` are
//! read by those servers themselves, because options cannot express all of their settings.
//!
//! `howdah top` also accepts the file of [`pgtop`].
//!
//! A file that was found rather than named is [checked for its owner](discovery), and one in the
//! working directory must not set [options that run programs, write files or send data
//! away](privileged).
//!
//! The command tree is the schema, so options and keys cannot diverge: an unknown key is refused
//! with a similar known one as a hint, and a value is checked by the option's own parser.

mod discovery;
mod metrics;
pub(crate) mod pgtop;
mod privileged;
mod problem;
#[cfg(test)]
mod tests;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
};

use anyhow::Context as _;
use clap::{Arg, ArgAction, Command, Id};
use howdah_settings::{SettingsErrors, SettingsText};
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use self::problem::ProblemList;
pub(crate) use self::{
    discovery::{ConfigSource, Discovery, SkippedFile, user_folder},
    problem::into_error,
};
use crate::errors::WithHint as _;

/// Maximum length of a configuration file, far more than all options of all commands need.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// A configuration file whose values have not been checked yet.
#[derive(Debug)]
pub(crate) struct ConfigFile {
    path: PathBuf,
    text: String,
    source: ConfigSource,
}

impl ConfigFile {
    /// Reads the file `named`, or else the first usable file of the default locations.
    ///
    /// # Errors
    ///
    /// The file cannot be read, is not UTF-8, or is longer than 1 MiB. Default files that may not
    /// be used are in [`Discovery::skipped`].
    pub(crate) fn find(named: Option<PathBuf>) -> anyhow::Result<Discovery> {
        let read_error = |path: &Path| format!("cannot read the configuration {}", path.display());
        let mut skipped = Vec::new();
        if let Some(path) = named {
            let file = File::open(&path)
                .and_then(|file| Self::read(file, &path, ConfigSource::Named))
                .with_context(|| read_error(&path))?;
            return Ok(Discovery { file: Some(file), skipped });
        }
        for (path, source) in discovery::default_locations() {
            match discovery::open_trusted(&path) {
                Ok(Some(file)) => {
                    let file = Self::read(file, &path, source)
                        .with_context(|| read_error(&path))
                        .hint("name another file by --config")?;
                    return Ok(Discovery { file: Some(file), skipped });
                }
                Ok(None) => {}
                Err(reason) => skipped.push(SkippedFile { path, reason }),
            }
        }
        Ok(Discovery { file: None, skipped })
    }

    /// Returns the path from which the file was read.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the text of the file.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Returns the way in which the file was chosen.
    pub(crate) fn source(&self) -> ConfigSource {
        self.source
    }

    /// Whether the file has a section of this name. `false` for a file that is not valid TOML;
    /// parsing the whole file reports that.
    pub(crate) fn has_section(&self, name: &str) -> bool {
        self.settings_text().parse().is_ok_and(|document| document.contains_key(name))
    }

    /// Makes the file's values the defaults of the options they name.
    ///
    /// # Errors
    ///
    /// The file is invalid; the error lists every problem.
    pub(crate) fn apply(&self, command: Command) -> Result<Command, SettingsErrors> {
        let mut problems = ProblemList::new(self.settings_text());
        let document = problems.text.parse()?;
        match self.source {
            ConfigSource::WorkingFolder => privileged::check(&document, "", &mut problems),
            ConfigSource::Named | ConfigSource::WellKnown => {}
        }
        let command = apply_table(command, &document, "", &mut problems);
        problems.into_errors().map_or(Ok(command), Err)
    }

    /// Returns the number of values that the file sets; 0 if it is not valid TOML.
    pub(crate) fn len(&self) -> usize {
        self.settings_text().parse().map_or(0, |document| count_values(&document))
    }

    /// Whether the file sets any option outside the sections that servers read themselves.
    pub(crate) fn sets_options(&self) -> bool {
        self.settings_text().parse().is_ok_and(|document| {
            document.iter().any(|(key, value)| {
                !SERVER_SECTIONS.contains(&key.get_ref().as_ref())
                    && value.get_ref().as_table().is_none_or(|table| count_values(table) > 0)
            })
        })
    }

    fn read(file: File, path: &Path, source: ConfigSource) -> io::Result<Self> {
        let text = howdah_settings::read_text(file, FILE_BYTES_MAX)?;
        Ok(Self { path: path.to_owned(), text, source })
    }

    fn settings_text(&self) -> SettingsText<'_> {
        SettingsText::new(&self.text, &self.path)
    }
}

/// Sections that are read and checked by the crate of their command, when it runs.
const SERVER_SECTIONS: [&str; 2] = ["pool", "statsd"];

fn count_values(table: &DeTable<'_>) -> usize {
    let count = |value: &Spanned<DeValue<'_>>| value.get_ref().as_table().map_or(1, count_values);
    table.values().map(count).sum()
}

/// Whether an option can be set by the environment and in the file. Also true for `--config`, which
/// only the environment can set: [`settings`] excludes it from the file.
pub(crate) fn is_setting(arg: &Arg) -> bool {
    arg.get_long().is_some() && !is_help_or_version(arg)
}

/// Whether an option prints help or the version instead of setting a value.
fn is_help_or_version(arg: &Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

fn apply_table(
    mut command: Command,
    table: &DeTable<'_>,
    path: &str,
    problems: &mut ProblemList<'_>,
) -> Command {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let key_path = if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
        let at = key.span().start;
        if path.is_empty() && SERVER_SECTIONS.contains(&name) {
            continue;
        }
        if path.is_empty() && name == metrics::SECTION {
            command = metrics::apply(command, value, problems);
            continue;
        }
        match value.get_ref().as_table() {
            Some(section) if command.find_subcommand(name).is_some() => {
                // Use the subcommand's own name, not an alias, or `mut_subcommand` would add a new
                // one.
                let sub = command.find_subcommand(name).map(|sub| sub.get_name().to_owned());
                let sub = sub.unwrap_or_default();
                command = command
                    .mut_subcommand(sub, |sub| apply_table(sub, section, &key_path, problems));
            }
            Some(_) => unknown_section(&command, at, &key_path, name, problems),
            None => match setting(&command, name) {
                Some(arg) => {
                    let id = arg.get_id().clone();
                    command = apply_value(command, &id, value, &key_path, problems);
                }
                None => unknown_key(&command, at, &key_path, name, problems),
            },
        }
    }
    command
}

/// Makes a value the default of an option that the command has.
fn apply_value(
    command: Command,
    id: &Id,
    value: &Spanned<DeValue<'_>>,
    path: &str,
    problems: &mut ProblemList<'_>,
) -> Command {
    let arg = command.get_arguments().find(|arg| arg.get_id() == id);
    match arg.map(|arg| checked_values(arg, value)) {
        Some(Ok(values)) => command.mut_arg(id, |arg| arg.default_values(values).required(false)),
        Some(Err(why)) => {
            problems.add(value.span().start, path, why);
            command
        }
        None => command,
    }
}

fn setting<'c>(command: &'c Command, key: &str) -> Option<&'c Arg> {
    settings(command).find(|arg| arg.get_long() == Some(key))
}

fn settings(command: &Command) -> impl Iterator<Item = &Arg> {
    // `--config` in the file it names would be read too late to have an effect.
    command.get_arguments().filter(|arg| is_setting(arg) && arg.get_long() != Some("config"))
}

/// Converts a TOML value to the option's default values, and validates them.
fn checked_values(arg: &Arg, value: &Spanned<DeValue<'_>>) -> Result<Vec<String>, String> {
    let many = matches!(arg.get_action(), ArgAction::Append)
        || arg.get_num_args().is_some_and(|range| range.max_values() > 1);
    let texts = match value.get_ref().as_array() {
        Some(list) if many => list.iter().map(|item| text(item.get_ref())).collect(),
        Some(_) => Err("takes one value, not a list".to_owned()),
        None => text(value.get_ref()).map(|text| vec![text]),
    }?;
    validate(arg, &texts)?;
    Ok(texts)
}

/// Returns a scalar as it would be written on the command line, or an error for other values.
fn text(value: &DeValue<'_>) -> Result<String, String> {
    match value {
        DeValue::String(text) => Ok(text.clone().into_owned()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().to_owned()),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map(|number| number.to_string())
            .map_err(|error| error.to_string()),
        DeValue::Float(number) => Ok(number.as_str().to_owned()),
        DeValue::Boolean(value) => Ok(value.to_string()),
        DeValue::Datetime(time) => Ok(time.to_string()),
        DeValue::Array(_) | DeValue::Table(_) => {
            Err(format!("must be a scalar value, not {}", value.type_str()))
        }
    }
}

/// Runs the option's own parser. clap trusts defaults, so an invalid one must be detected first.
fn validate(arg: &Arg, texts: &[String]) -> Result<(), String> {
    if !arg.get_action().takes_values() {
        return match texts {
            [text] if text == "true" || text == "false" => Ok(()),
            _ => Err("must be true or false".to_owned()),
        };
    }
    let long = arg.get_long().unwrap_or_default();
    let words = texts.iter().map(|text| format!("--{long}={text}"));
    let alone = Arg::new("value")
        .long(long.to_owned())
        .value_delimiter(arg.get_value_delimiter())
        .action(arg.get_action().clone())
        .value_parser(arg.get_value_parser().clone())
        .num_args(1)
        .allow_hyphen_values(true);
    let command = Command::new("value").no_binary_name(true).disable_help_flag(true).arg(alone);
    command.try_get_matches_from(words).map(drop).map_err(|error| problem::reason(&error))
}

fn unknown_key(
    command: &Command,
    at: usize,
    path: &str,
    name: &str,
    problems: &mut ProblemList<'_>,
) {
    if command.find_subcommand(name).is_some() {
        let why = format!("is a section: write [{path}] with its options below");
        return problems.add(at, path, why);
    }
    problems.add_unknown(at, path, "unknown key", settings(command).filter_map(Arg::get_long));
}

fn unknown_section(
    command: &Command,
    at: usize,
    path: &str,
    name: &str,
    problems: &mut ProblemList<'_>,
) {
    if setting(command, name).is_some() {
        return problems.add(at, path, "takes a value, not a section");
    }
    let sections = command.get_subcommands().map(Command::get_name);
    problems.add_unknown(at, path, "unknown section", sections);
}
