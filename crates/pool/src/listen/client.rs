//! [`ClientChannels`]: what one client listens to, and what waits for it; [`PendingActions`]: what the transaction
//! that a server is at may change of that.

use std::collections::{HashMap, VecDeque};

use howdah_wire::backend::{Severity, encode};

use super::{Channel, Gap, ListenAction, number_of};

/// Most channels of one client.
pub(crate) const CHANNELS_MAX: usize = 65_536;

/// What a client listens to.
#[derive(Debug, Default)]
pub(crate) struct ClientChannels {
    /// By name; whether a transaction has committed it. Else the dedicated connection listens to it in
    /// advance.
    channels: HashMap<Channel, bool>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
    /// Notifications that found no room since the client was told last.
    dropped: u64,
    /// Of them those that no transaction has committed.
    early: Vec<Channel>,
    /// Channels that the worker is to ask for, and has not.
    wanted: Vec<Channel>,
    /// Channels that it is not to hear of any more, and has not been told.
    unwanted: Vec<Channel>,
    /// Why what it asked for last cannot be.
    pub(crate) refusal: Option<String>,
}

/// What waits to be sent.
#[derive(Debug)]
struct Queued {
    /// `None` for what is said by the pooler.
    channel: Option<Channel>,
    message: Box<[u8]>,
}

/// What became of a notification.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Offer {
    Kept,
    Dropped,
    /// The client does not listen to that.
    NotWanted,
}

impl ClientChannels {
    /// Whether it listens to nothing, and nothing waits.
    pub(crate) fn is_idle(&self) -> bool {
        self.channels.is_empty() && self.queue.is_empty() && self.dropped == 0
    }

