//! Computes the charts over the time of the runs, from outcomes, measurements of the machine and
//! the activity of the servers.

use std::path::Path;

use howdah_dataset::{Disposition, MachineBucket, MachineSeries, ReplayOutcome, ReplayRun};
use howdah_report::rehearsal::{
    RunSummary,
    html::{CheckpointSpan, PanelUnit, TimeLines, TimePanel},
};

use crate::{
    activity::{Activities, ActivityBucket, ActivitySeries},
    error::RehearsalError,
};

/// Maximum number of buckets for the longest run, because a screen does not have more pixels.
const BUCKETS_MAX: u64 = 1_500;

/// Maximum number of values that a [`BoundedSample`] stores.
const DURATIONS_MAX: usize = 2_048;

/// Returns the charts of the runs in `dir`, in the order of `runs`.
pub(crate) fn time_lines(
    dir: &Path,
    runs: &[RunSummary],
    activities: &Activities,
) -> Result<TimeLines, RehearsalError> {
    let longest = runs.iter().map(|run| run.finished.saturating_since(run.started)).max();
    let bucket_s = longest.map_or(1, |longest| longest.as_secs().div_ceil(BUCKETS_MAX).max(1));
    let mut buckets = Vec::new();
    let mut notes = Vec::new();
    let mut checkpoints = Vec::new();
    for ((position, run), activity) in runs.iter().enumerate().zip(activities.iter()) {
        let replayed = ReplayRun::open(&dir.join(&run.name)).map_err(RehearsalError::Run)?;
        let machine = replayed.machine().map_err(RehearsalError::Run)?;
        match &machine {
            None => notes.push(format!("{}: the machine was not measured.", run.name)),
            Some(series) => {
                let end = series.calibration.end.as_ref();
                notes.extend(end.map(|end| {
                    format!("{}: the calibration statement ended: {}.", run.name, end.message)
                }));
            }
        }
        if let Some(activity) = activity {
            notes.extend(activity.notes.iter().map(|note| format!("{}: {note}.", run.name)));
            checkpoints.extend(checkpoint_spans(position, run, activity));
        }
        let activity = activity.map(|series| (series, series.started_us - run.started.as_micros()));
        buckets.push(run_buckets(&replayed, machine.as_ref(), activity, bucket_s)?);
    }
    let panels = PANELS.iter().filter_map(|panel| {
        let values: Vec<Vec<Option<f64>>> = buckets
            .iter()
            .map(|run| run.iter().map(|bucket| (panel.value)(bucket, bucket_s as f64)).collect())
            .collect();
        let is_empty = values.iter().flatten().all(|value| value.is_none_or(|value| value == 0.0));
        (panel.is_always_shown || !is_empty).then(|| TimePanel {
            group: panel.group.to_owned(),
            title: panel.title.to_owned(),
            unit: panel.unit,
            values,
        })
    });
    Ok(TimeLines { bucket_s: bucket_s as f64, panels: panels.collect(), checkpoints, notes })
}

/// Returns the checkpoints during a run, in seconds since its start.
fn checkpoint_spans(
    position: usize,
    run: &RunSummary,
    activity: &ActivitySeries,
) -> Vec<CheckpointSpan> {
    let (start_us, end_us) = (run.started.as_micros(), run.finished.as_micros());
    let seconds = |at_us: i64| (at_us.clamp(start_us, end_us) - start_us) as f64 / 1e6;
    let observed = activity.checkpoints.iter().flatten();
    let during = observed.filter(|it| it.ended_us > start_us && it.started_us < end_us);
    during
        .map(|checkpoint| CheckpointSpan {
            run: position,
            from_s: seconds(checkpoint.started_us),
            sync_s: checkpoint.sync_us.map(seconds),
            to_s: seconds(checkpoint.ended_us),
        })
        .collect()
}

/// A chart and the figure that it shows.
struct Panel {
    group: &'static str,
    title: &'static str,
    unit: PanelUnit,
    /// Whether the chart is drawn even if all its values are zero or missing.
    is_always_shown: bool,
    /// Computes the value of a bucket, given the bucket's length in seconds.
    value: fn(&Bucket, f64) -> Option<f64>,
}

const fn panel(
    group: &'static str,
    title: &'static str,
    unit: PanelUnit,
    value: fn(&Bucket, f64) -> Option<f64>,
) -> Panel {
    Panel { group, title, unit, is_always_shown: false, value }
}

