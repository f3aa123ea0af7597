//! An endpoint for Prometheus: `/metrics`, in the text format and, for a Prometheus that asks for it,
//! in protobuf with native histograms.
//!
//! Counters, sums and buckets are cumulative since the start, whatever the flush resets; timers in
//! milliseconds become seconds; tags become labels. Names follow Prometheus' rules (`_total`,
//! `_seconds`), or a mapping file in statsd_exporter's format. A scrape waits for nothing but the lock
//! on the numbers, and works while no other backend does.

mod families;
mod mapping;
mod names;
mod own;
mod protobuf;
mod server;
mod text;
mod yaml;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

pub use self::mapping::{MappingError, MappingProblem};
use self::{
    families::Families,
    mapping::{Lookup, Mapping},
    server::Server,
};
use super::{Backend, BackendError, Needs, Status};
use crate::{flush::Snapshot, settings};

/// Keeps what Prometheus asks for.
#[derive(Debug)]
pub struct Prometheus {
    families: Arc<Mutex<Families>>,
    server: Server,
    status: Status,
}

/// The endpoint cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrometheusError {
    /// The mapping file cannot be used.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A list of numbers is not what it should be.
    #[error("{key}: {reason}")]
    Setting {
        /// Which setting.
        key: &'static str,
        /// What it is to be.
        reason: &'static str,
    },
    /// The address cannot be listened at.
    #[error("cannot serve metrics at {address}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

impl Prometheus {
    /// Reads the mapping file, if there is one, and listens.
    ///
    /// # Errors
    ///
    /// See [`PrometheusError`].
    pub fn new(settings: &settings::Prometheus) -> Result<Self, PrometheusError> {
        check(settings)?;
        let mapping = settings.mapping.as_deref().map(|path| Mapping::read(path, settings));
        let families = Families::new(settings, mapping.transpose()?);
        let families = Arc::new(Mutex::new(families));
        let address = settings.listen;
        let server = Server::start(address, Arc::clone(&families))
            .map_err(|source| PrometheusError::Listen { address, source })?;
        Ok(Self { families, server, status: Status::default() })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }
}

/// What a mapping file makes of a counter's name: the name with its labels, the name itself if no
/// rule fits, `None` if one drops it.
///
/// # Errors
///
/// The line, from 1, and what is wrong with the file there.
pub fn mapped(
    file: &str,
    settings: &settings::Prometheus,
    name: &str,
) -> Result<Option<String>, (usize, MappingProblem)> {
    let mapping = Mapping::parse(file, settings)?;
    Ok(match mapping.look_up(name, mapping::Kind::Counter) {
        Lookup::Drop => None,
        Lookup::NoRule => Some(name.to_owned()),
        Lookup::Mapped(mapped) => {
            let labels = mapped.labels.iter().map(|(name, value)| format!("{name}={value:?}"));
            Some(format!("{}{{{}}}", mapped.name, labels.collect::<Vec<_>>().join(",")))
        }
    })
}

fn check(settings: &settings::Prometheus) -> Result<(), PrometheusError> {
    let ascending = settings.buckets.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || !settings.buckets.iter().all(|bound| bound.is_finite()) {
        let reason = "bounds are finite numbers, each larger than the one before";
        return Err(PrometheusError::Setting { key: "buckets", reason });
    }
    if !settings.quantiles.iter().all(|quantile| (0.0..=1.0).contains(quantile)) {
        let reason = "a quantile is a number from 0 to 1";
        return Err(PrometheusError::Setting { key: "quantiles", reason });
    }
    if settings.native_bucket_factor.is_nan() || settings.native_bucket_factor <= 1.0 {
        let reason = "it is a number above 1";
        return Err(PrometheusError::Setting { key: "native-bucket-factor", reason });
    }
    Ok(())
}

impl Backend for Prometheus {
    fn name(&self) -> &'static str {
        "prometheus"
    }

    fn needs(&self) -> Needs {
        Needs { names_as_sent: true, ..Needs::default() }
    }

    fn status(&self) -> Status {
        self.status.clone()
    }

    fn flush(&mut self, snapshot: &Arc<Snapshot>) -> Result<(), BackendError> {
        let mut families = self.families.lock().unwrap_or_else(PoisonError::into_inner);
        families.apply(snapshot);
        families.report(&self.status);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
