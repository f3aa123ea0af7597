//! Replays the capture once and writes the run to its folder.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use howdah_connect::ConnectTarget;
use howdah_dataset::{Capture, ReplayRun, RunSettings, RunWriter};
use howdah_replay::{
    CalibrationPlan, Capacity, ConcurrencyEstimate, EncodingMap, IdentityMap, LagPolicy, Notice,
    NoticeSink, PaceControl, ProgressReader, Rate, Replay, ReplayLimits, ReplayProgress,
    ReplayReport, ReplaySettings, ReplayTarget, StatementOrder, find_denied_logins,
};
use howdah_report::rehearsal::{RunMachine, RunSummary};
use howdah_stats::Registry;
use howdah_traffic::Timestamp;

use crate::{activity::ActivityMonitor, error::RehearsalError, plan::RunName, sql::connect};

/// Maximum time to wait until the server has closed the connection that prepared the replay.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// Time between reports of progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The context in which one capture is replayed against the servers of a rehearsal.
pub(crate) struct Replayer<'a> {
    pub(crate) capture: &'a Capture,
    /// The roles and databases of the captured sessions.
    pub(crate) survey: &'a ConcurrencyEstimate,
    /// Path of the capture's folder, for the manifest of the run.
    pub(crate) capture_name: String,
    pub(crate) rate: Rate,
    pub(crate) workers: usize,
    /// Whether to observe the server during a run.
    pub(crate) is_observed: bool,
    pub(crate) stop: &'a Arc<AtomicBool>,
    /// Called from another thread with the progress of a running replay.
    pub(crate) on_progress: &'a (dyn Fn(ReplayProgress) + Sync),
}

