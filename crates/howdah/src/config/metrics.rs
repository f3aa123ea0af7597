//! `[metrics.statsd]`: sets `--metrics-statsd` of all commands that have this option.
//!
//! ```toml
//! [metrics.statsd]
//! address = "127.0.0.1:8125"      # --metrics-statsd of every command
//! ```

use clap::Command;
use toml::{Spanned, de::DeValue};

use super::{ProblemList, apply_value};

pub(super) const SECTION: &str = "metrics";
const OPTION: &str = "metrics-statsd";

/// Makes the section's address the default of `--metrics-statsd` in all commands that have it.
pub(super) fn apply(
    mut command: Command,
    section: &Spanned<DeValue<'_>>,
    problems: &mut ProblemList<'_>,
) -> Command {
    let Some(section_table) = section.get_ref().as_table() else {
        problems.add(section.span().start, SECTION, "must be a section");
        return command;
    };
    for (key, value) in section_table {
        let path = format!("{SECTION}.{}", key.get_ref());
        let Some(keys) = value.get_ref().as_table().filter(|_| key.get_ref() == "statsd") else {
            let known = ["statsd"].into_iter();
            problems.add_unknown(key.span().start, &path, "unknown section", known);
            continue;
        };
        for (key, value) in keys {
            let path = format!("{path}.{}", key.get_ref());
            match key.get_ref().as_ref() {
                "address" => command = set_in_all_commands(command, value, &path, problems),
                _ => {
                    let known = ["address"].into_iter();
                    problems.add_unknown(key.span().start, &path, "unknown key", known);
                }
            }
        }
    }
    command
}

fn set_in_all_commands(
    mut command: Command,
    value: &Spanned<DeValue<'_>>,
    path: &str,
    problems: &mut ProblemList<'_>,
) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command =
            command.mut_subcommand(name, |sub| set_in_all_commands(sub, value, path, problems));
    }
    let id = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(OPTION))
        .map(|arg| arg.get_id().clone());
    match id {
        Some(id) => apply_value(command, &id, value, path, problems),
        None => command,
    }
}
