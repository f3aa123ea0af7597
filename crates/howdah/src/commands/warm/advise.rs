//! `howdah warm advise`: reports what fills a server's cache, what would fit, and what memory
//! costs.

use std::io::{self, Write};

use howdah_warm::{
    advise::{self, Alternative, CacheAdvice, CacheCandidate, FAULT_US, RelationUsage},
    image::CacheImage,
};
use indicatif::BinaryBytes;
use serde::Serialize;

use super::dump::{PageSourceArg, dump_error, report_gaps};
use crate::{connection::ConnectionArgs, context::CommandContext, outcome::CommandOutcome};

/// Show what fills a server's buffer cache, what would fit, and the overhead of its memory.
///
/// Changes nothing. Pages and usage counts are read as by `howdah warm dump`; sizes of relations
/// that are not cached are as of the last VACUUM or ANALYZE.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = EXAMPLES)]
pub(super) struct Args {
    /// The server: a URI, a keyword string or a database name
    #[arg(value_name = "URI")]
    server: Option<String>,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: AdviceFormat,
    /// Number of relations in each list; 0 for all [default: 15 in a table, all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
    /// Where to read the cached pages from
    #[arg(long, value_enum, value_name = "SOURCE", default_value_t)]
    source: PageSourceArg,
    #[command(flatten)]
    connection: ConnectionArgs,
}

const EXAMPLES: &str = "\
Examples:
  howdah warm advise postgresql://localhost/shop
  howdah warm advise -h db1 -d shop --format json";

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum AdviceFormat {
    /// A table for people
    #[default]
    Table,
    /// One JSON document
    Json,
}

const TABLE_RELATIONS: usize = 15;

/// The document of `--format json`. Sizes are in pages, unless the name ends with `bytes`.
#[derive(Serialize)]
struct AdviceDocument {
    version: u32,
    page_bytes: u32,
    source: &'static str,
    buffers: u64,
    free: u64,
    usage: [u64; 6],
    hits: u64,
    reads: u64,
    relations: Vec<RelationUsageRow>,
    alternatives: Vec<AlternativeRow>,
    candidates: Vec<CandidateRow>,
    memory: MemoryRow,
}

#[derive(Serialize)]
struct RelationUsageRow {
    database: String,
    relation: String,
    pages: u64,
    length: Option<u32>,
    dirty: u64,
    usage: [u64; 6],
}

#[derive(Serialize)]
struct AlternativeRow {
    buffers: u64,
    keeps: u64,
    keeps_hot: u64,
    verdict: &'static str,
}

#[derive(Serialize)]
struct CandidateRow {
    relation: String,
    length: u64,
    cached: u64,
    heat: f64,
    sum: u64,
    fits: bool,
}

