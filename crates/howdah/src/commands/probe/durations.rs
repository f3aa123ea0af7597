//! `howdah probe locks`, `lwlocks`, `io`, `wal`, `queries` and `sorts`: how long backends are in functions of the server.

use std::{
    collections::BTreeMap,
    io::{self, Write as _},
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use howdah_inspect::Server;
use howdah_probe::{
    Distribution, Figures,
    durations::{Call, Durations, Figure, Subject},
    stacks::CodeNames,
    waits::{Options, Sampler},
};
use serde_json::{Value, json};

use super::{
    blockers::Blockers,
    by_sql,
    names::Names,
    rows::{self, Format, Rows},
    stacks,
    target::{Found, Outside},
    watch::{Opened, SourceName, TraceArgs, Tracing, WatchArgs, trace},
};
use crate::{context::Context, errors::WithHint as _, outcome::Outcome};

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
    "lacks",
];

pub(super) fn run(figure: Figure, args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let watch = &args.trace.watch;
    let attach = |server: &Server| {
        Durations::attach_with_stacks(server, figure, args.trace.stacks_from())
            .with_context(|| format!("cannot trace {}", figure.name()))
            .hint("`howdah probe doctor` says what is missing")
    };
    let (durations, Found { server, session }) = match figure {
        Figure::LwLocks => match lightweight(watch, attach, ctx)? {
            Traced::Attached(durations, found) => (*durations, *found),
            Traced::Done(outcome) => return Ok(outcome),
        },
        Figure::Queries | Figure::Sorts => {
            watch.check_source(&[SourceName::Bpf])?;
            let found = watch.target.find()?;
            (attach(&found.server)?, found)
        }
        _ => match watch.open(&[SourceName::Bpf, SourceName::Sql], attach)? {
            Opened::Inside(durations, found) => (durations, *found),
            Opened::Outside(outside) => return by_sql(figure, &outside, args, ctx),
        },
    };
    let blockers = session.as_ref().filter(|_| figure == Figure::Locks);
    let blockers = blockers.map(|(target, _)| Blockers::ask(target.clone()));
    let mut report = Report::new(&args.trace, ctx, Names::new(session), (figure, durations));
    report.code = CodeNames::of_server(&server);
    report.blockers = blockers;
    let ended = trace(&mut report, &server, &args.trace, ctx)?;
    report.tell_end(ended.overhead)?;
    ended.server.map_or(Ok(Outcome::Done), Err)
}

/// What became of tracing.
enum Traced {
    Attached(Box<Durations>, Box<Found>),
    /// A weaker source has told instead.
    Done(Outcome),
}

/// Lightweight locks: where programs may not run, samples of memory, and where that may not be read, by SQL.
fn lightweight(
    watch: &WatchArgs,
    attach: impl Fn(&Server) -> anyhow::Result<Durations>,
    ctx: &Context,
) -> anyhow::Result<Traced> {
    const SOURCES: &[SourceName] = &[SourceName::Bpf, SourceName::Memory, SourceName::Sql];
    let open = |server: &Server| {
        let refused = match watch.source {
            SourceName::Memory => anyhow::anyhow!("--source memory"),
            _ => match attach(server) {
                Ok(durations) => return Ok(Ok(durations)),
                Err(error) if watch.source == SourceName::Bpf => return Err(error),
                Err(error) => error,
            },
        };
        Sampler::open(server, Options::default())?;
        Ok(Err(format!("{refused:#}")))
    };
    match watch.open(SOURCES, open)? {
        Opened::Inside(Ok(durations), found) => Ok(Traced::Attached(Box::new(durations), found)),
        Opened::Inside(Err(reason), found) => {
            by_sql::lwlocks_from_memory(&found.server, &reason, watch, ctx).map(Traced::Done)
        }
        Opened::Outside(outside) => {
            by_sql::ask(by_sql::LwLocks::default(), &outside, watch, ctx).map(Traced::Done)
        }
    }
}

fn by_sql(
    figure: Figure,
    outside: &Outside,
    args: &Args,
    ctx: &Context,
) -> anyhow::Result<Outcome> {
    let TraceArgs { watch, threshold, .. } = &args.trace;
    match figure {
        Figure::Io => by_sql::ask(by_sql::Io::default(), outside, watch, ctx),
        Figure::Wal => by_sql::ask(by_sql::Wal::default(), outside, watch, ctx),
        _ => by_sql::ask(by_sql::Locks::new(*threshold), outside, watch, ctx),
    }
}

