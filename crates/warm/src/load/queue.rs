//! The queue of chunks to load, shared by all connections.

use std::collections::{BTreeMap, VecDeque};

use parking_lot::{Mutex, MutexGuard};

use super::plan::LoadChunk;

/// A queue of chunks by class, and within a class by database: a connection stays with its database
/// as long as that database has chunks of the class, and no class is started before all chunks of
/// the class above have been handed out.
///
/// Chunks of a class and database are in the order of the plan, in which those of a relation are in
/// disk order. Each connection has its own range of them, so that it reads files sequentially and
/// the operating system can read ahead. A connection without a range takes the longest one if it is
/// unassigned, or else its second half.
#[derive(Debug)]
pub(super) struct ChunkQueue(Mutex<QueueContents>);

#[derive(Debug, Default)]
struct QueueContents {
    classes: BTreeMap<u8, BTreeMap<usize, ChunkRanges>>,
    /// Chunks to be retried once all others have been handed out.
    deferred: VecDeque<(usize, LoadChunk)>,
}

/// Chunks by the connection that will load them.
#[derive(Debug, Default)]
struct ChunkRanges(BTreeMap<RangeOwner, VecDeque<LoadChunk>>);

/// A connection's number; `None` for unassigned chunks.
type RangeOwner = Option<usize>;

/// A chunk that a connection took from the queue.
#[derive(Debug)]
pub(super) struct QueuedChunk {
    /// The index of the chunk's database.
    pub(super) database: usize,
    pub(super) chunk: LoadChunk,
    /// Whether the chunk was deferred before.
    pub(super) is_retry: bool,
}

impl ChunkQueue {
    /// Creates a queue of chunks in load order, with the index of their database.
    pub(super) fn new(chunks: impl IntoIterator<Item = (usize, LoadChunk)>) -> Self {
        let mut state = QueueContents::default();
        for (database, chunk) in chunks {
            let class = state.classes.entry(chunk.class).or_default();
            class.entry(database).or_default().0.entry(None).or_default().push_back(chunk);
        }
        Self(Mutex::new(state))
    }

    /// Removes and returns the next chunk for the connection `worker`, which is connected to the
    /// database `here`.
    pub(super) fn pop(&self, worker: usize, here: Option<usize>) -> Option<QueuedChunk> {
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
            let Some(chunk) = databases.get_mut(&database).and_then(|left| left.pop(worker)) else {
                databases.remove(&database);
                continue;
            };
            return Some(QueuedChunk { database, chunk, is_retry: false });
        }
        let (database, chunk) = state.deferred.pop_front()?;
        Some(QueuedChunk { database, chunk, is_retry: true })
    }

    /// Puts a chunk back, to be retried after all others.
    pub(super) fn defer(&self, database: usize, chunk: LoadChunk) {
        self.state().deferred.push_back((database, chunk));
    }

    /// Removes and returns all remaining chunks.
    pub(super) fn drain(&self) -> Vec<LoadChunk> {
        let mut left = Vec::new();
        while let Some(taken) = self.pop(0, None) {
            left.push(taken.chunk);
        }
        left
    }

    fn state(&self) -> MutexGuard<'_, QueueContents> {
        // No code panics while holding the lock, and the queue is consistent between any two steps.
        self.0.lock()
    }
}

impl ChunkRanges {
    fn len(&self) -> usize {
        self.0.values().map(VecDeque::len).sum()
    }

    fn pop(&mut self, worker: usize) -> Option<LoadChunk> {
        if let Some(chunk) = self.0.get_mut(&Some(worker)).and_then(VecDeque::pop_front) {
            return Some(chunk);
        }
        let (&owner, longest) = self.0.iter_mut().max_by_key(|(_, chunks)| chunks.len())?;
        // Take all unassigned chunks, or half of another connection's range, rounded up: the end of
        // it, because that connection works from the front.
        let kept = if owner.is_none() { 0 } else { longest.len() / 2 };
        let mut ours = longest.split_off(kept);
        let chunk = ours.pop_front();
        self.0.insert(Some(worker), ours);
        chunk
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{image::Fork, load::plan::BlockRun};

    fn chunk(relation: usize, class: u8) -> LoadChunk {
        LoadChunk { relation, fork: Fork::Main, class, runs: vec![BlockRun::new(0, 0)] }
    }

    #[test]
    fn connection_keeps_its_database_within_a_class() {
        let queue = ChunkQueue::new([
            (0, chunk(1, 5)),
            (1, chunk(2, 5)),
            (1, chunk(3, 5)),
            (0, chunk(4, 2)),
            (1, chunk(5, 2)),
        ]);
        let take = |here| queue.pop(0, here).map(|taken| (taken.database, taken.chunk.relation));
        assert_eq!(take(None), Some((1, 2)), "the database with most chunks");
        assert_eq!(take(Some(1)), Some((1, 3)));
        assert_eq!(take(Some(1)), Some((0, 1)), "the class is finished first");
        assert_eq!(take(Some(1)), Some((1, 5)));
        assert_eq!(take(Some(1)), Some((0, 4)));
        assert_eq!(take(Some(0)), None);
    }

    #[test]
    fn deferred_chunk_comes_last() {
        let queue = ChunkQueue::new([(0, chunk(1, 5)), (0, chunk(2, 1))]);
        let first = queue.pop(0, None).unwrap();
        assert!(!first.is_retry);
        queue.defer(first.database, first.chunk);
        assert_eq!(queue.pop(0, None).unwrap().chunk.relation, 2);
        let again = queue.pop(0, None).unwrap();
        assert!(again.is_retry && again.chunk.relation == 1);
        assert!(queue.pop(0, None).is_none());
    }

    #[test]
    fn connections_work_on_separate_ranges_until_done() {
        let queue = ChunkQueue::new((0..10).map(|relation| (0, chunk(relation, 1))));
        let take = |worker| queue.pop(worker, Some(0)).map(|taken| taken.chunk.relation);
        assert_eq!([take(0), take(0)], [Some(0), Some(1)]);
        assert_eq!([take(1), take(0), take(1)], [Some(6), Some(2), Some(7)]);
        // A connection that starts later halves the longest range, and an idle one takes over from
        // a busy one.
        assert_eq!([take(2), take(0), take(0)], [Some(4), Some(3), Some(9)]);
        let mut rest = [take(0), take(0), take(0)];
        rest.sort();
        assert_eq!(rest, [None, Some(5), Some(8)]);
    }
}