    /// What it listens to, by transactions that have committed.
    pub(crate) fn committed(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|(_, committed)| **committed).map(|(channel, _)| channel)
    }

    /// Listens to what it listened to in another process.
    pub(crate) fn restore(&mut self, channels: impl Iterator<Item = Channel>) {
        self.channels = channels.take(CHANNELS_MAX).map(|channel| (channel, true)).collect();
    }

    /// Asks for those channels of some statements that are not heard yet. Gives whether there are such.
    pub(crate) fn ask<'a>(&mut self, ops: impl Iterator<Item = &'a ListenAction>) -> bool {
        for op in ops {
            if let ListenAction::Listen(channel) = op
                && !self.channels.contains_key(channel)
            {
                self.channels.insert(channel.clone(), false);
                self.early.push(channel.clone());
                self.wanted.push(channel.clone());
            }
        }
        if self.channels.len() > CHANNELS_MAX {
            for channel in self.wanted.drain(..) {
                self.channels.remove(&channel);
            }
            self.refusal =
                Some(format!("too many channels: a client may listen to {CHANNELS_MAX}"));
        }
        !self.wanted.is_empty()
    }

    /// What is to be asked for, and counts as asked.
    pub(crate) fn take_wanted(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.wanted)
    }

    /// What it asked for is not to be had.
    pub(crate) fn refused(&mut self, why: String) {
        self.forget_early_channels();
        self.refusal = Some(why);
    }

    /// The transaction has ended: what counts is done, and the rest forgotten.
    pub(crate) fn settle<'a>(&mut self, ops: impl Iterator<Item = &'a ListenAction>) {
        for op in ops {
            match op {
                ListenAction::Listen(channel) => drop(self.channels.insert(channel.clone(), true)),
                ListenAction::Unlisten(channel) => {
                    if let Some(committed) = self.channels.get_mut(channel) {
                        *committed = false;
                        self.early.push(channel.clone());
                    }
                }
                ListenAction::UnlistenAll => {
                    self.channels.values_mut().for_each(|it| *it = false);
                    self.early = self.channels.keys().cloned().collect();
                }
            }
        }
        self.forget_early_channels();
    }

    /// Listens to nothing any more.
    pub(crate) fn settle_for_none(&mut self) {
        self.settle(std::iter::once(&ListenAction::UnlistenAll));
    }

    fn forget_early_channels(&mut self) {
        for channel in std::mem::take(&mut self.early) {
            if self.channels.get(&channel) == Some(&false) {
                self.channels.remove(&channel);
                self.unwanted.push(channel);
            }
        }
        self.forget_early();
    }

    /// The client's transaction goes on: what was notified before that was before its commit.
    pub(crate) fn forget_early(&mut self) {
        let Self { channels, queue, queued_bytes, .. } = self;
        queue.retain(|queued| {
            let of = queued.channel.as_ref();
            let stays = of.is_none_or(|channel| channels.get(channel) == Some(&true));
            if !stays {
                *queued_bytes -= queued.message.len();
            }
            stays
        });
    }

    /// What is not to be heard any more.
    pub(crate) fn take_unwanted(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.unwanted)
    }

    pub(crate) fn has_news(&self) -> bool {
        !self.queue.is_empty() || self.dropped > 0
    }

    /// A notification, as the server sent it, is kept until it can be sent; unless there is no room.
    pub(crate) fn offer(&mut self, channel: &Channel, message: &[u8], bytes_max: usize) -> Offer {
        if !self.channels.contains_key(channel) {
            return Offer::NotWanted;
        }
        // Once some were dropped, the gap has its place, and what comes after it waits for its turn.
        if self.dropped > 0 || self.queued_bytes + message.len() > bytes_max {
            self.dropped += 1;
            return Offer::Dropped;
        }
        self.queued_bytes += message.len();
        self.queue.push_back(Queued { channel: Some(channel.clone()), message: message.into() });
        Offer::Kept
    }

    /// Says something in the order of notifications.
    pub(crate) fn say(&mut self, gap: &Gap) {
        let mut message = Vec::new();
        write(&mut message, gap);
        self.queued_bytes += message.len();
        self.queue.push_back(Queued { channel: None, message: message.into() });
    }

    /// Appends what waits, and that some were dropped behind it. What no transaction has committed yet
    /// goes on waiting.
    pub(crate) fn write_news(&mut self, to: &mut Vec<u8>) {
        let mut kept = VecDeque::new();
        for queued in std::mem::take(&mut self.queue) {
            let of = queued.channel.as_ref();
            if of.is_none_or(|channel| self.channels.get(channel) == Some(&true)) {
                to.extend_from_slice(&queued.message);
            } else {
                kept.push_back(queued);
            }
        }
        self.queued_bytes = kept.iter().map(|queued| queued.message.len()).sum();
        self.queue = kept;
        if self.dropped > 0 {
            write(to, &Gap::Lagged { dropped: std::mem::take(&mut self.dropped) });
        }
    }
}

/// Appends what is said about a gap.
pub(crate) fn write(to: &mut Vec<u8>, gap: &Gap) {
    let text = gap.text();
    let fields = encode::essentials(Severity::Warning, gap.sqlstate(), text.as_bytes());
    encode::notice_response(to, fields).expect("the texts hold no zero byte");
}

/// Statements about channels in the transaction that a server is at.
#[derive(Debug, Default)]
pub(crate) struct PendingActions {
    /// In order; the place is the number of the channel that stands for it.
    ops: Vec<ListenAction>,
    /// Numbers that the server listens to after the transaction's end.
    counts: Vec<u32>,
    /// Command tags of such statements that came back.
    pub(crate) tags: usize,
    /// A portal whose statement is one.
    pub(crate) portal: Option<(Box<[u8]>, ListenAction)>,
    /// The error that is to be told of the statement that was made to fail.
    pub(crate) refusal: Option<Vec<u8>>,
}

impl PendingActions {
    pub(crate) fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Counts a statement; gives its number.
    pub(crate) fn add(&mut self, op: ListenAction) -> u32 {
        self.ops.push(op);
        u32::try_from(self.ops.len() - 1).unwrap_or(u32::MAX)
    }

