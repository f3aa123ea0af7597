//! `howdah probe locks`, `lwlocks`, `io`, `wal`, `queries` and `sorts`: durations of functions in
//! the server.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use howdah_inspect::RunningServer;
use howdah_probe::{
    Distribution, DurationStats,
    by_sql::{LwLockSamples, SqlIo, SqlWal},
    durations::{Call, CallDurations, CallSubject, ProbeMetric},
    stacks::Symbolizer,
    waits::{SamplerOptions, WaitSampler},
};
use serde_json::{Value, json};

use super::{
    blockers::BlockerMonitor,
    by_sql,
    common::{OpenedProbe, SourceName, TraceArgs, TraceOutput, WatchArgs, trace},
    names::RelationNames,
    rows::{self, RowFormat, RowWriter},
    stacks,
    target::{LocalServer, SqlTarget},
};
use crate::{context::CommandContext, errors::WithHint as _, outcome::CommandOutcome};

#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true)]
pub(super) struct Args {
    #[command(flatten)]
    trace: TraceArgs,
}

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "operation",
    "subject",
    "pid",
    "blocked_by",
    "calls",
    "min_ms",
    "mean_ms",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "total_ms",
    "stack",
    "samples",
    "overhead",
    "lost",
    "limitation",
];

pub(super) fn run(
    metric: ProbeMetric,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let watch = &args.trace.watch;
    let attach = |server: &RunningServer| {
        CallDurations::attach_with_stacks(server, metric, args.trace.stacks_from())
            .with_context(|| format!("cannot trace {}", metric.name()))
            .hint("`howdah probe doctor` shows what is missing")
    };
    let (durations, LocalServer { server, session }) = match metric {
        ProbeMetric::LwLocks => match open_lwlocks(watch, attach, ctx)? {
            LwLockTracing::Attached(durations, found) => (*durations, *found),
            LwLockTracing::Done(outcome) => return Ok(outcome),
        },
        ProbeMetric::Queries | ProbeMetric::Sorts => {
            watch.check_source(&[SourceName::Bpf])?;
            let found = watch.target.find()?;
            (attach(&found.server)?, found)
        }
        _ => match watch.open(&[SourceName::Bpf, SourceName::Sql], attach)? {
            OpenedProbe::Local(durations, found) => (durations, *found),
            OpenedProbe::Sql(outside) => return by_sql(metric, &outside, args, ctx),
        },
    };
    let blockers = session.as_ref().filter(|_| metric == ProbeMetric::Locks);
    let blockers = blockers.map(|(target, _)| BlockerMonitor::start(target.clone()));
    let mut report =
        DurationReport::new(&args.trace, ctx, RelationNames::new(session), (metric, durations));
    report.code = Symbolizer::for_server(&server);
    report.blockers = blockers;
    let ended = trace(&mut report, &server, &args.trace, ctx)?;
    report.report_summary(ended.overhead)?;
    ended.server.map_or(Ok(CommandOutcome::Done), Err)
}

/// How lightweight locks are measured.
enum LwLockTracing {
    Attached(Box<CallDurations>, Box<LocalServer>),
    /// Done already, with samples of memory or SQL.
    Done(CommandOutcome),
}

/// Opens the source for lightweight locks: BPF programs, else samples of memory, else SQL.
fn open_lwlocks(
    watch: &WatchArgs,
    attach: impl Fn(&RunningServer) -> anyhow::Result<CallDurations>,
    ctx: &CommandContext,
) -> anyhow::Result<LwLockTracing> {
    const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];
    let open = |server: &RunningServer| {
        let refused = match watch.source {
            SourceName::Memory => anyhow::anyhow!("--source memory"),
            _ => match attach(server) {
                Ok(durations) => return Ok(Ok(durations)),
                Err(error) if watch.source == SourceName::Bpf => return Err(error),
                Err(error) => error,
            },
        };
        WaitSampler::open(server, SamplerOptions::default())?;
        Ok(Err(format!("{refused:#}")))
    };
    match watch.open(SOURCES, open)? {
        OpenedProbe::Local(Ok(durations), found) => {
            Ok(LwLockTracing::Attached(Box::new(durations), found))
        }
        OpenedProbe::Local(Err(reason), found) => {
            by_sql::lwlocks_from_memory(&found.server, &reason, watch, ctx).map(LwLockTracing::Done)
        }
        OpenedProbe::Sql(outside) => {
            by_sql::run(LwLockSamples::default(), &outside, watch, ctx).map(LwLockTracing::Done)
        }
    }
}

