//! The result of a load, by relation. The sums are consistent: every requested page is resident
//! already, loaded, or omitted for a reason.

use std::{fmt, sync::Arc, time::Duration};

use howdah_connect::SqlError;

use super::method::LoadMethod;
use crate::{
    diff::RelationIdentity,
    dump::{DumpError, QueryFailure},
    image::{CacheImage, ImageSource, QualifiedName},
};

/// The result of a load, in total and for each relation.
#[derive(Debug)]
pub struct LoadReport {
    /// The outcome of each relation, in the order of the image.
    pub outcomes: Vec<RelationOutcome>,
    /// Whether pages are left to load, because the load was stopped early or was a dry run.
    pub is_cut_short: bool,
    /// The result of the scan after the load: how much of the plan and of the image is in the
    /// cache.
    pub residency: Result<Residency, ResidencyError>,
    /// How far the usage counts of the image were restored; `None` if that was not requested, or
    /// pages are left to load.
    pub usage: Option<UsageReport>,
    /// Pages of the image that [`super::LoadOptions::limit`] excluded; they are not in the
    /// relations' counts.
    pub limited: u64,
    /// Number of buffers of the server (`shared_buffers`).
    pub buffers: u32,
    /// Whether the image does not record its cluster, so that its file numbers were trusted
    /// unchecked.
    pub is_origin_unknown: bool,
    /// Block size of the server (`block_size`).
    pub page_bytes: u32,
    /// Wall-clock time of the load.
    pub elapsed: Duration,
}

/// The outcome of one relation of the image.
#[derive(Debug)]
pub struct RelationOutcome {
    /// The relation's database; `None` for the shared catalogs, or if unknown.
    pub database: Option<String>,
    /// The relation's name, or its file if no name is known.
    pub relation: RelationIdentity,
    /// Numbers of the relation's pages, by outcome.
    pub pages: PageCounts,
    /// Whether the relation has another file than in the image, or the image is from another
    /// cluster. If so, blocks were scaled to the relation's present length, if both the present and
    /// the former length are known.
    pub is_rewritten: bool,
    /// The current name, if the relation was found by its file and has another name than in the
    /// image.
    pub renamed: Option<RenamedRelation>,
    /// How pages were found, if the relation was rewritten.
    pub mapped_by: Option<PageMapping>,
    /// The methods by which pages were loaded.
    pub methods: Vec<LoadMethod>,
    /// Why the relation was not loaded, or not completely.
    pub problem: Option<RelationProblem>,
}

/// How the pages of a rewritten relation were found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageMapping {
    /// By their share of its length, as the image has no keys of its rows, or they were not found.
    Length,
    /// By the keys of rows, which are in the order of the image; pages between them were
    /// interpolated.
    Keys {
        /// Number of rows that were found in that order.
        rows: usize,
    },
    /// The rows are in another order: only the pages of sampled rows were found.
    SampledRows {
        /// Number of rows that were found.
        rows: usize,
        /// Estimated percentage of the rows on the pages of the image that this reaches.
        percent: u8,
    },
    /// By descending the index for sampled rows of its table; the smallest gaps between the pages
    /// that this reads were added.
    Descents {
        /// Number of rows for which it was descended.
        rows: usize,
    },
}

impl PageMapping {
    /// Returns the name in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Keys { .. } => "keys",
            Self::SampledRows { .. } => "sampled rows",
            Self::Descents { .. } => "index descents",
        }
    }
}

/// Describes how pages were found, to complete "rewritten:".
impl fmt::Display for PageMapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Length => f.write_str("pages found by their share of its length"),
            Self::Keys { rows } => write!(f, "pages found by the keys of {rows} rows"),
            Self::SampledRows { rows, percent } => write!(
                f,
                "its rows are in another order: the pages of {rows} sampled rows have about \
                 {percent} % of the rows"
            ),
            Self::Descents { rows } => {
                write!(f, "pages found by descending the index for {rows} rows")
            }
        }
    }
}

/// The current name of a relation whose name, schema or database has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RenamedRelation {
    /// Current name of the database.
    pub database: String,
    /// Current schema and name.
    pub name: QualifiedName,
    /// Whether another relation of its database has its former name.
    pub is_name_taken: bool,
}

