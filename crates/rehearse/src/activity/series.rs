//! [`ActivitySeries`]: the activity of a server during one run, in buckets of a second.

use std::{collections::BTreeMap, fs, io, path::Path};

use howdah_traffic::Timestamp;
use serde::{Deserialize, Serialize};

/// File name within the folder of a run.
pub(super) const FILE_NAME: &str = "server.json";

/// The `format` in the file.
const FORMAT: &str = "howdah-server-activity";

/// Version of the file's format.
const VERSION: u32 = 1;

/// Maximum size of the file in bytes: several times that of a run of a day.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Length of a bucket in microseconds.
pub(crate) const BUCKET_US: i64 = 1_000_000;

/// The activity of a server during one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct ActivitySeries {
    format: String,
    version: u32,
    /// Start of the first bucket, in microseconds since 1970 by this host's clock.
    pub(crate) started_us: i64,
    /// The buckets. Bucket *n* begins *n* seconds after the start.
    pub(crate) buckets: Vec<ActivityBucket>,
    /// Checkpoints that probes observed; `None` without a readable recording.
    pub(crate) checkpoints: Option<Vec<ObservedCheckpoint>>,
    /// Reasons why figures are missing, for the report.
    pub(crate) notes: Vec<String>,
}

/// The activity in one second. Counters and figures of probes are `None` if they were not measured;
/// `running` and `waiting` are meaningful only if there are samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct ActivityBucket {
    /// Number of samples of wait events.
    pub(crate) samples: u32,
    /// Sessions that executed a statement without waiting, on average.
    pub(crate) running: f64,
    /// Sessions that executed a statement and waited, on average, by class of the wait event.
    pub(crate) waiting: BTreeMap<String, f64>,
    /// Page requests per second that found the page in the buffer cache.
    pub(crate) hits: Option<f64>,
    /// Pages per second that were requested from the operating system.
    pub(crate) reads: Option<f64>,
    /// Bytes per second written to temporary files.
    pub(crate) temp_bytes: Option<f64>,
    /// Bytes per second of WAL.
    pub(crate) wal_bytes: Option<f64>,
    /// Sessions that waited for an extension lock, on average.
    pub(crate) extension_waits: Option<f64>,
    /// Buffers that the clock sweep examined per allocation; `None` also without allocations.
    pub(crate) swept_per_allocation: Option<f64>,
}

/// A checkpoint that probes observed. Times are in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ObservedCheckpoint {
    /// Start of the checkpoint.
    pub(crate) started_us: i64,
    /// Time at which the checkpoint began to sync files, if known.
    pub(crate) sync_us: Option<i64>,
    /// End of the checkpoint.
    pub(crate) ended_us: i64,
}

/// Means of the activity over all seconds of the runs on one side.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ActivityMeans {
    /// Sessions that executed a statement and waited, on average, by class of the wait event;
    /// `None` if they were not sampled.
    pub(crate) waiting: Option<BTreeMap<String, f64>>,
    /// Share of page requests that found the page in the buffer cache; `None` if there were no
    /// requests, or if they were not counted.
    pub(crate) hit_share: Option<f64>,
    /// Bytes per second written to temporary files; `None` if they were not counted.
    pub(crate) temp_bytes: Option<f64>,
    /// Number of checkpoints per recorded run; `None` if no run was recorded by probes.
    pub(crate) checkpoints: Option<f64>,
}

impl ActivitySeries {
    /// Creates an empty series.
    pub(crate) fn new(started: Timestamp) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            started_us: started.as_micros(),
            buckets: Vec::new(),
            checkpoints: None,
            notes: Vec::new(),
        }
    }

    /// Returns the bucket of a time in microseconds since 1970, and creates it if necessary. Times
    /// before the start, or a day or more after it, have none, as after a change of the clock.
    pub(crate) fn bucket_at(&mut self, at_us: i64) -> Option<&mut ActivityBucket> {
        const BUCKETS_MAX: usize = 86_400;
        let since_us = at_us.checked_sub(self.started_us)?;
        let index = usize::try_from(since_us.div_euclid(BUCKET_US)).ok()?;
        if index >= BUCKETS_MAX {
            return None;
        }
        if self.buckets.len() <= index {
            self.buckets.resize_with(index + 1, ActivityBucket::default);
        }
        self.buckets.get_mut(index)
    }

    /// Writes the series to the folder of a run.
    pub(crate) fn write(&self, dir: &Path) -> io::Result<()> {
        let json = serde_json::to_vec(self)?;
        howdah_files::write(&dir.join(FILE_NAME), json)
    }

    /// Reads the series of a run; `None` if there is none, or if the file is unreadable, damaged,
    /// too large or of another version.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let path = dir.join(FILE_NAME);
        if fs::metadata(&path).ok()?.len() > FILE_BYTES_MAX {
            return None;
        }
        let series: Self = serde_json::from_slice(&fs::read(&path).ok()?).ok()?;
        (series.format == FORMAT && series.version == VERSION).then_some(series)
    }
}

