//! Advice on the size of a cache, computed by [`howdah_warm::advise`].

use std::{fmt::Write as _, time::Duration};

use howdah_warm::{
    advise::{
        Alternative, CacheAdvice, CacheCandidate, FAULT_US, RelationUsage, SUPPORTING_AGE,
        SizeAssessment,
    },
    image::CacheImage,
};
use serde::Serialize;

use super::{image_size, page_bytes, relation_names};
use crate::text;

/// The advice as a JSON document. Sizes are in pages, unless the name contains `bytes`.
#[derive(Debug, Serialize)]
pub struct AdviceDocument {
    version: u32,
    page_bytes: u32,
    source: &'static str,
    buffers: u64,
    free: u64,
    /// Time since the cache was empty.
    cache_age_seconds: Option<f64>,
    usage: [u64; 6],
    hits: u64,
    reads: u64,
    /// Time since the statistics of hits and reads were reset.
    statistics_age_seconds: Option<f64>,
    relations: Vec<RelationUsageRow>,
    alternatives: Vec<AlternativeRow>,
    candidates: Vec<CandidateRow>,
    memory: MemoryRow,
}

#[derive(Debug, Serialize)]
struct RelationUsageRow {
    database: String,
    relation: String,
    pages: u64,
    length: Option<u32>,
    dirty: u64,
    usage: [u64; 6],
}

#[derive(Debug, Serialize)]
struct AlternativeRow {
    buffers: u64,
    keeps: u64,
    /// Pages with a usage count of at least 2.
    keeps_reused: u64,
    loses_reused: u64,
    verdict: &'static str,
}

#[derive(Debug, Serialize)]
struct CandidateRow {
    relation: String,
    length: u64,
    cached: u64,
    heat: f64,
    sum: u64,
    fits: bool,
}

#[derive(Debug, Serialize)]
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

