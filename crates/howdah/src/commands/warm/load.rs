//! `howdah warm load`: an image into a server's buffer cache.

use std::{
    collections::BTreeSet,
    io::{self, Write},
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::Context as _;
use howdah_warm::{
    diff::Known,
    load::{self, Event, Loaded, MAX_JOBS, Observer, Options, Outcome as Relation},
    metrics::{Numbers, name_of},
};
use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;

use crate::{
    connection::ConnectionArgs,
    context::{Context, Talk},
    errors::{self, WithHint as _},
    format::{self, Format},
    metrics::MetricsArgs,
    outcome::Outcome,
    progress::Total,
    values::{DATA_RATE_MAX, data_rate, short_time_above_zero, time_or_zero},
};

/// Load an image into a server's buffer cache, the hottest pages first.
///
/// On the cluster of the image, relations are found by their files, so they may have been renamed; elsewhere,
/// and where they were rewritten, by name, so the server may be a copy. What is in the cache stays there: loading ends where no buffer is free, unless --evict is given. What
/// is there already is not loaded again, so a load that was stopped goes on where it ended.
///
/// Exits with 0 if enough of the image is in the cache afterwards, with 3 if less than --min-resident is,
/// with 1 if the server or the image cannot be read. Pages that had no room and relations that were not
/// found count as missing. For a cache smaller than the image, a full cache of its pages is all of it.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The server: a URI, a keyword string, or a database's name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Connections that load at once
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS as u64))]
    jobs: u64,
    /// Load at most so much a second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// Slow down while a small query takes longer
    #[arg(long, value_name = "TIME", value_parser = short_time_above_zero)]
    max_latency: Option<Duration>,
    /// Push out what is in the cache, if there is no room left
    #[arg(long)]
    evict: bool,
    /// Only so many pages of the image, the hottest
    #[arg(long, value_name = "PAGES")]
    limit: Option<u64>,
    /// Load what the image has of database FROM into database TO; repeat for more
    #[arg(long, value_name = "FROM=TO", value_parser = database_names)]
    map_database: Vec<(String, String)>,
    /// How long to wait for a server that starts, stops or cannot be reached
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time_or_zero)]
    wait: Duration,
    /// How long to wait for a relation that another session has locked
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = short_time_above_zero)]
    lock_timeout: Duration,
    /// Percentage of the image that has to be in the cache afterwards
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    min_resident: u64,
    /// Load nothing, only look whether it is there
    #[arg(long)]
    check: bool,
    /// How to print the result
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm load shop.cache postgresql://standby/shop
  howdah warm load shop.cache -h db1 -d shop --jobs 4 --max-rate 200MB --max-latency 5ms
  howdah warm load shop.cache -h db1 --check --min-resident 95    # for a readiness probe";

pub(super) fn run(args: &Args, ctx: &Context) -> anyhow::Result<Outcome> {
    let image = super::open(&args.image)?;
    for (from, _) in &args.map_database {
        if !image.databases.values().any(|name| name == from) {
            let names: Vec<_> = image.databases.values().map(String::as_str).collect();
            return Err(errors::wrong_usage(format_args!("the image has no database {from:?}")))
                .hint(format_args!("it has {}", names.join(", ")));
        }
    }
    let target = args.connection.target(args.server.as_deref())?;
    let options = Options {
        jobs: usize::try_from(args.jobs).unwrap_or(MAX_JOBS),
        bytes_per_second: args.max_rate,
        max_latency: args.max_latency,
        evict: args.evict,
        limit: args.limit,
        database_names: args.map_database.iter().cloned().collect(),
        lock_timeout: args.lock_timeout,
        patience: args.wait,
        only_look: args.check,
        ..Options::default()
    };
    let watcher = Watcher {
        bar: ctx.progress(Total::Bytes(0), "loading"),
        page_bytes: u64::from(image.origin.page_bytes),
        talk: ctx.talk(),
        waits: AtomicBool::new(false),
        interrupted: ctx.interrupted(),
    };
    let _metrics = args.metrics.serve(ctx)?;
    let numbers = Numbers::new(ctx.registry(), &name_of(&target));
    let loaded = load::load(&image, &target, &options, &numbers.progress(&watcher));
    watcher.bar.finish_and_clear();
    match &loaded {
        Ok(loaded) => numbers.loaded(loaded),
        Err(_) => numbers.load_failed(),
    }
    let loaded = loaded.with_context(|| format!("cannot load {}", args.image.display()))?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &loaded)?,
        Format::Json => format::write_json(&mut out, &document(&loaded))?,
    }
    drop(out);
    if loaded.is_cut_short && !args.check {
        return Err(errors::with_hint(
            anyhow::anyhow!("interrupted before all was loaded"),
            "the same command goes on where it ended",
        ));
    }
    let is_enough = loaded.share() * 100.0 >= args.min_resident as f64;
    if loaded.is_origin_unknown {
        ctx.say(
            "the image does not say which cluster it is from: file numbers were taken for this one's",
        );
    }
    if let Err(unseen) = loaded.residency {
        ctx.say(format_args!("{:#}", anyhow::Error::from(unseen)));
    }
    Ok(if is_enough { Outcome::Done } else { Outcome::No })
}

