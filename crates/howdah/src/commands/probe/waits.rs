//! `howdah probe waits`: samples what all backends wait for.

mod sql;

use std::{
    io::{self, Write as _},
    time::{Duration, Instant, SystemTime},
};

use howdah_inspect::RunningServer;
use howdah_probe::{
    SampleError,
    waits::{
        Profile, ProfileRow, QueryId, QueryOptions, SamplerOptions, TimeCategory, WaitReport,
        WaitSampler,
    },
};
use serde_json::{Value, json};

use super::{
    common::{OpenedProbe, ServerWatch, SourceName, WatchArgs},
    rows::{self, RowFormat, RowWriter},
};
use crate::{context::CommandContext, errors::wrong_usage, outcome::CommandOutcome};

/// Sample what all backends wait for, from their memory, up to a thousand times per second.
///
/// Needs no statements, locks or extensions. Shares are of database time, in which a client
/// waits for its backend; idle connections and the server's own processes are shown separately.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// Samples per second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Group by statement, without its literals
    #[arg(long)]
    queries: bool,
    /// Include the server's own processes and idle connections
    #[arg(long)]
    all: bool,
}

const EXAMPLES: &str = "\
Examples:
  howdah probe waits postgresql://localhost/shop --duration 10s
  howdah probe waits --data-dir /var/lib/postgresql/16/main --frequency 1000 --queries
  howdah probe waits --pid 4711 --all --format ndjson > waits.ndjson";

const COLUMNS: &[&str] = &[
    "source",
    "kind",
    "time",
    "group",
    "backend",
    "class",
    "event",
    "query",
    "samples",
    "seconds",
    "share",
    "processes",
    "limitation",
];

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let pace = &args.watch.pace;
    let every = Duration::from_secs(1) / args.frequency;
    if pace.interval < every {
        return Err(wrong_usage(
            "--interval is shorter than the time between two samples (--frequency)",
        ));
    }
    let open = |server: &RunningServer| {
        let queries = args.queries.then(query_options);
        Ok(WaitSampler::open(server, SamplerOptions { queries, ..SamplerOptions::default() })?)
    };
    let sources = &[SourceName::Memory, SourceName::Sql];
    let (mut sampler, server) = match args.watch.open(sources, open)? {
        OpenedProbe::Local(sampler, found) => (sampler, found.server),
        OpenedProbe::Sql(outside) => return sql::run(&outside, args, ctx),
    };
    let watched = ServerWatch::new(&server)?;
    let mut profile = Profile::default();
    let mut report = WaitsPrinter::new(ctx, args, ("memory", None));
    let mut ticks = pace.start(ctx, every);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    while ticks.tick() {
        let now = Instant::now();
        match sampler.sample(now) {
            Ok(round) => profile.add(&round),
            Err(error @ SampleError::ServerStopped { .. }) => {
                ended = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        }
        if now >= due {
            due += pace.interval;
            report.interval(&profile.take_interval(), &|id| sampler.query(id))?;
        }
    }
    report.end(&profile.total(), &|id| sampler.query(id))?;
    let (cost, missed) = (sampler.cost(), ticks.missed());
    let samples = cost.rounds;
    ctx.report(format_args!(
        "{samples} samples, {missed} missed; {} of CPU time",
        rows::display(cost.cpu)
    ));
    match ended {
        Some(error) => Err(watched.explain(error)),
        None => Ok(CommandOutcome::Done),
    }
}

fn query_options() -> QueryOptions {
    let normalise = |text: &str| howdah_sql::normalize(text.as_bytes()).to_string();
    QueryOptions { text_bytes: 1024, normalise: Box::new(normalise), texts_max: 10_000 }
}

struct WaitsPrinter<'a> {
    ctx: &'a CommandContext,
    rows: RowWriter<'a>,
    args: &'a Args,
    source: &'static str,
    limitation: Option<&'static str>,
}

/// Looks up the text of a statement.
type TextOf<'t> = dyn Fn(QueryId) -> Option<&'t str> + 't;

