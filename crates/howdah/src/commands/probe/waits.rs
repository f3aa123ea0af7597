//! `howdah probe waits`: what all backends wait for.

mod sql;

use std::{
    io::{self, Write as _},
    time::{Duration, Instant, SystemTime},
};

use howdah_inspect::Server;
use howdah_probe::{
    SampleError,
    waits::{Group, Options, Profile, QueryId, QueryOptions, Report, Row, Sampler},
};
use serde_json::{Value, json};

use super::{
    rows::{self, Format, Rows},
    watch::{Opened, SourceName, WatchArgs, Watched},
};
use crate::{context::Context, errors::wrong_usage, outcome::Outcome};

/// What all backends wait for, sampled from their memory up to a thousand times a second.
///
/// Takes no statement, no lock and no extension. Shares are of database time, in which a client
/// waits for its backend; idle connections and the server's own processes stand apart.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    #[command(flatten)]
    watch: WatchArgs,
    /// Looks a second
    #[arg(long, value_name = "HZ", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    frequency: u32,
    /// Apart by statement, without its literals
    #[arg(long)]
    queries: bool,
    /// The server's own processes and idle connections too
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
    "lacks",
];

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let pace = &args.watch.pace;
    let every = Duration::from_secs(1) / args.frequency;
    if pace.interval < every {
        return Err(wrong_usage(
            "--interval is shorter than the time between two looks (--frequency)",
        ));
    }
    let open = |server: &Server| {
        let queries = args.queries.then(query_options);
        Ok(Sampler::open(server, Options { queries, ..Options::default() })?)
    };
    let sources = &[SourceName::Memory, SourceName::Sql];
    let (mut sampler, server) = match args.watch.open(sources, open)? {
        Opened::Inside(sampler, found) => (sampler, found.server),
        Opened::Outside(outside) => return sql::run(&outside, args, ctx),
    };
    let watched = Watched::new(&server)?;
    let mut profile = Profile::default();
    let mut report = Printer::new(ctx, args, ("memory", None));
    let mut ticks = pace.begin(ctx, every);
    let mut due = Instant::now() + pace.interval;
    let mut ended = None;
    while ticks.tick() {
        let now = Instant::now();
        match sampler.sample(now) {
            Ok(round) => profile.add(&round),
            Err(error @ SampleError::Ended { .. }) => {
                ended = Some(error);
                break;
            }
            Err(error) => return Err(error.into()),
        }
        if now >= due {
            due += pace.interval;
            report.interval(&profile.interval(), &|id| sampler.query(id))?;
        }
    }
    report.end(&profile.total(), &|id| sampler.query(id))?;
    let (cost, missed) = (sampler.cost(), ticks.missed());
    let looks = cost.rounds;
    ctx.say(format_args!(
        "{looks} looks, {missed} missed; {} of processor time",
        rows::shown(cost.cpu)
    ));
    match ended {
        Some(error) => Err(watched.explain(error)),
        None => Ok(Outcome::Done),
    }
}

fn query_options() -> QueryOptions {
    let normalise = |text: &str| howdah_sql::normalize(text.as_bytes()).to_string();
    QueryOptions { text_bytes: 1024, normalise: Box::new(normalise), texts_max: 10_000 }
}

struct Printer<'a> {
    ctx: &'a Context,
    rows: Rows<'a>,
    args: &'a Args,
    source: &'static str,
    lacks: Option<&'static str>,
}

/// The text of a statement by its number.
type TextOf<'t> = dyn Fn(QueryId) -> Option<&'t str> + 't;

impl<'a> Printer<'a> {
    fn new(
        ctx: &'a Context,
        args: &'a Args,
        (source, lacks): (&'static str, Option<&'static str>),
    ) -> Self {
        let rows = Rows::new(ctx, args.watch.format, COLUMNS);
        Self { ctx, rows, args, source, lacks }
    }

    /// The three events that took most database time, in one line.
    fn interval(&mut self, report: &Report, texts: &TextOf<'_>) -> io::Result<()> {
        if self.args.watch.format != Format::Table {
            return self.write("interval", report, texts);
        }
        let time = rows::time(SystemTime::now());
        let busy = report.database_time.as_secs_f64() / report.elapsed.as_secs_f64().max(1e-9);
        let top: Vec<_> = self
            .shown(report)
            .take(TOP)
            .map(|row| format!("{} {:.0} %", row.event, 100.0 * row.share.unwrap_or_default()))
            .collect();
        writeln!(self.ctx.stdout(), "{time}  {busy:>6.2} active  {}", top.join(", "))
    }

    fn end(&mut self, report: &Report, texts: &TextOf<'_>) -> io::Result<()> {
        if self.args.watch.format != Format::Table {
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
        for row in self.shown(report).take(ROWS_SHOWN) {
            let share = row.share.map_or_else(|| "-".to_owned(), |s| format!("{:.1} %", 100.0 * s));
            let (time, kind) = (row.time.as_secs_f64(), row.kind.name());
            let query = text(row.query, texts).map_or_else(String::new, |q| format!("  {q}"));
            writeln!(
                out,
                "{share:>8} {time:>9.3} s {:>9.2}  {kind:<24} {}{query}",
                row.processes, row.event
            )?;
        }
        let more = self.shown(report).count().saturating_sub(ROWS_SHOWN);
        if more > 0 {
            writeln!(out, "{:>8} and {more} more rows (--format csv has all)", "")?;
        }
        out.flush()
    }

    fn write(&mut self, kind: &str, report: &Report, texts: &TextOf<'_>) -> io::Result<()> {
        let time = rows::time(SystemTime::now());
        let shown: Vec<_> = self.shown(report).copied().collect();
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
                ("lacks", json!(self.lacks)),
            ])?;
        }
        Ok(())
    }

    fn shown<'r>(&self, report: &'r Report) -> impl Iterator<Item = &'r Row> + use<'r> {
        let all = self.args.all;
        report.rows.iter().filter(move |row| all || row.group == Group::Database)
    }
}

/// Events in a line of an interval.
const TOP: usize = 4;
/// Rows in the table at the end.
const ROWS_SHOWN: usize = 40;

fn group(group: Group) -> &'static str {
    match group {
        Group::Database => "database",
        Group::Background => "background",
        Group::Idle => "idle",
    }
}

/// A statement in one line. It is text of a client's: what could steer a terminal is not shown.
fn text(query: Option<QueryId>, texts: &TextOf<'_>) -> Option<String> {
    let text = texts(query?)?;
    Some(text.split(|c: char| c.is_whitespace() || c.is_control()).collect::<Vec<_>>().join(" "))
}
