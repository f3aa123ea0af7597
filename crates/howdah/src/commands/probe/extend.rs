//! `howdah probe extend`: waits for the lock to extend a relation.

use std::{
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use howdah_inspect::Server;
use howdah_probe::{
    Figures,
    extend::{ExtensionLock, ExtensionLocks, LostEvents, Summary},
    stacks::CodeNames,
};
use serde_json::{Value, json};

use super::{
    by_sql,
    names::Names,
    rows::{self, Format, Rows},
    stacks,
    target::Found,
    watch::{Opened, SourceName, TraceArgs, Tracing, trace},
};
use crate::{context::Context, errors::WithHint as _, outcome::Outcome};

/// How long backends wait for the lock to extend a relation, and how long they hold it then.
///
/// A line a second: waits by their number, shortest, mean, median, 99th percentile and longest, and the
/// relation that was waited for most. At the end a summary, by relation. A lock is counted when it is let go.
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
    "lacks",
];

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let watch = &args.trace.watch;
    let open = |server: &Server| {
        ExtensionLocks::attach_with_stacks(server, args.trace.stacks_from())
            .context("cannot trace extension locks")
            .hint("`howdah probe doctor` says what is missing")
    };
    let (locks, Found { server, session }) =
        match watch.open(&[SourceName::Bpf, SourceName::Sql], open)? {
            Opened::Inside(locks, found) => (locks, *found),
            Opened::Outside(outside) => {
                return by_sql::ask(by_sql::Extensions::default(), &outside, watch, ctx);
            }
        };
    let mut report = Report::new(&args.trace, ctx, Names::new(session), locks);
    report.code = CodeNames::of_server(&server);
    let ended = trace(&mut report, &server, &args.trace, ctx)?;
    report.tell_end(ended.overhead)?;
    ended.server.map_or(Ok(Outcome::Done), Err)
}

/// What was seen, on its way out.
struct Report<'a> {
    ctx: &'a Context,
    rows: Rows<'a>,
    format: Format,
    threshold: Option<Duration>,
    names: Names,
    code: CodeNames,
    locks: ExtensionLocks,
    lines: u64,
    /// Locks that were let go so far.
    count: u64,
    /// Locks above the threshold, not told yet.
    long: Vec<ExtensionLock>,
    interval: Summary,
    all: Summary,
}

impl<'a> Report<'a> {
    fn new(args: &TraceArgs, ctx: &'a Context, names: Names, locks: ExtensionLocks) -> Self {
        let format = args.watch.format;
        Self {
            ctx,
            rows: Rows::new(ctx, format, COLUMNS),
            format,
            threshold: args.threshold,
            names,
            code: CodeNames::default(),
            locks,
            lines: 0,
            count: 0,
            long: Vec::new(),
            interval: Summary::default(),
            all: Summary::default(),
        }
    }
}

