//! `howdah warm load`: loads an image into a server's buffer cache.

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
    CacheImage,
    diff::RelationIdentity,
    image::{RelationName, SelectedImage},
    load::{
        self, LoadEvent, LoadForecast, LoadObserver, LoadOptions, LoadReport, MAX_JOBS,
        PageMapping, RelationOutcome as Relation,
    },
    metrics::{WarmMetrics, server_label},
};
use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;

use super::{dry_run, selection::SelectionArgs};
use crate::{
    connection::ConnectionArgs,
    context::{CommandContext, Messages},
    errors::{self, WithHint as _},
    format::{self, Format},
    metrics::MetricsArgs,
    outcome::CommandOutcome,
    progress::Total,
    values::{DATA_RATE_MAX, data_rate, short_time_above_zero, time_or_zero},
};

/// Load an image into a server's buffer cache, the hottest pages first.
///
/// On the image's own cluster, relations are found by their files, so they may have been renamed;
/// on others, and where they were rewritten, by name, so the server may be a copy. Pages in the
/// cache are not evicted: loading ends when no buffer is free, unless --evict is given. Pages
/// already in the cache are not loaded again, so an interrupted load continues where it stopped.
///
/// Exits with 0 if enough of the image is in the cache at the end, with 3 if it is less than
/// --min-resident, and with 1 if the server or the image cannot be read. Pages without room and
/// relations that were not found count as missing. If the cache is smaller than the image, a cache
/// full of its pages counts as 100 %.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The image to load
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Number of connections that load concurrently
    #[arg(short, long, value_name = "COUNT", default_value_t = 2,
        value_parser = clap::value_parser!(u64).range(1..=MAX_JOBS as u64))]
    jobs: u64,
    /// Maximum rate of loading, per second
    #[arg(long, value_name = "SIZE", value_parser = data_rate(DATA_RATE_MAX))]
    max_rate: Option<u64>,
    /// Slow down while a small test query takes longer than this
    #[arg(long, value_name = "TIME", value_parser = short_time_above_zero)]
    max_latency: Option<Duration>,
    /// Evict other pages if no buffer is free
    #[arg(long)]
    evict: bool,
    /// Do not restore usage counts; then scans of cold tables soon evict the loaded pages
    #[arg(long)]
    no_usage: bool,
    /// Load at most this many pages, hottest first
    #[arg(long, value_name = "PAGES")]
    limit: Option<u64>,
    /// Load pages of the image's database FROM into database TO; repeatable
    #[arg(long, value_name = "FROM=TO", value_parser = database_names)]
    map_database: Vec<(String, String)>,
    /// Load pages of relations in the image's schema FROM into those in schema TO; repeatable
    #[arg(long, value_name = "FROM=TO", value_parser = schema_names)]
    map_schema: Vec<(String, String)>,
    /// How long to wait for a server that is starting, stopping or unreachable
    #[arg(long, value_name = "TIME", default_value = "1m", value_parser = time_or_zero)]
    wait: Duration,
    /// How long to wait for a relation locked by another session
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = short_time_above_zero)]
    lock_timeout: Duration,
    /// Minimum percentage of the image that must be in the cache at the end
    #[arg(long, value_name = "PERCENT", default_value_t = 90,
        value_parser = clap::value_parser!(u64).range(0..=100))]
    min_resident: u64,
    /// Load nothing, only check whether the image is in the cache
    #[arg(long)]
    check: bool,
    /// Load nothing, show what would be loaded per relation, and estimate the time
    ///
    /// Up to 16 MiB of the files are read to estimate it, without using the server's buffers; this
    /// needs the extension pg_prewarm.
    #[arg(long, conflicts_with = "check")]
    dry_run: bool,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    #[command(flatten)]
    metrics: MetricsArgs,
    #[command(flatten)]
    selection: SelectionArgs,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm load shop.cache postgresql://standby/shop
  howdah warm load shop.cache -h db1 -d shop --jobs 4 --max-rate 200MB --max-latency 5ms
  howdah warm load shop.cache -h db1 -d shop --relation 'orders*' --min-usage 2 --dry-run
  howdah warm load shop.cache -h db1 --check --min-resident 95    # for a readiness probe";

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let image = super::open(&args.image)?;
    check_mapped("database", &args.map_database, image.databases.values().map(String::as_str))?;
    check_mapped("schema", &args.map_schema, schemas(&image))?;
    let SelectedImage { image, not_selected } = args.selection.select(image)?;
    let target = args.connection.target(args.server.as_deref())?;
    let options = LoadOptions {
        jobs: usize::try_from(args.jobs).unwrap_or(MAX_JOBS),
        bytes_per_second: args.max_rate,
        max_latency: args.max_latency,
        evict: args.evict,
        limit: args.limit,
        database_names: args.map_database.iter().cloned().collect(),
        schema_names: args.map_schema.iter().cloned().collect(),
        lock_timeout: args.lock_timeout,
        connect_timeout: args.wait,
        dry_run: args.check,
        restore_usage: !args.no_usage,
        ..LoadOptions::default()
    };
    let progress = LoadProgress {
        bar: ctx.progress(Total::Bytes(0), "loading"),
        page_bytes: u64::from(image.origin.page_bytes),
        messages: ctx.messages(),
        waits: AtomicBool::new(false),
        interrupted: ctx.interrupted(),
    };
    let _metrics = args.metrics.serve(ctx)?;
    if args.dry_run {
        let forecast = load::forecast(&image, &target, &options, &progress);
        progress.bar.finish_and_clear();
        let forecast = forecast.context("cannot plan the load")?;
        return report_forecast(args, ctx, forecast, not_selected);
    }
    let warm_metrics = WarmMetrics::new(ctx.registry(), &server_label(&target));
    let loaded = load::load(&image, &target, &options, &warm_metrics.progress(&progress));
    progress.bar.finish_and_clear();
    match &loaded {
        Ok(loaded) => warm_metrics.record_load(loaded),
        Err(_) => warm_metrics.record_load_failure(),
    }
    let loaded = loaded.with_context(|| format!("cannot load {}", args.image.display()))?;
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => table(&mut out, &loaded, not_selected)?,
        Format::Json => format::write_json(&mut out, &document(&loaded, args.check, not_selected))?,
    }
    drop(out);
    if loaded.is_cut_short && !args.check {
        return Err(errors::with_hint(
            anyhow::anyhow!("interrupted before all pages were loaded"),
            "run the same command again to continue",
        ));
    }
    let is_enough = loaded.share() * 100.0 >= args.min_resident as f64;
    if loaded.is_origin_unknown {
        ctx.report(ORIGIN_UNKNOWN);
    }
    if let Err(unseen) = loaded.residency {
        ctx.report(format_args!("{:#}", anyhow::Error::from(unseen)));
    }
    Ok(if is_enough { CommandOutcome::Done } else { CommandOutcome::CheckFailed })
}

