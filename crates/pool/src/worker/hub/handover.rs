//! LISTEN while another process takes over: no notification is lost, and none comes twice.
//!
//! Both processes listen to the same channels. The old one then sends a NOTIFY of its own, the *marker*, on a
//! channel that only the two know. PostgreSQL delivers notifications to every session in the order in which
//! their transactions committed, so the marker stands at the same place in what either process receives, and
//! both number each channel's notifications from there. A client takes along the number of the last
//! notification that it was given, channel by channel, and the new process goes on behind it: with those that
//! it has retained since the marker, then with what comes.
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
//! Where the numbers are not to be had (a connection was lost meanwhile, too much was retained, the new
//! process cannot listen), a client is told that something may be missing, as after any loss.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::{Arc, mpsc::Sender},
    time::{Duration, Instant},
};

use super::{
    Notification,
    board::{ChannelTable, ListeningClient},
};
use crate::{Channel, PoolId, worker::takeover::Outgoing};

/// Most bytes of notifications that are retained for clients that have not come yet.
const RETAINED_BYTES_MAX: usize = 64 << 20;

/// How long after the end of a takeover they are retained: the last clients may still be on their way to
/// their workers.
const RELEASE_DELAY: Duration = Duration::from_secs(30);

/// The number of a channel's last notification, counted from the marker.
pub(in crate::worker) type Positions = Vec<(Channel, u64)>;

/// A channel's name that nobody guesses.
pub(super) fn marker_channel(random: [u8; 16]) -> Channel {
    let name = random.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("howdah takeover {name}").into_bytes().into()
}

/// A marker's payload, if this is one.
fn round_of(notification: &Notification, marker: &Channel) -> Option<u32> {
    if notification.channel != *marker {
        return None;
    }
    // Behind tag, length and process id: the channel and the payload, each with a zero byte.
    let payload = notification.message.get(9 + marker.len() + 1..)?.strip_suffix(b"\0")?;
    std::str::from_utf8(payload).ok()?.parse().ok()
}

/// The old process's side: its clients are leaving.
#[derive(Debug)]
pub(super) struct Departure {
    exit: Sender<Outgoing>,
    marker: Channel,
    round: u32,
    /// Channels that the other process was asked to listen to, since the connection was made.
    offered: BTreeSet<Channel>,
    /// Of these, those of each round whose marker has not come yet.
    rounds: HashMap<u32, Vec<Channel>>,
    /// Rounds whose channels the other process listens to.
    confirmed: VecDeque<u32>,
    positions: HashMap<Channel, u64>,
}

impl Departure {
    pub(super) fn new(exit: Sender<Outgoing>, marker: Channel, board: &mut ChannelTable) -> Self {
        board.pin(&marker);
        Self {
            exit,
            marker,
            round: 0,
            offered: BTreeSet::new(),
            rounds: HashMap::new(),
            confirmed: VecDeque::new(),
            positions: HashMap::new(),
        }
    }

    /// Asks the other process to listen to what this one listens to, as far as it was not asked yet.
    pub(super) fn offer(&mut self, database: &str, board: &mut ChannelTable) {
        if !board.hears(&self.marker) {
            return;
        }
        let channels: Vec<_> = board
            .heard_channels()
            .filter(|channel| **channel != self.marker && !self.offered.contains(*channel))
            .cloned()
            .collect();
        if channels.is_empty() {
            return;
        }
        self.round += 1;
        for channel in &channels {
            // Its numbers go on even if nobody listens to it for a while.
            board.pin(channel);
            self.offered.insert(channel.clone());
        }
        self.rounds.insert(self.round, channels.clone());
        let homes = board.homes();
        let marker = self.marker.clone();
        let database = database.to_owned();
        // A takeover that is over needs none of it.
        let _ = self.exit.send(Outgoing::Channels {
            database,
            homes,
            round: self.round,
            marker,
            channels,
        });
    }

    /// The other process listens to the channels of a round.
    pub(super) fn confirmed(&mut self, round: u32) {
        if self.rounds.contains_key(&round) {
            self.confirmed.push_back(round);
        }
    }

