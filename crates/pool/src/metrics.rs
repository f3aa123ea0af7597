//! What a pooler shows to Prometheus: the table, and what brings a registry up to date.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::mpsc::{Receiver, RecvTimeoutError},
    time::Duration,
};

use howdah_record::Tally as CaptureTally;
use howdah_stats::{Description, Histogram, Registry, Unit};
use howdah_traffic::Timestamp;

use crate::{
    Control, Counts, MemberView, MirrorReport, MirrorView, View,
    auth::RefusalReason,
    mirror::DropReason,
    tally::{Spans, Tally, micros},
};

/// Every metric of `howdah pool`, in the order of the reference page.
pub const METRICS: &[Description] = &[
    CLIENTS,
    SERVERS,
    WAIT_LONGEST,
    PAUSED,
    TRANSACTIONS,
    QUERIES,
    LOGINS,
    LOGINS_REFUSED,
    ASSIGNMENTS,
    READS_KEPT,
    READS_AWAITED,
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
    MIRROR_DISAGREEMENTS,
    MIRROR_ERRORS,
    CAPTURE_EVENTS,
    CAPTURE_GAPS,
    CAPTURE_LOST_BYTES,
    CAPTURE_ACTIVE,
];

/// The shard is empty where there is one: as good as no label.
const MEMBER: &[&str] = &["database", "server", "shard"];
const MIRROR: &[&str] = &["database", "mirror"];
const POOL: &[&str] = &["database", "user"];
const POOL_AND_STATE: &[&str] = &["database", "user", "state"];

const CLIENTS: Description =
    Description::gauge("howdah_pool_clients", "Clients, by what they are at.")
        .labels(POOL_AND_STATE);
const SERVERS: Description =
    Description::gauge("howdah_pool_servers", "Server connections, by what they are at.")
        .labels(POOL_AND_STATE);
const WAIT_LONGEST: Description = Description::gauge(
    "howdah_pool_longest_wait_seconds",
    "For how long the client has waited for a server that has for longest.",
)
.unit(Unit::Seconds)
.labels(POOL);
const PAUSED: Description =
    Description::gauge("howdah_pool_paused", "Whether a database is paused, 0 or 1.")
        .labels(&["database"]);
const TRANSACTIONS: Description =
    Description::counter("howdah_pool_transactions_total", "Transactions that ended.").labels(POOL);
const QUERIES: Description =
    Description::counter("howdah_pool_queries_total", "Requests that were answered.").labels(POOL);
const LOGINS: Description =
    Description::counter("howdah_pool_logins_total", "Clients that logged in.").labels(POOL);
const LOGINS_REFUSED: Description = Description::counter(
    "howdah_pool_logins_refused_total",
    "Logins that were refused, by reason.",
)
.labels(&["reason"]);
const ASSIGNMENTS: Description = Description::counter(
    "howdah_pool_assignments_total",
    "Times that a client was given a server.",
)
.labels(POOL);
const READS_KEPT: Description = Description::counter(
    "howdah_pool_reads_redirected_total",
    "Reads that went to the primary because no standby had replayed what their client wrote.",
)
.labels(POOL);
const READS_AWAITED: Description = Description::counter(
    "howdah_pool_reads_waited_total",
    "Times that a client waited for a standby to have replayed what it wrote.",
)
.labels(POOL);
const CLIENT_BYTES: Description =
    Description::counter("howdah_pool_client_bytes_total", "Bytes received from clients.")
        .unit(Unit::Bytes)
        .labels(POOL);
const SERVER_BYTES: Description =
    Description::counter("howdah_pool_server_bytes_total", "Bytes received from servers.")
        .unit(Unit::Bytes)
        .labels(POOL);
const NOTIFICATIONS: Description = Description::counter(
    "howdah_pool_notifications_total",
    "Notifications for clients of shared servers, each once for each client that it is for.",
)
.labels(POOL);
const NOTIFICATIONS_DROPPED: Description = Description::counter(
    "howdah_pool_notifications_dropped_total",
    "Notifications that were dropped because a client did not take them in time.",
)
.labels(POOL);
const NOTIFICATION_GAPS: Description = Description::counter(
    "howdah_pool_notification_gaps_total",
    "Times that a client was told that notifications may be missing, because a connection was lost.",
)
.labels(POOL);
const LISTENING_CLIENTS: Description = Description::gauge(
    "howdah_pool_listening_clients",
    "Clients for which the dedicated connection of a database listens.",
)
.labels(&["database"]);
const LISTENER_UP: Description = Description::gauge(
    "howdah_pool_listener_up",
    "Whether the dedicated connection of a database is there, 0 or 1.",
)
.labels(&["database"]);
const TRANSACTION_SECONDS: Description = Description::histogram(
    "howdah_pool_transaction_seconds",
    "How long transactions had their servers.",
)
.bounds_us(&Spans::BOUNDS_US)
.labels(POOL);
const QUERY_SECONDS: Description =
    Description::histogram("howdah_pool_query_seconds", "How long servers worked on requests.")
        .bounds_us(&Spans::BOUNDS_US)
        .labels(POOL);
