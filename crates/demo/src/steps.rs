//! The steps of the demo, each reported before it starts.

use std::{
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use howdah_compare::{
    Comparison, Overall, QueryComparison, Samples, compare,
    explain::{Examples, explain},
};
use howdah_connect::Client;
use howdah_dataset::{Capture, CaptureSettings, CaptureWriter, RunSettings, RunWriter};
use howdah_lab::BinariesSearch;
use howdah_logs::{ImportOptions, read_files};
use howdah_replay::{
    CalibrationPlan, Capacity, NoticeSink, Rate, Replay, ReplayReport, ReplaySettings,
};
use howdah_stats::Registry;
use howdah_traffic::{Event, Timestamp};

use crate::{
    dataset::{PLANTED_INDEX, PLANTED_QUERY},
    error::DemoError,
    servers::{OriginalServer, ServerCopy},
    workload,
};

/// Name of the run that the others are compared with.
const BASE: &str = "base";

/// A demo and its options.
#[derive(Debug)]
pub struct Demo {
    /// The directory for `capture`, the runs and `compare.json`.
    pub out: PathBuf,
    /// Where to look for PostgreSQL's programs.
    pub search: BinariesSearch,
    /// How long the workload runs.
    pub duration: Duration,
    /// Set to true to interrupt the demo.
    pub stop: Arc<AtomicBool>,
}

/// The comparisons that the demo made.
#[derive(Debug)]
#[non_exhaustive]
pub struct DemoOutcome {
    /// Compares the base run with the run on a second unchanged copy.
    pub control: Comparison,
    /// Compares the base run with the run on the copy without the index.
    pub changed: Comparison,
}

impl DemoOutcome {
    /// The query that lost its index, if the comparison found it to be slower.
    pub fn slower_query(&self) -> Option<&QueryComparison> {
        let planted = howdah_sql::fingerprint(PLANTED_QUERY.as_bytes());
        self.changed
            .queries
            .iter()
            .find(|query| query.fingerprint == planted && query.verdict.is_slower())
    }

    /// Whether the control comparison found no change, as it should.
    pub fn control_is_clean(&self) -> bool {
        self.control.verdict == Overall::NoChange
    }
}

impl Demo {
    /// Runs the demo. Calls `report` with a line of text before each step and with its results.
    ///
    /// # Errors
    ///
    /// See [`DemoError`]. Not finding the slower query is not an error: see
    /// [`DemoOutcome::slower_query`].
    pub fn run(&self, mut report: impl FnMut(&str)) -> Result<DemoOutcome, DemoError> {
        report("1/6  building a shop in a throw-away PostgreSQL, and copies of it");
        let mut original = OriginalServer::build(self.search.clone())?;
        let production = original.start_production()?;
        self.check_interrupted()?;
        let seconds = self.duration.as_secs();
        report(&format!(
            "2/6  {}: clients shop for {seconds} s, the server logs what they do",
            original.version()
        ));
        let executed = workload::run(&production.target, self.duration)?;
        self.check_interrupted()?;
        let capture = self.capture(production)?;
        let events = capture.manifest().events;
        report(&format!("     {executed} executions by their clients, {events} events in the log"));

        report("3/6  replaying the log against an unchanged copy");
        let unchanged = original.replay_target("demo-base")?;
        let base = self.replay(&capture, &unchanged, BASE, &mut report)?;
        report("4/6  and against another unchanged copy, as a control");
        let control = {
            let copy = original.replay_target("demo-control")?;
            self.replay(&capture, &copy, "control", &mut report)?
        };
        report(&format!("5/6  and against a copy without the index {PLANTED_INDEX}"));
        let without_index = original.replay_target("demo-changed")?;
        without_index.run(&format!("drop index {PLANTED_INDEX}"))?;
        let changed = self.replay(&capture, &without_index, "changed", &mut report)?;

        report("6/6  comparing, query by query");
        let settings = howdah_compare::CompareSettings::default();
        let mut ending = DemoOutcome {
            control: compare(&base, &control, None, &settings),
            changed: compare(&base, &changed, Some(&control), &settings),
        };
        let examples = Examples::for_changed(&ending.changed, &self.out.join(BASE))?;
        let (before, after) = (&unchanged.target, &without_index.target);
        for (query, error) in explain(&mut ending.changed, &examples, before, after)? {
            tracing::debug!(%query, %error, "no plan");
        }
        Ok(ending)
    }

    /// Fails with [`DemoError::Interrupted`] if [`Demo::stop`] is set.
    fn check_interrupted(&self) -> Result<(), DemoError> {
        if self.stop.load(Ordering::Relaxed) { Err(DemoError::Interrupted) } else { Ok(()) }
    }

    /// Stops the server and makes a capture of its log.
    fn capture(&self, production: ServerCopy) -> Result<Capture, DemoError> {
        let ServerCopy { mut cluster, .. } = production;
        // The logging collector writes its last lines only when the server exits.
        cluster.stop()?;
        let logs = cluster.log_files("csv")?;
        let dir = self.out.join("capture");
        let settings = CaptureSettings { overwrite: true, ..CaptureSettings::default() };
        let mut writer = CaptureWriter::create(&dir, settings)?;
        let sink =
            |event: Event| if is_workload_event(&event) { writer.write(event) } else { Ok(()) };
        let summary =
            read_files(&logs, ImportOptions::default(), |_| ControlFlow::Continue(()), sink)
                .map_err(|error| DemoError::Import(Box::new(error)))?;
        writer.finish(serde_json::json!(summary))?;
        Ok(Capture::open(&dir)?)
    }

    /// Replays the capture, writes the run, and returns its samples.
    fn replay(
        &self,
        capture: &Capture,
        copy: &ServerCopy,
        name: &str,
        report: &mut impl FnMut(&str),
    ) -> Result<Samples, DemoError> {
        let mut client = Client::connect(&copy.target)?;
        let capacity = Capacity::query(&mut client).unwrap_or_default();
        let dir = self.out.join(name);
        let settings = ReplaySettings::default();
        let run = RunSettings {
            capture: self.out.join("capture").display().to_string(),
            target: copy.target.to_string(),
            rate: Rate::default().to_string(),
            server_version: client.parameter("server_version").unwrap_or_default().to_owned(),
            started: Timestamp::now(),
            overwrite: true,
        };
        let replay = Replay {
            target: copy.target.clone(),
            endpoint: client.endpoint().clone(),
            is_encrypted: client.is_encrypted(),
            settings,
            writer: Some(RunWriter::create(&dir, run)?),
            has_outcomes: true,
            capacity: None,
            calibration: CalibrationPlan::new(&mut client, capacity, 0),
            notices: NoticeSink::default(),
            registry: Registry::new(),
            stop: self.stop.clone(),
        };
        drop(client);
        let mut replayed = replay.run(capture.events())?;
        finish(&mut replayed)?;
        self.check_interrupted()?;
        let executions = replayed.tally.executions();
        report(&format!(
            "     {} executions in {:.1} s, {} failed",
            executions.total(),
            replayed.elapsed.as_secs_f64(),
            executions.failed
        ));
        Ok(Samples::read(&dir)?)
    }
}

/// Whether an event comes from the workload, not from the demo's own sessions.
fn is_workload_event(event: &Event) -> bool {
    &*event.application != "howdah"
}

fn finish(report: &mut ReplayReport) -> Result<(), DemoError> {
    let summary = report.json(Rate::default());
    if let Some(error) = report.write_error.take() {
        return Err(error.into());
    }
    if let Some(writer) = report.writer.take() {
        writer.finish(summary, !report.is_interrupted)?;
    }
    Ok(())
}