fn by_sql(
    metric: ProbeMetric,
    outside: &SqlTarget,
    args: &Args,
    ctx: &CommandContext,
) -> anyhow::Result<CommandOutcome> {
    let TraceArgs { watch, threshold, .. } = &args.trace;
    match metric {
        ProbeMetric::Io => by_sql::run(SqlIo::default(), outside, watch, ctx),
        ProbeMetric::Wal => by_sql::run(SqlWal::default(), outside, watch, ctx),
        _ => by_sql::run(by_sql::LockRows::new(*threshold), outside, watch, ctx),
    }
}

/// Aggregates calls and writes them as rows.
struct DurationReport<'a> {
    ctx: &'a CommandContext,
    rows: RowWriter<'a>,
    format: RowFormat,
    threshold: Option<Duration>,
    names: RelationNames,
    code: Symbolizer,
    durations: CallDurations,
    /// Whether intervals are reported by subject, too.
    is_by_subject: bool,
    lines: u64,
    calls: u64,
    /// Calls above the threshold, not reported yet.
    long: Vec<Call>,
    interval: BTreeMap<SubjectKey, Distribution>,
    all: BTreeMap<&'static str, Distribution>,
    subjects: BTreeMap<SubjectKey, Distribution>,
    /// Finds the blockers of lock waits, if enabled; below, the reported waits by blocker.
    blockers: Option<BlockerMonitor>,
    by_blocker: BTreeMap<String, Distribution>,
}

