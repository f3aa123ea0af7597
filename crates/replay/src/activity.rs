//! [`SessionActivity`]: how many sessions were open and active over time, captured and replayed.

use serde_json::{Value, json};

/// Width of a bucket at first. It doubles when there are too many.
const BUCKET_US: u64 = 1_000_000;

/// Maximum number of buckets.
const BUCKETS_MAX: usize = 1_024;

/// Sessions over the time of a replay, as captured and as replayed. Captured times are those of the
/// schedule.
#[derive(Clone, Debug)]
pub struct SessionActivity {
    bucket_us: u64,
    captured: SessionSeries,
    replayed: SessionSeries,
}

#[derive(Clone, Debug, Default)]
struct SessionSeries {
    /// Sum of the times in which statements ran, in microseconds, by bucket.
    busy_us: Vec<u64>,
    /// Sessions that were opened in a bucket, minus those closed.
    opened: Vec<i64>,
}

impl Default for SessionActivity {
    fn default() -> Self {
        let (captured, replayed) = (SessionSeries::default(), SessionSeries::default());
        Self { bucket_us: BUCKET_US, captured, replayed }
    }
}

impl SessionActivity {
    /// Adds a statement that ran for `us` from `start_us` on, when captured.
    pub(crate) fn record_captured(&mut self, start_us: i64, us: u64) {
        self.make_room(start_us.saturating_add_unsigned(us));
        self.captured.add_busy(self.bucket_us, start_us, us);
    }

    /// Adds a statement that ran for `us` from `start_us` on, when replayed.
    pub(crate) fn record_replayed(&mut self, start_us: i64, us: u64) {
        self.make_room(start_us.saturating_add_unsigned(us));
        self.replayed.add_busy(self.bucket_us, start_us, us);
    }

    /// Adds a session that was opened, or closed if `change` is -1: when captured, and when
    /// replayed, if it was.
    pub(crate) fn record_session(&mut self, change: i64, captured: i64, replayed: Option<i64>) {
        self.make_room(captured.max(replayed.unwrap_or(captured)));
        self.captured.add_session(self.bucket_us, change, captured);
        if let Some(replayed) = replayed {
            self.replayed.add_session(self.bucket_us, change, replayed);
        }
    }

    /// Doubles the width of the buckets until a time is in the last one at most.
    fn make_room(&mut self, until_us: i64) {
        while bucket(self.bucket_us, until_us) >= BUCKETS_MAX {
            self.bucket_us = self.bucket_us.saturating_mul(2);
            for series in [&mut self.captured, &mut self.replayed] {
                series.busy_us = series.busy_us.chunks(2).map(|pair| pair.iter().sum()).collect();
                series.opened = series.opened.chunks(2).map(|pair| pair.iter().sum()).collect();
            }
        }
    }

    /// Returns the average number of statements that ran at once over the whole replay, when
    /// captured and when replayed; `None` for the former if the capture has no durations.
    pub fn averages(&self) -> (Option<f64>, f64) {
        let buckets = self.captured.busy_us.len().max(self.replayed.busy_us.len());
        let total_us = (buckets as u64 * self.bucket_us).max(1) as f64;
        let average = |busy_us: &[u64]| busy_us.iter().sum::<u64>() as f64 / total_us;
        let captured = Some(average(&self.captured.busy_us)).filter(|average| *average > 0.0);
        (captured, average(&self.replayed.busy_us))
    }

    /// Returns all buckets. `active` is the average number of statements that ran at once,
    /// `sessions` the number of open sessions at the end of a bucket.
    pub(crate) fn json(&self) -> Value {
        json!({
            "bucket_s": self.bucket_us as f64 / 1e6,
            "captured": self.captured.json(self.bucket_us),
            "replayed": self.replayed.json(self.bucket_us),
        })
    }
}

impl SessionSeries {
    fn add_busy(&mut self, bucket_us: u64, start_us: i64, us: u64) {
        let start = start_us.max(0).cast_unsigned();
        let end = start_us.saturating_add_unsigned(us).max(0).cast_unsigned();
        let mut from = start;
        while from < end {
            let index = bucket(bucket_us, from.cast_signed());
            let until = end.min((index as u64 + 1).saturating_mul(bucket_us));
            *slot(&mut self.busy_us, index) += until - from;
            from = until;
        }
    }

    fn add_session(&mut self, bucket_us: u64, change: i64, at_us: i64) {
        *slot(&mut self.opened, bucket(bucket_us, at_us)) += change;
    }

    fn json(&self, bucket_us: u64) -> Value {
        let share = |busy_us: &u64| (*busy_us as f64 / bucket_us as f64 * 1e3).round() / 1e3;
        let active: Vec<f64> = self.busy_us.iter().map(share).collect();
        let sessions: Vec<i64> = self
            .opened
            .iter()
            .scan(0, |open, change| {
                *open += change;
                Some(*open)
            })
            .collect();
        json!({ "active": active, "sessions": sessions })
    }
}

fn bucket(bucket_us: u64, at_us: i64) -> usize {
    usize::try_from(at_us.max(0).cast_unsigned() / bucket_us).unwrap_or(usize::MAX)
}

fn slot<T: Clone + Default>(values: &mut Vec<T>, index: usize) -> &mut T {
    if values.len() <= index {
        values.resize(index + 1, T::default());
    }
    &mut values[index]
}

#[test]
fn statements_and_sessions_are_counted_over_time() {
    let mut series = SessionActivity::default();
    series.record_captured(500_000, 1_000_000);
    series.record_replayed(1_500_000, 1_000_000);
    series.record_session(1, -5, Some(200_000));
    series.record_session(1, 1_100_000, None);
    series.record_session(-1, 2_000_000, Some(2_500_000));
    let json = series.json();
    assert_eq!(json["bucket_s"], 1.0);
    assert_eq!(json["captured"]["active"], json!([0.5, 0.5]));
    assert_eq!(json["replayed"]["active"], json!([0.0, 0.5, 0.5]));
    assert_eq!(json["captured"]["sessions"], json!([1, 2, 1]));
    assert_eq!(json["replayed"]["sessions"], json!([1, 1, 0]));
    assert_eq!(series.averages(), (Some(1.0 / 3.0), 1.0 / 3.0));
}

#[test]
fn buckets_widen_for_a_long_replay() {
    let mut series = SessionActivity::default();
    for second in 0..5_000 {
        series.record_replayed(second * 1_000_000, 250_000);
    }
    series.record_session(1, i64::MAX, Some(i64::MAX));
    let json = series.json();
    assert!(series.replayed.busy_us.len() <= BUCKETS_MAX);
    assert!(json["captured"]["sessions"].as_array().unwrap().len() <= BUCKETS_MAX);
    let busy: u64 = series.replayed.busy_us.iter().sum();
    assert_eq!(busy, 5_000 * 250_000);
}
