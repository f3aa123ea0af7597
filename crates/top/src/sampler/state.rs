//! Reads samples over one connection. Rates are relative to the previous sample.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_collect::{
    CollectError, MissingPrivilege, MonitorConnection, Overview, RateView, ServerInfo, StatsView,
    VIEWS, ViewSample, rates,
};
use howdah_connect::ConnectTarget;

use super::{SampleRequest, ServerSnapshot, with_causes};
use crate::host::{AgentMonitor, HostMonitor, MonitoredServer};

/// Minimum time between two readings of the size of all databases; the actual time is at least a
/// hundred times what a reading takes, because the server looks at every file.
const SIZES_INTERVAL: Duration = Duration::from_secs(10);

/// Time from connecting to the first reading, so that it delays neither the first screen nor a
/// program that takes one sample.
const SIZES_START_DELAY: Duration = Duration::from_secs(3);

/// Time after a failed reading, such as one that took longer than the server's timeout.
const SIZES_RETRY_INTERVAL: Duration = Duration::from_secs(600);

/// Period over which the growth is computed.
const GROWTH_PERIOD: Duration = Duration::from_secs(300);

/// Reads the size of all databases now and then.
struct SizeMonitor {
    due_at: Instant,
    /// Sizes of the last [`GROWTH_PERIOD`], oldest first.
    sizes: VecDeque<(Instant, i64)>,
}

impl SizeMonitor {
    fn new() -> Self {
        Self { due_at: Instant::now() + SIZES_START_DELAY, sizes: VecDeque::new() }
    }

    /// Reads the size if it is due.
    fn read(&mut self, server: &mut MonitorConnection) -> Result<(), CollectError> {
        let started = Instant::now();
        if started < self.due_at {
            return Ok(());
        }
        let bytes = match server.database_bytes() {
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => {
                tracing::debug!(%error, "cannot read the size of databases");
                None
            }
            Ok(bytes) => bytes,
        };
        let Some(bytes) = bytes else {
            self.sizes.clear();
            self.due_at = started + SIZES_RETRY_INTERVAL;
            return Ok(());
        };
        self.due_at = started + SIZES_INTERVAL.max(started.elapsed() * 100);
        self.add(started, bytes);
        Ok(())
    }

    fn add(&mut self, at: Instant, bytes: i64) {
        let is_old = |(first, _): &(Instant, i64)| at.duration_since(*first) > GROWTH_PERIOD;
        while self.sizes.len() > 1 && self.sizes.front().is_some_and(is_old) {
            self.sizes.pop_front();
        }
        self.sizes.push_back((at, bytes));
    }

    /// Returns the last size in bytes, and the growth in bytes per second.
    #[expect(clippy::cast_precision_loss, reason = "figures for looking at")]
    #[expect(clippy::cast_possible_truncation, reason = "saturates")]
    fn figures(&self) -> (Option<i64>, Option<i64>) {
        let Some(((first, before), (last, now))) = self.sizes.front().zip(self.sizes.back()) else {
            return (None, None);
        };
        let seconds = last.duration_since(*first).as_secs_f64();
        let growth = (seconds > 0.0).then(|| ((now - before) as f64 / seconds).round() as i64);
        (Some(*now), growth)
    }
}

/// State kept from one sample to the next of the same connection.
pub(super) struct SamplerState {
    pub(super) server: MonitorConnection,
    identity: Arc<ServerInfo>,
    missing: Arc<[MissingPrivilege]>,
    /// Overviews of the last minute, oldest first.
    overviews: VecDeque<Overview>,
    /// The last sample of each view, by name.
    samples: HashMap<&'static str, ViewSample>,
    host: Option<HostMonitor>,
    sizes: SizeMonitor,
    /// Index of the view to sample next for the recording.
    next_view_index: usize,
}

impl SamplerState {
    /// Connects, and sets the server of its agent, which replaces the figures of this host.
    pub(super) fn connect(
        target: &ConnectTarget,
        agent: Option<&mut AgentMonitor>,
    ) -> Result<Self, CollectError> {
        let mut server = MonitorConnection::connect(target)?;
        let identity = Arc::new(server.info().clone());
        let missing = server.privileges().missing(identity.version).into();
        let host = match agent {
            None => HostMonitor::local(identity.backend),
            Some(agent) => {
                let system_identifier = server.system_identifier()?;
                agent.set_server(MonitoredServer { backend: identity.backend, system_identifier });
                None
            }
        };
        let (overviews, readings) = (VecDeque::new(), HashMap::new());
        Ok(Self {
            server,
            identity,
            missing,
            overviews,
            samples: readings,
            host,
            sizes: SizeMonitor::new(),
            next_view_index: 0,
        })
    }