impl Replayer<'_> {
    /// Replays the whole capture and writes the run to `dir`.
    pub(crate) fn replay(
        &self,
        run: RunName,
        target: &ConnectTarget,
        identities: &IdentityMap,
        dir: &Path,
    ) -> Result<RunSummary, RehearsalError> {
        let settings = |server_version: &str| RunSettings {
            capture: self.capture_name.clone(),
            target: target.to_string(),
            rate: self.rate.to_string(),
            server_version: server_version.to_owned(),
            started: Timestamp::now(),
            overwrite: true,
            part: None,
        };
        let mut started = Timestamp::now();
        let mut monitor = None;
        let create = |version: &str| {
            let settings = settings(version);
            started = settings.started;
            let writer = RunWriter::create(dir, settings)?;
            // Files of an earlier run; the writer removes only its own.
            ActivityMonitor::remove_files(dir)
                .map_err(|source| RehearsalError::File { path: dir.to_owned(), source })?;
            // The recording is a file in the folder that the writer creates.
            monitor = self.is_observed.then(|| ActivityMonitor::start(target, dir));
            Ok(Some(writer))
        };
        let settings = self.settings(identities, false);
        let replayed = self.start(run, target, settings, create, self.capture.events());
        let finished = Timestamp::now();
        let activity = monitor.map(ActivityMonitor::finish);
        let mut report = replayed?;
        // The run is valid without it.
        if let Some(Err(error)) = activity.map(|activity| activity.write(dir)) {
            tracing::warn!(%run, %error, "cannot write the activity of the server during the run");
        }
        let machine = machine_summary(&report.machine.summary());
        let summary = report.json(self.rate);
        if let Some(error) = report.write_error.take() {
            return Err(error.into());
        }
        let is_complete = !report.is_interrupted && report.source_error.is_none();
        if let Some(writer) = report.writer.take() {
            writer.finish(summary, is_complete)?;
        }
        if report.is_interrupted {
            return Err(RehearsalError::Interrupted);
        }
        if let Some(source) = report.source_error.take() {
            return Err(RehearsalError::Events { run, source });
        }
        if let Some(reason) = report.login_failure() {
            return Err(RehearsalError::Login { run, reason: reason.to_owned() });
        }
        let executions = report.tally.executions();
        Ok(RunSummary {
            name: run.to_string(),
            side: run.side,
            started,
            finished,
            executions: executions.done + executions.failed,
            failed: executions.failed,
            skipped: executions.skipped,
            schedule_error_p99_us: report.tally.schedule_error.summary().map(|it| it.p99_us),
            machine,
        })
    }

    /// Replays the first `time` of the capture read-only and discards the outcomes. This fills the
    /// caches and does not change the data.
    pub(crate) fn warm_up(
        &self,
        run: RunName,
        target: &ConnectTarget,
        identities: &IdentityMap,
        time: Duration,
    ) -> Result<(), RehearsalError> {
        let first = self.capture.manifest().first.unwrap_or_default();
        let events = self.capture.events_between(first, first + time);
        let settings = self.settings(identities, true);
        let report = self.start(run, target, settings, |_| Ok(None), events)?;
        if report.is_interrupted { Err(RehearsalError::Interrupted) } else { Ok(()) }
    }

    /// Tries logins that the captured sessions need, and returns a warning for each that the server
    /// refuses; see [`find_denied_logins`].
    pub(crate) fn denied_logins(
        &self,
        target: &ConnectTarget,
        identities: &IdentityMap,
        side: &str,
    ) -> Vec<String> {
        find_denied_logins(target, identities, self.survey)
            .into_iter()
            .map(|denied| {
                format!(
                    "role {} cannot log in to database {} on {side}: {}",
                    denied.user, denied.database, denied.error
                )
            })
            .collect()
    }

    fn settings(&self, identities: &IdentityMap, is_read_only: bool) -> ReplaySettings {
        let captured = self.capture.manifest().origin.encodings.clone();
        ReplaySettings {
            idle_max: None,
            lag: LagPolicy::default(),
            think_time: None,
            order: StatementOrder::Session,
            rate: self.rate,
            identities: identities.clone(),
            encodings: EncodingMap { captured, ..EncodingMap::default() },
            login_settings: Vec::new(),
            is_read_only,
            checks_results: false,
            maps_ids: false,
            limits: ReplayLimits::default(),
            workers: self.workers,
        }
    }

    fn start(
        &self,
        run: RunName,
        target: &ConnectTarget,
        mut settings: ReplaySettings,
        create: impl FnOnce(&str) -> Result<Option<RunWriter>, RehearsalError>,
        events: howdah_dataset::Events,
    ) -> Result<ReplayReport, RehearsalError> {
        let mut client = connect(run.side, target)?;
        if let Err(error) = settings.encodings.query_target(&mut client) {
            tracing::debug!(%error, "cannot query the encodings of the databases");
        }
        let capacity = Capacity::query(&mut client).ok().flatten();
        let calibration = CalibrationPlan::new(&mut client, capacity, self.survey.open_max);
        let writer = create(client.parameter("server_version").unwrap_or_default())?;
        let registry = Registry::new();
        let replay = Replay {
            targets: vec![ReplayTarget {
                target: target.clone(),
                endpoint: client.endpoint().clone(),
                is_encrypted: client.is_encrypted(),
            }],
            settings,
            start: None,
            writer,
            has_outcomes: true,
            capacity,
            calibration,
            pace: PaceControl::default(),
            notices: NoticeSink::new(move |notice: &Notice| {
                tracing::warn!(%run, hint = notice.hint(), "{notice}");
            }),
            registry: registry.clone(),
            stop: self.stop.clone(),
        };
        // The captured sessions may need every connection that the server allows.
        client.close_and_wait(CLOSE_TIMEOUT);
        let progress = ProgressReader::new(&registry);
        let finished = AtomicBool::new(false);
        thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !finished.load(Ordering::Relaxed) {
                    (self.on_progress)(progress.read());
                    thread::park_timeout(PROGRESS_INTERVAL);
                }
            });
            let report = replay.run(events);
            finished.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            report
        })
        .map_err(|source| RehearsalError::Start { run, source })
    }
}

/// Returns the machine's figures for the report; `None` if the processor time of the host could not
/// be measured.
fn machine_summary(summary: &howdah_dataset::MachineSummary) -> Option<RunMachine> {
    Some(RunMachine {
        calibration_p50_us: summary.calibration_p50_us,
        busy: summary.busy?,
        steal: summary.steal.unwrap_or(0.0),
        io_wait: summary.iowait.unwrap_or(0.0),
    })
}

/// Whether the folder contains a run that reached the end of its capture.
pub(crate) fn is_complete(dir: &Path) -> bool {
    ReplayRun::open(dir).is_ok_and(|run| run.manifest().finished && run.manifest().complete)
}
