//! Cleans servers that clients have released, and returns them to their pools.

use howdah_wire::{
    backend::TransactionStatus,
    frontend::{
        self,
        encode::{bind, execute, parse, sync},
    },
};

use crate::{
    call::CoreCall,
    messages::{
        gather_buffer::GatherBuffer,
        outstanding::{ReplyTarget, RequestKind},
    },
    peers::Peers,
    pools::Pools,
    servers::{assignment, closing, opening, setup, transfer},
    session::state::{SessionStateFlags, SetKind},
    spec::PoolingMode,
    state::{
        ids::{PeerId, ServerId},
        pool::PoolState,
        server::{ServerConnection, ServerState},
    },
};

/// Starts cleaning a released server: waits for running requests, then rolls back an open
/// transaction and resets session state. If the client disconnected in the middle of a message,
/// `padding` more bytes complete that message, and the server rejects it; with `None`, the
/// message cannot be completed and the connection is closed. So are connections of pools whose
/// servers are used by one client only.
pub(crate) fn start(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
    padding: Option<usize>,
) {
    let Some(server) = peers.servers.get_mut(id) else { return };
    server.state = ServerState::Cleaning;
    server.state_since = call.now;
    let pool = pools.pool(server.pool);
    let has_lasting_state = server.end_pin(&mut pool.stats, call.now);
    let spec = &pool.spec;
    let is_session = spec.mode == PoolingMode::Session;
    // In session mode, a configured reset query, such as DISCARD ALL, is trusted to reset
    // everything. Without one, any kind of session state may have changed and is reset.
    match &spec.reset {
        Some(_) if is_session => {
            (server.is_reset_due, server.session_state) = (true, SessionStateFlags::NONE);
        }
        Some(reset) => server.is_reset_due = reset.is_always,
        None if is_session => server.session_state = SessionStateFlags::UNKNOWN,
        None => {}
    }
    let Some(padding) = padding.filter(|_| !spec.is_single_use && !has_lasting_state) else {
        return closing::close(peers, pools, call, id);
    };
    peers.to_server.push_with(|buf| buf.resize(buf.len() + padding, PADDING));
    peers.flush_server(id, &[], call);
    peers.update_pause(PeerId::Server(id), call);
    resume(peers, pools, call, id);
}

/// Takes the next step of cleaning a server. The steps are: end a COPY, end the batch, wait for
/// outstanding replies, roll back, reset session state, return the server to its pool.
pub(crate) fn resume(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ServerId) {
    let Some(server) = peers.servers.get_mut(id) else { return };
    if server.state != ServerState::Cleaning {
        return;
    }
    if server.batch.is_copying_in {
        server.batch.is_copying_in = false;
        server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::CopyEnd);
        peers.to_server.push_with(write_copy_fail);
        peers.flush_server(id, &[], call);
        return resume(peers, pools, call, id);
    }
    if server.batch.is_open || server.batch.is_skipping {
        abort_batch(server, &mut peers.to_server);
        return peers.flush_server(id, &[], call);
    }
    if !server.outstanding.is_empty() {
        return;
    }
    let pool = pools.get(server.pool);
    // Each step sends its request and returns; the reply calls this function again.
    let (step, resets) = if server.status != TransactionStatus::Idle {
        (b"ROLLBACK".to_vec(), false)
    } else if std::mem::take(&mut server.is_reset_due)
        && let Some(reset) = pool.and_then(reset_query)
    {
        (reset, true)
    } else if server.session_state.is_none() {
        return return_to_pool(peers, pools, call, id);
    } else {
        (setup::take_reset_query(server), true)
    };
    let connect_query = pool.and_then(|pool| pool.spec.connect_query.as_ref());
    let connect_query = connect_query.filter(|_| resets);
    // The reset would undo the connect query, and this query cannot be repeated.
    if connect_query.is_some_and(|query| !query.is_repeatable) {
        return closing::close(peers, pools, call, id);
    }
    // Send both together, so that no other statement runs between a reset and the connect
    // query.
    let steps = [Some(&*step), connect_query.map(|query| &*query.query)];
    for step in steps.into_iter().flatten() {
        server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::Query(SetKind::NeedsReset));
        peers.to_server.push_with(|buf| {
            frontend::encode::query(buf, step).expect("the text has no zero byte");
        });
    }
    peers.flush_server(id, &[], call);
}

