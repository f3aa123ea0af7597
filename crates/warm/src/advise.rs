//! What can be said about a server's buffer cache for the person who decides on its size: what fills
//! it, which relations it could hold whole, what another `shared_buffers` would keep, what the first
//! touch of its memory costs.
//!
//! It measures and computes; drawing is the caller's. What a usage histogram cannot tell, such as which
//! pages a larger cache would attract, is not guessed.

mod alternatives;
mod facts;
mod memory;

use std::collections::HashMap;

use howdah_connect::{Client, Target};

use crate::{
    dump::{self, Choice, DumpError, Dumped},
    image::{CacheImage, Fork, Relation, RelationName},
};

pub use alternatives::{Alternative, HOT, Verdict, alternatives};
pub use facts::{Facts, HugePages};
pub use memory::{FAULT_US, MemoryCost};

/// What was found out about a server's cache.
#[derive(Debug)]
pub struct Advice {
    /// The image that everything below was computed from, and what could not be had for it.
    pub dumped: Dumped,
    /// What the server says of itself.
    pub facts: Facts,
    /// Relations in the cache, those with most pages first.
    pub filling: Vec<RelationUsage>,
    /// Pages by usage count, 0 to 5.
    pub usage: [u64; 6],
    /// Buffers that hold nothing.
    pub free: u64,
    /// Other sizes of the cache, the present one among them.
    pub alternatives: Vec<Alternative>,
    /// Relations of the database in the connection string, those that gain most by each page first.
    pub candidates: Vec<Candidate>,
    /// What the memory itself costs.
    pub memory: MemoryCost,
}

/// A relation's part of the cache, all its forks together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelationUsage {
    /// Its place in [`CacheImage::relations`].
    pub index: usize,
    /// Pages in the cache.
    pub pages: u64,
    /// Pages of its main fork, if they were counted.
    pub length: Option<u32>,
    /// Cached pages that were changed and not written yet.
    pub dirty: u64,
    /// Cached pages by usage count, 0 to 5.
    pub usage: [u64; 6],
}

/// A relation that could be kept in the cache whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Its name.
    pub name: RelationName,
    /// Its pages: counted if some of it is cached, else those of its last `VACUUM` or `ANALYZE`.
    pub length: u64,
    /// Those in the cache.
    pub cached: u64,
    /// Sum of usage counts over its pages, divided by its pages: 0 (cold) to 5.
    pub heat: f64,
    /// Pages of this one and of all before it in the list.
    pub sum: u64,
    /// Whether all of them together fit into the cache as it is.
    pub fits: bool,
}

/// Looks at the server at `target`.
///
/// # Errors
///
/// As for [`dump::dump`].
pub fn advise(target: &Target, choice: Choice) -> Result<Advice, DumpError> {
    let dumped = dump::dump(target, choice)?;
    let mut client = Client::connect(target).map_err(|error| DumpError::Server(error.into()))?;
    let facts = Facts::ask(&mut client).map_err(DumpError::Server)?;
    let image = &dumped.image;
    let mut filling: Vec<_> = image.relations.iter().enumerate().map(filling_of).collect();
    filling.sort_by_key(|filling| std::cmp::Reverse(filling.pages));
    let usage = filling.iter().fold([0; 6], |sum, filling| add(sum, filling.usage));
    let buffers = u64::from(image.origin.buffers);
    let free = buffers.saturating_sub(image.page_count());
    let memory = MemoryCost::of(&facts, u64::from(image.origin.page_bytes), buffers, &mut client);
    Ok(Advice {
        alternatives: alternatives(buffers, usage, free),
        candidates: candidates(image, target.database(), &facts, buffers),
        filling,
        usage,
        free,
        memory,
        facts,
        dumped,
    })
}

fn filling_of((index, relation): (usize, &Relation)) -> RelationUsage {
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

/// Relations by what each page of theirs brings, and how far the cache reaches down that list.
///
/// Smaller ones stand first among equals: more of them fit.
fn candidates(image: &CacheImage, database: &str, facts: &Facts, buffers: u64) -> Vec<Candidate> {
    let mut lengths: HashMap<&RelationName, (u64, u64, u64)> = HashMap::new();
    for (name, pages) in &facts.relations {
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
        .map(|(name, (length, cached, heat))| Candidate {
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