/// Converts advice to a document with at most `limit` relations and `limit` candidates.
pub fn document(advice: &CacheAdvice, limit: usize) -> AdviceDocument {
    let image = &advice.dumped.image;
    let (facts, memory) = (&advice.memory_info, &advice.memory);
    let relations = advice.relations.iter().take(limit).map(|filling| {
        let (database, relation) = relation_names(image, &image.relations[filling.index]);
        let &RelationUsage { pages, length, dirty, usage, .. } = filling;
        RelationUsageRow { database, relation, pages, length, dirty, usage }
    });
    let alternatives = advice.alternatives.iter().map(|it| AlternativeRow {
        buffers: it.buffers,
        keeps: it.kept,
        keeps_reused: it.kept_reused,
        loses_reused: it.lost_reused,
        verdict: it.assessment.name(),
    });
    let candidates = advice.candidates.iter().take(limit).map(|it| {
        let &CacheCandidate { length, cached, heat, sum, fits, .. } = it;
        CandidateRow { relation: it.name.to_string(), length, cached, heat, sum, fits }
    });
    AdviceDocument {
        version: 2,
        page_bytes: image.origin.page_bytes,
        source: image.origin.source.name(),
        buffers: image.origin.buffers.into(),
        free: advice.free,
        cache_age_seconds: facts.cache_age.map(|age| age.as_secs_f64()),
        statistics_age_seconds: facts.statistics_age.map(|age| age.as_secs_f64()),
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

/// Renders the cache, up to `limit` of its relations, alternative cache sizes, up to `limit`
/// candidates of `database`, and the cost of the cache's memory.
pub fn table(advice: &CacheAdvice, database: &str, limit: usize) -> String {
    let mut table = String::new();
    // Writing to a String cannot fail, here and below.
    let image = &advice.dumped.image;
    let _ = writeln!(table, "cache     {}", image_size(image));
    let info = &advice.memory_info;
    let _ = match info.cache_age {
        Some(age) => writeln!(table, "age       empty {} ago", text::age(age)),
        None => writeln!(table, "age       not known"),
    };
    let [cold, one, two, three, four, five] = advice.usage;
    let _ = writeln!(
        table,
        "usage     0: {cold}  1: {one}  2: {two}  3: {three}  4: {four}  5: {five}"
    );
    let _ = writeln!(table, "free      {} buffers", advice.free);
    let (hits, reads) = info.hits_and_reads;
    let _ = writeln!(
        table,
        "reads     {} of {} were cache hits, {}",
        share(hits, hits + reads),
        hits + reads,
        statistics_period(info.statistics_age, info.cache_age)
    );
    let _ = writeln!(table, "\nCACHED RELATIONS, largest first");
    write_relations(&mut table, image, &advice.relations, limit);
    let _ = writeln!(table, "\nOTHER CACHE SIZES, estimated from usage counts");
    write_alternatives(&mut table, advice);
    let _ = writeln!(table, "\nRELATIONS OF DATABASE {database} THAT WOULD FIT, largest first");
    write_candidates(&mut table, image, &advice.candidates, limit);
    let _ = writeln!(table, "\nMEMORY");
    write_memory(&mut table, advice);
    table
}

fn write_relations(table: &mut String, image: &CacheImage, rows: &[RelationUsage], limit: usize) {
    let buffers = u64::from(image.origin.buffers);
    let names: Vec<_> =
        rows.iter().map(|row| relation_names(image, &image.relations[row.index])).collect();
    let width = names.iter().take(limit).map(|(name, _)| name.chars().count()).max();
    let width = width.unwrap_or(0).max(8);
    let _ = writeln!(
        table,
        "{:>12} {:>8} {:>11} {:>6}  {:>23}  {:width$}  RELATION",
        "CACHED", "OF CACHE", "OF RELATION", "DIRTY", "USAGE 0 1 2 3 4 5, %", "DATABASE"
    );
    for (row, (database, relation)) in rows.iter().zip(&names).take(limit) {
        let of_relation = row
            .length
            .map_or("n/a".to_owned(), |length| share(row.pages.min(length.into()), length.into()));
        let usage = row.usage.map(|pages| format!("{:>3}", pages * 100 / row.pages.max(1)));
        let _ = writeln!(
            table,
            "{:>12} {:>8} {of_relation:>11} {:>6}  {:>23}  {database:width$}  {relation}",
            page_bytes(image, row.pages),
            share(row.pages, buffers),
            share(row.dirty, row.pages),
            usage.join(" "),
        );
    }
    let rest = rows.iter().skip(limit).map(|row| row.pages);
    write_omitted(table, image, rest);
}

fn write_alternatives(table: &mut String, advice: &CacheAdvice) {
    let image = &advice.dumped.image;
    let _ = writeln!(table, "{:>14} {:>12} {:>12}", "SHARED_BUFFERS", "KEEPS", "USED AGAIN");
    for row in &advice.alternatives {
        let _ = writeln!(
            table,
            "{:>14} {:>12} {:>12}  {}",
            page_bytes(image, row.buffers),
            page_bytes(image, row.kept),
            page_bytes(image, row.kept_reused),
            description(advice, row)
        );
    }
    let _ = writeln!(
        table,
        "USED AGAIN: pages with a usage count of at least 2. The counts do not show which further \
         pages a larger cache would contain."
    );
}

/// Describes the likely effect of a cache size.
fn description(advice: &CacheAdvice, size: &Alternative) -> String {
    let image = &advice.dumped.image;
    let age = advice.memory_info.cache_age.map_or_else(|| "unknown".to_owned(), text::age);
    match size.assessment {
        SizeAssessment::Present => "present size".to_owned(),
        SizeAssessment::Enough => {
            format!("enough for every page that was used again, in a cache that is {age} old")
        }
        SizeAssessment::TooSmall => {
            let lost = page_bytes(image, size.lost_reused);
            format!("too small: loses {lost} of pages that were used again")
        }
        SizeAssessment::BuffersFree => {
            let free = page_bytes(image, advice.free);
            format!("no use: {free} are free, in a cache that is {age} old")
        }
        SizeAssessment::MayHelp => {
            "may help: at least half of the pages were used again".to_owned()
        }
        SizeAssessment::NoBenefit => format!(
            "no benefit visible: most pages were not used again, in a cache that is {age} old"
        ),
        SizeAssessment::TooYoung => {
            let needed = text::age(SUPPORTING_AGE);
            match advice.memory_info.cache_age {
                Some(_) => {
                    format!("not known yet: the cache is {age} old, which is less than {needed}")
                }
                None => {
                    format!("not known: the age of the cache is unknown, and {needed} are needed")
                }
            }
        }
    }
}

/// Describes the period of the statistics, which may be longer than the cache exists.
fn statistics_period(statistics: Option<Duration>, cache: Option<Duration>) -> String {
    let Some(age) = statistics else {
        return "since the statistics began, which may be before the server's start".to_owned();
    };
    let older = if cache.is_some_and(|cache| cache < age) {
        ", which includes work before the cache was empty"
    } else {
        ""
    };
    format!("in the {} since a statistics reset{older}", text::age(age))
}

fn write_candidates(table: &mut String, image: &CacheImage, rows: &[CacheCandidate], limit: usize) {
    let mut largest: Vec<_> = rows.iter().filter(|row| row.length > SMALL_PAGES).collect();
    largest.sort_by_key(|row| std::cmp::Reverse(row.length));
    let _ = writeln!(table, "{:>12} {:>6} {:>5} {:>5}  RELATION", "SIZE", "CACHED", "HEAT", "FITS");
    for row in largest.iter().take(limit) {
        let _ = writeln!(
            table,
            "{:>12} {:>6} {:>5.2} {:>5}  {}",
            page_bytes(image, row.length),
            share(row.cached, row.length),
            row.heat,
            if row.fits { "yes" } else { "no" },
            row.name
        );
    }
    write_omitted(table, image, largest.iter().skip(limit).map(|row| row.length));
    let small = rows.iter().filter(|row| row.length <= SMALL_PAGES).map(|row| row.length);
    write_hidden(table, image, small);
    let fitting = rows.iter().filter(|row| row.fits);
    let (count, pages) = count_and_sum(fitting.map(|row| row.length));
    let _ = writeln!(
        table,
        "{} of {} fit together, {} of the cache's {}; those with the most use per page (HEAT) first",
        count,
        rows.len(),
        page_bytes(image, pages),
        page_bytes(image, image.origin.buffers.into())
    );
}

/// Relations of at most this many pages are not listed as candidates: they are mostly catalogs.
const SMALL_PAGES: u64 = 1;

fn write_memory(table: &mut String, advice: &CacheAdvice) {
    let (facts, memory) = (&advice.memory_info, &advice.memory);
    let huge = &facts.huge_pages;
    let status = match huge.in_use() {
        Some(true) => "in use",
        Some(false) => "not in use",
        None => "unknown: the server does not report it",
    };
    let _ = writeln!(table, "huge_pages = {}: {status}", huge.setting);
    let _ = writeln!(
        table,
        "first touch  {} page faults of 4 kB until the cache is full, about {:.1} s of CPU time \
        ({FAULT_US} µs each, measured on one virtual machine); huge pages reduce them to 1 in 512",
        memory.faults, memory.fault_seconds
    );
    let _ = writeln!(
        table,
        "page tables  {} per session that has touched all of {}; {} for the current sessions \
        ({}), {} for max_connections = {}",
        text::bytes(memory.table_bytes_per_session),
        text::bytes(memory.bytes),
        text::bytes(memory.table_bytes_now),
        facts.sessions,
        text::bytes(memory.table_bytes_max),
        facts.max_connections
    );
    if let Some(measured) = memory.table_bytes_measured {
        let _ = writeln!(table, "             {} now, in all processes", text::bytes(measured));
    }
    let is_worth_it = memory.fault_seconds >= 0.1 || memory.table_bytes_max >= 64 << 20;
    if huge.in_use() != Some(true) && is_worth_it {
        let count = facts.huge_page_count.filter(|&count| count > 0);
        let count = count.map_or("enough huge pages".to_owned(), |count| format!("{count}"));
        let _ = writeln!(
            table,
            "advice       set vm.nr_hugepages to {count} and huge_pages = on, to save most of both"
        );
    }
}

fn share(part: u64, whole: u64) -> String {
    match whole {
        0 => "n/a".to_owned(),
        whole => format!("{:.1}%", part as f64 * 100.0 / whole as f64),
    }
}

fn count_and_sum(pages: impl Iterator<Item = u64>) -> (usize, u64) {
    pages.fold((0, 0), |(count, sum), pages| (count + 1, sum + pages))
}

/// Summarizes relations that are not listed because of the limit, by their pages.
fn write_omitted(table: &mut String, image: &CacheImage, rest: impl Iterator<Item = u64>) {
    let (count, pages) = count_and_sum(rest);
    if count > 0 {
        let _ = writeln!(
            table,
            "{:>12} in {count} more: --limit 0 shows all",
            page_bytes(image, pages)
        );
    }
}

/// Summarizes relations that are not listed because they are small.
fn write_hidden(table: &mut String, image: &CacheImage, small: impl Iterator<Item = u64>) {
    let (count, pages) = count_and_sum(small);
    if count > 0 {
        let relations = text::counted(count as u64, "relation");
        let _ = writeln!(table, "{:>12} in {relations} of one page", page_bytes(image, pages));
    }
}

#[cfg(test)]
mod tests;
