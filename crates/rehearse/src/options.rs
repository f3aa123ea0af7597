//! [`RehearsalOptions`]: the servers, the traffic and the rules of a rehearsal.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use howdah_compare::{ChangeFactor, FailOn};
use howdah_connect::ConnectTarget;
use howdah_logs::ImportOptions;
use howdah_replay::{IdentityMap, Rate};
use howdah_report::rehearsal::RehearsalSide;
use xxhash_rust::xxh3::xxh3_64;

/// The options of a rehearsal: its servers, its traffic and its rules. Built by the command line.
#[derive(Clone, Debug)]
pub struct RehearsalOptions {
    /// The traffic to replay.
    pub input: RehearsalInput,
    /// The server without the change.
    pub base: ConnectTarget,
    /// The change: another server, or a migration.
    pub change: ChangeSource,
    /// The folder for the journal, the runs and the report.
    pub dir: PathBuf,
    /// Whether to start anew even if the folder has a journal, of this rehearsal or another. Its
    /// finished runs are not reused.
    pub force: bool,
    /// Number of runs on each side, at least 1.
    pub runs: u32,
    /// The pace of the replays.
    pub rate: Rate,
    /// Maps captured roles and databases to those on the servers.
    pub identities: IdentityMap,
    /// Whether all sessions use the database that the user named for each server, instead of the
    /// one in which they were captured.
    pub is_single_database: bool,
    /// Number of threads that replay sessions.
    pub workers: usize,
    /// The way in which the data is restored before each run.
    pub reset: ResetMode,
    /// Whether to vacuum and analyze tables before each run.
    pub vacuum: bool,
    /// A cache image to load before each run.
    pub warm_image: Option<PathBuf>,
    /// Captured time that is replayed to warm the caches if no image is given; zero for none.
    pub warm_up: Duration,
    /// Whether to observe each server during its runs: wait events, counters, checkpoints.
    pub is_observed: bool,
    /// Minimum factor of a change; smaller changes are ignored. `None` means the default of the
    /// comparison, which depends on the number of runs.
    pub change_min: Option<ChangeFactor>,
    /// Conditions under which the rehearsal fails.
    pub fail_on: Vec<FailOn>,
    /// Whether the report may contain captured values: examples and error messages.
    pub has_examples: bool,
    /// Name of the database that may be replayed against although it may be in production.
    pub allow_production: Option<String>,
}

/// The traffic to replay.
#[derive(Clone, Debug)]
pub enum RehearsalInput {
    /// The folder of a capture.
    Capture(PathBuf),
    /// Server logs, which are imported into a capture.
    Logs {
        /// Files, folders or patterns of file names.
        files: Vec<PathBuf>,
        /// The options with which the logs are parsed.
        options: Box<ImportOptions>,
    },
}

/// The change that the base is compared with.
#[derive(Clone, Debug)]
pub enum ChangeSource {
    /// A server that already has the change.
    Server(Box<ConnectTarget>),
    /// A migration, applied to a copy of the base's database on the same server.
    Migration {
        /// The file that the migration was read from.
        path: PathBuf,
        /// SQL text with any number of statements.
        sql: String,
    },
}

/// The way in which the data is restored before each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResetMode {
    /// The data is not restored: runs see the changes of earlier runs.
    None,
    /// Each run gets a new copy of the database, made by `CREATE DATABASE … TEMPLATE`.
    Copy,
    /// The user's commands restore the data.
    Hooks(ResetHooks),
}

/// Commands that reset the servers, run by `sh -c`. A server without a command is not reset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetHooks {
    /// The command that resets the base.
    pub base: Option<String>,
    /// The command that resets the server with the change.
    pub change: Option<String>,
    /// Time limit: a command that takes longer is killed, and the rehearsal fails.
    pub timeout: Duration,
}

impl ResetHooks {
    /// Returns the shell command that resets a server, if there is one.
    pub fn command(&self, side: RehearsalSide) -> Option<&str> {
        match side {
            RehearsalSide::Base => self.base.as_deref(),
            RehearsalSide::Change => self.change.as_deref(),
        }
    }
}

impl RehearsalOptions {
    /// Returns the server of a side, with the original database.
    pub(crate) fn target(&self, side: RehearsalSide) -> &ConnectTarget {
        match (side, &self.change) {
            (RehearsalSide::Change, ChangeSource::Server(target)) => target,
            _ => &self.base,
        }
    }

    /// Returns the options that runs depend on, by name. Runs made with different values cannot be
    /// mixed, so the journal compares these options. The number of runs is not included, because
    /// more runs can be added.
    ///
    /// The values contain no passwords: targets are formatted without them, and commands and
    /// migrations, which may contain anything, are hashed.
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
        add("--no-sampling", (!self.is_observed).to_string());
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

/// Returns a hash that identifies a text without showing it.
fn digest(text: &str) -> String {
    format!("xxh3:{:016x}", xxh3_64(text.as_bytes()))
}
