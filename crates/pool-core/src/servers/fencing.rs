//! Closes the connections to cluster members that must not be used any more.

use crate::{
    call::CoreCall,
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::closing,
    state::{ids::PoolId, server::ServerState},
};

/// Closes connections to fenced primaries (replaced, or with another system identifier) and
/// disconnects their clients: anything written there would be lost. Does the same for
/// unresponsive members: as with any lost connection, it is unknown whether the last
/// requests were executed, so the clients get an error and nothing is sent again.
pub(crate) fn fence(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, owner: PoolId) {
    for pool in pools.cluster_pools(owner) {
        let Some(state) = pools.get(pool) else { continue };
        let Some(member) = state.spec.member.as_ref().filter(|_| state.servers > 0) else {
            continue;
        };
        let refusal = match () {
            () if member.state.is_fenced() => ClientRefusal::Fenced,
            () if member.state.is_unresponsive() => ClientRefusal::ServerUnresponsive,
            () => continue,
        };
        for index in 0..peers.servers.slots() {
            let Some((id, server)) = peers.servers.occupant(index) else { continue };
            if server.pool != pool || server.state == ServerState::Opening {
                continue;
            }
            closing::abort(peers, pools, call, id, refusal.clone());
        }
    }
}
