//! The command line: the options that all commands share, and the way its words become values.
//!
//! A value comes from the command line, else from the environment, else from `howdah.toml`, else
//! from the option's default. The option itself is written once, in a command's `Args`: this module
//! gives every long option its environment variable, and the file's values become defaults before
//! the words are parsed. So each of the four is judged by the same value parser.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{
    ArgAction, CommandFactory as _, FromArgMatches as _, Parser,
    error::{ContextKind, ContextValue},
};

use crate::{
    commands::Command,
    config::{self, ConfigFile, ConfigSource, Discovery},
    errors, logging,
    outcome::Outcome,
    terminal::{Color, write_stderr},
};

/// Howdah tells you, before the day, whether a change to PostgreSQL slows your traffic, which query
/// it slows, and why.
///
/// Capture what clients do from the server's log, replay it against a changed server at the pace it
/// had, and compare the two, query by query.
#[derive(Debug, Parser)]
#[command(name = "howdah", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Which configuration file is used or not used, and why; for stderr.
    #[arg(skip)]
    pub(crate) config_notices: Vec<String>,
}

const AFTER_HELP: &str = "\
Start here: `howdah demo` shows the whole line on throw-away servers.
Options can stand in howdah.toml ([replay] rate = 2) and in the environment (HOWDAH_REPLAY_RATE=2).";

/// Options of every command.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Everywhere")]
pub(crate) struct Global {
    /// Read options from this file.
    ///
    /// Without it: ./howdah.toml, $XDG_CONFIG_HOME/howdah/howdah.toml, /etc/howdah/howdah.toml, the
    /// first that exists, that you or root own, and that nobody else can write.
    // Acted upon before the words are parsed, see `parse`; it stands here for the help.
    #[arg(long, global = true, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// How much to log, to stderr; warn unless told otherwise, and info by what runs as a service
    #[arg(long, global = true, value_enum, value_name = "LEVEL")]
    pub(crate) log_level: Option<logging::Level>,
    /// Log lines for people (text) or for collectors (json); auto: text on a terminal
    #[arg(long, global = true, value_enum, value_name = "FORMAT", default_value_t)]
    pub(crate) log_format: logging::Format,
    /// Colour; auto: on a terminal, unless NO_COLOR is set
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t)]
    pub(crate) color: Color,
    /// Say nothing on stderr but errors and log lines; no progress bars
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// Why there is no command to run.
#[derive(Debug)]
pub(crate) enum Stop {
    /// Wrong words, or a question for help or the version.
    Words(clap::Error),
    /// The configuration file is no good.
    Config(anyhow::Error),
}

impl Stop {
    /// Says why, and gives the code to exit with.
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Words(error) => {
                // A reader of the help that has gone away has read enough.
                let _ = error.print();
                if let Some(name) = culprit(&error) {
                    write_stderr(&format!("hint: the value comes from the variable {name}\n"));
                }
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
            }
            Self::Config(error) => errors::exit_code(Err::<Outcome, _>(error)),
        }
    }
}

/// Makes values from the process's words, its environment and the configuration file.
///
/// # Errors
///
/// See [`Stop`]. A broken configuration file does not keep anybody from reading the help, nor from
/// the commands that do not read the file.
pub(crate) fn parse(words: Vec<OsString>) -> Result<Cli, Stop> {
    match configured(&words) {
        Ok((command, mut config_notices)) => {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            config_notices.extend(unknown_variables(&command, names));
            values(command, words).map(|cli| Cli { config_notices, ..cli }).map_err(Stop::Words)
        }
        Err(error) => match values(command(), words) {
            Ok(cli) if cli.command.ignores_config() => Ok(cli),
            Err(answer) if !answer.use_stderr() => Err(Stop::Words(answer)),
            _ => Err(Stop::Config(error)),
        },
    }
}

/// The command tree with the file's values as defaults, and what to report about the file.
fn configured(words: &[OsString]) -> anyhow::Result<(clap::Command, Vec<String>)> {
    let Discovery { file, skipped } = ConfigFile::find(config_word(words))?;
    let mut notices: Vec<String> = skipped.iter().map(ToString::to_string).collect();
    let Some(file) = file else { return Ok((command(), notices)) };
    let is_named = file.source() == ConfigSource::Named;
    if is_named && is_top(words) && config::pgtop::is_one(&file) {
        let applied = config::pgtop::apply(&file, command());
        let (command, remarks) = applied.map_err(config::Problems::into_error)?;
        notices.extend(remarks);
        return Ok((command, notices));
    }
    if !is_named && file.sets_options() {
        notices.push(format!("using {}", file.path().display()));
    }
    let command = file.apply(command()).map_err(config::Problems::into_error)?;
    Ok((command, notices))
}

