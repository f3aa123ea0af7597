//! The contents of a server's cache at one moment: its pages, and its free buffers.

use std::collections::BTreeMap;

use howdah_connect::Client;

use crate::{
    dump::{BufferScan, BufferSource, ClusterInfo, DumpError},
    image::{Fork, ImageSource, RelationFile},
};

/// The blocks in a server's cache, and the number of its free buffers.
pub(super) struct Occupancy {
    /// Blocks of each fork, ascending.
    blocks: BTreeMap<(RelationFile, Fork), Vec<u32>>,
    /// Number of free buffers.
    pub(super) free: u64,
    pub(super) source: ImageSource,
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
        let mut blocks = BTreeMap::new();
        for (key, pages) in cached.forks {
            held += pages.len() as u64;
            let mut sorted: Vec<_> = pages.into_iter().map(|page| page.block).collect();
            sorted.sort_unstable();
            blocks.insert(key, sorted);
        }
        Ok(Self { blocks, free: u64::from(cluster_info.buffers).saturating_sub(held), source })
    }

    /// Creates the contents of a cache with the given blocks, for tests.
    #[cfg(test)]
    pub(super) fn from_blocks(
        blocks: impl IntoIterator<Item = ((RelationFile, Fork), Vec<u32>)>,
        free: u64,
    ) -> Self {
        Self { blocks: blocks.into_iter().collect(), free, source: ImageSource::Memory }
    }

    /// Returns the cached blocks of a fork, ascending.
    pub(super) fn blocks(&self, file: RelationFile, fork: Fork) -> &[u32] {
        self.blocks.get(&(file, fork)).map_or(&[], Vec::as_slice)
    }
}
