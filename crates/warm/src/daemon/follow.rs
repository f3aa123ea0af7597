//! Keeps standbys as warm as their primary: each round loads the pages that the primary has cached
//! and a standby has not, at a limited rate.
//!
//! Roles are queried in each round, so after a promotion the new primary is read and the other
//! servers are loaded. A load is cut short after one interval, because a newer image is due then.
//! With discovery, a round starts by adding standbys that were found (`discovery`). A replica that
//! is too cold may be banned in poolers until it is warm (`hold_out`).

mod discovery;
mod hold_out;

use std::{
    borrow::Cow,
    panic::resume_unwind,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use crate::{
    CacheImage,
    dump::{self, DumpSource, QueryFailure},
    heat,
    load::{self, LoadObserver, LoadOptions},
    metrics::server_label,
};
use howdah_connect::{Client, ConnectTarget};
use howdah_stats::Registry;

use crate::daemon::{
    error_chain::error_chain,
    load_log::log_load_report,
    metrics::{DaemonMetrics, FollowMetrics, ReadinessMetrics},
    readiness::{BoardRole, MeasuringThread, ReadinessBoard},
    server_access::RESPONSE_TIMEOUT,
    shutdown::ShutdownSignal,
};
use discovery::{DISCOVERED_MAX, DiscoveredServer, ReplicationClient, StandbyFinder};
pub use discovery::{DiscoverySettings, DiscoveryTemplate, TemplateError};
pub use hold_out::HoldOutSettings;
use hold_out::HoldOutThread;

/// The settings of [`follow`]: which servers to keep warm, how often, and how.
#[derive(Clone, Debug)]
pub struct FollowSettings {
    /// The servers, in any order: the primary is determined in each round.
    pub servers: Vec<ConnectTarget>,
    /// Time from the start of one round to the start of the next, unless a round takes longer.
    /// Without exactly one primary, the pause between rounds is at most five seconds.
    pub interval: Duration,
    /// Source from which the primary's cached pages are read.
    pub source: DumpSource,
    /// Options for loading each standby. A standby's cache is full of the pages it replays, so a
    /// load must evict some of them: see [`LoadOptions::evict`]. Pages that the standby has cached
    /// itself should keep their own usage counts: see [`LoadOptions::raise_resident`].
    pub load: LoadOptions,
    /// Maximum share of a standby's cache for the primary's hottest pages, 0 to 1.
    pub share: f64,
    /// How to find more standbys.
    pub discovery: DiscoverySettings,
    /// Where to ban replicas while they are cold; nowhere if `None`.
    pub hold_out: Option<HoldOutSettings>,
    /// Reports whether the servers are warm. They are added under their [`server_label`].
    pub readiness: Arc<ReadinessBoard>,
}

/// The role of a server when last queried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeRole {
    Primary,
    /// A standby, with its number of buffers.
    Standby(u64),
    Unreachable,
}

struct FollowedServer {
    target: ConnectTarget,
    name: String,
    role: Option<NodeRole>,
    identity: Option<InstanceIdentity>,
    /// The standbys that stream from this server, if the role may see them.
    replication_clients: Option<Vec<ReplicationClient>>,
    /// For a discovered server, the time when it was last listed or reachable.
    discovered: Option<Instant>,
    metrics: DaemonMetrics,
    board: Arc<ReadinessBoard>,
}

/// Identifies a server, under whichever name it is connected to, until it restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
struct InstanceIdentity {
    /// `system_identifier`, equal for all servers of a cluster; empty if unknown.
    cluster: String,
    /// `pg_postmaster_start_time()`.
    started: String,
    port: String,
}

/// The reply of a server that was queried for its role.
struct RoleReply {
    role: NodeRole,
    identity: InstanceIdentity,
    replication_clients: Option<Vec<ReplicationClient>>,
}

/// Interval at which the pause between rounds ends early if a standby became cold.
const COLD_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Minimum pause before a round that starts early.
const EARLY_PAUSE: Duration = Duration::from_secs(5);

