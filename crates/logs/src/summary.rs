//! The result of an import: what was read, what could not be read, and what the log shows of the
//! server's settings.

use std::fmt;

use howdah_log_input::{InputProblem, LogSeverity, shorten};
use howdah_traffic::{ActionRef, CopyDirection, EventRef, Kind, OutcomeRef};
use serde::{Serialize, Serializer};

use crate::{language::Language, options::ServerLogFormat, read_plan::Inputs};

/// Totals of an import, complete after [`finish`](crate::Importer::finish).
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImportSummary {
    /// Bytes read.
    pub bytes: u64,
    /// Files started.
    pub files: u64,
    /// The files that were read; only filled by [`read_files`](crate::read_files).
    pub inputs: Inputs,
    /// Number of server messages that were parsed.
    pub records: u64,
    /// The given or detected format; that of the latest file where they differ.
    pub format: Option<ServerLogFormat>,
    /// The line prefix of a stderr log.
    pub prefix: Option<LogLinePrefix>,
    /// What could not be read or had to be assumed, most severe first.
    pub problems: Vec<ImportProblem>,
    /// What the log shows about the settings it was written with.
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

/// A line prefix and its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLinePrefix {
    /// In PostgreSQL's own syntax.
    pub text: String,
    /// Whether the user gave it.
    pub origin: PrefixOrigin,
    /// Evidence for it, if it was guessed.
    pub confidence: Option<Confidence>,
}

/// Formats a phrase: `log_line_prefix '%m [%p] ' (guessed: matches all 40 lines examined)`.
impl fmt::Display for LogLinePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log_line_prefix '{}' ", self.text)?;
        match (self.origin, &self.confidence) {
            (PrefixOrigin::Given, _) => f.write_str("(given)"),
            (PrefixOrigin::Guessed, None) => f.write_str("(guessed)"),
            (PrefixOrigin::Guessed, Some(Confidence { lines, lines_total, .. }))
                if lines == lines_total =>
            {
                write!(f, "(guessed: matches all {lines} lines examined)")
            }
            (PrefixOrigin::Guessed, Some(Confidence { lines, lines_total, .. })) => {
                write!(f, "(guessed: matches {lines} of {lines_total} lines examined)")
            }
        }
    }
}

impl LogLinePrefix {
    /// A warning with advice, if another prefix matches equally well.
    pub fn ambiguity_warning(&self) -> Option<String> {
        let rival = self.confidence.as_ref()?.rival.as_ref()?;
        Some(format!(
            "the prefix could also be '{rival}', with other users, databases or sessions: \
             SHOW log_line_prefix prints the right one, --prefix passes it"
        ))
    }
}

/// Evidence for a guessed prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confidence {
    /// Lines of the sample that it matches.
    pub lines: u64,
    /// Lines of the sample that look like records.
    pub lines_total: u64,
    /// A prefix that matches as many lines but finds other users, databases or sessions in them.
    /// Only the user knows which one is right.
    pub rival: Option<String>,
}

/// Origin of a line prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefixOrigin {
    /// Given by the user.
    Given,
    /// Derived from the data.
    Guessed,
}

