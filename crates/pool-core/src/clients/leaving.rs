//! How clients leave: they disconnect, send Terminate, or are refused with an error.

use howdah_wire::backend::Severity;

use crate::{
    call::{CoreCall, Step},
    fan_out::active::SubRequest,
    peers::Peers,
    pools::Pools,
    refusal::ClientRefusal,
    servers::cleaning,
    state::{
        client::{ClientConnection, ClientKind},
        ids::{ClientId, PeerId},
    },
};

/// Disconnects a client with an error, and reports the error for the log. The client does not
/// get the error if it has received only part of a message.
pub(crate) fn refuse(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
    refusal: &ClientRefusal,
) {
    let Some(client) = peers.clients.get(id) else { return };
    match &client.kind {
        ClientKind::Plain | ClientKind::Mirrored(_) => call.io.client_refused(id, refusal),
        ClientKind::Internal(internal) => {
            // The client gets only the first error of its sub-requests.
            if let Some(SubRequest { parent, .. }) = internal.sub_request()
                && !peers.clients.has_fan_out_failed(parent)
            {
                call.io.request_failed(parent, refusal);
            }
            call.steps.push_if_any(internal.on_refusal(refusal));
        }
    }
    let server = client.server().and_then(|server| peers.servers.get(server));
    if !client.has_partial_message
        && !server.is_some_and(|server| server.input.is_inside_forwarded_body())
    {
        peers.to_client.push_with(|buf| refusal.write(buf, Severity::Fatal));
        peers.flush_client(id, &[], call);
    }
    close(peers, pools, call, id);
}

/// Closes a client's connection, without sending an error.
pub(crate) fn close(peers: &mut Peers, pools: &mut Pools, call: &mut CoreCall<'_>, id: ClientId) {
    if let Some(client) = peers.clients.get(id) {
        if client.is_external() {
            call.io.close(PeerId::Client(id));
        }
        disconnect(peers, pools, call, id);
    }
}

/// Removes a client that has disconnected: ends its LISTEN and its sub-requests, cancels its
/// running request, and starts cleaning its server.
pub(crate) fn disconnect(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(client) = remove_with_listen(peers, call, id) else { return };
    if let Some(id) = client.server() {
        let has_request =
            peers.servers.get(id).is_some_and(|server| server.outstanding.is_for_client());
        if has_request && client.input.is_at_boundary() {
            peers.request_cancel(id, call); // The reply is not needed any more.
        }
        cleaning::start(peers, pools, call, id, client.input.padding_bytes());
    }
}

/// Handles Terminate. As in PostgreSQL, the client's earlier requests are still executed.
pub(crate) fn terminate(
    peers: &mut Peers,
    pools: &mut Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    let Some(client) = remove_with_listen(peers, call, id) else { return };
    call.io.close(PeerId::Client(id));
    if let Some(server) = client.server() {
        cleaning::start(peers, pools, call, server, client.input.padding_bytes());
    }
}

/// Removes a client and ends its LISTEN.
fn remove_with_listen(
    peers: &mut Peers,
    call: &mut CoreCall<'_>,
    id: ClientId,
) -> Option<ClientConnection> {
    let client = remove(peers, call, id)?;
    if client.channels.is_some() {
        call.io.unlisten(id, client.owner_pool, None);
    }
    Some(client)
}

/// Removes a client, records its disconnect in a running capture, and leaves the end of its
/// mirroring to a later step.
pub(crate) fn remove(
    peers: &mut Peers,
    call: &mut CoreCall<'_>,
    id: ClientId,
) -> Option<ClientConnection> {
    let mut client = peers.clients.remove(id)?;
    peers.capture.disconnect(&client, call.now);
    match std::mem::replace(&mut client.kind, ClientKind::Plain) {
        ClientKind::Plain => {}
        ClientKind::Mirrored(mirrored) => call.steps.push(Step::StopMirroring(mirrored)),
        ClientKind::Internal(internal) => {
            call.steps.push(internal.on_removal(&mut client.statements));
        }
    }
    if let Some(fan_out) = &client.fan_out {
        for sub_request in fan_out.sub_requests.iter().flatten() {
            call.steps.push(Step::Remove(*sub_request));
        }
        call.steps.push(Step::NextFanOut(client.owner_pool));
    }
    Some(client)
}
