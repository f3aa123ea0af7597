//! [`ClientChannels`]: the channels that one client listens to, and its pending notifications.
//! [`PendingActions`]: the LISTEN and UNLISTEN statements of a server's current transaction.

use std::collections::{HashMap, VecDeque};

use howdah_wire::backend::{Severity, encode};

use crate::listen::channels::{Channel, ListenAction, MissedNotifications, marker_number};

/// Maximum number of channels of one client.
pub(crate) const CHANNELS_MAX: usize = 65_536;

/// The LISTEN state of a client: its channels, and the notifications and warnings that wait to be
/// sent to it.
#[derive(Debug, Default)]
pub(crate) struct ClientChannels {
    /// For each channel, whether a transaction has committed its LISTEN. If not, only the dedicated
    /// connection listens to it, in advance.
    channels: HashMap<Channel, bool>,
    queue: VecDeque<QueuedMessage>,
    queued_bytes: usize,
    /// Number of notifications dropped since the client was last warned.
    dropped: u64,
    /// The channels in `channels` whose LISTEN no transaction has committed.
    uncommitted: Vec<Channel>,
    /// Channels for which [`CoreIo::listen`](crate::io::CoreIo::listen) has yet to be called.
    to_listen: Vec<Channel>,
    /// Channels for which [`CoreIo::unlisten`](crate::io::CoreIo::unlisten) has yet to be
    /// called.
    to_unlisten: Vec<Channel>,
    /// The reason why the last request to listen failed, until it is reported to the client.
    pub(crate) refusal: Option<String>,
}

/// A notification or warning that waits to be sent to the client.
#[derive(Debug)]
struct QueuedMessage {
    /// Channel of the notification; `None` for a warning from the pooler.
    channel: Option<Channel>,
    message: Box<[u8]>,
}

/// The result of [`ClientChannels::offer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotificationOutcome {
    Queued,
    Dropped,
    /// The client does not listen to the channel.
    NotListening,
}

impl ClientChannels {
    /// Whether the client has no channels, and no notification or warning is pending.
    pub(crate) fn is_idle(&self) -> bool {
        self.channels.is_empty() && self.queue.is_empty() && self.dropped == 0
    }

    /// Returns the channels whose LISTEN was committed.
    pub(crate) fn committed(&self) -> impl Iterator<Item = &Channel> {
        self.channels.iter().filter(|(_, committed)| **committed).map(|(channel, _)| channel)
    }

    /// Restores the channels that the client had in another process.
    pub(crate) fn restore(&mut self, channels: impl Iterator<Item = Channel>) {
        self.channels = channels.take(CHANNELS_MAX).map(|channel| (channel, true)).collect();
    }

