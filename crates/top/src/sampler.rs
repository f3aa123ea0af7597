//! Samples one server at an interval, on its own thread.
//!
//! The thread owns the connection, so no other thread waits for the server. It passes each new
//! [`ServerHealth`] to a callback. A server that is unresponsive, refuses connections or restarts
//! is reported as unreachable and retried with growing delays.

mod state;

use std::{
    collections::HashMap,
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};

use howdah_collect::{
    Activity, CollectError, MissingPrivilege, Overview, RateView, ServerInfo, SessionDetails,
    StatsView, WaitCounts,
};
use howdah_connect::ConnectTarget;
use howdah_traffic::Timestamp;
use parking_lot::{Condvar, Mutex, MutexGuard};

use self::state::SamplerState;
use crate::{
    PooledClients, Poolers,
    host::{AgentEndpoint, AgentMonitor, HostFigures, ProcessFigures},
    waits::WaitHistory,
};

/// `application_name` of this program's connections.
pub const APPLICATION_NAME: &str = "howdah top";

/// A server to watch.
#[derive(Clone, Debug)]
pub struct WatchTarget {
    /// Name by which the server is displayed.
    pub name: String,
    /// Address of the server, and how to log in.
    pub target: ConnectTarget,
    /// Poolers whose clients use the server's sessions.
    pub poolers: Poolers,
    /// The agent on the server's host, if one is used.
    pub agent: Option<AgentEndpoint>,
}

/// A sample of one server, with figures of its host and the clients of its poolers.
#[derive(Clone, Debug)]
pub struct ServerSnapshot {
    /// Properties of the server, read when connecting.
    pub server: Arc<ServerInfo>,
    /// Privileges that the monitoring role lacks.
    pub missing: Arc<[MissingPrivilege]>,
    /// Time at which the sample was taken, by our clock.
    pub sampled_at: Instant,
    /// Sessions and background processes, from `pg_stat_activity`.
    pub activity: Activity,
    /// Cluster-wide figures of this sample.
    pub overview: Overview,
    /// Cluster-wide figures of the previous sample over the same connection, if any.
    pub previous_overview: Option<Overview>,
    /// Cluster-wide figures of the first sample of the last minute over the same connection, if
    /// any. Not recorded.
    pub minute_ago: Option<Overview>,
    /// The view on the screen, if any.
    pub view: Option<RateView>,
    /// Error of reading that view, if it failed.
    pub view_error: Option<String>,
    /// Clients of poolers, if poolers are configured.
    pub pooled_clients: Option<Arc<PooledClients>>,
    /// Another view, sampled for the recording only.
    pub background_view: Option<RateView>,
    /// Wait events of working sessions, second by second.
    pub waits: Arc<WaitHistory>,
    /// Figures of the host, if the server runs on the same host as this program, or from its agent.
    pub host: Option<HostFigures>,
    /// Figures of the server's processes by process id, if the server runs on the same host, or
    /// from its agent; empty while the agent is away.
    pub processes: Option<HashMap<i32, ProcessFigures>>,
    /// Why the agent does not provide figures, in a few words. Not recorded.
    pub agent_problem: Option<Arc<str>>,
    /// Details of the session whose page is open, if any. Not recorded.
    pub session: Option<Arc<SessionDetails>>,
    /// Time at which the sample was taken, by our clock, in microseconds since 1970. Never
    /// decreases.
    pub sampled_us: i64,
    /// Time that it took to read the sample.
    pub duration: Duration,
}

impl ServerSnapshot {
    /// Creates the first snapshot of a server, from activity and overview alone.
    pub fn from_activity(identity: ServerInfo, overview: Overview, activity: Activity) -> Self {
        Self {
            server: Arc::new(identity),
            missing: Arc::new([]),
            sampled_at: Instant::now(),
            sampled_us: activity.taken_us,
            activity,
            overview,
            previous_overview: None,
            minute_ago: None,
            view: None,
            view_error: None,
            pooled_clients: None,
            background_view: None,
            waits: Arc::default(),
            host: None,
            processes: None,
            agent_problem: None,
            session: None,
            duration: Duration::ZERO,
        }
    }
}

/// State of a server as seen by its sampler.
#[derive(Clone, Debug)]
pub enum ServerHealth {
    /// The server has not been sampled yet.
    Connecting,
    /// The last sample succeeded.
    Read(Arc<ServerSnapshot>),
    /// The server is unreachable, and retried at intervals.
    Unreachable {
        /// The reason why the server is unreachable, in one sentence.
        reason: String,
        /// Time of the first failure.
        since: Instant,
        /// Time of the next attempt.
        retry_at: Instant,
        /// The last sample before the failure, if any.
        last: Option<Arc<ServerSnapshot>>,
    },
}

impl ServerHealth {
    /// Returns the last snapshot, if there is one.
    pub fn snapshot(&self) -> Option<&Arc<ServerSnapshot>> {
        match self {
            Self::Connecting => None,
            Self::Read(snapshot) => Some(snapshot),
            Self::Unreachable { last, .. } => last.as_ref(),
        }
    }
}

