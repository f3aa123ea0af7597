//! [`Rehearsal`]: carries out the plan, or continues a rehearsal that was stopped.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use howdah_compare::CompareSettings;
use howdah_connect::{Client, ConnectTarget};
use howdah_dataset::Capture;
use howdah_replay::{ConcurrencyEstimate, IdentityMap, ReplayProgress, TargetFacts, check_target};
use howdah_report::{
    TableStyle,
    rehearsal::{
        self, BothSides, DataGrowth, RecoveryTarget, RehearsalReport, RehearsalSide, RunSummary,
        ServerFacts, StartState,
    },
};
use howdah_traffic::Timestamp;
use howdah_warm::CacheImage;

use crate::{
    activity::Activities,
    copies,
    error::RehearsalError,
    import,
    journal::Journal,
    options::{RehearsalInput, RehearsalOptions, ResetMode},
    plan::{CaptureLength, Plan, PlanInput, RehearsalStep, RunName},
    prepare::Preparation,
    reasons, results,
    run::{self, Replayer},
    servers,
    sql::{check_stopped, connect, connect_after_restart, query_error},
    start, time_lines,
};

/// Name of the subfolder for runs.
pub(crate) const RUNS: &str = "runs";

/// Name of the subfolder for a capture made from logs.
pub(crate) const CAPTURE: &str = "capture";

/// Time limit for reading ahead in the capture to find its roles and databases, unless databases
/// are copied.
const SURVEY_TIME: Duration = Duration::from_millis(50);

/// Columns of the text report in a file, where long lines can be scrolled.
const FILE_WIDTH: usize = 160;

/// A rehearsal that can be planned, run and stopped.
#[derive(Debug)]
pub struct Rehearsal {
    /// The servers, the traffic and the rules.
    pub options: RehearsalOptions,
    /// Stops the rehearsal soon after it is set to true; may be set from any thread.
    pub stop: Arc<AtomicBool>,
}

/// An observer of a rehearsal's progress. The methods should return quickly, because the rehearsal
/// waits for them.
pub trait RehearsalObserver: Sync {
    /// Called with the steps to carry out, before the first one. Called again after the import of
    /// logs, which makes estimates possible.
    fn on_plan(&self, plan: &Plan) {
        let _ = plan;
    }

    /// Called with each finished run: first with those that the journal already contains, then
    /// after each replay.
    fn on_run(&self, run: &RunSummary) {
        let _ = run;
    }

    /// Called when a step starts.
    fn on_step(&self, progress: &StepProgress) {
        let _ = progress;
    }

    /// Called from another thread while the current step replays.
    fn on_replay(&self, progress: ReplayProgress) {
        let _ = progress;
    }

    /// Called with a note that the user should see before the report.
    fn on_note(&self, text: &str) {
        let _ = text;
    }
}

/// Ignores all calls.
impl RehearsalObserver for () {}

/// A step that starts, with its position in the plan.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct StepProgress {
    /// The step that starts now.
    pub step: RehearsalStep,
    /// Number of the step, from 1.
    pub number: usize,
    /// Number of steps in the plan.
    pub steps: usize,
    /// Estimated time left, including this step; unknown estimates are left out.
    pub time_left: Duration,
    /// Number of events in the capture; 0 during the import.
    pub events: u64,
}

impl Rehearsal {
    /// Returns the steps, with estimates if the capture exists. Contacts no server and writes
    /// nothing.
    ///
    /// # Errors
    ///
    /// The capture cannot be read.
    pub fn plan(&self) -> Result<Plan, RehearsalError> {
        Ok(self.plan_for(self.existing_capture()?.as_ref()))
    }

    /// Returns the start of the capture, to which copies should be restored, if the capture exists
    /// and has the time of its start. Contacts no server and writes nothing.
    ///
    /// # Errors
    ///
    /// The capture cannot be read.
    pub fn recovery_target(&self) -> Result<Option<RecoveryTarget>, RehearsalError> {
        let capture = self.existing_capture()?;
        Ok(capture.and_then(|capture| start::recovery_target(capture.manifest())))
    }

    /// Opens the capture; `None` if it has yet to be imported.
    fn existing_capture(&self) -> Result<Option<Capture>, RehearsalError> {
        match &self.options.input {
            RehearsalInput::Capture(dir) => {
                Capture::open(dir).map(Some).map_err(RehearsalError::Capture)
            }
            RehearsalInput::Logs { .. } => {
                let made = Capture::open(&self.options.dir.join(CAPTURE)).ok();
                Ok(made.filter(|capture| capture.manifest().finished))
            }
        }
    }