    /// The statement that sends the next marker.
    pub(super) fn next_marker(&mut self) -> Option<Vec<u8>> {
        let round = self.confirmed.pop_front()?;
        let marker = String::from_utf8_lossy(&self.marker);
        Some(format!("NOTIFY \"{marker}\", '{round}'").into_bytes())
    }

    /// The channels that count from here, if this is a marker.
    pub(super) fn marked(&mut self, notification: &Notification) -> Option<Vec<Channel>> {
        let round = round_of(notification, &self.marker)?;
        let channels = self.rounds.remove(&round).unwrap_or_default();
        self.positions.extend(channels.iter().map(|channel| (channel.clone(), 0)));
        Some(channels)
    }

    /// The number of a notification; 0 if its channel is not counted.
    pub(super) fn count(&mut self, channel: &Channel) -> u64 {
        let Some(position) = self.positions.get_mut(channel) else { return 0 };
        *position += 1;
        *position
    }

    /// The connection is gone: nothing is known of what follows.
    pub(super) fn lost(&mut self) {
        self.offered.clear();
        self.rounds.clear();
        self.confirmed.clear();
        self.positions.clear();
    }
}

/// The new process's side: clients that listen are coming.
#[derive(Debug)]
pub(super) struct Inheritance {
    marker: Channel,
    rounds: HashMap<u32, Vec<Channel>>,
    /// Rounds whose channels are not all listened to yet.
    unconfirmed: BTreeSet<u32>,
    positions: HashMap<Channel, u64>,
    retained: VecDeque<(u64, Arc<Notification>)>,
    retained_bytes: usize,
    /// Clients that were given more by the other process than has come here.
    ahead: HashMap<Channel, Vec<(ListeningClient, u64)>>,
    release_at: Option<Instant>,
}

impl Inheritance {
    pub(super) fn new(marker: Channel, board: &mut ChannelTable) -> Self {
        board.pin(&marker);
        Self {
            marker,
            rounds: HashMap::new(),
            unconfirmed: BTreeSet::new(),
            positions: HashMap::new(),
            retained: VecDeque::new(),
            retained_bytes: 0,
            ahead: HashMap::new(),
            release_at: None,
        }
    }

    pub(super) fn is_marked_by(&self, marker: &Channel) -> bool {
        self.marker == *marker
    }

    /// Channels to listen to, for clients that are to come; `homes` are those clients' pools.
    pub(super) fn hold(
        &mut self,
        round: u32,
        homes: Vec<PoolId>,
        channels: Vec<Channel>,
        board: &mut ChannelTable,
    ) {
        board.pin_homes(homes);
        channels.iter().for_each(|channel| board.pin(channel));
        self.rounds.insert(round, channels);
        self.unconfirmed.insert(round);
    }

    /// The next round whose channels are all listened to.
    pub(super) fn take_confirmed(&mut self, board: &ChannelTable) -> Option<u32> {
        if self.unconfirmed.is_empty() || !board.hears(&self.marker) {
            return None;
        }
        let hears = |round: &&u32| {
            let channels = self.rounds.get(round);
            channels.is_some_and(|channels| channels.iter().all(|it| board.hears(it)))
        };
        let round = *self.unconfirmed.iter().find(hears)?;
        self.unconfirmed.remove(&round);
        Some(round)
    }

    /// Whether this is a marker; then its channels count from here.
    pub(super) fn is_marker(&mut self, notification: &Notification) -> bool {
        let Some(round) = round_of(notification, &self.marker) else { return false };
        for channel in self.rounds.remove(&round).unwrap_or_default() {
            self.retained.retain(|(_, retained)| retained.channel != channel);
            self.positions.insert(channel, 0);
        }
        self.retained_bytes = self.retained.iter().map(|(_, it)| it.message.len()).sum();
        true
    }

