//! [`Samples`]: the summary of a run for a comparison.

mod histogram;
mod query;
mod reservoir;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use howdah_dataset::{Disposition, ReadError, ReplayOutcome, ReplayRun, RunManifest};
use howdah_sql::Fingerprint;

use crate::MachineLoad;

pub use self::query::{ErrorCount, Errors};
pub(crate) use self::{histogram::PercentileHistogram, query::Query};

/// The summary of a run: per query, counts, a histogram and a sample of executions.
///
/// Memory does not grow with the length of a run: a query usually takes up to about 50 kB, however
/// often it was executed, and there are at most [`Samples::QUERIES_MAX`] queries.
#[derive(Clone, Debug)]
pub struct Samples {
    about: RunInfo,
    queries: HashMap<Fingerprint, Query>,
    statements: HashMap<Fingerprint, QueryText>,
    /// Queries whose parameter types were deduced.
    typed: BTreeSet<Fingerprint>,
    unattributed: u64,
    machine: Option<MachineLoad>,
}

/// The properties of a run that are shown to users.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunInfo {
    /// The run's folder, or another name.
    pub name: String,
    /// The capture or the logs that were replayed.
    pub capture: String,
    /// The server that the capture was replayed against, without a password.
    pub target: String,
    /// The pace: a factor, or `max`.
    pub rate: String,
    /// `server_version` of the target.
    pub server_version: String,
    /// Whether the replay reached the end of its input.
    pub complete: bool,
    /// The workers whose parts of the run do not exist.
    pub missing_workers: Vec<u32>,
}

/// The text of a query, and the role and database of an example.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueryText {
    /// The normalized text, or its first [`Samples::TEXT_MAX`] bytes.
    pub query: String,
    /// The role of one execution; empty if not known.
    pub user: String,
    /// The database of the same execution; empty if not known.
    pub database: String,
}

/// A run could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the run {}", path.display())]
#[non_exhaustive]
pub struct ReadRunError {
    /// The run's folder.
    pub path: PathBuf,
    /// The reason.
    pub source: ReadError,
}

impl Samples {
    /// Maximum number of queries. Executions of any further query count as unattributed.
    pub const QUERIES_MAX: usize = 20_000;

    /// Maximum bytes of a query's text.
    pub const TEXT_MAX: usize = 4_096;

    /// Creates a summary without executions.
    pub fn new(about: RunInfo) -> Self {
        Self {
            about,
            queries: HashMap::new(),
            statements: HashMap::new(),
            typed: BTreeSet::new(),
            unattributed: 0,
            machine: None,
        }
    }

    /// Reads the run in the folder `path`, once from end to end.
    ///
    /// # Errors
    ///
    /// The folder does not contain a run that can be read.
    pub fn read(path: &Path) -> Result<Self, ReadRunError> {
        Self::read_with_progress(path, |_, _| {})
    }