/// Page counts of a relation, or of all relations.
///
/// `requested` is the sum of the counts after it. `in_image` is the sum of `beyond_end`,
/// `not_found` and `requested`, except for rewritten relations, whose pages are scaled to their
/// length.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCounts {
    /// Number of pages in the image.
    pub in_image: u64,
    /// Pages in the image beyond the current end of the relation.
    pub beyond_end: u64,
    /// Pages in the image whose relation or database was not found or is not accessible.
    pub not_found: u64,
    /// Pages requested to be in the cache.
    pub requested: u64,
    /// Requested pages that were in the cache before the load.
    pub resident: u64,
    /// Pages that this load brought into the cache.
    pub loaded: u64,
    /// Pages omitted because the cache has no room for them.
    pub no_room: u64,
    /// Pages not loaded for another reason: see [`RelationOutcome::problem`], or because the load
    /// was stopped or was a dry run.
    pub failed: u64,
}

/// Reason why a relation was not loaded, or not completely.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelationProblem {
    /// The database does not exist on this server.
    #[error("its database does not exist on this server")]
    NoDatabase,
    /// The connection to the database, or the query for the relation, failed.
    #[error("cannot find it in its database: {0}")]
    NoAccess(Arc<QueryFailure>),
    /// The database does not allow connections.
    #[error("its database does not allow connections")]
    Closed,
    /// The relation was not found by its name or file number, or was dropped during the load.
    #[error("no relation has this name or file number")]
    Dropped,
    /// The image has no name for the relation or its database, and is from another cluster or
    /// database, whose file numbers are meaningless here.
    #[error("the image has no name for it or its database, and is from another server or database")]
    Nameless,
    /// The relation that has this name now is of a kind without storage, such as a view.
    #[error("its name now belongs to a {0}, which has no pages")]
    NoPages(&'static str),
    /// The relation is shorter than in the image, or was truncated during the load.
    #[error("it is shorter than in the image, or was truncated during the load")]
    Shrunk,
    /// Another session holds a lock on the relation, or the standby keeps cancelling queries on it.
    #[error("it is locked by another session, or the standby keeps cancelling queries on it")]
    Locked,
    /// The role lacks privileges on the relation.
    #[error("{0}")]
    Denied(Box<SqlError>),
    /// Without `pg_prewarm`, these pages of the relation cannot be loaded.
    #[error("the extension pg_prewarm is needed to load {0}")]
    NoMethod(&'static str),
    /// The server reported another error.
    #[error("{0}")]
    Refused(Box<SqlError>),
    /// Some pages of the relation are corrupted.
    #[error("pages are corrupted: {0}")]
    Damaged(Box<SqlError>),
    /// The connection was lost, or could not be made, repeatedly.
    #[error("the connection was lost repeatedly: {0}")]
    ConnectionLost(Arc<QueryFailure>),
}

/// The result of the scan after a load: how much of the image is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages of the plan: requested, and with room for them.
    pub planned: u64,
    /// Pages of the plan that are in the cache.
    pub resident: u64,
    /// Pages of the image that are in the cache, including those without room in the plan.
    pub of_image: u64,
    /// The interface by which the cache was scanned.
    pub source: ImageSource,
}

/// How far usage counts were restored after a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// Pages of the image that were in the cache after the load, without those that were not to be
    /// touched. If the cache could not be read, the pages of all relations that were loaded without
    /// a problem.
    pub pages: u64,
    /// Those of `pages` whose count is now at least that of the image.
    pub restored: u64,
    /// Number of touches; each added one to the count of a page.
    pub touches: u64,
    /// CPU time that the server used for the touches.
    pub cpu: Duration,
    /// CPU time that the server used for loading, the basis of the budget.
    pub load_cpu: Duration,
    /// Whether `cpu` and `load_cpu` were measured, which needs a server on this host. Otherwise
    /// they are estimated from the duration of statements: `load_cpu` from below, `cpu` from above.
    pub is_cpu_measured: bool,
    /// Wall-clock time of the touches.
    pub elapsed: Duration,
}

