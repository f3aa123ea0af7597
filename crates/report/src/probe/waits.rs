//! Renders profiles of waits.

use std::{
    cmp::Reverse,
    collections::HashMap,
    io::{self, Write},
    time::{Duration, SystemTime},
};

use howdah_collect::sanitized_line;
use howdah_probe::{
    live::{ProbeOutput, WaitInterval, WaitSource},
    waits::{
        ProfileRow, QueryId, SamplingCost, SessionDimension, TimeCategory, WaitEvent, WaitReport,
    },
};
use serde_json::{Value, json};

use super::rows::{self, RowFormat, RowWriter};

const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "mark",
    "group",
    "backend",
    "class",
    "event",
    "query",
    "user",
    "database",
    "application",
    "client",
    "samples",
    "seconds",
    "share",
    "processes",
    "limitation",
];

/// Maximum number of wait events in the line of an interval.
const TOP: usize = 4;
/// Maximum number of rows in a table of totals.
const ROWS_SHOWN: usize = 40;
/// Maximum number of wait events of a group.
const TOP_OF_GROUP: usize = 3;
/// Maximum width of a value of a dimension, in characters.
const VALUE_CHARS: usize = 30;

/// By what a profile is grouped for people, beside the wait events.
#[derive(Clone, Debug, Default)]
pub struct WaitGroups {
    /// Whether statements are separate.
    pub statement: bool,
    /// The dimensions of sessions that are separate.
    pub dimensions: Vec<SessionDimension>,
}

impl WaitGroups {
    fn is_empty(&self) -> bool {
        !self.statement && self.dimensions.is_empty()
    }
}

/// Renders profiles of waits.
#[derive(Debug)]
pub struct WaitPrinter<W> {
    rows: RowWriter<W>,
    has_all: bool,
    groups: WaitGroups,
    source: &'static str,
    limitation: Option<&'static str>,
}

impl<W: Write> WaitPrinter<W> {
    /// Creates a printer that writes the waits of a source to `out`. With `has_all`, it also writes
    /// those of the server's own processes and of idle connections.
    pub fn new(
        out: W,
        (format, has_all): (RowFormat, bool),
        groups: WaitGroups,
        (source, limitation): (&'static str, Option<&'static str>),
    ) -> Self {
        Self { rows: RowWriter::new(out, format, COLUMNS), has_all, groups, source, limitation }
    }

