//! [`ChannelTable`]: the clients that listen to each channel, and the LISTEN and UNLISTEN
//! statements that must still be sent.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use howdah_pool_core::{Channel, ClientId, PoolId, WorkerId};

/// Identifies a client of any worker.
pub(super) type ListeningClient = (WorkerId, ClientId);

/// Maximum number of channels in one query string.
const BATCH_CHANNELS_MAX: usize = 256;

/// A reply or a warning for a listening client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ListenOutcome {
    /// The result of the client's last LISTEN.
    Reply(ListeningClient, Result<(), String>),
    /// The client may have missed notifications.
    Missed(ListeningClient),
}

/// The channels and the clients that listen to them, with the LISTEN and UNLISTEN statements that
/// must still be sent.
#[derive(Debug, Default)]
pub(super) struct ChannelTable {
    channels: HashMap<Channel, ChannelClients>,
    clients: HashMap<ListeningClient, ListeningState>,
    /// Channels to send LISTEN for, and whether each needs a separate query because a batch failed.
    to_listen: VecDeque<(Channel, bool)>,
    /// Channels to send UNLISTEN for: no client listens to them any more.
    to_unlisten: HashSet<Channel>,
    awaiting_reply: Vec<Channel>,
    /// Channels that must be listened to even without clients.
    pins: HashSet<Channel>,
    /// Pools whose clients are expected from another process.
    pinned_pools: BTreeSet<PoolId>,
    /// Whether the server refused a channel that a client already relies on.
    must_reconnect: bool,
}

#[derive(Debug, Default)]
struct ChannelClients {
    is_active: bool,
    by_worker: BTreeMap<WorkerId, HashSet<ClientId>>,
    /// The clients of each worker as a list, built on demand.
    cached_lists: Vec<(WorkerId, Arc<[ClientId]>)>,
}

#[derive(Debug)]
struct ListeningState {
    pool: PoolId,
    channels: HashSet<Channel>,
    /// The part of `channels` that the server has not confirmed yet.
    unconfirmed: HashSet<Channel>,
    /// Whether the client still waits for the reply to a LISTEN.
    awaits_reply: bool,
    /// Whether to warn the client that it may have missed notifications.
    may_have_missed: bool,
}

impl ListeningState {
    /// Returns the results to deliver once all the client's channels are confirmed.
    fn outcomes(&mut self, client: ListeningClient) -> Vec<ListenOutcome> {
        let mut outcomes = Vec::new();
        if self.unconfirmed.is_empty() {
            if std::mem::take(&mut self.awaits_reply) {
                outcomes.push(ListenOutcome::Reply(client, Ok(())));
            }
            if std::mem::take(&mut self.may_have_missed) {
                outcomes.push(ListenOutcome::Missed(client));
            }
        }
        outcomes
    }
}