impl UsageReport {
    /// Returns the share of the pages whose count was restored, 0 to 1.
    pub fn share(&self) -> f64 {
        share(self.restored, self.pages)
    }
}

/// The reason why the cache could not be scanned before or after a load.
#[derive(Debug, thiserror::Error)]
#[error("cannot scan the cache")]
pub struct ResidencyError(#[source] pub Box<DumpError>);

impl LoadReport {
    /// Returns the sums of the counts over all relations.
    pub fn pages(&self) -> PageCounts {
        sum_counts(&self.outcomes)
    }

    /// Returns the number of pages that would be in the cache if the image were loaded completely,
    /// at most the number of buffers. Relations that were not found count with their pages in the
    /// image; pages beyond the end of a relation do not count, as there is nothing to load.
    pub fn expected(&self) -> u64 {
        let pages = self.pages();
        (pages.requested + pages.not_found).min(u64::from(self.buffers))
    }

    /// Returns the number of pages of the image in the cache, by the last scan or, without one, by
    /// the counts of the load.
    pub fn resident(&self) -> u64 {
        match &self.residency {
            Ok(seen) => seen.of_image,
            Err(_) => {
                let pages = self.pages();
                pages.resident + pages.loaded
            }
        }
    }

    /// Returns the share of the [expected](Self::expected) pages that is in the cache, 0 to 1. Lack
    /// of room, privileges or relations lowers it.
    pub fn share(&self) -> f64 {
        share(self.resident(), self.expected())
    }

    /// Returns the share of the plan in the cache, 0 to 1. Pages that were not found or had no room
    /// do not count.
    pub fn plan_share(&self) -> f64 {
        match &self.residency {
            Ok(seen) => share(seen.resident, seen.planned),
            Err(_) => {
                let pages = self.pages();
                share(pages.resident + pages.loaded, pages.requested - pages.no_room)
            }
        }
    }
}

/// Returns the sums of the counts of these relations.
pub(super) fn sum_counts(outcomes: &[RelationOutcome]) -> PageCounts {
    let mut sum = PageCounts::default();
    for RelationOutcome { pages, .. } in outcomes {
        sum.in_image += pages.in_image;
        sum.beyond_end += pages.beyond_end;
        sum.not_found += pages.not_found;
        sum.requested += pages.requested;
        sum.resident += pages.resident;
        sum.loaded += pages.loaded;
        sum.no_room += pages.no_room;
        sum.failed += pages.failed;
    }
    sum
}

impl PageCounts {
    /// Returns the number of requested pages that are not in the cache and have room. After a load
    /// these were loaded or failed.
    pub fn to_load(self) -> u64 {
        self.requested.saturating_sub(self.resident + self.no_room)
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) }
}

impl RelationOutcome {
    /// Creates the outcome of a relation before anything is loaded.
    pub(super) fn for_relation(image: &CacheImage, at: usize) -> Self {
        let relation = &image.relations[at];
        Self {
            database: image.database_name(relation.file.database).map(str::to_owned),
            relation: match &relation.name {
                Some(name) => RelationIdentity::Named(name.clone()),
                None => RelationIdentity::File(relation.file),
            },
            pages: PageCounts { in_image: relation.page_count(), ..PageCounts::default() },
            is_rewritten: false,
            mapped_by: None,
            renamed: None,
            methods: Vec::new(),
            problem: None,
        }
    }

    pub(super) fn record_loaded(&mut self, pages: u64, way: LoadMethod) {
        self.pages.loaded += pages;
        if !self.methods.contains(&way) {
            self.methods.push(way);
        }
    }

    /// Records that pages could not be loaded. The first problem is retained, but
    /// [`RelationProblem::NoMethod`] is replaced by any later one.
    pub(super) fn record_failed(&mut self, pages: u64, problem: RelationProblem) {
        self.pages.failed += pages;
        if matches!(self.problem, None | Some(RelationProblem::NoMethod(_))) {
            self.problem = Some(problem);
        }
    }
}

impl RelationProblem {
    /// Whether the relation or a part of it no longer exists, or has no storage, as opposed to
    /// being inaccessible.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NoDatabase | Self::Dropped | Self::Shrunk | Self::NoPages(_))
    }
}
