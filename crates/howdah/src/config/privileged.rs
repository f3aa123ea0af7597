//! Options that a configuration file found in the working folder may not set.
//!
//! Such a file may have come with an unpacked archive or a cloned repository: it belongs to the user, yet
//! the user never read it. So it may not name programs to run, files to write or receivers of data. The
//! same keys are fine in a file that is named by `--config`, in the user's configuration folder and in
//! `/etc/howdah`.

use toml::de::DeTable;

use super::Problem;

/// What an option would let a stranger's file do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Privilege {
    RunsProgram,
    WritesFile,
    SendsData,
}

impl Privilege {
    fn text(self) -> &'static str {
        match self {
            Self::RunsProgram => "names a program to run",
            Self::WritesFile => "names a place to write to",
            Self::SendsData => "names a receiver of data",
        }
    }
}

/// Long names of options, in any section. `lab.start.set` sets parameters of a server, such as
/// `archive_command`; its name alone is also that of harmless options.
const PRIVILEGED: [(&str, Privilege); 19] = [
    ("audit-log", Privilege::WritesFile),
    ("dir", Privilege::WritesFile),
    ("html", Privilege::WritesFile),
    ("lab.restart.set", Privilege::RunsProgram),
    ("lab.start.set", Privilege::RunsProgram),
    ("metrics-statsd", Privilege::SendsData),
    ("metrics.statsd.address", Privilege::SendsData),
    ("out", Privilege::WritesFile),
    ("output", Privilege::WritesFile),
    ("pg-bin", Privilege::RunsProgram),
    ("record", Privilege::WritesFile),
    ("restart-command", Privilege::RunsProgram),
    ("slack-webhook", Privilege::SendsData),
    ("slack-webhook-file", Privilege::SendsData),
    ("slow-log", Privilege::WritesFile),
    ("svg", Privilege::WritesFile),
    ("webhook", Privilege::SendsData),
    ("webhook-ca-file", Privilege::SendsData),
    ("webhook-file", Privilege::SendsData),
];

fn privilege(name: &str, path: &str) -> Option<Privilege> {
    let row = PRIVILEGED.iter().find(|(key, _)| *key == name || *key == path);
    row.map(|(_, privilege)| *privilege)
}

/// One problem for each privileged key that the document sets.
pub(super) fn problems(document: &DeTable<'_>) -> Vec<Problem> {
    let mut problems = Vec::new();
    collect(document, "", &mut problems);
    problems
}

fn collect(table: &DeTable<'_>, parent: &str, problems: &mut Vec<Problem>) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        if parent.is_empty() && super::OWN_SECTIONS.contains(&name) {
            continue;
        }
        if let Some(section) = value.get_ref().as_table() {
            collect(section, &path, problems);
        } else if let Some(privilege) = privilege(name, &path) {
            let why = format!(
                "{}, which a file found in the working folder may not do",
                privilege.text()
            );
            let problem = Problem::new(key.span().start, &path, why);
            problems
                .push(problem.with_hint("to use the file as it is, name it: --config howdah.toml"));
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// Options whose value is a path or an address, and that only read: files to look at, servers to
    /// connect to, addresses to listen on.
    const HARMLESS: [&str; 16] = [
        "config",
        "control",
        "data-dir",
        "explain-base",
        "explain-run",
        "metrics",
        "listen",
        "redact-key",
        "replay",
        "settings",
        "target",
        "pooler",
        "webhook-key-file",
        "set",
        "limit",
        "trigger",
    ];

    fn unclassified(command: &Command, path: &str, found: &mut Vec<String>) {
        const PATHS: [&str; 14] = [
            "FILE",
            "DIR",
            "FOLDER",
            "IMAGE",
            "BLOCKS",
            "RUN",
            "CAPTURE",
            "COMMAND",
            "URL",
            "URI",
            "CONNINFO",
            "HOST:PORT",
            "ADDRESS",
            "NAME=VALUE",
        ];
        for arg in command.get_arguments() {
            let names = arg.get_value_names().unwrap_or_default();
            let Some(long) = arg.get_long() else { continue };
            let key = format!("{path}{long}");
            let is_known = HARMLESS.contains(&long) || privilege(long, &key).is_some();
            if names.iter().any(|name| PATHS.contains(&name.as_str())) && !is_known {
                found.push(key);
            }
        }
        for sub in command.get_subcommands() {
            unclassified(sub, &format!("{path}{}.", sub.get_name()), found);
        }
    }

    #[test]
    fn every_option_with_a_path_or_an_address_is_privileged_or_known_to_be_harmless() {
        let mut found = Vec::new();
        unclassified(&crate::cli::command(), "", &mut found);
        assert!(found.is_empty(), "add to PRIVILEGED, or to HARMLESS if they only read: {found:?}");
    }
}