/// The charts, from top to bottom.
const PANELS: &[Panel] = &[
    Panel {
        is_always_shown: true,
        ..panel("Workload", "Throughput", PanelUnit::PerSecond, |bucket, length_s| {
            Some(bucket.executions as f64 / length_s)
        })
    },
    panel("Workload", "Failed statements", PanelUnit::PerSecond, |bucket, length_s| {
        Some(bucket.failed as f64 / length_s)
    }),
    panel("Latency", "Median", PanelUnit::Micros, |bucket, _| bucket.durations.quantile(0.5)),
    panel("Latency", "95th percentile", PanelUnit::Micros, |bucket, _| {
        bucket.durations.quantile(0.95)
    }),
    panel("Latency", "99th percentile", PanelUnit::Micros, |bucket, _| {
        bucket.durations.quantile(0.99)
    }),
    panel("Fidelity", "Schedule error, 99th percentile", PanelUnit::Micros, |bucket, _| {
        bucket.schedule_errors.quantile(0.99)
    }),
    panel("Fidelity", "Dependency lag, 99th percentile", PanelUnit::Micros, |bucket, _| {
        bucket.dependency_lags.quantile(0.99)
    }),
    panel("Server", "Sessions executing without waiting", PanelUnit::Number, |bucket, _| {
        bucket.server.mean_of(|it| (it.samples > 0).then_some(it.running))
    }),
    panel("Server", "Sessions waiting for locks", PanelUnit::Number, |bucket, _| {
        bucket.server.waiting(&["Lock"])
    }),
    panel("Server", "Sessions waiting for lightweight locks", PanelUnit::Number, |bucket, _| {
        bucket.server.waiting(&["LWLock", "BufferPin", "Buffer"])
    }),
    panel("Server", "Sessions waiting for I/O", PanelUnit::Number, |bucket, _| {
        bucket.server.waiting(&["IO"])
    }),
    panel("Server", "Sessions waiting for other processes", PanelUnit::Number, |bucket, _| {
        bucket.server.waiting(&["IPC", "Timeout", "Extension"])
    }),
    panel("Server", "Sessions waiting to extend a relation", PanelUnit::Number, |bucket, _| {
        bucket.server.mean_of(|it| it.extension_waits)
    }),
    panel("Server", "Buffer cache hits", PanelUnit::Share, |bucket, _| bucket.server.hit_share()),
    panel("Server", "Pages read", PanelUnit::PerSecond, |bucket, _| {
        bucket.server.mean_of(|it| it.reads)
    }),
    panel("Server", "Buffers examined per allocation", PanelUnit::Number, |bucket, _| {
        bucket.server.mean_of(|it| it.swept_per_allocation)
    }),
    panel("Server", "Temporary files", PanelUnit::BytesPerSecond, |bucket, _| {
        bucket.server.mean_of(|it| it.temp_bytes)
    }),
    panel("Server", "WAL", PanelUnit::BytesPerSecond, |bucket, _| {
        bucket.server.mean_of(|it| it.wal_bytes)
    }),
    panel("Machine", "Calibration statement", PanelUnit::Micros, |bucket, _| {
        bucket.machine.mean_of(|it| it.calibration_p50_us)
    }),
    panel("Machine", "Processors in use", PanelUnit::Share, |bucket, _| {
        bucket.machine.share(|it| it.cpu_busy_us, |it| it.cpu_total_us)
    }),
    panel("Machine", "Tasks waiting for a processor", PanelUnit::Share, |bucket, _| {
        bucket.machine.share(|it| it.cpu_some_us, |it| it.interval_us)
    }),
    panel("Machine", "Tasks waiting for a disk", PanelUnit::Share, |bucket, _| {
        bucket.machine.share(|it| it.io_some_us, |it| it.interval_us)
    }),
    panel("Machine", "Stolen by the hypervisor", PanelUnit::Share, |bucket, _| {
        bucket.machine.share(|it| it.cpu_steal_us, |it| it.cpu_total_us)
    }),
];

/// The figures of one bucket of a run.
#[derive(Default)]
struct Bucket {
    executions: u64,
    failed: u64,
    durations: BoundedSample,
    schedule_errors: BoundedSample,
    dependency_lags: BoundedSample,
    machine: MachineBuckets,
    server: ServerBuckets,
}

fn run_buckets(
    run: &ReplayRun,
    machine: Option<&MachineSeries>,
    activity: Option<(&ActivitySeries, i64)>,
    length_s: u64,
) -> Result<Vec<Bucket>, RehearsalError> {
    let mut buckets = TimeBuckets { length_us: length_s * 1_000_000, buckets: Vec::new() };
    for outcome in run.outcomes() {
        let outcome = outcome.map_err(RehearsalError::Run)?;
        if let (true, Some(sent_us)) = (outcome.kind.is_execution(), outcome.sent_us) {
            buckets.at(u64::try_from(sent_us).unwrap_or(0)).record(&outcome);
        }
    }
    if let Some(series) = machine {
        for (number, measured) in (0..).zip(&series.buckets) {
            buckets.at(number * series.bucket_us).machine.0.push(*measured);
        }
    }
    if let Some((series, offset_us)) = activity {
        for (number, observed) in (0..).zip(&series.buckets) {
            let at_us = offset_us.saturating_add(number * 1_000_000).max(0);
            buckets.at(at_us.cast_unsigned()).server.0.push(observed.clone());
        }
    }
    Ok(buckets.buckets)
}

struct TimeBuckets {
    length_us: u64,
    buckets: Vec<Bucket>,
}

impl TimeBuckets {
    /// Returns the bucket of a time in microseconds since the start of the run. Times far beyond
    /// the end, as after a change of the clock, are counted in one last bucket.
    fn at(&mut self, at_us: u64) -> &mut Bucket {
        let index = (at_us / self.length_us).min(2 * BUCKETS_MAX) as usize;
        if self.buckets.len() <= index {
            self.buckets.resize_with(index + 1, Bucket::default);
        }
        &mut self.buckets[index]
    }
}