const WAIT_SECONDS: Description = Description::histogram(
    "howdah_pool_wait_seconds",
    "How long clients waited for servers that had to.",
)
.bounds_us(&Spans::BOUNDS_US)
.labels(POOL);

const MEMBER_UP: Description = Description::gauge(
    "howdah_pool_member_up",
    "Whether a server of several is up, not banned, not foreign and not too far behind, 0 or 1.",
)
.labels(MEMBER);
const MEMBER_PRIMARY: Description = Description::gauge(
    "howdah_pool_member_primary",
    "Whether a server of several is the primary, 0 or 1.",
)
.labels(MEMBER);
const MEMBER_LAG_SECONDS: Description = Description::gauge(
    "howdah_pool_member_lag_seconds",
    "How long ago the primary was where a standby is now.",
)
.unit(Unit::Seconds)
.labels(MEMBER);
const MEMBER_LAG_BYTES: Description = Description::gauge(
    "howdah_pool_member_lag_bytes",
    "How many bytes of WAL a standby is behind the primary.",
)
.unit(Unit::Bytes)
.labels(MEMBER);
const MEMBER_TRANSACTIONS: Description = Description::counter(
    "howdah_pool_member_transactions_total",
    "Transactions that ended at a server of several.",
)
.labels(MEMBER);

const MIRROR_CLIENTS: Description = Description::gauge(
    "howdah_pool_mirror_clients",
    "Clients whose transactions are run on a mirror, too.",
)
.labels(MIRROR);
const MIRROR_BUFFERED_BYTES: Description = Description::gauge(
    "howdah_pool_mirror_buffered_bytes",
    "Bytes of transactions that wait for a mirror or are under way.",
)
.unit(Unit::Bytes)
.labels(MIRROR);
const MIRROR_TRANSACTIONS: Description = Description::counter(
    "howdah_pool_mirror_transactions_total",
    "Transactions that were run on a mirror to their end.",
)
.labels(MIRROR);
const MIRROR_DROPPED: Description = Description::counter(
    "howdah_pool_mirror_dropped_total",
    "Transactions that were not: full, large, unreachable, timeout, lost, cancelled, left.",
)
.labels(&["database", "mirror", "reason"]);
const MIRROR_DISAGREEMENTS: Description = Description::counter(
    "howdah_pool_mirror_mismatches_total",
    "Transactions with an error on one side only (mirror, client) or another one on each (both).",
)
.labels(&["database", "mirror", "failed"]);
const MIRROR_ERRORS: Description = Description::counter(
    "howdah_pool_mirror_errors_total",
    "Of these, those with an error at the mirror, by the class of its SQLSTATE.",
)
.labels(&["database", "mirror", "class"]);

const CAPTURE_EVENTS: Description = Description::counter(
    "howdah_pool_capture_events_total",
    "Events that captures of traffic have written.",
);
const CAPTURE_GAPS: Description = Description::counter(
    "howdah_pool_capture_gaps_total",
    "Stretches of traffic that found no room and are missing in captures.",
);
const CAPTURE_LOST_BYTES: Description = Description::counter(
    "howdah_pool_capture_lost_bytes_total",
    "Bytes that are missing in captures for that reason.",
)
.unit(Unit::Bytes);
const CAPTURE_ACTIVE: Description =
    Description::gauge("howdah_pool_capture_active", "Whether traffic is captured, 0 or 1.");

/// What a registry was told.
#[derive(Default)]
struct Known {
    databases: BTreeSet<String>,
    /// By database and user: what was counted up to then.
    pools: HashMap<(String, String), Tally>,
    /// By database, server and shard: transactions up to then.
    members: HashMap<(String, String, String), u64>,
    /// By database and mirror: what was counted up to then.
    mirrors: HashMap<(String, String), MirrorReport>,
    /// Logins that were refused up to then.
    refused: HashMap<RefusalReason, u64>,
    /// The last capture: when it began, and what it had counted.
    capture: Option<(Timestamp, CaptureTally)>,
}

