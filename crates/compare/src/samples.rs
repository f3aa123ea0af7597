//! [`Samples`]: what a comparison keeps of a run.

mod histogram;
mod query;
mod reservoir;

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use howdah_dataset::{Disposition, ReadError, ReplayOutcome, Run, RunManifest};
use howdah_sql::Fingerprint;

pub(crate) use self::query::Query;
pub use self::query::{ErrorCount, Errors};

/// What a comparison keeps of a run: per query, counts, a histogram and a sample of executions.
///
/// Memory does not grow with the length of a run: a query takes up to about 50 kB, however often it
/// was executed, and there are at most [`Samples::QUERIES_MAX`] queries.
#[derive(Clone, Debug)]
pub struct Samples {
    about: About,
    queries: HashMap<Fingerprint, Query>,
    statements: HashMap<Fingerprint, Words>,
    /// Queries with deduced parameter types.
    typed: BTreeSet<Fingerprint>,
    unattributed: u64,
}

/// What a run is, for people to recognise it by.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The run's folder, or another name.
    pub name: String,
    /// The capture or log that was replayed.
    pub capture: String,
    /// The server it was replayed against, without a password.
    pub target: String,
    /// The pace: a factor, or `max`.
    pub rate: String,
    /// `server_version` of the target.
    pub server_version: String,
    /// Whether the replay came to the end of its input.
    pub complete: bool,
}

/// How a query reads and who ran it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// The normal form, or its first [`Samples::TEXT_MAX`] bytes.
    pub query: String,
    /// The role of an execution; empty if not known.
    pub user: String,
    /// The database of that execution; empty if not known.
    pub database: String,
}

/// A run could not be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read the run {}", path.display())]
#[non_exhaustive]
pub struct ReadRunError {
    /// The folder that was named.
    pub path: PathBuf,
    /// What is wrong with it.
    pub source: ReadError,
}

impl Samples {
    /// Queries that are told apart. Executions of all others count as unattributed.
    pub const QUERIES_MAX: usize = 20_000;

    /// Bytes of a query's text that are kept.
    pub const TEXT_MAX: usize = 4_096;

    /// No executions yet.
    pub fn new(about: About) -> Self {
        Self {
            about,
            queries: HashMap::new(),
            statements: HashMap::new(),
            typed: BTreeSet::new(),
            unattributed: 0,
        }
    }

    /// Reads the run in the folder `path`, once from end to end.
    ///
    /// # Errors
    ///
    /// There is no run, or it is damaged.
    pub fn read(path: &Path) -> Result<Self, ReadRunError> {
        Self::read_watched(path, |_, _| {})
    }

    /// Like [`Self::read`]; tells `watch` now and then how many outcomes were read, of how many.
    ///
    /// # Errors
    ///
    /// As for [`Self::read`].
    pub fn read_watched(path: &Path, watch: impl FnMut(u64, u64)) -> Result<Self, ReadRunError> {
        Self::read_run(path, watch).map_err(|source| ReadRunError { path: path.to_owned(), source })
    }

    fn read_run(path: &Path, mut watch: impl FnMut(u64, u64)) -> Result<Self, ReadError> {
        const NOW_AND_THEN: usize = 4_096;
        let run = Run::open(path)?;
        let total = run.manifest().outcomes;
        let mut samples = Self::new(About::of(path, run.manifest()));
        samples.typed = typed_statements(run.manifest());
        for (read, outcome) in run.outcomes().enumerate() {
            samples.record(&outcome?);
            if read % NOW_AND_THEN == 0 {
                watch(read as u64, total);
            }
        }
        for statement in run.statements()? {
            let fingerprint = Fingerprint(statement.fingerprint);
            let words = Words {
                query: statement.query,
                user: (*statement.user).to_owned(),
                database: (*statement.database).to_owned(),
            };
            samples.describe(fingerprint, words);
        }
        Ok(samples)
    }

    /// Takes account of an outcome. Those that are no executions of a statement are left out.
    pub fn record(&mut self, outcome: &ReplayOutcome) {
        if !outcome.kind.is_execution() {
            return;
        }
        let room = self.queries.len() < Self::QUERIES_MAX;
        let fingerprint = outcome.fingerprint.map(Fingerprint);
        let known = |fingerprint: &Fingerprint| room || self.queries.contains_key(fingerprint);
        let Some(fingerprint) = fingerprint.filter(known) else {
            self.unattributed +=
                u64::from(!matches!(outcome.disposition, Disposition::Skipped { .. }));
            return;
        };
        self.queries.entry(fingerprint).or_insert_with(|| Query::new(fingerprint)).record(outcome);
    }

    /// Says how a query reads. Ignored for one that was never recorded.
    pub fn describe(&mut self, fingerprint: Fingerprint, mut words: Words) {
        if self.queries.contains_key(&fingerprint) {
            words.query.truncate(words.query.floor_char_boundary(Self::TEXT_MAX));
            self.statements.insert(fingerprint, words);
        }
    }

    /// Marks a query whose parameters got deduced types: see [`Self::has_deduced_types`].
    pub fn mark_deduced_types(&mut self, fingerprint: Fingerprint) {
        self.typed.insert(fingerprint);
    }

    /// Whether the replay deduced types for the query's parameters, because its capture holds none.
    pub fn has_deduced_types(&self, fingerprint: Fingerprint) -> bool {
        self.typed.contains(&fingerprint)
    }

    /// The same executions under another name.
    #[must_use]
    pub fn with_about(self, about: About) -> Self {
        Self { about, ..self }
    }

    /// What the run is.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Whether no execution was asked of a server, nor skipped.
    pub fn is_empty(&self) -> bool {
        self.queries.is_empty() && self.unattributed == 0
    }

    /// Executions without a fingerprint, or beyond [`Self::QUERIES_MAX`] queries.
    pub fn unattributed(&self) -> u64 {
        self.unattributed
    }

    /// How a query reads, if that is known.
    pub fn words(&self, fingerprint: Fingerprint) -> Option<&Words> {
        self.statements.get(&fingerprint)
    }

    pub(crate) fn fingerprints(&self) -> impl Iterator<Item = Fingerprint> {
        self.queries.keys().copied()
    }

    pub(crate) fn query(&self, fingerprint: Fingerprint) -> Option<&Query> {
        self.queries.get(&fingerprint)
    }
}

/// What the summary of a run says about deduced types; nothing in those of an older replay.
fn typed_statements(manifest: &RunManifest) -> BTreeSet<Fingerprint> {
    let statements = manifest.summary["types_deduced"]["statements"].as_array();
    let texts = statements.into_iter().flatten().filter_map(|text| text.as_str());
    texts.filter_map(|text| text.parse().ok()).collect()
}

impl About {
    fn of(path: &Path, manifest: &RunManifest) -> Self {
        Self {
            name: path.display().to_string(),
            capture: manifest.capture.clone(),
            target: manifest.target.clone(),
            rate: manifest.rate.clone(),
            server_version: manifest.server_version.clone(),
            complete: manifest.complete,
        }
    }
}
