//! Results of server logins.

use std::sync::Arc;

use crate::{
    call::{CoreCall, Step},
    clients::leaving,
    login::{ServerFailure, ServerLogin},
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::{assignment, closing, opening},
    session::parameters::ServerParameters,
    state::{
        client::ClientConnection,
        ids::{ClientId, PoolId, ServerId},
        server::ServerState,
    },
};

/// SQLSTATE `cannot_connect_now`: the server is starting up or shutting down.
const CANNOT_CONNECT_NOW: [u8; 5] = *b"57P03";

/// Handles a successful login to a server, then serves waiting clients.
pub(crate) fn succeeded(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
    login: ServerLogin,
) {
    let Some(server) = peers.servers.get_mut(id) else { return };
    if server.state != ServerState::Opening {
        return;
    }
    server.state = ServerState::Idle;
    server.state_since = call.now;
    // The login was a check. If the check query always fails and must run before every client,
    // servers would otherwise be replaced for ever.
    server.check.passed_at = Some(call.now);
    server.cancel_key = login.cancel_key;
    server.parameters = ServerParameters::at_login(&login.parameters);
    let (pool_id, parameters) = (server.pool, Arc::from(login.parameters));
    let pool = pools.pool(pool_id);
    pool.opening -= 1;
    (pool.failures, pool.last_failure) = (0, None);
    pool.is_restarting = false;
    pool.spec.welcome.set(parameters);
    pool.idle.push_back(id);
    if closing::must_close(peers, pools, id) {
        closing::close(peers, pools, call, id);
    }
    assignment::serve_waiting(peers, pools, call, pool_id);
}

/// Handles a failed server login: schedules the next attempt with exponential backoff, and
/// disconnects or redirects clients that cannot wait for it.
pub(crate) fn failed(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
    failure: ServerFailure,
) {
    let failure = Arc::new(failure);
    let Some(server) = peers.servers.remove(id) else { return };
    let now = call.now;
    let pool_id = server.pool;
    let pool = pools.pool(pool_id);
    pool.servers -= 1;
    if server.state != ServerState::Opening {
        return;
    }
    drop(server);
    let pool = pools.pool(pool_id);
    pool.opening -= 1;
    let timeouts = &pool.spec.timeouts;
    let pause = timeouts.login_retry * (1 << pool.failures.min(16));
    pool.retry_at = now + pause.min(timeouts.login_retry_max);
    pool.failures = pool.failures.saturating_add(1);
    pool.is_restarting |= failure.sqlstate == CANNOT_CONNECT_NOW;
    pool.is_restarting &= failure.is_outage();
    pool.last_failure = Some(Arc::clone(&failure));
    if failure.is_outage() && pool.spec.member.is_some() {
        member_failed(peers, pools, call, pool_id, &failure);
    } else if pool.servers == 0 && !pool.is_restarting {
        refuse_for_failure(peers, pools, call, pool_id, &failure);
    }
    call.steps.push(Step::OpenForStarved);
}

/// Handles a new secret for logins to a pool's servers: if the last login failed and the server was
/// up, the next one may succeed, so clients need not be refused and nothing waits for it.
pub(crate) fn secret_changed(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: PoolId,
) {
    let Some(pool) = pools.get_mut(id) else { return };
    if pool.last_failure.take_if(|failure| !failure.is_transient()).is_some() {
        (pool.failures, pool.retry_at) = (0, call.now);
        opening::open_for_waiting(peers, pools, call, id);
    }
}

/// Called when a login to a member has failed because it is stopped, starting or unreachable:
/// its waiting clients move to another suitable member, if there is one.
fn member_failed(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool: PoolId,
    failure: &ServerFailure,
) {
    let spec = &pools.get(pool).expect("a pool with servers exists").spec;
    let Some(member) = &spec.member else { return };
    let owner = member.owner;
    member.state.connect_failed(call.now, &failure.message);
    call.io.server_suspected(pool);
    assignment::redirect_waiting(peers, pools, call, owner);
}

/// Disconnects clients of a pool that has no server and could not open one. Clients that are
/// logging in are refused at once, so that they can try another host. Other external clients
/// wait as long as [`crate::PoolTimeouts::query_wait`] allows, unless no login can succeed
/// before an administrator intervenes.
fn refuse_for_failure(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    pool: PoolId,
    failure: &ServerFailure,
) {
    let logging_in = std::mem::take(&mut pools.pool(pool).awaiting_welcome);
    let mut refused = std::mem::take(&mut pools.pool(pool).waiting);
    if failure.is_transient() {
        // Mirror clients and sub-requests do not wait for the next attempt.
        let waits =
            |id: &ClientId| peers.clients.get(*id).is_some_and(ClientConnection::is_external);
        let (waiting, others) = refused.into_iter().partition(waits);
        pools.pool(pool).waiting = waiting;
        refused = others;
    }
    let ServerFailure { sqlstate, message } = failure.clone();
    let refusal = ClientRefusal::ServerSetup { sqlstate, message };
    for client in logging_in.into_iter().chain(refused) {
        leaving::refuse(peers, pools, call, client, &refusal);
    }
}
