//! Idle servers of other workers: a worker asks for them before it opens one of the last servers
//! that a limit allows.
//!
//! While a limit has room for many more servers, opening one costs a login once, and later clients
//! of the worker find it idle; a server that moves to and fro would cost two threads a wake-up each
//! time. Of the last quarter, but at least one server for each worker, none is opened while another
//! worker has an idle one: each of the others is asked, and moves what it can spare. A worker asks
//! at most once in [`IDLE_REQUEST_INTERVAL`]; in between it opens what the limits allow, so that
//! steady load fills the pool as fast as before.
//!
//! Nothing is counted for this while clients find an idle server in their own worker.

use std::time::Duration;

use crate::{
    ConnectionLimit,
    call::{CoreCall, Step},
    pools::Pools,
    state::{ids::PoolId, pool::IdleServerRequest},
};

/// Time between two requests for idle servers of a pool.
const IDLE_REQUEST_INTERVAL: Duration = Duration::from_millis(100);

/// Time after which a worker opens a server although another worker has not replied. The pool is
/// next looked at in the sweep after that.
const REPLY_TIMEOUT: Duration = Duration::from_millis(10);

/// Whether the pool must not open a server now, because the other workers may have an idle one: it
/// has asked them, or asks them now.
pub(crate) fn must_wait(pools: &mut Pools, call: &mut CoreCall<'_>, pool_id: PoolId) -> bool {
    let (now, workers) = (call.now, pools.workers);
    if workers < 2 {
        return false;
    }
    let is_short = is_short(pools, pool_id);
    let pool = pools.pool(pool_id);
    match pool.idle_request {
        IdleServerRequest::Pending { since, .. } if now.since(since) < REPLY_TIMEOUT => true,
        IdleServerRequest::Pending { since, .. } => {
            pool.idle_request = IdleServerRequest::Done { since };
            false
        }
        IdleServerRequest::Done { since } if now.since(since) < IDLE_REQUEST_INTERVAL => false,
        _ if !is_short => false,
        IdleServerRequest::None | IdleServerRequest::Done { .. } => {
            let others = workers - 1;
            pool.idle_request = IdleServerRequest::Pending { since: now, replies: others };
            let clients = pool.waiting.len() + usize::from(!pool.awaiting_welcome.is_empty());
            let needed = clients - (pool.opening + pool.checking) as usize;
            let each = u32::try_from(needed).unwrap_or(u32::MAX).div_ceil(others);
            call.io.request_idle_servers(pool_id, each);
            true
        }
    }
}

/// Whether other workers have servers of the pool, and one of its limits has room for few more.
///
/// If a limit is reached and this worker has no server, it is not short but starved: its request
/// for the next free server finds idle ones, too.
fn is_short(pools: &Pools, pool_id: PoolId) -> bool {
    let Some(pool) = pools.get(pool_id) else { return false };
    let limits = &pool.spec.server_limits;
    let has_others = limits.first().is_some_and(|limit| limit.in_use() > pool.servers);
    let room = |it: &ConnectionLimit| it.max().saturating_sub(it.in_use());
    has_others
        && limits.iter().any(|it| room(it) <= (it.max() / 4).max(pools.workers))
        && !(pool.servers == 0 && limits.iter().any(|it| room(it) == 0))
}

/// Handles the reply of one worker. After the last one, servers are opened for the clients that
/// still wait.
pub(crate) fn handle_reply(pools: &mut Pools, call: &mut CoreCall<'_>, pool_id: PoolId) {
    let Some(pool) = pools.get_mut(pool_id) else { return };
    let IdleServerRequest::Pending { since, replies } = pool.idle_request else { return };
    pool.idle_request = match replies {
        0 | 1 => IdleServerRequest::Done { since },
        more => IdleServerRequest::Pending { since, replies: more - 1 },
    };
    if replies <= 1 {
        call.steps.push(Step::Serve(pool_id));
    }
}