    fn plan_for(&self, capture: Option<&Capture>) -> Plan {
        let options = &self.options;
        let has_image = options.warm_image.is_some();
        Plan::new(&PlanInput {
            is_log: matches!(options.input, RehearsalInput::Logs { .. }),
            runs: options.runs,
            rate: options.rate,
            capture: capture.map(capture_length),
            warm_up: if has_image { Duration::ZERO } else { options.warm_up },
            has_reset: options.reset != ResetMode::None,
        })
    }

    /// Rehearses, or continues a rehearsal in the same folder without repeating finished runs.
    /// Writes the reports, then drops the copies of databases.
    ///
    /// # Errors
    ///
    /// See [`RehearsalError`]. Finished runs are kept, and the next call continues after them
    /// unless [`RehearsalOptions::force`] is set. A slower query is not an error: see
    /// [`RehearsalReport::verdict`].
    pub fn run(&self, observer: &dyn RehearsalObserver) -> Result<RehearsalReport, RehearsalError> {
        let dir = &self.options.dir;
        howdah_files::create_dir_all(dir).map_err(|source| file_error(dir, source))?;
        let options = self.options.run_options();
        let mut journal = Journal::open(dir, &options, self.options.force)?;
        let capture = self.capture(observer)?;
        if capture.manifest().events == 0 {
            return Err(RehearsalError::NoEvents);
        }
        let survey = self.survey(&capture)?;
        let image = self.options.warm_image.as_ref().map(CacheImage::open).transpose();
        let image = image.map_err(|error| RehearsalError::Image(Box::new(error)))?;
        let mut conductor = Conductor {
            rehearsal: self,
            observer,
            capture: &capture,
            survey: &survey,
            image: image.as_ref(),
            journal: &mut journal,
        };
        conductor.remove_incomplete_runs()?;
        let plan = conductor.remaining_plan();
        observer.on_plan(&plan);
        conductor.journal.runs().iter().for_each(|run| observer.on_run(run));
        for (position, step) in plan.steps.iter().enumerate() {
            check_stopped(&self.stop)?;
            observer.on_step(&StepProgress {
                step: step.kind,
                number: position + 1,
                steps: plan.steps.len(),
                time_left: plan.time_from(position).0,
                events: capture.manifest().events,
            });
            // A server reports a cancelled statement like any other error.
            conductor.carry_out(step.kind).map_err(|error| match check_stopped(&self.stop) {
                Err(interrupted) => interrupted,
                Ok(()) => error,
            })?;
        }
        let report = conductor.report()?;
        write_reports(dir, &report)?;
        conductor.remove_copies();
        Ok(report)
    }

    /// Opens the capture, after importing the logs if necessary.
    fn capture(&self, observer: &dyn RehearsalObserver) -> Result<Capture, RehearsalError> {
        match &self.options.input {
            RehearsalInput::Capture(dir) => Capture::open(dir).map_err(RehearsalError::Capture),
            RehearsalInput::Logs { files, options } => {
                let plan = self.plan_for(None);
                observer.on_plan(&plan);
                observer.on_step(&StepProgress {
                    step: RehearsalStep::Import,
                    number: 1,
                    steps: plan.steps.len(),
                    time_left: plan.time_from(0).0,
                    events: 0,
                });
                let dir = self.options.dir.join(CAPTURE);
                import::import(files, options, &dir, self.options.force, &self.stop)
            }
        }
    }

    /// Finds the roles and databases of the captured sessions.
    fn survey(&self, capture: &Capture) -> Result<ConcurrencyEstimate, RehearsalError> {
        let is_copied = self.options.reset == ResetMode::Copy && !self.options.is_single_database;
        // A session in a database without a copy would change the original.
        let limit = if is_copied { Duration::MAX } else { SURVEY_TIME };
        let survey = ConcurrencyEstimate::from_events(capture.events(), limit);
        if is_copied && !survey.is_complete {
            return Err(RehearsalError::UnknownDatabases);
        }
        Ok(survey)
    }

    /// Returns the server and database that runs of a side use: the original, or its copy.
    fn working_target(&self, side: RehearsalSide) -> ConnectTarget {
        let target = self.options.target(side);
        target.with_database(&self.working_database(side, target.database()))
    }

