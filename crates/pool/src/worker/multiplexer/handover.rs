//! LISTEN during a takeover: no notification is lost or delivered twice.
//!
//! Both processes listen to the same channels. The old one then sends a NOTIFY of its own, the
//! *marker*, on a channel that only the two know. PostgreSQL delivers notifications to every
//! session in commit order, so the marker is at the same position in both streams, and both
//! processes number each channel's notifications from there. A client is handed over with the
//! position of the last notification that it received in each channel. The new process continues
//! from there: first with the notifications retained since the marker, then with new ones.
//!
//! ```text
//! old                                      new
//!  │ CHANNELS database, marker, channels ──► │ LISTEN marker, channels
//!  │ ◄─────────────────────────── LISTENING │
//!  │ NOTIFY marker                           │
//!  │ ◄─ marker (counts from here)            │ ◄─ marker (counts and retains from here)
//!  │ CLIENT … last numbers ────────────────► │ sends what follows those numbers
//! ```
//!
//! Clients may listen to further channels during the takeover. So channels are offered in numbered
//! *rounds*, each followed by its own marker, whose payload is the number.
//!
//! If positions are not available (a connection was lost during the takeover, too much was
//! retained, or the new process cannot listen), the client is warned that it may have missed
//! notifications.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use howdah_pool_core::{Channel, PoolId};

use super::{
    ServerNotification,
    channel_table::{ChannelTable, ListeningClient},
};
use crate::worker::takeover::Outgoing;

/// Maximum size in bytes of all notifications of a database that are retained for clients that have
/// not arrived yet.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// Time for which notifications are retained after the takeover has ended: the last clients may
/// still be on their way to their workers.
const RELEASE_DELAY: Duration = Duration::from_secs(30);

/// The number of each channel's last notification, counted from the marker.
pub(in crate::worker) type Positions = Vec<(Channel, u64)>;

/// Returns an unguessable channel name.
pub(super) fn marker_channel(random: [u8; 16]) -> Channel {
    let name = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("howdah takeover {name}").into_bytes().into()
}

/// Returns the round in a marker's payload; `None` if the notification is not a marker.
fn marker_round(notification: &ServerNotification, marker: &Channel) -> Option<u32> {
    if notification.channel != *marker {
        return None;
    }
    // The tag, length and process ID are followed by channel and payload, each terminated by a zero
    // byte.
    let payload = notification.message.get(9 + marker.len() + 1..)?.strip_suffix(b"\0")?;
    std::str::from_utf8(payload).ok()?.parse().ok()
}

/// The old process's side of a takeover, for the channels of one database.
#[derive(Debug)]
pub(super) struct OutgoingHandover {
    outgoing: Sender<Outgoing>,
    marker: Channel,
    round: u32,
    /// Channels offered to the successor since the connection was opened.
    offered: BTreeSet<Channel>,
    /// The channels of each round whose marker has not come back yet.
    rounds: HashMap<u32, Vec<Channel>>,
    /// Rounds that the successor has confirmed and that still need a marker.
    confirmed: VecDeque<u32>,
    positions: HashMap<Channel, u64>,
}

impl OutgoingHandover {
    pub(super) fn new(
        outgoing: Sender<Outgoing>,
        marker: Channel,
        table: &mut ChannelTable,
    ) -> Self {
        table.pin(&marker);
        Self {
            outgoing,
            marker,
            round: 0,
            offered: BTreeSet::new(),
            rounds: HashMap::new(),
            confirmed: VecDeque::new(),
            positions: HashMap::new(),
        }
    }

    /// Offers the successor all active channels that were not offered yet.
    pub(super) fn offer(&mut self, database: &str, table: &mut ChannelTable) {
        if !table.is_listening(&self.marker) {
            return;
        }
        let channels: Vec<_> = table
            .active_channels()
            .filter(|channel| **channel != self.marker && !self.offered.contains(*channel))
            .cloned()
            .collect();
        if channels.is_empty() {
            return;
        }
        self.round += 1;
        for channel in &channels {
            // Pin the channel, so that its numbering continues even if it has no clients for a
            // while.
            table.pin(channel);
            self.offered.insert(channel.clone());
        }
        self.rounds.insert(self.round, channels.clone());
        let pools = table.pools();
        let marker = self.marker.clone();
        let database = database.to_owned();
        // Fails only if the takeover has ended.
        let _ = self.outgoing.send(Outgoing::Channels {
            database,
            pools,
            round: self.round,
            marker,
            channels,
        });
    }