    /// Counts a notification and retains it. Gives the clients that have had it already.
    pub(super) fn receive(&mut self, notification: &Arc<Notification>) -> Vec<ListeningClient> {
        let channel = &notification.channel;
        let Some(position) = self.positions.get_mut(channel) else {
            // Clients that have come before the marker were given what is before it.
            let ahead = self.ahead.get(channel);
            return ahead.iter().flat_map(|it| it.iter()).map(|(ear, _)| *ear).collect();
        };
        *position += 1;
        let position = *position;
        self.retained_bytes += notification.message.len();
        if self.retained_bytes <= RETAINED_BYTES_MAX {
            self.retained.push_back((position, Arc::clone(notification)));
        } else {
            tracing::warn!(
                "too many notifications during a takeover: clients that come now miss some"
            );
            self.lost();
        }
        let Some(ahead) = self.ahead.get_mut(channel) else { return Vec::new() };
        ahead.retain(|(_, last)| *last >= position);
        let have_it = ahead.iter().map(|(ear, _)| *ear).collect();
        if ahead.is_empty() {
            self.ahead.remove(channel);
        }
        have_it
    }

    /// What a client has to be sent that comes with these numbers; `None` if that is not known.
    pub(super) fn resume(
        &mut self,
        ear: ListeningClient,
        channels: &[Channel],
        positions: &Positions,
        board: &ChannelTable,
    ) -> Option<Vec<Arc<Notification>>> {
        let mut last = HashMap::new();
        for channel in channels {
            let (_, position) = positions.iter().find(|(it, _)| it == channel)?;
            let is_counted = self.positions.contains_key(channel) || self.expects_marker(channel);
            if !board.hears(channel) || !is_counted {
                return None;
            }
            last.insert(channel.clone(), *position);
        }
        for (channel, position) in &last {
            // The other connection may be ahead of this one, also with the marker.
            if self.positions.get(channel).is_none_or(|here| here < position) {
                self.ahead.entry(channel.clone()).or_default().push((ear, *position));
            }
        }
        let follows = |(position, notification): &&(u64, Arc<Notification>)| {
            last.get(&notification.channel).is_some_and(|last| position > last)
        };
        let retained = self.retained.iter().filter(follows);
        Some(retained.map(|(_, notification)| Arc::clone(notification)).collect())
    }

    /// Whether the marker from which on a channel is counted is on its way.
    fn expects_marker(&self, channel: &Channel) -> bool {
        let confirmed = self.rounds.iter().filter(|(round, _)| !self.unconfirmed.contains(round));
        confirmed.into_iter().any(|(_, channels)| channels.contains(channel))
    }

    /// The connection is gone, or too much has come: nobody can go on where it was.
    pub(super) fn lost(&mut self) {
        // A marker that is under way is lost as well; what was not confirmed yet is listened to anew.
        self.rounds.retain(|round, _| self.unconfirmed.contains(round));
        self.positions.clear();
        self.retained.clear();
        self.retained_bytes = 0;
        self.ahead.clear();
    }

