//! What became of a load, relation by relation. Its sums close: every page that was wanted is resident
//! already, loaded, or left for a reason.

use std::{sync::Arc, time::Duration};

use howdah_connect::SqlError;

use super::way::Way;
use crate::{
    diff::Known,
    dump::{DumpError, QueryFailure},
    image::{CacheImage, QualifiedName, Source},
};

/// What became of a load.
#[derive(Debug)]
pub struct Loaded {
    /// What became of each relation, in the order of the image.
    pub outcomes: Vec<Outcome>,
    /// Whether its end was asked for before all was done.
    pub is_cut_short: bool,
    /// How much of the plan and of the image is in the cache now.
    pub residency: Result<Residency, Unseen>,
    /// Pages of the image that [`super::Options::limit`] left out: the relations do not count them.
    pub limited: u64,
    /// Buffers of the server.
    pub buffers: u32,
    /// Whether the image does not say which cluster it is from, so that its file numbers had to be
    /// believed.
    pub is_origin_unknown: bool,
    /// Bytes of a page.
    pub page_bytes: u32,
    /// How long it took.
    pub elapsed: Duration,
}

/// What became of one relation of the image.
#[derive(Debug)]
pub struct Outcome {
    /// Its database; nothing for the shared catalogs, and where the image does not know.
    pub database: Option<String>,
    /// Its name, or its files where no name is known.
    pub relation: Known,
    /// Its pages.
    pub pages: Pages,
    /// Whether its files are others than in the image, so that its pages were chosen by their share.
    pub is_rewritten: bool,
    /// What it is called now, if it was found by its file and has another name than in the image.
    pub renamed: Option<Renamed>,
    /// The ways by which pages were loaded.
    pub ways: Vec<Way>,
    /// What stopped it, or part of it.
    pub problem: Option<Problem>,
}

/// The present name of a relation that was renamed, or whose schema or database was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// Its database.
    pub database: String,
    /// Its schema and name.
    pub name: QualifiedName,
    /// Whether another relation of its database has its former name.
    pub is_name_taken: bool,
}

/// Pages of a relation, or of all: `wanted` is the sum of those after it.
///
/// `in_image` is the sum of `beyond_end`, `not_found` and `wanted`, but for rewritten relations, whose
/// pages are as many as their length now asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pages {
    /// In the image.
    pub in_image: u64,
    /// Of the image, and beyond the end of the relation, which is shorter now.
    pub beyond_end: u64,
    /// Of the image, in relations or databases that were not found or cannot be entered.
    pub not_found: u64,
    /// To be in the cache, after relations were looked up.
    pub wanted: u64,
    /// That were in the cache before.
    pub resident: u64,
    /// That were loaded.
    pub loaded: u64,
    /// Left out because the cache has no room for them.
    pub no_room: u64,
    /// Not loaded for another reason: see [`Outcome::problem`].
    pub failed: u64,
}

/// What stopped the loading of a relation.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Its database is not on this server.
    #[error("its database is not on this server")]
    NoDatabase,
    /// Its database lets nobody in, or not this role.
    #[error("its database cannot be connected to: {0}")]
    NoAccess(Arc<QueryFailure>),
    /// Its database allows no connections.
    #[error("its database allows no connections")]
    Closed,
    /// No relation has this name.
    #[error("no relation has this name now")]
    Dropped,
    /// The image knows no name for it, and is of another server, whose file numbers mean nothing here.
    #[error("the image has no name for it, and is not of this server")]
    Nameless,
    /// What has the name now has no pages of its own.
    #[error("what has its name now, a {0}, has no pages")]
    NoPages(&'static str),
    /// It is shorter than in the image: these pages are no more.
    #[error("it is shorter than it was")]
    Shrunk,
    /// Another session holds a lock on it, or a standby keeps ending queries on it.
    #[error("it is locked by another session")]
    Locked,
    /// The role may not read it.
    #[error("{0}")]
    Denied(Box<SqlError>),
    /// Without `pg_prewarm` there is no way to this fork or kind of relation.
    #[error("without the extension pg_prewarm there is no way to load {0}")]
    NoWay(&'static str),
    /// The server refuses it.
    #[error("{0}")]
    Refused(Box<SqlError>),
    /// Pages of it cannot be read.
    #[error("pages are damaged: {0}")]
    Damaged(Box<SqlError>),
    /// The connection broke again and again.
    #[error("the connection was lost repeatedly: {0}")]
    Lost(Arc<QueryFailure>),
}

/// How much of an image is in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Residency {
    /// Pages of the plan: wanted, and with room for them.
    pub planned: u64,
    /// Those of them that are in the cache.
    pub resident: u64,
    /// Pages of the image that are in the cache, whether there was room to load them or not.
    pub of_image: u64,
    /// Who said so.
    pub source: Source,
}