    /// Writes the events with most database time on one line, and the groups with most database
    /// time if there are dimensions of sessions.
    fn line(&mut self, report: &WaitReport, source: &dyn WaitSource) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        let busy = report.database_time.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        let top: Vec<_> = if self.groups.dimensions.is_empty() {
            events(database_rows(report))
                .into_iter()
                .take(TOP)
                .map(|(event, time)| format!("{event} {:.0} %", percent(time, report)))
                .collect()
        } else {
            let groups = self.group_rows(report, source).into_iter().take(TOP);
            let text = |(values, rows): (Vec<String>, Vec<&ProfileRow>)| {
                let time = rows.iter().map(|row| row.time).sum();
                format!("{} {:.0} %", values.join(" "), percent(time, report))
            };
            groups.map(text).collect()
        };
        writeln!(self.rows.out, "{time}  {busy:>6.2} active  {}", top.join(", "))
    }

    /// Groups the rows of database time, longest time first.
    fn group_rows<'r>(
        &self,
        report: &'r WaitReport,
        source: &dyn WaitSource,
    ) -> Vec<(Vec<String>, Vec<&'r ProfileRow>)> {
        let mut groups = HashMap::<Vec<String>, (Duration, Vec<&ProfileRow>)>::new();
        for row in database_rows(report) {
            let group = groups.entry(self.values(row, source)).or_default();
            group.0 += row.time;
            group.1.push(row);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_by(|(a, (a_time, _)), (b, (b_time, _))| {
            (Reverse(a_time), a).cmp(&(Reverse(b_time), b))
        });
        groups.into_iter().map(|(values, (_, rows))| (values, rows)).collect()
    }

    /// Returns the values that a row is grouped by, `-` where unknown.
    fn values(&self, row: &ProfileRow, source: &dyn WaitSource) -> Vec<String> {
        let label = row.session.and_then(|id| source.label(id));
        let value = |dimension: &SessionDimension| {
            let value = label.and_then(|label| label.value(*dimension));
            value.map_or_else(|| "-".to_owned(), |value| sanitized_line(value).into_owned())
        };
        let mut values: Vec<_> = self.groups.dimensions.iter().map(value).collect();
        if self.groups.statement {
            values.push(text(row.query, source).unwrap_or_else(|| "-".to_owned()));
        }
        values
    }

    /// Writes a table of the groups with their main events.
    fn groups_table(&mut self, report: &WaitReport, source: &dyn WaitSource) -> io::Result<()> {
        let groups = self.group_rows(report, source);
        let statement = self.groups.statement.then_some("statement");
        let names = self.groups.dimensions.iter().map(|dimension| dimension.name());
        let names: Vec<_> = names.chain(statement).collect();
        let columns = self.groups.dimensions.len();
        let chars = |text: &str| text.chars().count();
        let width = |at: usize| {
            let shown = groups.iter().take(ROWS_SHOWN).map(|(values, _)| chars(&values[at]));
            shown.chain([chars(names[at])]).max().unwrap_or(0).min(VALUE_CHARS)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let line = |values: &[&str]| {
            let cells = values.iter().zip(&widths).map(|(value, width)| {
                let value: String = value.chars().take(*width).collect();
                format!("{value:<width$}  ")
            });
            cells.collect::<String>()
        };
        let out = &mut self.rows.out;
        writeln!(out, "\nby {}:", names.join(", "))?;
        write!(out, "{:>8} {:>11} {:>9}  {}", "share", "time", "active", line(&names))?;
        writeln!(out, "{}", if self.groups.statement { "waits; statement" } else { "waits" })?;
        for (values, rows) in groups.iter().take(ROWS_SHOWN) {
            let time: Duration = rows.iter().map(|row| row.time).sum();
            let processes: f64 = rows.iter().map(|row| row.processes).sum();
            let waits: Vec<_> = events(rows.iter().copied())
                .into_iter()
                .take(TOP_OF_GROUP)
                .map(|(event, of)| {
                    let share = 100.0 * of.as_secs_f64() / time.as_secs_f64().max(1e-9);
                    format!("{event} {share:.0} %")
                })
                .collect();
            let texts: Vec<&str> = values.iter().map(String::as_str).collect();
            let statement = texts.get(columns).map_or_else(String::new, |text| format!("; {text}"));
            writeln!(
                out,
                "{:>6.1} % {:>9.3} s {processes:>9.2}  {}{}{statement}",
                percent(time, report),
                time.as_secs_f64(),
                line(&texts),
                waits.join(", "),
            )?;
        }
        let more = groups.len().saturating_sub(ROWS_SHOWN);
        if more > 0 {
            writeln!(out, "{:>8} and {more} more (--format csv has all)", "")?;
        }
        Ok(())
    }

    /// Writes the totals of the whole measurement.
    ///
    /// # Errors
    ///
    /// The writer fails.
    pub fn totals(&mut self, report: &WaitReport, source: &dyn WaitSource) -> io::Result<()> {
        if !self.rows.is_table() {
            return self.write_rows("end", report, None, source);
        }
        writeln!(self.rows.out)?;
        self.tables(report, source)
    }

    fn tables(&mut self, report: &WaitReport, source: &dyn WaitSource) -> io::Result<()> {
        let visible: Vec<_> = self.visible_rows(report).collect();
        let values = visible.iter().take(ROWS_SHOWN).map(|row| self.values(row, source));
        let values: Vec<String> = values
            .map(|values| values.iter().map(|value| format!("  {value}")).collect())
            .collect();
        let out = &mut self.rows.out;
        let seconds = report.elapsed.as_secs_f64();
        let database = report.database_time.as_secs_f64();
        writeln!(out, "{seconds:.1} s, {database:.1} s of database time, by class:")?;
        for (class, time) in report.classes() {
            let share = 100.0 * time.as_secs_f64() / database.max(1e-9);
            writeln!(out, "{share:>6.1} %  {:>9.3} s  {}", time.as_secs_f64(), class.name())?;
        }
        writeln!(out, "\n{:>8} {:>11} {:>9}  {:<24} event", "share", "time", "active", "backend")?;
        for (at, row) in visible.iter().take(ROWS_SHOWN).enumerate() {
            let share = row.share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
            let (time, kind) = (row.time.as_secs_f64(), row.kind.name());
            let values = if row.group == TimeCategory::Database { &values[at] } else { "" };
            writeln!(
                out,
                "{share:>8} {time:>9.3} s {:>9.2}  {kind:<24} {}{values}",
                row.processes, row.event
            )?;
        }
        let more = visible.len().saturating_sub(ROWS_SHOWN);
        if more > 0 {
            writeln!(out, "{:>8} and {more} more rows (--format csv has all)", "")?;
        }
        if !self.groups.is_empty() {
            self.groups_table(report, source)?;
        }
        self.rows.out.flush()
    }

    fn write_rows(
        &mut self,
        kind: &str,
        report: &WaitReport,
        mark: Option<&str>,
        source: &dyn WaitSource,
    ) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        for row in self.visible_rows(report) {
            let label = row.session.and_then(|id| source.label(id));
            let value = |dimension: SessionDimension| {
                json!(label.and_then(|label| label.value(dimension)).map(sanitized_line))
            };
            self.rows.write(&[
                ("source", json!(self.source)),
                ("kind", json!(kind)),
                ("time", json!(time)),
                ("mark", json!(mark)),
                ("group", json!(group(row.group))),
                ("backend", json!(row.kind.name())),
                ("class", json!(row.event.class().name())),
                ("event", json!(row.event.to_string())),
                ("query", text(row.query, source).map_or(Value::Null, Value::from)),
                ("user", value(SessionDimension::User)),
                ("database", value(SessionDimension::Database)),
                ("application", value(SessionDimension::Application)),
                ("client", value(SessionDimension::Client)),
                ("samples", json!(row.samples)),
                ("seconds", json!(row.time.as_secs_f64())),
                ("share", json!(row.share)),
                ("processes", json!(row.processes)),
                ("limitation", json!(self.limitation)),
            ])?;
        }
        Ok(())
    }

    fn visible_rows<'r>(
        &self,
        report: &'r WaitReport,
    ) -> impl Iterator<Item = &'r ProfileRow> + use<'r, W> {
        let has_all = self.has_all;
        report.rows.iter().filter(move |row| has_all || row.group == TimeCategory::Database)
    }
}