/// Keeps standbys warm until `stop` fires. Failures are logged; those of one standby do not affect
/// the others.
pub fn follow(settings: &FollowSettings, stop: &ShutdownSignal, registry: &Registry) {
    let mut group = ServerGroup {
        settings,
        registry,
        metrics: FollowMetrics::new(registry),
        nodes: Vec::new(),
        discovery: StandbyFinder::default(),
    };
    for target in &settings.servers {
        group.add(target, None);
    }
    let _measuring = MeasuringThread::start(&settings.readiness);
    let _hold_out = settings.hold_out.as_ref().map(|hold_out| {
        settings.readiness.measure_always();
        HoldOutThread::start(hold_out, &settings.readiness, group.metrics.clone())
    });
    let mut had_primary = true;
    while !stop.is_set() {
        let began = Instant::now();
        group.refresh();
        match find_primary(&group.nodes) {
            Ok(primary) => {
                had_primary = true;
                run_round(settings, &group.nodes, primary, stop);
            }
            Err(reason) if had_primary => {
                had_primary = false;
                tracing::warn!("{reason}; waiting");
            }
            Err(_) => {}
        }
        // Without a primary, look for one more often than once per interval.
        let next = began + settings.interval;
        let next = if had_primary { next } else { next.min(Instant::now() + RESPONSE_TIMEOUT) };
        wait_for_round(&settings.readiness, next, stop);
    }
}

/// Waits until `next`, or less if a standby became cold, for example by a restart.
fn wait_for_round(board: &ReadinessBoard, next: Instant, stop: &ShutdownSignal) {
    let earliest = Instant::now() + EARLY_PAUSE;
    loop {
        let now = Instant::now();
        let left = next.saturating_duration_since(now);
        if left.is_zero() && now >= next || stop.wait(left.min(COLD_CHECK_INTERVAL)) {
            return;
        }
        if Instant::now() >= earliest && board.take_newly_cold() {
            tracing::info!("a standby became cold; starting the next round early");
            return;
        }
    }
}

/// The followed servers, configured and discovered.
struct ServerGroup<'a> {
    settings: &'a FollowSettings,
    registry: &'a Registry,
    metrics: FollowMetrics,
    nodes: Vec<FollowedServer>,
    discovery: StandbyFinder,
}

impl ServerGroup<'_> {
    fn add(&mut self, target: &ConnectTarget, discovered: Option<Instant>) {
        let board = &self.settings.readiness;
        let node = FollowedServer::new(target, self.registry, board, discovered);
        let metrics = ReadinessMetrics::new(self.registry, &node.name);
        board.add(&node.name, &node.target, self.settings.source, BoardRole::Unknown, metrics);
        self.nodes.push(node);
        self.metrics.set_servers(self.nodes.len());
    }

    /// Queries the roles of all servers at the same time, and updates the list of servers.
    fn refresh(&mut self) {
        thread::scope(|scope| {
            for node in &mut self.nodes {
                scope.spawn(move || node.refresh_role());
            }
        });
        if self.settings.discovery.is_enabled() {
            let listed = self.discover();
            self.drop_lost_servers(&listed);
        }
    }

    /// Adds discovered servers. Returns the names of all that were listed.
    fn discover(&mut self) -> Vec<String> {
        let settings = &self.settings.discovery;
        let mut candidates = Vec::new();
        for node in self.nodes.iter().filter(|_| settings.from_replication) {
            match (&node.replication_clients, node.role) {
                (Some(clients), _) => {
                    candidates.extend(self.discovery.replication_candidates(
                        settings,
                        &node.target,
                        clients,
                    ));
                }
                (None, Some(NodeRole::Primary)) => {
                    let problem = "the role may not see the standbys in pg_stat_replication: \
                                   GRANT pg_monitor to it";
                    self.discovery.log_problem(&node.name, problem);
                }
                (None, _) => {}
            }
        }
        if let Some(base) = self.settings.servers.first() {
            candidates.extend(self.discovery.pooler_candidates(settings, base));
        }
        let mut listed: Vec<String> = Vec::new();
        let mut new: Vec<DiscoveredServer> = Vec::new();
        for candidate in candidates {
            let is_listed = listed.contains(&candidate.name);
            listed.push(candidate.name.clone());
            let is_known = self.nodes.iter().any(|node| node.name == candidate.name);
            if !is_listed && !is_known && new.len() < DISCOVERED_MAX {
                new.push(candidate);
            }
        }
        self.add_candidates(new);
        listed
    }

    /// Adds the candidates that are servers of the cluster and not known by another name.
    fn add_candidates(&mut self, candidates: Vec<DiscoveredServer>) {
        let infos: Vec<_> = thread::scope(|scope| {
            let query = |candidate: &DiscoveredServer| {
                let timeout = candidate.target.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
                let target = candidate.target.with_connect_timeout(Some(timeout));
                scope.spawn(move || query_role(&target))
            };
            let threads: Vec<_> = candidates.iter().map(query).collect();
            threads.into_iter().map(|it| it.join().unwrap_or_else(|it| resume_unwind(it))).collect()
        });
        for (candidate, info) in candidates.into_iter().zip(infos) {
            let name = &candidate.name;
            let info = match info {
                Ok(info) => info,
                Err(failure) => {
                    let problem = format!("cannot be connected to: {}", error_chain(&failure));
                    self.discovery.log_problem(name, &problem);
                    continue;
                }
            };
            let is_foreign = |node: &FollowedServer| {
                let cluster = node.identity.as_ref().map(|identity| &identity.cluster);
                let is_known = |cluster: &&String| !cluster.is_empty();
                let own = Some(&info.identity.cluster).filter(is_known);
                cluster
                    .filter(is_known)
                    .is_some_and(|cluster| own.is_some_and(|own| own != cluster))
            };
            if self.nodes.iter().any(is_foreign) {
                self.discovery.log_problem(name, "is a server of another cluster; ignored");
                continue;
            }
            // Also of two candidates that are the same server only one is added.
            if self.nodes.iter().any(|node| node.identity.as_ref() == Some(&info.identity)) {
                continue;
            }
            let discovered = self.nodes.iter().filter(|node| node.discovered.is_some()).count();
            if discovered >= DISCOVERED_MAX {
                self.discovery.log_problem(name, "is ignored: too many servers");
                continue;
            }
            self.discovery.clear_problem(name);
            tracing::info!(server = name, origin = candidate.origin, "server discovered");
            self.metrics.record_joined();
            self.add(&candidate.target, Some(Instant::now()));
            if let Some(node) = self.nodes.last_mut() {
                node.set_info(Ok(info));
            }
        }
    }

    /// Drops discovered servers that were neither listed nor reachable for some time.
    fn drop_lost_servers(&mut self, listed: &[String]) {
        let now = Instant::now();
        for node in &mut self.nodes {
            let is_reachable = !matches!(node.role, None | Some(NodeRole::Unreachable));
            if let Some(seen) = &mut node.discovered
                && (is_reachable || listed.contains(&node.name))
            {
                *seen = now;
            }
        }
        let timeout = self.settings.discovery.timeout;
        let is_lost = |node: &mut FollowedServer| {
            node.discovered.is_some_and(|seen| now.duration_since(seen) >= timeout)
        };
        for node in self.nodes.extract_if(.., is_lost) {
            tracing::info!(server = node.name, "discovered server is gone; no longer followed");
            self.settings.readiness.remove(&node.name);
            self.metrics.record_left(&node.name);
        }
        self.metrics.set_servers(self.nodes.len());
    }
}