/// Why nobody could say what is in the cache.
#[derive(Debug, thiserror::Error)]
#[error("the cache cannot be looked at")]
pub struct Unseen(#[source] pub Box<DumpError>);

impl Loaded {
    /// The sums over all relations.
    #[must_use]
    pub fn pages(&self) -> Pages {
        let mut sum = Pages::default();
        for Outcome { pages, .. } in &self.outcomes {
            sum.in_image += pages.in_image;
            sum.beyond_end += pages.beyond_end;
            sum.not_found += pages.not_found;
            sum.wanted += pages.wanted;
            sum.resident += pages.resident;
            sum.loaded += pages.loaded;
            sum.no_room += pages.no_room;
            sum.failed += pages.failed;
        }
        sum
    }

    /// Pages that are in the cache when the image is: all of it, at most as many as the server has
    /// buffers. Relations that were not found count with their pages in the image; pages beyond the end
    /// of a relation do not count, for there is nothing to load.
    #[must_use]
    pub fn expected(&self) -> u64 {
        let pages = self.pages();
        (pages.wanted + pages.not_found).min(u64::from(self.buffers))
    }

    /// Pages of the image that are in the cache: as it was seen, else as it was loaded.
    #[must_use]
    pub fn resident(&self) -> u64 {
        match &self.residency {
            Ok(seen) => seen.of_image,
            Err(_) => {
                let pages = self.pages();
                pages.resident + pages.loaded
            }
        }
    }

    /// The share of the image that is in the cache, 0 to 1. Lack of room, of rights or of a relation
    /// lowers it.
    #[must_use]
    pub fn share(&self) -> f64 {
        share(self.resident(), self.expected())
    }

    /// The share of the plan that is in the cache, 0 to 1: of what was found and had room.
    #[must_use]
    pub fn plan_share(&self) -> f64 {
        match &self.residency {
            Ok(seen) => share(seen.resident, seen.planned),
            Err(_) => {
                let pages = self.pages();
                share(pages.resident + pages.loaded, pages.wanted - pages.no_room)
            }
        }
    }
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 { 1.0 } else { (part as f64 / whole as f64).min(1.0) }
}

impl Outcome {
    /// The outcome of a relation before anything happened to it.
    pub(super) fn of(image: &CacheImage, at: usize) -> Self {
        let relation = &image.relations[at];
        Self {
            database: image.database_name(relation.file.database).map(str::to_owned),
            relation: match &relation.name {
                Some(name) => Known::Named(name.clone()),
                None => Known::File(relation.file),
            },
            pages: Pages { in_image: relation.page_count(), ..Pages::default() },
            is_rewritten: false,
            renamed: None,
            ways: Vec::new(),
            problem: None,
        }
    }

    pub(super) fn note_loaded(&mut self, pages: u64, way: Way) {
        self.pages.loaded += pages;
        if !self.ways.contains(&way) {
            self.ways.push(way);
        }
    }

    /// Notes that pages could not be loaded. The first reason stays, unless it is that a fork of little
    /// weight has no way.
    pub(super) fn fail(&mut self, pages: u64, problem: Problem) {
        self.pages.failed += pages;
        if matches!(self.problem, None | Some(Problem::NoWay(_))) {
            self.problem = Some(problem);
        }
    }
}

impl Problem {
    /// Whether the relation is gone for good, as opposed to kept from us.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::NoDatabase | Self::Dropped | Self::Shrunk | Self::NoPages(_))
    }
}
