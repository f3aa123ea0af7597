//! [`SenderFilter`]: drops what comes from senders that a listener does not permit.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use super::socket_counts::SocketCounts;
use crate::settings::SenderNetwork;

/// Minimum time between log lines about refused senders of one listener.
const NOTICE_INTERVAL: Duration = Duration::from_secs(60);

/// A schedule for log lines about refusals: the first is logged at once, later ones at intervals.
#[derive(Debug, Default)]
pub(crate) struct RefusalNotice {
    last: Option<Instant>,
    /// Refusals since the last line.
    refused: u64,
}

impl RefusalNotice {
    /// Records refusals. Returns their number since the last line if another is due.
    pub(crate) fn record(&mut self, refused: u64, now: Instant) -> Option<u64> {
        self.refused += refused;
        let since = |last| now.saturating_duration_since(last);
        if self.last.is_some_and(|last| since(last) < NOTICE_INTERVAL) {
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.refused))
    }
}

/// The permitted senders of one reader's socket.
#[derive(Debug)]
pub(crate) struct SenderFilter {
    networks: Vec<SenderNetwork>,
    /// Packets or connections denied since the last [`report`](Self::report), and the last sender.
    denied: u64,
    example: Option<IpAddr>,
    notice: RefusalNotice,
}

impl SenderFilter {
    /// Creates a filter; `None` if all senders are permitted.
    pub(crate) fn new(networks: &[SenderNetwork]) -> Option<Self> {
        let networks = networks.to_vec();
        (!networks.is_empty()).then(|| Self {
            networks,
            denied: 0,
            example: None,
            notice: RefusalNotice::default(),
        })
    }

    /// Whether the sender is permitted; if not, counts it. A sender without an address is not.
    pub(crate) fn permits(&mut self, sender: Option<IpAddr>) -> bool {
        let is_listed = |sender| self.networks.iter().any(|network| network.contains(sender));
        let permitted = sender.is_some_and(is_listed);
        if !permitted {
            self.denied += 1;
            self.example = sender.or(self.example);
        }
        permitted
    }

    /// Adds the denied packets or connections to the socket's counts, logs them from time to time,
    /// and returns their number.
    pub(crate) fn report(&mut self, counts: &SocketCounts) -> u64 {
        let denied = std::mem::take(&mut self.denied);
        if denied == 0 {
            return 0;
        }
        counts.deny(denied);
        if let Some(denied) = self.notice.record(denied, Instant::now()) {
            let example = self.example.map(|sender| sender.to_canonical().to_string());
            tracing::warn!(
                socket = counts.name(),
                denied,
                example,
                "packets or connections of senders that are not in `allow` were dropped"
            );
        }
        denied
    }
}

#[test]
fn first_refusal_is_logged_at_once_and_later_ones_at_intervals() {
    let mut notice = RefusalNotice::default();
    let start = Instant::now();
    assert_eq!(notice.record(3, start), Some(3));
    assert_eq!(notice.record(1, start + NOTICE_INTERVAL / 2), None);
    assert_eq!(notice.record(2, start + NOTICE_INTERVAL), Some(3));
    assert_eq!(notice.record(1, start + NOTICE_INTERVAL), None);
}