    /// Requests the channels of LISTEN statements that the dedicated connection does not listen to
    /// for this client yet. Returns whether there are any; if they are too many, sets `refusal`
    /// instead.
    pub(crate) fn request<'a>(&mut self, actions: impl Iterator<Item = &'a ListenAction>) -> bool {
        for action in actions {
            if let ListenAction::Listen(channel) = action
                && !self.channels.contains_key(channel)
            {
                self.channels.insert(channel.clone(), false);
                self.uncommitted.push(channel.clone());
                self.to_listen.push(channel.clone());
            }
        }
        if self.channels.len() > CHANNELS_MAX {
            for channel in self.to_listen.drain(..) {
                self.channels.remove(&channel);
            }
            self.refusal =
                Some(format!("too many channels: a client may listen to at most {CHANNELS_MAX}"));
        }
        !self.to_listen.is_empty()
    }

    /// Takes the channels that the worker must listen to.
    pub(crate) fn take_to_listen(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.to_listen)
    }

    /// Handles the failure of a request to listen: drops uncommitted channels and stores the
    /// reason.
    pub(crate) fn refuse(&mut self, reason: String) {
        self.drop_uncommitted();
        self.refusal = Some(reason);
    }

    /// Applies the statements of an ended transaction that took effect, and drops the channels that
    /// are still not committed.
    pub(crate) fn commit<'a>(&mut self, actions: impl Iterator<Item = &'a ListenAction>) {
        for action in actions {
            match action {
                ListenAction::Listen(channel) => drop(self.channels.insert(channel.clone(), true)),
                ListenAction::Unlisten(channel) => {
                    if let Some(committed) = self.channels.get_mut(channel) {
                        *committed = false;
                        self.uncommitted.push(channel.clone());
                    }
                }
                ListenAction::UnlistenAll => {
                    self.channels.values_mut().for_each(|it| *it = false);
                    self.uncommitted = self.channels.keys().cloned().collect();
                }
            }
        }
        self.drop_uncommitted();
    }

    pub(crate) fn unlisten_all(&mut self) {
        self.commit(std::iter::once(&ListenAction::UnlistenAll));
    }

    fn drop_uncommitted(&mut self) {
        for channel in std::mem::take(&mut self.uncommitted) {
            if self.channels.get(&channel) == Some(&false) {
                self.channels.remove(&channel);
                self.to_unlisten.push(channel);
            }
        }
        self.drop_uncommitted_notifications();
    }

    /// Drops queued notifications of channels whose LISTEN is not committed: PostgreSQL would not
    /// deliver them.
    pub(crate) fn drop_uncommitted_notifications(&mut self) {
        let Self { channels, queue, queued_bytes, .. } = self;
        queue.retain(|queued| {
            let of = queued.channel.as_ref();
            let is_committed = of.is_none_or(|channel| channels.get(channel) == Some(&true));
            if !is_committed {
                *queued_bytes -= queued.message.len();
            }
            is_committed
        });
    }

    /// Takes the channels that the worker must unlisten.
    pub(crate) fn take_to_unlisten(&mut self) -> Vec<Channel> {
        std::mem::take(&mut self.to_unlisten)
    }

    pub(crate) fn has_pending(&self) -> bool {
        !self.queue.is_empty() || self.dropped > 0
    }

    /// Queues a notification, as the server sent it, if the client listens to the channel or has
    /// requested it. Drops it if the buffer is full, or if the client must first be warned about
    /// earlier drops.
    pub(crate) fn offer(
        &mut self,
        channel: &Channel,
        message: &[u8],
        bytes_max: usize,
    ) -> NotificationOutcome {
        if !self.channels.contains_key(channel) {
            return NotificationOutcome::NotListening;
        }
        // Once a notification was dropped, also drop later ones until the client has been warned,
        // so that the warning stands where notifications are missing.
        if self.dropped > 0 || self.queued_bytes + message.len() > bytes_max {
            self.dropped += 1;
            return NotificationOutcome::Dropped;
        }
        self.queued_bytes += message.len();
        self.queue
            .push_back(QueuedMessage { channel: Some(channel.clone()), message: message.into() });
        NotificationOutcome::Queued
    }

    /// Queues a warning after the notifications that are queued already.
    pub(crate) fn push_warning(&mut self, warning: &MissedNotifications) {
        let mut message = Vec::new();
        write_warning(&mut message, warning);
        self.queued_bytes += message.len();
        self.queue.push_back(QueuedMessage { channel: None, message: message.into() });
    }

    /// Appends queued messages to `to`, then a warning if notifications were dropped. Notifications
    /// of uncommitted channels stay queued.
    pub(crate) fn write_pending(&mut self, to: &mut Vec<u8>) {
        let mut remaining = VecDeque::new();
        for queued in std::mem::take(&mut self.queue) {
            let of = queued.channel.as_ref();
            if of.is_none_or(|channel| self.channels.get(channel) == Some(&true)) {
                to.extend_from_slice(&queued.message);
            } else {
                remaining.push_back(queued);
            }
        }
        self.queued_bytes = remaining.iter().map(|queued| queued.message.len()).sum();
        self.queue = remaining;
        if self.dropped > 0 {
            write_warning(
                to,
                &MissedNotifications::Dropped { count: std::mem::take(&mut self.dropped) },
            );
        }
    }
}

/// Appends a warning as a NoticeResponse message.
pub(crate) fn write_warning(to: &mut Vec<u8>, warning: &MissedNotifications) {
    let text = warning.text();
    let fields = encode::essentials(Severity::Warning, warning.sqlstate(), text.as_bytes());
    encode::notice_response(to, fields).expect("the texts contain no zero byte");
}

/// The state of the LISTEN and UNLISTEN statements in a server's current transaction.
#[derive(Debug, Default)]
pub(crate) struct PendingActions {
    /// The statements in order of execution; the index is the number of the marker channel.
    actions: Vec<ListenAction>,
    /// Numbers of the markers that the server listens to after the transaction.
    effective: Vec<u32>,
    /// Number of command tags received for LISTEN and UNLISTEN statements.
    pub(crate) tags: usize,
    /// The portal bound to a LISTEN or UNLISTEN, with the statement.
    pub(crate) portal: Option<(Box<[u8]>, ListenAction)>,
    /// The error to send to the client in place of the server's, if the pooler made a LISTEN fail.
    pub(crate) refusal: Option<Vec<u8>>,
}

impl PendingActions {
    pub(crate) fn is_empty(&self) -> bool {
        self.actions.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.actions.len()
    }

