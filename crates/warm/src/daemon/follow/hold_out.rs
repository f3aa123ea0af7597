//! Bans replicas in poolers while they are cold, through the admin console of `howdah pool`.
//!
//! A ban is a lease: it ends by itself after [`LEASE`] and is renewed as long as the replica is
//! cold, so a daemon that was killed bans a replica for a minute at most. An orderly shutdown lifts
//! the bans. The console shows when a ban ends but not its origin, so a ban is ours only if
//! its end is the one that was shown after our `BAN`. Every other ban stays as it is, and a ban of
//! ours that was lifted or replaced is not repeated until the replica was warm or unreachable.

mod console;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{ConnectTarget, Endpoint};
use parking_lot::{Condvar, Mutex};

use crate::{
    daemon::{
        error_chain::error_chain,
        metrics::FollowMetrics,
        readiness::{ReadinessBoard, StandbyReadiness, WarmState},
    },
    dump::QueryFailure,
    metrics::server_label,
};
use console::{BanConsole, ConsoleView};

/// Where [`follow`](crate::daemon::follow()) bans replicas while they are cold, and for how long.
#[derive(Clone, Debug)]
pub struct HoldOutSettings {
    /// Admin consoles of `howdah pool`.
    pub poolers: Vec<ConnectTarget>,
    /// Maximum duration of a ban.
    pub max: Duration,
}

/// Duration of a ban unless it is renewed.
const LEASE: Duration = Duration::from_secs(60);
/// Age at which a ban is renewed.
const RENEWAL_AGE: Duration = Duration::from_secs(25);
/// Interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval between attempts to reach a console that failed.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// A replica that was warm is banned again only if its share is this far below the floor, so that
/// one at the floor does not come and go.
const HYSTERESIS: f64 = 0.05;
/// Tolerance when the end of a ban is compared with ours, in seconds. The console computes it anew
/// from two clocks each time.
const UNTIL_TOLERANCE: i64 = 2;

/// A running thread that bans replicas. Dropping it lifts the bans.
#[derive(Debug)]
pub(super) struct HoldOutThread {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<thread::JoinHandle<()>>,
}

impl HoldOutThread {
    /// Starts the thread. If the system has no thread left, nothing is banned, and that is logged.
    pub(super) fn start(
        settings: &HoldOutSettings,
        board: &Arc<ReadinessBoard>,
        metrics: FollowMetrics,
    ) -> Self {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let (theirs, board, max) = (Arc::clone(&stop), Arc::clone(board), settings.max);
        let mut poolers: Vec<_> = settings.poolers.iter().map(BanningPooler::new).collect();
        let spawned = thread::Builder::new().name("warm-hold-out".into()).spawn(move || {
            let mut is_stopping = theirs.0.lock();
            while !*is_stopping {
                theirs.1.wait_for(&mut is_stopping, CHECK_INTERVAL);
                parking_lot::MutexGuard::unlocked(&mut is_stopping, || {
                    let standbys = board.standbys();
                    for pooler in &mut poolers {
                        pooler.update(&standbys, max, &metrics);
                    }
                    export(&poolers, &standbys, &metrics);
                });
            }
            for pooler in &mut poolers {
                pooler.lift_all(&metrics);
            }
        });
        let thread = spawned
            .inspect_err(|error| tracing::error!(%error, "cold replicas cannot be banned"))
            .ok();
        Self { stop, thread }
    }
}

impl Drop for HoldOutThread {
    fn drop(&mut self) {
        *self.stop.0.lock() = true;
        self.stop.1.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn export(poolers: &[BanningPooler], standbys: &[StandbyReadiness], metrics: &FollowMetrics) {
    for standby in standbys {
        let is_banned = poolers.iter().any(|pooler| pooler.bans.contains_key(&standby.server));
        metrics.set_banned(&standby.server, is_banned);
    }
}

/// A pooler and our bans in it, by name of the followed server.
struct BanningPooler {
    label: String,
    console: BanConsole,
    bans: BTreeMap<String, OwnBan>,
    /// Replicas that are not banned until they were warm or unreachable.
    exempt: BTreeSet<String>,
    /// Replicas that were warm since they were last unreachable.
    was_warm: BTreeSet<String>,
    /// Problems that were logged, by server; the pooler's own under an empty name.
    logged: BTreeMap<String, String>,
    retry_at: Option<Instant>,
}

/// A ban that we requested.
#[derive(Clone, Debug)]
struct OwnBan {
    /// The replica's name in the pooler.
    member: Endpoint,
    /// Time of the first request.
    since: Instant,
    /// Time of the last request.
    renewed_at: Instant,
    /// End of the ban as the console showed it, in seconds since 1970.
    until: i64,
    /// The console connection over which it was requested last; see [`BanConsole::epoch`].
    epoch: u64,
}

/// The reason why a ban ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BanEnd {
    /// The replica is warm, or was promoted or dropped.
    Warm,
    TimeLimit,
    Shutdown,
    /// No other replica is left.
    LastOne,
    /// The server is down, so the pooler must not call it up.
    Down,
    /// The ban was lifted or replaced, by an administrator or the pooler.
    Elsewhere,
}

impl BanEnd {
    fn name(self) -> &'static str {
        match self {
            Self::Warm => "warm",
            Self::TimeLimit => "time limit",
            Self::Shutdown => "shutdown",
            Self::LastOne => "last one",
            Self::Down => "down",
            Self::Elsewhere => "elsewhere",
        }
    }
}