/// How old the numbers may be.
const EVERY: Duration = Duration::from_secs(2);

impl Control {
    /// Keeps a registry up to date, until `stop` says something or is gone.
    pub fn keep_metrics(&self, registry: &Registry, stop: &Receiver<()>) {
        let mut known = Known::default();
        loop {
            self.show_metrics(registry, &mut known);
            if stop.recv_timeout(EVERY) != Err(RecvTimeoutError::Timeout) {
                return;
            }
        }
    }

    /// Brings a registry up to date; `known` is what it was told before.
    fn show_metrics(&self, registry: &Registry, known: &mut Known) {
        let view = self.view(false);
        let named = |name: &String| view.databases.iter().any(|database| database.name == *name);
        known.databases.retain(|name| {
            let is_there = named(name);
            if !is_there {
                registry.forget(&[PAUSED], &[("database", name)]);
            }
            is_there
        });
        for database in &view.databases {
            let labels = [("database", database.name.as_str())];
            registry.gauge_with(&PAUSED, &labels).set(f64::from(u8::from(database.is_paused)));
            known.databases.insert(database.name.clone());
        }
        // There may be several of one name: for replication, or of a mode that is no more.
        let mut sums: BTreeMap<(&str, &str), (Tally, Counts)> = BTreeMap::new();
        for pool in view.pools.iter().filter(|pool| pool.is_home()) {
            let (tally, counts) = sums.entry((&pool.database, &pool.user)).or_default();
            *tally += &pool.tally;
            *counts += &pool.counts;
        }
        known.pools.retain(|(database, user), _| {
            let is_there = sums.contains_key(&(database, user));
            if !is_there {
                registry.forget(METRICS, &[("database", database), ("user", user)]);
            }
            is_there
        });
        for ((database, user), (tally, counts)) in sums {
            let before = known.pools.entry((database.to_owned(), user.to_owned())).or_default();
            show(registry, [("database", database), ("user", user)], &counts, &tally.since(before));
            *before = tally;
        }
        for hub in &view.listeners {
            let labels = [("database", hub.database.as_str())];
            let clients = u32::try_from(hub.clients).unwrap_or(u32::MAX);
            registry.gauge_with(&LISTENING_CLIENTS, &labels).set(f64::from(clients));
            let is_up = f64::from(u8::from(hub.process_id.is_some()));
            registry.gauge_with(&LISTENER_UP, &labels).set(is_up);
        }
        for (reason, count) in &view.refused {
            let before = known.refused.insert(*reason, *count).unwrap_or_default();
            let labels = [("reason", reason.as_str())];
            let more = count.saturating_sub(before);
            registry.counter_with(&LOGINS_REFUSED, &labels).add(more);
        }
        show_members(registry, &view, known);
        show_mirrors(registry, &view, known);
        show_capture(registry, &view, known);
    }
}

/// Shows how the capture is, and adds what it counted since the last time.
fn show_capture(registry: &Registry, view: &View, known: &mut Known) {
    let active = view.capture.as_ref().is_some_and(|capture| !capture.is_over);
    registry.gauge(&CAPTURE_ACTIVE).set(f64::from(u8::from(active)));
    let Some(capture) = &view.capture else { return };
    let (now, began) = (capture.tally, capture.began);
    let before = known.capture.replace((began, now)).filter(|(of, _)| *of == began);
    let before = before.map(|(_, tally)| tally).unwrap_or_default();
    for (description, count, counted) in [
        (&CAPTURE_EVENTS, now.events, before.events),
        (&CAPTURE_GAPS, now.gaps, before.gaps),
        (&CAPTURE_LOST_BYTES, now.lost_bytes, before.lost_bytes),
    ] {
        registry.counter(description).add(count.saturating_sub(counted));
    }
}