    /// Returns the mapping of captured roles and databases to those of a side, before any copy. The
    /// base's database is mapped to that of the side.
    fn original_identities(&self, side: RehearsalSide) -> IdentityMap {
        let mut identities = self.options.identities.clone();
        let own = self.options.target(side).database();
        if self.options.is_single_database {
            identities.as_database = Some(own.to_owned());
            return identities;
        }
        let base = self.options.base.database();
        for database in identities.databases.values_mut().filter(|database| *database == base) {
            own.clone_into(database);
        }
        if own != base {
            identities.databases.entry(base.to_owned()).or_insert_with(|| own.to_owned());
        }
        identities
    }

    /// Returns the mapping of captured roles and databases to those used on a side, which may be
    /// copies.
    fn identities(&self, side: RehearsalSide, survey: &ConcurrencyEstimate) -> IdentityMap {
        let originals = self.original_identities(side);
        let mut identities = originals.clone();
        if let Some(database) = &mut identities.as_database {
            *database = self.working_database(side, database);
        } else if self.options.reset == ResetMode::Copy {
            let captured = survey.sessions.keys().map(|(_, captured)| captured);
            identities.databases.extend(captured.filter(|captured| !captured.is_empty()).map(
                |captured| {
                    let working = self.working_database(side, originals.database(captured));
                    (captured.clone(), working)
                },
            ));
        }
        identities
    }

    /// Returns the databases that captured sessions use on a side, as far as they are known, and
    /// the one that the options name. If there are copies, returns the originals.
    fn original_databases(
        &self,
        side: RehearsalSide,
        survey: &ConcurrencyEstimate,
    ) -> BTreeSet<String> {
        let identities = self.original_identities(side);
        let captured = survey.sessions.keys().map(|(_, database)| identities.database(database));
        let named = captured.filter(|database| !database.is_empty());
        named.chain([self.options.target(side).database()]).map(str::to_owned).collect()
    }

    /// Returns the database that runs of a side use instead of `original`.
    fn working_database(&self, side: RehearsalSide, original: &str) -> String {
        match self.options.reset {
            ResetMode::Copy => copies::copy_name(original, side),
            ResetMode::None | ResetMode::Hooks(_) => original.to_owned(),
        }
    }
}

/// A rehearsal in progress.
struct Conductor<'a> {
    rehearsal: &'a Rehearsal,
    observer: &'a dyn RehearsalObserver,
    capture: &'a Capture,
    survey: &'a ConcurrencyEstimate,
    image: Option<&'a CacheImage>,
    journal: &'a mut Journal,
}

