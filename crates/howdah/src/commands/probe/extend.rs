//! `howdah probe extend`: traces waits for relation extension locks.

use std::{
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use howdah_inspect::RunningServer;
use howdah_probe::{
    DurationStats,
    by_sql::SqlExtensions,
    extend::{ExtensionLock, ExtensionLocks, ExtensionSummary, LostEvents},
    stacks::Symbolizer,
};
use serde_json::{Value, json};

use super::{
    by_sql,
    common::{OpenedProbe, SourceName, TraceArgs, TraceOutput, trace},
    names::RelationNames,
    rows::{self, RowFormat, RowWriter},
    stacks,
    target::LocalServer,
};
use crate::{context::CommandContext, errors::WithHint as _, outcome::CommandOutcome};

/// Measure how long backends wait for relation extension locks, and how long they hold them.
///
/// Prints a line per second: number of waits, shortest, mean, median, 99th percentile and longest,
/// and the relation with most waits; at the end a summary by relation. A lock is counted when it is
/// released.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    trace: TraceArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe extend postgresql://localhost/shop --duration 60s
  howdah probe extend --data-dir /var/lib/postgresql/17/main --threshold 100ms --stacks
  howdah probe extend --pid 4711 --format csv > extend.csv";

pub(super) const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "pid",
    "relation",
    "waits",
    "at_once",
    "wait_min_ms",
    "wait_mean_ms",
    "wait_p50_ms",
    "wait_p99_ms",
    "wait_max_ms",
    "wait_total_ms",
    "hold_mean_ms",
    "hold_max_ms",
    "both_max_ms",
    "stack",
    "overhead",
    "lost",
    "limitation",
];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let watch = &args.trace.watch;
    let open = |server: &RunningServer| {
        ExtensionLocks::attach_with_stacks(server, args.trace.stacks_from())
            .context("cannot trace extension locks")
            .hint("`howdah probe doctor` shows what is missing")
    };
    let (locks, LocalServer { server, session }) =
        match watch.open(&[SourceName::Bpf, SourceName::Sql], open)? {
            OpenedProbe::Local(locks, found) => (locks, *found),
            OpenedProbe::Sql(outside) => {
                return by_sql::run(SqlExtensions::default(), &outside, watch, ctx);
            }
        };
    let mut report = ExtendReport::new(&args.trace, ctx, RelationNames::new(session), locks);
    report.code = Symbolizer::for_server(&server);
    let ended = trace(&mut report, &server, &args.trace, ctx)?;
    report.report_summary(ended.overhead)?;
    ended.server.map_or(Ok(CommandOutcome::Done), Err)
}

/// Aggregates locks and writes them as rows.
struct ExtendReport<'a> {
    ctx: &'a CommandContext,
    rows: RowWriter<'a>,
    format: RowFormat,
    threshold: Option<Duration>,
    names: RelationNames,
    code: Symbolizer,
    locks: ExtensionLocks,
    lines: u64,
    /// Number of locks released so far.
    count: u64,
    /// Locks above the threshold, not reported yet.
    long: Vec<ExtensionLock>,
    interval: ExtensionSummary,
    all: ExtensionSummary,
}

impl<'a> ExtendReport<'a> {
    fn new(
        args: &TraceArgs,
        ctx: &'a CommandContext,
        names: RelationNames,
        locks: ExtensionLocks,
    ) -> Self {
        let format = args.watch.format;
        Self {
            ctx,
            rows: RowWriter::new(ctx, format, COLUMNS),
            format,
            threshold: args.threshold,
            names,
            code: Symbolizer::default(),
            locks,
            lines: 0,
            count: 0,
            long: Vec::new(),
            interval: ExtensionSummary::default(),
            all: ExtensionSummary::default(),
        }
    }
}

