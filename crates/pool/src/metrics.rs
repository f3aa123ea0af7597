//! The Prometheus metrics of the pooler: their descriptions, and the code that updates a registry.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use howdah_capture::live::RecorderCounts as CaptureTally;
use howdah_pool_core::{
    DropReason, DurationHistogram, MirrorReport, PoolCounts, PoolStats, micros,
};
use howdah_stats::{Description, Histogram, MetricUnit, Registry};
use howdah_traffic::Timestamp;

use crate::{
    CancelPeersReport, MemberView, MirrorView, PoolerHandle, PoolerSnapshot, auth::RefusalReason,
};

/// Every metric of `howdah pool`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    CLIENTS,
    SERVERS,
    LONGEST_WAIT,
    PAUSED,
    TRANSACTIONS,
    QUERIES,
    LOGINS,
    LOGINS_REFUSED,
    ASSIGNMENTS,
    PINNED_CLIENTS,
    PINS,
    PINNED_SECONDS,
    READS_REDIRECTED,
    READS_WAITED,
    CLIENT_BYTES,
    SERVER_BYTES,
    NOTIFICATIONS,
    NOTIFICATIONS_DROPPED,
    NOTIFICATION_GAPS,
    LISTENING_CLIENTS,
    LISTENER_UP,
    TRANSACTION_SECONDS,
    QUERY_SECONDS,
    WAIT_SECONDS,
    MEMBER_UP,
    MEMBER_PRIMARY,
    MEMBER_LAG_SECONDS,
    MEMBER_LAG_BYTES,
    MEMBER_TRANSACTIONS,
    MIRROR_CLIENTS,
    MIRROR_BUFFERED_BYTES,
    MIRROR_TRANSACTIONS,
    MIRROR_DROPPED,
    MIRROR_MISMATCHES,
    MIRROR_ERRORS,
    FORWARDED_CANCELS_SENT,
    FORWARDED_CANCELS_RECEIVED,
    FORWARDED_CANCELS_DROPPED,
    CAPTURE_EVENTS,
    CAPTURE_GAPS,
    CAPTURE_LOST_BYTES,
    CAPTURE_ACTIVE,
];

/// The labels of cluster members. Without sharding, `shard` is empty, which Prometheus treats as no
/// label.
const MEMBER: &[&str] = &["database", "server", "shard"];
const MIRROR: &[&str] = &["database", "mirror"];
const POOL: &[&str] = &["database", "user"];
const POOL_AND_STATE: &[&str] = &["database", "user", "state"];

const CLIENTS: Description =
    Description::gauge("howdah_pool_clients", "Clients, by state.").labels(POOL_AND_STATE);
const SERVERS: Description =
    Description::gauge("howdah_pool_servers", "Server connections, by state.")
        .labels(POOL_AND_STATE);
const LONGEST_WAIT: Description = Description::gauge(
    "howdah_pool_longest_wait_seconds",
    "The longest time that a client has been waiting for a server.",
)
.unit(MetricUnit::Seconds)
.labels(POOL);
const PAUSED: Description =
    Description::gauge("howdah_pool_paused", "Whether a database is paused, 0 or 1.")
        .labels(&["database"]);
const TRANSACTIONS: Description =
    Description::counter("howdah_pool_transactions_total", "Finished transactions.").labels(POOL);
const QUERIES: Description =
    Description::counter("howdah_pool_queries_total", "Answered requests.").labels(POOL);
const LOGINS: Description =
    Description::counter("howdah_pool_logins_total", "Clients that logged in.").labels(POOL);
const LOGINS_REFUSED: Description =
    Description::counter("howdah_pool_logins_refused_total", "Refused logins, by reason.")
        .labels(&["reason"]);
const ASSIGNMENTS: Description =
    Description::counter("howdah_pool_assignments_total", "How often a client was given a server.")
        .labels(POOL);
const READS_REDIRECTED: Description = Description::counter(
    "howdah_pool_reads_redirected_total",
    "Reads sent to the primary because no standby had replayed their client's writes.",
)
.labels(POOL);
const READS_WAITED: Description = Description::counter(
    "howdah_pool_reads_waited_total",
    "How often a client waited for a standby to replay its writes.",
)
.labels(POOL);
const PINNED_CLIENTS: Description = Description::gauge(
    "howdah_pool_pinned_clients",
    "Clients in adaptive mode whose session state keeps them on one server.",
)
.labels(POOL);
const PINS: Description = Description::counter(
    "howdah_pool_pins_total",
    "How often a client in adaptive mode was pinned to its server.",
)
.labels(POOL);
const PINNED_SECONDS: Description = Description::histogram(
    "howdah_pool_pinned_seconds",
    "How long clients were pinned to their servers, counted when they no longer are.",
)
.bounds_us(&DurationHistogram::BOUNDS_US)
.labels(POOL);
const CLIENT_BYTES: Description =
    Description::counter("howdah_pool_client_bytes_total", "Bytes received from clients.")
        .unit(MetricUnit::Bytes)
        .labels(POOL);
