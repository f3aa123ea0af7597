//! The pieces that are left to load, shared by all connections.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::plan::Piece;

/// Pieces by class, and in a class by database: a connection stays with its database while that has
/// pieces of the class, and no class is begun before the one above it is handed out.
///
/// Pieces of a class and database are in the order of the disk, and each connection has a stretch of them
/// for itself, so that it reads its files from one end to the other and the operating system can read
/// ahead of it. Who has no stretch left takes half of the longest.
#[derive(Debug)]
pub(super) struct Queue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    classes: BTreeMap<u8, BTreeMap<usize, Stretches>>,
    /// Pieces to be tried once more, when all others are done.
    again: VecDeque<(usize, Piece)>,
}

/// Pieces by the connection that is to load them.
#[derive(Debug, Default)]
struct Stretches(BTreeMap<Owner, VecDeque<Piece>>);

/// A connection's number, or nobody's.
type Owner = Option<usize>;

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
        let mut state = State::default();
        for (database, piece) in pieces {
            let class = state.classes.entry(piece.class).or_default();
            class.entry(database).or_default().0.entry(None).or_default().push_back(piece);
        }
        Self(Mutex::new(state))
    }

    /// The next piece for the connection `who`, which is to the database `here`.
    pub(super) fn take(&self, who: usize, here: Option<usize>) -> Option<Taken> {
        let mut state = self.state();
        while let Some(mut class) = state.classes.last_entry() {
            let databases = class.get_mut();
            let longest = || databases.iter().max_by_key(|(_, stretches)| stretches.len());
            let database = match here.filter(|here| databases.contains_key(here)) {
                Some(here) => Some(here),
                None => longest().map(|(&database, _)| database),
            };
            let Some(database) = database else {
                class.remove();
                continue;
            };
            let Some(piece) = databases.get_mut(&database).and_then(|left| left.take(who)) else {
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
        while let Some(taken) = self.take(0, None) {
            left.push(taken.piece);
        }
        left
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and a queue is whole between any two of its steps.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Stretches {
    fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }

    fn take(&mut self, who: usize) -> Option<Piece> {
        if let Some(piece) = self.0.get_mut(&Some(who)).and_then(VecDeque::pop_front) {
            return Some(piece);
        }
        let (&owner, longest) = self.0.iter_mut().max_by_key(|(_, pieces)| pieces.len())?;
        // What is nobody's yet is taken whole; of another's, he keeps the smaller half if it is odd,
        // for he is on his way through it.
        let kept = if owner.is_none() { 0 } else { longest.len() / 2 };
        let mut ours = longest.split_off(kept);
        let piece = ours.pop_front();
        self.0.insert(Some(who), ours);
        piece
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::Fork, load::plan::Run};

    fn piece(relation: usize, class: u8) -> Piece {
        Piece { relation, fork: Fork::Main, class, runs: vec![Run::of(0, 0)] }
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
        let take = |here| queue.take(0, here).map(|taken| (taken.database, taken.piece.relation));
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
        let first = queue.take(0, None).unwrap();
        assert!(!first.is_second_try);
        queue.later(first.database, first.piece);
        assert_eq!(queue.take(0, None).unwrap().piece.relation, 2);
        let again = queue.take(0, None).unwrap();
        assert!(again.is_second_try && again.piece.relation == 1);
        assert!(queue.take(0, None).is_none());
    }

    #[test]
    fn each_connection_has_a_stretch_of_its_own_until_all_is_done() {
        let queue = Queue::new((0..10).map(|relation| (0, piece(relation, 1))));
        let take = |who| queue.take(who, Some(0)).map(|taken| taken.piece.relation);
        assert_eq!([take(0), take(0)], [Some(0), Some(1)]);
        assert_eq!([take(1), take(0), take(1)], [Some(6), Some(2), Some(7)]);
        // One that comes later halves the longest, and who is done takes from who is not.
        assert_eq!([take(2), take(0), take(0)], [Some(4), Some(3), Some(9)]);
        let mut rest = [take(0), take(0), take(0)];
        rest.sort();
        assert_eq!(rest, [None, Some(5), Some(8)]);
    }
}
