//! Keeps standbys as warm as their primary: each round loads the pages that the primary has cached
//! and a standby has not, at a limited rate.
//!
//! Roles are queried in each round, so after a promotion the new primary is read and the other
//! servers are loaded. A load is cut short after one interval, because a newer image is due then.

use std::{
    borrow::Cow,
    thread,
    time::{Duration, Instant},
};

use crate::{
    CacheImage,
    dump::{self, DumpSource, QueryFailure},
    load::{self, LoadObserver, LoadOptions},
    metrics::server_label,
};
use howdah_connect::{Client, ConnectTarget};
use howdah_stats::Registry;

use crate::daemon::{
    image_store::error_chain, load_log::log_load_report, metrics::DaemonMetrics,
    shutdown::ShutdownSignal,
};

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
    metrics: DaemonMetrics,
}

/// Maximum time to wait for the reply when a server's role is queried, and to connect to a server
/// unless `connect_timeout` is set. Also the maximum pause between rounds while no server, or more
/// than one, is a primary.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Keeps standbys warm until `stop` fires. Failures are logged; those of one standby do not affect
/// the others.
pub fn follow(settings: &FollowSettings, stop: &ShutdownSignal, registry: &Registry) {
    let mut nodes: Vec<_> =
        settings.servers.iter().map(|target| FollowedServer::new(target, registry)).collect();
    let mut had_primary = true;
    while !stop.is_set() {
        let began = Instant::now();
        for node in &mut nodes {
            node.refresh_role();
        }
        match find_primary(&nodes) {
            Ok(primary) => {
                had_primary = true;
                run_round(settings, &nodes, primary, stop);
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
        let _ = stop.wait(next.saturating_duration_since(Instant::now()));
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
    let pages = image.page_count();
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
    fn new(target: &ConnectTarget, registry: &Registry) -> Self {
        let timeout = target.connect_timeout().unwrap_or(RESPONSE_TIMEOUT);
        let target = target.with_connect_timeout(Some(timeout));
        let name = server_label(&target);
        Self { metrics: DaemonMetrics::new(registry, &name), target, name, role: None }
    }

    fn refresh_role(&mut self) {
        let (role, failure) = match query_role(&self.target) {
            Ok(role) => (role, None),
            Err(failure) => (NodeRole::Unreachable, Some(failure)),
        };
        self.metrics.up.set(if role == NodeRole::Unreachable { 0.0 } else { 1.0 });
        let server = &self.name;
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
        image: &CacheImage,
        buffers: u64,
        observer: &RoundObserver<'_>,
    ) {
        let pages_max = (buffers as f64 * settings.share) as u64;
        let image = if image.page_count() > pages_max {
            Cow::Owned(image.hottest(pages_max))
        } else {
            Cow::Borrowed(image)
        };
        let server = &self.name;
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
    }
}

impl NodeRole {
    /// Whether the role is unchanged. A different number of buffers is not a new role.
    fn is_unchanged_since(self, other: Self) -> bool {
        std::mem::discriminant(&self) == std::mem::discriminant(&other)
    }
}

fn query_role(target: &ConnectTarget) -> Result<NodeRole, QueryFailure> {
    let sql = "SELECT pg_is_in_recovery(), setting FROM pg_settings WHERE name = 'shared_buffers'";
    let mut client = Client::connect(&target.with_application_name("howdah warm"))?;
    client.set_timeout(Some(RESPONSE_TIMEOUT));
    let results = client.query(sql)?;
    let row = results.first().and_then(|result| result.rows.first());
    let text = |column| row.and_then(|row| row.text(column)).unwrap_or_default().into_owned();
    match (&*text(0), text(1).parse()) {
        ("f", _) => Ok(NodeRole::Primary),
        ("t", Ok(buffers)) => Ok(NodeRole::Standby(buffers)),
        (found, _) => {
            Err(QueryFailure::UnexpectedResult { what: "its role", found: found.to_owned() })
        }
    }
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