/// Handles the end of a CancelRequest. If it was the last one in flight to a server that is
/// being cleaned, takes the next step of cleaning.
pub(crate) fn cancel_finished(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) {
    let Some(server) = peers.servers.get_mut(id) else { return };
    server.cancels_in_flight = server.cancels_in_flight.saturating_sub(1);
    if server.cancels_in_flight == 0 && server.state == ServerState::Cleaning {
        resume(peers, pools, call, id);
    }
}

/// Returns a clean server to its pool, for the client that has waited longest, here or in
/// another worker. Closes the server instead if it must not be used again, and keeps it while a
/// CancelRequest to it is in flight.
pub(crate) fn return_to_pool(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) {
    let Some(server) = peers.servers.get_mut(id) else { return };
    server.state_since = call.now;
    // The CancelRequest may still arrive, and would cancel the next client's statement. The
    // release continues in `cancel_finished`.
    if server.cancels_in_flight > 0 {
        server.state = ServerState::Cleaning;
        return;
    }
    server.state = ServerState::Idle;
    server.check.passed_at = server.check.is_running.then_some(call.now);
    let (pool_id, is_checked) = (server.pool, std::mem::take(&mut server.check.is_running));
    if server.flow.is_paused {
        peers.update_pause(PeerId::Server(id), call);
    }
    let is_tainted = peers.servers.get(id).is_some_and(|it| it.parameters.parse_state.is_tainted);
    // A `true` from `must_close` has counted this server against the surplus, so it must be
    // closed.
    let yields = !pools.starved.is_empty() && opening::must_yield(peers, pools, call.now, id)
        || closing::must_close(peers, pools, id);
    let pool = pools.pool(pool_id);
    pool.checking -= u32::from(is_checked);
    // A server that has just been checked must be used next: put it at the front of the queue
    // in round-robin order, otherwise at the back.
    if is_checked && pool.spec.is_round_robin {
        pool.idle.push_front(id);
    } else {
        pool.idle.push_back(id);
    }
    if pool.spec.is_single_use || yields || is_tainted {
        return closing::close(peers, pools, call, id);
    }
    if !pool.starved_workers.is_empty()
        && transfer::to_starved_worker(peers, pools, call, pool_id, id)
    {
        return;
    }
    if !pools.pool(pool_id).waiting.is_empty() {
        assignment::serve_waiting(peers, pools, call, pool_id);
    }
}

/// The byte that pads an unfinished message. It is not zero, so that it cannot terminate a string
/// within the message.
const PADDING: u8 = 1;

fn write_copy_fail(buf: &mut Vec<u8>) {
    frontend::encode::copy_fail(buf, b"client disconnected").expect("the text has no zero byte");
}

/// Ends a batch whose client disconnected before its Sync. PostgreSQL would not commit such a
/// batch, so a ROLLBACK precedes the Sync that would commit it.
fn abort_batch(server: &mut ServerConnection, to: &mut GatherBuffer) {
    if !std::mem::take(&mut server.batch.is_skipping) {
        // An Execute without a reply yet may be a COPY, which a message other than CopyFail would
        // violate. Outside COPY, the server ignores CopyFail.
        if !server.outstanding.is_empty() {
            server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::CopyEnd);
            to.push_with(write_copy_fail);
        }
        for request in [RequestKind::Parse(None), RequestKind::Bind(0), RequestKind::Execute] {
            server.outstanding.push_for(ReplyTarget::Pooler, request);
        }
        to.push_with(|buf| {
            parse(buf, b"", b"ROLLBACK", &[]).expect("the text has no zero byte");
            bind(buf, b"", b"", &[], [], &[]).expect("the text has no zero byte");
            execute(buf, b"", 0).expect("the text has no zero byte");
        });
    }
    server.batch.is_open = false;
    server.outstanding.push_for(ReplyTarget::Cleaning, RequestKind::Sync);
    to.push_with(sync);
}

/// Returns the pool's reset query, which runs before another client gets the server; `None` if
/// there is none or it is empty.
fn reset_query(pool: &PoolState) -> Option<Vec<u8>> {
    let query = &pool.spec.reset.as_ref()?.query;
    (!query.is_empty()).then(|| query.to_vec())
}
