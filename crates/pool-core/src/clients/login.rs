//! The end of a client's login: the pooler's greeting, once the server's parameters are known.

use howdah_wire::backend::encode;

use crate::{
    TargetRole,
    call::{CoreCall, Step},
    peers::Peers,
    pools::Pools,
    servers::opening,
    session::parameters::is_settable,
    state::{
        client::ClientState,
        ids::{ClientId, PeerId, PoolId},
        pool::PoolState,
    },
};

/// Finishes a client's login: sends its parameters and ReadyForQuery. If the server's
/// parameters are unknown or the server is down, the client waits for a login to the server
/// instead; it is refused if the server is down and no login attempt is in progress or due.
pub(crate) fn finish(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ClientId) {
    let worker = pools.worker;
    let Some(client) = peers.clients.get_mut(id) else { return };
    let pool_id = client.pool;
    let Some(pool) = pools.get_mut(pool_id) else { return };
    // While the server is down, clients are refused at login, so that they can try other hosts.
    let welcome = pool.spec.welcome.parameters().filter(|_| pool.outage().is_none());
    let Some(welcome) = welcome else {
        client.state_since = call.now;
        if let Some(refusal) = pools.refusal_at_login(pool_id, call.now) {
            return call.steps.push(Step::Refuse(id, Box::new(refusal)));
        }
        let pool_id = pools.select_member(client).unwrap_or(pool_id);
        pools.pool(pool_id).awaiting_welcome.push(id);
        peers.flush_client(id, &[], call);
        peers.update_pause(PeerId::Client(id), call);
        return opening::open_for_waiting(peers, pools, call, pool_id);
    };
    client.state = ClientState::Idle;
    client.state_since = call.now;
    let key = client.cancel_key(worker, id);
    peers.to_client.push_with(|buf| {
        for setting in welcome.iter() {
            let requested =
                client.parameters.value(&setting.name).filter(|_| is_settable(&setting.name));
            let mut value = requested.unwrap_or(&setting.value);
            if client.member.is_clustered && &*setting.name == b"in_hot_standby" {
                // libpq reads this to find a server that matches its `target_session_attrs`.
                value = if client.member.role == TargetRole::Replica { b"on" } else { b"off" };
            }
            // Values come from startup packets or servers, so they contain no zero byte.
            let _ = encode::parameter_status(buf, &setting.name, value);
        }
        encode::backend_key_data(buf, &key);
        encode::ready_for_query(buf, howdah_wire::backend::TransactionStatus::Idle);
    });
    peers.flush_client(id, &[], call);
    if let Some(client) = peers.clients.get_mut(id) {
        peers.capture.login(client, call.now);
    }
    peers.update_pause(PeerId::Client(id), call);
    call.steps.push(Step::LoggedIn(id));
}

/// Finishes pending logins of clients, if the server's parameters are known and the server is
/// not down.
pub(crate) fn finish_pending(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool_id: PoolId,
) {
    let pool = pools.pool(pool_id);
    let admits_clients =
        |pool: &PoolState| pool.spec.welcome.parameters().is_some() && pool.outage().is_none();
    if !pool.awaiting_welcome.is_empty() && admits_clients(pool) {
        for client in std::mem::take(&mut pool.awaiting_welcome) {
            finish(peers, pools, call, client);
        }
    }
}