#[derive(Serialize)]
struct MemoryRow {
    bytes: u64,
    huge_pages: String,
    huge_pages_in_use: Option<bool>,
    huge_page_count: Option<u64>,
    first_touch_faults: u64,
    first_touch_seconds: f64,
    table_bytes_per_session: u64,
    table_bytes_now: u64,
    table_bytes_max: u64,
    table_bytes_measured: Option<u64>,
    sessions: u64,
    max_connections: u64,
}

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let target = args.connection.target(args.server.as_deref())?;
    let advice = advise::advise(&target, args.source.into()).map_err(dump_error)?;
    report_gaps(ctx, &advice.dumped);
    let mut out = ctx.stdout();
    match args.format {
        AdviceFormat::Table => {
            let limit = super::limit(args.limit, TABLE_RELATIONS);
            table(&mut out, &advice, target.database(), limit)?;
        }
        AdviceFormat::Json => {
            let document = document(&advice, super::limit(args.limit, usize::MAX));
            serde_json::to_writer_pretty(&mut out, &document).map_err(io::Error::from)?;
            writeln!(out)?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn document(advice: &CacheAdvice, limit: usize) -> AdviceDocument {
    let image = &advice.dumped.image;
    let (facts, memory) = (&advice.memory_info, &advice.memory);
    let relations = advice.relations.iter().take(limit).map(|filling| {
        let (database, relation) = super::names(image, &image.relations[filling.index]);
        let &RelationUsage { pages, length, dirty, usage, .. } = filling;
        RelationUsageRow { database, relation, pages, length, dirty, usage }
    });
    let alternatives = advice.alternatives.iter().map(|it| AlternativeRow {
        buffers: it.buffers,
        keeps: it.kept,
        keeps_hot: it.kept_hot,
        verdict: it.assessment.name(),
    });
    let candidates = advice.candidates.iter().take(limit).map(|it| {
        let &CacheCandidate { length, cached, heat, sum, fits, .. } = it;
        CandidateRow { relation: it.name.to_string(), length, cached, heat, sum, fits }
    });
    AdviceDocument {
        version: 1,
        page_bytes: image.origin.page_bytes,
        source: image.origin.source.name(),
        buffers: image.origin.buffers.into(),
        free: advice.free,
        usage: advice.usage,
        hits: facts.hits_and_reads.0,
        reads: facts.hits_and_reads.1,
        relations: relations.collect(),
        alternatives: alternatives.collect(),
        candidates: candidates.collect(),
        memory: MemoryRow {
            bytes: memory.bytes,
            huge_pages: facts.huge_pages.setting.clone(),
            huge_pages_in_use: facts.huge_pages.in_use(),
            huge_page_count: facts.huge_page_count,
            first_touch_faults: memory.faults,
            first_touch_seconds: memory.fault_seconds,
            table_bytes_per_session: memory.table_bytes_per_session,
            table_bytes_now: memory.table_bytes_now,
            table_bytes_max: memory.table_bytes_max,
            table_bytes_measured: memory.table_bytes_measured,
            sessions: facts.sessions,
            max_connections: facts.max_connections,
        },
    }
}

fn table(
    out: &mut impl Write,
    advice: &CacheAdvice,
    database: &str,
    limit: usize,
) -> io::Result<()> {
    let image = &advice.dumped.image;
    writeln!(out, "cache     {}", super::cached(image))?;
    let [cold, one, two, three, four, five] = advice.usage;
    writeln!(out, "usage     0: {cold}  1: {one}  2: {two}  3: {three}  4: {four}  5: {five}")?;
    writeln!(out, "free      {} buffers", advice.free)?;
    let (hits, reads) = advice.memory_info.hits_and_reads;
    writeln!(out, "reads     {} of {} were cache hits", share(hits, hits + reads), hits + reads)?;
    writeln!(out, "\nCACHED RELATIONS")?;
    filling(out, image, &advice.relations, limit)?;
    writeln!(out, "\nOTHER CACHE SIZES, estimated from usage counts")?;
    alternatives(out, image, &advice.alternatives)?;
    writeln!(out, "\nRELATIONS OF DATABASE {database} THAT WOULD FIT, most used per page first")?;
    candidates(out, image, &advice.candidates, limit)?;
    writeln!(out, "\nMEMORY")?;
    memory(out, advice)
}

fn filling(
    out: &mut impl Write,
    image: &CacheImage,
    rows: &[RelationUsage],
    limit: usize,
) -> io::Result<()> {
    let buffers = u64::from(image.origin.buffers);
    let names: Vec<_> =
        rows.iter().map(|row| super::names(image, &image.relations[row.index])).collect();
    let width = names.iter().take(limit).map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0).max(8);
    writeln!(
        out,
        "{:>12} {:>8} {:>6} {:>6}  {:>23}  {:width$}  RELATION",
        "CACHED", "OF CACHE", "OF IT", "DIRTY", "USAGE 0 1 2 3 4 5, %", "DATABASE"
    )?;
    for (row, (database, relation)) in rows.iter().zip(&names).take(limit) {
        let of_it = row
            .length
            .map_or("n/a".to_owned(), |length| share(row.pages.min(length.into()), length.into()));
        let usage = row.usage.map(|pages| format!("{:>3}", pages * 100 / row.pages.max(1)));
        writeln!(
            out,
            "{:>12} {:>8} {of_it:>6} {:>6}  {:>23}  {database:width$}  {relation}",
            bytes(image, row.pages),
            share(row.pages, buffers),
            share(row.dirty, row.pages),
            usage.join(" "),
        )?;
    }
    more(out, rows.len(), limit)
}

fn alternatives(out: &mut impl Write, image: &CacheImage, rows: &[Alternative]) -> io::Result<()> {
    writeln!(out, "{:>14} {:>12} {:>12}  ", "SHARED_BUFFERS", "KEEPS", "HOT OF IT")?;
    for row in rows {
        writeln!(
            out,
            "{:>14} {:>12} {:>12}  {}",
            bytes(image, row.buffers),
            bytes(image, row.kept),
            bytes(image, row.kept_hot),
            row.assessment.description()
        )?;
    }
    writeln!(out, "Usage counts do not show which further pages a larger cache would contain.")
}

fn candidates(
    out: &mut impl Write,
    image: &CacheImage,
    rows: &[CacheCandidate],
    limit: usize,
) -> io::Result<()> {
    writeln!(
        out,
        "{:>12} {:>6} {:>5} {:>12} {:>5}  RELATION",
        "SIZE", "CACHED", "HEAT", "SUM", "FITS"
    )?;
    for row in rows.iter().take(limit) {
        writeln!(
            out,
            "{:>12} {:>6} {:>5.2} {:>12} {:>5}  {}",
            bytes(image, row.length),
            share(row.cached, row.length),
            row.heat,
            bytes(image, row.sum),
            if row.fits { "yes" } else { "no" },
            row.name
        )?;
    }
    more(out, rows.len(), limit)
}

fn memory(out: &mut impl Write, advice: &CacheAdvice) -> io::Result<()> {
    let (facts, memory) = (&advice.memory_info, &advice.memory);
    let huge = &facts.huge_pages;
    let status = match huge.in_use() {
        Some(true) => "in use",
        Some(false) => "not in use",
        None => "unknown: the server does not report it",
    };
    writeln!(out, "huge_pages = {}: {status}", huge.setting)?;
    writeln!(
        out,
        "first touch  {} page faults of 4 kB until the cache is full, about {:.1} s of CPU time \
        ({FAULT_US} µs each, measured on one virtual machine); huge pages reduce them to 1 in 512",
        memory.faults, memory.fault_seconds
    )?;
    writeln!(
        out,
        "page tables  {} per session that has touched all of {}; {} for the current sessions \
        ({}), {} for max_connections = {}",
        BinaryBytes(memory.table_bytes_per_session),
        BinaryBytes(memory.bytes),
        BinaryBytes(memory.table_bytes_now),
        facts.sessions,
        BinaryBytes(memory.table_bytes_max),
        facts.max_connections
    )?;
    if let Some(measured) = memory.table_bytes_measured {
        writeln!(out, "             {} now, in all processes", BinaryBytes(measured))?;
    }
    let is_worth_it = memory.fault_seconds >= 0.1 || memory.table_bytes_max >= 64 << 20;
    if huge.in_use() != Some(true) && is_worth_it {
        let count = facts.huge_page_count.filter(|&count| count > 0);
        let count = count.map_or("enough huge pages".to_owned(), |count| format!("{count}"));
        writeln!(
            out,
            "advice       set vm.nr_hugepages to {count} and huge_pages = on, to save most of both"
        )?;
    }
    Ok(())
}

fn bytes(image: &CacheImage, pages: u64) -> String {
    BinaryBytes(pages * u64::from(image.origin.page_bytes)).to_string()
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "n/a".to_owned(),
        whole => format!("{:.1}%", part as f64 * 100.0 / whole as f64),
    }
}

fn more(out: &mut impl Write, rows: usize, limit: usize) -> io::Result<()> {
    match rows.saturating_sub(limit) {
        0 => Ok(()),
        more => writeln!(out, "{more} more: --limit 0 shows all"),
    }
}
