//! Waits for lightweight locks as samples: how often processes were found waiting. The samples are
//! taken by SQL, or from memory where BPF programs are not permitted.

use std::{
    collections::BTreeMap,
    mem,
    time::{Duration, Instant},
};

use howdah_collect::MonitorConnection;

use super::{SAMPLE_INTERVAL, SqlProbe, SqlSampleError};

/// Samples of waits for lightweight locks, by tranche.
#[derive(Debug, Default)]
pub struct LwLockSamples {
    sampled_at: Option<Instant>,
    interval: BTreeMap<String, SampledTime>,
    all: BTreeMap<String, SampledTime>,
}

/// Sampled waits: their number, and the time that they represent.
#[derive(Clone, Copy, Debug, Default)]
pub struct SampledTime {
    /// Number of waiting processes, summed over all samples.
    pub samples: u64,
    /// Time that the samples represent: for each waiting process, the time since the previous
    /// sample.
    pub time: Duration,
}

impl LwLockSamples {
    /// Adds a sample: the number of waiting processes by tranche. It represents the time since the
    /// previous sample.
    pub fn add(&mut self, now: Instant, waiting: impl IntoIterator<Item = (String, u32)>) {
        let elapsed =
            self.sampled_at.map_or(Duration::ZERO, |at| now.saturating_duration_since(at));
        self.sampled_at = Some(now);
        for (tranche, processes) in waiting {
            for amounts in [&mut self.interval, &mut self.all] {
                let amount = amounts.entry(tranche.clone()).or_default();
                amount.samples += u64::from(processes);
                amount.time += elapsed * processes;
            }
        }
    }

    /// Drains the samples since the last call, by tranche.
    pub fn drain_interval(&mut self) -> BTreeMap<String, SampledTime> {
        mem::take(&mut self.interval)
    }

    /// Returns all samples so far, drained or not, by tranche.
    pub fn tranches(&self) -> &BTreeMap<String, SampledTime> {
        &self.all
    }

    /// Returns the sum over all tranches.
    pub fn total(&self) -> SampledTime {
        self.all.values().fold(SampledTime::default(), |sum, one| SampledTime {
            samples: sum.samples + one.samples,
            time: sum.time + one.time,
        })
    }
}

impl SqlProbe for LwLockSamples {
    const LIMITATION: &'static str = "no single waits and durations: these are samples, 10 per second, and the \
        time they stand for";
    const INTERVAL: Option<Duration> = Some(SAMPLE_INTERVAL);

    fn sample(&mut self, server: &mut MonitorConnection) -> Result<(), SqlSampleError> {
        let counts = server.waits().map_err(SqlSampleError::reading("pg_stat_activity"))?;
        let waits = counts.iter().filter_map(|count| {
            let wait = count.wait.as_ref().filter(|wait| &*wait.class == "LWLock")?;
            Some((wait.event.to_string(), count.sessions))
        });
        self.add(Instant::now(), waits);
        Ok(())
    }
}

#[test]
fn sample_covers_time_since_previous_one() {
    let (mut locks, now) = (LwLockSamples::default(), Instant::now());
    locks.add(now, [("WALWrite".to_owned(), 2)]);
    locks.add(now + SAMPLE_INTERVAL, [("WALWrite".to_owned(), 3), ("ProcArray".to_owned(), 1)]);
    let of = |name: &str| locks.all[name];
    assert_eq!((of("WALWrite").samples, of("WALWrite").time), (5, 3 * SAMPLE_INTERVAL));
    assert_eq!(locks.total().time, 4 * SAMPLE_INTERVAL);
}
