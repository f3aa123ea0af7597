//! Infers the server's log settings from a log.

use std::{convert::Infallible, ops::ControlFlow, path::PathBuf};

use howdah_sql::SqlCommand;
use howdah_traffic::{Action, Event, Kind, Parameter, Source, Text};

use super::{
    Finding, LoggingDiagnosis, Remedy,
    log_setting::{LogSetting, missing_escapes},
};
use crate::{
    error::ImportError,
    options::ImportOptions,
    reading::{ReadFilesError, ReadProgress, read_files},
    server_log_format::ServerLogFormat,
    summary::{GapKind, ImportSummary, LogFacts, ProblemReason},
};

/// Counts of events that the import summary does not have.
#[derive(Default)]
struct LogEventCounts {
    executions: u64,
    /// Bytes of SQL and values.
    text_bytes: u64,
    connects: u64,
    disconnects: u64,
    query_ids: u64,
    /// Executions that were logged at their start and whose duration is known.
    durations: u64,
    /// Executions logged at their start, of commands that [`is_write`] does not include.
    others_than_writes: u64,
    /// Failed binds and executions with placeholders whose values are unknown.
    failed_without_values: u64,
}

/// Reads logs, and infers the information that they lack and the settings that would add it.
/// `progress` can stop reading.
///
/// # Errors
///
/// The logs cannot be read or parsed, or `progress` stopped reading. A log that cannot be parsed
/// because it is translated or seems to have no times is not an error: the diagnosis says so.
pub fn diagnose_logs(
    logs: &[PathBuf],
    options: ImportOptions,
    progress: impl FnMut(ReadProgress) -> ControlFlow<()>,
) -> Result<LoggingDiagnosis, ReadFilesError<Infallible>> {
    let mut counts = LogEventCounts::default();
    let read = read_files(logs, options, progress, |event| {
        counts.count(&event);
        Ok(())
    });
    let names: Vec<_> = logs.iter().map(|path| path.display().to_string()).collect();
    let summary = match read {
        Ok(summary) => summary,
        Err(error) => return unreadable(&names, &error).ok_or(error),
    };
    let format = summary.format.map_or("unknown", ServerLogFormat::as_str);
    Ok(LoggingDiagnosis {
        subject: format!(
            "{}: {format}, {} bytes, {} records, {} executions",
            names.join(", "),
            summary.bytes,
            summary.records,
            counts.executions
        ),
        findings: findings(&summary, &counts),
        notes: notes(&summary, &counts),
        remedy: Remedy::File,
        major: None,
    })
}

/// Returns the diagnosis of a log that cannot be imported because it is translated or seems to have
/// no times; `None` for other errors.
fn unreadable<E>(names: &[String], error: &ReadFilesError<E>) -> Option<LoggingDiagnosis> {
    let ReadFilesError::Import(error) = error else { return None };
    let (subject, finding) = match error {
        ImportError::Translated { line, excerpt, language, .. } => {
            let language =
                language.map_or("a language other than English".to_owned(), |it| it.to_string());
            let found = format!("line {line} is in {language}: {excerpt:?}");
            ("a translated log", Finding::new(LogSetting::Messages, found))
        }
        ImportError::UnknownFormat { line, excerpt, .. }
        | ImportError::WithoutTimes { line, excerpt, .. }
            if has_label(excerpt) =>
        {
            let found = format!("no timestamp found in lines such as line {line}: {excerpt:?}");
            ("a log without timestamps", Finding::new(LogSetting::LinePrefix, found))
        }
        _ => return None,
    };
    Some(LoggingDiagnosis {
        subject: format!("{}: {subject}", names.join(", ")),
        findings: vec![finding],
        notes: vec![
            "nothing else can be determined: check again with a log written with this setting"
                .to_owned(),
        ],
        remedy: Remedy::File,
        major: None,
    })
}

/// Whether a line contains one of the server's severity labels.
fn has_label(line: &str) -> bool {
    ["LOG:  ", "ERROR:  ", "FATAL:  ", "WARNING:  "].iter().any(|label| line.contains(label))
}

impl LogEventCounts {
    fn count(&mut self, event: &Event) {
        let kind = event.action.kind();
        let by_session = event.source == Source::Session;
        self.executions += u64::from(kind.is_execution());
        self.connects += u64::from(by_session && kind == Kind::Connect);
        self.disconnects += u64::from(by_session && kind == Kind::Disconnect);
        self.query_ids += u64::from(event.query_id.is_some_and(|id| id != 0));
        let timed = kind.is_execution() && event.source == Source::Statement;
        self.durations += u64::from(timed && event.outcome.duration_us.is_some());
        let sql = event.action.sql().map_or(&b""[..], Text::as_bytes);
        self.text_bytes += sql.len() as u64;
        let by_start = kind.is_execution() && event.source == Source::Statement;
        self.others_than_writes += u64::from(by_start && !is_write(SqlCommand::from_sql(sql)));
        let bound = match &event.action {
            Action::Bind(bound) | Action::Execute(bound) => Some(bound),
            _ => None,
        };
        let lacks_values = bound.is_some_and(|bound| bound.parameters.is_none());
        let failed = event.source == Source::Error && lacks_values;
        self.failed_without_values += u64::from(failed);
        if let Action::Execute(bound) | Action::Bind(bound) = &event.action {
            for parameter in bound.parameters.iter().flatten() {
                self.text_bytes += match parameter {
                    Parameter::Null => 4,
                    Parameter::Value(text) | Parameter::Truncated(text) => text.len() as u64,
                };
            }
        }
    }
}

