//! Executes a fixed statement on the target at regular intervals.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::{Client, ConnectTarget};
use howdah_dataset::{CalibrationEndReason, MachineBucket};
use howdah_stats::Gauge;

use super::{CLOSE_TIMEOUT, SharedBuckets, bucket_index, control::CalibrationControl, micros};

/// The `application_name` of the connection.
const APPLICATION_NAME: &str = "howdah-calibration";

/// The calibration statement, which takes about a millisecond of one processor. It reads no table
/// and, unlike a function in `FROM`, materializes no rows, so it does not depend on the buffer
/// cache or `work_mem`.
const CALIBRATION_SQL: &str = "\
select pg_catalog.count(*) from (select pg_catalog.generate_series(1, 10000)) as numbers";

/// Maximum duration of each attempt to log in.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum duration of one execution; a slower one ends the calibration.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

/// The calibration of one replay.
pub(super) struct Calibration {
    /// The target, with one endpoint.
    pub(super) target: ConnectTarget,
    /// Start of the replay.
    pub(super) start: Instant,
    pub(super) control: Arc<CalibrationControl>,
    /// Number of connections that the replay has open.
    pub(super) connections: Gauge,
    pub(super) buckets: SharedBuckets,
}

impl Calibration {
    /// Executes the statement until the calibration ends. The first execution is one interval after
    /// the start: then it is known how many sessions log in at once, and a replay that has already
    /// ended is not disturbed.
    pub(super) fn run(self) {
        let may_start = self.wait_until(self.start + self.control.interval());
        if !may_start || !self.control.start_connection() {
            return;
        }
        if let Err((reason, message)) = self.execute_repeatedly() {
            tracing::debug!(%message, "the calibration ended");
            self.control.finish(reason, message);
        }
        self.control.end_connection();
    }

    fn execute_repeatedly(&self) -> Result<(), (CalibrationEndReason, String)> {
        let target = self.target.with_application_name(APPLICATION_NAME);
        let mut client = Client::connect(&target.with_connect_timeout(Some(LOGIN_TIMEOUT)))
            .map_err(|error| (CalibrationEndReason::LoginFailed, error.to_string()))?;
        client.set_timeout(Some(STATEMENT_TIMEOUT));
        let mut durations = BucketDurations::default();
        let mut next = Instant::now();
        while self.wait_until(next) {
            let started = Instant::now();
            client
                .query(CALIBRATION_SQL)
                .map_err(|error| (CalibrationEndReason::StatementFailed, error.to_string()))?;
            let ended = Instant::now();
            let index = bucket_index(started.saturating_duration_since(self.start));
            durations.record(index, micros(ended - started));
            self.buckets.update(index, |bucket| durations.write(bucket));
            self.control.record_execution(ended.saturating_duration_since(self.start));
            // Missed executions are skipped: making up for them would keep a busy target busy.
            while next <= ended {
                next += self.control.interval();
            }
        }
        client.close_and_wait(CLOSE_TIMEOUT);
        Ok(())
    }

    /// Waits until `deadline`; returns false if the calibration must end. Ends it if the
    /// connections of the replay leave no room for it.
    fn wait_until(&self, deadline: Instant) -> bool {
        if !self.control.wait_until(deadline) {
            return false;
        }
        // Sessions that have ended in the capture may still be connected in the replay.
        let has_room = self.control.has_room_for(self.connections.value() as usize);
        if !has_room {
            self.control.release_slot();
        }
        has_room
    }
}

/// Durations of the executions in the latest bucket.
#[derive(Debug, Default)]
struct BucketDurations {
    index: usize,
    sorted_us: Vec<u64>,
}

impl BucketDurations {
    fn record(&mut self, index: usize, duration_us: u64) {
        if index != self.index {
            self.index = index;
            self.sorted_us.clear();
        }
        let position = self.sorted_us.partition_point(|other| *other <= duration_us);
        self.sorted_us.insert(position, duration_us);
    }

    fn write(&self, bucket: &mut MachineBucket) {
        bucket.calibration_p50_us = median(&self.sorted_us);
        bucket.calibration_max_us = self.sorted_us.last().copied();
        bucket.calibration_count = Some(self.sorted_us.len() as u64);
    }
}

/// Returns the middle value, or the mean of the two middle values; `None` if there are none.
fn median(sorted: &[u64]) -> Option<u64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some(lower.midpoint(upper))
}

#[test]
fn durations_are_summed_up_per_bucket() {
    let mut durations = BucketDurations::default();
    let mut bucket = MachineBucket::default();
    for duration_us in [900, 3_400, 1_000, 1_200] {
        durations.record(0, duration_us);
    }
    durations.write(&mut bucket);
    assert_eq!(bucket.calibration_p50_us, Some(1_100));
    assert_eq!(bucket.calibration_max_us, Some(3_400));
    assert_eq!(bucket.calibration_count, Some(4));
    durations.record(3, 700);
    durations.write(&mut bucket);
    assert_eq!(bucket.calibration_p50_us, Some(700));
    assert_eq!(bucket.calibration_count, Some(1));
}