impl BanningPooler {
    fn new(target: &ConnectTarget) -> Self {
        Self {
            label: server_label(target),
            console: BanConsole::new(target),
            bans: BTreeMap::new(),
            exempt: BTreeSet::new(),
            was_warm: BTreeSet::new(),
            logged: BTreeMap::new(),
            retry_at: None,
        }
    }

    /// Bans cold replicas, renews bans, and lifts those of warm ones.
    fn update(&mut self, standbys: &[StandbyReadiness], max: Duration, metrics: &FollowMetrics) {
        for standby in standbys {
            match standby.state {
                WarmState::Warm => {
                    self.exempt.remove(&standby.server);
                    self.was_warm.insert(standby.server.clone());
                }
                WarmState::Unreachable => {
                    self.exempt.remove(&standby.server);
                    self.was_warm.remove(&standby.server);
                }
                WarmState::Cold | WarmState::Loading => {}
            }
        }
        let mut cold: Vec<_> =
            standbys.iter().filter_map(|it| Some((it, self.banned_deficit(it)?))).collect();
        // The coldest first, because the last one of all is not banned.
        cold.sort_by(|a, b| b.1.total_cmp(&a.1));
        let is_idle = cold.is_empty() && self.bans.is_empty();
        if is_idle || self.retry_at.is_some_and(|at| Instant::now() < at) {
            return;
        }
        match self.update_console(standbys, &cold, max, metrics) {
            Ok(()) => {
                self.retry_at = None;
                self.logged.remove("");
            }
            Err(failure) => {
                self.console.close();
                self.retry_at = Some(Instant::now() + RETRY_INTERVAL);
                self.log_once("", &error_chain(&failure));
            }
        }
    }

    /// Returns how cold a replica is that is to be banned; `None` if it is not.
    fn banned_deficit(&self, standby: &StandbyReadiness) -> Option<f64> {
        let is_cold = matches!(standby.state, WarmState::Cold | WarmState::Loading);
        let is_open =
            !self.exempt.contains(&standby.server) && !self.bans.contains_key(&standby.server);
        let min = if self.was_warm.contains(&standby.server) { HYSTERESIS } else { 0.0 };
        standby.deficit.filter(|deficit| is_cold && is_open && *deficit > min)
    }

    fn update_console(
        &mut self,
        standbys: &[StandbyReadiness],
        cold: &[(&StandbyReadiness, f64)],
        max: Duration,
        metrics: &FollowMetrics,
    ) -> Result<(), QueryFailure> {
        let mut view = self.console.view()?;
        for (server, ban) in self.bans.clone() {
            let standby = standbys.iter().find(|standby| standby.server == server);
            let is_warm = standby.is_none_or(|standby| standby.state == WarmState::Warm);
            if !view.has_only_ban(&ban.member, ban.until, UNTIL_TOLERANCE) {
                // A pooler that was restarted has no bans: ours is requested again below, and its
                // time goes on.
                let is_restarted = view.epoch != ban.epoch && view.bans_of(&ban.member).is_empty();
                if is_restarted && !is_warm && ban.since.elapsed() < max {
                    self.ban(&server, &ban.member, Some(ban.since), &mut view)?;
                } else {
                    self.end_ban(&server, BanEnd::Elsewhere, metrics);
                }
            } else if is_warm {
                self.console.unban(&ban.member)?;
                self.end_ban(&server, BanEnd::Warm, metrics);
            } else if standby.is_some_and(|standby| standby.state == WarmState::Unreachable) {
                // Lifting it would also tell the pooler that the server is up.
                self.end_ban(&server, BanEnd::Down, metrics);
            } else if ban.since.elapsed() >= max {
                self.console.unban(&ban.member)?;
                self.end_ban(&server, BanEnd::TimeLimit, metrics);
            } else if !view.may_ban(&ban.member) {
                self.console.unban(&ban.member)?;
                self.end_ban(&server, BanEnd::LastOne, metrics);
            } else if ban.renewed_at.elapsed() >= RENEWAL_AGE {
                self.ban(&server, &ban.member, Some(ban.since), &mut view)?;
            }
        }
        for (standby, deficit) in cold {
            let Some(member) = view.find_member(&standby.endpoints) else {
                self.log_once(&standby.server, "the pooler does not know the server");
                continue;
            };
            if !view.bans_of(&member).is_empty() {
                // A failed check, an administrator, or an earlier process of ours.
                continue;
            }
            if !view.may_ban(&member) {
                self.log_once(&standby.server, "cold, but not held out: it is the last one");
                continue;
            }
            self.ban(&standby.server, &member, None, &mut view)?;
            let below_floor = format!("{:.1} %", deficit * 100.0);
            let (pooler, server) = (&self.label, &standby.server);
            tracing::info!(pooler, server, below_floor, "cold replica is held out of the pooler");
            self.logged.remove(&standby.server);
        }
        Ok(())
    }

