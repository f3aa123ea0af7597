//! [`Activities`]: the activity of the servers in all runs, and how it differs between the sides.

use std::{collections::BTreeSet, path::Path};

use howdah_report::rehearsal::{
    ActivityFigure, BothSides, RehearsalSide, RunSummary, ServerDifference,
};

use super::series::{ActivityMeans, ActivitySeries};

/// Minimum difference to report, in sessions that wait on average. A smaller one cannot explain a
/// change of many statements.
const WAITING_MIN: f64 = 0.1;

/// Minimum difference between the shares of cache hits to report.
const HIT_SHARE_MIN: f64 = 0.02;

/// Minimum difference to report, in bytes per second written to temporary files.
const TEMP_BYTES_MIN: f64 = 256.0 * 1024.0;

/// Minimum factor between the sides to report, except for the share of cache hits.
const FACTOR_MIN: f64 = 1.5;

/// Classes of wait events that say nothing about the speed of the server: in `Client`, it waits for
/// the client; in `Activity`, a background process has nothing to do.
const IGNORED_CLASSES: &[&str] = &["Client", "Activity"];

/// The activity of the servers during a rehearsal: one series for each run, in the order of the
/// report. A series is `None` if the run was not observed or its file cannot be read.
pub(crate) struct Activities {
    runs: Vec<(RehearsalSide, Option<ActivitySeries>)>,
}

impl Activities {
    /// Reads the activity of the runs in `dir`.
    pub(crate) fn read(dir: &Path, runs: &[RunSummary]) -> Self {
        let read = |run: &RunSummary| (run.side, ActivitySeries::read(&dir.join(&run.name)));
        Self { runs: runs.iter().map(read).collect() }
    }

    /// Returns the activity of each run.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Option<&ActivitySeries>> {
        self.runs.iter().map(|(_, series)| series.as_ref())
    }

    /// Returns the differences that may explain a change of speed.
    pub(crate) fn differences(&self) -> Vec<ServerDifference> {
        let means = |side| {
            let runs = self.runs.iter().filter(|run| run.0 == side);
            ActivityMeans::over(runs.filter_map(|(_, series)| series.as_ref()))
        };
        differences(&means(RehearsalSide::Base), &means(RehearsalSide::Change))
    }
}

fn differences(base: &ActivityMeans, change: &ActivityMeans) -> Vec<ServerDifference> {
    let mut found = Vec::new();
    let mut add = |figure, base, change| {
        let values = BothSides { base, change };
        found.push(ServerDifference::ActivityDiffers { figure, values });
    };
    // A side that was not observed has no figures, which is not the same as zero.
    if let (Some(base), Some(change)) = (&base.waiting, &change.waiting) {
        let classes: BTreeSet<&String> = base.keys().chain(change.keys()).collect();
        for class in classes.into_iter().filter(|class| !IGNORED_CLASSES.contains(&class.as_str()))
        {
            let [base, change] =
                [base, change].map(|waiting| waiting.get(class).copied().unwrap_or(0.0));
            if is_large(base, change, WAITING_MIN) {
                add(ActivityFigure::Waiting { class: class.clone() }, base, change);
            }
        }
    }
    if let (Some(base), Some(change)) = (base.hit_share, change.hit_share)
        && (base - change).abs() >= HIT_SHARE_MIN
    {
        add(ActivityFigure::CacheHits, base, change);
    }
    if let (Some(base), Some(change)) = (base.temp_bytes, change.temp_bytes)
        && is_large(base, change, TEMP_BYTES_MIN)
    {
        add(ActivityFigure::TemporaryFiles, base, change);
    }
    if let (Some(base), Some(change)) = (base.checkpoints, change.checkpoints)
        && is_large(base, change, 0.5)
    {
        add(ActivityFigure::Checkpoints, base, change);
    }
    found
}

/// Whether two values differ by at least `minimum`, and by at least the factor [`FACTOR_MIN`].
fn is_large(base: f64, change: f64, minimum: f64) -> bool {
    let (smaller, larger) = (base.min(change), base.max(change));
    larger - smaller >= minimum && larger >= smaller * FACTOR_MIN
}

#[test]
fn only_large_differences_are_found() {
    let means = |lock: f64, hit_share: f64, temp_bytes: f64| ActivityMeans {
        waiting: Some([("Lock".to_owned(), lock), ("Client".to_owned(), 10.0 * lock)].into()),
        hit_share: Some(hit_share),
        temp_bytes: Some(temp_bytes),
        checkpoints: Some(1.0),
    };
    let base = means(0.01, 0.999, 0.0);
    assert_eq!(differences(&base, &means(0.05, 0.99, 1_000.0)), []);
    let unobserved = ActivityMeans::default();
    assert_eq!(differences(&unobserved, &means(1.5, 0.7, 5_000_000.0)), []);
    let texts: Vec<String> =
        differences(&base, &means(1.5, 0.7, 5_000_000.0)).iter().map(ToString::to_string).collect();
    assert_eq!(
        texts,
        [
            "sessions waiting for Lock during the runs: 0.01 → 1.50 on average",
            "pages found in the buffer cache during the runs: 99.9 % → 70.0 %",
            "temporary files during the runs: 0 B/s → 4.77 MiB/s",
        ]
    );
}
