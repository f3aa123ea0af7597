//! What an import read, what it could not read, and what it learnt of the log.

use std::fmt;

use howdah_traffic::{ActionRef, CopyDirection, EventRef, Kind, OutcomeRef};
use serde::{Serialize, Serializer};

use crate::{input::Inputs, language::Language, options::Format, record::Severity};

/// Totals of an import, complete after [`finish`](crate::Importer::finish).
#[derive(Clone, Debug, Default, Serialize)]
pub struct Summary {
    /// Bytes fed.
    pub bytes: u64,
    /// Files begun.
    pub files: u64,
    /// Which files were read and what they were; only of [`read_files`](crate::read_files).
    pub inputs: Inputs,
    /// Server messages understood as such.
    pub records: u64,
    /// The format that was given or recognised; of the latest file where they differ.
    pub format: Option<Format>,
    /// The line prefix of a stderr log.
    pub prefix: Option<Prefix>,
    /// What could not be read or had to be assumed, most severe first, then as met.
    pub problems: Vec<Problem>,
    /// What the log shows about the settings it was written with.
    pub facts: Facts,
    #[serde(serialize_with = "by_severity")]
    severities: [u64; Severity::ALL.len()],
    #[serde(serialize_with = "by_kind")]
    events: [u64; Kind::ALL.len()],
}

fn by_severity<S: Serializer>(
    counts: &[u64; Severity::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Severity::ALL.iter().map(|severity| severity.as_str()).zip(counts))
}

fn by_kind<S: Serializer>(
    counts: &[u64; Kind::ALL.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(Kind::ALL.iter().map(|kind| kind.as_str()).zip(counts))
}

/// A line prefix and how it was come by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Prefix {
    /// In PostgreSQL's own syntax.
    pub text: String,
    /// Whether a person gave it.
    pub origin: Origin,
    /// How sure it is, if it was guessed.
    pub confidence: Option<Confidence>,
}

/// As a phrase: `log_line_prefix '%m [%p] ' (guessed: fits all 40 lines looked at)`.
impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log_line_prefix '{}' ", self.text)?;
        match (self.origin, &self.confidence) {
            (Origin::Given, _) => f.write_str("(given)"),
            (Origin::Guessed, None) => f.write_str("(guessed)"),
            (Origin::Guessed, Some(Confidence { lines, lines_of, .. })) if lines == lines_of => {
                write!(f, "(guessed: fits all {lines} lines looked at)")
            }
            (Origin::Guessed, Some(Confidence { lines, lines_of, .. })) => {
                write!(f, "(guessed: fits {lines} of {lines_of} lines looked at)")
            }
        }
    }
}

impl Prefix {
    /// What a person should do about a guess that may be wrong.
    pub fn doubt(&self) -> Option<String> {
        let rival = self.confidence.as_ref()?.rival.as_ref()?;
        Some(format!(
            "the prefix may be '{rival}' as well, with other users, databases or sessions: \
             SHOW log_line_prefix tells, --prefix says it"
        ))
    }
}

/// How sure the guess of a prefix is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confidence {
    /// Lines of the sample that it fits.
    pub lines: u64,
    /// Lines of the sample that look like records.
    pub lines_of: u64,
    /// A prefix that fits as many lines and finds other users, databases or sessions in them. Then
    /// only a person knows which one is right.
    pub rival: Option<String>,
}

/// Where a fact comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// A person gave it.
    Given,
    /// It was found from the data.
    Guessed,
}

