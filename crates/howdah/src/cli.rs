//! Parses the command line, with defaults from the environment and `howdah.toml`.
//!
//! A value comes from the command line, else from the environment, else from `howdah.toml`, else
//! from the option's default. An option is declared once, in a command's `Args`. Before the
//! arguments are parsed, this module gives every long option its environment variable, and makes
//! the values in the file the defaults of their options. So all four sources go through the same
//! value parser.

use std::{ffi::OsString, path::PathBuf, process::ExitCode};

use clap::{
    CommandFactory as _, FromArgMatches as _, Parser,
    error::{ContextKind, ContextValue},
};

use crate::{
    commands::RootCommand,
    config::{self, ConfigFile, ConfigSource, Discovery},
    errors,
    global::Global,
    outcome::CommandOutcome,
    terminal::write_stderr,
};

/// Returns the version, commit, target and features, for bug reports. `HOWDAH_COMMIT` is set when
/// packages are built.
fn build_facts() -> String {
    let features: Vec<&str> =
        [("grammar", cfg!(feature = "grammar")), ("fetch", cfg!(feature = "fetch"))]
            .into_iter()
            .filter_map(|(name, is_enabled)| is_enabled.then_some(name))
            .collect();
    let features = if features.is_empty() { "none".to_owned() } else { features.join(", ") };
    format!(
        "{}\ncommit: {}\ntarget: {}-{}\nfeatures: {features}",
        env!("CARGO_PKG_VERSION"),
        option_env!("HOWDAH_COMMIT").unwrap_or("unknown"),
        std::env::consts::ARCH,
        std::env::consts::OS,
    )
}

/// Find out whether a change to PostgreSQL slows down your traffic, which query it slows, and why,
/// before you make the change.
///
/// Capture client traffic from the server log, replay it at its original pace against a changed
/// server, and compare the two runs query by query.
#[derive(Debug, Parser)]
#[command(name = "howdah", version, long_version = build_facts(), after_help = AFTER_HELP)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: RootCommand,
    /// Notices about configuration files and environment variables, to be printed to stderr.
    #[arg(skip)]
    pub(crate) config_notices: Vec<String>,
}

const AFTER_HELP: &str = "\
Start here: `howdah demo` rehearses a change on throw-away servers, and names what got slower.
Options can also be set in howdah.toml ([replay] rate = 2) and in the environment (HOWDAH_REPLAY_RATE=2).";

/// The reason why no command is run.
#[derive(Debug)]
pub(crate) enum StartupError {
    /// Invalid arguments, or a request for help or the version.
    Usage(clap::Error),
    /// The configuration file is invalid or cannot be read.
    Config(anyhow::Error),
}

impl StartupError {
    /// Reports the reason and returns the exit code.
    pub(crate) fn exit_code(self) -> ExitCode {
        match self {
            Self::Usage(error) => {
                // A closed pipe is not an error: its reader has seen enough of the help.
                let _ = error.print();
                if let Some(name) = env_variable_for_error(&error) {
                    write_stderr(&format!(
                        "hint: the value comes from the environment variable {name}\n"
                    ));
                }
                ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(u8::MAX))
            }
            Self::Config(error) => errors::exit_code(Err::<CommandOutcome, _>(error)),
        }
    }
}

/// Parses the command line, with the environment and the configuration file as defaults.
///
/// # Errors
///
/// See [`StartupError`]. An invalid configuration file does not prevent reading the help or running
/// the commands that do not use the file.
pub(crate) fn parse(args: Vec<OsString>) -> Result<Cli, StartupError> {
    match configured(&args) {
        Ok((command, mut config_notices)) => {
            let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
            config_notices.extend(unknown_variables(&command, names));
            values(command, args)
                .map(|cli| Cli { config_notices, ..cli })
                .map_err(StartupError::Usage)
        }
        Err(error) => match values(command(), args) {
            Ok(cli) if cli.command.ignores_config() => Ok(cli),
            Err(answer) if !answer.use_stderr() => Err(StartupError::Usage(answer)),
            _ => Err(StartupError::Config(error)),
        },
    }
}

