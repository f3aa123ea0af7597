//! Options that a configuration file found in the working directory must not set.
//!
//! Such a file may come from an unpacked archive or a cloned repository: the user owns it but may
//! never have read it. So it must not name programs to run, files to write or receivers of data,
//! nor allow a replay in production. These keys are allowed in a file named with `--config`, in the
//! user's configuration directory and in `/etc/howdah`.

use toml::de::DeTable;

use super::ProblemList;

/// A capability that an option would give to an untrusted file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Privilege {
    RunsProgram,
    WritesFile,
    SendsData,
    AllowsProduction,
    OpensControl,
}

impl Privilege {
    fn text(self) -> &'static str {
        match self {
            Self::RunsProgram => "names a program to run",
            Self::WritesFile => "names a file or directory to write",
            Self::SendsData => "names a receiver of data",
            Self::AllowsProduction => "allows a replay in production",
            Self::OpensControl => "lets other programs on this machine control the command",
        }
    }
}

/// Privileged options, by long name in any section or by full path. `lab.start.set` sets server
/// parameters such as `archive_command`; other options named `set` are harmless. SQL of a migration
/// may run programs by `COPY … TO PROGRAM`.
const PRIVILEGED: [(&str, Privilege); 41] = [
    ("admin", Privilege::OpensControl),
    ("agent", Privilege::SendsData),
    ("agent-ca", Privilege::SendsData),
    ("agent-cert", Privilege::SendsData),
    ("agent-key", Privilege::SendsData),
    ("allow-production", Privilege::AllowsProduction),
    ("allow-remote", Privilege::SendsData),
    ("audit-log", Privilege::WritesFile),
    ("change-sql", Privilege::RunsProgram),
    ("dir", Privilege::WritesFile),
    ("discover-pooler", Privilege::SendsData),
    ("discover-uri", Privilege::SendsData),
    ("folded", Privilege::WritesFile),
    ("hold-out", Privilege::SendsData),
    ("host-name", Privilege::SendsData),
    ("html", Privilege::WritesFile),
    ("lab.restart.set", Privilege::RunsProgram),
    ("lab.start.set", Privilege::RunsProgram),
    ("metrics-otlp", Privilege::SendsData),
    ("metrics-otlp-token-file", Privilege::SendsData),
    ("metrics-statsd", Privilege::SendsData),
    ("metrics.otlp.token-file", Privilege::SendsData),
    ("metrics.otlp.url", Privilege::SendsData),
    ("metrics.statsd.address", Privilege::SendsData),
    ("out", Privilege::WritesFile),
    ("output", Privilege::WritesFile),
    ("pg-bin", Privilege::RunsProgram),
    ("record", Privilege::WritesFile),
    ("reset-base", Privilege::RunsProgram),
    ("reset-change", Privilege::RunsProgram),
    ("restart-command", Privilege::RunsProgram),
    ("slack-webhook", Privilege::SendsData),
    ("slack-webhook-file", Privilege::SendsData),
    ("slow-log", Privilege::WritesFile),
    ("svg", Privilege::WritesFile),
    ("tls-cert", Privilege::SendsData),
    ("tls-client-ca", Privilege::SendsData),
    ("tls-key", Privilege::SendsData),
    ("webhook", Privilege::SendsData),
    ("webhook-ca-file", Privilege::SendsData),
    ("webhook-file", Privilege::SendsData),
];

fn privilege(name: &str, path: &str) -> Option<Privilege> {
    let row = PRIVILEGED.iter().find(|(key, _)| *key == name || *key == path);
    row.map(|(_, privilege)| *privilege)
}

/// Adds one problem for each privileged key that the table at `parent` sets; an empty `parent`
/// stands for the whole document.
pub(super) fn check(table: &DeTable<'_>, parent: &str, problems: &mut ProblemList<'_>) {
    for (key, value) in table {
        let name = key.get_ref().as_ref();
        let path = if parent.is_empty() { name.to_owned() } else { format!("{parent}.{name}") };
        if parent.is_empty() && super::SERVER_SECTIONS.contains(&name) {
            continue;
        }
        if let Some(section) = value.get_ref().as_table() {
            check(section, &path, problems);
        } else if let Some(privilege) = privilege(name, &path) {
            let why = format!(
                "{}, which a file found in the working directory must not do",
                privilege.text()
            );
            let hint = "to use the file as it is, name it with --config howdah.toml";
            problems.add_with_hint(key.span().start, &path, &why, hint);
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Command;

    use super::*;

    /// Options that take a path or an address and only read: input files, servers to connect to,
    /// addresses to listen on.
    const UNPRIVILEGED: [&str; 24] = [
        "base",
        "change",
        "config",
        "control",
        "data-dir",
        "explain-base",
        "explain-run",
        "metrics",
        "listen",
        "live",
        "management",
        "redact-key",
        "replay",
        "run",
        "server",
        "settings",
        "target",
        "test",
        "pooler",
        "warm",
        "webhook-key-file",
        "set",
        "limit",
        "trigger",
    ];

    fn unclassified(command: &Command, path: &str, found: &mut Vec<String>) {
        const PATHS: [&str; 15] = [
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
            "ADDRESS:PORT",
            "NAME=VALUE",
        ];
        for arg in command.get_arguments().filter(|arg| arg.get_action().takes_values()) {
            let names = arg.get_value_names().unwrap_or_default();
            let Some(long) = arg.get_long() else { continue };
            let key = format!("{path}{long}");
            let is_known = UNPRIVILEGED.contains(&long) || privilege(long, &key).is_some();
            if names.iter().any(|name| PATHS.contains(&name.as_str())) && !is_known {
                found.push(key);
            }
        }
        for sub in command.get_subcommands() {
            unclassified(sub, &format!("{path}{}.", sub.get_name()), found);
        }
    }

    #[test]
    fn every_path_or_address_option_is_classified() {
        let mut found = Vec::new();
        unclassified(&crate::cli::command(), "", &mut found);
        assert!(
            found.is_empty(),
            "add these to PRIVILEGED, or to UNPRIVILEGED if they only read: {found:?}"
        );
    }
}