/// What the log shows about the settings it was written with. Counts are of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Facts {
    /// Statements logged at their start (`log_statement`).
    pub statement_form: u64,
    /// Statements logged at their end, with text (`log_min_duration_statement`).
    pub duration_form: u64,
    /// Durations without a text (`log_duration`, or a text that was logged before).
    pub bare_durations: u64,
    /// Parse and bind steps logged with text.
    pub parse_and_bind: u64,
    /// Failed statements known only from the error's own record.
    pub error_form: u64,
    /// Errors of client sessions that could be tied to no statement: the log does not hold its text,
    /// because of `log_min_error_statement`.
    pub errors_without_statement: u64,
    /// Messages that carry their SQLSTATE and source location (`log_error_verbosity=verbose`).
    pub verbose: u64,
    /// Length at which parameter values are cut (`log_parameter_max_length`), in bytes, if any was.
    pub parameter_limit_bytes: Option<usize>,
    /// Values that were cut.
    pub truncated_values: u64,
    /// Sessions met.
    pub sessions: u64,
    /// Of these, sessions that were open before their first record in the log.
    pub joined_midway: u64,
    /// Of these, sessions that were inside a transaction block at their first record.
    pub joined_in_transaction: u64,
    /// Of these, sessions of which user or database was not known when they began.
    pub sessions_without_names: u64,
    /// Lines that the server numbered but the log does not hold.
    pub lost_lines: u64,
    /// Records of a session whose number is not above that of the record before: parts of a log that was
    /// given twice. Counted once for each time that the numbers go back.
    pub repeated_lines: u64,
    /// The shortest duration that was logged with its text, in microseconds. With
    /// `log_min_duration_statement` above 0 it is not below that.
    pub shortest_logged_us: Option<u64>,
    /// Executions logged at their end without the Bind that came before, although durations under a
    /// millisecond are logged: signs of sampling.
    pub executions_without_bind: u64,
    /// Transaction blocks of which the log holds the beginning or the end only, although durations under
    /// a millisecond are logged. Clients may also begin twice by mistake.
    pub broken_blocks: u64,
    /// Transactions of which the log holds nothing, by the gaps in their numbers, although durations under
    /// a millisecond are logged. The server uses up some of the numbers by itself.
    pub missing_transactions: u64,
    /// Executions whose duration and error are both unknown.
    pub executions_without_outcome: u64,
    /// Executions and binds whose parameters the log does not hold.
    pub executions_without_values: u64,
    /// Executions and binds with parameters that were cut.
    pub executions_with_cut_values: u64,
    /// Executions with parameters.
    pub executions_with_values: u64,
    /// Executions of the extended protocol whose pipeline cannot be known: the log does not name their
    /// transaction, or several share one and the log does not show whether that was a transaction block.
    pub executions_of_unknown_pipeline: u64,
    /// Of these, executions whose transaction the log does not name.
    pub executions_of_unknown_transaction: u64,
    /// A session logged at its start what only `log_statement = all` logs there, such as a SELECT.
    pub every_statement_logged: bool,
    /// Executions whose text or parameters are not UTF-8.
    pub executions_not_utf8: u64,
    /// `COPY … FROM STDIN`.
    pub copies_in: u64,
    /// Statements that somebody cancelled.
    pub cancels: u64,
    /// Statements that `statement_timeout` ended.
    pub statement_timeouts: u64,
    /// Statements that `lock_timeout` ended.
    pub lock_timeouts: u64,
    /// Sessions that `idle_session_timeout`, `idle_in_transaction_session_timeout` or
    /// `transaction_timeout` ended.
    pub session_timeouts: u64,
    /// Statements or sessions that a standby ended because recovery needed what they used.
    pub recovery_conflicts: u64,
    /// Messages of auto_explain.
    pub plans: u64,
    /// Messages of pgaudit.
    pub audits: u64,
    /// Statements, durations and the like in another language than English.
    pub translated_messages: u64,
    /// The language of the first of them.
    pub language: Option<Language>,
    /// The line prefix tells neither session nor process, so sessions of one user are one.
    pub sessions_merged: bool,
}

/// Something that happened to several records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// What.
    pub reason: Reason,
    /// How often.
    pub count: u64,
    /// The first few.
    pub samples: Vec<Sample>,
}

/// One place in the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    /// Name of the file, as given.
    pub file: String,
    /// Line number, from 1.
    pub line: u64,
    /// The beginning of what stands there.
    pub excerpt: String,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident, $loses:literal, $text:literal;)*) => {
        /// Why a record was rejected, or what was wrong with one that was kept.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(rename_all = "snake_case")]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $variant,)* }

        impl Reason {
            /// Every reason, in the order of declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            /// Whether what it happened to was left out.
            pub const fn loses_record(self) -> bool {
                match self { $(Self::$variant => $loses,)* }
            }

            /// A phrase for people, to follow a count.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)* }
            }
        }
    };
}