/// `FROM=TO`, neither of them empty.
fn database_names(word: &str) -> Result<(String, String), &'static str> {
    match word.split_once('=') {
        Some((from, to)) if !from.is_empty() && !to.is_empty() => {
            Ok((from.to_owned(), to.to_owned()))
        }
        _ => Err("give two names of databases, as in shop=shop_copy"),
    }
}

/// Shows the person at the terminal what happens.
struct Watcher {
    bar: ProgressBar,
    page_bytes: u64,
    talk: Talk,
    /// Whether it was said that the server is waited for.
    waits: AtomicBool,
    interrupted: Arc<AtomicBool>,
}

impl Observer for Watcher {
    fn planned(&self, pages: u64) {
        self.bar.set_length(pages * self.page_bytes);
        self.bar.reset();
        self.waits.store(false, Ordering::Relaxed);
    }

    fn advanced(&self, pages: u64) {
        self.bar.inc(pages * self.page_bytes);
    }

    fn said(&self, event: &Event) {
        match event {
            Event::Waiting { failure } if !self.waits.swap(true, Ordering::Relaxed) => {
                self.talk.say(format_args!("waiting for the server: {failure}"));
            }
            Event::Restarted => {
                self.talk.say("the server was restarted and its cache is empty: beginning anew");
            }
            _ => {}
        }
    }

