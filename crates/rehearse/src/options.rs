//! [`RehearsalOptions`]: the servers, the traffic and the rules of a rehearsal.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use howdah_compare::{ChangeFactor, FailOn};
use howdah_connect::ConnectTarget;
use howdah_logs::ImportOptions;
use howdah_replay::{IdentityMap, Rate};
use howdah_report::rehearsal::RehearsalSide;
use xxhash_rust::xxh3::xxh3_64;

/// The servers, the traffic and the rules of a rehearsal.
#[derive(Clone, Debug)]
pub struct RehearsalOptions {
    /// The traffic.
    pub input: RehearsalInput,
    /// The server in its present state.
    pub base: ConnectTarget,
    /// A server or a migration.
    pub change: ChangeSource,
    /// The folder for the journal, the runs and the report.
    pub dir: PathBuf,
    /// Whether a journal of another rehearsal in the folder is replaced.
    pub force: bool,
    /// Runs on each side, at least 1.
    pub runs: u32,
    /// The pace.
    pub rate: Rate,
    /// Roles and databases of the sessions on both servers.
    pub identities: IdentityMap,
    /// Whether all sessions use the database that is named with each server, rather than the one
    /// they were captured in.
    pub is_single_database: bool,
    /// Threads that run sessions.
    pub workers: usize,
    /// How the data is brought back to its state before each run.
    pub reset: ResetMode,
    /// Whether tables are vacuumed and analyzed before each run.
    pub vacuum: bool,
    /// A cache image that is loaded before each run.
    pub warm_image: Option<PathBuf>,
    /// Without an image: how much captured time is replayed to warm the caches.
    pub warm_up: Duration,
    /// Changes by less than this factor are ignored.
    pub change_min: ChangeFactor,
    /// Conditions under which the rehearsal fails.
    pub fail_on: Vec<FailOn>,
    /// Whether the report contains captured values: examples and error messages.
    pub has_examples: bool,
    /// The database that may be replayed against although it looks like production.
    pub allow_production: Option<String>,
}

/// The traffic to replay.
#[derive(Clone, Debug)]
pub enum RehearsalInput {
    /// The folder of a capture.
    Capture(PathBuf),
    /// Server logs, which are imported once.
    Logs {
        /// Files, folders or patterns.
        files: Vec<PathBuf>,
        /// How they are read.
        options: Box<ImportOptions>,
    },
}

/// The origin of the changed server.
#[derive(Clone, Debug)]
pub enum ChangeSource {
    /// A server that has the change.
    Server(Box<ConnectTarget>),
    /// A migration, applied to a copy of the base's database on the same server.
    Migration {
        /// The file it was read from.
        path: PathBuf,
        /// Any number of statements.
        sql: String,
    },
}

/// How the data is brought back to its state before each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetMode {
    /// Not at all: runs see the changes of earlier runs.
    None,
    /// Each run has a new copy of the database, made by `CREATE DATABASE … TEMPLATE`.
    Copy,
    /// By commands of the user.
    Hooks(ResetHooks),
}

/// Commands that reset a server, run by `sh -c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetHooks {
    /// Resets the base.
    pub base: Option<String>,
    /// Resets the server with the change.
    pub change: Option<String>,
    /// A command that takes longer is killed, and the rehearsal fails.
    pub timeout: Duration,
}

impl ResetHooks {
    /// The shell command that resets a server, if it needs one.
    pub fn command(&self, side: RehearsalSide) -> Option<&str> {
        match side {
            RehearsalSide::Base => self.base.as_deref(),
            RehearsalSide::Change => self.change.as_deref(),
        }
    }
}

impl RehearsalOptions {
    /// The server of a side, with the original database.
    pub(crate) fn target(&self, side: RehearsalSide) -> &ConnectTarget {
        match (side, &self.change) {
            (RehearsalSide::Change, ChangeSource::Server(target)) => target,
            _ => &self.base,
        }
    }

    /// The options that runs depend on, by the name of their option. Runs made with other values
    /// cannot be mixed, so the journal compares them. The number of runs is not among them: more
    /// runs can be added.
    ///
    /// No value contains a password: targets are displayed without, and commands and migrations,
    /// which may contain anything, are hashed.
    pub(crate) fn run_options(&self) -> BTreeMap<String, String> {
        let mut options = BTreeMap::new();
        let mut add = |name: &str, value: String| options.insert(name.to_owned(), value);
        let input = match &self.input {
            RehearsalInput::Capture(dir) => dir.display().to_string(),
            RehearsalInput::Logs { files, .. } => {
                let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
                names.join(" ")
            }
        };
        add("input", input);
        add("--base", self.base.to_string());
        match &self.change {
            ChangeSource::Server(target) => add("--change", target.to_string()),
            ChangeSource::Migration { path, sql } => {
                add("--change-sql", format!("{} {}", path.display(), digest(sql)))
            }
        };
        add("--rate", self.rate.to_string());
        match &self.reset {
            ResetMode::None => add("--reset", "none".to_owned()),
            ResetMode::Copy => add("--reset", "copy".to_owned()),
            ResetMode::Hooks(hooks) => {
                let hook =
                    |command: &Option<String>| command.as_deref().map_or_else(String::new, digest);
                add("--reset-base", hook(&hooks.base));
                add("--reset-change", hook(&hooks.change))
            }
        };
        add("--no-vacuum", (!self.vacuum).to_string());
        let image = self.warm_image.as_ref();
        add("--warm", image.map_or_else(String::new, |path| path.display().to_string()));
        add("--warm-up", format!("{}s", self.warm_up.as_secs_f64()));
        add("--as-user", self.identities.as_user.clone().unwrap_or_default());
        add("--single-database", self.is_single_database.to_string());
        let pairs = |map: &std::collections::HashMap<String, String>| {
            let sorted: BTreeMap<_, _> = map.iter().collect();
            let pairs: Vec<_> = sorted.iter().map(|(from, to)| format!("{from}={to}")).collect();
            pairs.join(",")
        };
        add("--map-user", pairs(&self.identities.users));
        add("--map-database", pairs(&self.identities.databases));
        options
    }
}

/// Identifies a text without showing it.
fn digest(text: &str) -> String {
    format!("xxh3:{:016x}", xxh3_64(text.as_bytes()))
}
