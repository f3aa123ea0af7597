//! Records checkpoints, extension locks and the clock sweep of a server on this host.

use std::{path::Path, time::Instant};

use howdah_collect::ServerInfo;
use howdah_inspect::RunningServer;
use howdah_probe::{
    checkpoints::CheckpointPhase,
    recorder::{
        FlightRecord, FlightRecorder, FlightRecording, PhaseEnded, RecordedSecond, RecorderOptions,
        Thresholds,
    },
};

use super::series::{ActivitySeries, ObservedCheckpoint};

/// Samples per second. Checkpoints and the clock sweep need few, and each sample costs processor
/// time.
const RATE: u32 = 20;

/// Maximum difference, in seconds, between the start times of a server that SQL and its lock file
/// report.
const START_TOLERANCE_S: i64 = 2;

/// Starts to record the server described by `info` into the file `path`, if the server runs on this
/// host. `Err` is the reason why it cannot be recorded, for the report.
pub(super) fn start(info: &ServerInfo, path: &Path) -> Result<FlightRecorder, String> {
    let unavailable = |reason: &str| format!("checkpoints and buffers were not observed: {reason}");
    let Some(data_dir) = &info.data_directory else {
        return Err(unavailable("the role may not see the setting data_directory"));
    };
    let server = RunningServer::in_data_dir(data_dir)
        .map_err(|_| unavailable("the server does not run on this host"))?;
    // Another server may have a data directory of the same name here.
    let lock_file = server.lock_file().map_err(|error| unavailable(&error.to_string()))?;
    let started_s = info.started_us.div_euclid(1_000_000);
    if (lock_file.started_at_s - started_s).abs() > START_TOLERANCE_S {
        return Err(unavailable("the server does not run on this host"));
    }
    let options = RecorderOptions {
        rate: RATE,
        // An episode would observe one side more closely than the other.
        thresholds: Thresholds::NONE,
        ..RecorderOptions::default()
    };
    FlightRecorder::start(&server, path, options, None, Instant::now())
        .map_err(|error| unavailable(&error.to_string()))
}

/// Adds the recording in the file `path` to the series, or a note if the file cannot be read.
pub(super) fn add_recording(series: &mut ActivitySeries, path: &Path) {
    let recording = match FlightRecording::open(path) {
        Ok(recording) => recording,
        Err(error) => return series.notes.push(format!("the recording is lost: {error}")),
    };
    let mut checkpoints = Vec::new();
    let mut sync_us = None;
    for record in &recording.records {
        match record {
            FlightRecord::Second(second) => add_second(series, second),
            FlightRecord::PhaseEnded(ended) if ended.phase == CheckpointPhase::Sync => {
                sync_us = Some(ended.at_us);
            }
            FlightRecord::PhaseEnded(ended) if ended.phase == CheckpointPhase::Checkpoint => {
                let sync_us = sync_us.take().filter(|at_us| *at_us >= ended.at_us);
                checkpoints.push(observed(ended, sync_us));
            }
            _ => {}
        }
    }
    series.checkpoints = Some(checkpoints);
}

fn observed(ended: &PhaseEnded, sync_us: Option<i64>) -> ObservedCheckpoint {
    let duration_us = i64::try_from(ended.duration_us).unwrap_or(i64::MAX);
    ObservedCheckpoint {
        started_us: ended.at_us,
        sync_us,
        ended_us: ended.at_us.saturating_add(duration_us),
    }
}

fn add_second(series: &mut ActivitySeries, second: &RecordedSecond) {
    let Some(bucket) = series.bucket_at(second.at_us) else { return };
    if let Some(extension) = &second.extension {
        let waited_us = extension.waits.total().as_micros();
        bucket.extension_waits = Some(waited_us as f64 / second.elapsed_us.max(1) as f64);
    }
    if let Some(sweep) = second.sweep
        && sweep.allocations > 0
    {
        bucket.swept_per_allocation = Some(sweep.examined as f64 / sweep.allocations as f64);
    }
}
