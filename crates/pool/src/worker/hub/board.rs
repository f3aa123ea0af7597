//! [`ChannelTable`]: who listens to what, and what the server has yet to be told.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque},
    sync::Arc,
};

use crate::{Channel, ClientId, PoolId, WorkerId};

/// A client, wherever it is.
pub(super) type ListeningClient = (WorkerId, ClientId);

/// Channels of one query string to the server.
const BATCH: usize = 256;

/// What a client is to be told.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// What it asked for last is listened to, or cannot be.
    Answer(ListeningClient, Result<(), String>),
    /// It may have missed something.
    Missed(ListeningClient),
}

/// Who listens to what.
#[derive(Debug, Default)]
pub(super) struct ChannelTable {
    channels: HashMap<Channel, Listeners>,
    clients: HashMap<ListeningClient, Subscriber>,
    /// Channels that the server is to be told of, and whether alone: one of a batch was refused.
    due: VecDeque<(Channel, bool)>,
    /// Channels that the server listens to, and nobody else.
    spare: HashSet<Channel>,
    asked: Vec<Channel>,
    /// Channels that are listened to whether or not a client does.
    pins: HashSet<Channel>,
    /// Pools of clients that are to come.
    pinned_homes: BTreeSet<PoolId>,
    /// The server refused what a client relies on.
    is_stuck: bool,
}

#[derive(Debug, Default)]
struct Listeners {
    is_heard: bool,
    ears: BTreeMap<WorkerId, HashSet<ClientId>>,
    /// The same to be handed over, made when it is asked for.
    lists: Vec<(WorkerId, Arc<[ClientId]>)>,
}

#[derive(Debug)]
struct Subscriber {
    home: PoolId,
    channels: HashSet<Channel>,
    /// Of them those that the server does not listen to yet.
    missing: HashSet<Channel>,
    /// Whether it waits for an answer.
    waits: bool,
    /// Whether it is to be told that it may have missed something.
    has_gap: bool,
}

impl Subscriber {
    /// What to tell it, if nothing is missing any more.
    fn outcomes(&mut self, ear: ListeningClient) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        if self.missing.is_empty() {
            if std::mem::take(&mut self.waits) {
                outcomes.push(Outcome::Answer(ear, Ok(())));
            }
            if std::mem::take(&mut self.has_gap) {
                outcomes.push(Outcome::Missed(ear));
            }
        }
        outcomes
    }
}

