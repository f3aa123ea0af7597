//! Delivers notifications to clients, and handles reports about the dedicated LISTEN connection.

use super::Core;
use crate::{
    Channel, CoreIo,
    listen::channels::{MissedNotifications, NotificationOutcome},
    state::{
        client::{ClientConnection, ClientState, InputHold},
        ids::{ClientId, PeerId},
    },
    time::Time,
};

impl Core {
    /// Handles the result of [`CoreIo::listen`]: the dedicated connection listens to the channels,
    /// or an error says why it cannot.
    pub fn listen_finished(
        &mut self,
        id: ClientId,
        result: Result<(), String>,
        now: Time,
        io: &mut dyn CoreIo,
    ) {
        self.now = now;
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.input_hold != InputHold::AwaitingListen {
            return;
        }
        client.input_hold = InputHold::None;
        if let (Err(why), Some(channels)) = (result, &mut client.channels) {
            channels.refuse(why);
        }
        self.update_pause(PeerId::Client(id), io);
        self.update_listens(id, io);
        self.process_buffered(id, io);
    }

    /// Delivers a notification, as the server sent it, to those of `clients` that listen to the
    /// channel. Each client receives it as soon as it is outside a transaction, unless its buffer
    /// is full.
    pub fn deliver_notification(
        &mut self,
        channel: &Channel,
        message: &[u8],
        clients: &[ClientId],
        now: Time,
        io: &mut dyn CoreIo,
    ) {
        self.now = now;
        for id in clients.iter().copied() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let Some(channels) = &mut client.channels else { continue };
            let Some(pool) = self.pools[client.owner_pool.index()].as_mut() else { continue };
            let bytes_max = pool.spec.listen_bytes.unwrap_or(0);
            match channels.offer(channel, message, bytes_max) {
                NotificationOutcome::Queued => pool.stats.notifications += 1,
                NotificationOutcome::Dropped => pool.stats.notifications_dropped += 1,
                NotificationOutcome::NotListening => continue,
            }
            self.send_notifications(id, io);
        }
    }

    /// Warns `clients` that they may have missed notifications, because the dedicated connection
    /// was lost, or could not be taken over from another process without a gap.
    pub fn notifications_missed(&mut self, clients: &[ClientId], now: Time, io: &mut dyn CoreIo) {
        self.now = now;
        for id in clients.iter().copied() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let Some(channels) = &mut client.channels else { continue };
            channels.push_warning(&MissedNotifications::Reconnected);
            if let Some(pool) = self.pools[client.owner_pool.index()].as_mut() {
                pool.stats.notification_gaps += 1;
            }
            self.send_notifications(id, io);
        }
    }

    /// Tells the worker which channels a client starts or stops listening to.
    pub(super) fn update_listens(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(channels) = &mut client.channels else { return };
        let (added, removed) = (channels.take_to_listen(), channels.take_to_unlisten());
        if !removed.is_empty() {
            io.unlisten(id, client.owner_pool, Some(removed));
        }
        if !added.is_empty() {
            io.listen(id, client.owner_pool, added, false);
        }
    }

    /// Requests that the dedicated connection listen to the channels of a client that was taken
    /// over from another process.
    pub fn resume_listening(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get(id) else { return };
        let Some(channels) = &client.channels else { return };
        let channels: Vec<_> = channels.committed().cloned().collect();
        io.listen(id, client.owner_pool, channels, true);
    }

    /// Sends pending notifications to a client, if it may receive them now.
    pub(super) fn send_notifications(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        if self.is_suspended {
            return;
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        if !can_notify(client) {
            return;
        }
        let Some(channels) = client.channels.as_mut().filter(|it| it.has_pending()) else { return };
        self.to_client.push_with(|buf| channels.write_pending(buf));
        self.flush_client(id, &[], io);
    }

    pub(super) fn send_all_notifications(&mut self, io: &mut dyn CoreIo) {
        for index in 0..self.clients.slots() {
            if let Some((id, _)) = self.clients.occupant(index) {
                self.send_notifications(id, io);
            }
        }
    }
}

/// Whether a client can receive notifications now: it has no server and no request on several
/// shards, and no unsent or partly sent output.
fn can_notify(client: &ClientConnection) -> bool {
    let is_free = matches!(client.state, ClientState::Idle | ClientState::Waiting);
    is_free && !client.is_backlogged && !client.has_partial_message
}
