//! The readiness of one server: its image, state and last measurement.

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_connect::ConnectTarget;
use parking_lot::Mutex;

use super::{
    BoardRole, DatabaseReadiness, MEASUREMENT_AGE_MAX, PAUSE_FACTOR, ReadinessQueryError,
    ServerReadiness, WarmFloors, WarmState,
};
use crate::{
    CacheImage,
    daemon::metrics::ReadinessMetrics,
    dump::DumpSource,
    heat::{HeatMeter, HeatReport, HeatShare},
};

/// A server of a [`ReadinessBoard`](super::ReadinessBoard).
#[derive(Debug)]
pub(super) struct BoardEntry {
    pub(super) target: ConnectTarget,
    pub(super) source: DumpSource,
    pub(super) role: BoardRole,
    /// The image and its meter, which a measurement locks.
    pub(super) image: Option<(Arc<CacheImage>, Arc<Mutex<HeatMeter>>)>,
    pub(super) is_loading: bool,
    /// Whether a measurement is due without a query.
    pub(super) is_requested: bool,
    /// Whether a measurement is running.
    pub(super) is_measuring: bool,
    /// Earliest time of the next measurement.
    pub(super) next_at: Option<Instant>,
    /// Incremented when earlier and running measurements become void.
    pub(super) epoch: u64,
    /// Whether the server accepts connections, as far as the daemon knows.
    is_up: bool,
    measurement: Option<Measurement>,
    metrics: ReadinessMetrics,
}

/// The last result of measuring a server.
#[derive(Debug)]
struct Measurement {
    result: Result<HeatReport, MeasureFailure>,
    /// End of the measurement, by both clocks.
    at: Instant,
    at_time: SystemTime,
    /// Age at which it no longer counts.
    age_max: Duration,
}

impl Measurement {
    fn is_too_old(&self, now: Instant) -> bool {
        now.duration_since(self.at) > self.age_max
    }
}

/// A measurement that failed.
#[derive(Clone, Debug)]
pub(super) struct MeasureFailure {
    pub(super) reason: String,
    /// Whether the server could not be connected to, as opposed to a missing privilege.
    pub(super) is_unreachable: bool,
}

impl BoardEntry {
    pub(super) fn new(
        target: ConnectTarget,
        source: DumpSource,
        role: BoardRole,
        metrics: ReadinessMetrics,
    ) -> Self {
        Self {
            target,
            source,
            role,
            image: None,
            is_loading: false,
            is_requested: false,
            is_measuring: false,
            next_at: None,
            epoch: 0,
            is_up: false,
            measurement: None,
            metrics,
        }
    }

    pub(super) fn set_up(&mut self, is_up: bool) {
        if self.is_up != is_up {
            self.is_up = is_up;
            self.measurement = None;
            self.next_at = None;
            self.epoch += 1;
        }
    }

    /// Sets the image. The last measurement counts until the next one.
    pub(super) fn set_image(&mut self, image: Arc<CacheImage>) {
        self.image = Some((image, Arc::default()));
    }

    pub(super) fn image(&self) -> Option<&Arc<CacheImage>> {
        self.image.as_ref().map(|(image, _)| image)
    }

    /// Records the result of a measurement, which ended at `at` and took so long. If the server
    /// could not be measured although it runs, the last result counts until it is too old.
    pub(super) fn record(
        &mut self,
        result: Result<HeatReport, MeasureFailure>,
        at: Instant,
        took: Duration,
    ) {
        // `follow` connects to its servers only once per round, so a measurement may know better.
        self.is_up |= result.is_ok();
        let is_running = result.as_ref().is_err_and(|failure| !failure.is_unreachable);
        let is_usable = |last: &Measurement| last.result.is_ok() && !last.is_too_old(at);
        if is_running && self.measurement.as_ref().is_some_and(is_usable) {
            return;
        }
        // The next result comes after a pause of several times as long.
        let age_max = MEASUREMENT_AGE_MAX.max(took * (PAUSE_FACTOR + 2));
        self.measurement = Some(Measurement { result, at, at_time: SystemTime::now(), age_max });
    }

    pub(super) fn report(&self) -> Option<&HeatReport> {
        self.measurement.as_ref()?.result.as_ref().ok()
    }

    /// Whether a measurement now would be of use: there is something to compare, and the daemon
    /// does not know better that the server is down.
    pub(super) fn is_measurable(&self) -> bool {
        let is_known_down = self.role == BoardRole::Watched && !self.is_up;
        self.image.is_some() && !self.is_measuring && !is_known_down
    }

    /// Whether no newer result is to be expected soon: the last one is at most `age` old, or there
    /// is nothing to measure.
    pub(super) fn is_settled(&self, now: Instant, age: Duration) -> bool {
        let is_fresh = |last: &Measurement| now.duration_since(last.at) <= age;
        self.measurement.as_ref().is_some_and(is_fresh)
            || !(self.is_measurable() || self.is_measuring)
    }

