//! The connections that load: as many as asked for, each taking pieces until none is left.

use std::{
    collections::BTreeMap,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use howdah_connect::Target;

use super::{
    MAX_JOBS, Observer, Options,
    catalog::Found,
    plan::Piece,
    queue::Queue,
    report::{Outcome, Problem},
    throttle::Throttle,
    way::Mode,
    worker::{self, Shared},
};
use crate::dump;

/// What the connections have to know.
pub(super) struct Crew<'a> {
    pub(super) target: &'a Target,
    pub(super) options: &'a Options,
    pub(super) observer: &'a dyn Observer,
    pub(super) mode: Mode,
    /// When the server was started, as it says itself.
    pub(super) started: &'a str,
    pub(super) page_bytes: u32,
    /// Where the relations are, by the number they have in pieces.
    pub(super) places: &'a [Result<Found, Problem>],
    /// Whether there is a free buffer, if that can be told at once.
    pub(super) has_room: &'a (dyn Fn() -> bool + Sync),
}

/// How the pieces were loaded.
pub(super) struct Worked {
    pub(super) outcomes: Vec<Outcome>,
    /// Whether pieces are left because the end was asked for.
    pub(super) is_cut_short: bool,
}

impl Crew<'_> {
    /// Loads the pieces. Nothing, if the server restarted meanwhile.
    pub(super) fn work(self, pieces: Vec<Piece>, outcomes: Vec<Outcome>) -> Option<Worked> {
        self.observer.planned(pieces.iter().map(Piece::pages).sum());
        let (databases, numbered) = self.number(pieces);
        let jobs = self.options.jobs.clamp(1, MAX_JOBS).min(numbered.len());
        let shared = Shared {
            target: self.target,
            options: self.options,
            observer: self.observer,
            mode: self.mode,
            started: self.started,
            page_bytes: self.page_bytes,
            databases: &databases,
            places: self.places,
            queue: Queue::new(numbered),
            throttle: Throttle::new(self.options.bytes_per_second, self.options.max_latency),
            outcomes: Mutex::new(outcomes),
            read_whole: Mutex::default(),
            searches: Mutex::default(),
            is_restarted: AtomicBool::new(false),
            is_done: AtomicBool::new(false),
            has_room: self.has_room,
        };
        if !self.options.only_look {
            run(&shared, jobs);
        }
        if shared.is_restarted.load(Ordering::Relaxed) {
            return None;
        }
        let left = shared.queue.drain();
        let mut outcomes = shared.outcomes.into_inner().unwrap_or_else(PoisonError::into_inner);
        for piece in &left {
            outcomes[piece.relation].pages.failed += piece.pages();
        }
        Some(Worked { outcomes, is_cut_short: !left.is_empty() })
    }

    /// The databases of pieces, and pieces with the number of theirs.
    fn number(&self, pieces: Vec<Piece>) -> (Vec<String>, Vec<(usize, Piece)>) {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut databases = Vec::new();
        let numbered = pieces
            .into_iter()
            .filter_map(|piece| {
                let found = self.places[piece.relation].as_ref().ok()?;
                let number = *numbers.entry(&found.database).or_insert_with(|| {
                    databases.push(found.database.clone());
                    databases.len() - 1
                });
                Some((number, piece))
            })
            .collect();
        (databases, numbered)
    }
}

fn run(shared: &Shared<'_>, jobs: usize) {
    thread::scope(|scope| {
        if shared.options.max_latency.is_some() {
            let connect = || dump::connect(shared.target);
            scope.spawn(move || shared.throttle.watch(connect, || shared.is_over()));
        }
        let workers: Vec<_> =
            (0..jobs).map(|who| scope.spawn(move || worker::run(shared, who))).collect();
        for worker in workers {
            // A panic goes on when the scope ends.
            let _ = worker.join();
        }
        shared.is_done.store(true, Ordering::Relaxed);
    });
}
