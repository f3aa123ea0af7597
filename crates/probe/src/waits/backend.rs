//! Identifies the processes of a server by their titles.
//!
//! ```text
//! postgres: [CLUSTER_NAME: ]checkpointer
//! postgres: [CLUSTER_NAME: ]parallel worker for PID 4711
//! postgres: [CLUSTER_NAME: ]USER DATABASE HOST(PORT) ACTIVITY
//! ```
//!
//! Source: `init_ps_display()` in `ps_status.c` and its callers. Names are not quoted in titles. So
//! the cluster name is taken from the server's memory, and if user and database contain further
//! spaces, neither is reported.

use std::fmt;

/// A process of a server, as its title describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendInfo {
    /// Process id, in the caller's namespace.
    pub pid: u32,
    /// Role of the process in the server.
    pub kind: ProcessKind,
    /// The user of a client backend; `None` if the title is ambiguous, and for other processes.
    pub user: Option<Box<str>>,
    /// The database of a client backend; `None` if the title is ambiguous, and for other processes.
    pub database: Option<Box<str>>,
}

/// The role of a server process. The names are those of `pg_stat_activity.backend_type`, except
/// that all logical replication workers share one name, and so do all workers of extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ProcessKind {
    /// Serves a client.
    Client,
    /// Executes a part of a client's statement.
    ParallelWorker,
    /// Sends WAL to a standby or a subscriber.
    WalSender,
    /// Starts vacuum workers.
    AutovacuumLauncher,
    /// Vacuums tables.
    AutovacuumWorker,
    /// Archives WAL.
    Archiver,
    /// Writes dirty buffers ahead of the clock sweep.
    BackgroundWriter,
    /// Performs checkpoints.
    Checkpointer,
    /// Performs I/O for other processes (18 and later).
    IoWorker,
    /// Writes the log.
    Logger,
    /// Starts logical replication workers.
    LogicalReplicationLauncher,
    /// Applies or synchronises a subscription.
    LogicalReplicationWorker,
    /// Synchronises replication slots to a standby (17 and later).
    SlotsyncWorker,
    /// Replays WAL, in crash recovery or on a standby.
    Startup,
    /// Collects statistics (14).
    StatsCollector,
    /// Receives WAL from a primary.
    WalReceiver,
    /// Summarises WAL (17 and later).
    WalSummarizer,
    /// Flushes WAL of asynchronous commits.
    WalWriter,
    /// Any other process, usually a background worker of an extension.
    BackgroundWorker,
}

impl BackendInfo {
    /// Parses a title. `cluster_name` is the setting, empty if it is not set.
    ///
    /// Returns `None` if it is not a title of a server process, e.g. because the process has not
    /// set one yet.
    pub fn from_title(pid: u32, title: &str, cluster_name: &str) -> Option<Self> {
        let rest = title.strip_prefix("postgres: ")?;
        let rest = match cluster_name {
            "" => rest,
            name => rest.strip_prefix(name)?.strip_prefix(": ")?,
        };
        let words: Vec<&str> = rest.split(' ').collect();
        let (kind, user, database) = match names_before_host(&words) {
            Some(["walsender", ..]) => (ProcessKind::WalSender, None, None),
            Some([user, database]) => {
                (ProcessKind::Client, Some((*user).into()), Some((*database).into()))
            }
            Some(_) => (ProcessKind::Client, None, None),
            None => (auxiliary_kind(rest), None, None),
        };
        Some(Self { pid, kind, user, database })
    }
}

impl ProcessKind {
    /// Returns the kind's name; see [`ProcessKind`].
    pub fn name(self) -> &'static str {
        match self {
            Self::Client => "client backend",
            Self::ParallelWorker => "parallel worker",
            Self::WalSender => "walsender",
            Self::AutovacuumLauncher => "autovacuum launcher",
            Self::AutovacuumWorker => "autovacuum worker",
            Self::Archiver => "archiver",
            Self::BackgroundWriter => "background writer",
            Self::Checkpointer => "checkpointer",
            Self::IoWorker => "io worker",
            Self::Logger => "logger",
            Self::LogicalReplicationLauncher => "logical replication launcher",
            Self::LogicalReplicationWorker => "logical replication worker",
            Self::SlotsyncWorker => "slotsync worker",
            Self::Startup => "startup",
            Self::StatsCollector => "stats collector",
            Self::WalReceiver => "walreceiver",
            Self::WalSummarizer => "walsummarizer",
            Self::WalWriter => "walwriter",
            Self::BackgroundWorker => "background worker",
        }
    }

    /// Returns the kind with this `pg_stat_activity.backend_type`. Any other text is a name chosen
    /// by an extension: [`ProcessKind::BackgroundWorker`].
    pub fn from_name(word: &str) -> Self {
        match word {
            "client backend" => Self::Client,
            "parallel worker" => Self::ParallelWorker,
            word => auxiliary_kind(word),
        }
    }

    /// Whether a client waits for such a process, so that its time is database time.
    pub fn is_foreground(self) -> bool {
        matches!(self, Self::Client | Self::ParallelWorker)
    }
}