impl<'a> WaitsPrinter<'a> {
    fn new(
        ctx: &'a CommandContext,
        args: &'a Args,
        (source, limitation): (&'static str, Option<&'static str>),
    ) -> Self {
        let rows = RowWriter::new(ctx, args.watch.format, COLUMNS);
        Self { ctx, rows, args, source, limitation }
    }

    /// Writes the events with most database time on one line.
    fn interval(&mut self, report: &WaitReport, texts: &TextOf<'_>) -> io::Result<()> {
        if self.args.watch.format != RowFormat::Table {
            return self.write("interval", report, texts);
        }
        let time = rows::time(SystemTime::now());
        let busy = report.database_time.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        let top: Vec<_> = self
            .visible_rows(report)
            .take(TOP)
            .map(|row| format!("{} {:.0} %", row.event, 100.0 * row.share.unwrap_or_default()))
            .collect();
        writeln!(self.ctx.stdout(), "{time}  {busy:>6.2} active  {}", top.join(", "))
    }

    fn end(&mut self, report: &WaitReport, texts: &TextOf<'_>) -> io::Result<()> {
        if self.args.watch.format != RowFormat::Table {
            return self.write("end", report, texts);
        }
        let mut out = self.ctx.stdout();
        let seconds = report.elapsed.as_secs_f64();
        let database = report.database_time.as_secs_f64();
        writeln!(out, "\n{seconds:.1} s, {database:.1} s of database time, by class:")?;
        for (class, time) in report.classes() {
            let share = 100.0 * time.as_secs_f64() / database.max(1e-9);
            writeln!(out, "{share:>6.1} %  {:>9.3} s  {}", time.as_secs_f64(), class.name())?;
        }
        writeln!(out, "\n{:>8} {:>11} {:>9}  {:<24} event", "share", "time", "active", "backend")?;
        for row in self.visible_rows(report).take(ROWS_SHOWN) {
            let share = row.share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
            let (time, kind) = (row.time.as_secs_f64(), row.kind.name());
            let query = text(row.query, texts).map_or_else(String::new, |q| format!("  {q}"));
            writeln!(
                out,
                "{share:>8} {time:>9.3} s {:>9.2}  {kind:<24} {}{query}",
                row.processes, row.event
            )?;
        }
        let more = self.visible_rows(report).count().saturating_sub(ROWS_SHOWN);
        if more > 0 {
            writeln!(out, "{:>8} and {more} more rows (--format csv has all)", "")?;
        }
        out.flush()
    }

    fn write(&mut self, kind: &str, report: &WaitReport, texts: &TextOf<'_>) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        let shown: Vec<_> = self.visible_rows(report).copied().collect();
        for row in shown {
            self.rows.write(&[
                ("source", json!(self.source)),
                ("kind", json!(kind)),
                ("time", json!(time)),
                ("group", json!(group(row.group))),
                ("backend", json!(row.kind.name())),
                ("class", json!(row.event.class().name())),
                ("event", json!(row.event.to_string())),
                ("query", text(row.query, texts).map_or(Value::Null, Value::from)),
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
    ) -> impl Iterator<Item = &'r ProfileRow> + use<'r> {
        let all = self.args.all;
        report.rows.iter().filter(move |row| all || row.group == TimeCategory::Database)
    }
}

/// Number of wait events in the line that summarises an interval.
const TOP: usize = 4;
/// Number of rows in the table at the end.
const ROWS_SHOWN: usize = 40;

fn group(group: TimeCategory) -> &'static str {
    match group {
        TimeCategory::Database => "database",
        TimeCategory::Background => "background",
        TimeCategory::Idle => "idle",
    }
}

/// A statement on one line, without control characters, because it is client text.
fn text(query: Option<QueryId>, texts: &TextOf<'_>) -> Option<String> {
    let text = texts(query?)?;
    Some(text.split(|c: char| c.is_whitespace() || c.is_control()).collect::<Vec<_>>().join(" "))
}