const ORIGIN_UNKNOWN: &str =
    "the image does not record its cluster: assuming that it is from this cluster";

fn report_forecast(
    args: &Args,
    ctx: &CommandContext,
    forecast: LoadForecast,
    not_selected: u64,
) -> anyhow::Result<CommandOutcome> {
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => dry_run::table(&mut out, &forecast, not_selected)?,
        Format::Json => format::write_json(&mut out, &dry_run::document(&forecast, not_selected))?,
    }
    drop(out);
    if forecast.is_origin_unknown {
        ctx.report(ORIGIN_UNKNOWN);
    }
    if let Some(error) = forecast.scan_error {
        ctx.report(format_args!(
            "assuming that the cache is empty: {:#}",
            anyhow::Error::from(error)
        ));
    }
    Ok(CommandOutcome::Done)
}

/// Checks that the image has all names that are mapped to others.
fn check_mapped<'a>(
    kind: &str,
    mapped: &[(String, String)],
    names: impl Iterator<Item = &'a str>,
) -> anyhow::Result<()> {
    let names: BTreeSet<&str> = names.collect();
    match mapped.iter().find(|(from, _)| !names.contains(from.as_str())) {
        None => Ok(()),
        Some((from, _)) => {
            let names: Vec<_> = names.into_iter().collect();
            Err(errors::wrong_usage(format_args!("the image has no {kind} {from:?}")))
                .hint(format_args!("it has {}", names.join(", ")))
        }
    }
}