/// A request to a sampler: the data that each sample must include, and the interval.
#[derive(Clone, Copy, Debug)]
pub struct SampleRequest {
    /// Time from the start of one sample to the start of the next. The actual time is at least
    /// [`INTERVAL_MIN`], and at least ten times the duration of a sample.
    pub interval: Duration,
    /// Whether to read the last statements of idle sessions.
    pub idle_texts: bool,
    /// A view to read in addition to activity and overview.
    pub view: Option<&'static StatsView>,
    /// Whether to read all views one after another, one per sample. A recording requires this,
    /// because it covers every screen.
    pub all_views: bool,
    /// Whether to read complete texts of statements that have run for less than a second, too.
    pub full_texts: bool,
    /// Whether to read the size of all databases now and then.
    pub sizes: bool,
    /// Process id of the session whose details to read.
    pub session: Option<i32>,
}

impl SampleRequest {
    /// Whether a slow threshold requires complete texts of statements shorter than a second.
    pub(crate) fn needs_full_texts(slow: Option<Duration>) -> bool {
        slow.is_some_and(|slow| slow < Duration::from_secs(1))
    }
}

/// Minimum interval between samples, even if a shorter one is requested.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Maximum delay between two attempts to connect.
const RETRY_DELAY_MAX: Duration = Duration::from_secs(10);

