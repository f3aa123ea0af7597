//! The result of an import: totals, problems, and evidence of the server's settings.

mod completeness;
mod facts;
mod inputs;
mod problems;

use howdah_log_input::{LogSeverity, shorten};
use howdah_sql::ClientCopy;
use howdah_traffic::{ActionRef, BoundRef, CopyDirection, EventRef, Kind, OutcomeRef};
use serde::{Serialize, Serializer};

pub(crate) use self::problems::LogPosition;
pub use self::{
    completeness::{Completeness, Gap, GapKind},
    facts::LogFacts,
    inputs::{FileOrder, Inputs, LogFile, OmittedInput},
    problems::{ImportProblem, ProblemReason, ProblemSample},
};
use crate::{prefix::LogLinePrefix, server_log_format::ServerLogFormat};

/// The result of an import, complete after [`finish`](crate::Importer::finish).
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// Bytes of the log, after its compression and envelopes were removed.
    pub bytes: u64,
    /// Number of files, including those that were not read to their end.
    pub files: u64,
    /// The files that were read or left out. Empty unless the import is by
    /// [`read_files`](crate::read_files) or [`visit_files`](crate::visit_files).
    pub inputs: Inputs,
    /// Number of server messages that were parsed.
    pub records: u64,
    /// The given or detected format; if files differ, that of the last one.
    pub format: Option<ServerLogFormat>,
    /// The line prefix of the last stderr log; `None` if there was none.
    pub prefix: Option<LogLinePrefix>,
    /// Problems and assumptions, in the order of [`ProblemReason::ALL`].
    pub problems: Vec<ImportProblem>,
    /// Evidence of the settings that the log was written with.
    pub facts: LogFacts,
    #[serde(serialize_with = "by_severity")]
    severities: [u64; LogSeverity::ALL.len()],
    #[serde(serialize_with = "by_kind")]
    events: [u64; Kind::ALL.len()],
}