    pub(super) fn sample(
        &mut self,
        request: SampleRequest,
        started: Instant,
    ) -> Result<ServerSnapshot, CollectError> {
        if request.full_texts {
            self.server.request_full_texts();
        }
        let activity = self.server.activity(request.idle_texts)?;
        let mut overview = self.server.overview()?;
        // Not a part of the sample's duration, on which the pause until the next one depends.
        let mut sizes_took = Duration::ZERO;
        if request.sizes {
            let begin = Instant::now();
            self.sizes.read(&mut self.server)?;
            sizes_took = begin.elapsed();
            (overview.database_bytes, overview.database_growth) = self.sizes.figures();
        }
        let session = match request.session.map(|pid| self.server.session_details(pid)) {
            Some(Err(error)) if error.is_fatal() => return Err(error),
            Some(Err(error)) => {
                tracing::debug!(%error, "cannot read a session's details");
                None
            }
            details => details.and_then(Result::ok).map(Arc::new),
        };
        let (view, view_error) = match request.view.map(|view| self.sample_view(view)).transpose() {
            Ok(view) => (view.flatten(), None),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => (None, Some(with_causes(&error))),
        };
        let also = if request.all_views { self.sample_next_view(request.view)? } else { None };
        let before = self.overviews.back().cloned();
        let minute_us = overview.taken_us - 60_000_000;
        while self.overviews.front().is_some_and(|first| first.taken_us < minute_us) {
            self.overviews.pop_front();
        }
        let minute_ago = self.overviews.front().cloned();
        self.overviews.push_back(overview.clone());
        let pids = activity.backends.iter().map(|backend| backend.pid);
        let processes = self.host.as_mut().map(|host| host.read_processes(pids));
        Ok(ServerSnapshot {
            server: Arc::clone(&self.identity),
            missing: Arc::clone(&self.missing),
            sampled_at: Instant::now(),
            activity,
            overview,
            previous_overview: before,
            minute_ago,
            view,
            view_error,
            pooled_clients: None,
            background_view: also,
            // Set by the sampler thread, which outlives this connection.
            waits: Arc::default(),
            host: self.host.as_mut().map(HostMonitor::read),
            processes,
            agent_problem: None,
            session,
            sampled_us: 0,
            duration: started.elapsed().saturating_sub(sizes_took),
        })
    }

    fn sample_view(&mut self, view: &'static StatsView) -> Result<Option<RateView>, CollectError> {
        let Some(reading) = self.server.read(view)? else { return Ok(None) };
        let before = self.samples.insert(view.name, reading.clone());
        Ok(Some(rates(before.as_ref(), &reading)))
    }

    /// Samples the next view for the recording, unless it is on the screen. A view that cannot be
    /// read is skipped: its own screen reports the error.
    fn sample_next_view(
        &mut self,
        looked_at: Option<&StatsView>,
    ) -> Result<Option<RateView>, CollectError> {
        let view = &VIEWS[self.next_view_index % VIEWS.len()];
        self.next_view_index += 1;
        if looked_at.is_some_and(|looked_at| looked_at.name == view.name) {
            return Ok(None);
        }
        match self.sample_view(view) {
            Err(error) if error.is_fatal() => Err(error),
            Err(_) => Ok(None),
            view => view,
        }
    }
}

#[test]
fn growth_covers_the_last_minutes() {
    let mut sizes = SizeMonitor::new();
    assert_eq!(sizes.figures(), (None, None));
    let start = Instant::now();
    sizes.add(start, 1_000);
    assert_eq!(sizes.figures(), (Some(1_000), None));
    sizes.add(start + Duration::from_secs(10), 3_000);
    assert_eq!(sizes.figures(), (Some(3_000), Some(200)));
    // The first one is too old: only the growth since the second one counts.
    sizes.add(start + Duration::from_secs(305), 3_000);
    assert_eq!(sizes.figures(), (Some(3_000), Some(0)));
}