impl TraceOutput for ExtendReport<'_> {
    fn drain(&mut self) -> u64 {
        let Self { locks, interval, all, long, count, threshold, .. } = self;
        locks.drain(|lock| {
            *count += 1;
            interval.add(&lock);
            all.add(&lock);
            if threshold.is_some_and(|least| lock.wait.max(lock.hold) >= least) {
                long.push(lock);
            }
        });
        self.count
    }

    fn report_long_events(&mut self) -> io::Result<()> {
        for lock in std::mem::take(&mut self.long) {
            let ExtensionLock { pid, wait, hold, released_at, .. } = lock;
            let relation = self.names.name(lock.database, lock.relation);
            let time = rows::time(released_at);
            let stack = lock.stack.map(|id| self.code.resolve(pid, &self.locks.addresses(id)));
            if self.format == RowFormat::Table {
                let (wait, hold) = (rows::display(wait), rows::display(hold));
                let line =
                    format!("{time}  process {pid} waited {wait} for {relation}, held it {hold}");
                writeln!(self.ctx.stdout(), "{line}")?;
                stacks::print(self.ctx, stack.as_ref())?;
            } else {
                self.rows.write(&[
                    ("source", json!(SOURCE)),
                    ("kind", json!("lock")),
                    ("time", json!(time)),
                    ("pid", json!(pid)),
                    ("relation", json!(relation)),
                    ("wait_max_ms", rows::ms(wait)),
                    ("hold_max_ms", rows::ms(hold)),
                    ("both_max_ms", rows::ms(wait + hold)),
                    ("stack", json!(stack.map(|stack| stack.to_string()))),
                ])?;
            }
        }
        Ok(())
    }

    /// Writes a line for every interval, also for one without locks.
    fn report_interval(&mut self) -> io::Result<()> {
        let summary = std::mem::take(&mut self.interval);
        let relation = self.most_waited(&summary);
        let time = rows::time(SystemTime::now());
        if self.format == RowFormat::Table {
            let mut out = self.ctx.stdout();
            if self.lines.is_multiple_of(HEAD_EVERY) {
                writeln!(
                    out,
                    "{:<27}  {:>7} {:>10} {:>10} {:>10} {:>10} {:>10}  most waited for",
                    "time", "waits", "min", "mean", "p50", "p99", "max"
                )?;
            }
            self.lines += 1;
            let DurationStats { count, min, mean, p50, p99, max, .. } = summary.waits();
            let cells = [min, mean, p50, p99, max].map(|wait| match count {
                0 => "-".to_owned(),
                _ => rows::display(wait),
            });
            let [min, mean, p50, p99, max] = cells;
            let relation = relation.unwrap_or_default();
            writeln!(
                out,
                "{time:<27}  {count:>7} {min:>10} {mean:>10} {p50:>10} {p99:>10} {max:>10}  {relation}"
            )
        } else {
            let mut row = summary_cells("interval", &summary);
            row.extend([("time", json!(time)), ("relation", json!(relation))]);
            self.rows.write(&row)
        }
    }

    fn cost_per_event(&self) -> Duration {
        self.locks.cost_per_lock()
    }
}

