//! The report of a rehearsal: one model, rendered as text, Markdown, JSON, JUnit XML and HTML.
//!
//! [`RehearsalReport`] is plain data that `howdah-rehearse` fills in. The functions here only
//! render it. Statements are normalized; captured values appear only in
//! [`RehearsalReport::examples`] and in error messages, which Markdown and JUnit omit.

pub mod html;
mod json;
mod junit;
mod markdown;
mod obstacle;
mod server;
mod start;
mod text;

use std::{collections::BTreeMap, fmt};

use howdah_compare::{Comparison, QueryComparison, Violation};
use howdah_sql::Fingerprint;
use howdah_traffic::Timestamp;
use serde::{Deserialize, Serialize};

use self::html::TimeLines;
pub use self::{
    html::html,
    json::{REHEARSAL_VERSION, RehearsalDocument, document},
    junit::junit,
    markdown::markdown,
    obstacle::Obstacle,
    server::{
        ActivityFigure, BothSides, IndexFacts, ServerDifference, ServerFacts, SettingValue,
        TableDifference, TableFacts, TableName, TableStatistics, ViewFacts,
    },
    start::{RecoveryTarget, START_DISTANCE_MAX, StartPosition, StartState},
    text::text,
};

/// One of the two servers of a rehearsal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RehearsalSide {
    /// The server without the change.
    Base,
    /// The server with the change.
    Change,
}

impl RehearsalSide {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Base, Self::Change];

    /// Returns the name of the side in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Change => "change",
        }
    }
}

impl fmt::Display for RehearsalSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The result of a rehearsal, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RehearsalVerdict {
    /// No query is slower, no condition of the user is violated, and the runs are comparable.
    Passed,
    /// A condition is violated, or a query is slower. Slower queries do not count if most
    /// statements failed on one side only.
    Failed,
    /// The runs do not show whether the change matters: see [`RehearsalReport::obstacles`].
    NotComparable,
}

impl RehearsalVerdict {
    /// Returns the name of the verdict in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotComparable => "not comparable",
        }
    }
}

/// One replay of a rehearsal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunSummary {
    /// Name of the run and of its folder: `a1`, `b1`, …; `a` is the base.
    pub name: String,
    /// The side whose server was replayed against.
    pub side: RehearsalSide,
    /// Time at which the run started, just before its replay.
    #[serde(with = "rfc3339")]
    pub started: Timestamp,
    /// Time at which the replay had finished.
    #[serde(with = "rfc3339")]
    pub finished: Timestamp,
    /// Number of statements that succeeded or failed.
    pub executions: u64,
    /// Number of statements that failed.
    pub failed: u64,
    /// Number of statements that were skipped: not sent, or not finished when the replay ended.
    pub skipped: u64,
    /// 99th percentile of how late statements were sent although their session was free, in
    /// microseconds. A large value means that the machine that replayed was too slow, not the
    /// server.
    pub schedule_error_p99_us: Option<u64>,
    /// State of the machine that replayed, during the run.
    pub machine: Option<RunMachine>,
}

/// The state of the machine that replayed, during a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunMachine {
    /// Median duration of the calibration statement in microseconds; `None` if not executed.
    pub calibration_p50_us: Option<u64>,
    /// Share of processor time in use, 0 to 1.
    pub busy: f64,
    /// Share of processor time that the hypervisor gave to other guests, 0 to 1; 0 if unknown.
    pub steal: f64,
    /// Share of processor time that was idle while a task waited for a disk, 0 to 1; 0 if unknown.
    pub io_wait: f64,
}

/// The growth of a database over its runs, between which it was not reset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DataGrowth {
    /// The server that has the database.
    pub side: RehearsalSide,
    /// Size before the first run, in bytes.
    pub bytes_before: u64,
    /// Size when the report was made, after the last run, in bytes.
    pub bytes_after: u64,
}