/// Returns the index of the only primary.
///
/// # Errors
///
/// No server is the primary, or several are, so that it is unknown which one the standbys replicate
/// from.
fn find_primary(nodes: &[FollowedServer]) -> Result<usize, Cow<'static, str>> {
    let is_primary = |(_, node): &(usize, &FollowedServer)| node.role == Some(NodeRole::Primary);
    let primaries: Vec<_> = nodes.iter().enumerate().filter(is_primary).collect();
    match primaries[..] {
        [(at, _)] => Ok(at),
        [] => Err("none of the servers is a primary".into()),
        [(_, first), (_, second), ..] => {
            let (first, second) = (&first.name, &second.name);
            Err(format!("{first} and {second} are both primaries").into())
        }
    }
}

/// Runs one round: reads the primary once and loads the standbys concurrently.
fn run_round(
    settings: &FollowSettings,
    nodes: &[FollowedServer],
    primary: usize,
    stop: &ShutdownSignal,
) {
    let began = Instant::now();
    let source = &nodes[primary];
    let image = match dump::dump(&source.target, settings.source) {
        Ok(dumped) => dumped.image,
        Err(error) => {
            source.metrics.warm.record_dump_failure();
            tracing::warn!(
                server = source.name,
                error = error_chain(&error),
                "cannot take an image of the primary"
            );
            return;
        }
    };
    let image = Arc::new(image);
    let pages = image.page_count();
    settings.readiness.set_image(&source.name, Arc::clone(&image));
    settings.readiness.record(&source.name, heat::compare(&image, &image));
    source.metrics.warm.record_dump(began.elapsed(), pages, image.origin.taken_at_us);
    // Loading gets a whole interval, counted from the end of the dump: otherwise a slow dump could
    // use up the interval.
    let observer = RoundObserver { stop, deadline: Instant::now() + settings.interval };
    thread::scope(|scope| {
        for node in nodes {
            let Some(NodeRole::Standby(buffers)) = node.role else { continue };
            let (image, observer) = (&image, &observer);
            scope.spawn(move || node.load_standby(settings, image, buffers, observer));
        }
    });
}

impl FollowedServer {
    fn new(
        target: &ConnectTarget,
        registry: &Registry,
        board: &Arc<ReadinessBoard>,
        discovered: Option<Instant>,
    ) -> Self {
        let timeout = target.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
        let target = target.with_connect_timeout(Some(timeout));
        let name = server_label(&target);
        Self {
            metrics: DaemonMetrics::new(registry, &name),
            target,
            name,
            role: None,
            identity: None,
            replication_clients: None,
            discovered,
            board: Arc::clone(board),
        }
    }