/// Returns the schemas of the image's relations, each as often as there are relations.
fn schemas(image: &CacheImage) -> impl Iterator<Item = &str> {
    let names = image.relations.iter().filter_map(|relation| relation.name.as_ref());
    names.map(|name| match name {
        RelationName::Own(name) | RelationName::Toast(name) | RelationName::ToastIndex(name) => {
            name.schema.as_str()
        }
    })
}

fn database_names(word: &str) -> Result<(String, String), &'static str> {
    mapped_names(word).ok_or("give two database names, as in shop=shop_copy")
}

fn schema_names(word: &str) -> Result<(String, String), &'static str> {
    mapped_names(word).ok_or("give two names of schemas, as in sales=sales_2026")
}

/// Parses `FROM=TO`; neither part may be empty.
fn mapped_names(word: &str) -> Option<(String, String)> {
    let (from, to) = word.split_once('=')?;
    (!from.is_empty() && !to.is_empty()).then(|| (from.to_owned(), to.to_owned()))
}

/// Observer that shows the progress of a load on the terminal.
struct LoadProgress {
    bar: ProgressBar,
    page_bytes: u64,
    messages: Messages,
    /// Whether it was reported that loading waits for the server.
    waits: AtomicBool,
    interrupted: Arc<AtomicBool>,
}

impl LoadObserver for LoadProgress {
    fn planned(&self, pages: u64) {
        self.bar.set_length(pages * self.page_bytes);
        self.bar.reset();
        self.waits.store(false, Ordering::Relaxed);
    }

    fn progressed(&self, pages: u64) {
        self.bar.inc(pages * self.page_bytes);
    }

    fn notify(&self, event: &LoadEvent) {
        match event {
            LoadEvent::Waiting { failure } if !self.waits.swap(true, Ordering::Relaxed) => {
                self.messages.report(format_args!("waiting for the server: {failure}"));
            }
            LoadEvent::Restarted => {
                self.messages
                    .report("the server was restarted and its cache is empty: starting over");
            }
            _ => {}
        }
    }

    fn should_stop(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }
}

/// The document of `--format json`. Counts are in pages.
#[derive(Serialize)]
struct LoadDocument {
    version: u32,
    page_bytes: u32,
    seconds: f64,
    interrupted: bool,
    /// Share of the `expected` pages that are in the cache, 0 to 1; determines the exit code.
    share: f64,
    /// Share of the planned pages that are in the cache, 0 to 1. Pages that were not found or had
    /// no room are not planned.
    plan_share: f64,
    /// Number of pages that would be in the cache after a complete load, at most the number of
    /// buffers.
    expected: u64,
    /// Pages of the image that are in the cache.
    in_cache: u64,
    /// Pages excluded by `--limit`.
    limited: u64,
    /// Pages excluded by `--database`, `--relation`, `--exclude` and `--min-usage`.
    not_selected: u64,
    /// Whether the image lacks a record of the cluster that it was taken from.
    origin_unknown: bool,
    /// The source from which the cache was read at the end; `None` if that was not possible.
    measured_by: Option<&'static str>,
    /// How far usage counts were restored; `None` with `--no-usage` or `--check`.
    usage: Option<UsageDocument>,
    #[serde(flatten)]
    pages: LoadPageCounts,
    relations: Vec<LoadRow>,
}

