//! `howdah warm info`: describes an image.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use howdah_traffic::Timestamp;
use howdah_warm::{
    CacheImage,
    image::{Fork, Relation},
};
use indicatif::BinaryBytes;
use serde::Serialize;

use crate::{
    context::CommandContext,
    format::{self, Format},
    outcome::CommandOutcome,
};

/// Show what an image contains: its server, usage counts and relations.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The image
    #[arg(value_name = "IMAGE")]
    image: PathBuf,
    /// Output format
    #[arg(long, value_enum, value_name = "FORMAT", default_value_t)]
    format: Format,
    /// Number of relations to show, those with most pages first; 0 for all [default: 20 in a table,
    /// all in JSON]
    #[arg(long, value_name = "COUNT")]
    limit: Option<usize>,
}

const TABLE_RELATIONS: usize = 20;

/// The document of `--format json`. Sizes are in pages.
#[derive(Serialize)]
struct ImageInfoDocument {
    version: u32,
    server_version: u32,
    system_identifier: u64,
    page_bytes: u32,
    buffers: u32,
    taken_at: String,
    source: &'static str,
    pages: u64,
    dirty: u64,
    usage: [u64; 6],
    relations: Vec<ImageInfoRow>,
}

/// One relation, all its forks together.
#[derive(Serialize)]
struct ImageInfoRow {
    database: String,
    relation: String,
    filenode: u32,
    tablespace: u32,
    logged: bool,
    pages: u64,
    /// Pages of the relation's main fork, if known.
    length: Option<u32>,
    hot: u64,
    dirty: u64,
}

/// Minimum usage count of a hot page: it survives that many passes of the clock sweep.
const HOT_USAGE: u8 = 3;

pub(super) fn run(args: &Args, ctx: &CommandContext) -> anyhow::Result<CommandOutcome> {
    let image = super::open(&args.image)?;
    let mut rows: Vec<_> = image.relations.iter().map(|relation| row(&image, relation)).collect();
    rows.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.relation.cmp(&b.relation)));
    let mut out = ctx.stdout();
    match args.format {
        Format::Table => {
            let limit = super::limit(args.limit, TABLE_RELATIONS);
            table(&mut out, &args.image, &image, &rows, limit)?;
        }
        Format::Json => {
            rows.truncate(super::limit(args.limit, usize::MAX));
            format::write_json(&mut out, &document(&image, rows))?;
        }
    }
    Ok(CommandOutcome::Done)
}

fn row(image: &CacheImage, relation: &Relation) -> ImageInfoRow {
    let (database, name) = super::names(image, relation);
    let pages = || relation.forks.iter().flat_map(|fork| fork.pages.iter());
    let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main);
    ImageInfoRow {
        database,
        relation: name,
        filenode: relation.file.filenode,
        tablespace: relation.file.tablespace,
        logged: relation.is_logged,
        pages: relation.page_count(),
        length: main.and_then(|main| main.length),
        hot: pages().filter(|page| page.usage >= HOT_USAGE).count() as u64,
        dirty: pages().filter(|page| page.is_dirty).count() as u64,
    }
}

fn usage(image: &CacheImage) -> [u64; 6] {
    let mut counts = [0; 6];
    for fork in image.relations.iter().flat_map(|relation| &relation.forks) {
        for page in fork.pages.iter() {
            counts[usize::from(page.usage).min(5)] += 1;
        }
    }
    counts
}

fn document(image: &CacheImage, relations: Vec<ImageInfoRow>) -> ImageInfoDocument {
    let origin = &image.origin;
    ImageInfoDocument {
        version: 1,
        server_version: origin.server_version,
        system_identifier: origin.system_identifier,
        page_bytes: origin.page_bytes,
        buffers: origin.buffers,
        taken_at: Timestamp::from_micros(origin.taken_at_us).to_string(),
        source: origin.source.name(),
        pages: image.page_count(),
        dirty: image.relations.iter().map(|relation| row(image, relation).dirty).sum(),
        usage: usage(image),
        relations,
    }
}

fn table(
    out: &mut impl Write,
    path: &Path,
    image: &CacheImage,
    rows: &[ImageInfoRow],
    limit: usize,
) -> io::Result<()> {
    let origin = &image.origin;
    writeln!(out, "image     {}", path.display())?;
    writeln!(
        out,
        "taken     {} by {}",
        Timestamp::from_micros(origin.taken_at_us),
        origin.source.name()
    )?;
    if origin.server_version > 0 {
        let (major, minor) = (origin.server_version / 10_000, origin.server_version % 10_000);
        writeln!(
            out,
            "server    PostgreSQL {major}.{minor}, cluster {}",
            origin.system_identifier
        )?;
    }
    writeln!(out, "pages     {}", super::cached(image))?;
    let [cold, one, two, three, four, five] = usage(image);
    writeln!(out, "usage     0: {cold}  1: {one}  2: {two}  3: {three}  4: {four}  5: {five}")?;
    writeln!(out)?;
    let bytes = |pages: u64| BinaryBytes(pages * u64::from(origin.page_bytes)).to_string();
    let width =
        rows.iter().take(limit).map(|row| row.database.chars().count()).max().unwrap_or(0).max(8);
    writeln!(
        out,
        "{:>12} {:>6} {:>6} {:>6}  {:width$}  RELATION",
        "CACHED", "OF IT", "HOT_USAGE", "DIRTY", "DATABASE"
    )?;
    for row in rows.iter().take(limit) {
        let share = row.length.filter(|&length| length > 0).map_or("n/a".to_owned(), |length| {
            percent(row.pages.min(u64::from(length)), u64::from(length))
        });
        writeln!(
            out,
            "{:>12} {share:>6} {:>6} {:>6}  {:width$}  {}",
            bytes(row.pages),
            percent(row.hot, row.pages),
            percent(row.dirty, row.pages),
            row.database,
            row.relation,
        )?;
    }
    match rows.len().saturating_sub(limit) {
        0 => Ok(()),
        more => writeln!(out, "{more} more relations: --limit 0 shows all"),
    }
}

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "n/a".to_owned(),
        whole => format!("{} %", (part * 100 + whole / 2) / whole),
    }
}
