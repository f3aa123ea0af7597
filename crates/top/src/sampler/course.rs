//! Readings over one connection, each standing on the one before.

use std::{collections::HashMap, sync::Arc, time::Instant};

use howdah_collect::{
    CollectError, Identity, Missing, Overview, RateView, Reading, Server, VIEWS, View, rates,
};
use howdah_connect::Target;

use super::{Snapshot, Wanted, with_causes};
use crate::host::Host;

/// What is carried from one reading to the next of the same connection.
pub(super) struct SamplerState {
    pub(super) server: Server,
    identity: Arc<Identity>,
    missing: Arc<[Missing]>,
    overview: Option<Overview>,
    /// The last reading of each view, by its name.
    readings: HashMap<&'static str, Reading>,
    host: Option<Host>,
    /// The place of the view that is read next for the history.
    turn: usize,
}

impl SamplerState {
    pub(super) fn begin(target: &Target) -> Result<Self, CollectError> {
        let server = Server::connect(target)?;
        let identity = Arc::new(server.identity().clone());
        let missing = server.privileges().missing(identity.version).into();
        let host = Host::of(identity.backend);
        let (overview, readings) = (None, HashMap::new());
        Ok(Self { server, identity, missing, overview, readings, host, turn: 0 })
    }

    pub(super) fn read(
        &mut self,
        wanted: Wanted,
        begun: Instant,
    ) -> Result<Snapshot, CollectError> {
        if wanted.whole_texts {
            self.server.want_whole_texts();
        }
        let activity = self.server.activity(wanted.idle_texts)?;
        let overview = self.server.overview()?;
        let (view, view_error) = match wanted.view.map(|view| self.view(view)).transpose() {
            Ok(view) => (view.flatten(), None),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => (None, Some(with_causes(&error))),
        };
        let also = if wanted.all_views { self.next_view(wanted.view)? } else { None };
        let before = self.overview.replace(overview.clone());
        Ok(Snapshot {
            identity: Arc::clone(&self.identity),
            missing: Arc::clone(&self.missing),
            read: Instant::now(),
            activity,
            overview,
            before,
            view,
            view_error,
            pooled: None,
            also,
            // The worker's, which outlive this connection.
            waits: Arc::default(),
            host: self.host.as_mut().map(Host::read),
            seen_us: 0,
            cost: begun.elapsed(),
        })
    }

    fn view(&mut self, view: &'static View) -> Result<Option<RateView>, CollectError> {
        let Some(reading) = self.server.read(view)? else { return Ok(None) };
        let before = self.readings.insert(view.name, reading.clone());
        Ok(Some(rates(before.as_ref(), &reading)))
    }

    /// Reads the next view in turn, if it is another than the one that is looked at. One that cannot be read
    /// is passed over: whoever looks at it will be told.
    fn next_view(&mut self, looked_at: Option<&View>) -> Result<Option<RateView>, CollectError> {
        let view = &VIEWS[self.turn % VIEWS.len()];
        self.turn += 1;
        if looked_at.is_some_and(|looked_at| looked_at.name == view.name) {
            return Ok(None);
        }
        match self.view(view) {
            Err(error) if error.is_fatal() => Err(error),
            Err(_) => Ok(None),
            view => view,
        }
    }
}