/// Returns the command tree with the configuration file's values as defaults, and notices about the
/// files that were used or skipped.
fn configured(args: &[OsString]) -> anyhow::Result<(clap::Command, Vec<String>)> {
    let Discovery { file, skipped } = ConfigFile::find(config_argument(args))?;
    let mut notices: Vec<String> = skipped.iter().map(ToString::to_string).collect();
    let Some(file) = file else { return Ok((command(), notices)) };
    let is_named = file.source() == ConfigSource::Named;
    if is_named && is_top(args) && config::pgtop::is_pgtop_file(&file) {
        let applied = config::pgtop::apply(&file, command());
        let (command, remarks) = applied.map_err(config::into_error)?;
        notices.extend(remarks);
        return Ok((command, notices));
    }
    if !is_named && file.sets_options() {
        notices.push(format!("using {}", file.path().display()));
    }
    let command = file.apply(command()).map_err(config::into_error)?;
    Ok((command, notices))
}

/// Whether the command is `top`: decided by the first argument that is a command name.
fn is_top(args: &[OsString]) -> bool {
    let tree = Cli::command();
    let mut args = args.iter().skip(1).filter_map(|arg| arg.to_str());
    args.find(|arg| tree.find_subcommand(arg).is_some()) == Some("top")
}

/// Returns the command tree, each long option with its environment variable.
pub(crate) fn command() -> clap::Command {
    with_environment(Cli::command(), "HOWDAH")
}

fn values(command: clap::Command, args: Vec<OsString>) -> Result<Cli, clap::Error> {
    let mut reusable = command.clone();
    let matches = command.try_get_matches_from(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut reusable))
}

/// `HOWDAH_` variables that are known although they set no option of a command.
const OTHER_VARIABLES: [&str; 5] = [
    "HOWDAH_CACHE_DIR",
    "HOWDAH_CONFIG",
    "HOWDAH_LAB_REQUIRED",
    "HOWDAH_PROBE_PERF_LINKS",
    "HOWDAH_STATE_DIR",
];

/// Returns notices about variables that look like options of a command, but match none.
fn unknown_variables(command: &clap::Command, names: impl Iterator<Item = String>) -> Vec<String> {
    let known = variables(command);
    let commands: Vec<_> =
        command.get_subcommands().map(|sub| variable("HOWDAH", sub.get_name()) + "_").collect();
    let known = || known.iter().map(String::as_str).chain(OTHER_VARIABLES);
    let is_of_command = |name: &String| commands.iter().any(|prefix| name.starts_with(prefix));
    let unknown = names.filter(|name| is_of_command(name) && !known().any(|it| it == name));
    unknown
        .map(|name| match howdah_settings::nearest(&name, known()) {
            Some(known) => format!("{name}: unknown variable: did you mean {known}?"),
            None => {
                format!("{name}: unknown variable: see the options in the command's --help")
            }
        })
        .collect()
}

/// Returns the environment variables of all options of a command and its subcommands.
fn variables(command: &clap::Command) -> Vec<String> {
    let own = command.get_arguments().filter_map(|arg| arg.get_env()?.to_str().map(str::to_owned));
    own.chain(command.get_subcommands().flat_map(variables)).collect()
}

/// Returns the environment variable that an invalid value may have come from; `None` if the option
/// is on the command line, or if no variable has a matching name.
fn env_variable_for_error(error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let long = option.split([' ', '=']).next()?.strip_prefix("--")?;
    let is_given = |arg: OsString| {
        let arg = arg.to_string_lossy().into_owned();
        arg.strip_prefix("--").is_some_and(|arg| arg.split('=').next() == Some(long))
    };
    let suffix = variable("", long);
    let mut names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    if std::env::args_os().any(is_given) {
        None
    } else {
        names.find(|name| name.starts_with("HOWDAH_") && name.ends_with(&suffix))
    }
}

/// Returns the file named by `--config` or HOWDAH_CONFIG.
///
/// The file may supply required values, so it must be known before clap parses the arguments.
fn config_argument(args: &[OsString]) -> Option<PathBuf> {
    let mut args = args.iter().skip(1).take_while(|arg| *arg != "--");
    while let Some(arg) = args.next() {
        if arg == "--config" {
            return args.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("HOWDAH_CONFIG").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// Gives each option its environment variable: HOWDAH_REPLAY_MAP_USER for `replay --map-user`. The
/// help states this rule once instead of repeating the name at each option.
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

fn variable(prefix: &str, name: &str) -> String {
    format!("{prefix}_{}", name.replace('-', "_").to_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_tree_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn config_option_is_found_among_other_arguments() {
        let args = |text: &str| text.split(' ').map(OsString::from).collect::<Vec<_>>();
        assert_eq!(config_argument(&args("howdah replay --config a x")), Some("a".into()));
        assert_eq!(config_argument(&args("howdah --config=b replay")), Some("b".into()));
        assert_eq!(config_argument(&args("howdah x -- --config a")), None);
    }
}