/// Whether `log_statement = mod` or `ddl` may log a statement. Commands missing from the table of
/// commands, such as GRANT and COMMENT, count as logged.
fn is_write(command: SqlCommand) -> bool {
    use SqlCommand::{
        Alter, Call, Copy, Create, Delete, Do, Drop, Execute, Explain, Insert, Merge, Other,
        Prepare, Truncate, Update, With,
    };
    matches!(
        command,
        Alter
            | Call
            | Copy
            | Create
            | Delete
            | Do
            | Drop
            | Execute
            | Explain
            | Insert
            | Merge
            | Other
            | Prepare
            | Truncate
            | Update
            | With
    )
}

fn findings(summary: &ImportSummary, counts: &LogEventCounts) -> Vec<Finding> {
    let facts = &summary.facts;
    let gap_count = |lack| {
        let completeness = summary.completeness();
        completeness.gaps.iter().find(|gap| gap.kind == lack).map(|gap| gap.count)
    };
    let record = record_bytes(summary, counts);
    let each =
        |count: u64, bytes: i64| i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(bytes);
    let mut findings = Vec::new();
    let mut add = |finding: Finding| findings.push(finding);

    if let Some(found) = log_statement(facts, counts, gap_count(GapKind::OnlySlow)) {
        add(Finding::new(LogSetting::LogStatement, found));
    }
    if let Some(count) = gap_count(GapKind::Sampled) {
        let found = counted(count, "sign of sampling", "signs of sampling");
        add(Finding::new(LogSetting::MinDurationSample, found.clone()));
        add(Finding::new(LogSetting::TransactionSampleRate, found));
    }
    if let Some(prefix) = &summary.prefix
        && let Some(lack) = missing_escapes(&prefix.text)
    {
        add(Finding::new(LogSetting::LinePrefix, lack));
    }
    if facts.truncated_values > 0 {
        let limit = facts.parameter_limit_bytes.map_or(String::new(), |limit| format!("{limit}: "));
        let cut = counted(facts.truncated_values, "value is truncated", "values are truncated");
        let found = format!("{limit}{cut}");
        add(Finding::new(LogSetting::ParameterMaxLength, found));
    }
    let unknown = gap_count(GapKind::ValuesUnknown).unwrap_or(0);
    // Missing values of failed statements depend on another setting.
    if unknown > counts.failed_without_values {
        let count = unknown - counts.failed_without_values;
        let found = counted(count, "execution without values", "executions without values");
        // In the other formats, `log_error_verbosity = terse` keeps the values.
        if summary.format == Some(ServerLogFormat::Stderr) {
            add(Finding::new(LogSetting::ErrorVerbosity, found.clone()));
        }
        if facts.truncated_values == 0 {
            add(Finding::new(LogSetting::ParameterMaxLength, found));
        }
    } else if facts.verbose > 0 {
        let saved = each(facts.verbose, -(record + VERBOSE_BYTES));
        add(Finding::new(LogSetting::ErrorVerbosity, "verbose").adding(saved));
    }
    if counts.failed_without_values > 0 {
        let found = counted(
            counts.failed_without_values,
            "failed statement without values",
            "failed statements without values",
        );
        add(Finding::new(LogSetting::ParameterMaxLengthOnError, found));
    }
    if facts.errors_without_statement > 0 {
        let count = facts.errors_without_statement;
        let adds = each(count, record + average_sql(counts));
        let found = counted(count, "error without its statement", "errors without their statement");
        add(Finding::new(LogSetting::MinErrorStatement, found).adding(adds));
    }
    let foreign = facts.translated_messages + summary.problem_count(ProblemReason::BadSeverity);
    if foreign > 0 {
        let found = counted(foreign, "message in another language", "messages in another language");
        add(Finding::new(LogSetting::Messages, found));
    }
    if facts.lost_lines > 0 {
        let found = counted(facts.lost_lines, "line lost", "lines lost");
        add(Finding::new(LogSetting::Collector, found));
    }
    if facts.statement_form > 0 && counts.durations == 0 {
        let adds = each(counts.executions, record + DURATION_BYTES);
        add(Finding::new(LogSetting::Duration, "no durations").adding(adds));
    }
    if facts.parse_and_bind > 0 {
        let saved = each(facts.parse_and_bind, -(record + average_sql(counts)));
        let found = counted(
            facts.parse_and_bind,
            "parse or bind step with its text",
            "parse and bind steps with their text",
        );
        add(Finding::new(LogSetting::MinDurationStatement, found).adding(saved));
    }
    sessions(facts, counts, record, &mut add);
    let count = facts.executions_of_unknown_transaction;
    if count > 0 {
        let found = counted(
            count,
            "extended-protocol execution with unknown transaction",
            "extended-protocol executions with unknown transaction",
        );
        add(Finding::new(LogSetting::Destination, found));
    }
    let zones = summary.problem_count(ProblemReason::UnknownZone)
        + summary.problem_count(ProblemReason::AmbiguousZone);
    if zones > 0 {
        let found = counted(
            zones,
            "timestamp in an ambiguous or unknown time zone",
            "timestamps in an ambiguous or unknown time zone",
        );
        add(Finding::new(LogSetting::Timezone, found));
    }
    findings.sort_by_key(|finding| (finding.importance(), finding.setting));
    findings
}