    /// Handles the successor's confirmation that it listens to the channels of a round.
    pub(super) fn confirm_round(&mut self, round: u32) {
        if self.rounds.contains_key(&round) {
            self.confirmed.push_back(round);
        }
    }

    /// Returns the statement that sends the marker of the next confirmed round, if any.
    pub(super) fn next_marker(&mut self) -> Option<Vec<u8>> {
        let round = self.confirmed.pop_front()?;
        let marker = String::from_utf8_lossy(&self.marker);
        Some(format!("NOTIFY \"{marker}\", '{round}'").into_bytes())
    }

    /// Starts the numbering of the channels of a marker and returns them; `None` if the
    /// notification is not a marker.
    pub(super) fn take_marker(
        &mut self,
        notification: &ServerNotification,
    ) -> Option<Vec<Channel>> {
        let round = marker_round(notification, &self.marker)?;
        let channels = self.rounds.remove(&round).unwrap_or_default();
        self.positions.extend(channels.iter().map(|channel| (channel.clone(), 0)));
        Some(channels)
    }

    /// Returns the number of the next notification of a channel; 0 if the channel is not numbered.
    pub(super) fn next_position(&mut self, channel: &Channel) -> u64 {
        let Some(position) = self.positions.get_mut(channel) else { return 0 };
        *position += 1;
        *position
    }

    /// Handles the loss of the connection: all positions are invalid.
    pub(super) fn connection_lost(&mut self) {
        self.offered.clear();
        self.rounds.clear();
        self.confirmed.clear();
        self.positions.clear();
    }
}

/// The new process's side of a takeover, for the channels of one database.
#[derive(Debug)]
pub(super) struct IncomingHandover {
    marker: Channel,
    rounds: HashMap<u32, Vec<Channel>>,
    /// Rounds with channels that the server has not confirmed yet.
    unconfirmed: BTreeSet<u32>,
    positions: HashMap<Channel, u64>,
    retained: VecDeque<(u64, Arc<ServerNotification>)>,
    retained_bytes: usize,
    /// Clients to which the old process has sent notifications that have not arrived here yet.
    clients_ahead: HashMap<Channel, Vec<(ListeningClient, u64)>>,
    release_at: Option<Instant>,
}

impl IncomingHandover {
    pub(super) fn new(marker: Channel, table: &mut ChannelTable) -> Self {
        table.pin(&marker);
        Self {
            marker,
            rounds: HashMap::new(),
            unconfirmed: BTreeSet::new(),
            positions: HashMap::new(),
            retained: VecDeque::new(),
            retained_bytes: 0,
            clients_ahead: HashMap::new(),
            release_at: None,
        }
    }

    pub(super) fn is_marked_by(&self, marker: &Channel) -> bool {
        self.marker == *marker
    }

    /// Listens to the channels of a round, for expected clients of these pools.
    pub(super) fn pin_round(
        &mut self,
        round: u32,
        pools: Vec<PoolId>,
        channels: Vec<Channel>,
        table: &mut ChannelTable,
    ) {
        table.pin_pools(pools);
        channels.iter().for_each(|channel| table.pin(channel));
        self.rounds.insert(round, channels);
        self.unconfirmed.insert(round);
    }

    /// Returns the next round whose channels are all confirmed.
    pub(super) fn next_confirmed(&mut self, table: &ChannelTable) -> Option<u32> {
        if self.unconfirmed.is_empty() || !table.is_listening(&self.marker) {
            return None;
        }
        let hears = |round: &&u32| {
            let channels = self.rounds.get(round);
            channels.is_some_and(|channels| channels.iter().all(|it| table.is_listening(it)))
        };
        let round = *self.unconfirmed.iter().find(hears)?;
        self.unconfirmed.remove(&round);
        Some(round)
    }

    /// Whether the notification is a marker. If so, starts to number the notifications of the
    /// marker's channels.
    pub(super) fn is_marker(&mut self, notification: &ServerNotification) -> bool {
        let Some(round) = marker_round(notification, &self.marker) else { return false };
        for channel in self.rounds.remove(&round).unwrap_or_default() {
            self.retained.retain(|(_, retained)| retained.channel != channel);
            self.positions.insert(channel, 0);
        }
        self.retained_bytes = self.retained.iter().map(|(_, it)| it.message.len()).sum();
        true
    }

