//! `[metrics.statsd]` and `[metrics.otlp]`: set options of all commands that have metrics.
//!
//! ```toml
//! [metrics.statsd]
//! address = "127.0.0.1:8125"                        # --metrics-statsd of every command
//! [metrics.otlp]
//! url = "http://127.0.0.1:4318/v1/metrics"          # --metrics-otlp
//! token-file = "/etc/howdah/otlp-token"             # --metrics-otlp-token-file
//! ```

use clap::Command;
use toml::{Spanned, de::DeValue};

use super::{ProblemList, apply_value};

pub(super) const SECTION: &str = "metrics";
/// Sections, their keys, and the options that these set.
const KEYS: [(&str, &str, &str); 3] = [
    ("statsd", "address", "metrics-statsd"),
    ("otlp", "url", "metrics-otlp"),
    ("otlp", "token-file", "metrics-otlp-token-file"),
];

/// Makes the values of the section the defaults of the options in all commands that have them.
pub(super) fn apply(
    mut command: Command,
    section: &Spanned<DeValue<'_>>,
    problems: &mut ProblemList<'_>,
) -> Command {
    let Some(section_table) = section.get_ref().as_table() else {
        problems.add(section.span().start, SECTION, "must be a section");
        return command;
    };
    for (receiver, value) in section_table {
        let path = format!("{SECTION}.{}", receiver.get_ref());
        let of_receiver = KEYS.iter().filter(|(name, ..)| receiver.get_ref() == name);
        let keys = value.get_ref().as_table().filter(|_| of_receiver.clone().next().is_some());
        let Some(keys) = keys else {
            let known = ["statsd", "otlp"].into_iter();
            problems.add_unknown(receiver.span().start, &path, "unknown section", known);
            continue;
        };
        for (key, value) in keys {
            let path = format!("{path}.{}", key.get_ref());
            match of_receiver.clone().find(|(_, name, _)| key.get_ref() == name) {
                Some((.., option)) => {
                    command = set_in_all_commands(command, option, value, &path, problems);
                }
                None => {
                    let known = of_receiver.clone().map(|(_, name, _)| *name);
                    problems.add_unknown(key.span().start, &path, "unknown key", known);
                }
            }
        }
    }
    command
}

fn set_in_all_commands(
    mut command: Command,
    option: &str,
    value: &Spanned<DeValue<'_>>,
    path: &str,
    problems: &mut ProblemList<'_>,
) -> Command {
    let names: Vec<String> =
        command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        command = command
            .mut_subcommand(name, |sub| set_in_all_commands(sub, option, value, path, problems));
    }
    let id = command
        .get_arguments()
        .find(|arg| arg.get_long() == Some(option))
        .map(|arg| arg.get_id().clone());
    match id {
        Some(id) => apply_value(command, &id, value, path, problems),
        None => command,
    }
}
