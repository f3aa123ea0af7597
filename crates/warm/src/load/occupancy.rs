//! What is in a server's cache at a moment: which pages, and how much room is left.

use std::collections::BTreeMap;

use howdah_connect::Client;

use crate::{
    dump::{DumpError, Facts, Looked, Sight},
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
        sight: &mut Sight,
        database: &str,
    ) -> Result<Self, DumpError> {
        let Looked { cached, source, .. } = sight.look(client, database)?;
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

    /// A cache that holds the blocks that a test wants.
    #[cfg(test)]
    pub(super) fn of(
        blocks: impl IntoIterator<Item = ((RelationFile, Fork), Vec<u32>)>,
        free: u64,
    ) -> Self {
        Self { blocks: blocks.into_iter().collect(), free, source: Source::Memory }
    }

    /// The blocks of a fork that are there, ascending.
    pub(super) fn blocks(&self, file: RelationFile, fork: Fork) -> &[u32] {
        self.blocks.get(&(file, fork)).map_or(&[], Vec::as_slice)
    }
}