/// A thread that samples one server. Dropping it stops the thread without waiting for it: the
/// server may be unresponsive.
#[derive(Debug)]
pub struct ServerSampler {
    shared: Arc<SamplerShared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct SamplerShared {
    control: Mutex<SamplerControl>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct SamplerControl {
    request: SampleRequest,
    /// Incremented with each change, so that none is missed.
    revision: u64,
    should_stop: bool,
}

impl ServerSampler {
    /// Starts sampling, including the clients of poolers, and the figures of an agent on the
    /// server's host. `on_change` receives each new state, on the sampler's thread.
    ///
    /// # Errors
    ///
    /// The thread could not be started.
    pub fn start(
        watch: &WatchTarget,
        request: SampleRequest,
        on_change: impl FnMut(ServerHealth) + Send + 'static,
    ) -> std::io::Result<Self> {
        let control = SamplerControl { request, revision: 0, should_stop: false };
        let shared =
            Arc::new(SamplerShared { control: Mutex::new(control), changed: Condvar::new() });
        let agent = watch.agent.clone().map(AgentMonitor::start).transpose()?;
        let worker = SamplerThread {
            target: watch.target.with_application_name(APPLICATION_NAME),
            poolers: watch.poolers.clone(),
            agent,
            shared: Arc::clone(&shared),
            on_change,
            last: None,
            waits: WaitHistory::default(),
            last_sample_us: 0,
        };
        let thread =
            std::thread::Builder::new().name("sampler".to_owned()).spawn(|| worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes what is sampled, and takes a sample immediately.
    pub fn set_request(&self, request: SampleRequest) {
        self.update_control(|control| control.request = request);
    }

    /// Stops the thread and waits until it has ended.
    pub fn finish(mut self) {
        self.update_control(|control| control.should_stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread needs no handling at this point.
            let _ = thread.join();
        }
    }

    fn update_control(&self, change: impl FnOnce(&mut SamplerControl)) {
        let mut control = self.shared.control();
        change(&mut control);
        control.revision += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for ServerSampler {
    fn drop(&mut self) {
        self.update_control(|control| control.should_stop = true);
    }
}

impl SamplerShared {
    fn control(&self) -> MutexGuard<'_, SamplerControl> {
        // A panic elsewhere cannot have left these plain values half written.
        self.control.lock()
    }

    /// Waits until `until`, the control's revision differs from `number`, or the sampler must stop.
    /// Returns the control.
    fn wait(&self, until: Instant, number: u64) -> SamplerControl {
        let mut control = self.control();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if control.should_stop || control.revision != number || left.is_zero() {
                return *control;
            }
            self.changed.wait_for(&mut control, left);
        }
    }
}

struct SamplerThread<F> {
    target: ConnectTarget,
    poolers: Poolers,
    agent: Option<AgentMonitor>,
    shared: Arc<SamplerShared>,
    on_change: F,
    last: Option<Arc<ServerSnapshot>>,
    waits: WaitHistory,
    /// Time of the last sample or count of wait events by our clock, in microseconds since 1970.
    last_sample_us: i64,
}

impl<F: FnMut(ServerHealth)> SamplerThread<F> {
    fn run(mut self) {
        let mut failures = 0;
        let mut since = Instant::now();
        loop {
            let outcome =
                SamplerState::connect(&self.target, self.agent.as_mut()).and_then(|state| {
                    failures = 0;
                    self.sample_until_error(state)
                });
            let Err(error) = outcome else { return };
            let now = Instant::now();
            if failures == 0 {
                since = now;
            }
            let pause = retry_delay(failures);
            failures = failures.saturating_add(1);
            let reason = with_causes(&error);
            (self.on_change)(ServerHealth::Unreachable {
                reason,
                since,
                retry_at: now + pause,
                last: self.last.clone(),
            });
            let control = *self.shared.control();
            if control.should_stop || self.shared.wait(now + pause, control.revision).should_stop {
                return;
            }
        }
    }

    /// Samples until it is stopped or the connection fails.
    fn sample_until_error(&mut self, mut state: SamplerState) -> Result<(), CollectError> {
        loop {
            let control = *self.shared.control();
            if control.should_stop {
                return Ok(());
            }
            let started = Instant::now();
            // Read just before the server, so that links to sessions are as current as the sample.
            let pooled = self.poolers.read();
            self.agent.as_ref().inspect(|agent| agent.request());
            let mut snapshot = state.sample(control.request, started)?;
            self.last_sample_us = now_us().max(self.last_sample_us);
            if let Some(agent) = &mut self.agent {
                let backends = &snapshot.activity.backends;
                let figures = agent.figures(backends, control.request.interval);
                snapshot.host = figures.host;
                snapshot.processes = Some(figures.processes);
                snapshot.agent_problem = figures.problem;
            }
            snapshot.pooled_clients = pooled;
            self.waits.add(self.last_sample_us, &WaitCounts::from_activity(&snapshot.activity));
            snapshot.sampled_us = self.last_sample_us;
            snapshot.waits = Arc::new(self.waits.clone());
            let snapshot = Arc::new(snapshot);
            let cost = snapshot.duration;
            self.last = Some(Arc::clone(&snapshot));
            (self.on_change)(ServerHealth::Read(snapshot));
            // Limits sampling to a tenth of the time.
            let interval = control.request.interval.max(INTERVAL_MIN).max(cost * 10);
            if self.sample_waits(&mut state, started + interval, control.revision)?.should_stop {
                return Ok(());
            }
        }
    }

    /// Counts wait events between two samples, until `until` or until the control changes.
    fn sample_waits(
        &mut self,
        state: &mut SamplerState,
        until: Instant,
        number: u64,
    ) -> Result<SamplerControl, CollectError> {
        let mut pause = self.waits.sample_interval(self.last_sample_us);
        let mut last = Instant::now();
        loop {
            let next = last + pause;
            let control = self.shared.wait(next.min(until), number);
            // The next sample counts waits itself, so skip a count just before it.
            if control.should_stop || control.revision != number || next >= until {
                return Ok(control);
            }
            last = Instant::now();
            match state.server.waits() {
                Ok(counts) => {
                    self.last_sample_us = now_us().max(self.last_sample_us);
                    self.waits.add(self.last_sample_us, &counts);
                }
                Err(error) if error.is_fatal() => return Err(error),
                // The next sample will report the problem where it is visible.
                Err(error) => tracing::debug!(%error, "cannot count wait events"),
            }
            // Limits counting to a tenth of the time, too.
            pause = self.waits.sample_interval(self.last_sample_us).max(last.elapsed() * 10);
        }
    }
}

/// Returns the current time in microseconds since 1970.
pub(crate) fn now_us() -> i64 {
    Timestamp::now().as_micros()
}

/// Returns the delay after a failed attempt, which `failures` other failures have preceded.
fn retry_delay(failures: u32) -> Duration {
    let first = Duration::from_millis(500);
    first.saturating_mul(1 << failures.min(8)).min(RETRY_DELAY_MAX)
}

/// Formats an error with its causes on one sanitized line.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    howdah_collect::sanitized_line(&text).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use howdah_collect::{BackendActivity, ServerVersion};

    use super::*;

    /// Creates a snapshot with the given sessions.
    pub(crate) fn snapshot(taken_us: i64, backends: Vec<BackendActivity>) -> ServerSnapshot {
        let identity = ServerInfo {
            version: ServerVersion(170_002),
            started_us: 0,
            host: "db1".to_owned(),
            port: 5432,
            database: "shop".to_owned(),
            max_connections: 100,
            data_directory: None,
            backend: howdah_collect::BackendProcess::default(),
        };
        ServerSnapshot {
            server: Arc::new(identity),
            missing: Arc::new([]),
            sampled_at: Instant::now(),
            activity: Activity { taken_us, backends },
            overview: Overview { taken_us, ..Overview::default() },
            previous_overview: None,
            minute_ago: None,
            view: None,
            view_error: None,
            pooled_clients: None,
            background_view: None,
            waits: Arc::default(),
            host: None,
            processes: None,
            agent_problem: None,
            session: None,
            sampled_us: taken_us,
            duration: Duration::from_millis(3),
        }
    }

    #[test]
    fn retry_delay_doubles_up_to_a_limit() {
        assert_eq!(retry_delay(0), Duration::from_millis(500));
        assert_eq!(retry_delay(1), Duration::from_secs(1));
        assert_eq!(retry_delay(1000), RETRY_DELAY_MAX);
    }
}
