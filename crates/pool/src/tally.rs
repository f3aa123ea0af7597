//! [`Tally`]: what a worker counts of a pool's traffic. Plain numbers of the worker's own, added to in
//! passing; whoever wants to know them asks the worker for a copy and adds those of all workers up.

use std::{ops::AddAssign, time::Duration};

use crate::time::Time;

/// Counts and times of a pool, since the worker began.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// How often a client was given a server.
    pub assignments: u64,
    /// Transactions, those of one statement included.
    pub transactions: u64,
    /// Requests that ended with ReadyForQuery.
    pub queries: u64,
    /// Bytes from clients.
    pub client_bytes: u64,
    /// Bytes from servers.
    pub server_bytes: u64,
    /// How long transactions had their servers.
    pub transaction_time: Spans,
    /// How long servers worked on requests.
    pub query_time: Spans,
    /// How long clients waited for servers; those that did not wait are not among them.
    pub wait_time: Spans,
    /// Statements that clients prepared by a name.
    pub client_parses: u64,
    /// Statements that were prepared on servers by a name.
    pub server_parses: u64,
    /// Binds of statements with names.
    pub binds: u64,
    /// Clients that logged in.
    pub logins: u64,
    /// Reads that went to the primary because no standby had replayed what their client wrote.
    pub reads_kept: u64,
    /// How often a client waited for a standby to have replayed what it wrote.
    pub reads_awaited: u64,
    /// Notifications for clients, each as often as there are clients that it is for.
    pub notifications: u64,
    /// The same of those that were dropped because a client did not take them in time.
    pub notifications_dropped: u64,
    /// How often a client was told that it may have missed some, because a connection was lost.
    pub notification_gaps: u64,
}

impl Tally {
    /// What was counted after `before`, which is an earlier copy.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            assignments: self.assignments.saturating_sub(before.assignments),
            transactions: self.transactions.saturating_sub(before.transactions),
            queries: self.queries.saturating_sub(before.queries),
            client_bytes: self.client_bytes.saturating_sub(before.client_bytes),
            server_bytes: self.server_bytes.saturating_sub(before.server_bytes),
            transaction_time: self.transaction_time.since(&before.transaction_time),
            query_time: self.query_time.since(&before.query_time),
            wait_time: self.wait_time.since(&before.wait_time),
            client_parses: self.client_parses.saturating_sub(before.client_parses),
            server_parses: self.server_parses.saturating_sub(before.server_parses),
            binds: self.binds.saturating_sub(before.binds),
            logins: self.logins.saturating_sub(before.logins),
            reads_kept: self.reads_kept.saturating_sub(before.reads_kept),
            reads_awaited: self.reads_awaited.saturating_sub(before.reads_awaited),
            notifications: self.notifications.saturating_sub(before.notifications),
            notifications_dropped: self
                .notifications_dropped
                .saturating_sub(before.notifications_dropped),
            notification_gaps: self.notification_gaps.saturating_sub(before.notification_gaps),
        }
    }
}

impl AddAssign<&Self> for Tally {
    fn add_assign(&mut self, other: &Self) {
        self.assignments += other.assignments;
        self.transactions += other.transactions;
        self.queries += other.queries;
        self.client_bytes += other.client_bytes;
        self.server_bytes += other.server_bytes;
        self.transaction_time += &other.transaction_time;
        self.query_time += &other.query_time;
        self.wait_time += &other.wait_time;
        self.client_parses += other.client_parses;
        self.server_parses += other.server_parses;
        self.binds += other.binds;
        self.logins += other.logins;
        self.reads_kept += other.reads_kept;
        self.reads_awaited += other.reads_awaited;
        self.notifications += other.notifications;
        self.notifications_dropped += other.notifications_dropped;
        self.notification_gaps += other.notification_gaps;
    }
}

/// Microseconds of a duration.
pub(crate) fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// Durations: their sum, and how many there were of each size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spans {
    /// All of them together, in nanoseconds.
    pub total_ns: u64,
    /// How many were longer than the bound before and not longer than the one at this place, see
    /// [`Spans::BOUNDS_US`]; the last has no bound.
    pub counts: [u64; Self::BUCKETS],
}

impl Spans {
    /// How many sizes are told apart: from 16 µs, each twice the one before, to 67 seconds and more.
    pub const BUCKETS: usize = 24;

    const FIRST_BITS: u32 = 4;

    /// The longest durations that are counted at each place but the last, in microseconds.
    pub const BOUNDS_US: [u64; Self::BUCKETS - 1] = {
        let mut bounds = [0; Self::BUCKETS - 1];
        let mut at = 0;
        while at < bounds.len() {
            bounds[at] = 1 << (at + Self::FIRST_BITS as usize);
            at += 1;
        }
        bounds
    };

    fn since(&self, before: &Self) -> Self {
        let mut counts = self.counts;
        counts
            .iter_mut()
            .zip(before.counts)
            .for_each(|(now, then)| *now = now.saturating_sub(then));
        Self { total_ns: self.total_ns.saturating_sub(before.total_ns), counts }
    }

    /// All of them together.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// Counts what has passed from one moment to another.
    #[inline]
    pub(crate) fn add(&mut self, from: Time, to: Time) {
        let nanos = to.0.saturating_sub(from.0);
        self.total_ns += nanos;
        let bits = u64::BITS - (nanos / 1000).saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(Self::FIRST_BITS) as usize;
        self.counts[bucket.min(Self::BUCKETS - 1)] += 1;
    }
}

impl AddAssign<&Self> for Spans {
    fn add_assign(&mut self, other: &Self) {
        self.total_ns += other.total_ns;
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }
}

#[test]
fn a_span_is_counted_where_its_bound_says() {
    for (micros, bucket) in [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (1 << 40, 23)] {
        let mut spans = Spans::default();
        spans.add(Time(500), Time(500 + micros * 1000));
        assert_eq!(spans.counts[bucket], 1, "{micros}");
        assert!(Spans::BOUNDS_US.get(bucket).is_none_or(|bound| micros <= *bound));
        assert!(bucket == 0 || micros > Spans::BOUNDS_US[bucket - 1]);
    }
}
