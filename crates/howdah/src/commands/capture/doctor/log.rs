//! What a log shows of the settings that it was written with.

use std::{ops::ControlFlow, path::PathBuf, sync::atomic::Ordering};

use howdah_logs::{Facts, Format, Lack, Options, ReadFilesError, Reason, Summary, read_files};
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
    let summary = read.map_err(|error| match error {
        ReadFilesError::Options(error) => errors::wrong_usage(error),
        error => anyhow::Error::from(error).context("cannot read the log"),
    })?;
    let names: Vec<_> = logs.iter().map(|path| path.display().to_string()).collect();
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
        self.text_bytes += event.action.sql().map_or(0, Text::len) as u64;
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

    if facts.statement_form == 0 {
        let found = match (facts.duration_form, lacks(Lack::OnlySlow)) {
            (0, _) => "no statement is in the log".to_owned(),
            (_, Some(slow)) => format!("only slow statements are in the log, {slow} of them"),
            (all, None) => format!("{all} statements, known at their end"),
        };
        add(Finding::new(Setting::LogStatement, found));
    }
    if let Some(count) = lacks(Lack::Sampled) {
        add(Finding::new(Setting::MinDurationSample, format!("{count} signs of a sample")));
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
    if let Some(count) = lacks(Lack::ValuesUnknown) {
        add(Finding::new(Setting::ErrorVerbosity, format!("{count} executions without values")));
    } else if facts.verbose > 0 {
        let saved = each(facts.verbose, -(record + VERBOSE_BYTES));
        add(Finding::new(Setting::ErrorVerbosity, "verbose").adding(saved));
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