    /// Requests or renews a ban, and records its end as the console shows it.
    fn ban(
        &mut self,
        server: &str,
        member: &Endpoint,
        since: Option<Instant>,
        view: &mut ConsoleView,
    ) -> Result<(), QueryFailure> {
        let now = Instant::now();
        self.console.ban(member, LEASE)?;
        *view = self.console.view()?;
        let Some(until) = view.bans_of(member).into_iter().max() else {
            // Lifted at once: by the pooler, if a client accepts no other server.
            self.bans.remove(server);
            self.exempt.insert(server.to_owned());
            return Ok(());
        };
        let (since, epoch) = (since.unwrap_or(now), view.epoch);
        let ban = OwnBan { member: member.clone(), since, renewed_at: now, until, epoch };
        self.bans.insert(server.to_owned(), ban);
        Ok(())
    }

    /// Records that a ban has ended.
    fn end_ban(&mut self, server: &str, end: BanEnd, metrics: &FollowMetrics) {
        let Some(ban) = self.bans.remove(server) else { return };
        metrics.record_ban_end(server, end.name());
        metrics.set_banned(server, false);
        let (pooler, after) = (&self.label, ban.since.elapsed());
        match end {
            BanEnd::Warm => {
                tracing::info!(pooler, server, ?after, "replica is back in the pooler");
            }
            BanEnd::Shutdown => {
                tracing::info!(
                    pooler,
                    server,
                    ?after,
                    "shutting down; replica is back in the pooler"
                );
            }
            BanEnd::LastOne => {
                tracing::warn!(
                    pooler,
                    server,
                    ?after,
                    "replica is back in the pooler, as the last one"
                );
            }
            BanEnd::Down => {
                tracing::info!(pooler, server, ?after, "replica is down; its ban ends by itself");
            }
            BanEnd::TimeLimit => {
                self.exempt.insert(server.to_owned());
                tracing::warn!(pooler, server, ?after, "replica is back in the pooler, still cold");
            }
            BanEnd::Elsewhere => {
                self.exempt.insert(server.to_owned());
                tracing::warn!(
                    pooler,
                    server,
                    ?after,
                    "the ban of the cold replica was lifted or replaced; not held out again"
                );
            }
        }
    }

    /// Lifts our bans at the end. Those that cannot be lifted end by themselves.
    fn lift_all(&mut self, metrics: &FollowMetrics) {
        if self.bans.is_empty() {
            return;
        }
        let mut lift = || {
            let view = self.console.view()?;
            for (server, ban) in self.bans.clone() {
                if view.has_only_ban(&ban.member, ban.until, UNTIL_TOLERANCE) {
                    self.console.unban(&ban.member)?;
                    self.end_ban(&server, BanEnd::Shutdown, metrics);
                }
            }
            Ok(())
        };
        let result: Result<(), QueryFailure> = lift();
        if let Err(failure) = result {
            let (pooler, lease) = (&self.label, LEASE);
            let error = error_chain(&failure);
            tracing::warn!(pooler, error, ?lease, "bans were not lifted, and end by themselves");
        }
    }

    /// Logs a problem, unless it is the last one logged for that server.
    fn log_once(&mut self, server: &str, problem: &str) {
        if self.logged.get(server).is_none_or(|last| last != problem) {
            self.logged.insert(server.to_owned(), problem.to_owned());
            let pooler = &self.label;
            tracing::warn!(pooler, server, problem, "cannot hold out replicas");
        }
    }
}
