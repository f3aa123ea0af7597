//! Notifications on their way to clients, and what the dedicated connection says.

use super::Core;
use crate::{
    Channel, Io,
    client::{Client, ClientState, Syncing},
    ids::{ClientId, Peer},
    listen::{Gap, Offer},
    time::Time,
};

impl Core {
    /// The channels that a client asked for by [`Io::listen`] are listened to, or cannot be, and why.
    pub fn heard(&mut self, id: ClientId, result: Result<(), String>, now: Time, io: &mut dyn Io) {
        self.now = now;
        let Some(client) = self.clients.get_mut(id) else { return };
        if client.syncing != Syncing::Hearing {
            return;
        }
        client.syncing = Syncing::No;
        if let (Err(why), Some(listens)) = (result, &mut client.listens) {
            listens.refused(why);
        }
        self.update_pause(Peer::Client(id), io);
        self.follow_listens(id, io);
        self.replay_held(id, io);
    }

    /// A notification, as the server sent it, for those of these clients that listen to the channel. Each
    /// gets it as soon as it is in no transaction.
    pub fn notified(
        &mut self,
        channel: &Channel,
        message: &[u8],
        clients: &[ClientId],
        now: Time,
        io: &mut dyn Io,
    ) {
        self.now = now;
        for id in clients.iter().copied() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let Some(listens) = &mut client.listens else { continue };
            let Some(pool) = self.pools[client.home.index()].as_mut() else { continue };
            let bytes_max = pool.spec.listen_bytes.unwrap_or(0);
            match listens.offer(channel, message, bytes_max) {
                Offer::Kept => pool.tally.notifications += 1,
                Offer::Dropped => pool.tally.notifications_dropped += 1,
                Offer::NotWanted => continue,
            }
            self.tell_news(id, io);
        }
    }

    /// The connection that listens was lost and is there again: these clients may have missed something.
    pub fn missed(&mut self, clients: &[ClientId], now: Time, io: &mut dyn Io) {
        self.now = now;
        for id in clients.iter().copied() {
            let Some(client) = self.clients.get_mut(id) else { continue };
            let Some(listens) = &mut client.listens else { continue };
            listens.say(&Gap::Reconnected);
            if let Some(pool) = self.pools[client.home.index()].as_mut() {
                pool.tally.notification_gaps += 1;
            }
            self.tell_news(id, io);
        }
    }

    /// Tells the worker what a client wants to hear, and what not any more.
    pub(super) fn follow_listens(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        let Some(listens) = &mut client.listens else { return };
        let (wanted, unwanted) = (listens.take_wanted(), listens.take_unwanted());
        if !unwanted.is_empty() {
            io.unlisten(id, client.home, Some(unwanted));
        }
        if !wanted.is_empty() {
            io.listen(id, client.home, wanted, false);
        }
    }

    /// Has a client that came from another process hear what it heard there.
    pub fn listen_again(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get(id) else { return };
        let Some(listens) = &client.listens else { return };
        let channels: Vec<_> = listens.committed().cloned().collect();
        io.listen(id, client.home, channels, true);
    }

    /// Sends what waits for a client, if it may be told now.
    pub(super) fn tell_news(&mut self, id: ClientId, io: &mut dyn Io) {
        if self.is_suspended {
            return;
        }
        let Some(client) = self.clients.get_mut(id) else { return };
        if !may_be_told(client) {
            return;
        }
        let Some(listens) = client.listens.as_mut().filter(|it| it.has_news()) else { return };
        self.to_client.make(|buf| listens.write_news(buf));
        self.flush_client(id, &[], io);
    }

    pub(super) fn tell_all_news(&mut self, io: &mut dyn Io) {
        for index in 0..self.clients.slots() {
            if let Some((id, _)) = self.clients.at(index) {
                self.tell_news(id, io);
            }
        }
    }
}

/// Whether a client is in no transaction and has taken what was sent to it.
fn may_be_told(client: &Client) -> bool {
    let is_free = matches!(client.state, ClientState::Idle | ClientState::Waiting);
    is_free && !client.backlogged && !client.cut_off
}