impl Tracing for Report<'_> {
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

    fn tell_long(&mut self) -> io::Result<()> {
        for lock in std::mem::take(&mut self.long) {
            let ExtensionLock { pid, wait, hold, released_at, .. } = lock;
            let relation = self.names.of(lock.database, lock.relation);
            let time = rows::time(released_at);
            let stack = lock.stack.map(|id| self.code.stack(pid, &self.locks.addresses(id)));
            if self.format == Format::Table {
                let (wait, hold) = (rows::shown(wait), rows::shown(hold));
                let line =
                    format!("{time}  process {pid} waited {wait} for {relation}, held it {hold}");
                writeln!(self.ctx.stdout(), "{line}")?;
                stacks::tell(self.ctx, stack.as_ref())?;
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

    /// An interval in which nothing happened has its line, too.
    fn tell_interval(&mut self) -> io::Result<()> {
        let summary = std::mem::take(&mut self.interval);
        let relation = self.most_waited(&summary);
        let time = rows::time(SystemTime::now());
        if self.format == Format::Table {
            let mut out = self.ctx.stdout();
            if self.lines.is_multiple_of(HEAD_EVERY) {
                writeln!(
                    out,
                    "{:<27}  {:>7} {:>10} {:>10} {:>10} {:>10} {:>10}  most waited for",
                    "time", "waits", "min", "mean", "p50", "p99", "max"
                )?;
            }
            self.lines += 1;
            let Figures { count, min, mean, p50, p99, max, .. } = summary.waits();
            let cells = [min, mean, p50, p99, max].map(|wait| match count {
                0 => "-".to_owned(),
                _ => rows::shown(wait),
            });
            let [min, mean, p50, p99, max] = cells;
            let relation = relation.unwrap_or_default();
            writeln!(
                out,
                "{time:<27}  {count:>7} {min:>10} {mean:>10} {p50:>10} {p99:>10} {max:>10}  {relation}"
            )
        } else {
            let mut row = figures("interval", &summary);
            row.extend([("time", json!(time)), ("relation", json!(relation))]);
            self.rows.write(&row)
        }
    }

    fn cost_of_event(&self) -> Duration {
        self.locks.cost_of_lock()
    }
}

impl Report<'_> {
    fn most_waited(&mut self, summary: &Summary) -> Option<String> {
        let ((database, relation), ..) = *summary.relations().first()?;
        Some(self.names.of(database, relation))
    }

    fn tell_end(&mut self, overhead: f64) -> anyhow::Result<()> {
        let losses = self.locks.losses()?;
        let all = std::mem::take(&mut self.all);
        let relations: Vec<_> = all
            .relations()
            .into_iter()
            .map(|((database, relation), waits, holds)| {
                (self.names.of(database, relation), waits, holds)
            })
            .collect();
        if self.format == Format::Table {
            self.tell_summary(&all, &relations)?;
        } else {
            for (relation, waits, holds) in &relations {
                let mut row = spread("relation", waits, holds);
                row.push(("relation", json!(relation)));
                self.rows.write(&row)?;
            }
            let mut row = figures("end", &all);
            row.push(("time", json!(rows::time(SystemTime::now()))));
            row.push(("overhead", json!(overhead)));
            row.push(("lost", json!(losses.lost + losses.skipped.values().sum::<u64>())));
            self.rows.write(&row)?;
        }
        let cost = 100.0 * overhead;
        self.ctx
            .say(format_args!("{} locks, at a cost of {cost:.2} % of the processors", self.count));
        self.say_losses(&losses);
        Ok(())
    }

    fn tell_summary(
        &self,
        all: &Summary,
        relations: &[(String, Figures, Figures)],
    ) -> io::Result<()> {
        let mut out = self.ctx.stdout();
        let (waits, at_once) = (all.waits(), all.conditional());
        writeln!(out, "\n{} locks were waited for, {at_once} taken at once", waits.count)?;
        if waits.count + at_once == 0 {
            return Ok(());
        }
        for (name, figures) in [("wait", waits), ("hold", all.holds()), ("both", all.both())] {
            let Figures { min, mean, p50, p99, max, total, .. } = figures;
            let [min, mean, p50, p99, max, total] =
                [min, mean, p50, p99, max, total].map(rows::shown);
            writeln!(
                out,
                "{name}: min {min}, mean {mean}, p50 {p50}, p99 {p99}, max {max}, in all {total}"
            )?;
        }
        writeln!(
            out,
            "\n{:>7} {:>10} {:>10} {:>10} {:>10}  relation",
            "locks", "waited", "p99", "max", "held"
        )?;
        for (relation, waits, holds) in relations.iter().take(RELATIONS_SHOWN) {
            let [total, p99, max, held] =
                [waits.total, waits.p99, waits.max, holds.total].map(rows::shown);
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

    fn say_losses(&self, losses: &LostEvents) {
        let LostEvents { lost, unpaired, skipped } = losses;
        if *lost > 0 {
            self.ctx.say(format_args!("{lost} locks were lost on the way from the kernel"));
        }
        if *unpaired > 0 {
            self.ctx.say(format_args!("{unpaired} locks were let go whose beginning was not seen"));
        }
        for (program, hits) in skipped {
            self.ctx.say(format_args!("the kernel skipped {hits} hits of the program {program}"));
        }
    }
}

const SOURCE: &str = "bpf";
const HEAD_EVERY: u64 = 30;
const RELATIONS_SHOWN: usize = 20;

fn figures(kind: &str, summary: &Summary) -> Vec<(&'static str, Value)> {
    let mut row = spread(kind, &summary.waits(), &summary.holds());
    row.push(("at_once", json!(summary.conditional())));
    if summary.waits().count > 0 {
        row.push(("both_max_ms", rows::ms(summary.both().max)));
    }
    row
}

/// Cells of how long locks were waited for.
pub(super) fn wait_times(waits: &Figures) -> [(&'static str, Value); 6] {
    [
        ("wait_min_ms", rows::ms(waits.min)),
        ("wait_mean_ms", rows::ms(waits.mean)),
        ("wait_p50_ms", rows::ms(waits.p50)),
        ("wait_p99_ms", rows::ms(waits.p99)),
        ("wait_max_ms", rows::ms(waits.max)),
        ("wait_total_ms", rows::ms(waits.total)),
    ]
}

fn spread(kind: &str, waits: &Figures, holds: &Figures) -> Vec<(&'static str, Value)> {
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