/// Whether the command is `top`: the first word that is a command's.
fn is_top(words: &[OsString]) -> bool {
    let tree = Cli::command();
    let mut words = words.iter().skip(1).filter_map(|word| word.to_str());
    words.find(|word| tree.find_subcommand(word).is_some()) == Some("top")
}

/// The whole command tree, each long option with its environment variable.
pub(crate) fn command() -> clap::Command {
    with_environment(Cli::command(), "HOWDAH")
}

fn values(command: clap::Command, words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut reusable = command.clone();
    let matches = command.try_get_matches_from(words)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut reusable))
}

/// Variables that are no options.
const OTHER_VARIABLES: [&str; 5] = [
    "HOWDAH_CACHE_DIR",
    "HOWDAH_CONFIG",
    "HOWDAH_LAB_REQUIRED",
    "HOWDAH_PROBE_PERF_LINKS",
    "HOWDAH_STATE_DIR",
];

/// What to say about variables that are named as if they were options of a command, and are none.
fn unknown_variables(command: &clap::Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let known = variables(command);
    let commands: Vec<_> =
        command.get_subcommands().map(|sub| variable("HOWDAH", sub.get_name()) + "_").collect();
    let known = || known.iter().map(String::as_str).chain(OTHER_VARIABLES);
    let is_of_command = |name: &String| commands.iter().any(|prefix| name.starts_with(prefix));
    let unknown = names.filter(|name| is_of_command(name) && !known().any(|it| it == name));
    unknown
        .map(|name| {
            let nearest = known().min_by_key(|known| strsim::damerau_levenshtein(&name, known));
            let is_near = |known: &&str| strsim::damerau_levenshtein(&name, known) <= 3;
            match nearest.filter(is_near) {
                Some(known) => format!("{name}: no such variable: did you mean {known}?"),
                None => {
                    format!("{name}: no such variable: the help of the command has its options")
                }
            }
        })
        .collect()
}

/// The variables of all options below a command.
fn variables(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str().map(str::to_owned));
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// The variable that a refused value came from, when the words do not hold the option.
fn culprit(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let long = option.split([' ', '=']).next()?.strip_prefix("--")?;
    let in_words = |word: OsString| {
        let word = word.to_string_lossy().into_owned();
        word.strip_prefix("--").is_some_and(|word| word.split('=').next() == Some(long))
    };
    let suffix = variable("", long);
    let mut names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    match std::env::args_os().any(in_words) {
        true => None,
        false => names.find(|name| name.starts_with("HOWDAH_") && name.ends_with(&suffix)),
    }
}

/// The file named by `--config` or HOWDAH_CONFIG.
///
/// The file gives values that may be required, so it has to be known before clap can judge the
/// words; this looks for the one option only.
fn config_word(words: &[OsString]) -> Option<PathBuf> {
    let mut words = words.iter().skip(1).take_while(|word| *word != "--");
    while let Some(word) = words.next() {
        if word == "--config" {
            return words.next().map(PathBuf::from);
        }
        if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("HOWDAH_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Names the variables: `replay --map-user` is HOWDAH_REPLAY_MAP_USER. Help does not repeat them
/// below each option: the rule is one sentence there.
fn with_environment(command: clap::Command, prefix: &str) -> clap::Command {
    command
        .mut_args(|arg| match (arg.get_long(), arg.get_env()) {
            (Some(long), None) if config::is_setting(&arg) => {
                let name = variable(prefix, long);
                arg.env(name).hide_env(true)
            }
            _ => arg,
        })
        .mut_subcommands(|sub| {
            let prefix = variable(prefix, sub.get_name());
            with_environment(sub, &prefix)
        })
}

fn variable(prefix: &str, word: &str) -> String {
    format!("{prefix}_{}", word.replace('-', "_").to_uppercase())
}

/// Whether an option answers a question instead of setting a value.
pub(crate) fn is_question(arg: &clap::Arg) -> bool {
    matches!(
        arg.get_action(),
        ArgAction::Help | ArgAction::HelpShort | ArgAction::HelpLong | ArgAction::Version
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tree_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn config_is_found_among_other_words() {
        let words = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(config_word(&words("howdah replay --config a x")), Some("a".into()));
        assert_eq!(config_word(&words("howdah --config=b replay")), Some("b".into()));
        assert_eq!(config_word(&words("howdah x -- --config a")), None);
    }
}
