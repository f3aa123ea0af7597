//! Advises on the size of a server's buffer cache: what fills it, which relations would fit as a
//! whole, what another `shared_buffers` would retain, and how much the first access to its memory
//! costs.
//!
//! This module only measures and computes; the caller presents the findings. It does not guess what
//! a usage histogram cannot show, such as which pages a larger cache would attract.

mod alternatives;
mod memory_cost;
mod memory_info;

use std::collections::HashMap;

use howdah_connect::{Client, ConnectTarget};

use crate::{
    dump::{self, DumpError, DumpResult, DumpSource},
    image::{CacheImage, Fork, Relation, RelationName},
};

pub use alternatives::{
    Alternative, HOT_USAGE, REUSED_USAGE, SUPPORTING_AGE, SizeAssessment, alternatives,
};
pub use memory_cost::{FAULT_US, MemoryCost};
pub use memory_info::{HugePages, MemoryInfo};

/// Findings about a server's cache.
#[derive(Debug)]
pub struct CacheAdvice {
    /// The image of the cache, and what is missing from it.
    pub dumped: DumpResult,
    /// Memory settings and statistics of the server.
    pub memory_info: MemoryInfo,
    /// Relations in the cache, in descending order of their cached pages.
    pub relations: Vec<RelationUsage>,
    /// Pages by usage count, 0 to 5.
    pub usage: [u64; 6],
    /// Number of buffers that hold no page, or were being filled or changed during the dump.
    pub free: u64,
    /// Possible sizes of the cache, including the present one.
    pub alternatives: Vec<Alternative>,
    /// Relations of the database in the connection string, in descending order of heat per page.
    pub candidates: Vec<CacheCandidate>,
    /// The cost of page faults and page tables for shared memory.
    pub memory: MemoryCost,
}

/// The cached pages of one relation. Counts include all forks, except for `length`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationUsage {
    /// Index of the relation in [`CacheImage::relations`].
    pub index: usize,
    /// Number of the relation's pages in the cache.
    pub pages: u64,
    /// Pages of the relation's main fork, if known.
    pub length: Option<u32>,
    /// Number of the relation's dirty pages in the cache.
    pub dirty: u64,
    /// Cached pages by usage count, 0 to 5.
    pub usage: [u64; 6],
}

/// A relation that could be cached as a whole. All counts are of its main fork.
#[derive(Clone, Debug, PartialEq)]
pub struct CacheCandidate {
    /// Name of the relation, which is in the database of the connection.
    pub name: RelationName,
    /// Length in pages: actual if some are cached and the relation was not locked, otherwise as of
    /// the last `VACUUM` or `ANALYZE`. At least `cached`.
    pub length: u64,
    /// Number of the relation's pages in the cache.
    pub cached: u64,
    /// Sum of the pages' usage counts, divided by the length: 0 (cold) to 5.
    pub heat: f64,
    /// Total length in pages of this relation and all before it in the list.
    pub sum: u64,
    /// Whether `sum` pages fit into the cache at its present size.
    pub fits: bool,
}

/// Examines the server at `target`.
///
/// # Errors
///
/// The same as for [`dump::dump`].
pub fn advise(target: &ConnectTarget, choice: DumpSource) -> Result<CacheAdvice, DumpError> {
    let dumped = dump::dump(target, choice)?;
    let mut client = Client::connect(target).map_err(|error| DumpError::Server(error.into()))?;
    let memory_info = MemoryInfo::query(&mut client).map_err(DumpError::Server)?;
    let image = &dumped.image;
    let mut filling: Vec<_> = image.relations.iter().enumerate().map(relation_usage).collect();
    filling.sort_by_key(|filling| std::cmp::Reverse(filling.pages));
    let usage = filling.iter().fold([0; 6], |sum, filling| add(sum, filling.usage));
    let buffers = u64::from(image.origin.buffers);
    let free = buffers.saturating_sub(image.page_count());
    let memory = MemoryCost::estimate(
        &memory_info,
        u64::from(image.origin.page_bytes),
        buffers,
        &mut client,
    );
    Ok(CacheAdvice {
        alternatives: alternatives(buffers, usage, free, memory_info.cache_age),
        candidates: candidates(image, target.database(), &memory_info, buffers),
        relations: filling,
        usage,
        free,
        memory,
        memory_info,
        dumped,
    })
}

fn relation_usage((index, relation): (usize, &Relation)) -> RelationUsage {
    let pages = || relation.forks.iter().flat_map(|fork| fork.pages.iter());
    let mut usage = [0; 6];
    for page in pages() {
        usage[usize::from(page.usage).min(5)] += 1;
    }
    RelationUsage {
        index,
        pages: relation.page_count(),
        length: main_length(relation),
        dirty: pages().filter(|page| page.is_dirty).count() as u64,
        usage,
    }
}

fn main_length(relation: &Relation) -> Option<u32> {
    relation.forks.iter().find(|fork| fork.fork == Fork::Main).and_then(|main| main.length)
}

fn add(mut sum: [u64; 6], more: [u64; 6]) -> [u64; 6] {
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    sum
}

/// Orders relations by heat per page, and marks those that fit into the cache together with all
/// before them.
///
/// Among relations of equal heat, smaller ones come first, so that more of them fit.
fn candidates(
    image: &CacheImage,
    database: &str,
    memory_info: &MemoryInfo,
    buffers: u64,
) -> Vec<CacheCandidate> {
    let mut lengths: HashMap<&RelationName, (u64, u64, u64)> = HashMap::new();
    for (name, pages) in &memory_info.relations {
        lengths.insert(name, (*pages, 0, 0));
    }
    for relation in &image.relations {
        let is_here = image.database_name(relation.file.database) == Some(database);
        let Some(name) = relation.name.as_ref().filter(|_| is_here) else { continue };
        let main = relation.forks.iter().find(|fork| fork.fork == Fork::Main);
        let Some(main) = main else { continue };
        let entry = lengths.entry(name).or_default();
        let heat: u64 = main.pages.iter().map(|page| u64::from(page.usage)).sum();
        let cached = main.pages.len() as u64;
        *entry = (main.length.map_or(entry.0, u64::from).max(cached), cached, heat);
    }
    let mut all: Vec<_> = lengths
        .into_iter()
        .filter(|(_, (length, ..))| *length > 0)
        .map(|(name, (length, cached, heat))| CacheCandidate {
            name: name.clone(),
            length,
            cached,
            heat: heat as f64 / length as f64,
            sum: 0,
            fits: false,
        })
        .collect();
    all.sort_by(|a, b| {
        let hotter = b.heat.total_cmp(&a.heat);
        hotter.then(a.length.cmp(&b.length)).then_with(|| a.name.cmp(&b.name))
    });
    let mut sum = 0;
    for candidate in &mut all {
        sum += candidate.length;
        (candidate.sum, candidate.fits) = (sum, sum <= buffers);
    }
    all
}

#[cfg(test)]
mod tests;
