//! Delivers notifications to clients, and handles reports about the dedicated LISTEN connection.

use crate::{
    Channel,
    call::{CoreCall, Step},
    clients::Clients,
    listen::channels::{MissedNotifications, NotificationOutcome},
    peers::Peers,
    pools::Pools,
    state::{
        client::{ClientConnection, ClientState, InputHold},
        ids::{ClientId, PeerId},
    },
};

/// Handles the result of [`crate::CoreIo::listen`]: the dedicated connection listens to the
/// channels, or an error says why it cannot.
pub(crate) fn listen_finished(
    peers: &mut Peers,
    id: ClientId,
    result: Result<(), String>,
    call: &mut CoreCall<'_>,
) {
    let Some(client) = peers.clients.get_mut(id) else { return };
    if client.input_hold != InputHold::AwaitingListen {
        return;
    }
    client.input_hold = InputHold::None;
    if let (Err(why), Some(channels)) = (result, &mut client.channels) {
        channels.refuse(why);
    }
    peers.update_pause(PeerId::Client(id), call);
    update_listens(&mut peers.clients, call, id);
    call.steps.push(Step::Input(id));
}

/// Delivers a notification, as the server sent it, to those of `clients` that listen to the
/// channel. Each client receives it as soon as it is outside a transaction, unless its buffer
/// is full.
pub(crate) fn deliver(
    peers: &mut Peers,
    pools: &mut Pools,
    channel: &Channel,
    message: &[u8],
    clients: &[ClientId],
    call: &mut CoreCall<'_>,
) {
    for id in clients.iter().copied() {
        let Some(client) = peers.clients.get_mut(id) else { continue };
        let Some(channels) = &mut client.channels else { continue };
        let Some(pool) = pools.get_mut(client.owner_pool) else { continue };
        let bytes_max = pool.spec.listen_bytes.unwrap_or(0);
        match channels.offer(channel, message, bytes_max) {
            NotificationOutcome::Queued => pool.stats.notifications += 1,
            NotificationOutcome::Dropped => pool.stats.notifications_dropped += 1,
            NotificationOutcome::NotListening => continue,
        }
        send_pending(peers, pools, call, id);
    }
}

/// Warns `clients` that they may have missed notifications, because the dedicated connection
/// was lost, or could not be taken over from another process without a gap.
pub(crate) fn missed(
    peers: &mut Peers,
    pools: &mut Pools,
    clients: &[ClientId],
    call: &mut CoreCall<'_>,
) {
    for id in clients.iter().copied() {
        let Some(client) = peers.clients.get_mut(id) else { continue };
        let Some(channels) = &mut client.channels else { continue };
        channels.push_warning(&MissedNotifications::Reconnected);
        if let Some(pool) = pools.get_mut(client.owner_pool) {
            pool.stats.notification_gaps += 1;
        }
        send_pending(peers, pools, call, id);
    }
}

/// Tells the worker which channels a client starts or stops listening to.
pub(crate) fn update_listens(clients: &mut Clients, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(client) = clients.get_mut(id) else { return };
    let Some(channels) = &mut client.channels else { return };
    let (added, removed) = (channels.take_to_listen(), channels.take_to_unlisten());
    if !removed.is_empty() {
        call.io.unlisten(id, client.owner_pool, Some(removed));
    }
    if !added.is_empty() {
        call.io.listen(id, client.owner_pool, added, false);
    }
}

/// Requests that the dedicated connection listen to the channels of a client that was taken
/// over from another process.
pub(crate) fn relisten(clients: &Clients, call: &mut CoreCall<'_>, id: ClientId) {
    let Some(client) = clients.get(id) else { return };
    let Some(channels) = &client.channels else { return };
    let channels: Vec<_> = channels.committed().cloned().collect();
    call.io.listen(id, client.owner_pool, channels, true);
}

/// Sends pending notifications to a client, if it may receive them now.
pub(crate) fn send_pending(
    peers: &mut Peers,
    pools: &Pools,
    call: &mut CoreCall<'_>,
    id: ClientId,
) {
    if pools.is_suspended {
        return;
    }
    let Some(client) = peers.clients.get_mut(id) else { return };
    if !can_notify(client) {
        return;
    }
    let Some(channels) = client.channels.as_mut().filter(|it| it.has_pending()) else { return };
    peers.to_client.push_with(|buf| channels.write_pending(buf));
    peers.flush_client(id, &[], call);
}

pub(crate) fn send_all_pending(peers: &mut Peers, pools: &Pools, call: &mut CoreCall<'_>) {
    for index in 0..peers.clients.slots() {
        if let Some((id, _)) = peers.clients.occupant(index) {
            send_pending(peers, pools, call, id);
        }
    }
}

/// Whether a client can receive notifications now: it has no server and no request on several
/// shards, and no unsent or partly sent output.
fn can_notify(client: &ClientConnection) -> bool {
    let is_free = matches!(client.state, ClientState::Idle | ClientState::Waiting);
    is_free && !client.flow.is_backlogged && !client.has_partial_message
}