const SERVER_BYTES: Description =
    Description::counter("howdah_pool_server_bytes_total", "Bytes received from servers.")
        .unit(MetricUnit::Bytes)
        .labels(POOL);
const NOTIFICATIONS: Description = Description::counter(
    "howdah_pool_notifications_total",
    "Notifications for clients of shared servers, counted once for each receiving client.",
)
.labels(POOL);
const NOTIFICATIONS_DROPPED: Description = Description::counter(
    "howdah_pool_notifications_dropped_total",
    "Notifications dropped because a client's buffer was full.",
)
.labels(POOL);
const NOTIFICATION_GAPS: Description = Description::counter(
    "howdah_pool_notification_gaps_total",
    "How often a client was warned that notifications may be missing, because a connection was lost.",
)
.labels(POOL);
const LISTENING_CLIENTS: Description = Description::gauge(
    "howdah_pool_listening_clients",
    "Clients for which the dedicated LISTEN connection of a database listens.",
)
.labels(&["database"]);
const LISTENER_UP: Description = Description::gauge(
    "howdah_pool_listener_up",
    "Whether the dedicated LISTEN connection of a database is up, 0 or 1.",
)
.labels(&["database"]);
const TRANSACTION_SECONDS: Description = Description::histogram(
    "howdah_pool_transaction_seconds",
    "How long transactions held their servers.",
)
.bounds_us(&DurationHistogram::BOUNDS_US)
.labels(POOL);
const QUERY_SECONDS: Description =
    Description::histogram("howdah_pool_query_seconds", "How long servers worked on requests.")
        .bounds_us(&DurationHistogram::BOUNDS_US)
        .labels(POOL);
const WAIT_SECONDS: Description = Description::histogram(
    "howdah_pool_wait_seconds",
    "How long clients waited for servers, without those that did not wait.",
)
.bounds_us(&DurationHistogram::BOUNDS_US)
.labels(POOL);

const MEMBER_UP: Description = Description::gauge(
    "howdah_pool_member_up",
    "Whether a cluster member is up, not banned, not foreign and within the maximum lag, 0 or 1.",
)
.labels(MEMBER);
const MEMBER_PRIMARY: Description = Description::gauge(
    "howdah_pool_member_primary",
    "Whether a cluster member is the primary, 0 or 1.",
)
.labels(MEMBER);
const MEMBER_LAG_SECONDS: Description = Description::gauge(
    "howdah_pool_member_lag_seconds",
    "How long ago the primary was at the position of a standby.",
)
.unit(MetricUnit::Seconds)
.labels(MEMBER);
const MEMBER_LAG_BYTES: Description = Description::gauge(
    "howdah_pool_member_lag_bytes",
    "How many bytes of WAL a standby is behind the primary.",
)
.unit(MetricUnit::Bytes)
.labels(MEMBER);
const MEMBER_TRANSACTIONS: Description = Description::counter(
    "howdah_pool_member_transactions_total",
    "Finished transactions on a cluster member.",
)
.labels(MEMBER);

const MIRROR_CLIENTS: Description = Description::gauge(
    "howdah_pool_mirror_clients",
    "Clients whose transactions also run on a mirror.",
)
.labels(MIRROR);
const MIRROR_BUFFERED_BYTES: Description = Description::gauge(
    "howdah_pool_mirror_buffered_bytes",
    "Bytes of transactions that are queued for a mirror or running there.",
)
.unit(MetricUnit::Bytes)
.labels(MIRROR);
const MIRROR_TRANSACTIONS: Description = Description::counter(
    "howdah_pool_mirror_transactions_total",
    "Transactions that ran to their end on a mirror.",
)
.labels(MIRROR);
const MIRROR_DROPPED: Description = Description::counter(
    "howdah_pool_mirror_dropped_total",
    "Dropped transactions: buffer_full, too_large, unreachable, timeout, connection_lost, cancelled, client_gone.",
)
.labels(&["database", "mirror", "reason"]);
const MIRROR_MISMATCHES: Description = Description::counter(
    "howdah_pool_mirror_mismatches_total",
    "Transactions with an error on one side only (mirror, client) or different ones on each (both).",
)
.labels(&["database", "mirror", "failed"]);
const MIRROR_ERRORS: Description = Description::counter(
    "howdah_pool_mirror_errors_total",
    "Mismatched transactions with an error on the mirror, by the class of its SQLSTATE.",
)
.labels(&["database", "mirror", "class"]);