#[derive(Serialize)]
struct UsageDocument {
    /// Pages of the image that were in the cache after the load.
    pages: u64,
    /// Pages with at least the count of the image.
    restored: u64,
    /// Share of `pages` that is restored, 0 to 1.
    share: f64,
    touches: u64,
    seconds: f64,
    /// CPU time that the server used for the touches, and for loading.
    cpu_seconds: f64,
    load_cpu_seconds: f64,
    /// Whether CPU times were measured, not estimated.
    cpu_measured: bool,
}

#[derive(Clone, Copy, Serialize)]
struct LoadPageCounts {
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
struct LoadRow {
    database: String,
    relation: String,
    #[serde(flatten)]
    pages: LoadPageCounts,
    rewritten: bool,
    /// How pages of a rewritten relation were found.
    mapped_by: Option<&'static str>,
    /// Number of rows whose keys were found in a rewritten relation.
    key_rows: Option<usize>,
    /// Estimated percentage of the rows that sampled rows reach, if rows are in another order.
    sampled_percent: Option<u8>,
    /// Current database and name, if the relation was found by its file and has been renamed.
    renamed_to: Option<String>,
    methods: Vec<&'static str>,
    problem: Option<String>,
}

fn document(loaded: &LoadReport, is_check: bool, not_selected: u64) -> LoadDocument {
    LoadDocument {
        version: 1,
        page_bytes: loaded.page_bytes,
        seconds: loaded.elapsed.as_secs_f64(),
        interrupted: loaded.is_cut_short && !is_check,
        share: loaded.share(),
        plan_share: loaded.plan_share(),
        expected: loaded.expected(),
        in_cache: loaded.resident(),
        limited: loaded.limited,
        not_selected,
        origin_unknown: loaded.is_origin_unknown,
        measured_by: loaded.residency.as_ref().ok().map(|scan| scan.source.name()),
        usage: loaded.usage.as_ref().map(usage_document),
        pages: counts(loaded.pages()),
        relations: loaded.outcomes.iter().map(row).collect(),
    }
}

fn usage_document(usage: &load::UsageReport) -> UsageDocument {
    UsageDocument {
        pages: usage.pages,
        restored: usage.restored,
        share: usage.share(),
        touches: usage.touches,
        seconds: usage.elapsed.as_secs_f64(),
        cpu_seconds: usage.cpu.as_secs_f64(),
        load_cpu_seconds: usage.load_cpu.as_secs_f64(),
        cpu_measured: usage.is_cpu_measured,
    }
}

fn counts(pages: load::PageCounts) -> LoadPageCounts {
    let load::PageCounts {
        in_image,
        beyond_end,
        not_found,
        requested: wanted,
        resident,
        loaded,
        no_room,
        failed,
    } = pages;
    LoadPageCounts { in_image, beyond_end, not_found, wanted, resident, loaded, no_room, failed }
}

fn row(relation: &Relation) -> LoadRow {
    let (database, name) = super::relation_label(relation);
    LoadRow {
        database,
        relation: name,
        pages: counts(relation.pages),
        rewritten: relation.is_rewritten,
        mapped_by: relation.mapped_by.map(PageMapping::name),
        key_rows: relation.mapped_by.and_then(|mapping| match mapping {
            PageMapping::Length => None,
            PageMapping::Keys { rows }
            | PageMapping::SampledRows { rows, .. }
            | PageMapping::Descents { rows } => Some(rows),
        }),
        sampled_percent: relation.mapped_by.and_then(|mapping| match mapping {
            PageMapping::SampledRows { percent, .. } => Some(percent),
            _ => None,
        }),
        renamed_to: relation.renamed.as_ref().map(|now| format!("{} {}", now.database, now.name)),
        methods: relation.methods.iter().map(|method| method.name()).collect(),
        problem: relation.problem.as_ref().map(ToString::to_string),
    }
}

fn table(out: &mut impl Write, loaded: &LoadReport, not_selected: u64) -> io::Result<()> {
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
        ("unselected", not_selected),
    ] {
        if count > 0 {
            writeln!(out, "{what} {}", bytes(count))?;
        }
    }
    if let Some(usage) = &loaded.usage {
        let about = if usage.is_cpu_measured { "" } else { "about " };
        writeln!(
            out,
            "usage     counts of {:.1} % of the pages restored: {} touches, {about}{:.2} s of CPU",
            usage.share() * 100.0,
            usage.touches,
            usage.cpu.as_secs_f64()
        )?;
    }
    let troubled: Vec<_> =
        loaded.outcomes.iter().filter(|relation| relation.problem.is_some()).map(row).collect();
    if !troubled.is_empty() {
        writeln!(out, "\n{:>10} {:>10}  RELATION", "PAGES", "NOT LOADED")?;
    }
    for LoadRow { database, relation, pages, problem, .. } in &troubled {
        let missing = pages.in_image.saturating_sub(pages.resident + pages.loaded);
        let problem = problem.as_deref().unwrap_or_default();
        writeln!(out, "{:>10} {missing:>10}  {database} {relation}: {problem}", pages.in_image)?;
    }
    if !troubled.is_empty() {
        writeln!(out)?;
    }
    rewritten(out, loaded)?;
    renamed(out, loaded)?;
    let (resident, expected) = (loaded.resident(), loaded.expected());
    let how = match &loaded.residency {
        Ok(scan) => format!("measured by {}", scan.source.name()),
        Err(_) => "counted while loading, because the cache could not be read".to_owned(),
    };
    writeln!(
        out,
        "{:.1} % of the image is resident ({resident} of {expected} pages, {how})",
        loaded.share() * 100.0
    )?;
    let (planned, of_plan) = match &loaded.residency {
        Ok(scan) => (scan.planned, scan.resident),
        Err(_) => (pages.requested - pages.no_room, pages.resident + pages.loaded),
    };
    writeln!(
        out,
        "{:.1} % of the pages that were found and had room ({of_plan} of {planned} pages)",
        loaded.plan_share() * 100.0
    )
}