/// An operation and its subject.
type SubjectKey = (&'static str, CallSubject);

impl<'a> DurationReport<'a> {
    fn new(
        args: &TraceArgs,
        ctx: &'a CommandContext,
        names: RelationNames,
        (metric, durations): (ProbeMetric, CallDurations),
    ) -> Self {
        let format = args.watch.format;
        Self {
            ctx,
            rows: RowWriter::new(ctx, format, COLUMNS),
            format,
            threshold: args.threshold,
            names,
            code: Symbolizer::default(),
            durations,
            is_by_subject: metric == ProbeMetric::LwLocks,
            lines: 0,
            calls: 0,
            long: Vec::new(),
            interval: BTreeMap::new(),
            all: BTreeMap::new(),
            subjects: BTreeMap::new(),
            blockers: None,
            by_blocker: BTreeMap::new(),
        }
    }

    fn add(&mut self, call: Call) {
        let Call { operation, subject, duration, .. } = call;
        self.calls += 1;
        let subject_key = if self.is_by_subject { subject } else { CallSubject::None };
        self.interval.entry((operation, subject_key)).or_default().add(duration);
        self.all.entry(operation).or_default().add(duration);
        let is_known = self.subjects.contains_key(&(operation, subject));
        if subject != CallSubject::None && (is_known || self.subjects.len() < SUBJECTS_MAX) {
            self.subjects.entry((operation, subject)).or_default().add(duration);
        }
        if let Some(blocked_by) = self.blocked_by(&call) {
            let is_known = self.by_blocker.contains_key(&blocked_by);
            if is_known || self.by_blocker.len() < SUBJECTS_MAX {
                self.by_blocker.entry(blocked_by).or_default().add(duration);
            }
        }
        if self.threshold.is_some_and(|least| duration >= least) {
            self.long.push(call);
        }
    }

    /// The processes that blocked a wait for a lock, if known.
    fn blocked_by(&self, call: &Call) -> Option<String> {
        self.blockers.as_ref()?.blocked_by(call.pid, call.ended_at, call.duration)
    }

    /// The subject of a call as text.
    fn subject(&mut self, subject: CallSubject) -> Option<String> {
        Some(match subject {
            CallSubject::None => return None,
            CallSubject::Lock(tag) => match tag.relation {
                Some((database, relation)) => {
                    format!("{} {}", tag.kind, self.names.name(database, relation))
                }
                None => tag.kind.to_owned(),
            },
            CallSubject::Wait(event) => event.name(),
            CallSubject::File { tablespace, database, filenode } => {
                self.names.name_of_file(tablespace, database, filenode)
            }
        })
    }
}

impl TraceOutput for DurationReport<'_> {
    fn drain(&mut self) -> u64 {
        let mut calls = Vec::new();
        self.durations.drain(|call| calls.push(call));
        calls.into_iter().for_each(|call| self.add(call));
        self.calls
    }

    fn report_long_events(&mut self) -> io::Result<()> {
        for call in std::mem::take(&mut self.long) {
            let Call { pid, operation, duration, ended_at, .. } = call;
            let subject = self.subject(call.subject);
            let blocked_by = self.blocked_by(&call);
            let time = rows::time(ended_at);
            let stack = call.stack.map(|id| self.code.resolve(pid, &self.durations.addresses(id)));
            if self.format == RowFormat::Table {
                let about = subject.map_or_else(String::new, |subject| format!("  {subject}"));
                let by_blocker =
                    blocked_by.map_or_else(String::new, |pids| format!("  blocked by {pids}"));
                let took = rows::display(duration);
                let what = format!("{operation} {took}{about}{by_blocker}");
                writeln!(self.ctx.stdout(), "{time}  process {pid}  {what}")?;
                stacks::print(self.ctx, stack.as_ref())?;
            } else {
                self.rows.write(&[
                    ("source", json!("bpf")),
                    ("kind", json!("call")),
                    ("time", json!(time)),
                    ("operation", json!(operation)),
                    ("subject", json!(subject)),
                    ("pid", json!(pid)),
                    ("blocked_by", json!(blocked_by)),
                    ("max_ms", rows::ms(duration)),
                    ("stack", json!(stack.map(|stack| stack.to_string()))),
                ])?;
            }
        }
        Ok(())
    }

    /// Writes a line per operation, and per subject if enabled.
    fn report_interval(&mut self) -> io::Result<()> {
        let interval = std::mem::take(&mut self.interval);
        let time = rows::time(SystemTime::now());
        for ((operation, subject), distribution) in &interval {
            let stats = distribution.stats();
            let subject = self.subject(*subject);
            if self.format == RowFormat::Table {
                let mut out = self.ctx.stdout();
                if self.lines.is_multiple_of(HEAD_EVERY) {
                    writeln!(out, "{:<27}  {:<10} {HEAD}", "time", "operation")?;
                }
                self.lines += 1;
                let subject = subject.map_or_else(String::new, |subject| format!("  {subject}"));
                writeln!(out, "{time:<27}  {operation:<10} {}{subject}", in_columns(&stats))?;
            } else {
                let mut row = cells("interval", operation, &stats);
                row.extend([("time", json!(time)), ("subject", json!(subject))]);
                self.rows.write(&row)?;
            }
        }
        Ok(())
    }

    fn cost_per_event(&self) -> Duration {
        self.durations.cost_per_call()
    }
}