    /// The takeover is over: everybody who comes is on the way.
    pub(super) fn release_soon(&mut self) {
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
    use crate::{ClientId, WorkerId};

    fn channel(name: &str) -> Channel {
        name.as_bytes().into()
    }

    /// A NotificationResponse as a server sends it.
    fn notification(channel: &Channel, payload: &str) -> Notification {
        let body = [&[0, 0, 0, 9][..], channel, b"\0", payload.as_bytes(), b"\0"].concat();
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        let message = [&b"A"[..], &length, &body].concat().into();
        Notification { channel: channel.clone(), message, position: 0 }
    }

    fn payloads(notifications: &[Arc<Notification>]) -> Vec<u8> {
        notifications.iter().map(|it| it.message[it.message.len() - 2]).collect()
    }

    fn answer_all(board: &mut ChannelTable) {
        while board.next_query().is_some() {
            board.answered(Ok(()));
        }
    }

    #[test]
    fn both_sides_count_from_the_marker_and_resume_behind_the_last_number() {
        let ear = (WorkerId(0), ClientId::new(1, 0));
        let (marker, news) = (marker_channel([7; 16]), channel("news"));
        let (exit, sent) = mpsc::channel();
        let mut old_board = ChannelTable::default();
        old_board.listen(ear, PoolId(0), vec![news.clone()], false);
        let mut old = Departure::new(exit, marker.clone(), &mut old_board);
        old.offer("shop", &mut old_board);
        assert!(sent.try_recv().is_err(), "nothing is listened to yet");
        answer_all(&mut old_board);
        old.offer("shop", &mut old_board);
        let Ok(Outgoing::Channels { round, channels, .. }) = sent.try_recv() else { panic!() };
        assert_eq!(channels, std::slice::from_ref(&news));
        let mut new_board = ChannelTable::default();
        let mut new = Inheritance::new(marker.clone(), &mut new_board);
        new.hold(round, vec![PoolId(0)], channels, &mut new_board);
        assert_eq!(new.take_confirmed(&new_board), None);
        answer_all(&mut new_board);
        assert_eq!(new.take_confirmed(&new_board), Some(round));
        assert_eq!(new.take_confirmed(&new_board), None);
        old.confirmed(round);
        let sql = String::from_utf8(old.next_marker().unwrap()).unwrap();
        assert!(sql.contains(std::str::from_utf8(&marker).unwrap()), "{sql}");
        assert_eq!(old.count(&news), 0, "nothing counts before the marker");
        assert!(new.receive(&Arc::new(notification(&news, "0"))).is_empty());
        // One that comes before the marker has been given what is before it.
        let early = (WorkerId(0), ClientId::new(2, 0));
        let nothing = vec![(news.clone(), 1)];
        let resumed = new.resume(early, std::slice::from_ref(&news), &nothing, &new_board);
        assert_eq!(resumed.map(|it| it.len()), Some(0));
        assert_eq!(new.receive(&Arc::new(notification(&news, "0"))), [early]);
        let mark = notification(&marker, &round.to_string());
        assert_eq!(old.marked(&mark), Some(vec![news.clone()]));
        assert!(new.is_marker(&mark));
        for payload in ["1", "2", "3"] {
            assert_eq!(old.count(&news).to_string(), payload);
            let have_it = new.receive(&Arc::new(notification(&news, payload)));
            assert_eq!(have_it.contains(&early), payload == "1");
        }
        let channels = [news.clone()];
        let resumed = new.resume(ear, &channels, &vec![(news.clone(), 1)], &new_board).unwrap();
        assert_eq!(payloads(&resumed), b"23");
        assert!(new.resume(ear, &channels, &Vec::new(), &new_board).is_none(), "no number");
        // A client that has had more than has come here is not given that again.
        let resumed = new.resume(ear, &channels, &vec![(news.clone(), 5)], &new_board).unwrap();
        assert!(resumed.is_empty());
        for (payload, has_it) in [("4", true), ("5", true), ("6", false)] {
            let have_it = new.receive(&Arc::new(notification(&news, payload)));
            assert_eq!(have_it.contains(&ear), has_it, "{payload}");
        }
        new.lost();
        assert!(new.resume(ear, &channels, &vec![(news, 6)], &new_board).is_none());
    }

    #[test]
    fn channels_of_a_connection_made_anew_are_offered_again() {
        let (exit, sent) = mpsc::channel();
        let mut board = ChannelTable::default();
        let mut old = Departure::new(exit, marker_channel([1; 16]), &mut board);
        board.listen((WorkerId(0), ClientId::new(1, 0)), PoolId(0), vec![channel("a")], false);
        answer_all(&mut board);
        for round in 1..3 {
            old.offer("shop", &mut board);
            let Ok(Outgoing::Channels { round: sent, .. }) = sent.try_recv() else { panic!() };
            assert_eq!(sent, round);
            old.lost();
            board.lost();
            old.confirmed(sent);
            assert!(old.next_marker().is_none(), "that round is over");
            old.offer("shop", &mut board);
            answer_all(&mut board);
        }
        assert!(sent.try_recv().is_err());
    }
}
