//! [`ActivityMonitor`]: threads that observe a server during one run.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use howdah_collect::MonitorConnection;
use howdah_connect::ConnectTarget;
use howdah_probe::recorder::FlightRecorder;
use howdah_traffic::Timestamp;

use super::{
    probes,
    sampler::{ActivitySampler, SAMPLE_INTERVAL},
    series::{self, ActivitySeries},
};
use crate::sql::APPLICATION_NAME;

/// File name of the flight recording within the folder of a run.
const RECORDING: &str = "server.flight";

/// Longest sleep of the recorder's thread between checks of the stop flag.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// The threads that observe a server during one run, until [`Self::finish`].
pub(crate) struct ActivityMonitor {
    stop: Arc<AtomicBool>,
    sampler: JoinHandle<ActivitySeries>,
    recorder: Option<JoinHandle<()>>,
    recording: PathBuf,
}

impl ActivityMonitor {
    /// Removes the recording and the series of an earlier attempt from `dir`, the folder of a run.
    pub(crate) fn remove_files(dir: &Path) -> io::Result<()> {
        for name in [RECORDING, series::FILE_NAME] {
            match fs::remove_file(dir.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Starts to observe the server. `dir` is the folder of the run, for the recording. A note in
    /// the series names what cannot be observed, and why.
    pub(crate) fn start(target: &ConnectTarget, dir: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let recording = dir.join(RECORDING);
        let mut series = ActivitySeries::new(Timestamp::now());
        let mut recorder = None;
        let mut sampler = None;
        match MonitorConnection::connect(&target.with_application_name(APPLICATION_NAME)) {
            Ok(connection) => {
                match probes::start(connection.info(), &recording) {
                    Ok(started) => {
                        let stop = stop.clone();
                        recorder = Some(thread::spawn(move || record(started, &stop)));
                    }
                    Err(reason) => series.notes.push(reason),
                }
                if connection.privileges().can_read_all_stats {
                    sampler = Some(ActivitySampler::new(connection));
                } else {
                    series.notes.push(
                        "waits and counters were not observed: the role lacks pg_read_all_stats"
                            .to_owned(),
                    );
                }
            }
            Err(error) => series.notes.push(format!("the server was not observed: {error}")),
        }
        let stopped = stop.clone();
        let sampler = thread::spawn(move || {
            if let Some(mut sampler) = sampler {
                sample(&mut sampler, &mut series, &stopped);
            }
            series
        });
        Self { stop, sampler, recorder, recording }
    }

    /// Stops observing, and returns what was observed.
    pub(crate) fn finish(self) -> ActivitySeries {
        self.stop.store(true, Ordering::Relaxed);
        self.sampler.thread().unpark();
        let mut series =
            self.sampler.join().unwrap_or_else(|_| ActivitySeries::new(Timestamp::now()));
        if let Some(recorder) = self.recorder {
            recorder.thread().unpark();
            match recorder.join() {
                Ok(()) => probes::add_recording(&mut series, &self.recording),
                Err(_) => series.notes.push("the recording stopped early".to_owned()),
            }
        }
        series
    }
}

fn sample(sampler: &mut ActivitySampler, series: &mut ActivitySeries, stop: &AtomicBool) {
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        if let Err(error) = sampler.sample(series) {
            series.notes.push(format!("observing the server ended early: {error}"));
            break;
        }
        // Samples that are too late are left out.
        let now = Instant::now();
        while next <= now {
            next += SAMPLE_INTERVAL;
        }
        thread::park_timeout(next - now);
    }
    sampler.finish_second(series);
}

fn record(mut recorder: FlightRecorder, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let wait = recorder.next_tick_at().saturating_duration_since(Instant::now());
        thread::park_timeout(wait.min(SLEEP_MAX));
        if recorder.next_tick_at() <= Instant::now() {
            recorder.tick(Instant::now());
        }
    }
    recorder.finish("the run ended", Instant::now());
}