    /// Adds a statement; returns the number of its marker channel.
    pub(crate) fn push(&mut self, action: ListenAction) -> u32 {
        self.actions.push(action);
        u32::try_from(self.actions.len() - 1).unwrap_or(u32::MAX)
    }

    /// Records a channel that the server listens to after the transaction, if it is a marker.
    pub(crate) fn record_channel(&mut self, channel: &[u8]) {
        if let Some(number) = marker_number(channel)
            && (number as usize) < self.actions.len()
            && self.effective.len() < self.actions.len()
        {
            self.effective.push(number);
        }
    }

    /// Returns the statements that took effect, in order.
    pub(crate) fn into_effective(mut self) -> Vec<ListenAction> {
        self.effective.sort_unstable();
        self.effective.dedup();
        let actions = &self.actions;
        self.effective.iter().filter_map(|number| actions.get(*number as usize).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(name: &str) -> Channel {
        name.as_bytes().into()
    }

    fn listen(channels: &mut ClientChannels, name: &str) {
        let action = ListenAction::Listen(channel(name));
        channels.request(std::iter::once(&action));
        assert_eq!(channels.take_to_listen(), [channel(name)]);
        channels.commit(std::iter::once(&action));
    }

    fn pending_text(channels: &mut ClientChannels) -> String {
        let mut bytes = Vec::new();
        channels.write_pending(&mut bytes);
        bytes.escape_ascii().to_string()
    }

    #[test]
    fn dropped_notifications_are_counted_and_reported_in_order() {
        let mut channels = ClientChannels::default();
        listen(&mut channels, "a");
        assert_eq!(channels.offer(&channel("a"), b"12345", 8), NotificationOutcome::Queued);
        assert_eq!(channels.offer(&channel("a"), b"6789", 8), NotificationOutcome::Dropped);
        // It would fit, but the warning about earlier dropped notifications must come first.
        assert_eq!(channels.offer(&channel("a"), b"x", 8), NotificationOutcome::Dropped);
        assert_eq!(channels.offer(&channel("b"), b"x", 8), NotificationOutcome::NotListening);
        let output = pending_text(&mut channels);
        assert!(
            output.starts_with("12345N")
                && output.contains("01N01")
                && output.contains("was full: 2 dropped")
        );
        assert_eq!(channels.offer(&channel("a"), b"y", 8), NotificationOutcome::Queued);
        assert_eq!(pending_text(&mut channels), "y");
        assert!(!channels.has_pending());
    }

    #[test]
    fn notifications_before_commit_are_dropped() {
        let mut channels = ClientChannels::default();
        let action = ListenAction::Listen(channel("a"));
        channels.request(std::iter::once(&action));
        channels.take_to_listen();
        assert_eq!(channels.offer(&channel("a"), b"early", 99), NotificationOutcome::Queued);
        assert_eq!(pending_text(&mut channels), "", "the LISTEN is not committed");
        channels.drop_uncommitted_notifications();
        assert_eq!(channels.offer(&channel("a"), b"late", 99), NotificationOutcome::Queued);
        channels.commit(std::iter::once(&action));
        assert_eq!(pending_text(&mut channels), "late");
        channels.request([ListenAction::Listen(channel("b"))].iter());
        channels.take_to_listen();
        channels.offer(&channel("b"), b"x", 99);
        channels.commit([ListenAction::UnlistenAll].iter());
        let mut unlistened = channels.take_to_unlisten();
        unlistened.sort();
        assert_eq!(unlistened, [channel("a"), channel("b")]);
        assert!(channels.is_idle());
    }

    #[test]
    fn remaining_marker_channels_select_effective_actions() {
        let mut pending = PendingActions::default();
        let actions = [
            ListenAction::Listen(channel("a")),
            ListenAction::Unlisten(channel("b")),
            ListenAction::UnlistenAll,
        ];
        let numbers = actions.clone().map(|action| pending.push(action));
        for channel in [
            crate::listen::channels::marker_channel(numbers[2]),
            crate::listen::channels::marker_channel(numbers[0]),
        ] {
            pending.record_channel(channel.as_bytes());
        }
        pending.record_channel(b"howdah listen 99");
        pending.record_channel(b"a");
        assert_eq!(pending.into_effective(), [actions[0].clone(), actions[2].clone()]);
    }

    #[test]
    fn channels_beyond_maximum_are_refused() {
        let mut channels = ClientChannels::default();
        let actions: Vec<_> =
            (0..=CHANNELS_MAX).map(|at| ListenAction::Listen(channel(&at.to_string()))).collect();
        assert!(!channels.request(actions[..].iter()));
        assert!(channels.refusal.is_some());
    }
}