    /// The server listens to this after the transaction.
    pub(crate) fn hear(&mut self, channel: &[u8]) {
        if let Some(number) = number_of(channel)
            && (number as usize) < self.ops.len()
            && self.counts.len() < self.ops.len()
        {
            self.counts.push(number);
        }
    }

    /// The statements that count, in order.
    pub(crate) fn outcome(mut self) -> Vec<ListenAction> {
        self.counts.sort_unstable();
        self.counts.dedup();
        let ops = &self.ops;
        self.counts.iter().filter_map(|number| ops.get(*number as usize).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str) -> Channel {
        name.as_bytes().into()
    }

    fn listen(listens: &mut ClientChannels, name: &str) {
        let op = ListenAction::Listen(channel(name));
        listens.ask(std::iter::once(&op));
        assert_eq!(listens.take_wanted(), [channel(name)]);
        listens.settle(std::iter::once(&op));
    }

    fn news(listens: &mut ClientChannels) -> String {
        let mut bytes = Vec::new();
        listens.write_news(&mut bytes);
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn what_finds_no_room_is_counted_and_told_in_its_place() {
        let mut listens = ClientChannels::default();
        listen(&mut listens, "a");
        assert_eq!(listens.offer(&channel("a"), b"12345", 8), Offer::Kept);
        assert_eq!(listens.offer(&channel("a"), b"6789", 8), Offer::Dropped);
        // It would fit, but would then come before the notice of what was dropped before it.
        assert_eq!(listens.offer(&channel("a"), b"x", 8), Offer::Dropped);
        assert_eq!(listens.offer(&channel("b"), b"x", 8), Offer::NotWanted);
        let said = news(&mut listens);
        assert!(
            said.starts_with("12345N") && said.contains("01N01") && said.contains(", 2 of them")
        );
        assert_eq!(listens.offer(&channel("a"), b"y", 8), Offer::Kept);
        assert_eq!(news(&mut listens), "y");
        assert!(!listens.has_news());
    }

    #[test]
    fn what_came_before_the_commit_is_not_told() {
        let mut listens = ClientChannels::default();
        let op = ListenAction::Listen(channel("a"));
        listens.ask(std::iter::once(&op));
        listens.take_wanted();
        assert_eq!(listens.offer(&channel("a"), b"early", 99), Offer::Kept);
        assert_eq!(news(&mut listens), "", "nothing is committed");
        listens.forget_early();
        assert_eq!(listens.offer(&channel("a"), b"late", 99), Offer::Kept);
        listens.settle(std::iter::once(&op));
        assert_eq!(news(&mut listens), "late");
        listens.ask([ListenAction::Listen(channel("b"))].iter());
        listens.take_wanted();
        listens.offer(&channel("b"), b"x", 99);
        listens.settle([ListenAction::UnlistenAll].iter());
        let mut unwanted = listens.take_unwanted();
        unwanted.sort();
        assert_eq!(unwanted, [channel("a"), channel("b")]);
        assert!(listens.is_idle());
    }

    #[test]
    fn numbers_that_are_left_say_what_counts() {
        let mut undertaking = PendingActions::default();
        let ops = [
            ListenAction::Listen(channel("a")),
            ListenAction::Unlisten(channel("b")),
            ListenAction::UnlistenAll,
        ];
        let numbers = ops.clone().map(|op| undertaking.add(op));
        for heard in [super::super::token(numbers[2]), super::super::token(numbers[0])] {
            undertaking.hear(heard.as_bytes());
        }
        undertaking.hear(b"howdah listen 99");
        undertaking.hear(b"a");
        assert_eq!(undertaking.outcome(), [ops[0].clone(), ops[2].clone()]);
    }

    #[test]
    fn a_client_has_no_more_channels_than_it_may() {
        let mut listens = ClientChannels::default();
        let ops: Vec<_> =
            (0..=CHANNELS_MAX).map(|at| ListenAction::Listen(channel(&at.to_string()))).collect();
        assert!(!listens.ask(ops[..].iter()));
        assert!(listens.refusal.is_some());
    }
}
