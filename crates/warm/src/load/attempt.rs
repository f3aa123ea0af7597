//! One attempt to load: from the first look at the server to the last.

use std::{collections::BTreeMap, panic::resume_unwind, thread, time::Duration};

use howdah_connect::{Client, Target};
use howdah_inspect::ClockSweep;

use super::{
    LoadError, Observer, Options,
    catalog::{self, Found, Search},
    crew::{Crew, Worked},
    occupancy::Occupancy,
    plan::{self, Bounds, PIECE_PAGES, Piece, Plan},
    report::{Loaded, Outcome, Problem, Residency, Unseen},
    session,
    way::Mode,
    worker,
};
use crate::{
    dump::{Choice, DumpError, Facts, QueryFailure, Sight},
    image::{CacheImage, Fork, RelationFile},
};

/// What is known when an attempt begins.
pub(super) struct Attempt<'a> {
    image: &'a CacheImage,
    target: Target,
    options: &'a Options,
    observer: &'a dyn Observer,
    client: Client,
    sight: Sight,
    facts: Facts,
    started: String,
}

/// How an attempt ended.
pub(super) enum Ended {
    Done(Box<Loaded>),
    /// What was loaded is lost.
    Restarted,
}

impl<'a> Attempt<'a> {
    /// Connects to the server, and asks it who it is.
    pub(super) fn new(
        image: &'a CacheImage,
        target: &Target,
        options: &'a Options,
        observer: &'a dyn Observer,
    ) -> Result<Self, LoadError> {
        let mut client =
            worker::reach(target, options.patience, observer).map_err(LoadError::Server)?;
        let facts = Facts::ask(&mut client).map_err(LoadError::Server)?;
        let started = client.one_value(session::STARTED).map_err(QueryFailure::from);
        let started = started.map_err(LoadError::Server)?.unwrap_or_default();
        if facts.page_bytes != image.origin.page_bytes {
            return Err(LoadError::PageBytes {
                image: image.origin.page_bytes,
                server: facts.page_bytes,
            });
        }
        let target = target.clone();
        let sight = Sight::by(options.look);
        Ok(Self { image, target, options, observer, client, sight, facts, started })
    }

    pub(super) fn run(mut self) -> Result<Ended, LoadError> {
        let (places, seen) = self.find_and_look();
        let mut outcomes: Vec<_> =
            (0..self.image.relations.len()).map(|at| Outcome::of(self.image, at)).collect();
        self.note_rewritten(&places, &mut outcomes);
        let bounds = self.bounds(seen.as_ref().ok());
        let Plan { pieces, resident, wanted } =
            plan::plan(self.image, &places, seen.as_ref().ok(), bounds, &mut outcomes);
        let goals = Goals { plan: goal(&places, &pieces, resident), image: together(wanted) };
        let Some(Worked { outcomes, is_cut_short }) = self.load(&places, pieces, outcomes) else {
            return Ok(Ended::Restarted);
        };
        let residency = match seen {
            Ok(_) => self.look().map(|seen| goals.residency(&seen)),
            Err(error) => Err(error),
        };
        Ok(Ended::Done(Box::new(Loaded {
            outcomes,
            is_cut_short,
            residency: residency.map_err(|error| Unseen(Box::new(error))),
            limited: 0,
            buffers: self.facts.buffers,
            is_origin_unknown: self.image.origin.system_identifier == 0,
            page_bytes: self.facts.page_bytes,
            elapsed: Duration::ZERO,
        })))
    }

    /// Where the relations are, which takes connections of its own, and meanwhile what is in the cache.
    fn find_and_look(&mut self) -> (Vec<Result<Found, Problem>>, Result<Occupancy, DumpError>) {
        let Self { image, target, options, observer, client, sight, facts, .. } = self;
        let (image, target, facts) = (*image, &*target, &*facts);
        let (options, observer) = (*options, *observer);
        thread::scope(|scope| {
            let places =
                scope.spawn(|| Search { image, target, facts, options, observer }.places());
            let seen = Occupancy::see(client, facts, sight, target.database());
            (places.join().unwrap_or_else(|panic| resume_unwind(panic)), seen)
        })
    }

    fn look(&mut self) -> Result<Occupancy, DumpError> {
        let database = self.target.database();
        Occupancy::see(&mut self.client, &self.facts, &mut self.sight, database)
    }

