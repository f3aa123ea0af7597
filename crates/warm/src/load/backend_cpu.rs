//! The CPU time that the server spends for our sessions, measured where it runs on this host.
//!
//! `/proc/PID/schedstat` counts nanoseconds (sched-stats.rst), `/proc/PID/stat` ticks of 10 ms.

use std::{
    fs::File,
    os::unix::fs::FileExt as _,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use howdah_connect::Client;
use howdah_inspect::OsProcess;

/// Measures the CPU time of a session's backend. The open file belongs to this process: once the
/// backend has exited, reading fails, even if another process has its id.
#[derive(Debug)]
pub(super) struct BackendCpu {
    file: File,
    last: Duration,
}

impl BackendCpu {
    /// Opens the statistics of the client's backend, which must be a child of `postmaster`:
    /// through a connection pooler, the client's process id is that of another process or of none.
    pub(super) fn open(client: &Client, postmaster: OsProcess) -> Option<Self> {
        let pid = client.process_id().and_then(|pid| u32::try_from(pid).ok())?;
        let parent = OsProcess::from_pid(pid).ok()?.parent().ok()??;
        if parent != postmaster {
            return None;
        }
        let file = File::open(format!("/proc/{pid}/schedstat")).ok()?;
        let backend = Self { file, last: Duration::ZERO };
        backend.read().is_some().then_some(backend)
    }

    /// Returns the CPU time since the last call, or since the backend was started.
    pub(super) fn lap(&mut self) -> Option<Duration> {
        let now = self.read()?;
        Some(now.saturating_sub(std::mem::replace(&mut self.last, now)))
    }

    fn read(&self) -> Option<Duration> {
        let mut text = [0; 64];
        let bytes = self.file.read_at(&mut text, 0).ok()?;
        parse_schedstat(std::str::from_utf8(&text[..bytes]).ok()?)
    }
}

/// Parses the first field: nanoseconds on a CPU. Zero means that the kernel does not count them,
/// because a backend that served a query has used some.
fn parse_schedstat(text: &str) -> Option<Duration> {
    let nanos = text.split_ascii_whitespace().next()?.parse().ok()?;
    (nanos > 0).then(|| Duration::from_nanos(nanos))
}

/// A sum of CPU times that several threads add to.
#[derive(Debug, Default)]
pub(super) struct CpuSum {
    nanos: AtomicU64,
    is_estimated: AtomicBool,
}

impl CpuSum {
    /// Adds a measured time, or an estimate if it could not be measured.
    pub(super) fn add(&self, measured: Option<Duration>, estimate: impl FnOnce() -> Duration) {
        let time = measured.unwrap_or_else(|| {
            self.is_estimated.store(true, Ordering::Relaxed);
            estimate()
        });
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.nanos.fetch_add(nanos, Ordering::Relaxed);
    }

    /// Returns the sum.
    pub(super) fn time(&self) -> Duration {
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }

    /// Whether all of the sum was measured.
    pub(super) fn is_measured(&self) -> bool {
        !self.is_estimated.load(Ordering::Relaxed)
    }
}

#[test]
fn schedstat_starts_with_the_cpu_time() {
    assert_eq!(parse_schedstat("1234567 89 10\n"), Some(Duration::from_nanos(1_234_567)));
    assert_eq!(parse_schedstat("0 0 0\n"), None);
    assert_eq!(parse_schedstat(""), None);
}