impl ChannelTable {
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.pinned_pools.is_empty()
    }

    /// Returns the numbers of channels and of clients.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.channels.len(), self.clients.len())
    }

    /// Returns the pools of all listening and expected clients.
    pub(super) fn pools(&self) -> Vec<PoolId> {
        let pools = self.clients.values().map(|state| state.pool);
        let pools: BTreeSet<_> = pools.chain(self.pinned_pools.iter().copied()).collect();
        pools.into_iter().collect()
    }

    /// Listens to a channel until [`ChannelTable::unpin_all`], even without clients.
    pub(super) fn pin(&mut self, channel: &Channel) {
        if !self.pins.insert(channel.clone()) {
            return;
        }
        let listeners = self.channels.entry(channel.clone()).or_insert_with(|| {
            let is_active = self.to_unlisten.remove(channel);
            ChannelClients { is_active, ..ChannelClients::default() }
        });
        if !listeners.is_active {
            self.to_listen.push_back((channel.clone(), false));
        }
    }

    /// Counts these pools as having listening clients until [`ChannelTable::unpin_all`].
    pub(super) fn pin_pools(&mut self, pools: Vec<PoolId>) {
        self.pinned_pools.extend(pools);
    }

    /// Removes all pins.
    pub(super) fn unpin_all(&mut self) {
        self.pinned_pools.clear();
        for channel in std::mem::take(&mut self.pins) {
            self.remove_if_unused(&channel);
        }
    }

    /// Whether the server has confirmed LISTEN for a channel.
    pub(super) fn is_listening(&self, channel: &Channel) -> bool {
        self.channels.get(channel).is_some_and(|listeners| listeners.is_active)
    }

    /// Returns the channels for which the server has confirmed LISTEN.
    pub(super) fn active_channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels
            .iter()
            .filter(|(_, listeners)| listeners.is_active)
            .map(|(channel, _)| channel)
    }

    fn remove_if_unused(&mut self, channel: &Channel) {
        let Some(listeners) = self.channels.get(channel) else { return };
        if listeners.by_worker.is_empty() && !self.pins.contains(channel) {
            if listeners.is_active {
                self.to_unlisten.insert(channel.clone());
            }
            self.channels.remove(channel);
        }
    }

    /// Returns the clients that listen to a channel, by worker.
    pub(super) fn listening_clients(&mut self, channel: &[u8]) -> &[(WorkerId, Arc<[ClientId]>)] {
        let Some(listeners) = self.channels.get_mut(channel) else { return &[] };
        if listeners.cached_lists.is_empty() {
            let list = |(worker, clients): (&WorkerId, &HashSet<ClientId>)| {
                (*worker, clients.iter().copied().collect())
            };
            listeners.cached_lists = listeners.by_worker.iter().map(list).collect();
        }
        &listeners.cached_lists
    }

    /// Adds channels to a client. If `is_resumed`, the client listened to them before and may have
    /// missed notifications; otherwise it waits for a reply. Returns the outcome if the server has
    /// already confirmed all the client's channels.
    pub(super) fn listen(
        &mut self,
        client: ListeningClient,
        pool: PoolId,
        channels: Vec<Channel>,
        is_resumed: bool,
    ) -> Option<ListenOutcome> {
        self.add_client(client, pool, channels, !is_resumed, is_resumed)
    }

    /// Adds channels to a client that listened to them before and has missed nothing.
    pub(super) fn resume(&mut self, client: ListeningClient, pool: PoolId, channels: Vec<Channel>) {
        self.add_client(client, pool, channels, false, false);
    }

    fn add_client(
        &mut self,
        client: ListeningClient,
        pool: PoolId,
        channels: Vec<Channel>,
        awaits_reply: bool,
        may_have_missed: bool,
    ) -> Option<ListenOutcome> {
        let state = self.clients.entry(client).or_insert_with(|| ListeningState {
            pool,
            channels: HashSet::new(),
            unconfirmed: HashSet::new(),
            awaits_reply: false,
            may_have_missed: false,
        });
        state.awaits_reply |= awaits_reply;
        state.may_have_missed |= may_have_missed;
        for channel in channels {
            let listeners = self.channels.entry(channel.clone()).or_insert_with(|| {
                let is_active = self.to_unlisten.remove(&channel);
                ChannelClients { is_active, ..ChannelClients::default() }
            });
            listeners.by_worker.entry(client.0).or_default().insert(client.1);
            listeners.cached_lists.clear();
            if !listeners.is_active {
                state.unconfirmed.insert(channel.clone());
                self.to_listen.push_back((channel.clone(), false));
            }
            state.channels.insert(channel);
        }
        state.outcomes(client).pop()
    }

    /// Removes channels from a client; all of them if `None`.
    pub(super) fn unlisten(&mut self, client: ListeningClient, channels: Option<Vec<Channel>>) {
        let Some(state) = self.clients.get_mut(&client) else { return };
        let channels = channels.unwrap_or_else(|| state.channels.iter().cloned().collect());
        for channel in channels {
            if !state.channels.remove(&channel) {
                continue;
            }
            state.unconfirmed.remove(&channel);
            let Some(listeners) = self.channels.get_mut(&channel) else { continue };
            listeners.cached_lists.clear();
            if let Some(clients) = listeners.by_worker.get_mut(&client.0) {
                clients.remove(&client.1);
                if clients.is_empty() {
                    listeners.by_worker.remove(&client.0);
                }
            }
            let is_unused = listeners.by_worker.is_empty() && !self.pins.contains(&channel);
            if is_unused {
                if listeners.is_active {
                    self.to_unlisten.insert(channel.clone());
                }
                self.channels.remove(&channel);
            }
        }
        if state.channels.is_empty() {
            self.clients.remove(&client);
        }
    }

    /// Returns the next query for the server, if any: UNLISTEN statements first, then LISTEN.
    pub(super) fn next_query(&mut self) -> Option<Vec<u8>> {
        let mut sql = Vec::new();
        let unused: Vec<_> = self.to_unlisten.iter().take(BATCH_CHANNELS_MAX).cloned().collect();
        for channel in unused {
            self.to_unlisten.remove(&channel);
            push_statement(&mut sql, b"UNLISTEN ", &channel);
        }
        if !sql.is_empty() {
            return Some(sql);
        }
        while let Some((channel, alone)) = self.to_listen.front() {
            if *alone && !self.awaiting_reply.is_empty() {
                break;
            }
            let (channel, alone) = (channel.clone(), *alone);
            self.to_listen.pop_front();
            if self.channels.get(&channel).is_some_and(|it| !it.is_active)
                && !self.awaiting_reply.contains(&channel)
            {
                push_statement(&mut sql, b"LISTEN ", &channel);
                self.awaiting_reply.push(channel);
            }
            if alone && !self.awaiting_reply.is_empty()
                || self.awaiting_reply.len() >= BATCH_CHANNELS_MAX
            {
                break;
            }
        }
        (!sql.is_empty()).then_some(sql)
    }

    /// Handles the server's reply to the last query.
    pub(super) fn handle_reply(&mut self, result: Result<(), String>) -> Vec<ListenOutcome> {
        let channels = std::mem::take(&mut self.awaiting_reply);
        match result {
            Ok(()) => {
                channels.into_iter().flat_map(|channel| self.channel_confirmed(channel)).collect()
            }
            Err(why) => match &channels[..] {
                [] => Vec::new(),
                [channel] => self.channel_refused(channel, &why),
                // One channel made the whole batch fail: each channel is sent again in a separate
                // query.
                _ => {
                    self.to_listen.extend(channels.into_iter().map(|channel| (channel, true)));
                    Vec::new()
                }
            },
        }
    }

    fn channel_confirmed(&mut self, channel: Channel) -> Vec<ListenOutcome> {
        let Some(listeners) = self.channels.get_mut(&channel) else {
            self.to_unlisten.insert(channel);
            return Vec::new();
        };
        listeners.is_active = true;
        let mut outcomes = Vec::new();
        for (worker, clients) in &listeners.by_worker {
            for id in clients {
                let client = (*worker, *id);
                let Some(state) = self.clients.get_mut(&client) else { continue };
                state.unconfirmed.remove(&channel);
                outcomes.extend(state.outcomes(client));
            }
        }
        outcomes
    }

    /// Handles the server's refusal of a channel. Clients that wait for a reply get the error. If a
    /// client listened to the channel before, the connection must be opened again.
    fn channel_refused(&mut self, channel: &Channel, why: &str) -> Vec<ListenOutcome> {
        let Some(listeners) = self.channels.get(channel) else { return Vec::new() };
        let clients =
            listeners.by_worker.iter().flat_map(|(w, ids)| ids.iter().map(move |id| (*w, *id)));
        let mut outcomes = Vec::new();
        for client in clients {
            let Some(state) = self.clients.get_mut(&client) else { continue };
            if std::mem::take(&mut state.awaits_reply) {
                state.unconfirmed.remove(channel);
                outcomes.push(ListenOutcome::Reply(client, Err(why.to_owned())));
                outcomes.extend(state.outcomes(client));
            } else {
                self.must_reconnect = true;
            }
        }
        outcomes
    }

    /// Fails the LISTEN of all clients that wait for a reply, because no connection can be opened.
    pub(super) fn refuse_waiting(&mut self, why: &str) -> Vec<ListenOutcome> {
        let waiting = self.clients.iter_mut().filter(|(_, state)| state.awaits_reply);
        waiting
            .map(|(client, state)| {
                state.awaits_reply = false;
                ListenOutcome::Reply(*client, Err(why.to_owned()))
            })
            .collect()
    }

    /// Whether the server has refused a channel in use since the last call.
    pub(super) fn take_must_reconnect(&mut self) -> bool {
        std::mem::take(&mut self.must_reconnect)
    }

    /// Handles the loss of the connection: the next one must listen to all channels again.
    pub(super) fn connection_lost(&mut self) {
        self.awaiting_reply.clear();
        self.to_unlisten.clear();
        self.to_listen = self.channels.keys().map(|channel| (channel.clone(), false)).collect();
        self.channels.values_mut().for_each(|listeners| listeners.is_active = false);
        for state in self.clients.values_mut() {
            state.may_have_missed = true;
            state.unconfirmed = state.channels.clone();
        }
    }
}

/// Appends a statement with the channel as a quoted identifier. The server checks the name.
fn push_statement(sql: &mut Vec<u8>, verb: &[u8], channel: &[u8]) {
    sql.extend_from_slice(verb);
    sql.push(b'"');
    for byte in channel {
        if *byte == b'"' {
            sql.push(b'"');
        }
        sql.push(*byte);
    }
    sql.extend_from_slice(b"\";");
}

#[cfg(test)]
mod tests;