impl fmt::Display for ProcessKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Title prefixes of the server's own processes.
const AUXILIARY_TITLES: [(&str, ProcessKind); 17] = [
    ("parallel worker for PID", ProcessKind::ParallelWorker),
    ("walsender", ProcessKind::WalSender),
    ("autovacuum launcher", ProcessKind::AutovacuumLauncher),
    ("autovacuum worker", ProcessKind::AutovacuumWorker),
    ("archiver", ProcessKind::Archiver),
    ("background writer", ProcessKind::BackgroundWriter),
    ("checkpointer", ProcessKind::Checkpointer),
    ("io worker", ProcessKind::IoWorker),
    ("logger", ProcessKind::Logger),
    ("logical replication launcher", ProcessKind::LogicalReplicationLauncher),
    // Apply, table synchronisation and parallel apply workers, spelled differently by major
    // version.
    ("logical replication", ProcessKind::LogicalReplicationWorker),
    ("slotsync worker", ProcessKind::SlotsyncWorker),
    ("startup", ProcessKind::Startup),
    ("stats collector", ProcessKind::StatsCollector),
    ("walreceiver", ProcessKind::WalReceiver),
    ("walsummarizer", ProcessKind::WalSummarizer),
    ("walwriter", ProcessKind::WalWriter),
];

fn auxiliary_kind(title: &str) -> ProcessKind {
    let found = AUXILIARY_TITLES.iter().find(|(words, _)| {
        title.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    found.map_or(ProcessKind::BackgroundWorker, |&(_, kind)| kind)
}

/// Returns the words before the host in a client backend's title: user and database, unless their
/// names contain spaces. `None` for a title without a host, or with fewer than two words before it:
/// such a title is not a client's.
///
/// The host is `[local]`, or an address or name with a port: `10.0.0.7(51234)`.
fn names_before_host<'a>(words: &'a [&'a str]) -> Option<&'a [&'a str]> {
    let is_host = |word: &&str| {
        let port = word.strip_suffix(')').and_then(|word| Some(word.rsplit_once('(')?.1));
        **word == *"[local]" || port.is_some_and(|port| port.parse::<u16>().is_ok())
    };
    let host = words.iter().skip(2).position(is_host)? + 2;
    Some(&words[..host])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(title: &str, cluster_name: &str) -> (ProcessKind, String) {
        let backend = BackendInfo::from_title(7, title, cluster_name).expect("valid title");
        let name = |name: Option<Box<str>>| name.map_or("?".to_owned(), String::from);
        (backend.kind, format!("{} {}", name(backend.user), name(backend.database)))
    }

    #[test]
    fn client_titles_yield_user_and_database() {
        for (title, names) in [
            ("postgres: app shop [local] idle", "app shop"),
            ("postgres: app shop 10.0.0.7(51234) SELECT waiting", "app shop"),
            ("postgres: app shop db.example.com(51234) authentication", "app shop"),
            ("postgres: app shop ::1(9) idle in transaction", "app shop"),
            ("postgres: walwriter shop [local] idle", "walwriter shop"),
            ("postgres: my app shop [local] idle", "? ?"),
        ] {
            assert_eq!(parse(title, ""), (ProcessKind::Client, names.to_owned()), "{title}");
        }
    }

    #[test]
    fn cluster_name_is_stripped_from_titles() {
        let title = "postgres: 15: a b [local]: app shop [local] idle";
        assert_eq!(parse(title, "15: a b [local]"), (ProcessKind::Client, "app shop".to_owned()));
        assert_eq!(parse("postgres: main: checkpointer", "main").0, ProcessKind::Checkpointer);
        assert_eq!(BackendInfo::from_title(7, "postgres: checkpointer", "main"), None);
    }

    #[test]
    fn auxiliary_process_titles_are_recognised() {
        for (title, kind) in [
            ("checkpointer", ProcessKind::Checkpointer),
            ("checkpointer performing shutdown checkpoint", ProcessKind::Checkpointer),
            ("walwriter", ProcessKind::WalWriter),
            ("autovacuum worker shop", ProcessKind::AutovacuumWorker),
            ("walsender standby 10.0.0.7(51234) streaming 0/3000148", ProcessKind::WalSender),
            ("walsender app shop [local] START_REPLICATION", ProcessKind::WalSender),
            ("startup recovering 000000010000000000000003", ProcessKind::Startup),
            ("parallel worker for PID 4711", ProcessKind::ParallelWorker),
            ("logical replication launcher", ProcessKind::LogicalReplicationLauncher),
            (
                "logical replication apply worker for subscription 16394",
                ProcessKind::LogicalReplicationWorker,
            ),
            ("io worker 2", ProcessKind::IoWorker),
            ("pg_cron launcher", ProcessKind::BackgroundWorker),
            ("loggerhead", ProcessKind::BackgroundWorker),
        ] {
            assert_eq!(
                parse(&format!("postgres: {title}"), ""),
                (kind, "? ?".to_owned()),
                "{title}"
            );
        }
    }

    #[test]
    fn kinds_round_trip_by_name() {
        for kind in AUXILIARY_TITLES.map(|(_, kind)| kind).into_iter().chain([ProcessKind::Client])
        {
            assert_eq!(ProcessKind::from_name(kind.name()), kind);
        }
        let apply = ProcessKind::from_name("logical replication apply worker");
        assert_eq!(apply, ProcessKind::LogicalReplicationWorker);
        assert_eq!(ProcessKind::from_name("pg_cron launcher"), ProcessKind::BackgroundWorker);
    }

    #[test]
    fn process_without_title_is_none() {
        assert_eq!(
            BackendInfo::from_title(7, "/usr/lib/postgresql/15/bin/postgres -D /data", ""),
            None
        );
        assert_eq!(BackendInfo::from_title(7, "", ""), None);
    }
}