/// Describes what is wrong with the way in which statements are logged; `None` if nothing seems to
/// be.
fn log_statement(
    facts: &LogFacts,
    counts: &LogEventCounts,
    only_slow: Option<u64>,
) -> Option<String> {
    let (started, ended) = (facts.statement_form, facts.duration_form);
    Some(match (started, ended, only_slow) {
        (0, 0, _) if facts.bare_durations > 0 => {
            let durations = counted(facts.bare_durations, "duration", "durations");
            format!("no statements in the log, only {durations}")
        }
        (0, 0, _) => "no statements in the log".to_owned(),
        (0, _, Some(slow)) => format!("only slow statements in the log: {slow}"),
        (0, all, None) => {
            counted(all, "statement, logged at its end", "statements, logged at their end")
        }
        (_, 1.., _) => {
            format!("{ended} of {} statements logged only at their end", started + ended)
        }
        // Real traffic has reads and transaction control, not only writes.
        (MIN_STATEMENTS.., 0, _) if counts.others_than_writes == 0 => {
            format!("all {started} statements are writes: reads are not in the log")
        }
        _ => return None,
    })
}

/// Returns a count, followed by the phrase for one or for several.
fn counted(count: u64, one: &str, several: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { several })
}

/// Minimum number of statements among which at least one that is not a write is expected.
const MIN_STATEMENTS: u64 = 5;

fn sessions(facts: &LogFacts, counts: &LogEventCounts, record: i64, add: &mut impl FnMut(Finding)) {
    let sessions = i64::try_from(facts.sessions).unwrap_or(i64::MAX);
    if counts.connects == 0 {
        let adds = sessions.saturating_mul(2 * record + CONNECT_BYTES);
        add(Finding::new(LogSetting::Connections, "no session start in the log").adding(adds));
    }
    if counts.disconnects == 0 {
        let adds = sessions.saturating_mul(record + DISCONNECT_BYTES);
        add(Finding::new(LogSetting::Disconnections, "no session end in the log").adding(adds));
    }
}

fn notes(summary: &ImportSummary, counts: &LogEventCounts) -> Vec<String> {
    let mut notes = Vec::new();
    if summary.format == Some(ServerLogFormat::Stderr) {
        notes.push(
            "csvlog, and jsonlog since PostgreSQL 15, contain all fields regardless of the line prefix"
                .to_owned(),
        );
    }
    if counts.query_ids == 0 && summary.format != Some(ServerLogFormat::Stderr) {
        notes.push("compute_query_id = on adds the query_id (PostgreSQL 14 and later)".to_owned());
    }
    if summary.rejected() > 0 {
        let rejected = counted(
            summary.rejected(),
            "record or line could not be parsed; `howdah capture import --discard` shows it",
            "records or lines could not be parsed; `howdah capture import --discard` shows them",
        );
        notes.push(rejected);
    }
    notes
}

/// Returns the average size of a record in bytes without its SQL and values, mostly the prefix or
/// the other columns.
fn record_bytes(summary: &ImportSummary, counts: &LogEventCounts) -> i64 {
    let rest = summary.bytes.saturating_sub(counts.text_bytes);
    let each = rest / summary.records.max(1);
    i64::try_from(each).unwrap_or(i64::MAX).clamp(20, 2000)
}

fn average_sql(counts: &LogEventCounts) -> i64 {
    i64::try_from(counts.text_bytes / counts.executions.max(1)).unwrap_or(i64::MAX)
}

// Typical message lengths in bytes, without the prefix.
/// `duration: 0.412 ms`
const DURATION_BYTES: i64 = 20;
/// `connection received: …`, `connection authorized: …`
const CONNECT_BYTES: i64 = 110;
/// `disconnection: session time: …`
const DISCONNECT_BYTES: i64 = 90;
/// `LOCATION:  exec_simple_query, postgres.c:1078` and the SQLSTATE
const VERBOSE_BYTES: i64 = 50;