reasons! {
    /// Output of something else between the records.
    NotARecord, true, "lines that are no log record";
    /// A `DETAIL`, `STATEMENT` or the like without its message.
    Orphan, true, "detail lines without their message";
    /// The input ended, or another record began, inside a record.
    CutShort, true, "records cut short";
    /// Longer than [`Options::max_record_bytes`](crate::Options::max_record_bytes).
    TooLong, true, "records over the size limit";
    /// The time is not one.
    BadTime, true, "records without a readable time";
    /// A csvlog row of fewer than 22 columns or of 25, which no server writes, or with stray quotes.
    BadRow, true, "malformed csvlog rows: stray quotes, or other columns than a server writes (22 to 24, 26)";
    /// A jsonlog line that is not an object with the fields of a record.
    BadObject, true, "malformed jsonlog lines";
    /// A severity in another language, or none.
    BadSeverity, true, "records of unknown severity";
    /// `execute`, `parse` or `bind` without the name that must follow.
    BadStep, true, "execute, parse or bind messages without a name";
    /// The parameter list is broken; the event is kept without values.
    BadParameters, false, "parameter lists that could not be read";
    /// An archive is cut short or damaged, or a replay file of pgreplay is.
    Damaged, true, "files that are cut short or damaged; what comes before that was read";
    /// A line or object without the wrapping that those around it have.
    BadWrapping, true, "lines or objects without the wrapping of the others";
    /// Syslog lost a part of a message, so the message was left out.
    LostParts, true, "messages of which syslog lost a part";
    /// Entries run from new to old. They were turned round.
    Backwards, false, "files whose entries run from new to old, read from their end";
    /// The same, and there are too many of them.
    BackwardsTooLong, false, "files whose entries run from new to old, too large to be turned round: export them oldest first (gcloud logging read --order=asc)";
    /// Messages of several hosts are mixed in one log.
    SeveralServers, false, "messages of another host than the first: give the log of one server";
    /// A line of a log that several programs share.
    OtherProgram, false, "lines of other programs, left out";
    /// The zone is not known and was taken as UTC.
    UnknownZone, false, "times in an unknown zone, taken as UTC";
    /// The zone's abbreviation has several meanings; PostgreSQL's default was taken.
    AmbiguousZone, false, "times with an ambiguous zone abbreviation";
}

impl Summary {
    /// Number of events of a kind that were made.
    pub fn events(&self, kind: Kind) -> u64 {
        Kind::ALL.iter().position(|k| *k == kind).map_or(0, |at| self.events[at])
    }

    /// Number of all events that were made.
    pub fn events_total(&self) -> u64 {
        self.events.iter().sum()
    }

    /// Number of records of a severity.
    pub fn records_of(&self, severity: Severity) -> u64 {
        self.severities[severity as usize]
    }

    /// Number of records, or of lines that are none, that were left out.
    pub fn rejected(&self) -> u64 {
        self.problems.iter().filter(|p| p.reason.loses_record()).map(|p| p.count).sum()
    }

    /// How often a problem occurred.
    pub fn count_of(&self, reason: Reason) -> u64 {
        self.problems.iter().find(|problem| problem.reason == reason).map_or(0, |p| p.count)
    }

    /// Counts an event, and what can be told of it before its outcome is known. With `is_ascii` its
    /// texts are known to be that.
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

    /// Counts what became of an event.
    pub(crate) fn count_outcome(&mut self, kind: Kind, outcome: &OutcomeRef<'_>) {
        let is_unknown = outcome.duration_us.is_none() && !outcome.failed();
        self.facts.executions_without_outcome += u64::from(is_unknown && kind.is_execution());
    }

    pub(crate) fn count_record(&mut self, severity: Severity) {
        self.records += 1;
        self.severities[severity as usize] += 1;
    }

    /// Counts a problem, and keeps a sample of the first few.
    pub(crate) fn note(&mut self, reason: Reason, place: Place<'_>, excerpt: &[u8]) {
        let at = match self.problems.binary_search_by_key(&reason, |problem| problem.reason) {
            Ok(at) => at,
            Err(at) => {
                self.problems.insert(at, Problem { reason, count: 0, samples: Vec::new() });
                at
            }
        };
        let problem = &mut self.problems[at];
        problem.count += 1;
        if problem.samples.len() < SAMPLES_MAX {
            let sample =
                Sample { file: place.file.to_owned(), line: place.line, excerpt: shorten(excerpt) };
            problem.samples.push(sample);
        }
    }

    /// Counts a problem of the same reason again, without a place.
    pub(crate) fn note_more(&mut self, reason: Reason, count: u64) {
        if let Some(problem) = self.problems.iter_mut().find(|problem| problem.reason == reason) {
            problem.count += count;
        }
    }
}

