//! Measures the machine while a replay runs, so that noise is not attributed to the database.
//!
//! ```text
//! sampler      wakes every 10 ms   how late it woke up; each second: pressure, processor time
//! calibration  every 250 ms        duration of a fixed statement on the target
//! ```
//!
//! Both are threads that write into the buckets of a [`MachineSeries`], one per second since the
//! start of the replay. They cost less than one percent of a processor. Statements per second are
//! not stored here, because they can be computed from the outcomes.

mod calibration;
mod control;
mod host;
mod sampler;
mod wakeup;

use std::{
    io,
    net::{IpAddr, ToSocketAddrs as _},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{ConnectTarget, Endpoint};
use howdah_dataset::{CalibrationInfo, MachineBucket, MachineSeries};
use howdah_stats::Gauge;
use parking_lot::Mutex;

pub(crate) use control::CalibrationControl;
pub use control::CalibrationPlan;

use calibration::Calibration;
use host::HostSampler;
use sampler::Sampler;

/// Maximum time to wait for the calibration to close its connection.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// The running measurements of a replay, which are stopped on drop.
#[derive(Debug)]
pub(crate) struct MachineMonitor {
    control: Arc<CalibrationControl>,
    sampler: Sampler,
    buckets: SharedBuckets,
    endpoint: Endpoint,
    processors: Option<u32>,
}

impl MachineMonitor {
    /// Starts to measure at `start`, the start of the replay. The calibration logs in to
    /// `endpoint` unless `control` has ended it before; `connections` counts the connections that
    /// the replay has open.
    pub(crate) fn start(
        start: Instant,
        target: &ConnectTarget,
        endpoint: &Endpoint,
        control: Arc<CalibrationControl>,
        connections: Gauge,
    ) -> io::Result<Self> {
        let buckets = SharedBuckets::default();
        let host = HostSampler::new("/proc");
        let processors = host.processors();
        let sampler = Sampler::start(start, host, buckets.clone())?;
        if control.is_running() {
            let calibration = Calibration {
                target: target.with_endpoint(endpoint),
                start,
                control: control.clone(),
                connections,
                buckets: buckets.clone(),
            };
            // The thread is not joined: a statement may still be running at the end of the replay.
            thread::Builder::new()
                .name("calibration".to_owned())
                .spawn(move || calibration.run())?;
        }
        Ok(Self { control, sampler, buckets, endpoint: endpoint.clone(), processors })
    }

    /// Stops measuring, and returns the series.
    pub(crate) fn finish(mut self) -> MachineSeries {
        self.control.stop();
        self.sampler.stop();
        self.control.wait_until_closed(CLOSE_TIMEOUT);
        MachineSeries {
            bucket_us: MachineSeries::BUCKET_US,
            // Computed here rather than at the start, because resolving a name may take time.
            is_server_local: is_local(&self.endpoint),
            processors: self.processors,
            calibration: CalibrationInfo {
                interval_us: micros(self.control.interval()),
                end: self.control.end(),
            },
            buckets: self.buckets.take(),
        }
    }
}

impl Drop for MachineMonitor {
    fn drop(&mut self) {
        self.control.stop();
    }
}

/// The buckets of the series being recorded, shared by the threads that measure.
#[derive(Clone, Debug, Default)]
struct SharedBuckets(Arc<Mutex<Vec<MachineBucket>>>);

impl SharedBuckets {
    /// Changes the bucket with this index. Does nothing beyond the maximum length of a series.
    fn update(&self, index: usize, change: impl FnOnce(&mut MachineBucket)) {
        if index >= MachineSeries::BUCKETS_MAX {
            return;
        }
        let mut buckets = self.0.lock();
        if buckets.len() <= index {
            buckets.resize(index + 1, MachineBucket::default());
        }
        change(&mut buckets[index]);
    }

    fn take(&self) -> Vec<MachineBucket> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Returns the index of the bucket that contains this time since the start.
fn bucket_index(since_start: Duration) -> usize {
    usize::try_from(micros(since_start) / MachineSeries::BUCKET_US).unwrap_or(usize::MAX)
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Whether a server with this endpoint runs on this host, judging by its address.
fn is_local(endpoint: &Endpoint) -> bool {
    match endpoint {
        Endpoint::Unix { .. } => true,
        Endpoint::Tcp { hostaddr: Some(address), .. } => address.is_loopback(),
        Endpoint::Tcp { host, port, hostaddr: None } => match host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => (host.as_str(), *port).to_socket_addrs().is_ok_and(|addresses| {
                let mut addresses = addresses.peekable();
                addresses.peek().is_some() && addresses.all(|address| address.ip().is_loopback())
            }),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unix_sockets_and_loopback_addresses_are_local() {
        let tcp = |host: &str, hostaddr: Option<&str>| Endpoint::Tcp {
            host: host.to_owned(),
            hostaddr: hostaddr.map(|address| address.parse().unwrap()),
            port: 5432,
        };
        assert!(is_local(&Endpoint::in_directory("/tmp", 5432)));
        for (host, hostaddr) in [
            ("127.0.0.1", None),
            ("::1", None),
            ("localhost", None),
            ("db.example", Some("127.0.0.1")),
        ] {
            assert!(is_local(&tcp(host, hostaddr)), "{host}");
        }
        // Addresses for documentation (RFC 5737), and a name that never has one (RFC 6761).
        for (host, hostaddr) in
            [("192.0.2.1", None), ("localhost", Some("192.0.2.1")), ("host.invalid", None)]
        {
            assert!(!is_local(&tcp(host, hostaddr)), "{host}");
        }
    }

    #[test]
    fn buckets_in_between_are_empty_and_their_number_is_limited() {
        let buckets = SharedBuckets::default();
        buckets.update(2, |bucket| bucket.wakeup_count = Some(1));
        buckets.update(MachineSeries::BUCKETS_MAX, |bucket| bucket.wakeup_count = Some(2));
        let counts: Vec<_> = buckets.take().into_iter().map(|bucket| bucket.wakeup_count).collect();
        assert_eq!(counts, [None, None, Some(1)]);
        assert_eq!(bucket_index(Duration::from_micros(1_999_999)), 1);
        assert_eq!(bucket_index(Duration::from_secs(2)), 2);
    }
}