impl Bucket {
    fn record(&mut self, outcome: &ReplayOutcome) {
        self.executions += 1;
        self.schedule_errors.push(outcome.schedule_error_us);
        self.dependency_lags.push(outcome.dependency_lag_us);
        match outcome.disposition {
            Disposition::Done => self.durations.push(outcome.service_us),
            _ => self.failed += 1,
        }
    }
}

/// A sample of values in bounded memory: at first all values, then every second, every fourth and
/// so on.
struct BoundedSample {
    values: Vec<u64>,
    /// One of every `stride` values is stored.
    stride: u64,
    count: u64,
}

impl Default for BoundedSample {
    fn default() -> Self {
        Self { values: Vec::new(), stride: 1, count: 0 }
    }
}

impl BoundedSample {
    fn push(&mut self, value: Option<u64>) {
        let Some(value) = value else { return };
        if self.count.is_multiple_of(self.stride) {
            if self.values.len() == DURATIONS_MAX {
                let mut index = 0;
                self.values.retain(|_| {
                    index += 1;
                    index % 2 == 1
                });
                self.stride *= 2;
            }
            self.values.push(value);
        }
        self.count += 1;
    }

    /// Returns the value at a share of the sorted values, by nearest rank; `None` without values.
    fn quantile(&self, share: f64) -> Option<f64> {
        let mut sorted = self.values.clone();
        sorted.sort_unstable();
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).map(|value| *value as f64)
    }
}

/// The measurements of the machine that fall into one bucket.
#[derive(Default)]
struct MachineBuckets(Vec<MachineBucket>);

impl MachineBuckets {
    fn mean_of(&self, get: fn(&MachineBucket) -> Option<u64>) -> Option<f64> {
        let values: Vec<u64> = self.0.iter().filter_map(get).collect();
        (!values.is_empty()).then(|| values.iter().sum::<u64>() as f64 / values.len() as f64)
    }

    /// Returns the sum of one column divided by the sum of another.
    fn share(
        &self,
        part: fn(&MachineBucket) -> Option<u64>,
        whole: fn(&MachineBucket) -> Option<u64>,
    ) -> Option<f64> {
        let pairs = self.0.iter().filter_map(|bucket| Some((part(bucket)?, whole(bucket)?)));
        let (part, whole) = pairs.fold((0, 0), |sum, pair| (sum.0 + pair.0, sum.1 + pair.1));
        (whole > 0).then(|| (part as f64 / whole as f64).clamp(0.0, 1.0))
    }
}

/// The activity of the server in the seconds that fall into one bucket.
#[derive(Default)]
struct ServerBuckets(Vec<ActivityBucket>);

impl ServerBuckets {
    fn mean_of(&self, get: fn(&ActivityBucket) -> Option<f64>) -> Option<f64> {
        let values: Vec<f64> = self.0.iter().filter_map(get).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// Returns the number of sessions that waited in one of the given classes, on average; `None`
    /// without samples.
    fn waiting(&self, classes: &[&str]) -> Option<f64> {
        let sampled: Vec<_> = self.0.iter().filter(|bucket| bucket.samples > 0).collect();
        let waiting = |bucket: &&ActivityBucket| -> f64 {
            // Not `sum`, which is −0 without values.
            classes
                .iter()
                .filter_map(|class| bucket.waiting.get(*class))
                .fold(0.0, |sum, it| sum + it)
        };
        let sum = sampled.iter().map(waiting).fold(0.0, |sum, it| sum + it);
        (!sampled.is_empty()).then(|| sum / sampled.len() as f64)
    }

    fn hit_share(&self) -> Option<f64> {
        let (hits, reads) = self.mean_of(|it| it.hits).zip(self.mean_of(|it| it.reads))?;
        (hits + reads > 0.0).then(|| hits / (hits + reads))
    }
}

#[test]
fn sample_is_bounded_and_evenly_spread() {
    let mut sample = BoundedSample::default();
    (0..100_000).for_each(|value| sample.push(Some(value)));
    sample.push(None);
    assert!(sample.values.len() <= DURATIONS_MAX && sample.values.len() > DURATIONS_MAX / 4);
    let median = sample.quantile(0.5).expect("values");
    assert!((median - 50_000.0).abs() < 500.0, "{median}");
    assert_eq!(BoundedSample::default().quantile(0.5), None);
}

#[test]
fn shares_leave_out_buckets_that_were_not_measured() {
    let measured = |busy, total| MachineBucket {
        cpu_busy_us: busy,
        cpu_total_us: total,
        ..MachineBucket::default()
    };
    let buckets = MachineBuckets(vec![
        measured(Some(1_000), Some(2_000)),
        measured(None, Some(9_000)),
        measured(Some(0), Some(2_000)),
    ]);
    assert_eq!(buckets.share(|it| it.cpu_busy_us, |it| it.cpu_total_us), Some(0.25));
    assert_eq!(buckets.share(|it| it.io_some_us, |it| it.interval_us), None);
}