/// What the log shows of the settings it was written with. Counts are of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LogFacts {
    /// Statements logged at their start (`log_statement`).
    pub statement_form: u64,
    /// Statements logged at their end, with text (`log_min_duration_statement`).
    pub duration_form: u64,
    /// Durations without a text (`log_duration`, or a text that was logged before).
    pub bare_durations: u64,
    /// Parse and bind steps logged with text.
    pub parse_and_bind: u64,
    /// Failed statements known only from their error record.
    pub error_form: u64,
    /// Errors of client sessions without a known statement: its text is not in the log, because of
    /// `log_min_error_statement`.
    pub errors_without_statement: u64,
    /// Messages with SQLSTATE and source location (`log_error_verbosity=verbose`).
    pub verbose: u64,
    /// Length in bytes at which parameter values are cut (`log_parameter_max_length`), if any was.
    pub parameter_limit_bytes: Option<usize>,
    /// Values that were cut.
    pub truncated_values: u64,
    /// Sessions in the log.
    pub sessions: u64,
    /// Of these, sessions that were open before their first record in the log.
    pub joined_midway: u64,
    /// Of these, sessions that were inside a transaction block at their first record.
    pub joined_in_transaction: u64,
    /// Of these, sessions whose user or database was not known when they started.
    pub sessions_without_names: u64,
    /// Lines that the server numbered but that are not in the log.
    pub lost_lines: u64,
    /// How often the line numbers of a session go back: part of the log was given twice.
    pub repeated_lines: u64,
    /// The shortest duration that was logged with its text, in microseconds. It is never below a
    /// positive `log_min_duration_statement`.
    pub shortest_logged_us: Option<u64>,
    /// Executions logged at their end without the preceding Bind, although durations under a
    /// millisecond are logged: evidence of sampling.
    pub executions_without_bind: u64,
    /// Transaction blocks of which only the beginning or only the end is logged, although durations
    /// under a millisecond are logged. A client may also begin twice by mistake.
    pub broken_blocks: u64,
    /// Transactions missing from the log, by the gaps in their numbers, although durations under a
    /// millisecond are logged. The server uses some of the numbers itself.
    pub missing_transactions: u64,
    /// Executions whose duration and error are both unknown.
    pub executions_without_outcome: u64,
    /// Executions and binds whose parameters are not in the log.
    pub executions_without_values: u64,
    /// Executions and binds with parameters that were cut.
    pub executions_with_cut_values: u64,
    /// Executions with parameters.
    pub executions_with_values: u64,
    /// Executions of the extended protocol whose pipeline is unknown: the log does not show their
    /// transaction, or several share one and it may have been a transaction block.
    pub executions_of_unknown_pipeline: u64,
    /// Of these, executions whose transaction the log does not show.
    pub executions_of_unknown_transaction: u64,
    /// A statement was logged at its start that only `log_statement = all` logs there, such as a
    /// SELECT.
    pub every_statement_logged: bool,
    /// Executions whose text or parameters are not UTF-8.
    pub executions_not_utf8: u64,
    /// `COPY … FROM STDIN`.
    pub copies_in: u64,
    /// Statements cancelled by a user.
    pub cancels: u64,
    /// Statements ended by `statement_timeout`.
    pub statement_timeouts: u64,
    /// Statements ended by `lock_timeout`.
    pub lock_timeouts: u64,
    /// Sessions ended by `idle_session_timeout`, `idle_in_transaction_session_timeout` or
    /// `transaction_timeout`.
    pub session_timeouts: u64,
    /// Statements or sessions ended by a standby because of a conflict with recovery.
    pub recovery_conflicts: u64,
    /// Messages of auto_explain.
    pub plans: u64,
    /// Messages of pgaudit.
    pub audits: u64,
    /// Messages about statements or durations in a language other than English.
    pub translated_messages: u64,
    /// The language of the first of them.
    pub language: Option<Language>,
    /// The line prefix identifies neither session nor process, so sessions of one user are merged.
    pub sessions_merged: bool,
}

/// A problem that affected one or more records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ImportProblem {
    /// What is wrong.
    pub reason: ProblemReason,
    /// Number of occurrences.
    pub count: u64,
    /// The first few occurrences.
    pub samples: Vec<ProblemSample>,
}