    /// Numbers a notification and retains it, if its channel's marker has arrived. Returns the
    /// clients that already have the notification.
    pub(super) fn receive(
        &mut self,
        notification: &Arc<ServerNotification>,
    ) -> Vec<ListeningClient> {
        let channel = &notification.channel;
        let Some(position) = self.positions.get_mut(channel) else {
            // Clients that arrived before the marker already have all notifications before it.
            let ahead = self.clients_ahead.get(channel);
            return ahead.iter().flat_map(|it| it.iter()).map(|(client, _)| *client).collect();
        };
        *position += 1;
        let position = *position;
        self.retained_bytes += notification.message.len();
        if self.retained_bytes <= RETAINED_BYTES_MAX {
            self.retained.push_back((position, Arc::clone(notification)));
        } else {
            tracing::warn!(
                "too many notifications during the takeover: clients handed over from now on miss some"
            );
            self.lost();
        }
        let Some(ahead) = self.clients_ahead.get_mut(channel) else { return Vec::new() };
        ahead.retain(|(_, last)| *last >= position);
        let already_delivered = ahead.iter().map(|(client, _)| *client).collect();
        if ahead.is_empty() {
            self.clients_ahead.remove(channel);
        }
        already_delivered
    }

    /// Returns the notifications to send to a client with these positions; `None` if they cannot be
    /// determined for all its channels.
    pub(super) fn resume(
        &mut self,
        client: ListeningClient,
        channels: &[Channel],
        positions: &Positions,
        table: &ChannelTable,
    ) -> Option<Vec<Arc<ServerNotification>>> {
        let mut last = HashMap::new();
        for channel in channels {
            let (_, position) = positions.iter().find(|(it, _)| it == channel)?;
            let is_counted = self.positions.contains_key(channel) || self.expects_marker(channel);
            if !table.is_listening(channel) || !is_counted {
                return None;
            }
            last.insert(channel.clone(), *position);
        }
        for (channel, position) in &last {
            // The old process's connection may be ahead of this one, even past the marker.
            if self.positions.get(channel).is_none_or(|here| here < position) {
                self.clients_ahead.entry(channel.clone()).or_default().push((client, *position));
            }
        }
        let follows = |(position, notification): &&(u64, Arc<ServerNotification>)| {
            last.get(&notification.channel).is_some_and(|last| position > last)
        };
        let retained = self.retained.iter().filter(follows);
        Some(retained.map(|(_, notification)| Arc::clone(notification)).collect())
    }

    /// Whether this process listens to a channel whose marker has not arrived yet.
    fn expects_marker(&self, channel: &Channel) -> bool {
        let confirmed = self.rounds.iter().filter(|(round, _)| !self.unconfirmed.contains(round));
        confirmed.into_iter().any(|(_, channels)| channels.contains(channel))
    }

    /// Handles a lost connection, or too many retained bytes: clients that rely on the positions so
    /// far cannot resume without a gap.
    pub(super) fn lost(&mut self) {
        // A marker that was on its way is lost as well. Unconfirmed rounds are listened to again.
        self.rounds.retain(|round, _| self.unconfirmed.contains(round));
        self.positions.clear();
        self.retained.clear();
        self.retained_bytes = 0;
        self.clients_ahead.clear();
    }

    /// Handles the end of the takeover: retained notifications are released after
    /// [`RELEASE_DELAY`].
    pub(super) fn schedule_release(&mut self) {
        self.release_at.get_or_insert(Instant::now() + RELEASE_DELAY);
    }

