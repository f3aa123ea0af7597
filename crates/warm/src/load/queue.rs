//! The pieces that are left to load, shared by all connections.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::plan::Piece;

/// Pieces by class, and in a class by database: a connection stays with its database while that has
/// pieces of the class, and no class is begun before the one above it is handed out.
#[derive(Debug)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    classes: BTreeMap<u8, BTreeMap<usize, VecDeque<Piece>>>,
    /// Pieces to be tried once more, when all others are done.
    again: VecDeque<(usize, Piece)>,
}

/// A piece to load.
#[derive(Debug)]
pub(super) struct Taken {
    /// Its database's number.
    pub(super) database: usize,
    pub(super) piece: Piece,
    /// Whether it was tried before.
    pub(super) is_second_try: bool,
}

impl Queue {
    /// Takes pieces in their order, with the number of their database.
    pub(super) fn new(pieces: impl IntoIterator<Item = (usize, Piece)>) -> Self {
        let mut classes: BTreeMap<u8, BTreeMap<usize, VecDeque<Piece>>> = BTreeMap::new();
        for (database, piece) in pieces {
            classes.entry(piece.class).or_default().entry(database).or_default().push_back(piece);
        }
        Self(Mutex::new(State { classes, again: VecDeque::new() }))
    }

    /// The next piece for a connection to the database `here`.
    pub(super) fn take(&self, here: Option<usize>) -> Option<Taken> {
        let mut state = self.state();
        while let Some(mut class) = state.classes.last_entry() {
            let databases = class.get_mut();
            let longest = || databases.iter().max_by_key(|(_, pieces)| pieces.len());
            let database = match here.filter(|here| databases.contains_key(here)) {
                Some(here) => Some(here),
                None => longest().map(|(&database, _)| database),
            };
            let Some(database) = database else {
                class.remove();
                continue;
            };
            let Some(piece) = databases.get_mut(&database).and_then(VecDeque::pop_front) else {
                databases.remove(&database);
                continue;
            };
            return Some(Taken { database, piece, is_second_try: false });
        }
        let (database, piece) = state.again.pop_front()?;
        Some(Taken { database, piece, is_second_try: true })
    }

    /// Gives a piece back, to be tried once more after all others.
    pub(super) fn later(&self, database: usize, piece: Piece) {
        self.state().again.push_back((database, piece));
    }

    /// Takes all that is left.
    pub(super) fn drain(&self) -> Vec<Piece> {
        let mut left = Vec::new();
        while let Some(taken) = self.take(None) {
            left.push(taken.piece);
        }
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and a queue is whole between any two of its steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::Fork, load::plan::Run};

    fn piece(relation: usize, class: u8) -> Piece {
        Piece { relation, fork: Fork::Main, class, runs: vec![Run { first: 0, last: 0 }] }
    }

    #[test]
    fn a_connection_stays_where_it_is_within_a_class_only() {
        let queue = Queue::new([
            (0, piece(1, 5)),
            (1, piece(2, 5)),
            (1, piece(3, 5)),
            (0, piece(4, 2)),
            (1, piece(5, 2)),
        ]);
        let take = |here| queue.take(here).map(|taken| (taken.database, taken.piece.relation));
        assert_eq!(take(None), Some((1, 2)), "the database with most to do");
        assert_eq!(take(Some(1)), Some((1, 3)));
        assert_eq!(take(Some(1)), Some((0, 1)), "the class is finished first");
        assert_eq!(take(Some(1)), Some((1, 5)));
        assert_eq!(take(Some(1)), Some((0, 4)));
        assert_eq!(take(Some(0)), None);
    }

    #[test]
    fn what_is_given_back_comes_last() {
        let queue = Queue::new([(0, piece(1, 5)), (0, piece(2, 1))]);
        let first = queue.take(None).unwrap();
        assert!(!first.is_second_try);
        queue.later(first.database, first.piece);
        assert_eq!(queue.take(None).unwrap().piece.relation, 2);
        let again = queue.take(None).unwrap();
        assert!(again.is_second_try && again.piece.relation == 1);
        assert!(queue.take(None).is_none());
    }
}