/// What was seen, on its way out.
struct Report<'a> {
    ctx: &'a Context,
    rows: Rows<'a>,
    format: Format,
    threshold: Option<Duration>,
    names: Names,
    code: CodeNames,
    durations: Durations,
    /// Its intervals are apart by subject, too.
    is_by_subject: bool,
    lines: u64,
    calls: u64,
    /// Calls above the threshold, not told yet.
    long: Vec<Call>,
    interval: BTreeMap<Kind, Distribution>,
    all: BTreeMap<&'static str, Distribution>,
    subjects: BTreeMap<Kind, Distribution>,
    /// Where they are asked for, and the waits behind each that was told.
    blockers: Option<Blockers>,
    behind: BTreeMap<String, Distribution>,
}

/// An operation, and what it is about.
type Kind = (&'static str, Subject);

impl<'a> Report<'a> {
    fn new(
        args: &TraceArgs,
        ctx: &'a Context,
        names: Names,
        (figure, durations): (Figure, Durations),
    ) -> Self {
        let format = args.watch.format;
        Self {
            ctx,
            rows: Rows::new(ctx, format, COLUMNS),
            format,
            threshold: args.threshold,
            names,
            code: CodeNames::default(),
            durations,
            is_by_subject: figure == Figure::LwLocks,
            lines: 0,
            calls: 0,
            long: Vec::new(),
            interval: BTreeMap::new(),
            all: BTreeMap::new(),
            subjects: BTreeMap::new(),
            blockers: None,
            behind: BTreeMap::new(),
        }
    }

    fn add(&mut self, call: Call) {
        let Call { operation, subject, duration, .. } = call;
        self.calls += 1;
        let told_by = if self.is_by_subject { subject } else { Subject::None };
        self.interval.entry((operation, told_by)).or_default().add(duration);
        self.all.entry(operation).or_default().add(duration);
        let is_known = self.subjects.contains_key(&(operation, subject));
        if subject != Subject::None && (is_known || self.subjects.len() < SUBJECTS_MAX) {
            self.subjects.entry((operation, subject)).or_default().add(duration);
        }
        if let Some(blocked_by) = self.blocked_by(&call) {
            let is_known = self.behind.contains_key(&blocked_by);
            if is_known || self.behind.len() < SUBJECTS_MAX {
                self.behind.entry(blocked_by).or_default().add(duration);
            }
        }
        if self.threshold.is_some_and(|least| duration >= least) {
            self.long.push(call);
        }
    }

    /// The processes that a wait for a lock was behind, if it was seen.
    fn blocked_by(&self, call: &Call) -> Option<String> {
        self.blockers.as_ref()?.of(call.pid, call.ended_at, call.duration)
    }

    /// What a call was about, in words.
    fn subject(&mut self, subject: Subject) -> Option<String> {
        Some(match subject {
            Subject::None => return None,
            Subject::Lock(tag) => match tag.relation {
                Some((database, relation)) => {
                    format!("{} {}", tag.kind, self.names.of(database, relation))
                }
                None => tag.kind.to_owned(),
            },
            Subject::Wait(event) => event.name(),
            Subject::File { tablespace, database, filenode } => {
                self.names.of_file(tablespace, database, filenode)
            }
        })
    }
}

impl Tracing for Report<'_> {
    fn drain(&mut self) -> u64 {
        let mut calls = Vec::new();
        self.durations.drain(|call| calls.push(call));
        calls.into_iter().for_each(|call| self.add(call));
        self.calls
    }

    fn tell_long(&mut self) -> io::Result<()> {
        for call in std::mem::take(&mut self.long) {
            let Call { pid, operation, duration, ended_at, .. } = call;
            let subject = self.subject(call.subject);
            let blocked_by = self.blocked_by(&call);
            let time = rows::time(ended_at);
            let stack = call.stack.map(|id| self.code.stack(pid, &self.durations.addresses(id)));
            if self.format == Format::Table {
                let about = subject.map_or_else(String::new, |subject| format!("  {subject}"));
                let behind = blocked_by.map_or_else(String::new, |pids| format!("  behind {pids}"));
                let took = rows::shown(duration);
                let what = format!("{operation} {took}{about}{behind}");
                writeln!(self.ctx.stdout(), "{time}  process {pid}  {what}")?;
                stacks::tell(self.ctx, stack.as_ref())?;
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

    /// A line for each operation that there was, and each subject where that is wanted.
    fn tell_interval(&mut self) -> io::Result<()> {
        let interval = std::mem::take(&mut self.interval);
        let time = rows::time(SystemTime::now());
        for ((operation, subject), distribution) in &interval {
            let figures = distribution.figures();
            let subject = self.subject(*subject);
            if self.format == Format::Table {
                let mut out = self.ctx.stdout();
                if self.lines.is_multiple_of(HEAD_EVERY) {
                    writeln!(out, "{:<27}  {:<10} {HEAD}", "time", "operation")?;
                }
                self.lines += 1;
                let subject = subject.map_or_else(String::new, |subject| format!("  {subject}"));
                writeln!(out, "{time:<27}  {operation:<10} {}{subject}", in_columns(&figures))?;
            } else {
                let mut row = cells("interval", operation, &figures);
                row.extend([("time", json!(time)), ("subject", json!(subject))]);
                self.rows.write(&row)?;
            }
        }
        Ok(())
    }

    fn cost_of_event(&self) -> Duration {
        self.durations.cost_of_call()
    }
}

impl Report<'_> {
    fn tell_end(&mut self, overhead: f64) -> anyhow::Result<()> {
        let lost = self.durations.lost()?;
        let all = std::mem::take(&mut self.all);
        let mut subjects = Vec::new();
        for ((operation, subject), distribution) in std::mem::take(&mut self.subjects) {
            subjects.push((operation, subject, distribution.figures()));
        }
        subjects.sort_by_key(|(.., figures)| std::cmp::Reverse(figures.total));
        let behind = std::mem::take(&mut self.behind).into_iter();
        let mut behind: Vec<_> = behind.map(|(pids, waits)| (pids, waits.figures())).collect();
        behind.sort_by_key(|(_, figures)| std::cmp::Reverse(figures.total));
        if self.format == Format::Table {
            writeln!(self.ctx.stdout(), "\n{:<10} {HEAD} {:>10}", "operation", "in all")?;
            for (operation, distribution) in &all {
                let figures = distribution.figures();
                let (columns, total) = (in_columns(&figures), rows::shown(figures.total));
                writeln!(self.ctx.stdout(), "{operation:<10} {columns} {total:>10}")?;
            }
            for (operation, subject, figures) in subjects.iter().take(SUBJECTS_SHOWN) {
                let subject = self.subject(*subject).unwrap_or_default();
                let (columns, total) = (in_columns(figures), rows::shown(figures.total));
                writeln!(self.ctx.stdout(), "{operation:<10} {columns} {total:>10}  {subject}")?;
            }
            for (pids, figures) in behind.iter().take(SUBJECTS_SHOWN) {
                let (columns, total) = (in_columns(figures), rows::shown(figures.total));
                writeln!(self.ctx.stdout(), "{:<10} {columns} {total:>10}  {pids}", "behind")?;
            }
        } else {
            for (operation, subject, figures) in &subjects {
                let mut row = cells("subject", operation, figures);
                row.push(("subject", json!(self.subject(*subject))));
                self.rows.write(&row)?;
            }
            for (pids, figures) in &behind {
                let mut row = cells("blocker", "lock", figures);
                row.push(("blocked_by", json!(pids)));
                self.rows.write(&row)?;
            }
            for (operation, distribution) in &all {
                let mut row = cells("end", operation, &distribution.figures());
                row.extend([("overhead", json!(overhead)), ("lost", json!(lost))]);
                row.push(("time", json!(rows::time(SystemTime::now()))));
                self.rows.write(&row)?;
            }
        }
        self.ctx.say(format_args!(
            "{} calls, at a cost of {:.2} % of the processors",
            self.calls,
            100.0 * overhead
        ));
        if lost > 0 {
            self.ctx.say(format_args!("{lost} calls were lost or skipped"));
        }
        if let Some(Err(error)) = self.blockers.take().map(Blockers::end) {
            let error = anyhow::Error::from(error);
            self.ctx.say(format_args!("who was before whom could not be asked: {error:#}"));
        }
        Ok(())
    }
}

const HEAD_EVERY: u64 = 30;
const HEAD: &str = "     calls        min       mean        p50        p99        max";
const SUBJECTS_SHOWN: usize = 20;
/// Subjects are relations and kinds of locks; there may be very many relations.
const SUBJECTS_MAX: usize = 10_000;

fn in_columns(figures: &Figures) -> String {
    let Figures { count, min, mean, p50, p99, max, .. } = *figures;
    let [min, mean, p50, p99, max] = [min, mean, p50, p99, max].map(rows::shown);
    format!("{count:>10} {min:>10} {mean:>10} {p50:>10} {p99:>10} {max:>10}")
}

fn cells(kind: &str, operation: &str, figures: &Figures) -> Vec<(&'static str, Value)> {
    let mut row = vec![
        ("source", json!("bpf")),
        ("kind", json!(kind)),
        ("operation", json!(operation)),
        ("calls", json!(figures.count)),
    ];
    row.extend(times(figures));
    row
}

/// Cells of how long calls took.
pub(super) fn times(figures: &Figures) -> [(&'static str, Value); 6] {
    [
        ("min_ms", rows::ms(figures.min)),
        ("mean_ms", rows::ms(figures.mean)),
        ("p50_ms", rows::ms(figures.p50)),
        ("p99_ms", rows::ms(figures.p99)),
        ("max_ms", rows::ms(figures.max)),
        ("total_ms", rows::ms(figures.total)),
    ]
}