    fn note_rewritten(&self, places: &[Result<Found, Problem>], outcomes: &mut [Outcome]) {
        let is_same_cluster = catalog::is_same_cluster(self.image, &self.facts);
        for ((relation, place), outcome) in self.image.relations.iter().zip(places).zip(outcomes) {
            if let Ok(found) = place {
                outcome.is_rewritten = !is_same_cluster || found.file != relation.file;
                outcome.renamed = found.renamed.clone();
            }
        }
    }

    /// Room for as many pages as buffers are free. Some are spared: sessions need them for their
    /// catalogs, ours too. Where free ones cannot be counted, all are taken for free. Only to look, no
    /// room is needed.
    fn bounds(&self, seen: Option<&Occupancy>) -> Bounds {
        let all = u64::from(self.facts.buffers);
        let room = match seen {
            _ if self.options.only_look => u64::MAX,
            Some(seen) if !self.options.evict => {
                seen.free.saturating_sub((all / 64).clamp(64, 1024))
            }
            _ => all,
        };
        let piece = match (self.options.bytes_per_second, self.options.max_latency) {
            // A tenth of a second's bytes, so that the rate is even.
            (Some(rate), _) => rate / u64::from(self.facts.page_bytes) / 10,
            (None, Some(_)) => u64::from(PIECE_PAGES / 16),
            (None, None) => u64::from(PIECE_PAGES),
        };
        Bounds { room, piece: u32::try_from(piece).unwrap_or(PIECE_PAGES).clamp(1, PIECE_PAGES) }
    }

    /// Loads the pieces. Nothing, if the server restarted meanwhile.
    fn load(
        &mut self,
        places: &[Result<Found, Problem>],
        pieces: Vec<Piece>,
        outcomes: Vec<Outcome>,
    ) -> Option<Worked> {
        let sweep = self.clock_sweep();
        // A server that ends is noticed by the connections.
        let has_room = || {
            let state = sweep.as_ref().and_then(|sweep| sweep.read().ok());
            state.is_none_or(|state| state.has_free_buffers)
        };
        let crew = Crew {
            target: &self.target,
            options: self.options,
            observer: self.observer,
            mode: Mode::Buffer,
            started: &self.started,
            page_bytes: self.facts.page_bytes,
            places,
            has_room: &has_room,
        };
        crew.work(pieces, outcomes)
    }

    /// What tells at any moment whether a buffer is free, which the first look cannot: others take some
    /// meanwhile. Where memory cannot be read, that count has to do.
    fn clock_sweep(&mut self) -> Option<ClockSweep> {
        if self.options.evict || self.options.look == Choice::PgBuffercache {
            return None;
        }
        self.sight.server(&mut self.client).ok()?.clock_sweep().ok()
    }
}

/// The blocks that should be in the cache in the end.
struct Goals {
    /// Those of the plan.
    plan: Goal,
    /// Those of the image, also where there was no room for them.
    image: Goal,
}

impl Goals {
    fn residency(&self, seen: &Occupancy) -> Residency {
        let planned = self.plan.values().map(|blocks| blocks.len() as u64).sum();
        let (resident, of_image) = (resident(&self.plan, seen), resident(&self.image, seen));
        Residency { planned, resident, of_image, source: seen.source }
    }
}

type Goal = BTreeMap<(RelationFile, Fork), Vec<u32>>;

/// The blocks of a plan.
fn goal(
    places: &[Result<Found, Problem>],
    pieces: &[Piece],
    resident: Vec<(RelationFile, Fork, Vec<u32>)>,
) -> Goal {
    let mut goal = together(resident);
    for piece in pieces {
        if let Ok(found) = &places[piece.relation] {
            let blocks = piece.runs.iter().flat_map(|run| run.first..=run.last);
            goal.entry((found.file, piece.fork)).or_default().extend(blocks);
        }
    }
    // Runs pass over pages that are there already.
    sort(&mut goal);
    goal
}

fn together(forks: Vec<(RelationFile, Fork, Vec<u32>)>) -> Goal {
    let mut goal = Goal::new();
    for (file, fork, blocks) in forks {
        goal.entry((file, fork)).or_default().extend(blocks);
    }
    sort(&mut goal);
    goal
}

fn sort(goal: &mut Goal) {
    for blocks in goal.values_mut() {
        blocks.sort_unstable();
        blocks.dedup();
    }
}

/// How many blocks of `goal` are in the cache.
fn resident(goal: &Goal, seen: &Occupancy) -> u64 {
    let of_fork = |(&(file, fork), blocks): (&(RelationFile, Fork), &Vec<u32>)| {
        let held = seen.blocks(file, fork);
        blocks.iter().filter(|block| held.binary_search(block).is_ok()).count() as u64
    };
    goal.iter().map(of_fork).sum()
}
