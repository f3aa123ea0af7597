//! The Prometheus backend: serves `/metrics` in the text format and, on request, in protobuf with
//! native histograms.
//!
//! Counters, sums and buckets are cumulative while their series exists, regardless of flush resets;
//! milliseconds become seconds and tags become labels. Names follow Prometheus' conventions
//! (`_total`, `_seconds`), or a mapping file in statsd_exporter's format. A scrape waits only for
//! the lock on the values and does not depend on other backends.

mod cursor;
mod families;
mod mapping;
mod names;
mod observations;
mod placements;
mod protobuf;
mod remote_write;
mod samples;
mod scrape;
mod series_names;
mod snappy;
mod text;
mod timed;

use std::{io, net::SocketAddr, sync::Arc};

use parking_lot::Mutex;

pub(crate) use self::scrape::{EndpointSource, ScrapeEndpoint};
use self::{
    families::FamilyTable,
    mapping::{MappingResult, NameMapping},
    series_names::SeriesNames,
};
pub use self::{
    mapping::{MappingError, MappingProblem},
    remote_write::{RemoteWriteBackend, RemoteWriteError},
};
use super::{BackendError, BackendStatus, MetricBackend, ReloadHook, SnapshotRequirements};
use crate::{
    MetricName, aggregate::MetricType, flush::FlushSnapshot, receiver::InheritedSockets, settings,
};

/// The backend that serves values to Prometheus.
#[derive(Debug)]
pub struct PrometheusBackend {
    settings: settings::PrometheusSettings,
    families: Arc<Mutex<FamilyTable>>,
    endpoint: Arc<ScrapeEndpoint>,
    status: BackendStatus,
}

/// The reason why the endpoint cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrometheusError {
    /// The mapping file cannot be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A setting has an invalid value.
    #[error("{key}: {reason}")]
    Setting {
        /// The setting's key.
        key: &'static str,
        /// The requirement that the value violates.
        reason: &'static str,
    },
    /// The address cannot be bound, or the server's thread cannot be started.
    #[error("cannot serve metrics at {address}")]
    Listen {
        /// The configured address.
        address: SocketAddr,
        /// The cause.
        source: io::Error,
    },
}

impl PrometheusBackend {
    /// Reads the mapping file, if configured, and starts listening.
    ///
    /// # Errors
    ///
    /// See [`PrometheusError`].
    pub fn new(settings: &settings::PrometheusSettings) -> Result<Self, PrometheusError> {
        Self::with_endpoint(settings, EndpointSource::New(&mut InheritedSockets::default()))
    }

    /// Like [`new`](Self::new), but with an endpoint from `source`. That of an earlier backend
    /// serves the earlier backend's values until this one's first flush.
    pub(super) fn with_endpoint(
        settings: &settings::PrometheusSettings,
        source: EndpointSource<'_>,
    ) -> Result<Self, PrometheusError> {
        check_settings(settings)?;
        let families = FamilyTable::new(settings, NameMapping::from_settings(settings)?);
        let families = Arc::new(Mutex::new(families));
        let address = settings.listen;
        let failed = |source| PrometheusError::Listen { address, source };
        let open = |passed| ScrapeEndpoint::open(address, passed, Arc::clone(&families));
        let endpoint = match source {
            EndpointSource::Earlier(earlier) => Arc::clone(earlier),
            EndpointSource::Successor(passed) => open(passed).map_err(failed)?.into(),
            EndpointSource::New(passed) => {
                let endpoint = open(passed).map_err(failed)?;
                endpoint.start().map_err(failed)?;
                endpoint.into()
            }
        };
        let (settings, status) = (settings.clone(), BackendStatus::default());
        Ok(Self { settings, families, endpoint, status })
    }

    pub(super) fn endpoint(&self) -> Arc<ScrapeEndpoint> {
        Arc::clone(&self.endpoint)
    }

    fn serve(&self) -> Result<(), BackendError> {
        self.endpoint.serve(&self.families);
        self.endpoint.start().map_err(|source| self.error("serving", source))
    }

    fn error(
        &self,
        action: &'static str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> BackendError {
        let receiver = self.endpoint.address().to_string();
        BackendError { receiver, action, source: source.into() }
    }