/// The change of the typical query from the first to the last run on one server. These runs differ
/// only in time and in the data that earlier runs left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OrderEffect {
    /// The side of the runs.
    pub side: RehearsalSide,
    /// Time in the last run divided by time in the first.
    pub factor: f64,
}

/// The complete result of a rehearsal.
#[derive(Clone, Debug)]
pub struct RehearsalReport {
    /// Version of Howdah that ran the rehearsal.
    pub howdah: String,
    /// Time at which the rehearsal started.
    pub started: Timestamp,
    /// Time at which the comparison of the runs was finished.
    pub finished: Timestamp,
    /// The verdict: passed, failed or not comparable.
    pub verdict: RehearsalVerdict,
    /// Reasons why the runs are not comparable; empty if the verdict is
    /// [`RehearsalVerdict::Passed`].
    pub obstacles: Vec<Obstacle>,
    /// The comparison of the base's runs with those of the change. Error messages are empty unless
    /// values are requested.
    pub comparison: Comparison,
    /// The user's conditions that are violated.
    pub violations: Vec<Violation>,
    /// The replays, in the order in which they ran.
    pub runs: Vec<RunSummary>,
    /// Figures over the time of the runs; drawn in HTML only.
    pub time_lines: TimeLines,
    /// Facts of the servers as of their first runs.
    pub servers: BothSides<ServerFacts>,
    /// The start of the capture, and the positions of the servers before their first runs.
    pub start: StartState,
    /// Differences between the servers.
    pub differences: Vec<ServerDifference>,
    /// The differences that may explain the change of a query, as positions in `differences`.
    pub reasons: BTreeMap<Fingerprint, Vec<usize>>,
    /// Changed queries whose plans could not be compared, and why.
    pub plan_failures: BTreeMap<Fingerprint, String>,
    /// One captured execution of each changed query, with its values; empty unless requested.
    pub examples: BTreeMap<Fingerprint, String>,
    /// Sizes of the databases before and after their runs; empty if each run had a reset.
    pub growth: Vec<DataGrowth>,
    /// The effect of the order of runs; empty if each run had a reset or there was one run on each
    /// server.
    pub order_effects: Vec<OrderEffect>,
    /// The options, by name, without passwords.
    pub options: BTreeMap<String, String>,
    /// Limitations of the result, one sentence each.
    pub warnings: Vec<String>,
}

impl RehearsalReport {
    /// Returns the differences that may explain the change of a query.
    pub fn reasons_of(&self, query: &QueryComparison) -> impl Iterator<Item = &ServerDifference> {
        let positions = self.reasons.get(&query.fingerprint);
        positions.into_iter().flatten().filter_map(|position| self.differences.get(*position))
    }

    /// Returns the differences that concern the whole server, and so may explain any change.
    pub fn global_differences(&self) -> impl Iterator<Item = &ServerDifference> {
        self.differences.iter().filter(|difference| difference.table().is_none())
    }

    /// Returns the changed queries: first the slower ones, the largest loss first, then the faster
    /// ones.
    pub fn changed(&self) -> impl Iterator<Item = &QueryComparison> {
        let faster = self.comparison.faster().collect::<Vec<_>>().into_iter().rev();
        self.comparison.slower().chain(faster)
    }

    /// Returns the result in one line: `failed: 1 of 14 queries slower`.
    pub fn summary(&self) -> String {
        let mut line =
            format!("{}: {}", self.verdict.as_str(), crate::verdict_line(&self.comparison));
        if let (RehearsalVerdict::NotComparable, Some(obstacle)) =
            (self.verdict, self.obstacles.first())
        {
            line = format!("{}: {obstacle}", self.verdict.as_str());
        }
        if !self.violations.is_empty() {
            let violated = crate::counted(self.violations.len() as u64, "violation");
            line.push_str(&format!("; {violated} of --fail-on"));
        }
        line
    }
}

/// Serde module for a time as RFC 3339 text.
mod rfc3339 {
    use howdah_traffic::Timestamp;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    pub(super) fn serialize<S: Serializer>(time: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(time)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests;