/// One place in the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ProblemSample {
    /// Name of the file, as given.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// The beginning of the text there.
    pub excerpt: String,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $loses:literal, $text:literal;)*) => {
        /// Why a record was rejected, or what was wrong with one that was read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum ProblemReason { $($(#[$doc])* $variant,)* }

        impl ProblemReason {
            /// Every reason, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Whether the affected record or line was skipped.
            pub const fn drops_record(self) -> bool {
                match self { $(Self::$variant => $loses,)* }
            }

            /// A phrase for display, to follow a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Output of another program between the records.
    NotARecord, true, "lines that are not log records";
    /// A `DETAIL`, `STATEMENT` or similar line without its message.
    Orphan, true, "detail lines without their message";
    /// The input ended, or another record began, inside a record.
    CutShort, true, "records cut short";
    /// Over the [limit](crate::ImportOptions::max_record_bytes).
    TooLong, true, "records over the size limit";
    /// The time is missing or not valid.
    BadTime, true, "records without a readable time";
    /// A csvlog row of fewer than 22 columns or of 25, which no server writes, or with stray
    /// quotes.
    BadRow, true, "malformed csvlog rows: stray quotes, or a number of columns that no server writes (22 to 24, 26 are valid)";
    /// A jsonlog line that is not an object with the fields of a record.
    BadObject, true, "malformed jsonlog lines";
    /// The severity is missing or in another language.
    BadSeverity, true, "records of unknown severity";
    /// `execute`, `parse` or `bind` without the name that must follow.
    BadStep, true, "execute, parse or bind messages without a name";
    /// The parameter list is broken; the event has no values.
    BadParameters, false, "parameter lists that could not be read";
    /// A truncated or damaged archive or pgreplay file.
    Damaged, true, "files that are cut short or damaged; the part before the damage was read";
    /// A line or object without the envelope that its neighbours have.
    BadEnvelope, true, "lines or objects without the envelope of the others";
    /// Syslog lost part of a message, so the message was skipped.
    LostParts, true, "messages that syslog lost a part of";
    /// Entries run from new to old and were reversed.
    Backwards, false, "files whose entries run from new to old, read in reverse";
    /// Entries run from new to old, and are too many to reverse.
    BackwardsTooLong, false, "files whose entries run from new to old, too large to reverse: export them oldest first (gcloud logging read --order=asc)";
    /// Messages of several hosts are mixed in one log.
    SeveralServers, false, "messages of a different host than the first: pass the log of one server";
    /// A line of another program in a shared log.
    OtherProgram, false, "lines of other programs, skipped";
    /// The time zone is not known; UTC was assumed.
    UnknownZone, false, "times in an unknown zone, read as UTC";
    /// The time zone abbreviation has several meanings; PostgreSQL's default was assumed.
    AmbiguousZone, false, "times with an ambiguous zone abbreviation";
}

impl From<InputProblem> for ProblemReason {
    fn from(problem: InputProblem) -> Self {
        match problem {
            InputProblem::NotARecord => Self::NotARecord,
            InputProblem::CutShort => Self::CutShort,
            InputProblem::TooLong => Self::TooLong,
            InputProblem::BadEnvelope => Self::BadEnvelope,
            InputProblem::LostParts => Self::LostParts,
            InputProblem::Backwards => Self::Backwards,
            InputProblem::BackwardsTooLong => Self::BackwardsTooLong,
            InputProblem::SeveralServers => Self::SeveralServers,
            InputProblem::OtherProgram => Self::OtherProgram,
            InputProblem::Damaged => Self::Damaged,
        }
    }
}

impl ImportSummary {
    /// Number of events of a kind.
    pub fn events(&self, kind: Kind) -> u64 {
        Kind::ALL.iter().position(|k| *k == kind).map_or(0, |at| self.events[at])
    }

    /// Number of all events.
    pub fn events_total(&self) -> u64 {
        self.events.iter().sum()
    }

    /// Number of records of a severity.
    pub fn records_with(&self, severity: LogSeverity) -> u64 {
        self.severities[severity as usize]
    }

    /// Number of records and foreign lines that were skipped.
    pub fn rejected(&self) -> u64 {
        self.problems.iter().filter(|p| p.reason.drops_record()).map(|p| p.count).sum()
    }

    /// Number of occurrences of a problem.
    pub fn problem_count(&self, reason: ProblemReason) -> u64 {
        self.problems.iter().find(|problem| problem.reason == reason).map_or(0, |p| p.count)
    }

    /// Counts an event and what is known of it before its outcome. `is_ascii` means that its texts
    /// are known to be ASCII.
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

impl LogFacts {
    /// Number of statements and sessions ended by any timeout.
    pub fn timeouts(&self) -> u64 {
        self.statement_timeouts + self.lock_timeouts + self.session_timeouts
    }

    /// Amount of evidence that the server logged only a sample of the statements. Evidence that may
    /// have another cause counts only if there is much of it.
    pub fn sampling_evidence(&self) -> u64 {
        let logs_only_ends = self.statement_form == 0;
        let many = |count: u64, share: u64| {
            if logs_only_ends && count >= EVIDENCE_MIN && count * share >= self.duration_form {
                count
            } else {
                0
            }
        };
        self.executions_without_bind
            + many(self.broken_blocks, 50)
            + many(self.missing_transactions, 1)
    }

    /// Number of executions in a log that shows statements only at their end, and none under a
    /// millisecond.
    pub fn only_slow_executions(&self) -> u64 {
        let is_fast = |us: u64| us < 1000;
        let is_slow = self.statement_form == 0 && !self.shortest_logged_us.is_none_or(is_fast);
        if is_slow { self.duration_form } else { 0 }
    }
}

/// Less evidence of a sample than this may be a mistake of a client.
const EVIDENCE_MIN: u64 = 3;

/// A line of an input file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LogPosition<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: u64,
}

/// Samples stored of each problem.
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

#[test]
fn excerpts_are_short_and_printable() {}

#[test]
fn guessed_prefix_is_displayed_with_its_evidence() {
    let prefix = |lines, rival: Option<&str>| LogLinePrefix {
        text: "%m ".to_owned(),
        origin: PrefixOrigin::Guessed,
        confidence: Some(Confidence { lines, lines_total: 9, rival: rival.map(str::to_owned) }),
    };
    let text = prefix(9, None).to_string();
    assert_eq!(text, "log_line_prefix '%m ' (guessed: matches all 9 lines examined)");
    assert!(prefix(8, None).to_string().ends_with("matches 8 of 9 lines examined)"));
    assert_eq!(prefix(9, None).ambiguity_warning(), None);
    assert!(
        prefix(9, Some("%t ")).ambiguity_warning().is_some_and(|warning| warning.contains("'%t '"))
    );
}
