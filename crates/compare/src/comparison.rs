//! [`Comparison`]: all that is known of two runs side by side.

use howdah_sql::Fingerprint;
use howdah_traffic::SqlState;

use crate::{About, Overall, Settings, Verdict, Words, samples::Query};

/// Two runs side by side, query by query.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Comparison {
    /// What counted as a change.
    pub settings: Settings,
    /// The run that is compared with.
    pub base: Side,
    /// The run that is judged.
    pub run: Side,
    /// What a second run of the base's setup showed, if there was one.
    pub control: Option<Control>,
    /// What became of the workload.
    pub verdict: Overall,
    /// Every query of either run, the largest change of total time to the worse first.
    pub queries: Vec<QueryComparison>,
    /// What makes the two runs hard to compare.
    pub caveats: Vec<Caveat>,
    /// The factor by which the typical judged query changed: 1 if the changes are those of single
    /// queries. `None` if no query could be judged.
    pub drift: Option<f64>,
}

/// One of the two runs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Side {
    /// What it is.
    pub about: About,
    /// Executions asked of the server.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Executions that were captured but never sent.
    pub skipped: u64,
    /// Time of all executions that ended well.
    pub total_us: u64,
    /// Executions that belong to no query of the comparison.
    pub unattributed: u64,
}

/// A second run of the base's setup, which measures what differs without a change.
#[derive(Clone, Debug, PartialEq)]
pub struct Control {
    /// What it is.
    pub about: About,
    /// The factor by which the typical query differed from the base run, in either direction.
    pub noise: f64,
}

/// One query in both runs.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct QueryComparison {
    /// Names the query.
    pub fingerprint: Fingerprint,
    /// How it reads, as far as the runs say.
    pub words: Words,
    /// What became of it.
    pub verdict: Verdict,
    /// How it did in the base run, if it was part of it.
    pub base: Option<Measures>,
    /// How it did in the run that is judged, if it was part of it.
    pub run: Option<Measures>,
    /// By how much typical executions changed, if there were enough of them.
    pub change: Option<Change>,
    /// By how much the mean changed, with its interval at 99 %; worked out only where the mean and
    /// the typical executions disagree.
    pub mean_change: Option<Interval>,
    /// The factor by which it differed between base and control, if there is a control.
    pub noise: Option<f64>,
    /// Time that the change costs, or saves if negative, over all executions of the base run.
    pub impact_us: f64,
    /// Failures by error code where the runs differ.
    pub errors: Vec<ErrorChange>,
    /// What changed in its plan, if that was asked and found.
    pub because: Option<String>,
    /// A replay deduced types for its parameters, because its capture holds none.
    pub types_deduced: bool,
}

/// One query in one run. Times are in microseconds and of executions that ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measures {
    /// Executions asked of the server.
    pub calls: u64,
    /// Those that failed.
    pub errors: u64,
    /// Executions that were captured but never sent.
    pub skipped: u64,
    /// Executions whose time is known: the times below are theirs.
    pub timed: u64,
    /// Mean time.
    pub mean_us: f64,
    /// Half of the executions took at most this long.
    pub p50_us: u64,
    /// Nine of ten took at most this long.
    pub p90_us: u64,
    /// 95 of 100 took at most this long.
    pub p95_us: u64,
    /// 99 of 100 took at most this long.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
    /// All together.
    pub total_us: u64,
    /// Rows per execution, where the server said how many.
    pub rows_mean: Option<f64>,
}

/// By how much typical executions changed, and how sure that is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change {
    /// The factor, by Hodges and Lehmann on logarithms, and its interval at
    /// [`Settings::confidence`].
    pub factor: Interval,
    /// p-value of the Mann–Whitney statistic against no change at all, its variance taken over
    /// blocks of time.
    pub p: f64,
    /// The same against any change of less than half of [`Settings::change_min`] (in logarithms),
    /// adjusted for the number of queries by Benjamini and Hochberg: what the verdict goes by.
    pub q: f64,
}

/// An estimate and the interval it is known to lie in.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The estimate.
    pub estimate: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// Failures of one query with one error code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorChange {
    /// The code, if a server said one.
    pub sqlstate: Option<SqlState>,
    /// The message of one such failure.
    pub message: String,
    /// How many in the base run.
    pub base: u64,
    /// How many in the run that is judged.
    pub run: u64,
}

impl ErrorChange {
    /// Whether the base run had none of them.
    pub fn is_new(&self) -> bool {
        self.base == 0
    }

    /// Whether only the base run had them.
    pub fn is_gone(&self) -> bool {
        self.run == 0
    }
}

/// Something that makes two runs hard to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Caveat {
    /// They replayed different captures.
    DifferentCaptures,
    /// They were replayed at different paces.
    DifferentRates,
    /// A run was stopped before the end of its capture.
    Incomplete {
        /// Its name.
        name: String,
    },
    /// Nearly all judged queries moved by about [`Comparison::drift`]: perhaps the machine, not the
    /// change.
    EverythingMoved,
    /// Parameter types of some queries were deduced in one of the runs only, or in both: their plans
    /// may be others than in production.
    TypesDeduced {
        /// How many queries.
        queries: usize,
    },
}

impl Measures {
    pub(crate) fn of(query: &Query) -> Self {
        let [p50_us, p90_us, p95_us, p99_us] = query.percentiles_us([0.5, 0.9, 0.95, 0.99]);
        Self {
            calls: query.calls(),
            errors: query.failed,
            skipped: query.skipped,
            timed: query.timed(),
            mean_us: query.mean_us(),
            p50_us,
            p90_us,
            p95_us,
            p99_us,
            max_us: query.max_us(),
            total_us: query.total_us(),
            rows_mean: query.rows_mean(),
        }
    }
}

impl QueryComparison {
    /// Whether the executions returned or changed different numbers of rows, on average.
    pub fn rows_differ(&self) -> bool {
        let rows = |side: Option<Measures>| side.and_then(|side| side.rows_mean);
        match (rows(self.base), rows(self.run)) {
            // Sums of whole numbers divided by equal counts: equal means are equal exactly.
            (Some(base), Some(run)) => base != run,
            _ => false,
        }
    }
}

impl Comparison {
    /// The queries that got slower, worst first.
    pub fn slower(&self) -> impl Iterator<Item = &QueryComparison> {
        self.queries.iter().filter(|query| query.verdict.is_slower())
    }

    /// The queries that got faster, the largest gain last.
    pub fn faster(&self) -> impl Iterator<Item = &QueryComparison> {
        self.queries.iter().filter(|query| query.verdict.is_faster())
    }
}
