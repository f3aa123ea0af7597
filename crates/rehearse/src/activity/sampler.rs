//! Reads wait events and counters with SQL.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use howdah_collect::{CollectError, MonitorConnection, Overview, WaitCounts};
use howdah_traffic::Timestamp;

use super::series::{ActivityBucket, ActivitySeries, BUCKET_US};

/// Time between samples of wait events.
pub(super) const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// A connection that samples a server's wait events and, once a second, its counters.
pub(super) struct ActivitySampler {
    connection: MonitorConnection,
    counters: Option<Overview>,
    next_counters: Instant,
    current: SampledSecond,
}

/// The samples of the second in progress.
#[derive(Default)]
struct SampledSecond {
    /// Index of the second's bucket in the series, from 0.
    bucket: i64,
    samples: u32,
    running: u64,
    waiting: BTreeMap<String, u64>,
}

impl ActivitySampler {
    pub(super) fn new(connection: MonitorConnection) -> Self {
        Self {
            connection,
            counters: None,
            next_counters: Instant::now(),
            current: SampledSecond::default(),
        }
    }

    /// Samples the wait events and, once a second, reads the counters.
    pub(super) fn sample(&mut self, series: &mut ActivitySeries) -> Result<(), CollectError> {
        let waits = self.connection.waits()?;
        let at_us = Timestamp::now().as_micros();
        let bucket = (at_us - series.started_us).div_euclid(BUCKET_US);
        if bucket != self.current.bucket {
            self.finish_second(series);
            self.current.bucket = bucket;
        }
        self.current.add(&waits);
        if Instant::now() >= self.next_counters {
            // Seconds that a slow server made late are left out.
            while self.next_counters <= Instant::now() {
                self.next_counters += Duration::from_secs(1);
            }
            let now = self.connection.overview()?;
            if let Some(before) = self.counters.replace(now.clone())
                && let Some(bucket) = series.bucket_at(at_us - BUCKET_US / 2)
            {
                set_rates(bucket, &before, &now);
            }
        }
        Ok(())
    }

    /// Stores the means of the second in progress in its bucket.
    pub(super) fn finish_second(&mut self, series: &mut ActivitySeries) {
        let current = std::mem::take(&mut self.current);
        let at_us = series.started_us + current.bucket * BUCKET_US;
        if current.samples == 0 {
            return;
        }
        if let Some(bucket) = series.bucket_at(at_us) {
            let mean = |sum: u64| sum as f64 / f64::from(current.samples);
            bucket.samples = current.samples;
            bucket.running = mean(current.running);
            bucket.waiting =
                current.waiting.into_iter().map(|(class, sum)| (class, mean(sum))).collect();
        }
    }
}

impl SampledSecond {
    fn add(&mut self, waits: &WaitCounts) {
        self.samples += 1;
        for count in waits.iter() {
            let sum = match &count.wait {
                None => &mut self.running,
                Some(wait) => self.waiting.entry(wait.class.to_string()).or_default(),
            };
            *sum += u64::from(count.sessions);
        }
    }
}

fn set_rates(bucket: &mut ActivityBucket, before: &Overview, now: &Overview) {
    bucket.hits = now.rate(before, |it| Some(it.blocks_hit));
    bucket.reads = now.rate(before, |it| Some(it.blocks_read));
    bucket.temp_bytes = now.rate(before, |it| Some(it.temp_bytes));
    bucket.wal_bytes = now.rate(before, |it| it.wal_bytes);
}
