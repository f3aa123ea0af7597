//! Finds out which processes blocked a wait for a heavyweight lock. The server does not report them
//! after the wait has ended, so a separate session polls every [`POLL_INTERVAL`].

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, SystemTime},
};

use howdah_collect::{CollectError, MonitorConnection, VIEWS};
use howdah_connect::ConnectTarget;
use parking_lot::Mutex;

/// Time between polls. Each one locks the server's lock tables for a moment, so polling is not more
/// frequent; shorter waits may be missed.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// Maximum number of samples kept per process. They cover some six seconds; waits are reported at
/// most a second after their end.
const SAMPLES_PER_PROCESS_MAX: usize = 32;

/// Recent samples of waiting processes and their blockers.
#[derive(Debug, Default)]
struct BlockerSamples(HashMap<u32, VecDeque<BlockerSample>>);

#[derive(Debug)]
struct BlockerSample {
    at: SystemTime,
    /// Process ids, 0 for a prepared transaction, as `pg_blocking_pids()` returns them.
    blocked_by: String,
}

impl BlockerSamples {
    fn add(&mut self, at: SystemTime, waiting: impl Iterator<Item = (u32, String)>) {
        for (pid, blocked_by) in waiting.filter(|(_, blocked_by)| !blocked_by.is_empty()) {
            let samples = self.0.entry(pid).or_default();
            samples.push_back(BlockerSample { at, blocked_by });
            if samples.len() > SAMPLES_PER_PROCESS_MAX {
                samples.pop_front();
            }
        }
        let is_recent = |sample: &BlockerSample| {
            at.duration_since(sample.at)
                .is_ok_and(|since| since < POLL_INTERVAL * SAMPLES_PER_PROCESS_MAX as u32)
        };
        self.0.retain(|_, samples| samples.back().is_some_and(is_recent));
    }

    /// Returns the processes last seen blocking `pid` during a wait with this end and duration.
    fn blocked_by(&self, pid: u32, ended_at: SystemTime, waited: Duration) -> Option<&str> {
        let started_at = ended_at.checked_sub(waited)?;
        let is_during = |sample: &&BlockerSample| started_at <= sample.at && sample.at <= ended_at;
        self.0.get(&pid)?.iter().rev().find(is_during).map(|sample| &*sample.blocked_by)
    }
}

/// Samples the blockers of waiting processes in a separate session, until finished or dropped.
#[derive(Debug)]
pub(crate) struct BlockerMonitor {
    samples: Arc<Mutex<BlockerSamples>>,
    stop: Sender<()>,
    thread: JoinHandle<Result<(), CollectError>>,
}

impl BlockerMonitor {
    /// Starts polling the server at `target`.
    pub(crate) fn start(target: ConnectTarget) -> Self {
        let samples: Arc<Mutex<BlockerSamples>> = Arc::default();
        let (stop, stopped) = mpsc::channel();
        let shared = Arc::clone(&samples);
        let thread = thread::spawn(move || {
            let mut server = MonitorConnection::connect(&target)?;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(POLL_INTERVAL) {
                // Processes in the reply were waiting when the query was sent.
                let at = SystemTime::now();
                let waiting = waiting(&mut server)?;
                shared.lock().add(at, waiting.into_iter());
            }
            Ok(())
        });
        Self { samples, stop, thread }
    }

    /// Returns the ids of the processes last seen blocking `pid` during a wait with this end and
    /// duration, as in `pg_blocking_pids()`.
    pub(crate) fn blocked_by(
        &self,
        pid: u32,
        ended_at: SystemTime,
        waited: Duration,
    ) -> Option<String> {
        self.samples.lock().blocked_by(pid, ended_at, waited).map(str::to_owned)
    }

    /// Stops polling.
    ///
    /// # Errors
    ///
    /// Connecting or a query failed, which ended the polling earlier.
    pub(crate) fn finish(self) -> Result<(), CollectError> {
        drop(self.stop);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn waiting(server: &mut MonitorConnection) -> Result<Vec<(u32, String)>, CollectError> {
    let view = VIEWS.iter().find(|view| view.name == "waiting").expect("the view exists");
    let Some(reading) = server.read(view)? else { return Ok(Vec::new()) };
    let column = |name| view.column(name).expect("the view has this column");
    let (pid, blocked_by) = (column("pid"), column("blocked_by"));
    let processes = reading.rows.iter().filter_map(|row| {
        Some((row[pid].text()?.parse().ok()?, row[blocked_by].text()?.to_owned()))
    });
    Ok(processes.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sample_belongs_to_the_wait_it_was_taken_in() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mut samples = BlockerSamples::default();
        samples.add(at(10), [(7, "3".to_owned()), (8, String::new())].into_iter());
        samples.add(at(11), [(7, "4 3".to_owned())].into_iter());
        assert_eq!(samples.blocked_by(7, at(12), Duration::from_secs(4)), Some("4 3"));
        assert_eq!(samples.blocked_by(7, at(10), Duration::from_secs(1)), Some("3"));
        assert_eq!(samples.blocked_by(7, at(13), Duration::from_secs(1)), None, "a later wait");
        assert_eq!(samples.blocked_by(8, at(10), Duration::from_secs(1)), None, "not blocked");
        samples.add(at(60), std::iter::empty());
        assert_eq!(samples.blocked_by(7, at(12), Duration::from_secs(4)), None, "long ago");
    }

    #[test]
    fn samples_of_a_long_wait_are_limited() {
        let mut samples = BlockerSamples::default();
        for tenth in 0..1000 {
            let at = SystemTime::UNIX_EPOCH + Duration::from_millis(100 * tenth);
            samples.add(at, [(7, "3".to_owned())].into_iter());
        }
        assert_eq!(samples.0[&7].len(), SAMPLES_PER_PROCESS_MAX);
    }
}