    pub(super) fn is_released(&self) -> bool {
        self.release_at.is_some_and(|at| Instant::now() >= at)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use howdah_pool_core::{ClientId, WorkerId};

    fn channel(name: &str) -> Channel {
        name.as_bytes().into()
    }

    /// Returns a NotificationResponse as a server sends it.
    fn notification(channel: &Channel, payload: &str) -> ServerNotification {
        let body = [&[0, 0, 0, 9][..], channel, b"\0", payload.as_bytes(), b"\0"].concat();
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let message = [&b"A"[..], &length, &body].concat().into();
        ServerNotification { channel: channel.clone(), message, position: 0 }
    }

    fn payloads(notifications: &[Arc<ServerNotification>]) -> Vec<u8> {
        notifications.iter().map(|it| it.message[it.message.len() - 2]).collect()
    }

    fn confirm_all(table: &mut ChannelTable) {
        while table.next_query().is_some() {
            table.handle_reply(Ok(()));
        }
    }

    #[test]
    fn both_processes_count_from_marker_and_resume_without_gap() {
        let client = (WorkerId(0), ClientId::new(1, 0));
        let (marker, news) = (marker_channel([7; 16]), channel("news"));
        let (outgoing, sent) = mpsc::channel();
        let mut old_table = ChannelTable::default();
        old_table.listen(client, PoolId(0), vec![news.clone()], false);
        let mut old = OutgoingHandover::new(outgoing, marker.clone(), &mut old_table);
        old.offer("shop", &mut old_table);
        assert!(sent.try_recv().is_err(), "no channel is confirmed yet");
        confirm_all(&mut old_table);
        old.offer("shop", &mut old_table);
        let Ok(Outgoing::Channels { round, channels, .. }) = sent.try_recv() else { panic!() };
        assert_eq!(channels, std::slice::from_ref(&news));
        let mut new_table = ChannelTable::default();
        let mut new = IncomingHandover::new(marker.clone(), &mut new_table);
        new.pin_round(round, vec![PoolId(0)], channels, &mut new_table);
        assert_eq!(new.next_confirmed(&new_table), None);
        confirm_all(&mut new_table);
        assert_eq!(new.next_confirmed(&new_table), Some(round));
        assert_eq!(new.next_confirmed(&new_table), None);
        old.confirm_round(round);
        let sql = String::from_utf8(old.next_marker().unwrap()).unwrap();
        assert!(sql.contains(std::str::from_utf8(&marker).unwrap()), "{sql}");
        assert_eq!(old.next_position(&news), 0, "not numbered before the marker");
        assert!(new.receive(&Arc::new(notification(&news, "0"))).is_empty());
        // A client that arrives before the marker already has everything before it.
        let early = (WorkerId(0), ClientId::new(2, 0));
        let nothing = vec![(news.clone(), 1)];
        let resumed = new.resume(early, std::slice::from_ref(&news), &nothing, &new_table);
        assert_eq!(resumed.map(|it| it.len()), Some(0));
        assert_eq!(new.receive(&Arc::new(notification(&news, "0"))), [early]);
        let mark = notification(&marker, &round.to_string());
        assert_eq!(old.take_marker(&mark), Some(vec![news.clone()]));
        assert!(new.is_marker(&mark));
        for payload in ["1", "2", "3"] {
            assert_eq!(old.next_position(&news).to_string(), payload);
            let already_delivered = new.receive(&Arc::new(notification(&news, payload)));
            assert_eq!(already_delivered.contains(&early), payload == "1");
        }
        let channels = [news.clone()];
        let resumed = new.resume(client, &channels, &vec![(news.clone(), 1)], &new_table).unwrap();
        assert_eq!(payloads(&resumed), b"23");
        assert!(new.resume(client, &channels, &Vec::new(), &new_table).is_none(), "no position");
        // A client that is ahead of this process does not get those notifications again.
        let resumed = new.resume(client, &channels, &vec![(news.clone(), 5)], &new_table).unwrap();
        assert!(resumed.is_empty());
        for (payload, has_it) in [("4", true), ("5", true), ("6", false)] {
            let already_delivered = new.receive(&Arc::new(notification(&news, payload)));
            assert_eq!(already_delivered.contains(&client), has_it, "{payload}");
        }
        new.lost();
        assert!(new.resume(client, &channels, &vec![(news, 6)], &new_table).is_none());
    }

    #[test]
    fn reconnected_channels_are_offered_again() {
        let (outgoing, sent) = mpsc::channel();
        let mut table = ChannelTable::default();
        let mut old = OutgoingHandover::new(outgoing, marker_channel([1; 16]), &mut table);
        table.listen((WorkerId(0), ClientId::new(1, 0)), PoolId(0), vec![channel("a")], false);
        confirm_all(&mut table);
        for round in 1..3 {
            old.offer("shop", &mut table);
            let Ok(Outgoing::Channels { round: sent, .. }) = sent.try_recv() else { panic!() };
            assert_eq!(sent, round);
            old.connection_lost();
            table.connection_lost();
            old.confirm_round(sent);
            assert!(old.next_marker().is_none(), "the round ended with the connection");
            old.offer("shop", &mut table);
            confirm_all(&mut table);
        }
        assert!(sent.try_recv().is_err());
    }
}
