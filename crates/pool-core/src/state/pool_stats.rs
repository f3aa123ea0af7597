//! [`PoolStats`]: a worker's counters of a pool's traffic. They are plain numbers owned by the
//! worker; readers request copies and add those of all workers.

use std::{ops::AddAssign, time::Duration};

use crate::time::Time;

/// Counters and times of a pool since the worker added it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Number of times that a client, connected or internal, was assigned a server.
    pub assignments: u64,
    /// Number of completed transactions; a request outside a transaction block counts as one.
    pub transactions: u64,
    /// Number of query strings, function calls and batches up to a Sync that clients sent and a
    /// server has answered.
    pub queries: u64,
    /// Bytes received from clients after authentication, and those passed to internal clients.
    pub client_bytes: u64,
    /// Bytes received from servers after login.
    pub server_bytes: u64,
    /// Durations of transactions on their servers. Pipelined transactions all count from the start
    /// of the first.
    pub transaction_time: DurationHistogram,
    /// Durations of requests on their servers. Pipelined requests all count from the start of the
    /// first.
    pub query_time: DurationHistogram,
    /// How long clients waited until they got a server; clients that got one at once do not count.
    pub wait_time: DurationHistogram,
    /// Number of named statements prepared by clients, where the pooler rewrites statement names.
    pub client_parses: u64,
    /// Number of named statements prepared on servers for clients, where the pooler rewrites names.
    pub server_parses: u64,
    /// Number of Binds of named statements, where the pooler rewrites names.
    pub binds: u64,
    /// Number of authenticated clients, including those refused because the server was down.
    pub logins: u64,
    /// Number of times that the primary was selected for a client's read because no standby had
    /// replayed the client's writes.
    pub reads_redirected: u64,
    /// Number of times that no member was selected for a client because no standby had replayed its
    /// writes. While the client waits, each further selection counts too: one every 100 ms, and one
    /// whenever the cluster's state changes.
    pub reads_waited: u64,
    /// Number of times that a client was pinned to its server.
    pub pins: u64,
    /// For how long clients were pinned, counted when they are no longer.
    pub pinned_time: DurationHistogram,
    /// Number of notifications queued for clients, counted once for each client.
    pub notifications: u64,
    /// Number of notifications dropped because a client's buffer was full.
    pub notifications_dropped: u64,
    /// Number of warnings to clients that they may have missed notifications, because another
    /// dedicated connection listens now.
    pub notification_gaps: u64,
}

impl PoolStats {
    /// Returns the increase since an earlier copy.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
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
            reads_redirected: self.reads_redirected.saturating_sub(before.reads_redirected),
            reads_waited: self.reads_waited.saturating_sub(before.reads_waited),
            pins: self.pins.saturating_sub(before.pins),
            pinned_time: self.pinned_time.since(&before.pinned_time),
            notifications: self.notifications.saturating_sub(before.notifications),
            notifications_dropped: self
                .notifications_dropped
                .saturating_sub(before.notifications_dropped),
            notification_gaps: self.notification_gaps.saturating_sub(before.notification_gaps),
        }
    }
}

impl AddAssign<&Self> for PoolStats {
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
        self.reads_redirected += other.reads_redirected;
        self.reads_waited += other.reads_waited;
        self.pins += other.pins;
        self.pinned_time += &other.pinned_time;
        self.notifications += other.notifications;
        self.notifications_dropped += other.notifications_dropped;
        self.notification_gaps += other.notification_gaps;
    }
}

/// Returns a duration in whole microseconds.
pub fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// A histogram of durations, with their sum.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DurationHistogram {
    /// Sum of the durations, in nanoseconds.
    pub total_ns: u64,
    /// Number of durations in each bucket. A bucket contains durations, in whole microseconds,
    /// above the previous bound of [`DurationHistogram::BOUNDS_US`], up to and including its own;
    /// the last bucket has no upper bound.
    pub counts: [u64; Self::BUCKETS],
}

impl DurationHistogram {
    /// Number of buckets. The first upper bound is 16 µs; each further one is twice the previous,
    /// up to 67 seconds. The last bucket has no upper bound.
    pub const BUCKETS: usize = 24;

    const FIRST_BITS: u32 = 4;

    /// Upper bounds of all buckets but the last, in microseconds.
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

    /// Returns the sum of the durations.
    pub fn total(&self) -> Duration {
        Duration::from_nanos(self.total_ns)
    }

    /// Adds the duration between two moments.
    #[inline]
    pub(crate) fn add(&mut self, from: Time, to: Time) {
        let nanos = to.0.saturating_sub(from.0);
        self.total_ns += nanos;
        let bits = u64::BITS - (nanos / 1000).saturating_sub(1).leading_zeros();
        let bucket = bits.saturating_sub(Self::FIRST_BITS) as usize;
        self.counts[bucket.min(Self::BUCKETS - 1)] += 1;
    }
}

impl AddAssign<&Self> for DurationHistogram {
    fn add_assign(&mut self, other: &Self) {
        self.total_ns += other.total_ns;
        self.counts.iter_mut().zip(other.counts).for_each(|(count, more)| *count += more);
    }
}

#[test]
fn duration_is_counted_in_its_bucket() {
    for (micros, bucket) in [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2), (1 << 40, 23)] {
        let mut spans = DurationHistogram::default();
        spans.add(Time(500), Time(500 + micros * 1000));
        assert_eq!(spans.counts[bucket], 1, "{micros}");
        assert!(DurationHistogram::BOUNDS_US.get(bucket).is_none_or(|bound| micros <= *bound));
        assert!(bucket == 0 || micros > DurationHistogram::BOUNDS_US[bucket - 1]);
    }
}
