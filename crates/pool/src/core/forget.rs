//! Giving up pools that nobody uses.

use super::Core;
use crate::{ids::PoolId, tally::Tally};

impl Core {
    /// Gives up those of these pools that have neither clients nor servers here, with all that is known
    /// of them, and tells what was counted of each; one that is not known is given up, too. Whoever
    /// calls this knows that nobody is on the way to them.
    pub fn forget_pools(&mut self, pools: &[PoolId]) -> Vec<(PoolId, Tally)> {
        let mut occupied = vec![false; self.pools.len()];
        for (_, client) in (0..self.clients.slots()).filter_map(|slot| self.clients.at(slot)) {
            occupied[client.pool.index()] = true;
            occupied[client.home.index()] = true;
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
            self.routers.forget(*id);
            forgotten.push((*id, known.map(|known| known.tally).unwrap_or_default()));
            self.starving.retain(|starving| starving != id);
        }
        forgotten
    }
}
