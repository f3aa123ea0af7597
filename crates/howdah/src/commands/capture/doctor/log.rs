//! What a log shows of the settings that it was written with.

use std::{ops::ControlFlow, path::PathBuf, sync::atomic::Ordering};

use howdah_logs::{
    Facts, Format, GapKind, ImportError, Options, ReadFilesError, Reason, Summary, read_files,
};
use howdah_sql::Command;
use howdah_traffic::{Action, Event, Kind, Parameter, Source, Text};

use super::{
    Diagnosis, Remedy,
    advice::{Finding, Setting, lacks_of_prefix},
};
use crate::{context::Context, errors};

/// What the events tell that the summary does not.
#[derive(Default)]
struct Seen {
    executions: u64,
    /// Bytes of SQL and values.
    text_bytes: u64,
    connects: u64,
    disconnects: u64,
    query_ids: u64,
    /// Durations of statements that had been logged at their start.
    durations: u64,
    /// Statements logged at their start that do not change anything, or begin or end a transaction.
    others_than_writes: u64,
    /// Failed executions with placeholders, of which the values are not known.
    failed_without_values: u64,
}

/// Reads logs and says what they lack.
pub(super) fn examine(
    logs: &[PathBuf],
    options: Options,
    ctx: &Context,
) -> anyhow::Result<Diagnosis> {
    let mut seen = Seen::default();
    let interrupted = ctx.interrupted();
    let read = read_files(
        logs,
        options,
        |_| match interrupted.load(Ordering::Relaxed) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        },
        |event| {
            seen.count(&event);
            Ok::<_, std::convert::Infallible>(())
        },
    );
    let names: Vec<_> = logs.iter().map(|path| path.display().to_string()).collect();
    let summary = match read {
        Ok(summary) => summary,
        Err(ReadFilesError::Options(error)) => return Err(errors::wrong_usage(error)),
        Err(error) => {
            return unreadable(&names, &error)
                .ok_or_else(|| anyhow::Error::from(error).context("cannot read the log"));
        }
    };
    let format = summary.format.map_or("unknown", Format::as_str);
    Ok(Diagnosis {
        subject: format!(
            "{}: {format}, {} bytes, {} records, {} executions",
            names.join(", "),
            summary.bytes,
            summary.records,
            seen.executions
        ),
        findings: findings(&summary, &seen),
        notes: notes(&summary, &seen),
        remedy: Remedy::File,
    })
}

/// The diagnosis of a log that cannot be imported for the way it was written; `None` if it is no log.
fn unreadable<E>(names: &[String], error: &ReadFilesError<E>) -> Option<Diagnosis> {
    let ReadFilesError::Import(error) = error else { return None };
    let (subject, finding) = match error {
        ImportError::Translated { line, excerpt, language, .. } => {
            let language =
                language.map_or("another language than English".to_owned(), |it| it.to_string());
            let found = format!("line {line} is in {language}: {excerpt:?}");
            ("a translated log", Finding::new(Setting::Messages, found))
        }
        ImportError::UnknownFormat { line, excerpt, .. } if has_label(excerpt) => {
            let found = format!("no time can be found in lines such as line {line}: {excerpt:?}");
            ("a log without times", Finding::new(Setting::LinePrefix, found))
        }
        _ => return None,
    };
    Some(Diagnosis {
        subject: format!("{}: {subject}", names.join(", ")),
        findings: vec![finding],
        notes: vec![
            "nothing else can be told of it: look again at a log with this setting".to_owned(),
        ],
        remedy: Remedy::File,
    })
}

/// Whether a line has one of the server's labels in it.
fn has_label(line: &str) -> bool {
    ["LOG:  ", "ERROR:  ", "FATAL:  ", "WARNING:  "].iter().any(|label| line.contains(label))
}