    /// Returns the address that the endpoint listens on.
    pub fn address(&self) -> SocketAddr {
        self.endpoint.address()
    }
}

/// The names and labels of metrics at an endpoint, without the endpoint.
#[derive(Debug)]
pub struct PrometheusPreview(SeriesNames);

impl PrometheusPreview {
    /// Reads the mapping file, if configured.
    ///
    /// # Errors
    ///
    /// The mapping file cannot be used.
    pub fn new(settings: &settings::PrometheusSettings) -> Result<Self, MappingError> {
        Ok(Self(SeriesNames::new(settings, NameMapping::from_settings(settings)?)))
    }

    /// Returns the name and labels of a metric as `name{label="value"}`, `None` if the mapping
    /// drops it. `milliseconds` says whether the values of a timer are converted to seconds.
    pub fn series(
        &self,
        kind: MetricType,
        name: &MetricName,
        milliseconds: bool,
    ) -> Option<String> {
        self.0.text(kind, name, milliseconds)
    }
}

/// Maps a counter's name with the text of a mapping file: returns the mapped name with its labels,
/// the name itself if no rule matches, or `None` if a rule drops it.
///
/// # Errors
///
/// The line, from 1, and the error in that line.
pub fn map_counter_name(
    file: &str,
    settings: &settings::PrometheusSettings,
    name: &str,
) -> Result<Option<String>, (usize, MappingProblem)> {
    let mapping = NameMapping::parse(file, settings)?;
    Ok(match mapping.map_name(name, mapping::MatchMetricType::Counter) {
        MappingResult::Drop => None,
        MappingResult::NoRule => Some(name.to_owned()),
        MappingResult::Mapped(mapped) => {
            let labels = mapped.labels.iter().map(|(name, value)| format!("{name}={value:?}"));
            Some(format!("{}{{{}}}", mapped.name, labels.collect::<Vec<_>>().join(",")))
        }
    })
}

fn check_settings(settings: &settings::PrometheusSettings) -> Result<(), PrometheusError> {
    let ascending = settings.buckets.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || !settings.buckets.iter().all(|bound| bound.is_finite()) {
        let reason = "must be finite numbers in ascending order";
        return Err(PrometheusError::Setting { key: "buckets", reason });
    }
    if !settings.quantiles.iter().all(|quantile| (0.0..=1.0).contains(quantile)) {
        let reason = "must be numbers from 0 to 1";
        return Err(PrometheusError::Setting { key: "quantiles", reason });
    }
    if settings.native_bucket_factor.is_nan() || settings.native_bucket_factor <= 1.0 {
        let reason = "must be a number above 1";
        return Err(PrometheusError::Setting { key: "native-bucket-factor", reason });
    }
    Ok(())
}

impl MetricBackend for PrometheusBackend {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn requirements(&self) -> SnapshotRequirements {
        SnapshotRequirements { names_as_sent: true, ..SnapshotRequirements::MINIMAL }
    }

    fn status(&self) -> BackendStatus {
        self.status.clone()
    }

    /// The mapping file is read again.
    fn reload_hook(&self) -> Option<ReloadHook> {
        let path = self.settings.mapping.clone()?;
        let (settings, families) = (self.settings.clone(), Arc::clone(&self.families));
        Some(Arc::new(move || {
            let mapping = NameMapping::read(&path, &settings)?;
            families::set_mapping(&mut families.lock(), mapping);
            Ok(())
        }))
    }

    fn flush(&mut self, snapshot: &Arc<FlushSnapshot>) -> Result<(), BackendError> {
        let mut families = self.families.lock();
        families.add_snapshot(snapshot);
        families.report(&self.status);
        drop(families);
        self.serve()
    }

    fn exports_state(&self) -> bool {
        true
    }

    fn export_state(&mut self) -> Option<Vec<u8>> {
        Some(families::handover::export(&self.families.lock()))
    }

    fn import_state(&mut self, state: &[u8]) -> Result<(), BackendError> {
        let mut families = self.families.lock();
        families::handover::import(&mut families, state)
            .map_err(|error| self.error("restoring", error))?;
        families.report(&self.status);
        drop(families);
        self.serve()
    }
}

#[cfg(test)]
mod tests;
