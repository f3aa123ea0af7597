//! Asks a server for its session state before its client leaves it, in adaptive mode.

use howdah_wire::frontend;

use crate::{
    call::CoreCall,
    clients::leaving,
    messages::outstanding::{ReplyTarget, RequestKind},
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    session::{
        parameter::SessionParameter,
        state::{SessionStateFlags, SetKind},
    },
    state::{ids::ServerId, limits::Permits, server::ServerState},
};

/// Whether the client of a linked server that has answered everything can leave it. Asks the server
/// first if its session may have other state than the last time; the answer calls this again.
pub(crate) fn may_release(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ServerId,
) -> bool {
    let Some(server) = peers.servers.get_mut(id) else { return false };
    let spec = &pools.pool(server.pool).spec;
    let is_listening = spec.listen_bytes.is_some();
    let has_connect_query = spec.connect_query.is_some();
    // The answer replaces what command tags and keywords may have told, but for LISTEN statements
    // that could not be tracked, and for the effect of the connect query.
    let not_answered = |flags: SessionStateFlags| match () {
        () if has_connect_query => flags,
        () if is_listening => flags.only(SessionStateFlags::LISTEN),
        () => SessionStateFlags::NONE,
    };
    let Some(pin) = &mut server.pin else {
        // The effects of every statement are known, and there are none.
        server.session_state = not_answered(server.session_state);
        return true;
    };
    let ServerState::Linked(client_id) = server.state else { return false };
    let Some(client) = peers.clients.get_mut(client_id) else { return false };
    if pin.has_suspicion() && !pin.gave_up() {
        let is_unreported = |it: &&SessionParameter| !server.parameters.reports(&it.name);
        let followed: Vec<&SessionParameter> =
            client.parameters.list().iter().filter(is_unreported).collect();
        if let Some(query) = pin.start_check(&followed, server.parameters.has_other_user()) {
            server
                .outstanding
                .push_for(ReplyTarget::SessionState, RequestKind::Query(SetKind::NotSet));
            // A query string drops the unnamed statement.
            server.statements.unnamed_is_ours = false;
            peers.to_server.push_with(|buf| {
                frontend::encode::query(buf, query.as_bytes()).expect("no name has a zero byte");
            });
            peers.flush_server(id, &[], call);
            return false;
        }
    }
    let pool = pools.pool(server.pool);
    if !pin.is_pinned() {
        pin.clear_pinned(&mut pool.stats, call.now);
        if pin.is_clear() {
            server.pin = None;
        }
        server.session_state = not_answered(server.session_state);
        return true;
    }
    if !pin.has_permit() {
        let Some(permits) = Permits::try_acquire(&pool.spec.pinning.limits) else {
            let reasons = pin.reasons();
            let refusal = ClientRefusal::TooManyPinned { reasons };
            leaving::refuse(peers, pools, call, client_id, &refusal);
            return false;
        };
        pool.stats.pins += 1;
        pin.set_pinned(call.now, permits);
    }
    false
}