const FORWARDED_CANCELS_SENT: Description = Description::counter(
    "howdah_pool_forwarded_cancels_sent_total",
    "Cancel requests with unknown keys sent to peers, counted once for each address.",
);
const FORWARDED_CANCELS_RECEIVED: Description = Description::counter(
    "howdah_pool_forwarded_cancels_received_total",
    "Cancel requests that peers have forwarded to this pooler.",
);
const FORWARDED_CANCELS_DROPPED: Description = Description::counter(
    "howdah_pool_forwarded_cancels_dropped_total",
    "Cancel requests that could not be sent to an address of a peer.",
);

const CAPTURE_EVENTS: Description = Description::counter(
    "howdah_pool_capture_events_total",
    "Events written by captures of traffic.",
);
const CAPTURE_GAPS: Description = Description::counter(
    "howdah_pool_capture_gaps_total",
    "Gaps in captures, where the capture buffer was full.",
);
const CAPTURE_LOST_BYTES: Description = Description::counter(
    "howdah_pool_capture_lost_bytes_total",
    "Bytes missing in captures because the capture buffer was full.",
)
.unit(MetricUnit::Bytes);
const CAPTURE_ACTIVE: Description =
    Description::gauge("howdah_pool_capture_active", "Whether traffic is captured, 0 or 1.");

/// The values last exported to a registry, from which increases are computed.
#[derive(Default)]
struct ExportedState {
    databases: BTreeSet<String>,
    /// The statistics of each pool as last exported, by database and user.
    pools: HashMap<(String, String), PoolStats>,
    /// The number of transactions of each cluster member as last exported, by database, server and
    /// shard.
    members: HashMap<(String, String, String), u64>,
    /// The statistics of each mirror as last exported, by database and mirror.
    mirrors: HashMap<(String, String), MirrorReport>,
    /// The number of refused logins as last exported, by reason.
    refused: HashMap<RefusalReason, u64>,
    /// The numbers of cancel requests between peers as last exported.
    cancel_peers: CancelPeersReport,
    /// The start time of the last capture, and its counts as last exported.
    capture: Option<(Timestamp, CaptureTally)>,
}

/// Interval between metric updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(2);

