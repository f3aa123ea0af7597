//! The contents of a server's cache at one moment: its pages, and its free buffers.

use std::collections::BTreeMap;

use howdah_connect::Client;

use crate::{
    dump::{BufferScan, BufferSource, ClusterInfo, DumpError},
    image::{Fork, ImageSource, RelationFile},
};

/// The blocks in a server's cache, and the number of its free buffers.
pub(super) struct Occupancy {
    forks: BTreeMap<(RelationFile, Fork), ForkOccupancy>,
    /// Number of free buffers.
    pub(super) free: u64,
    pub(super) source: ImageSource,
}

/// The cached pages of a fork, by ascending block.
#[derive(Default)]
struct ForkOccupancy {
    blocks: Vec<u32>,
    /// The usage count of each block.
    usage: Vec<u8>,
}

impl Occupancy {
    /// Scans the cache of the server of `client`, which is connected to `database`.
    pub(super) fn scan(
        client: &mut Client,
        cluster_info: &ClusterInfo,
        buffer_source: &mut BufferSource,
        database: &str,
    ) -> Result<Self, DumpError> {
        let BufferScan { cached, source, .. } = buffer_source.scan(client, database)?;
        let mut held = u64::from(cached.unfinished);
        let mut forks = BTreeMap::new();
        for (key, mut pages) in cached.forks {
            held += pages.len() as u64;
            pages.sort_unstable_by_key(|page| page.block);
            let blocks = pages.iter().map(|page| page.block).collect();
            let usage = pages.iter().map(|page| page.usage).collect();
            forks.insert(key, ForkOccupancy { blocks, usage });
        }
        Ok(Self { forks, free: u64::from(cluster_info.buffers).saturating_sub(held), source })
    }

    /// Creates the contents of a cache with the given blocks, used once each, for tests.
    #[cfg(test)]
    pub(super) fn from_blocks(
        blocks: impl IntoIterator<Item = ((RelationFile, Fork), Vec<u32>)>,
        free: u64,
    ) -> Self {
        let used_once = |blocks: Vec<u32>| ForkOccupancy { usage: vec![1; blocks.len()], blocks };
        let forks = blocks.into_iter().map(|(key, blocks)| (key, used_once(blocks))).collect();
        Self { forks, free, source: ImageSource::Memory }
    }

    /// Returns the cached blocks of a fork, ascending.
    pub(super) fn blocks(&self, file: RelationFile, fork: Fork) -> &[u32] {
        self.forks.get(&(file, fork)).map_or(&[], |fork| &fork.blocks)
    }

    /// Returns the cached pages of a fork with their usage counts, by ascending block.
    pub(super) fn pages(
        &self,
        file: RelationFile,
        fork: Fork,
    ) -> impl Iterator<Item = (u32, u8)> + '_ {
        let found = self.forks.get(&(file, fork)).into_iter();
        found.flat_map(|fork| fork.blocks.iter().copied().zip(fork.usage.iter().copied()))
    }
}