impl DurationReport<'_> {
    fn report_summary(&mut self, overhead: f64) -> anyhow::Result<()> {
        let lost = self.durations.lost_events()?;
        let all = std::mem::take(&mut self.all);
        let mut subjects = Vec::new();
        for ((operation, subject), distribution) in std::mem::take(&mut self.subjects) {
            subjects.push((operation, subject, distribution.stats()));
        }
        subjects.sort_by_key(|(.., stats)| std::cmp::Reverse(stats.total));
        let by_blocker = std::mem::take(&mut self.by_blocker).into_iter();
        let mut by_blocker: Vec<_> =
            by_blocker.map(|(pids, waits)| (pids, waits.stats())).collect();
        by_blocker.sort_by_key(|(_, stats)| std::cmp::Reverse(stats.total));
        if self.format == RowFormat::Table {
            writeln!(self.ctx.stdout(), "\n{:<10} {HEAD} {:>10}", "operation", "total")?;
            for (operation, distribution) in &all {
                let stats = distribution.stats();
                let (columns, total) = (in_columns(&stats), rows::display(stats.total));
                writeln!(self.ctx.stdout(), "{operation:<10} {columns} {total:>10}")?;
            }
            for (operation, subject, stats) in subjects.iter().take(SUBJECTS_PRINTED) {
                let subject = self.subject(*subject).unwrap_or_default();
                let (columns, total) = (in_columns(stats), rows::display(stats.total));
                writeln!(self.ctx.stdout(), "{operation:<10} {columns} {total:>10}  {subject}")?;
            }
            for (pids, stats) in by_blocker.iter().take(SUBJECTS_PRINTED) {
                let (columns, total) = (in_columns(stats), rows::display(stats.total));
                writeln!(self.ctx.stdout(), "{:<10} {columns} {total:>10}  {pids}", "blocked by")?;
            }
        } else {
            for (operation, subject, stats) in &subjects {
                let mut row = cells("subject", operation, stats);
                row.push(("subject", json!(self.subject(*subject))));
                self.rows.write(&row)?;
            }
            for (pids, stats) in &by_blocker {
                let mut row = cells("blocker", "lock", stats);
                row.push(("blocked_by", json!(pids)));
                self.rows.write(&row)?;
            }
            for (operation, distribution) in &all {
                let mut row = cells("end", operation, &distribution.stats());
                row.extend([("overhead", json!(overhead)), ("lost", json!(lost))]);
                row.push(("time", json!(rows::time(SystemTime::now()))));
                self.rows.write(&row)?;
            }
        }
        self.ctx.report(format_args!(
            "{} calls; cost {:.2} % of the CPUs",
            self.calls,
            100.0 * overhead
        ));
        if lost > 0 {
            self.ctx.report(format_args!("{lost} calls lost or skipped"));
        }
        if let Some(Err(error)) = self.blockers.take().map(BlockerMonitor::finish) {
            let error = anyhow::Error::from(error);
            self.ctx.report(format_args!("cannot determine blocking processes: {error:#}"));
        }
        Ok(())
    }
}

const HEAD_EVERY: u64 = 30;
const HEAD: &str = "     calls        min       mean        p50        p99        max";
const SUBJECTS_PRINTED: usize = 20;
/// Maximum number of subjects and blockers to keep: there may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

fn in_columns(stats: &DurationStats) -> String {
    let DurationStats { count, min, mean, p50, p99, max, .. } = *stats;
    let [min, mean, p50, p99, max] = [min, mean, p50, p99, max].map(rows::display);
    format!("{count:>10} {min:>10} {mean:>10} {p50:>10} {p99:>10} {max:>10}")
}

fn cells(kind: &str, operation: &str, stats: &DurationStats) -> Vec<(&'static str, Value)> {
    let mut row = vec![
        ("source", json!("bpf")),
        ("kind", json!(kind)),
        ("operation", json!(operation)),
        ("calls", json!(stats.count)),
    ];
    row.extend(times(stats));
    row
}

/// Cells of the durations of calls.
pub(super) fn times(stats: &DurationStats) -> [(&'static str, Value); 6] {
    [
        ("min_ms", rows::ms(stats.min)),
        ("mean_ms", rows::ms(stats.mean)),
        ("p50_ms", rows::ms(stats.p50)),
        ("p99_ms", rows::ms(stats.p99)),
        ("max_ms", rows::ms(stats.max)),
        ("total_ms", rows::ms(stats.total)),
    ]
}
