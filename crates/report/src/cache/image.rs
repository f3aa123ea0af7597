//! Contents of a cache image: its server, usage counts and relations.

use std::{fmt::Write as _, path::Path};

use howdah_traffic::Timestamp;
use howdah_warm::{
    advise::HOT_USAGE,
    image::{CacheImage, Fork, Relation},
};
use serde::Serialize;

use super::{image_size, page_bytes, relation_names};

/// The contents of an image as a JSON document. Sizes are in pages, except for `page_bytes`.
#[derive(Debug, Serialize)]
pub struct ImageInfoDocument {
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

/// A relation with all its forks.
#[derive(Debug, Serialize)]
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
    /// Rows of the relation whose keys are in the image.
    key_rows: usize,
}

/// Converts an image to a document with the `limit` relations that have the most pages.
pub fn document(image: &CacheImage, limit: usize) -> ImageInfoDocument {
    let mut relations = rows(image);
    let dirty = relations.iter().map(|row| row.dirty).sum();
    relations.truncate(limit);
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
        dirty,
        usage: usage(image),
        relations,
    }
}

/// Renders the server, the usage counts, and the `limit` relations that have the most pages. `path`
/// is the location of the image.
pub fn table(image: &CacheImage, path: &Path, limit: usize) -> String {
    let rows = rows(image);
    let mut table = String::new();
    // Writing to a String cannot fail, here and below.
    let origin = &image.origin;
    let _ = writeln!(table, "image     {}", path.display());
    let _ = writeln!(
        table,
        "taken     {} by {}",
        Timestamp::from_micros(origin.taken_at_us),
        origin.source.name()
    );
    if origin.server_version > 0 {
        let (major, minor) = (origin.server_version / 10_000, origin.server_version % 10_000);
        let _ = writeln!(
            table,
            "server    PostgreSQL {major}.{minor}, cluster {}",
            origin.system_identifier
        );
    }
    let _ = writeln!(table, "pages     {}", image_size(image));
    let [cold, one, two, three, four, five] = usage(image);
    let _ = writeln!(
        table,
        "usage     0: {cold}  1: {one}  2: {two}  3: {three}  4: {four}  5: {five}"
    );
    let keyed: Vec<_> = image.relations.iter().filter_map(|it| it.keys.as_ref()).collect();
    if !keyed.is_empty() {
        let count: usize = keyed.iter().map(|keys| keys.rows.len()).sum();
        let _ = writeln!(table, "keys      of {count} rows of {} tables", keyed.len());
    }
    let _ = writeln!(table);
    let width =
        rows.iter().take(limit).map(|row| row.database.chars().count()).max().unwrap_or(0).max(8);
    let _ = writeln!(
        table,
        "{:>12} {:>11} {:>6} {:>6}  {:width$}  RELATION",
        "CACHED", "OF RELATION", "HOT", "DIRTY", "DATABASE"
    );
    for row in rows.iter().take(limit) {
        let share = row.length.filter(|&length| length > 0).map_or("n/a".to_owned(), |length| {
            percent(row.pages.min(u64::from(length)), u64::from(length))
        });
        let _ = writeln!(
            table,
            "{:>12} {share:>11} {:>6} {:>6}  {:width$}  {}",
            page_bytes(image, row.pages),
            percent(row.hot, row.pages),
            percent(row.dirty, row.pages),
            row.database,
            row.relation,
        );
    }
    let more = rows.len().saturating_sub(limit);
    if more > 0 {
        let _ = writeln!(table, "{more} more relations: --limit 0 shows all");
    }
    table
}

/// Returns all relations, those with the most pages first.
fn rows(image: &CacheImage) -> Vec<ImageInfoRow> {
    let mut rows: Vec<_> = image.relations.iter().map(|relation| row(image, relation)).collect();
    rows.sort_by(|a, b| b.pages.cmp(&a.pages).then_with(|| a.relation.cmp(&b.relation)));
    rows
}

fn row(image: &CacheImage, relation: &Relation) -> ImageInfoRow {
    let (database, name) = relation_names(image, relation);
    let pages = || relation.forks.iter().flat_map(|fork| fork.pages.iter());
    let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main);
    ImageInfoRow {
        database,
        relation: name,
        filenode: relation.file.filenode,
        key_rows: relation.keys.as_ref().map_or(0, |keys| keys.rows.len()),
        tablespace: relation.file.tablespace,
        logged: relation.is_logged,
        pages: relation.page_count(),
        length: main.and_then(|main| main.length),
        hot: pages().filter(|page| usize::from(page.usage) >= HOT_USAGE).count() as u64,
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

fn percent(part: u64, whole: u64) -> String {
    match whole {
        0 => "n/a".to_owned(),
        whole => format!("{} %", (part * 100 + whole / 2) / whole),
    }
}