impl Seen {
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
        self.others_than_writes += u64::from(by_start && !is_write(Command::of(sql)));
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

/// Whether a statement is of those that `log_statement = mod` or `ddl` lets through. Words that the
/// table of commands does not hold (GRANT, COMMENT) are among these.
fn is_write(command: Command) -> bool {
    use Command::{
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

fn findings(summary: &Summary, seen: &Seen) -> Vec<Finding> {
    let facts = &summary.facts;
    let lacks = |lack| {
        let completeness = summary.completeness();
        completeness.gaps.iter().find(|gap| gap.lack == lack).map(|gap| gap.count)
    };
    let record = record_bytes(summary, seen);
    let each =
        |count: u64, bytes: i64| i64::try_from(count).unwrap_or(i64::MAX).saturating_mul(bytes);
    let mut findings = Vec::new();
    let mut add = |finding: Finding| findings.push(finding);

    if let Some(found) = log_statement(facts, seen, lacks(GapKind::OnlySlow)) {
        add(Finding::new(Setting::LogStatement, found));
    }
    if let Some(count) = lacks(GapKind::Sampled) {
        let found = format!("{count} signs of a sample");
        add(Finding::new(Setting::MinDurationSample, found.clone()));
        add(Finding::new(Setting::TransactionSampleRate, found));
    }
    if let Some(prefix) = &summary.prefix
        && let Some(lack) = lacks_of_prefix(&prefix.text)
    {
        add(Finding::new(Setting::LinePrefix, lack));
    }
    if facts.truncated_values > 0 {
        let limit = facts.parameter_limit_bytes.map_or(String::new(), |limit| format!("{limit}: "));
        let found = format!("{limit}{} values are cut", facts.truncated_values);
        add(Finding::new(Setting::ParameterMaxLength, found));
    }
    let unknown = lacks(GapKind::ValuesUnknown).unwrap_or(0);
    // Of failed statements they are a matter of another setting.
    if unknown > seen.failed_without_values {
        let found = format!("{} executions without values", unknown - seen.failed_without_values);
        // In the other formats, terse leaves the values where they are.
        if summary.format == Some(Format::Stderr) {
            add(Finding::new(Setting::ErrorVerbosity, found.clone()));
        }
        if facts.truncated_values == 0 {
            add(Finding::new(Setting::ParameterMaxLength, found));
        }
    } else if facts.verbose > 0 {
        let saved = each(facts.verbose, -(record + VERBOSE_BYTES));
        add(Finding::new(Setting::ErrorVerbosity, "verbose").adding(saved));
    }
    if seen.failed_without_values > 0 {
        let found = format!("{} failed statements without values", seen.failed_without_values);
        add(Finding::new(Setting::ParameterMaxLengthOnError, found));
    }
    if facts.errors_without_statement > 0 {
        let count = facts.errors_without_statement;
        let adds = each(count, record + average_sql(seen));
        let found = format!("{count} errors without their statement");
        add(Finding::new(Setting::MinErrorStatement, found).adding(adds));
    }
    let foreign = facts.translated_messages + summary.count_of(Reason::BadSeverity);
    if foreign > 0 {
        add(Finding::new(Setting::Messages, format!("{foreign} messages in another language")));
    }
    if facts.lost_lines > 0 {
        add(Finding::new(Setting::Collector, format!("{} lines are lost", facts.lost_lines)));
    }
    if facts.statement_form > 0 && seen.durations == 0 {
        let adds = each(seen.executions, record + DURATION_BYTES);
        add(Finding::new(Setting::Duration, "no durations").adding(adds));
    }
    if facts.parse_and_bind > 0 {
        let saved = each(facts.parse_and_bind, -(record + average_sql(seen)));
        let found = format!("{} parse and bind steps with their text", facts.parse_and_bind);
        add(Finding::new(Setting::MinDurationStatement, found).adding(saved));
    }
    sessions(facts, seen, record, &mut add);
    let count = facts.executions_of_unknown_transaction;
    if count > 0 {
        let found = format!("{count} extended executions of which the transaction is not known");
        add(Finding::new(Setting::Destination, found));
    }
    let zones = summary.count_of(Reason::UnknownZone) + summary.count_of(Reason::AmbiguousZone);
    if zones > 0 {
        add(Finding::new(
            Setting::Timezone,
            format!("{zones} times in a zone of doubtful meaning"),
        ));
    }
    findings.sort_by_key(|finding| (finding.need(), finding.setting));
    findings
}

/// What is wrong with the way statements come into the log; nothing if all come at their start.
fn log_statement(facts: &Facts, seen: &Seen, only_slow: Option<u64>) -> Option<String> {
    let (begun, ended) = (facts.statement_form, facts.duration_form);
    Some(match (begun, ended, only_slow) {
        (0, 0, _) if facts.bare_durations > 0 => {
            format!("no statement is in the log, only {} durations", facts.bare_durations)
        }
        (0, 0, _) => "no statement is in the log".to_owned(),
        (0, _, Some(slow)) => format!("only slow statements are in the log, {slow} of them"),
        (0, all, None) => format!("{all} statements, known at their end"),
        (_, 1.., _) => {
            format!("{ended} of {} statements are known at their end only", begun + ended)
        }
        // Nobody only writes, and never begins or ends a transaction.
        (LEAST_STATEMENTS.., 0, _) if seen.others_than_writes == 0 => {
            format!("all {begun} statements change something: those that read are not in the log")
        }
        _ => return None,
    })
}

/// Statements after which one that reads is to be expected.
const LEAST_STATEMENTS: u64 = 5;

fn sessions(facts: &Facts, seen: &Seen, record: i64, add: &mut impl FnMut(Finding)) {
    let sessions = i64::try_from(facts.sessions).unwrap_or(i64::MAX);
    if seen.connects == 0 {
        let adds = sessions.saturating_mul(2 * record + CONNECT_BYTES);
        add(Finding::new(Setting::Connections, "no session is seen to begin").adding(adds));
    }
    if seen.disconnects == 0 {
        let adds = sessions.saturating_mul(record + DISCONNECT_BYTES);
        add(Finding::new(Setting::Disconnections, "no session is seen to end").adding(adds));
    }
}

fn notes(summary: &Summary, seen: &Seen) -> Vec<String> {
    let mut notes = Vec::new();
    if summary.format == Some(Format::Stderr) {
        notes.push(
            "csvlog, and jsonlog from PostgreSQL 15 on, hold every field whatever the line prefix is"
                .to_owned(),
        );
    }
    if seen.query_ids == 0 && summary.format != Some(Format::Stderr) {
        notes
            .push("compute_query_id = on would tell query_id (PostgreSQL 14 and later)".to_owned());
    }
    if summary.rejected() > 0 {
        notes.push(format!(
            "{} records or lines could not be read; `howdah capture import --discard` shows which",
            summary.rejected()
        ));
    }
    notes
}

/// Bytes of a record beside its SQL and values, on average: the prefix or the other columns.
fn record_bytes(summary: &Summary, seen: &Seen) -> i64 {
    let rest = summary.bytes.saturating_sub(seen.text_bytes);
    let each = rest / summary.records.max(1);
    i64::try_from(each).unwrap_or(i64::MAX).clamp(20, 2000)
}

fn average_sql(seen: &Seen) -> i64 {
    i64::try_from(seen.text_bytes / seen.executions.max(1)).unwrap_or(i64::MAX)
}

// Texts of messages, without the prefix.
/// `duration: 0.412 ms`
const DURATION_BYTES: i64 = 20;
/// `connection received: …`, `connection authorized: …`
const CONNECT_BYTES: i64 = 110;
/// `disconnection: session time: …`
const DISCONNECT_BYTES: i64 = 90;
/// `LOCATION:  exec_simple_query, postgres.c:1078` and the SQLSTATE
const VERBOSE_BYTES: i64 = 50;
