//! Removes unused pools.

use super::Core;
use crate::state::{ids::PoolId, pool_stats::PoolStats};

impl Core {
    /// Removes those of `pools` that have neither clients nor servers in this worker, and returns
    /// their statistics. A pool that this worker does not have also counts as removed. The caller
    /// ensures that no client or server is about to move to them.
    pub fn remove_unused_pools(&mut self, pools: &[PoolId]) -> Vec<(PoolId, PoolStats)> {
        let mut occupied = vec![false; self.pools.len()];
        for (_, client) in (0..self.clients.slots()).filter_map(|slot| self.clients.occupant(slot))
        {
            occupied[client.pool.index()] = true;
            occupied[client.owner_pool.index()] = true;
        }
        let mut forgotten = Vec::new();
        for id in pools {
            let pool = self.pools.get_mut(id.index());
            if let Some(Some(known)) = &pool
                && (known.servers > 0 || occupied[id.index()])
            {
                continue;
            }
            let known = pool.and_then(Option::take);
            self.routers.remove_pool(*id);
            forgotten.push((*id, known.map(|known| known.stats).unwrap_or_default()));
            self.starved_pools.retain(|starving| starving != id);
        }
        forgotten
    }
}