    /// Like [`Self::read`], and calls `on_progress` now and then with the number of outcomes read
    /// so far and the total.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn read_with_progress(
        path: &Path,
        on_progress: impl FnMut(u64, u64),
    ) -> Result<Self, ReadRunError> {
        Self::read_run(path, on_progress)
            .map_err(|source| ReadRunError { path: path.to_owned(), source })
    }

    fn read_run(path: &Path, mut on_progress: impl FnMut(u64, u64)) -> Result<Self, ReadError> {
        const PROGRESS_EVERY_N: usize = 4_096;
        let run = ReplayRun::open(path)?;
        let total = run.manifest().outcomes;
        let mut samples = Self::new(RunInfo::from_run(path, &run));
        samples.typed = typed_statements(run.manifest());
        samples.machine = run.machine()?.as_ref().map(MachineLoad::from_series);
        for (read, outcome) in run.outcomes().enumerate() {
            samples.record(&outcome?);
            if read % PROGRESS_EVERY_N == 0 {
                on_progress(read as u64, total);
            }
        }
        for statement in run.statements()? {
            let fingerprint = Fingerprint(statement.fingerprint);
            let words = QueryText {
                query: statement.query,
                user: (*statement.user).to_owned(),
                database: (*statement.database).to_owned(),
            };
            samples.describe(fingerprint, words);
        }
        Ok(samples)
    }

    /// Combines the executions of several runs, in order, under the description of the first run.
    pub(crate) fn merged(runs: &[Self]) -> Self {
        let Some((first, later)) = runs.split_first() else {
            return Self::new(RunInfo::default());
        };
        let mut merged = first.clone();
        for run in later {
            merged.about.complete &= run.about.complete;
            for (fingerprint, query) in &run.queries {
                if let Some(sum) = merged.queries.get_mut(fingerprint) {
                    sum.append(query);
                } else if merged.queries.len() < Self::QUERIES_MAX {
                    merged.queries.insert(*fingerprint, query.clone());
                } else {
                    merged.unattributed += query.calls();
                }
            }
            for (fingerprint, text) in &run.statements {
                merged.statements.entry(*fingerprint).or_insert_with(|| text.clone());
            }
            merged.typed.extend(&run.typed);
            merged.unattributed += run.unattributed;
        }
        merged
    }

    /// Adds an outcome. Outcomes that are not executions of a statement are ignored. Executions
    /// without a fingerprint, or of a query beyond [`Self::QUERIES_MAX`], count as unattributed
    /// unless they were skipped.
    pub fn record(&mut self, outcome: &ReplayOutcome) {
        if !outcome.kind.is_execution() {
            return;
        }
        let has_room = self.queries.len() < Self::QUERIES_MAX;
        let fingerprint = outcome.fingerprint.map(Fingerprint);
        let known = |fingerprint: &Fingerprint| has_room || self.queries.contains_key(fingerprint);
        let Some(fingerprint) = fingerprint.filter(known) else {
            let was_sent =
                matches!(outcome.disposition, Disposition::Done | Disposition::Failed { .. });
            self.unattributed += u64::from(was_sent);
            return;
        };
        self.queries.entry(fingerprint).or_insert_with(|| Query::new(fingerprint)).record(outcome);
    }

    /// Sets the text of a query. Does nothing for queries without outcomes.
    pub fn describe(&mut self, fingerprint: Fingerprint, mut words: QueryText) {
        if self.queries.contains_key(&fingerprint) {
            words.query.truncate(words.query.floor_char_boundary(Self::TEXT_MAX));
            self.statements.insert(fingerprint, words);
        }
    }

    /// Marks a query whose parameter types were deduced; see [`Self::has_deduced_types`].
    pub fn mark_deduced_types(&mut self, fingerprint: Fingerprint) {
        self.typed.insert(fingerprint);
    }

    /// Whether the replay deduced the types of the query's parameters because the capture has none.
    pub fn has_deduced_types(&self, fingerprint: Fingerprint) -> bool {
        self.typed.contains(&fingerprint)
    }

    /// Replaces the description of the run.
    #[must_use]
    pub fn with_info(self, about: RunInfo) -> Self {
        Self { about, ..self }
    }

    /// Sets the state of the machine during the run.
    #[must_use]
    pub fn with_machine(self, machine: MachineLoad) -> Self {
        Self { machine: Some(machine), ..self }
    }

    /// Returns the state of the machine during the run, if it was measured.
    pub fn machine(&self) -> Option<&MachineLoad> {
        self.machine.as_ref()
    }

    /// Returns the run's description.
    pub fn info(&self) -> &RunInfo {
        &self.about
    }

    /// Whether there are no executions at all.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.unattributed == 0
    }

    /// Returns the number of executions without a fingerprint or beyond [`Self::QUERIES_MAX`]
    /// queries, not counting skipped ones.
    pub fn unattributed(&self) -> u64 {
        self.unattributed
    }

    /// Returns the text of a query, if known.
    pub fn query_text(&self, fingerprint: Fingerprint) -> Option<&QueryText> {
        self.statements.get(&fingerprint)
    }

    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.queries.keys().copied()
    }

    pub(crate) fn query(&self, fingerprint: Fingerprint) -> Option<&Query> {
        self.queries.get(&fingerprint)
    }
}

/// Returns the statements with deduced types from the manifest of a run; none for older replays.
fn typed_statements(manifest: &RunManifest) -> BTreeSet<Fingerprint> {
    let statements = manifest.summary["types_deduced"]["statements"].as_array();
    let texts = statements.into_iter().flatten().filter_map(|text| text.as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}

impl RunInfo {
    fn from_run(path: &Path, run: &ReplayRun) -> Self {
        let manifest = run.manifest();
        Self {
            name: path.display().to_string(),
            capture: manifest.capture.clone(),
            target: manifest.target.clone(),
            rate: manifest.rate.clone(),
            server_version: manifest.server_version.clone(),
            complete: manifest.complete,
            missing_workers: run.missing_workers().to_vec(),
        }
    }
}
