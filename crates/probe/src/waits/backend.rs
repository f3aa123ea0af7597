//! Which process of a server is what, by the title it gave itself.
//!
//! ```text
//! postgres: [CLUSTER_NAME: ]checkpointer
//! postgres: [CLUSTER_NAME: ]parallel worker for PID 4711
//! postgres: [CLUSTER_NAME: ]USER DATABASE HOST(PORT) ACTIVITY
//! ```
//!
//! Source: `init_ps_display()` in `ps_status.c`, and who calls it. Words are not quoted there. So the name
//! of the cluster is taken from the server's memory, and where user and database have more than one space
//! between them, neither is told.

use std::fmt;

/// A process of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backend {
    /// Its process id, in our namespace.
    pub pid: u32,
    /// What it is for.
    pub kind: Kind,
    /// Whose it is, of a client's; absent where the title does not tell it for sure.
    pub user: Option<Box<str>>,
    /// Its database, likewise.
    pub database: Option<Box<str>>,
}

/// What a process of a server is for. [`Kind::name`] is as in `pg_stat_activity.backend_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Kind {
    /// Works for a client.
    Client,
    /// Works for a client's backend, on a part of its statement.
    ParallelWorker,
    /// Sends WAL to a standby or a subscriber.
    WalSender,
    /// Starts vacuum workers.
    AutovacuumLauncher,
    /// Vacuums.
    AutovacuumWorker,
    /// Archives WAL.
    Archiver,
    /// Writes dirty buffers ahead of the clock sweep.
    BackgroundWriter,
    /// Makes checkpoints.
    Checkpointer,
    /// Reads and writes for others (18 and later).
    IoWorker,
    /// Writes the log.
    Logger,
    /// Starts the workers of subscriptions.
    LogicalReplicationLauncher,
    /// Works for a subscription.
    LogicalReplicationWorker,
    /// Copies replication slots to a standby (17 and later).
    SlotsyncWorker,
    /// Recovers, or replays what a primary sends.
    Startup,
    /// Collects statistics (14).
    StatsCollector,
    /// Receives WAL from a primary.
    WalReceiver,
    /// Summarises WAL (17 and later).
    WalSummarizer,
    /// Writes WAL of transactions that did not wait for it.
    WalWriter,
    /// Any other process, of an extension that is.
    BackgroundWorker,
}

impl Backend {
    /// Reads a title. `cluster_name` is the setting, empty if it is not set.
    ///
    /// `None` where it is no title of a server's process: it has not set one yet.
    #[must_use]
    pub fn from_title(pid: u32, title: &str, cluster_name: &str) -> Option<Self> {
        let rest = title.strip_prefix("postgres: ")?;
        let rest = match cluster_name {
            "" => rest,
            name => rest.strip_prefix(name)?.strip_prefix(": ")?,
        };
        let words: Vec<&str> = rest.split(' ').collect();
        let (kind, user, database) = match before_host(&words) {
            Some(["walsender", ..]) => (Kind::WalSender, None, None),
            Some([user, database]) => {
                (Kind::Client, Some((*user).into()), Some((*database).into()))
            }
            Some(_) => (Kind::Client, None, None),
            None => (own_kind(rest), None, None),
        };
        Some(Self { pid, kind, user, database })
    }
}

impl Kind {
    /// As in `pg_stat_activity.backend_type`.
    #[must_use]
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

    /// The kind that `pg_stat_activity.backend_type` has this word for. Words of extensions are
    /// [`Kind::BackgroundWorker`].
    #[must_use]
    pub fn named(word: &str) -> Self {
        match word {
            "client backend" => Self::Client,
            "parallel worker" => Self::ParallelWorker,
            word => own_kind(word),
        }
    }

