//! What is in a server's cache at a moment: which pages, and how much room is left.

use std::collections::BTreeMap;

use howdah_connect::Client;

use crate::{
    dump::{self, Choice, DumpError, Facts},
    image::{Fork, RelationFile, Source},
};

/// What a cache holds.
pub(super) struct Occupancy {
    /// Blocks of each fork, ascending.
    blocks: BTreeMap<(RelationFile, Fork), Vec<u32>>,
    /// Buffers that hold nothing.
    pub(super) free: u64,
    pub(super) source: Source,
}

impl Occupancy {
    /// Looks at the cache of the server behind `client`, which is in the database `database`.
    pub(super) fn see(
        client: &mut Client,
        facts: &Facts,
        choice: Choice,
        database: &str,
    ) -> Result<Self, DumpError> {
        let dump::Read { cached, source, .. } = dump::read(client, choice, database)?;
        let mut held = u64::from(cached.unfinished);
        let mut blocks = BTreeMap::new();
        for (key, pages) in cached.forks {
            held += pages.len() as u64;
            let mut sorted: Vec<_> = pages.into_iter().map(|page| page.block).collect();
            sorted.sort_unstable();
            blocks.insert(key, sorted);
        }
        Ok(Self { blocks, free: u64::from(facts.buffers).saturating_sub(held), source })
    }

    /// The blocks of a fork that are there, ascending.
    pub(super) fn blocks(&self, file: RelationFile, fork: Fork) -> &[u32] {
        self.blocks.get(&(file, fork)).map_or(&[], Vec::as_slice)
    }
}