fn by_severity<S: Serializer>(
    counts: &[u64; LogSeverity::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(LogSeverity::ALL.iter().map(|severity| severity.as_str()).zip(counts))
}

fn by_kind<S: Serializer>(
    counts: &[u64; Kind::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Kind::ALL.iter().map(|kind| kind.as_str()).zip(counts))
}

impl ImportSummary {
    /// Returns the number of events of a kind.
    pub fn events(&self, kind: Kind) -> u64 {
        Kind::ALL.iter().position(|k| *k == kind).map_or(0, |at| self.events[at])
    }

    /// Returns the number of all events.
    pub fn events_total(&self) -> u64 {
        self.events.iter().sum()
    }

    /// Returns the number of records of a severity.
    pub fn records_with(&self, severity: LogSeverity) -> u64 {
        self.severities[severity as usize]
    }

    /// Returns the number of problems because of which part of the log was skipped: those that
    /// [drop a record](ProblemReason::drops_record).
    pub fn rejected(&self) -> u64 {
        self.problems.iter().filter(|p| p.reason.drops_record()).map(|p| p.count).sum()
    }

    /// Returns the number of occurrences of a problem.
    pub fn problem_count(&self, reason: ProblemReason) -> u64 {
        self.problems.iter().find(|problem| problem.reason == reason).map_or(0, |p| p.count)
    }

    /// Counts an event and its properties that are known before the outcome. `is_ascii` means that
    /// the texts of the event are known to be ASCII.
    pub(crate) fn count_event(&mut self, event: &EventRef<'_>, is_ascii: bool) {
        let kind = event.action.kind();
        self.events[kind as usize] += 1;
        let facts = &mut self.facts;
        if kind == Kind::Connect {
            let identity = &event.identity;
            let is_nameless = identity.user().is_empty() || identity.database().is_empty();
            facts.sessions_without_names += u64::from(is_nameless);
        }
        if !kind.is_execution() && kind != Kind::Bind {
            return;
        }
        match &event.action {
            ActionRef::Copy { direction: CopyDirection::In, .. } => facts.copies_in += 1,
            ActionRef::Execute(bound) if is_copy_from_client(bound) => facts.copies_in += 1,
            ActionRef::Bind(bound) | ActionRef::Execute(bound) => match bound.parameters {
                None => facts.executions_without_values += 1,
                Some(values) => {
                    facts.executions_with_cut_values += u64::from(values.truncated() > 0);
                    let is_execute = kind == Kind::Execute;
                    facts.executions_with_values += u64::from(is_execute && !values.is_empty());
                }
            },
            _ => {}
        }
        let is_utf8 = is_ascii || !kind.is_execution() || is_utf8(&event.action);
        facts.executions_not_utf8 += u64::from(!is_utf8);
    }

    /// Counts the outcome of an event.
    pub(crate) fn count_outcome(&mut self, kind: Kind, outcome: &OutcomeRef<'_>) {
        let is_unknown = outcome.duration_us.is_none() && !outcome.failed();
        self.facts.executions_without_outcome += u64::from(is_unknown && kind.is_execution());
    }

    pub(crate) fn count_record(&mut self, severity: LogSeverity) {
        self.records += 1;
        self.severities[severity as usize] += 1;
    }

    /// Counts a problem, and stores a sample of the first few.
    pub(crate) fn add_problem(
        &mut self,
        reason: ProblemReason,
        position: LogPosition<'_>,
        excerpt: &[u8],
    ) {
        let at = match self.problems.binary_search_by_key(&reason, |problem| problem.reason) {
            Ok(at) => at,
            Err(at) => {
                self.problems.insert(at, ImportProblem { reason, count: 0, samples: Vec::new() });
                at
            }
        };
        let problem = &mut self.problems[at];
        problem.count += 1;
        if problem.samples.len() < SAMPLES_MAX {
            let sample = ProblemSample {
                file: position.file.to_owned(),
                line: position.line,
                excerpt: shorten(excerpt),
            };
            problem.samples.push(sample);
        }
    }

    /// Counts further occurrences of a problem, without samples.
    pub(crate) fn add_repeats(&mut self, reason: ProblemReason, count: u64) {
        if let Some(problem) = self.problems.iter_mut().find(|problem| problem.reason == reason) {
            problem.count += count;
        }
    }
}

/// Whether a prepared statement is a `COPY … FROM STDIN`.
fn is_copy_from_client(bound: &BoundRef<'_>) -> bool {
    ClientCopy::of_prepared(bound.sql.as_bytes()) == Some(ClientCopy::FromStdin)
}

/// Whether the text of an action, and the values of a Bind or an Execute, are UTF-8.
fn is_utf8(action: &ActionRef<'_>) -> bool {
    let is_valid = |text: &[u8]| std::str::from_utf8(text).is_ok();
    let values = match action {
        ActionRef::Bind(bound) | ActionRef::Execute(bound) => bound.parameters,
        _ => None,
    };
    action.sql().is_none_or(|sql| is_valid(sql.as_bytes()))
        && values.is_none_or(|values| values.iter().all(|value| value.text().is_none_or(is_valid)))
}

/// Maximum number of samples stored for each problem.
const SAMPLES_MAX: usize = 3;

#[test]
fn problems_are_counted_and_sampled() {
    let mut summary = ImportSummary::default();
    for line in 1..=5 {
        summary.add_problem(
            ProblemReason::NotARecord,
            LogPosition { file: "a.log", line },
            b"junk\nmore",
        );
    }
    summary.add_problem(ProblemReason::UnknownZone, LogPosition { file: "a.log", line: 9 }, b"x");
    assert_eq!(summary.problems[0].count, 5);
    assert_eq!(summary.problems[0].samples.len(), SAMPLES_MAX);
    assert_eq!(summary.problems[0].samples[1].line, 2);
    assert_eq!(summary.problems[0].samples[1].excerpt, "junk");
    assert_eq!(summary.rejected(), 5);
}