impl Conductor<'_> {
    fn options(&self) -> &RehearsalOptions {
        &self.rehearsal.options
    }

    fn run_dir(&self, run: RunName) -> PathBuf {
        self.options().dir.join(RUNS).join(run.to_string())
    }

    fn has_run(&self, run: RunName) -> bool {
        let name = run.to_string();
        self.journal.runs().iter().any(|run| run.name == name)
    }

    /// Removes runs with missing or incomplete files from the journal, so that they are repeated.
    fn remove_incomplete_runs(&mut self) -> Result<(), RehearsalError> {
        let runs = self.options().dir.join(RUNS);
        let names: Vec<String> = self.journal.runs().iter().map(|run| run.name.clone()).collect();
        for name in names.iter().filter(|name| !run::is_complete(&runs.join(name))) {
            self.observer.on_note(&format!("run {name} is incomplete and will be repeated"));
            self.journal.remove_run(name)?;
        }
        Ok(())
    }

    /// Returns the steps that remain, without those of finished runs.
    fn remaining_plan(&self) -> Plan {
        let mut plan = self.rehearsal.plan_for(Some(self.capture));
        plan.steps.retain(|step| {
            step.kind != RehearsalStep::Import
                && !step.kind.run().is_some_and(|run| self.has_run(run))
        });
        plan
    }

    /// Carries out a step. Does nothing for the import, which precedes the plan, and for the
    /// comparison, for which see [`Self::report`].
    fn carry_out(&mut self, step: RehearsalStep) -> Result<(), RehearsalError> {
        match step {
            RehearsalStep::Import | RehearsalStep::Compare => Ok(()),
            RehearsalStep::Check => self.check(),
            RehearsalStep::Prepare(run) => self.prepare(run),
            RehearsalStep::WarmUp(run) => self.warm_up(run),
            RehearsalStep::Replay(run) => self.replay(run),
        }
    }

    /// Refuses servers that may be in production, and notes how the servers differ from each other
    /// and from the start of the capture.
    fn check(&mut self) -> Result<(), RehearsalError> {
        let mut found = Vec::new();
        let has_hooks = matches!(self.options().reset, ResetMode::Hooks(_));
        for side in RehearsalSide::ALL {
            let target = self.options().target(side).clone();
            let mut client = connect(side, &target)?;
            let failed = query_error(side, "query the identity and clients");
            let facts = TargetFacts::query(&mut client).map_err(failed)?;
            let captured = self.capture.manifest().origin.server.as_ref();
            let allowed = self.options().allow_production.as_deref();
            let name = match side {
                RehearsalSide::Base => "base server",
                RehearsalSide::Change => "change server",
            };
            check_target(name, &facts, captured, allowed)?;
            let failed = query_error(side, "query settings and tables");
            found.push(servers::query_facts(&mut client, &target).map_err(failed)?);
            // A reset by the user's command may restore another state before the first run.
            if !has_hooks {
                self.record_position(side, &mut client)?;
            }
        }
        if let [base, change] = &found[..] {
            let differences = servers::differences(base, change);
            for difference in differences.iter().take(NOTES_MAX) {
                self.observer.on_note(&format!("the servers differ: {difference}"));
            }
            if self.options().vacuum {
                servers::renewed_statistics(&differences)
                    .into_iter()
                    .for_each(|text| self.warn(text));
            }
        }
        Ok(())
    }

    /// Records the WAL position of a server before its first run, and notes what is unexpected once
    /// both positions are known. Does nothing if the position is already recorded, or if the server
    /// has had a run, which may have written WAL.
    fn record_position(
        &mut self,
        side: RehearsalSide,
        client: &mut Client,
    ) -> Result<(), RehearsalError> {
        let has_run = self.journal.runs().iter().any(|run| run.side == side);
        if has_run || self.journal.position(side.as_str()).is_some() {
            return Ok(());
        }
        let failed = query_error(side, "query the WAL position");
        self.journal.set_position(side.as_str(), start::query_position(client).map_err(failed)?)?;
        let is_complete =
            RehearsalSide::ALL.iter().all(|side| self.journal.position(side.as_str()).is_some());
        if is_complete {
            let start = self.start_state();
            start.warnings().iter().for_each(|warning| self.observer.on_note(warning));
            if !start.warnings().is_empty() {
                self.observer.on_note("--dry-run prints the recovery target for copies");
            }
        }
        Ok(())
    }

    /// Compares the recorded positions with the start of the capture.
    fn start_state(&self) -> StartState {
        let position = |side: RehearsalSide| self.journal.position(side.as_str()).cloned();
        let positions = BothSides {
            base: position(RehearsalSide::Base),
            change: position(RehearsalSide::Change),
        };
        start::start_state(self.capture.manifest(), &positions)
    }

    fn preparation(&self) -> Preparation<'_> {
        Preparation { options: self.options(), image: self.image, stop: &self.rehearsal.stop }
    }

    /// Prepares the server of a run. For the first run of a side, also records the server's facts.
    fn prepare(&mut self, run: RunName) -> Result<(), RehearsalError> {
        let side = run.side;
        let working = self.rehearsal.working_target(side);
        let preparation = self.preparation();
        let originals = self.rehearsal.original_databases(side, self.survey);
        let missing = preparation.reset(side, &working, &originals)?;
        if self.journal.server(side.as_str()).is_none() {
            missing.into_iter().for_each(|warning| self.warn(warning));
        }
        if self.journal.position(side.as_str()).is_none() {
            let mut client = connect_after_restart(side, &working, &self.rehearsal.stop)?;
            self.record_position(side, &mut client)?;
        }
        let identities = self.rehearsal.identities(side, self.survey);
        let databases = originals
            .iter()
            .map(|original| self.rehearsal.working_database(side, original))
            .collect();
        let warnings = self.preparation().prepare(side, &working, &databases, &identities)?;
        warnings.into_iter().for_each(|warning| self.warn(warning));
        if self.journal.server(side.as_str()).is_none() {
            let mut client = connect(side, &working)?;
            let mut facts = servers::query_facts(&mut client, &working)
                .map_err(query_error(side, "query settings and tables"))?;
            // People know the original, not its copy.
            let original = self.options().target(side);
            original.database().clone_into(&mut facts.database);
            facts.target = original.to_string();
            let own = original.database();
            for database in originals.iter().filter(|database| *database != own) {
                let other = self.rehearsal.working_database(side, database);
                // A database that does not exist has been noted already.
                let Ok(mut client) = connect(side, &working.with_database(&other)) else {
                    continue;
                };
                servers::add_database_facts(&mut facts, &mut client, database)
                    .map_err(query_error(side, "query the state"))?;
            }
            self.journal.set_server(side.as_str(), facts)?;
            let denied = self.replayer(&|_| {}).denied_logins(&working, &identities, side.as_str());
            denied.into_iter().for_each(|warning| self.warn(warning));
        }
        // The idle side too: its background work would slow this side if they share a machine.
        for side in RehearsalSide::ALL {
            // A copy on the other side may not exist yet, so connect to the original.
            let target = self.options().target(side).clone();
            if let Some(warning) = self.preparation().wait_for_autovacuum(side, &target)? {
                self.warn(warning);
            }
        }
        Ok(())
    }

    fn warm_up(&mut self, run: RunName) -> Result<(), RehearsalError> {
        let working = self.rehearsal.working_target(run.side);
        let on_progress = |progress| self.observer.on_replay(progress);
        let identities = self.rehearsal.identities(run.side, self.survey);
        let time = self.options().warm_up;
        self.replayer(&on_progress).warm_up(run, &working, &identities, time)
    }

    /// Replays one run and adds it to the journal. The folder of an incomplete run is removed.
    fn replay(&mut self, run: RunName) -> Result<(), RehearsalError> {
        let working = self.rehearsal.working_target(run.side);
        let identities = self.rehearsal.identities(run.side, self.survey);
        let dir = self.run_dir(run);
        let on_progress = |progress| self.observer.on_replay(progress);
        let replayed = self.replayer(&on_progress).replay(run, &working, &identities, &dir);
        if replayed.is_err()
            && !run::is_complete(&dir)
            && let Err(error) = fs::remove_dir_all(&dir)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::debug!(%error, "cannot remove an incomplete run");
        }
        let replayed = replayed?;
        self.observer.on_run(&replayed);
        Ok(self.journal.push_run(replayed)?)
    }

    fn replayer<'p>(&'p self, on_progress: &'p (dyn Fn(ReplayProgress) + Sync)) -> Replayer<'p> {
        let capture_name = match &self.options().input {
            RehearsalInput::Capture(dir) => dir.display().to_string(),
            RehearsalInput::Logs { .. } => self.options().dir.join(CAPTURE).display().to_string(),
        };
        Replayer {
            capture: self.capture,
            survey: self.survey,
            capture_name,
            rate: self.options().rate,
            workers: self.options().workers,
            is_observed: self.options().is_observed,
            stop: &self.rehearsal.stop,
            on_progress,
        }
    }

    fn warn(&mut self, warning: String) {
        self.observer.on_note(&warning);
        self.journal.warn(warning);
    }

    /// Compares the runs and collects everything for the report.
    fn report(&self) -> Result<RehearsalReport, RehearsalError> {
        let options = self.options();
        let runs_dir = options.dir.join(RUNS);
        // If a rehearsal continues with a smaller number of runs, the journal has more than
        // requested.
        let mut runs = self.journal.runs().to_vec();
        runs.sort_by_key(|run| run.started);
        let samples = results::RunSamples::read(&runs_dir, &runs)?;
        let settings = CompareSettings::default().with_change_min(options.change_min);
        let mut comparison = samples.compare(&settings);
        let violations = samples.violations(&options.fail_on, &comparison);
        let example_run =
            runs_dir.join(RunName { side: RehearsalSide::Change, number: 1 }.to_string());
        let [base, change] = RehearsalSide::ALL.map(|side| self.rehearsal.working_target(side));
        let plan_failures =
            results::explain_changes(&mut comparison, &example_run, &base, &change)?;
        let examples = if options.has_examples {
            results::examples(&comparison, &example_run)?
        } else {
            results::remove_values(&mut comparison);
            BTreeMap::new()
        };
        let servers = self.servers();
        let activity = Activities::read(&runs_dir, &runs);
        let mut differences = servers::differences(&servers.base, &servers.change);
        differences.extend(activity.differences());
        let obstacles = results::find_obstacles(&comparison, &runs);
        let is_reset = options.reset != ResetMode::None;
        let mut shown = options.run_options();
        shown.insert("--runs".to_owned(), options.runs.to_string());
        Ok(RehearsalReport {
            howdah: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.journal.started(),
            finished: Timestamp::now(),
            verdict: results::decide(&comparison, &violations, &obstacles),
            obstacles,
            reasons: reasons::find_reasons(&comparison, &differences, &servers),
            time_lines: time_lines::time_lines(&runs_dir, &runs, &activity)?,
            comparison,
            violations,
            runs,
            servers: BothSides {
                base: with_relevant_settings(&servers.base, &servers.change),
                change: with_relevant_settings(&servers.change, &servers.base),
            },
            differences,
            plan_failures,
            examples,
            start: self.start_state(),
            growth: if is_reset { Vec::new() } else { self.growth()? },
            order_effects: if is_reset { Vec::new() } else { samples.order_effects(&settings) },
            options: shown,
            warnings: self.journal.warnings().to_vec(),
        })
    }

    fn servers(&self) -> BothSides<ServerFacts> {
        let facts = |side: RehearsalSide| self.journal.server(side.as_str()).cloned();
        BothSides {
            base: facts(RehearsalSide::Base).unwrap_or_default(),
            change: facts(RehearsalSide::Change).unwrap_or_default(),
        }
    }

    /// Returns the size of each side's database before its first run and now, where both are known.
    fn growth(&self) -> Result<Vec<DataGrowth>, RehearsalError> {
        const SQL: &str = "select pg_catalog.pg_database_size(pg_catalog.current_database())";
        let mut growth = Vec::new();
        for side in RehearsalSide::ALL {
            let mut client = connect(side, &self.rehearsal.working_target(side))?;
            let bytes = client
                .one_value(SQL)
                .map_err(query_error(side, "query the size of the database"))?;
            let before = self.journal.server(side.as_str()).map(|facts| facts.database_bytes);
            if let (Some(bytes_before), Some(bytes_after)) =
                (before, bytes.and_then(|bytes| bytes.parse().ok()))
            {
                growth.push(DataGrowth { side, bytes_before, bytes_after });
            }
        }
        Ok(growth)
    }

    /// Drops the copies. Failures are only noted, because they do not affect the report.
    fn remove_copies(&self) {
        if self.options().reset != ResetMode::Copy {
            return;
        }
        for side in RehearsalSide::ALL {
            let server = self.options().target(side);
            for original in self.rehearsal.original_databases(side, self.survey) {
                if let Err(error) = copies::remove(side, server, &original) {
                    let copy = copies::copy_name(&original, side);
                    self.observer.on_note(&format!("the copy {copy} remains: {error}"));
                }
            }
        }
    }
}