impl ChannelTable {
    pub(super) fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.pinned_homes.is_empty()
    }

    /// Channels, and clients.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.channels.len(), self.clients.len())
    }

    /// The pools of those who listen.
    pub(super) fn homes(&self) -> Vec<PoolId> {
        let homes = self.clients.values().map(|client| client.home);
        let homes: BTreeSet<_> = homes.chain(self.pinned_homes.iter().copied()).collect();
        homes.into_iter().collect()
    }

    /// Has a channel listened to until [`ChannelTable::unpin_all`], whether or not a client does.
    pub(super) fn pin(&mut self, channel: &Channel) {
        if !self.pins.insert(channel.clone()) {
            return;
        }
        let listeners = self.channels.entry(channel.clone()).or_insert_with(|| {
            let is_heard = self.spare.remove(channel);
            Listeners { is_heard, ..Listeners::default() }
        });
        if !listeners.is_heard {
            self.due.push_back((channel.clone(), false));
        }
    }

    /// Has the connection made as if clients of these pools listened, until [`ChannelTable::unpin_all`].
    pub(super) fn pin_homes(&mut self, homes: Vec<PoolId>) {
        self.pinned_homes.extend(homes);
    }

    /// Ends all pins.
    pub(super) fn unpin_all(&mut self) {
        self.pinned_homes.clear();
        for channel in std::mem::take(&mut self.pins) {
            self.remove_if_unused(&channel);
        }
    }

    /// Whether the server listens to a channel.
    pub(super) fn hears(&self, channel: &Channel) -> bool {
        self.channels.get(channel).is_some_and(|listeners| listeners.is_heard)
    }

    /// Channels that the server listens to.
    pub(super) fn heard_channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|(_, listeners)| listeners.is_heard).map(|(channel, _)| channel)
    }

    fn remove_if_unused(&mut self, channel: &Channel) {
        let Some(listeners) = self.channels.get(channel) else { return };
        if listeners.ears.is_empty() && !self.pins.contains(channel) {
            if listeners.is_heard {
                self.spare.insert(channel.clone());
            }
            self.channels.remove(channel);
        }
    }

    /// Those who listen to a channel, by worker.
    pub(super) fn ears(&mut self, channel: &[u8]) -> &[(WorkerId, Arc<[ClientId]>)] {
        let Some(listeners) = self.channels.get_mut(channel) else { return &[] };
        if listeners.lists.is_empty() {
            let list = |(worker, clients): (&WorkerId, &HashSet<ClientId>)| {
                (*worker, clients.iter().copied().collect())
            };
            listeners.lists = listeners.ears.iter().map(list).collect();
        }
        &listeners.lists
    }

    /// A client wants to hear of channels; `again` if it did before, and may have missed something.
    pub(super) fn listen(
        &mut self,
        ear: ListeningClient,
        home: PoolId,
        channels: Vec<Channel>,
        again: bool,
    ) -> Option<Outcome> {
        self.join(ear, home, channels, !again, again)
    }

    /// A client that has missed nothing goes on hearing of channels.
    pub(super) fn resume(&mut self, ear: ListeningClient, home: PoolId, channels: Vec<Channel>) {
        self.join(ear, home, channels, false, false);
    }

    fn join(
        &mut self,
        ear: ListeningClient,
        home: PoolId,
        channels: Vec<Channel>,
        waits: bool,
        has_gap: bool,
    ) -> Option<Outcome> {
        let client = self.clients.entry(ear).or_insert_with(|| Subscriber {
            home,
            channels: HashSet::new(),
            missing: HashSet::new(),
            waits: false,
            has_gap: false,
        });
        client.waits |= waits;
        client.has_gap |= has_gap;
        for channel in channels {
            let listeners = self.channels.entry(channel.clone()).or_insert_with(|| {
                let is_heard = self.spare.remove(&channel);
                Listeners { is_heard, ..Listeners::default() }
            });
            listeners.ears.entry(ear.0).or_default().insert(ear.1);
            listeners.lists.clear();
            if !listeners.is_heard {
                client.missing.insert(channel.clone());
                self.due.push_back((channel.clone(), false));
            }
            client.channels.insert(channel);
        }
        client.outcomes(ear).pop()
    }

    /// A client does not want to hear of channels any more; of any if it is `None`.
    pub(super) fn unlisten(&mut self, ear: ListeningClient, channels: Option<Vec<Channel>>) {
        let Some(client) = self.clients.get_mut(&ear) else { return };
        let channels = channels.unwrap_or_else(|| client.channels.iter().cloned().collect());
        for channel in channels {
            if !client.channels.remove(&channel) {
                continue;
            }
            client.missing.remove(&channel);
            let Some(listeners) = self.channels.get_mut(&channel) else { continue };
            listeners.lists.clear();
            if let Some(clients) = listeners.ears.get_mut(&ear.0) {
                clients.remove(&ear.1);
                if clients.is_empty() {
                    listeners.ears.remove(&ear.0);
                }
            }
            let is_unused = listeners.ears.is_empty() && !self.pins.contains(&channel);
            if is_unused {
                if listeners.is_heard {
                    self.spare.insert(channel.clone());
                }
                self.channels.remove(&channel);
            }
        }
        if client.channels.is_empty() {
            self.clients.remove(&ear);
        }
    }

    /// What the server is to be told next.
    pub(super) fn next_query(&mut self) -> Option<Vec<u8>> {
        let mut sql = Vec::new();
        let spare: Vec<_> = self.spare.iter().take(BATCH).cloned().collect();
        for channel in spare {
            self.spare.remove(&channel);
            push(&mut sql, b"UNLISTEN ", &channel);
        }
        if !sql.is_empty() {
            return Some(sql);
        }
        while let Some((channel, alone)) = self.due.front() {
            if *alone && !self.asked.is_empty() {
                break;
            }
            let (channel, alone) = (channel.clone(), *alone);
            self.due.pop_front();
            if self.channels.get(&channel).is_some_and(|it| !it.is_heard)
                && !self.asked.contains(&channel)
            {
                push(&mut sql, b"LISTEN ", &channel);
                self.asked.push(channel);
            }
            if alone && !self.asked.is_empty() || self.asked.len() >= BATCH {
                break;
            }
        }
        (!sql.is_empty()).then_some(sql)
    }

    /// The server has answered what it was told.
    pub(super) fn answered(&mut self, result: Result<(), String>) -> Vec<Outcome> {
        let asked = std::mem::take(&mut self.asked);
        match result {
            Ok(()) => asked.into_iter().flat_map(|channel| self.is_heard(channel)).collect(),
            Err(why) => match &asked[..] {
                [] => Vec::new(),
                [channel] => self.is_refused(channel, &why),
                // One of them is to blame, and not the others.
                _ => {
                    self.due.extend(asked.into_iter().map(|channel| (channel, true)));
                    Vec::new()
                }
            },
        }
    }

    fn is_heard(&mut self, channel: Channel) -> Vec<Outcome> {
        let Some(listeners) = self.channels.get_mut(&channel) else {
            self.spare.insert(channel);
            return Vec::new();
        };
        listeners.is_heard = true;
        let mut outcomes = Vec::new();
        for (worker, clients) in &listeners.ears {
            for id in clients {
                let ear = (*worker, *id);
                let Some(client) = self.clients.get_mut(&ear) else { continue };
                client.missing.remove(&channel);
                outcomes.extend(client.outcomes(ear));
            }
        }
        outcomes
    }

    /// The server does not listen to that. Who waits for it is told; where somebody has listened to it since
    /// before, this server is none to stay with.
    fn is_refused(&mut self, channel: &Channel, why: &str) -> Vec<Outcome> {
        let Some(listeners) = self.channels.get(channel) else { return Vec::new() };
        let ears = listeners.ears.iter().flat_map(|(w, ids)| ids.iter().map(move |id| (*w, *id)));
        let mut outcomes = Vec::new();
        for ear in ears {
            let Some(client) = self.clients.get_mut(&ear) else { continue };
            if std::mem::take(&mut client.waits) {
                client.missing.remove(channel);
                outcomes.push(Outcome::Answer(ear, Err(why.to_owned())));
                outcomes.extend(client.outcomes(ear));
            } else {
                self.is_stuck = true;
            }
        }
        outcomes
    }

    /// There is no connection to be had: those who wait are told why.
    pub(super) fn refuse_waiting(&mut self, why: &str) -> Vec<Outcome> {
        let waiting = self.clients.iter_mut().filter(|(_, client)| client.waits);
        waiting
            .map(|(ear, client)| {
                client.waits = false;
                Outcome::Answer(*ear, Err(why.to_owned()))
            })
            .collect()
    }

    /// Whether the server has refused what a client relies on, since asked last.
    pub(super) fn take_stuck(&mut self) -> bool {
        std::mem::take(&mut self.is_stuck)
    }

    /// The connection is gone: the next one has everything to learn.
    pub(super) fn lost(&mut self) {
        self.asked.clear();
        self.spare.clear();
        self.due = self.channels.keys().map(|channel| (channel.clone(), false)).collect();
        self.channels.values_mut().for_each(|listeners| listeners.is_heard = false);
        for client in self.clients.values_mut() {
            client.has_gap = true;
            client.missing = client.channels.clone();
        }
    }
}

/// Appends a statement. Whether the name is one is for the server to say.
fn push(sql: &mut Vec<u8>, verb: &[u8], channel: &[u8]) {
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