/// Lists the rewritten relations with most pages, and how their pages were found.
fn rewritten(out: &mut impl Write, loaded: &LoadReport) -> io::Result<()> {
    const LISTED: usize = 20;
    let mut relations: Vec<_> = loaded
        .outcomes
        .iter()
        .filter_map(|relation| Some((relation, relation.mapped_by?)))
        .filter(|(relation, _)| relation.pages.requested > 0)
        .collect();
    relations.sort_by_key(|(relation, _)| std::cmp::Reverse(relation.pages.in_image));
    for (relation, mapping) in relations.iter().take(LISTED) {
        let LoadRow { database, relation, .. } = row(relation);
        writeln!(out, "rewritten {database} {relation}: {mapping}")?;
    }
    if relations.len() > LISTED {
        let more = relations.len() - LISTED;
        writeln!(out, "rewritten {more} more relations: --format json lists all")?;
    }
    Ok(())
}

/// Lists renamed relations; a renamed database is listed once.
fn renamed(out: &mut impl Write, loaded: &LoadReport) -> io::Result<()> {
    let mut databases = BTreeSet::new();
    for outcome in &loaded.outcomes {
        let Some(load::RenamedRelation { database, name, is_name_taken }) = &outcome.renamed else {
            continue;
        };
        if let Some(before) = outcome.database.as_deref().filter(|before| before != database)
            && databases.insert((before, database))
        {
            writeln!(out, "renamed   database {before} is now {database}")?;
        }
        if let RelationIdentity::Named(before) = &outcome.relation
            && before.to_string() != name.to_string()
        {
            let taken = if *is_name_taken { "; another relation has the old name" } else { "" };
            writeln!(out, "renamed   {database} {before} is now {name}{taken}")?;
        }
    }
    Ok(())
}