impl ActivityMeans {
    /// Computes the means over all seconds of several runs.
    pub(crate) fn over<'a>(runs: impl IntoIterator<Item = &'a ActivitySeries>) -> Self {
        let runs: Vec<_> = runs.into_iter().collect();
        let buckets = || runs.iter().flat_map(|run| &run.buckets);
        let mean = |get: fn(&ActivityBucket) -> Option<f64>| {
            let values: Vec<f64> = buckets().filter_map(get).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let mut waiting = BTreeMap::new();
        let sampled = buckets().filter(|bucket| bucket.samples > 0).count();
        for (class, sessions) in buckets().flat_map(|bucket| &bucket.waiting) {
            *waiting.entry(class.clone()).or_insert(0.0) += sessions / sampled.max(1) as f64;
        }
        let hit_share = mean(|bucket| bucket.hits).zip(mean(|bucket| bucket.reads));
        let recorded: Vec<usize> =
            runs.iter().filter_map(|run| Some(run.checkpoints.as_ref()?.len())).collect();
        Self {
            waiting: (sampled > 0).then_some(waiting),
            hit_share: hit_share
                .filter(|(hits, reads)| hits + reads > 0.0)
                .map(|(hits, reads)| hits / (hits + reads)),
            temp_bytes: mean(|bucket| bucket.temp_bytes),
            checkpoints: (!recorded.is_empty())
                .then(|| recorded.iter().sum::<usize>() as f64 / recorded.len() as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn means_count_only_seconds_with_figures() {
        let bucket = |samples, waiting: &[(&str, f64)], hits, reads| ActivityBucket {
            samples,
            waiting: waiting.iter().map(|(class, value)| ((*class).to_owned(), *value)).collect(),
            hits,
            reads,
            ..ActivityBucket::default()
        };
        let mut series = ActivitySeries::new(Timestamp::from_micros(5_000_000));
        series.buckets = vec![
            bucket(10, &[("Lock", 2.0)], Some(90.0), Some(10.0)),
            bucket(10, &[], Some(50.0), Some(50.0)),
            bucket(0, &[], None, None),
        ];
        let means = ActivityMeans::over([&series]);
        assert_eq!(means.waiting.as_ref().map(|waiting| waiting["Lock"]), Some(1.0));
        assert_eq!(means.hit_share, Some(0.7));
        assert_eq!(means.temp_bytes, None);
        assert_eq!(ActivityMeans::over([]), ActivityMeans::default());
    }

    #[test]
    fn times_outside_the_run_have_no_bucket() {
        let mut series = ActivitySeries::new(Timestamp::from_micros(5_000_000));
        assert!(series.bucket_at(4_999_999).is_none());
        assert!(series.bucket_at(i64::MAX).is_none());
        assert!(series.bucket_at(i64::MIN).is_none());
        series.bucket_at(7_500_000).unwrap().samples = 3;
        assert_eq!(series.buckets.iter().map(|it| it.samples).collect::<Vec<_>>(), [0, 0, 3]);
    }

    #[test]
    fn damaged_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(ActivitySeries::read(dir.path()), None);
        let series = ActivitySeries::new(Timestamp::from_micros(1));
        series.write(dir.path()).unwrap();
        assert_eq!(ActivitySeries::read(dir.path()), Some(series));
        fs::write(dir.path().join(FILE_NAME), b"{\"format\":\"other\"}").unwrap();
        assert_eq!(ActivitySeries::read(dir.path()), None);
    }
}
