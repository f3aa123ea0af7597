//! The steps of the demo, each reported before it starts.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use howdah_compare::QueryComparison;
use howdah_lab::BinariesSearch;
use howdah_rehearse::{
    ChangeSource, Rehearsal, RehearsalInput, RehearsalObserver, RehearsalOptions, RehearsalStep,
    ResetMode, StepProgress,
};
use howdah_replay::{IdentityMap, Rate};
use howdah_report::rehearsal::{RehearsalReport, RehearsalVerdict};
use howdah_warm::{
    dump::{DumpSource, dump},
    image::Generations,
};

use crate::{
    dataset::{self, PLANTED_INDEX, PLANTED_QUERY},
    error::DemoError,
    folder::OutputFolder,
    pooler::CapturingPooler,
    servers::ShopServer,
    workload,
};

/// Number of runs on each side: several, because the differences between them show the noise.
const RUNS: u32 = 3;

/// Captured time that is replayed to warm the caches if no cache image could be taken.
const WARM_UP: Duration = Duration::from_secs(2);

/// Name of the report to open first.
const REPORT: &str = "report.html";

/// A demo and its options.
#[derive(Debug)]
pub struct Demo {
    /// The folder for the capture, the cache image, the runs and the reports.
    pub output: PathBuf,
    /// Where to look for PostgreSQL's programs.
    pub search: BinariesSearch,
    /// Time that the clients run, and so the length of the capture.
    pub duration: Duration,
    /// Set to true to interrupt the demo.
    pub stop: Arc<AtomicBool>,
}

/// The result of a demo.
#[derive(Debug)]
#[non_exhaustive]
pub struct DemoOutcome {
    /// The report of the rehearsal, which the output folder has in five formats.
    pub report: RehearsalReport,
    /// The path of the report as a page.
    pub page: PathBuf,
}

impl DemoOutcome {
    /// Returns the query that lost its index, if the rehearsal failed and found this query slower.
    /// Other queries do not matter.
    pub fn slower_query(&self) -> Option<&QueryComparison> {
        let planted = howdah_sql::fingerprint(PLANTED_QUERY.as_bytes());
        let is_failed = self.report.verdict == RehearsalVerdict::Failed;
        self.report.comparison.slower().find(|query| is_failed && query.fingerprint == planted)
    }
}

impl Demo {
    /// Runs the demo. Calls `report` with a line of text before each step and with its results.
    ///
    /// Servers and pooler are stopped and removed before this returns; the output folder remains.
    ///
    /// # Errors
    ///
    /// See [`DemoError`]. Not finding the slower query is not an error: see
    /// [`DemoOutcome::slower_query`].
    pub fn run(&self, report: &(dyn Fn(&str) + Sync)) -> Result<DemoOutcome, DemoError> {
        let folder = OutputFolder::prepare(&self.output)?;
        report("1/4  production: a throw-away PostgreSQL with a small shop, and two copies of it");
        let mut production = ShopServer::build("demo-production", self.search.clone(), &self.stop)?;
        let base = production.copy("demo-base")?;
        check_interrupted(&self.stop)?;
        let change = production.copy("demo-change")?;
        check_interrupted(&self.stop)?;
        let seconds = self.duration.as_secs_f64();
        report(&format!(
            "2/4  {}: {} clients shop for {seconds} s through the pooler, which captures their \
             traffic",
            production.version(),
            workload::CLIENTS.len(),
        ));
        let image = self.capture(&production, &folder, report)?;
        // The copies have the machine for themselves.
        drop(production);
        report(&format!("3/4  the change: index {PLANTED_INDEX} is dropped in one of the copies"));
        change.run(&dataset::change())?;
        report(&format!(
            "4/4  rehearsing it: the capture is replayed {RUNS} times on each copy, in turns"
        ));
        let options = self.options(&folder, &base, &change, image)?;
        let rehearsal = Rehearsal { options, stop: Arc::clone(&self.stop) };
        let report = rehearsal.run(&RehearsalLines(report))?;
        Ok(DemoOutcome { report, page: folder.path().join(REPORT) })
    }

    /// Runs the clients and captures their traffic. Then saves an image of the server's cache, and
    /// returns its path if that was possible.
    fn capture(
        &self,
        production: &ShopServer,
        folder: &OutputFolder,
        report: &(dyn Fn(&str) + Sync),
    ) -> Result<Option<PathBuf>, DemoError> {
        production.run(dataset::WARM_UP)?;
        let pooler = CapturingPooler::start(production, folder)?;
        let executed = workload::run(pooler.target(), self.duration, &self.stop)?;
        let events = pooler.finish()?.tally.events;
        check_interrupted(&self.stop)?;
        report(&format!("     {executed} statements by the clients, {events} events captured"));
        Ok(save_image(production, &folder.cache_image(), report))
    }

    fn options(
        &self,
        folder: &OutputFolder,
        base: &ShopServer,
        change: &ShopServer,
        image: Option<PathBuf>,
    ) -> Result<RehearsalOptions, DemoError> {
        Ok(RehearsalOptions {
            input: RehearsalInput::Capture(folder.capture()),
            base: base.admin()?,
            change: ChangeSource::Server(Box::new(change.admin()?)),
            dir: folder.path().to_owned(),
            // An earlier demo had other servers.
            force: true,
            runs: RUNS,
            rate: Rate::default(),
            identities: IdentityMap::default(),
            is_single_database: false,
            workers: 1,
            reset: ResetMode::Copy,
            vacuum: true,
            warm_image: image,
            warm_up: WARM_UP,
            is_observed: true,
            change_min: None,
            fail_on: Vec::new(),
            // The values are invented.
            has_examples: true,
            allow_production: None,
        })
    }
}

/// Saves an image of the server's cache. If that is not possible, for example because this process
/// may not read the server's memory, the rehearsal replays the start of the capture instead.
fn save_image(
    production: &ShopServer,
    path: &Path,
    report: &(dyn Fn(&str) + Sync),
) -> Option<PathBuf> {
    let taken = production.admin().map_err(|error| error.to_string()).and_then(|target| {
        let dumped = dump(&target, DumpSource::Best).map_err(|error| error.to_string())?;
        dumped.image.save(path, Generations(0)).map_err(|error| error.to_string())
    });
    match taken {
        Ok(()) => {
            report("     the cache of production is saved, to warm the copies before each run");
            Some(path.to_owned())
        }
        Err(reason) => {
            tracing::debug!(reason, "no cache image");
            None
        }
    }
}

/// Fails with [`DemoError::Interrupted`] if the flag is set.
pub(crate) fn check_interrupted(stop: &AtomicBool) -> Result<(), DemoError> {
    if stop.load(Ordering::Relaxed) { Err(DemoError::Interrupted) } else { Ok(()) }
}

/// Reports the rehearsal's replays and comparison before they start, and its notes.
struct RehearsalLines<'a>(&'a (dyn Fn(&str) + Sync));

impl RehearsalObserver for RehearsalLines<'_> {
    fn on_step(&self, progress: &StepProgress) {
        let StepProgress { step, number, steps, .. } = progress;
        if matches!(step, RehearsalStep::Replay(_) | RehearsalStep::Compare) {
            (self.0)(&format!("     {number}/{steps}  {step}"));
        }
    }

    fn on_note(&self, text: &str) {
        (self.0)(&format!("     note: {text}"));
    }
}
