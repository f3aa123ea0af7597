//! The tour itself: one stage after another, told as it goes.

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
    explain::{Examples, ExplainError, explain},
};
use howdah_connect::{Client, ConnectError, QueryError, ResolveError};
use howdah_dataset::{Capture, CaptureSettings, CaptureWriter, ReadError, RunSettings, RunWriter};
use howdah_lab::Search;
use howdah_logs::{Options, ReadFilesError, read_files};
use howdah_replay::{Notices, Rate, Replay, Report, Settings, StartError};
use howdah_stats::Registry;
use howdah_traffic::{Event, Timestamp};

use crate::{
    shop::{PLANTED_INDEX, PLANTED_QUERY},
    stage::{Copy, Original},
    workload,
};

/// The run that the others are compared with.
const BASE: &str = "base";

/// What the tour can be told.
#[derive(Debug)]
pub struct Demo {
    /// Where `capture`, the runs and `compare.json` go.
    pub out: PathBuf,
    /// Which PostgreSQL to use.
    pub search: Search,
    /// How long clients are in the shop.
    pub duration: Duration,
    /// Set it, and the tour ends within a moment.
    pub stop: Arc<AtomicBool>,
}

/// How the tour ended.
#[derive(Debug)]
#[non_exhaustive]
pub struct Ending {
    /// Unchanged against unchanged.
    pub control: Comparison,
    /// Unchanged against changed.
    pub changed: Comparison,
}

impl Ending {
    /// The statement that was made slower, if the comparison says that it is slower.
    pub fn found(&self) -> Option<&QueryComparison> {
        let planted = howdah_sql::fingerprint(PLANTED_QUERY.as_bytes());
        self.changed
            .queries
            .iter()
            .find(|query| query.fingerprint == planted && query.verdict.is_slower())
    }

    /// Whether nothing was found where nothing was changed.
    pub fn control_is_clean(&self) -> bool {
        self.control.verdict == Overall::NoChange
    }
}

/// What kept the tour from its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No server could be had, or it did not start.
    #[error(transparent)]
    Lab(#[from] howdah_lab::Error),
    /// A server of ours has no usable address.
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    /// A server of ours let nobody in.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A statement that should work did not.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// The log that was just written could not be read.
    #[error("cannot import the log")]
    Import(#[source] Box<ReadFilesError<howdah_dataset::WriteError>>),
    /// The capture or a run could not be written.
    #[error(transparent)]
    Write(#[from] howdah_dataset::WriteError),
    /// The capture or a run could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A run could not be read.
    #[error(transparent)]
    ReadRun(#[from] howdah_compare::ReadRunError),
    /// A replay did not begin.
    #[error("cannot replay")]
    Start(#[from] StartError),
    /// The plans of what changed could not be asked for.
    #[error("cannot explain the change")]
    Explain(#[from] ExplainError),
    /// Somebody wanted it to end.
    #[error("interrupted")]
    Interrupted,
}

impl Demo {
    /// Gives the tour. `tell` gets a line at each stage, before it begins.
    ///
    /// # Errors
    ///
    /// See [`Error`]. That nothing was found is no error: see [`Ending::found`].
    pub fn run(&self, mut tell: impl FnMut(&str)) -> Result<Ending, Error> {
        tell("1/6  building a shop in a throw-away PostgreSQL, and copies of it");
        let mut original = Original::build(self.search.clone())?;
        let production = original.production()?;
        self.go_on()?;
        let seconds = self.duration.as_secs();
        tell(&format!(
            "2/6  {}: clients shop for {seconds} s, the server logs what they do",
            original.version()
        ));
        let executed = workload::run(&production.target, self.duration)?;
        self.go_on()?;
        let capture = self.capture(production)?;
        let events = capture.manifest().events;
        tell(&format!("     {executed} executions by their clients, {events} events in the log"));

        tell("3/6  replaying the log against an unchanged copy");
        let unchanged = original.stand_in("demo-base")?;
        let base = self.replay(&capture, &unchanged, BASE, &mut tell)?;
        tell("4/6  and against another unchanged copy, as a control");
        let control = {
            let copy = original.stand_in("demo-control")?;
            self.replay(&capture, &copy, "control", &mut tell)?
        };
        tell(&format!("5/6  and against a copy without the index {PLANTED_INDEX}"));
        let without_index = original.stand_in("demo-changed")?;
        without_index.run(&format!("drop index {PLANTED_INDEX}"))?;
        let changed = self.replay(&capture, &without_index, "changed", &mut tell)?;

        tell("6/6  comparing, query by query");
        let settings = howdah_compare::Settings::default();
        let mut ending = Ending {
            control: compare(&base, &control, None, &settings),
            changed: compare(&base, &changed, Some(&control), &settings),
        };
        let examples = Examples::of_changed(&ending.changed, &self.out.join(BASE))?;
        let (before, after) = (&unchanged.target, &without_index.target);
        for (query, error) in explain(&mut ending.changed, &examples, before, after)? {
            tracing::debug!(%query, %error, "no plan");
        }
        Ok(ending)
    }

    /// Ends the tour if somebody wants that.
    fn go_on(&self) -> Result<(), Error> {
        if self.stop.load(Ordering::Relaxed) { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Stops the server and makes a capture of its log.
    fn capture(&self, production: Copy) -> Result<Capture, Error> {
        let Copy { mut cluster, .. } = production;
        // Its last lines are in the file only when it has ended.
        cluster.stop()?;
        let logs = cluster.log_files("csv")?;
        let dir = self.out.join("capture");
        let settings = CaptureSettings { overwrite: true, ..CaptureSettings::default() };
        let mut writer = CaptureWriter::create(&dir, settings)?;
        let sink = |event: Event| match of_the_shop(&event) {
            true => writer.write(event),
            false => Ok(()),
        };
        let summary = read_files(&logs, Options::default(), |_| ControlFlow::Continue(()), sink)
            .map_err(|error| Error::Import(Box::new(error)))?;
        writer.finish(serde_json::json!(summary))?;
        Ok(Capture::open(&dir)?)
    }

    /// Replays the capture, writes the run, and gives its samples.
    fn replay(
        &self,
        capture: &Capture,
        copy: &Copy,
        name: &str,
        tell: &mut impl FnMut(&str),
    ) -> Result<Samples, Error> {
        let client = Client::connect(&copy.target)?;
        let dir = self.out.join(name);
        let settings = Settings::default();
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
            encrypted: client.is_encrypted(),
            settings,
            writer: Some(RunWriter::create(&dir, run)?),
            outcomes_known: true,
            capacity: None,
            notices: Notices::default(),
            registry: Registry::new(),
            stop: self.stop.clone(),
        };
        drop(client);
        let mut report = replay.run(capture.events())?;
        finish(&mut report)?;
        self.go_on()?;
        let executions = report.tally.executions();
        tell(&format!(
            "     {} executions in {:.1} s, {} failed",
            executions.total(),
            report.elapsed.as_secs_f64(),
            executions.failed
        ));
        Ok(Samples::read(&dir)?)
    }
}

/// Whether an event is the traffic of the shop's own clients, not of us who look after it.
fn of_the_shop(event: &Event) -> bool {
    &*event.application != "howdah"
}

fn finish(report: &mut Report) -> Result<(), Error> {
    let summary = report.json(Rate::default());
    if let Some(error) = report.write_error.take() {
        return Err(error.into());
    }
    if let Some(writer) = report.writer.take() {
        writer.finish(summary, !report.interrupted)?;
    }
    Ok(())
}