/// Maximum number of differences noted before the first run; the report lists all.
const NOTES_MAX: usize = 10;

fn capture_length(capture: &Capture) -> CaptureLength {
    let manifest = capture.manifest();
    let time = match (manifest.first, manifest.last) {
        (Some(first), Some(last)) => last.saturating_since(first),
        _ => Duration::ZERO,
    };
    CaptureLength { time, events: manifest.events }
}

fn with_relevant_settings(own: &ServerFacts, other: &ServerFacts) -> ServerFacts {
    ServerFacts { settings: servers::relevant_settings(own, other), ..own.clone() }
}

/// Writes the report in all formats.
fn write_reports(dir: &Path, report: &RehearsalReport) -> Result<(), RehearsalError> {
    let style = TableStyle { width: FILE_WIDTH, ..TableStyle::default() };
    let json = serde_json::to_string_pretty(&rehearsal::document(report)).unwrap_or_default();
    let files = [
        ("report.txt", rehearsal::text(report, &style)),
        ("report.md", rehearsal::markdown(report)),
        ("report.html", rehearsal::html(report)),
        ("report.xml", rehearsal::junit(report)),
        ("report.json", json + "\n"),
    ];
    for (name, text) in files {
        let path = dir.join(name);
        howdah_files::write(&path, text).map_err(|source| RehearsalError::File { path, source })?;
    }
    Ok(())
}

fn file_error(path: &Path, source: io::Error) -> RehearsalError {
    RehearsalError::File { path: path.to_owned(), source }
}