impl ExtendReport<'_> {
    fn most_waited(&mut self, summary: &ExtensionSummary) -> Option<String> {
        let ((database, relation), ..) = *summary.relations().first()?;
        Some(self.names.name(database, relation))
    }

    fn report_summary(&mut self, overhead: f64) -> anyhow::Result<()> {
        let lost_events = self.locks.lost_events()?;
        let all = std::mem::take(&mut self.all);
        let relations: Vec<_> = all
            .relations()
            .into_iter()
            .map(|((database, relation), waits, holds)| {
                (self.names.name(database, relation), waits, holds)
            })
            .collect();
        if self.format == RowFormat::Table {
            self.print_summary(&all, &relations)?;
        } else {
            for (relation, waits, holds) in &relations {
                let mut row = wait_and_hold_cells("relation", waits, holds);
                row.push(("relation", json!(relation)));
                self.rows.write(&row)?;
            }
            let mut row = summary_cells("end", &all);
            row.push(("time", json!(rows::time(SystemTime::now()))));
            row.push(("overhead", json!(overhead)));
            row.push(("lost", json!(lost_events.lost + lost_events.skipped.values().sum::<u64>())));
            self.rows.write(&row)?;
        }
        let cost = 100.0 * overhead;
        self.ctx.report(format_args!("{} locks; cost {cost:.2} % of the CPUs", self.count));
        self.report_lost_events(&lost_events);
        Ok(())
    }

    fn print_summary(
        &self,
        all: &ExtensionSummary,
        relations: &[(String, DurationStats, DurationStats)],
    ) -> io::Result<()> {
        let mut out = self.ctx.stdout();
        let (waits, at_once) = (all.waits(), all.conditional());
        writeln!(out, "\n{} locks acquired after waiting, {at_once} without waiting", waits.count)?;
        if waits.count + at_once == 0 {
            return Ok(());
        }
        for (name, stats) in [("wait", waits), ("hold", all.holds()), ("both", all.wait_and_hold())]
        {
            let DurationStats { min, mean, p50, p99, max, total, .. } = stats;
            let [min, mean, p50, p99, max, total] =
                [min, mean, p50, p99, max, total].map(rows::display);
            writeln!(
                out,
                "{name}: min {min}, mean {mean}, p50 {p50}, p99 {p99}, max {max}, total {total}"
            )?;
        }
        writeln!(
            out,
            "\n{:>7} {:>10} {:>10} {:>10} {:>10}  relation",
            "locks", "waited", "p99", "max", "held"
        )?;
        for (relation, waits, holds) in relations.iter().take(RELATIONS_SHOWN) {
            let [total, p99, max, held] =
                [waits.total, waits.p99, waits.max, holds.total].map(rows::display);
            writeln!(
                out,
                "{:>7} {total:>10} {p99:>10} {max:>10} {held:>10}  {relation}",
                holds.count
            )?;
        }
        let more = relations.len().saturating_sub(RELATIONS_SHOWN);
        if more > 0 {
            writeln!(out, "        and {more} more relations")?;
        }
        Ok(())
    }

    fn report_lost_events(&self, lost_events: &LostEvents) {
        let LostEvents { lost, no_start, skipped } = lost_events;
        if *lost > 0 {
            self.ctx.report(format_args!("{lost} locks lost between kernel and probe"));
        }
        if *no_start > 0 {
            self.ctx.report(format_args!(
                "{no_start} locks released that were acquired before tracing started"
            ));
        }
        for (program, hits) in skipped {
            self.ctx
                .report(format_args!("the kernel skipped {hits} hits of the program {program}"));
        }
    }
}

const SOURCE: &str = "bpf";
const HEAD_EVERY: u64 = 30;
const RELATIONS_SHOWN: usize = 20;

fn summary_cells(kind: &str, summary: &ExtensionSummary) -> Vec<(&'static str, Value)> {
    let mut row = wait_and_hold_cells(kind, &summary.waits(), &summary.holds());
    row.push(("at_once", json!(summary.conditional())));
    if summary.waits().count > 0 {
        row.push(("both_max_ms", rows::ms(summary.wait_and_hold().max)));
    }
    row
}

/// Cells of the durations of waits.
pub(super) fn wait_times(waits: &DurationStats) -> [(&'static str, Value); 6] {
    [
        ("wait_min_ms", rows::ms(waits.min)),
        ("wait_mean_ms", rows::ms(waits.mean)),
        ("wait_p50_ms", rows::ms(waits.p50)),
        ("wait_p99_ms", rows::ms(waits.p99)),
        ("wait_max_ms", rows::ms(waits.max)),
        ("wait_total_ms", rows::ms(waits.total)),
    ]
}

fn wait_and_hold_cells(
    kind: &str,
    waits: &DurationStats,
    holds: &DurationStats,
) -> Vec<(&'static str, Value)> {
    let mut row =
        vec![("source", json!(SOURCE)), ("kind", json!(kind)), ("waits", json!(waits.count))];
    if waits.count > 0 {
        row.extend(wait_times(waits));
    }
    if holds.count > 0 {
        row.extend([("hold_mean_ms", rows::ms(holds.mean)), ("hold_max_ms", rows::ms(holds.max))]);
    }
    row
}