    /// Returns the state of the server, and the reason if it is not warm.
    pub(super) fn state(&self, floors: &WarmFloors, now: Instant) -> (WarmState, Option<String>) {
        let because = |state, reason: &str| (state, Some(reason.to_owned()));
        if !self.is_up && self.report().is_none() {
            let reason = self.failure().map_or("the server does not accept connections", |it| it);
            return because(WarmState::Unreachable, reason);
        }
        if self.role == BoardRole::Watched && self.is_loading {
            return because(WarmState::Loading, "the image is being loaded");
        }
        let below = match &self.measurement {
            None if self.image.is_none() => "there is no image yet".to_owned(),
            None => "the cache has not been measured yet".to_owned(),
            Some(Measurement { result: Err(failure), .. }) if failure.is_unreachable => {
                return because(WarmState::Unreachable, &failure.reason);
            }
            Some(Measurement { result: Err(failure), .. }) => failure.reason.clone(),
            Some(last) if last.is_too_old(now) => "the last measurement is too old".to_owned(),
            Some(Measurement { result: Ok(report), .. }) => match below_floor(report, floors) {
                None => return (WarmState::Warm, None),
                Some(reason) => reason,
            },
        };
        let state = if self.is_loading { WarmState::Loading } else { WarmState::Cold };
        (state, Some(below))
    }

    /// Returns how far the shares are below their floors; see
    /// [`StandbyReadiness`](super::StandbyReadiness).
    pub(super) fn deficit(&self, floors: &WarmFloors, now: Instant) -> Option<f64> {
        let last = self.measurement.as_ref()?;
        let report = last.result.as_ref().ok()?;
        if last.is_too_old(now) {
            return None;
        }
        let total = floors.all - report.total.heat_ratio()?;
        let of_database = |(name, floor): (&String, &f64)| {
            Some(floor - report.databases.get(name)?.heat_ratio()?)
        };
        Some(floors.databases.iter().filter_map(of_database).fold(total.max(0.0), f64::max))
    }

    fn failure(&self) -> Option<&str> {
        let failure = self.measurement.as_ref()?.result.as_ref().err()?;
        Some(&failure.reason)
    }

    pub(super) fn readiness(
        &self,
        name: &str,
        floors: &WarmFloors,
        database: Option<&str>,
        now: Instant,
    ) -> Result<ServerReadiness, ReadinessQueryError> {
        let (mut state, mut reason) = self.state(floors, now);
        let report = self.report();
        let mut databases = report.map(|report| database_shares(report, floors));
        if let (Some(name), Some(databases)) = (database, &mut databases) {
            databases.retain(|found| found.database == name);
            let [found] = &databases[..] else {
                return Err(ReadinessQueryError::NoDatabase { name: name.to_owned() });
            };
            // Only the shares of this database count. The other reasons concern all of them.
            let is_loading = self.role == BoardRole::Watched && self.is_loading;
            let is_too_old = self.measurement.as_ref().is_some_and(|last| last.is_too_old(now));
            if state != WarmState::Unreachable && !is_loading && !is_too_old {
                (state, reason) = match (found.is_warm, self.is_loading) {
                    (true, _) => (WarmState::Warm, None),
                    (false, true) => (WarmState::Loading, Some(below_text(found))),
                    (false, false) => (WarmState::Cold, Some(below_text(found))),
                };
            }
        }
        Ok(ServerReadiness {
            server: name.to_owned(),
            role: self.role,
            state,
            reason,
            share: report.map(|report| report.total),
            floor: floors.all,
            databases: databases.unwrap_or_default(),
            measured_by: report.map(|report| report.source),
            measured_at: self.measurement.as_ref().map(|last| last.at_time),
            image: self.image().map(|image| (image.origin.taken_at_us, image.page_count())),
        })
    }

    /// Exports the state and the last shares as metrics.
    pub(super) fn publish(&self, floors: &WarmFloors, state: WarmState) {
        let report = self.report();
        self.metrics.publish(state == WarmState::Warm, report, &floors.databases);
    }
}

/// Returns why the shares are below a floor; `None` if they are not.
fn below_floor(report: &HeatReport, floors: &WarmFloors) -> Option<String> {
    let Some(ratio) = report.total.heat_ratio() else {
        let pages = report.total.unknown_pages;
        return Some(format!("all {pages} pages of the image are of relations rewritten since"));
    };
    if !is_reached(ratio, floors.all) {
        return Some(format!(
            "{:.1} % of the heat is in the cache, below {:.1} %",
            ratio * 100.0,
            floors.all * 100.0
        ));
    }
    let databases = database_shares(report, floors);
    let has_own_floor = |it: &&DatabaseReadiness| floors.databases.contains_key(&it.database);
    databases.iter().filter(has_own_floor).find(|it| !it.is_warm).map(below_text)
}

fn below_text(found: &DatabaseReadiness) -> String {
    format!(
        "{:.1} % of the heat of database {} is in the cache, below {:.1} %",
        found.share.heat_ratio().unwrap_or_default() * 100.0,
        found.database,
        found.floor * 100.0
    )
}

fn database_shares(report: &HeatReport, floors: &WarmFloors) -> Vec<DatabaseReadiness> {
    let readiness = |(name, &share): (&String, &HeatShare)| {
        let floor = floors.databases.get(name).copied().unwrap_or(floors.all);
        DatabaseReadiness {
            database: name.clone(),
            share,
            floor,
            // Nothing of it can be compared, so nothing is missing.
            is_warm: share.heat_ratio().is_none_or(|ratio| is_reached(ratio, floor)),
        }
    };
    report.databases.iter().map(readiness).collect()
}

/// Whether a ratio reaches a floor, regardless of rounding.
fn is_reached(ratio: f64, floor: f64) -> bool {
    ratio >= floor - 1e-9
}
