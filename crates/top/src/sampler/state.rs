//! Reads samples over one connection. Rates are relative to the previous sample.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Instant,
};

use howdah_collect::{
    CollectError, MissingPrivilege, MonitorConnection, Overview, RateView, ServerInfo, StatsView,
    VIEWS, ViewSample, rates,
};
use howdah_connect::ConnectTarget;

use super::{SampleRequest, ServerSnapshot, with_causes};
use crate::host::HostMonitor;

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
    /// Index of the view to sample next for the recording.
    next_view_index: usize,
}

impl SamplerState {
    pub(super) fn connect(target: &ConnectTarget) -> Result<Self, CollectError> {
        let server = MonitorConnection::connect(target)?;
        let identity = Arc::new(server.info().clone());
        let missing = server.privileges().missing(identity.version).into();
        let host = HostMonitor::local(identity.backend);
        let (overviews, readings) = (VecDeque::new(), HashMap::new());
        Ok(Self {
            server,
            identity,
            missing,
            overviews,
            samples: readings,
            host,
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
        let overview = self.server.overview()?;
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
            sampled_us: 0,
            duration: started.elapsed(),
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