/// Whether the text of an action is UTF-8, and the values of a Bind or an Execute.
fn is_utf8(action: &ActionRef<'_>) -> bool {
    let is_valid = |text: &[u8]| std::str::from_utf8(text).is_ok();
    let values = match action {
        ActionRef::Bind(bound) | ActionRef::Execute(bound) => bound.parameters,
        _ => None,
    };
    action.sql().is_none_or(|sql| is_valid(sql.as_bytes()))
        && values.is_none_or(|values| values.iter().all(|value| value.text().is_none_or(is_valid)))
}

impl Facts {
    /// Statements and sessions that any timeout ended.
    pub fn timeouts(&self) -> u64 {
        self.statement_timeouts + self.lock_timeouts + self.session_timeouts
    }

    /// Signs that the server logged a sample of what clients did. What may have another cause counts
    /// only if there is much of it.
    pub fn signs_of_sample(&self) -> u64 {
        let is_told_at_end = self.statement_form == 0;
        let many = |count: u64, share: u64| {
            if is_told_at_end && count >= SIGNS_MIN && count * share >= self.duration_form {
                count
            } else {
                0
            }
        };
        self.executions_without_bind
            + many(self.broken_blocks, 50)
            + many(self.missing_transactions, 1)
    }

    /// Executions in a log that shows statements only at their end, and none under a millisecond.
    pub fn only_slow_executions(&self) -> u64 {
        let is_fast = |us: u64| us < 1000;
        let is_slow = self.statement_form == 0 && !self.shortest_logged_us.is_none_or(is_fast);
        if is_slow { self.duration_form } else { 0 }
    }
}

/// Fewer signs of a sample than this may be a mistake of a client.
const SIGNS_MIN: u64 = 3;

/// Where something stands in the input.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place<'a> {
    pub(crate) file: &'a str,
    pub(crate) line: u64,
}

/// Samples kept of each problem.
const SAMPLES_MAX: usize = 3;

/// The first line of some bytes, for a person.
pub(crate) fn shorten(bytes: &[u8]) -> String {
    let line = &bytes[..memchr::memchr2(b'\n', b'\r', bytes).unwrap_or(bytes.len())];
    let text = String::from_utf8_lossy(&line[..line.len().min(4 * EXCERPT_CHARS)]);
    let mut excerpt: String = text
        .chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .take(EXCERPT_CHARS)
        .collect();
    if excerpt.len() < line.len() && text.chars().nth(EXCERPT_CHARS).is_some() {
        excerpt.push('…');
    }
    excerpt
}

/// Characters of an excerpt.
const EXCERPT_CHARS: usize = 120;

#[test]
fn problems_are_counted_and_sampled() {
    let mut summary = Summary::default();
    for line in 1..=5 {
        summary.note(Reason::NotARecord, Place { file: "a.log", line }, b"junk\nmore");
    }
    summary.note(Reason::UnknownZone, Place { file: "a.log", line: 9 }, b"x");
    assert_eq!(summary.problems[0].count, 5);
    assert_eq!(summary.problems[0].samples.len(), SAMPLES_MAX);
    assert_eq!(summary.problems[0].samples[1].line, 2);
    assert_eq!(summary.problems[0].samples[1].excerpt, "junk");
    assert_eq!(summary.rejected(), 5);
}

#[test]
fn excerpts_are_short_and_printable() {
    assert_eq!(shorten(b"a\x00b\xff"), "a\u{fffd}b\u{fffd}");
    assert_eq!(shorten(&[b'x'; 1000]).chars().count(), EXCERPT_CHARS + 1);
}

#[test]
fn a_prefix_is_told_with_how_sure_it_is() {
    let prefix = |lines, rival: Option<&str>| Prefix {
        text: "%m ".to_owned(),
        origin: Origin::Guessed,
        confidence: Some(Confidence { lines, lines_of: 9, rival: rival.map(str::to_owned) }),
    };
    let told = prefix(9, None).to_string();
    assert_eq!(told, "log_line_prefix '%m ' (guessed: fits all 9 lines looked at)");
    assert!(prefix(8, None).to_string().ends_with("fits 8 of 9 lines looked at)"));
    assert_eq!(prefix(9, None).doubt(), None);
    assert!(prefix(9, Some("%t ")).doubt().is_some_and(|doubt| doubt.contains("'%t '")));
}
