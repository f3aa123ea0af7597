//! Counters of a worker, in addition to the outcomes of events.

/// Counters of a worker's events, sessions and connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerStats {
    /// Number of events popped from the inbox. Each of them has an outcome, unlike events that a
    /// stop leaves in the inbox.
    pub(crate) events: u64,
    pub(crate) sessions: u64,
    pub(crate) connections: u64,
    pub(crate) lost: u64,
    /// Sessions closed at the end of the capture inside an open transaction.
    pub(crate) closed_in_transaction: u64,
    pub(crate) open: usize,
    pub(crate) open_max: usize,
    pub(crate) in_flight: usize,
    pub(crate) stopped: bool,
}

impl WorkerStats {
    /// Adds the totals of another worker.
    pub(crate) fn add(&mut self, other: Self) {
        self.events += other.events;
        self.sessions += other.sessions;
        self.connections += other.connections;
        self.lost += other.lost;
        self.closed_in_transaction += other.closed_in_transaction;
        self.open_max += other.open_max;
        self.stopped |= other.stopped;
    }
}
