//! The order of statements of different sessions.
//!
//! In commit order, a statement is held back until all transactions have ended in the replay that
//! had begun to commit or roll back, in the capture, before the statement started. So a statement
//! sees the rows that it saw when it was captured. A statement that writes may have waited for a
//! lock until just before its end, so for such a statement its captured *end* counts. What ends a
//! transaction is never held back, nor is a login or a cancel request.
//!
//! ```text
//! events ──► sequencer: notes ends of            ──► player: holds its next event until all
//!            transactions, and the captured time       transactions before that time have ended
//!            before which they must be over            │ its ends  ▲
//!                                                      ▼           │ that time, releases
//!                                                   commit order (shared by all workers)
//!                                                      ▲
//!                                                      │ releases
//!                                                   stall monitor: does what must end next wait
//!                                                   for a lock of a session that is held back?
//! ```
//!
//! The two can wait for each other: the transaction that must end next for a lock of one whose next
//! statement is held back. That cannot have happened in the capture, so an earlier statement has
//! run in another order. The [stall monitor](stalls) finds such a circle and releases the
//! transaction that is held back. This counts as an inversion.
//!
//! Times of a log are compared only as far as its resolution allows: of two times in the same
//! millisecond, neither is earlier.

pub(crate) mod sequencer;
pub(crate) mod stalls;

use std::{
    collections::{BTreeMap, HashMap},
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
};

use howdah_net::Waker;
use howdah_traffic::{Event, SessionId, Timestamp};
use parking_lot::{Condvar, Mutex};

/// The order in which statements are replayed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StatementOrder {
    /// Transactions do not wait for each other, even those of one session: if its previous one
    /// still runs, the next uses another connection.
    None,
    /// Sessions do not wait for each other. Within a session, the captured order is preserved.
    #[default]
    Session,
    /// Like [`Self::Session`], but a statement waits for the transactions that had ended before it
    /// started.
    Commit,
}

/// Whether a statement failed in the capture because of what other sessions did at the same time:
/// `deadlock_detected`, `serialization_failure` or `lock_not_available`.
pub(crate) fn is_conflict_victim(event: &Event) -> bool {
    event.action.kind().is_execution()
        && event.outcome.sqlstate.is_some_and(|code| {
            ["40P01", "40001", "55P03"].iter().any(|conflict| code.as_str() == *conflict)
        })
}

/// The position of an event in the commit order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderPosition {
    /// All transactions that ended before this captured time must have ended before the event is
    /// sent; `None` if the event waits for none.
    pub(crate) needs: Option<Timestamp>,
    /// The end of a transaction that the event brings about.
    pub(crate) ends: Option<TransactionEnd>,
}

/// The end of a transaction in the capture, in captured order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransactionEnd {
    /// When a COMMIT or ROLLBACK was sent, or a statement ended that failed or was outside of a
    /// transaction block.
    time: Timestamp,
    /// Distinguishes ends at the same time.
    number: u64,
}

/// A time after all captured ones.
const NEVER: Timestamp = Timestamp::from_micros(i64::MAX);

/// The progress of a replay in the captured order of commits, shared by its threads.
#[derive(Debug)]
pub(crate) struct CommitOrder {
    /// Captured time, in microseconds, before which all transactions have ended.
    clear_until: AtomicI64,
    /// Number of releases so far; workers look for released sessions when it changes.
    releases: AtomicU64,
    state: Mutex<OrderState>,
    /// Signalled when a session starts to wait, and when the replay ends.
    changed: Condvar,
}

#[derive(Debug)]
struct OrderState {
    /// Ends of transactions that have been read and have not taken place, with their sessions.
    pending: BTreeMap<TransactionEnd, SessionId>,
    /// All events before this captured time have been read.
    read_until: Timestamp,
    /// Sessions whose next event is held back.
    waiting: HashMap<SessionId, WaitingSession>,
    /// Process ids of the backends that serve the sessions.
    backends: HashMap<SessionId, i32>,
    /// The earliest time that a waiting session needs, or an earlier one.
    first_need: Timestamp,
    wakers: Vec<Waker>,
    inversions: u64,
    is_over: bool,
}