    /// Whether a client waits for what it does: what it does is database time.
    #[must_use]
    pub fn is_foreground(self) -> bool {
        matches!(self, Self::Client | Self::ParallelWorker)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How the titles of a server's own processes begin.
const OWN: [(&str, Kind); 17] = [
    ("parallel worker for PID", Kind::ParallelWorker),
    ("walsender", Kind::WalSender),
    ("autovacuum launcher", Kind::AutovacuumLauncher),
    ("autovacuum worker", Kind::AutovacuumWorker),
    ("archiver", Kind::Archiver),
    ("background writer", Kind::BackgroundWriter),
    ("checkpointer", Kind::Checkpointer),
    ("io worker", Kind::IoWorker),
    ("logger", Kind::Logger),
    ("logical replication launcher", Kind::LogicalReplicationLauncher),
    // Apply, table synchronisation and parallel apply workers, which majors spell differently.
    ("logical replication", Kind::LogicalReplicationWorker),
    ("slotsync worker", Kind::SlotsyncWorker),
    ("startup", Kind::Startup),
    ("stats collector", Kind::StatsCollector),
    ("walreceiver", Kind::WalReceiver),
    ("walsummarizer", Kind::WalSummarizer),
    ("walwriter", Kind::WalWriter),
];

fn own_kind(title: &str) -> Kind {
    let found = OWN.iter().find(|(words, _)| {
        title.strip_prefix(words).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    });
    found.map_or(Kind::BackgroundWorker, |&(_, kind)| kind)
}

/// The words of a title before a client's host: user and database, if their names have no space. A title
/// that names no host, or fewer than two words before it, is no client's.
///
/// The host is `[local]`, or an address or name with a port: `10.0.0.7(51234)`.
fn before_host<'a>(words: &'a [&'a str]) -> Option<&'a [&'a str]> {
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

    fn told(title: &str, cluster_name: &str) -> (Kind, String) {
        let backend = Backend::from_title(7, title, cluster_name).expect("it is a title");
        let name = |name: Option<Box<str>>| name.map_or("?".to_owned(), String::from);
        (backend.kind, format!("{} {}", name(backend.user), name(backend.database)))
    }

    #[test]
    fn clients_tell_user_and_database() {
        for (title, names) in [
            ("postgres: app shop [local] idle", "app shop"),
            ("postgres: app shop 10.0.0.7(51234) SELECT waiting", "app shop"),
            ("postgres: app shop db.example.com(51234) authentication", "app shop"),
            ("postgres: app shop ::1(9) idle in transaction", "app shop"),
            ("postgres: walwriter shop [local] idle", "walwriter shop"),
            ("postgres: my app shop [local] idle", "? ?"),
        ] {
            assert_eq!(told(title, ""), (Kind::Client, names.to_owned()), "{title}");
        }
    }

    #[test]
    fn a_cluster_has_any_name() {
        let title = "postgres: 15: a b [local]: app shop [local] idle";
        assert_eq!(told(title, "15: a b [local]"), (Kind::Client, "app shop".to_owned()));
        assert_eq!(told("postgres: main: checkpointer", "main").0, Kind::Checkpointer);
        assert_eq!(Backend::from_title(7, "postgres: checkpointer", "main"), None);
    }

    #[test]
    fn the_servers_own_processes() {
        for (title, kind) in [
            ("checkpointer", Kind::Checkpointer),
            ("checkpointer performing shutdown checkpoint", Kind::Checkpointer),
            ("walwriter", Kind::WalWriter),
            ("autovacuum worker shop", Kind::AutovacuumWorker),
            ("walsender standby 10.0.0.7(51234) streaming 0/3000148", Kind::WalSender),
            ("walsender app shop [local] START_REPLICATION", Kind::WalSender),
            ("startup recovering 000000010000000000000003", Kind::Startup),
            ("parallel worker for PID 4711", Kind::ParallelWorker),
            ("logical replication launcher", Kind::LogicalReplicationLauncher),
            (
                "logical replication apply worker for subscription 16394",
                Kind::LogicalReplicationWorker,
            ),
            ("io worker 2", Kind::IoWorker),
            ("pg_cron launcher", Kind::BackgroundWorker),
            ("loggerhead", Kind::BackgroundWorker),
        ] {
            assert_eq!(
                told(&format!("postgres: {title}"), ""),
                (kind, "? ?".to_owned()),
                "{title}"
            );
        }
    }

    #[test]
    fn kinds_are_known_by_their_names() {
        for kind in OWN.map(|(_, kind)| kind).into_iter().chain([Kind::Client]) {
            assert_eq!(Kind::named(kind.name()), kind);
        }
        let apply = Kind::named("logical replication apply worker");
        assert_eq!(apply, Kind::LogicalReplicationWorker);
        assert_eq!(Kind::named("pg_cron launcher"), Kind::BackgroundWorker);
    }

    #[test]
    fn a_process_without_a_title_is_not_told() {
        assert_eq!(
            Backend::from_title(7, "/usr/lib/postgresql/15/bin/postgres -D /data", ""),
            None
        );
        assert_eq!(Backend::from_title(7, "", ""), None);
    }
}