impl<W: Write> ProbeOutput<WaitInterval<'_>> for WaitPrinter<W> {
    fn write(&mut self, WaitInterval { mark, report, source }: WaitInterval<'_>) -> io::Result<()> {
        match mark.as_deref().map(sanitized_line) {
            None if self.rows.is_table() => self.line(&report, source),
            None => self.write_rows("interval", &report, None, source),
            Some(mark) if self.rows.is_table() => {
                writeln!(self.rows.out, "\nmark {mark:?}, since the previous one or the start:")?;
                self.tables(&report, source)?;
                writeln!(self.rows.out)
            }
            Some(mark) => self.write_rows("mark", &report, Some(&mark), source),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.rows.out.flush()
    }
}

/// Describes how many samples were taken from memory, and their cost.
pub fn sampling_remark(cost: &SamplingCost, missed: u64) -> String {
    let SamplingCost { rounds, cpu, .. } = *cost;
    format!("{rounds} samples, {missed} missed; {} of CPU time", rows::duration(cpu))
}

fn group(group: TimeCategory) -> &'static str {
    match group {
        TimeCategory::Database => "database",
        TimeCategory::Background => "background",
        TimeCategory::Idle => "idle",
    }
}

fn database_rows(report: &WaitReport) -> impl Iterator<Item = &ProfileRow> {
    report.rows.iter().filter(|row| row.group == TimeCategory::Database)
}

/// Sums the time of each event, longest first.
fn events<'r>(rows: impl Iterator<Item = &'r ProfileRow>) -> Vec<(WaitEvent, Duration)> {
    let mut times = HashMap::<WaitEvent, Duration>::new();
    rows.for_each(|row| *times.entry(row.event).or_default() += row.time);
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|&(event, time)| (Reverse(time), event));
    times
}

/// Returns a time as a percentage of database time.
fn percent(time: Duration, report: &WaitReport) -> f64 {
    100.0 * time.as_secs_f64() / report.database_time.as_secs_f64().max(1e-9)
}

/// Returns a statement on one line.
fn text(query: Option<QueryId>, source: &dyn WaitSource) -> Option<String> {
    let line = sanitized_line(source.query(query?)?);
    Some(line.split_whitespace().collect::<Vec<_>>().join(" "))
}