#[derive(Debug)]
struct WaitingSession {
    /// See [`OrderPosition::needs`].
    needs: Timestamp,
    is_released: bool,
}

impl CommitOrder {
    pub(crate) fn new() -> Self {
        Self {
            clear_until: AtomicI64::new(i64::MIN),
            releases: AtomicU64::new(0),
            state: Mutex::new(OrderState {
                pending: BTreeMap::new(),
                read_until: Timestamp::from_micros(i64::MIN),
                waiting: HashMap::new(),
                backends: HashMap::new(),
                first_need: NEVER,
                wakers: Vec::new(),
                inversions: 0,
                is_over: false,
            }),
            changed: Condvar::new(),
        }
    }

    /// Registers a worker, to be woken when its sessions need not wait any longer.
    pub(crate) fn add_worker(&self, waker: Waker) {
        self.state.lock().wakers.push(waker);
    }

    /// Returns the captured time before which all transactions have ended.
    #[inline]
    pub(crate) fn clear_until(&self) -> Timestamp {
        Timestamp::from_micros(self.clear_until.load(Ordering::Acquire))
    }

    /// Returns the number of releases so far.
    #[inline]
    pub(crate) fn releases(&self) -> u64 {
        self.releases.load(Ordering::Acquire)
    }

    /// Adds an end that was read.
    pub(super) fn add(&self, end: TransactionEnd, session: SessionId) {
        self.state.lock().pending.insert(end, session);
    }

    /// Records that all events before a captured time have been read.
    pub(super) fn read(&self, until: Timestamp) {
        let mut state = self.state.lock();
        state.read_until = until;
        self.advance(&mut state);
    }

    /// Records that all events have been read.
    pub(crate) fn finish_reading(&self) {
        self.read(NEVER);
    }

    /// Records that a transaction has ended in the replay, in whatever way.
    pub(crate) fn transaction_ended(&self, end: TransactionEnd) {
        let mut state = self.state.lock();
        state.pending.remove(&end);
        self.advance(&mut state);
    }

    /// Publishes how far the order has advanced, and wakes the workers if sessions may have waited
    /// for that.
    fn advance(&self, state: &mut OrderState) {
        let first = state.pending.keys().next().map(|end| end.time);
        let clear = first.map_or(state.read_until, |first| first.min(state.read_until));
        self.clear_until.store(clear.as_micros(), Ordering::Release);
        if clear >= state.first_need {
            let needs = state.waiting.values().map(|waiting| waiting.needs);
            state.first_need = needs.filter(|needs| *needs > clear).min().unwrap_or(NEVER);
            state.wakers.iter().for_each(Waker::wake);
        }
    }

    /// Records that a session's next event is held back.
    pub(crate) fn start_wait(&self, session: &SessionId, needs: Timestamp) {
        let mut state = self.state.lock();
        state.waiting.insert(session.clone(), WaitingSession { needs, is_released: false });
        state.first_need = state.first_need.min(needs);
        // The last transaction may have ended since the session looked.
        if self.clear_until() >= needs {
            state.wakers.iter().for_each(Waker::wake);
        }
        self.changed.notify_all();
    }

    /// Records that a session's event is not held back any longer.
    pub(crate) fn end_wait(&self, session: &SessionId) {
        self.state.lock().waiting.remove(session);
    }

    /// Whether the wait of a session was ended by the stall monitor.
    pub(crate) fn is_released(&self, session: &SessionId) -> bool {
        self.state.lock().waiting.get(session).is_some_and(|waiting| waiting.is_released)
    }

    /// Records the backend that serves a session.
    pub(crate) fn set_backend(&self, session: &SessionId, backend: i32) {
        self.state.lock().backends.insert(session.clone(), backend);
    }

    /// Removes a session whose connection is closed.
    pub(crate) fn remove_backend(&self, session: &SessionId) {
        self.state.lock().backends.remove(session);
    }

    /// Returns the number of sessions that were released because the transaction that must end next
    /// waited for them.
    pub(crate) fn inversions(&self) -> u64 {
        self.state.lock().inversions
    }

    /// Ends the stall monitor.
    pub(crate) fn finish(&self) {
        self.state.lock().is_over = true;
        self.changed.notify_all();
    }
}