/// Shows how servers are of databases that have several.
fn show_members(registry: &Registry, view: &View, known: &mut Known) {
    let name = |member: &MemberView| {
        let shard = member.shard.map(|shard| shard.to_string()).unwrap_or_default();
        (member.database.clone(), member.endpoint.to_string(), shard)
    };
    let names: BTreeSet<_> = view.members.iter().map(name).collect();
    known.members.retain(|place, _| {
        let is_there = names.contains(place);
        if !is_there {
            registry.forget(METRICS, &member_labels(place));
        }
        is_there
    });
    for member in &view.members {
        let place = name(member);
        let labels = member_labels(&place);
        let yes = |is_so: bool| f64::from(u8::from(is_so));
        let report = &member.report;
        registry.gauge_with(&MEMBER_UP, &labels).set(yes(report.state == "up"));
        registry.gauge_with(&MEMBER_PRIMARY, &labels).set(yes(report.role == "primary"));
        let lag = report.found.lag.unwrap_or_default().as_secs_f64();
        registry.gauge_with(&MEMBER_LAG_SECONDS, &labels).set(lag);
        #[expect(clippy::cast_precision_loss, reason = "a lag of petabytes may be off by a byte")]
        let bytes = report.found.lag_bytes.unwrap_or_default() as f64;
        registry.gauge_with(&MEMBER_LAG_BYTES, &labels).set(bytes);
        let counter = registry.counter_with(&MEMBER_TRANSACTIONS, &labels);
        let before = known.members.entry(place).or_default();
        counter.add(member.transactions.saturating_sub(*before));
        *before = member.transactions;
    }
}

/// Shows how mirrors are, and adds what was counted since the last time.
fn show_mirrors(registry: &Registry, view: &View, known: &mut Known) {
    known.mirrors.retain(|(database, name), _| {
        let is_it = |it: &MirrorView| it.database == *database && it.name == *name;
        let is_there = view.mirrors.iter().any(is_it);
        if !is_there {
            registry.forget(METRICS, &[("database", database), ("mirror", name)]);
        }
        is_there
    });
    for view in &view.mirrors {
        let (now, place) = (&view.report, (view.database.clone(), view.name.clone()));
        let before = known.mirrors.insert(place, now.clone()).unwrap_or_default();
        let labels = [("database", &*view.database), ("mirror", &*view.name)];
        let [database, mirror] = labels;
        #[expect(clippy::cast_precision_loss, reason = "they are far below 2^53")]
        let gauges = [now.clients as f64, now.buffered_bytes as f64];
        registry.gauge_with(&MIRROR_CLIENTS, &labels).set(gauges[0]);
        registry.gauge_with(&MIRROR_BUFFERED_BYTES, &labels).set(gauges[1]);
        let ran = now.transactions.saturating_sub(before.transactions);
        registry.counter_with(&MIRROR_TRANSACTIONS, &labels).add(ran);
        for (why, (now, before)) in
            DropReason::ALL.iter().zip(now.dropped.iter().zip(before.dropped))
        {
            let labels = [database, mirror, ("reason", why.as_str())];
            registry.counter_with(&MIRROR_DROPPED, &labels).add(now.saturating_sub(before));
        }
        for (failed, now, before) in [
            ("mirror", now.mirror_failed, before.mirror_failed),
            ("client", now.client_failed, before.client_failed),
            ("both", now.different, before.different),
        ] {
            let labels = [database, mirror, ("failed", failed)];
            registry.counter_with(&MIRROR_DISAGREEMENTS, &labels).add(now.saturating_sub(before));
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

/// Shows how a pool is, and adds what was counted since the last time.
fn show(registry: &Registry, labels: [(&str, &str); 2], counts: &Counts, more: &Tally) {
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
    registry.gauge_with(&WAIT_LONGEST, &labels).set(counts.wait_max.as_secs_f64());
    for (description, value) in [
        (&TRANSACTIONS, more.transactions),
        (&QUERIES, more.queries),
        (&LOGINS, more.logins),
        (&ASSIGNMENTS, more.assignments),
        (&READS_KEPT, more.reads_kept),
        (&READS_AWAITED, more.reads_awaited),
        (&CLIENT_BYTES, more.client_bytes),
        (&SERVER_BYTES, more.server_bytes),
        (&NOTIFICATIONS, more.notifications),
        (&NOTIFICATIONS_DROPPED, more.notifications_dropped),
        (&NOTIFICATION_GAPS, more.notification_gaps),
    ] {
        registry.counter_with(description, &labels).add(value);
    }
    let add = |histogram: Histogram, spans: &Spans| {
        histogram.add_counted(&spans.counts, micros(spans.total()));
    };
    add(registry.histogram_with(&TRANSACTION_SECONDS, &labels), &more.transaction_time);
    add(registry.histogram_with(&QUERY_SECONDS, &labels), &more.query_time);
    add(registry.histogram_with(&WAIT_SECONDS, &labels), &more.wait_time);
}
