//! Query cancellation. While a CancelRequest to a server is in flight, the server is not assigned
//! to another client: the request could cancel that client's statement.

use howdah_wire::{
    Frame, Frontend,
    backend::{Severity, TransactionStatus, encode},
    startup::CancelKey,
};

use crate::{
    call::{CoreCall, Step},
    messages::outstanding::ReplyTarget,
    peers::Peers,
    pools::Pools,
    state::{
        client::{ClientConnection, ClientState, slot_of_key},
        ids::{ClientId, PeerId},
    },
};

/// Appends the error for a request that is cancelled before it is sent to a server.
pub(crate) fn write_cancelled_error(buf: &mut Vec<u8>) {
    let fields = encode::essentials(Severity::Error, b"57014", CANCELLED);
    encode::error_response(buf, fields).expect("the text has no zero byte");
}

/// PostgreSQL's text for a cancelled statement.
const CANCELLED: &[u8] = b"canceling statement due to user request";

/// Cancels the request of the client with this key, which another process may have issued before a
/// takeover. Returns whether such a client exists.
pub(crate) fn by_key(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    key: &CancelKey,
) -> bool {
    let named = slot_of_key(key).and_then(|slot| peers.clients.occupant(slot));
    // The keys of internal clients (of fan-outs and mirrors) are never sent to anyone.
    let is_own = |(id, client): &(ClientId, &ClientConnection)| {
        client.is_external() && client.cancel_key(pools.worker, *id) == *key
    };
    let named = named.filter(is_own).map(|(id, _)| id);
    let Some(id) = named.or_else(|| peers.clients.by_takeover_key(key)) else { return false };
    cancel_request(peers, pools, call, id);
    true
}

/// Cancels a client's current request, whether it is waiting, runs on a server, or runs on
/// several shards.
pub(crate) fn cancel_request(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    peers.capture.cancel(client, call.now);
    client.mark_transaction_cancelled();
    match client.state {
        ClientState::Waiting => return cancel_queued(peers, pools, call, id),
        ClientState::FanOut => return call.steps.push(Step::CancelFanOut(id)),
        _ => {}
    }
    let Some(server_id) = client.server() else { return };
    let front = peers.servers.get(server_id).and_then(|server| server.outstanding.front());
    match front.map(|front| front.target) {
        // The pooler's own request precedes the client's in the same batch, so cancelling it
        // makes both fail.
        Some(ReplyTarget::Client | ReplyTarget::Pooler) => peers.request_cancel(server_id, call),
        // The CancelRequest would hit a separate request of the pooler that runs before the
        // client's: try again later.
        Some(_) => {
            if let Some(client) = peers.clients.get_mut(id) {
                client.is_cancel_pending = true;
            }
        }
        None => {}
    }
}

/// Replies to the request of a client that waits for a server, as if a server had cancelled it.
/// Does nothing while the Sync of the client's batch is missing: the request is not complete
/// yet.
fn cancel_queued(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    let held = &mut client.input.buffered;
    let Some(bytes) = first_request_bytes(held) else { return };
    // On a server, a query string would have dropped the unnamed statement, and a batch may
    // have dropped it.
    client.statements.clear_unnamed();
    held.drain(..bytes);
    let is_done = held.is_empty();
    peers.to_client.push_with(|buf| {
        write_cancelled_error(buf);
        encode::ready_for_query(buf, TransactionStatus::Idle);
    });
    if is_done {
        *held = Vec::new();
        client.state = ClientState::Idle;
        client.state_since = call.now;
        let pool = client.pool;
        pools.pool(pool).waiting.retain(|waiting| *waiting != id);
    }
    peers.flush_client(id, &[], call);
    peers.update_pause(PeerId::Client(id), call);
}

/// Returns the length of the first complete request, up to and including its Query, FunctionCall or
/// Sync; `None` if it is incomplete or invalid.
fn first_request_bytes(held: &[u8]) -> Option<usize> {
    let mut rest = held;
    loop {
        let (frame, later) = Frame::split(rest, u32::MAX).ok()??;
        rest = later;
        if let Frontend::Query | Frontend::FunctionCall | Frontend::Sync =
            Frontend::from_tag(frame.tag)?
        {
            return Some(held.len() - rest.len());
        }
    }
}