    fn refresh_role(&mut self) {
        self.set_info(query_role(&self.target));
    }

    fn set_info(&mut self, info: Result<RoleReply, QueryFailure>) {
        let (role, failure) = match info {
            Ok(info) => {
                self.identity = Some(info.identity);
                self.replication_clients = info.replication_clients;
                (info.role, None)
            }
            Err(failure) => {
                self.replication_clients = None;
                (NodeRole::Unreachable, Some(failure))
            }
        };
        self.metrics.up.set(if role == NodeRole::Unreachable { 0.0 } else { 1.0 });
        let server = &self.name;
        self.board.set_up(server, role != NodeRole::Unreachable);
        match role {
            NodeRole::Primary => self.board.set_role(server, BoardRole::Primary),
            NodeRole::Standby(_) => self.board.set_role(server, BoardRole::Standby),
            NodeRole::Unreachable => {}
        }
        match (role, self.role.replace(role)) {
            (role, Some(before)) if role.is_unchanged_since(before) => {}
            (NodeRole::Unreachable, _) => {
                let error =
                    failure.as_ref().map(|failure| error_chain(failure)).unwrap_or_default();
                tracing::warn!(server, error, "server unreachable");
            }
            (NodeRole::Primary, Some(NodeRole::Standby(_))) => {
                tracing::info!(server, "standby was promoted");
            }
            (NodeRole::Primary, _) => tracing::info!(server, "server is the primary"),
            (NodeRole::Standby(_), _) => tracing::info!(server, "server is a standby"),
        }
    }

    fn load_standby(
        &self,
        settings: &FollowSettings,
        image: &Arc<CacheImage>,
        buffers: u64,
        observer: &RoundObserver<'_>,
    ) {
        let pages_max = (buffers as f64 * settings.share) as u64;
        let image = if image.page_count() > pages_max {
            Arc::new(image.hottest(pages_max))
        } else {
            Arc::clone(image)
        };
        let server = &self.name;
        let board = &settings.readiness;
        board.set_image(server, Arc::clone(&image));
        board.set_loading(server, true);
        let progress = self.metrics.warm.progress(observer);
        match load::load(&image, &self.target, &settings.load, &progress) {
            Ok(loaded) => {
                self.metrics.warm.record_load(&loaded);
                log_load_report(server, &loaded);
            }
            Err(error) => {
                self.metrics.warm.record_load_failure();
                tracing::warn!(server, error = error_chain(&error), "cannot load the standby");
            }
        }
        board.set_loading(server, false);
        board.measure_soon(server);
    }
}

impl NodeRole {
    /// Whether the role is unchanged. A different number of buffers is not a new role.
    fn is_unchanged_since(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

fn query_role(target: &ConnectTarget) -> Result<RoleReply, QueryFailure> {
    let sql = "SELECT pg_is_in_recovery(), setting, pg_postmaster_start_time(),
                   current_setting('port')
               FROM pg_settings WHERE name = 'shared_buffers'";
    let mut client = Client::connect(&target.with_application_name("howdah warm"))?;
    client.set_timeout(Some(RESPONSE_TIMEOUT));
    let results = client.query(sql)?;
    let row = results.first().and_then(|result| result.rows.first());
    let text = |column| row.and_then(|row| row.text(column)).unwrap_or_default().into_owned();
    let role = match (&*text(0), text(1).parse()) {
        ("f", _) => NodeRole::Primary,
        ("t", Ok(buffers)) => NodeRole::Standby(buffers),
        (found, _) => {
            let found = found.to_owned();
            return Err(QueryFailure::UnexpectedResult { what: "its role", found });
        }
    };
    // Not every role may call this function.
    let cluster = match client.one_value("SELECT system_identifier FROM pg_control_system()") {
        Ok(value) => value.unwrap_or_default(),
        Err(error) if !error.is_fatal() => String::new(),
        Err(error) => return Err(error.into()),
    };
    let replication_clients = discovery::query_replication_clients(&mut client)?;
    let identity = InstanceIdentity { cluster, started: text(2), port: text(3) };
    Ok(RoleReply { role, identity, replication_clients })
}

/// Stops the loads of a round when a newer image is due or the daemon shuts down.
struct RoundObserver<'a> {
    stop: &'a ShutdownSignal,
    deadline: Instant,
}

impl LoadObserver for RoundObserver<'_> {
    fn should_stop(&self) -> bool {
        Instant::now() >= self.deadline || self.stop.is_set()
    }
}