impl PoolerHandle {
    /// Updates the pooler's metrics in a registry every 2 s, until `stop` receives a message or is
    /// closed.
    pub fn export_metrics(&self, registry: &Registry, stop: &Receiver<()>) {
        let mut exported = ExportedState::default();
        loop {
            self.update_metrics(registry, &mut exported);
            if stop.recv_timeout(UPDATE_INTERVAL) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Updates a registry. `exported` holds the values of the previous update, and receives the new
    /// ones.
    fn update_metrics(&self, registry: &Registry, exported: &mut ExportedState) {
        let view = self.snapshot(false);
        let named = |name: &String| view.databases.iter().any(|database| database.name == *name);
        exported.databases.retain(|name| {
            let is_there = named(name);
            if !is_there {
                registry.remove(&[PAUSED], &[("database", name)]);
            }
            is_there
        });
        for database in &view.databases {
            let labels = [("database", database.name.as_str())];
            registry.gauge_with(&PAUSED, &labels).set(f64::from(u8::from(database.is_paused)));
            exported.databases.insert(database.name.clone());
        }
        // Several pools may have the same database and user: replication pools and retired pools.
        let mut sums: BTreeMap<(&str, &str), (PoolStats, PoolCounts)> = BTreeMap::new();
        for pool in view.pools.iter().filter(|pool| pool.is_owner()) {
            let (tally, counts) = sums.entry((&pool.database, &pool.user)).or_default();
            *tally += &pool.tally;
            *counts += &pool.counts;
        }
        exported.pools.retain(|(database, user), _| {
            let is_there = sums.contains_key(&(database, user));
            if !is_there {
                registry.remove(METRICS, &[("database", database), ("user", user)]);
            }
            is_there
        });
        for ((database, user), (tally, counts)) in sums {
            let before = exported.pools.entry((database.to_owned(), user.to_owned())).or_default();
            update_pool(
                registry,
                [("database", database), ("user", user)],
                &counts,
                &tally.since(before),
            );
            *before = tally;
        }
        for connection in &view.listeners {
            let labels = [("database", connection.database.as_str())];
            let clients = u32::try_from(connection.clients).unwrap_or(u32::MAX);
            registry.gauge_with(&LISTENING_CLIENTS, &labels).set(f64::from(clients));
            let is_up = f64::from(u8::from(connection.process_id.is_some()));
            registry.gauge_with(&LISTENER_UP, &labels).set(is_up);
        }
        for (reason, count) in &view.refused {
            let before = exported.refused.insert(*reason, *count).unwrap_or_default();
            let labels = [("reason", reason.as_str())];
            let more = count.saturating_sub(before);
            registry.counter_with(&LOGINS_REFUSED, &labels).add(more);
        }
        update_members(registry, &view, exported);
        update_mirrors(registry, &view, exported);
        update_cancel_peers(registry, view.cancel_peers.clone(), exported);
        update_capture(registry, &view, exported);
    }
}

/// Exports the numbers of cancel requests between peers since the last update.
fn update_cancel_peers(registry: &Registry, now: CancelPeersReport, exported: &mut ExportedState) {
    let before = &exported.cancel_peers;
    for (description, count, counted) in [
        (&FORWARDED_CANCELS_SENT, now.sent, before.sent),
        (&FORWARDED_CANCELS_RECEIVED, now.received, before.received),
        (&FORWARDED_CANCELS_DROPPED, now.dropped, before.dropped),
    ] {
        registry.counter(description).add(count.saturating_sub(counted));
    }
    exported.cancel_peers = now;
}

/// Exports the state of the capture, and its counts since the last update.
fn update_capture(registry: &Registry, view: &PoolerSnapshot, exported: &mut ExportedState) {
    let active = view.capture.as_ref().is_some_and(|capture| !capture.is_finished);
    registry.gauge(&CAPTURE_ACTIVE).set(f64::from(u8::from(active)));
    let Some(capture) = &view.capture else { return };
    let (now, began) = (capture.tally, capture.started);
    let before = exported.capture.replace((began, now)).filter(|(of, _)| *of == began);
    let before = before.map(|(_, tally)| tally).unwrap_or_default();
    for (description, count, counted) in [
        (&CAPTURE_EVENTS, now.events, before.events),
        (&CAPTURE_GAPS, now.gaps, before.gaps),
        (&CAPTURE_LOST_BYTES, now.lost_bytes, before.lost_bytes),
    ] {
        registry.counter(description).add(count.saturating_sub(counted));
    }
}

/// Exports the state of cluster members, and their counts since the last update.
fn update_members(registry: &Registry, view: &PoolerSnapshot, exported: &mut ExportedState) {
    let name = |member: &MemberView| {
        let shard = member.shard.map(|shard| shard.to_string()).unwrap_or_default();
        (member.database.clone(), member.endpoint.to_string(), shard)
    };
    let names: BTreeSet<_> = view.members.iter().map(name).collect();
    exported.members.retain(|key, _| {
        let is_there = names.contains(key);
        if !is_there {
            registry.remove(METRICS, &member_labels(key));
        }
        is_there
    });
    for member in &view.members {
        let key = name(member);
        let labels = member_labels(&key);
        let yes = |is_so: bool| f64::from(u8::from(is_so));
        let report = &member.report;
        registry.gauge_with(&MEMBER_UP, &labels).set(yes(report.state == "up"));
        registry.gauge_with(&MEMBER_PRIMARY, &labels).set(yes(report.role == "primary"));
        let lag = report.findings.lag.unwrap_or_default().as_secs_f64();
        registry.gauge_with(&MEMBER_LAG_SECONDS, &labels).set(lag);
        #[expect(clippy::cast_precision_loss, reason = "a lag of petabytes may be off by a byte")]
        let bytes = report.findings.lag_bytes.unwrap_or_default() as f64;
        registry.gauge_with(&MEMBER_LAG_BYTES, &labels).set(bytes);
        let counter = registry.counter_with(&MEMBER_TRANSACTIONS, &labels);
        let before = exported.members.entry(key).or_default();
        counter.add(member.transactions.saturating_sub(*before));
        *before = member.transactions;
    }
}

/// Exports the state of mirrors, and their counts since the last update.
fn update_mirrors(registry: &Registry, view: &PoolerSnapshot, exported: &mut ExportedState) {
    exported.mirrors.retain(|(database, name), _| {
        let is_it = |it: &MirrorView| it.database == *database && it.name == *name;
        let is_there = view.mirrors.iter().any(is_it);
        if !is_there {
            registry.remove(METRICS, &[("database", database), ("mirror", name)]);
        }
        is_there
    });
    for view in &view.mirrors {
        let (now, key) = (&view.report, (view.database.clone(), view.name.clone()));
        let before = exported.mirrors.insert(key, now.clone()).unwrap_or_default();
        let labels = [("database", &*view.database), ("mirror", &*view.name)];
        let [database, mirror] = labels;
        #[expect(clippy::cast_precision_loss, reason = "they are far below 2^53")]
        let gauges = [now.clients as f64, now.buffered_bytes as f64];
        registry.gauge_with(&MIRROR_CLIENTS, &labels).set(gauges[0]);
        registry.gauge_with(&MIRROR_BUFFERED_BYTES, &labels).set(gauges[1]);
        let ran = now.transactions.saturating_sub(before.transactions);
        registry.counter_with(&MIRROR_TRANSACTIONS, &labels).add(ran);
        for (reason, (now, before)) in
            DropReason::ALL.iter().zip(now.dropped.iter().zip(before.dropped))
        {
            let labels = [database, mirror, ("reason", reason.as_str())];
            registry.counter_with(&MIRROR_DROPPED, &labels).add(now.saturating_sub(before));
        }
        for (failed, now, before) in [
            ("mirror", now.failed_mirror_only, before.failed_mirror_only),
            ("client", now.failed_client_only, before.failed_client_only),
            ("both", now.sqlstate_differs, before.sqlstate_differs),
        ] {
            let labels = [database, mirror, ("failed", failed)];
            registry.counter_with(&MIRROR_MISMATCHES, &labels).add(now.saturating_sub(before));
        }
        let counted: HashMap<_, _> = before.classes.into_iter().collect();
        for (class, count) in &now.classes {
            let before = counted.get(class).copied().unwrap_or_default();
            let class = String::from_utf8_lossy(class);
            let labels = [database, mirror, ("class", &*class)];
            registry.counter_with(&MIRROR_ERRORS, &labels).add(count.saturating_sub(before));
        }
    }
}

fn member_labels((database, server, shard): &(String, String, String)) -> [(&str, &str); 3] {
    [("database", database), ("server", server), ("shard", shard)]
}

/// Exports the state of all pools with the same database and user, and their counts since the last
/// update.
fn update_pool(
    registry: &Registry,
    labels: [(&str, &str); 2],
    counts: &PoolCounts,
    more: &PoolStats,
) {
    let [database, user] = labels;
    let gauge = |description, state, value: u32| {
        let labels = [database, user, ("state", state)];
        registry.gauge_with(description, &labels).set(f64::from(value));
    };
    gauge(&CLIENTS, "active", counts.clients_active);
    gauge(&CLIENTS, "waiting", counts.clients_waiting);
    gauge(&SERVERS, "active", counts.servers_active);
    gauge(&SERVERS, "idle", counts.servers_idle);
    gauge(&SERVERS, "login", counts.servers_login);
    gauge(&SERVERS, "busy", counts.servers_busy);
    registry.gauge_with(&PINNED_CLIENTS, &labels).set(counts.clients_pinned.into());
    registry.gauge_with(&LONGEST_WAIT, &labels).set(counts.wait_max.as_secs_f64());
    for (description, value) in [
        (&TRANSACTIONS, more.transactions),
        (&QUERIES, more.queries),
        (&LOGINS, more.logins),
        (&ASSIGNMENTS, more.assignments),
        (&READS_REDIRECTED, more.reads_redirected),
        (&READS_WAITED, more.reads_waited),
        (&PINS, more.pins),
        (&CLIENT_BYTES, more.client_bytes),
        (&SERVER_BYTES, more.server_bytes),
        (&NOTIFICATIONS, more.notifications),
        (&NOTIFICATIONS_DROPPED, more.notifications_dropped),
        (&NOTIFICATION_GAPS, more.notification_gaps),
    ] {
        registry.counter_with(description, &labels).add(value);
    }
    let add = |histogram: Histogram, durations: &DurationHistogram| {
        histogram.add_buckets(&durations.counts, micros(durations.total()));
    };
    add(registry.histogram_with(&TRANSACTION_SECONDS, &labels), &more.transaction_time);
    add(registry.histogram_with(&QUERY_SECONDS, &labels), &more.query_time);
    add(registry.histogram_with(&WAIT_SECONDS, &labels), &more.wait_time);
    add(registry.histogram_with(&PINNED_SECONDS, &labels), &more.pinned_time);
}