    fn wants_end(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The document of `--format json`. Counts are in pages.
#[derive(Serialize)]
struct Document {
    version: u32,
    page_bytes: u32,
    seconds: f64,
    interrupted: bool,
    /// Of the image, 0 to 1: what the exit code goes by.
    share: f64,
    /// Of what was found and had room.
    plan_share: f64,
    /// Pages in the cache of an image that is there as a whole.
    expected: u64,
    /// Pages of the image in the cache now.
    in_cache: u64,
    /// Pages that `--limit` left out.
    limited: u64,
    /// Whether the image does not say which cluster it is from.
    origin_unknown: bool,
    /// Who looked at the cache afterwards; nothing if nobody could.
    seen_by: Option<&'static str>,
    #[serde(flatten)]
    pages: Counts,
    relations: Vec<Row>,
}

#[derive(Clone, Copy, Serialize)]
struct Counts {
    in_image: u64,
    beyond_end: u64,
    not_found: u64,
    wanted: u64,
    resident: u64,
    loaded: u64,
    no_room: u64,
    failed: u64,
}

#[derive(Serialize)]
struct Row {
    database: String,
    relation: String,
    #[serde(flatten)]
    pages: Counts,
    rewritten: bool,
    /// Its database and name now, if it was found by its file and was renamed.
    renamed_to: Option<String>,
    ways: Vec<&'static str>,
    problem: Option<String>,
}

fn document(loaded: &Loaded) -> Document {
    Document {
        version: 1,
        page_bytes: loaded.page_bytes,
        seconds: loaded.elapsed.as_secs_f64(),
        interrupted: loaded.is_cut_short,
        share: loaded.share(),
        plan_share: loaded.plan_share(),
        expected: loaded.expected(),
        in_cache: loaded.resident(),
        limited: loaded.limited,
        origin_unknown: loaded.is_origin_unknown,
        seen_by: loaded.residency.as_ref().ok().map(|seen| seen.source.name()),
        pages: counts(loaded.pages()),
        relations: loaded.outcomes.iter().map(row).collect(),
    }
}

fn counts(pages: load::Pages) -> Counts {
    let load::Pages { in_image, beyond_end, not_found, wanted, resident, loaded, no_room, failed } =
        pages;
    Counts { in_image, beyond_end, not_found, wanted, resident, loaded, no_room, failed }
}

fn row(relation: &Relation) -> Row {
    Row {
        database: relation.database.clone().unwrap_or_else(|| "(shared)".to_owned()),
        relation: match &relation.relation {
            Known::Named(name) => name.to_string(),
            Known::File(file) => {
                format!("(file {} in tablespace {})", file.filenode, file.tablespace)
            }
        },
        pages: counts(relation.pages),
        rewritten: relation.is_rewritten,
        renamed_to: relation.renamed.as_ref().map(|now| format!("{} {}", now.database, now.name)),
        ways: relation.ways.iter().map(|way| way.name()).collect(),
        problem: relation.problem.as_ref().map(ToString::to_string),
    }
}

fn table(out: &mut impl Write, loaded: &Loaded) -> io::Result<()> {
    let pages = loaded.pages();
    let bytes = |pages: u64| BinaryBytes(pages * u64::from(loaded.page_bytes));
    let seconds = loaded.elapsed.as_secs_f64();
    writeln!(
        out,
        "loaded    {} in {seconds:.1} s, {}/s",
        bytes(pages.loaded),
        BinaryBytes((bytes(pages.loaded).0 as f64 / seconds.max(0.001)) as u64)
    )?;
    writeln!(out, "resident  {} before", bytes(pages.resident))?;
    for (what, count) in [
        ("no room   ", pages.no_room),
        ("failed    ", pages.failed),
        ("beyond end", pages.beyond_end),
        ("not found ", pages.not_found),
        ("limited   ", loaded.limited),
    ] {
        if count > 0 {
            writeln!(out, "{what} {}", bytes(count))?;
        }
    }
    let troubled: Vec<_> =
        loaded.outcomes.iter().filter(|relation| relation.problem.is_some()).map(row).collect();
    if !troubled.is_empty() {
        writeln!(out, "\n{:>10} {:>10}  RELATION", "PAGES", "NOT LOADED")?;
    }
    for Row { database, relation, pages, problem, .. } in &troubled {
        let missing = pages.in_image.saturating_sub(pages.resident + pages.loaded);
        let problem = problem.as_deref().unwrap_or_default();
        writeln!(out, "{:>10} {missing:>10}  {database} {relation}: {problem}", pages.in_image)?;
    }
    if !troubled.is_empty() {
        writeln!(out)?;
    }
    renamed(out, loaded)?;
    let (resident, expected) = (loaded.resident(), loaded.expected());
    let how = match &loaded.residency {
        Ok(seen) => format!("seen by {}", seen.source.name()),
        Err(_) => "as counted while loading; the cache could not be read".to_owned(),
    };
    writeln!(
        out,
        "{:.1} % of the image is resident ({resident} of {expected} pages, {how})",
        loaded.share() * 100.0
    )?;
    let (planned, of_plan) = match &loaded.residency {
        Ok(seen) => (seen.planned, seen.resident),
        Err(_) => (pages.wanted - pages.no_room, pages.resident + pages.loaded),
    };
    writeln!(
        out,
        "{:.1} % of what was found and had room ({of_plan} of {planned} pages)",
        loaded.plan_share() * 100.0
    )
}

/// What was found under another name: a renamed database once, with all that is in it.
fn renamed(out: &mut impl Write, loaded: &Loaded) -> io::Result<()> {
    let mut databases = BTreeSet::new();
    for outcome in &loaded.outcomes {
        let Some(load::Renamed { database, name, is_name_taken }) = &outcome.renamed else {
            continue;
        };
        if let Some(before) = outcome.database.as_deref().filter(|before| before != database)
            && databases.insert((before, database))
        {
            writeln!(out, "renamed   database {before} is now {database}")?;
        }
        if let Known::Named(before) = &outcome.relation
            && before.to_string() != name.to_string()
        {
            let taken = if *is_name_taken { "; another relation has the old name" } else { "" };
            writeln!(out, "renamed   {database} {before} is now {name}{taken}")?;
        }
    }
    Ok(())
}
