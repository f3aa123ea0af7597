//! The bounded queue of events from the dispatcher to one worker.

use std::{collections::VecDeque, time::Instant};

use howdah_net::Waker;
use howdah_traffic::{Event, Timestamp};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::order::OrderPosition;

/// An event queued for a worker.
#[derive(Debug)]
pub(crate) struct QueuedEvent {
    pub(crate) event: Box<Event>,
    /// The event's captured time, without idle times that are left out.
    pub(crate) time: Timestamp,
    /// Approximate memory that the event holds, in bytes.
    pub(crate) bytes: usize,
    /// The event's position in the captured order of commits.
    pub(crate) position: OrderPosition,
    /// Number of this worker's sessions whose Connect, but not Disconnect, was read up to this
    /// event. A replay at the highest speed opens at most this many at once, unless it stalls.
    pub(crate) open_sessions: usize,
    /// When the dispatcher read the event.
    pub(crate) read_at: Instant,
    /// When the dispatcher last waited for room in an inbox. Delays before that are not caused by
    /// the source.
    pub(crate) last_blocked: Option<Instant>,
}

impl QueuedEvent {
    /// Returns when an event with due time `due` could have been sent as far as the source is
    /// concerned: at `due`, or when the event was read, if that was later and the dispatcher has
    /// not waited for room since `due`.
    pub(crate) fn available_at(&self, due: Instant) -> Instant {
        match self.last_blocked {
            Some(held_up) if held_up > due => due,
            _ => self.read_at.max(due),
        }
    }
}

/// The result of sending an event to an inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// The inbox had room for the event.
    Sent,
    /// The event was sent, but only after waiting for room.
    SentAfterWait,
    /// The worker accepts no more events.
    Closed,
}

/// A bounded queue from the dispatcher to a worker. The dispatcher waits once the queue is full,
/// which keeps it from reading too far ahead, until half of it is free; the worker is woken when
/// the queue becomes non-empty.
pub(crate) struct Inbox {
    state: Mutex<InboxState>,
    room: Condvar,
    waker: Waker,
    bytes_max: usize,
}

#[derive(Default)]
struct InboxState {
    queue: VecDeque<QueuedEvent>,
    bytes: usize,
    /// Set when the events end, to the captured time of the latest event of all workers.
    finished: Option<Timestamp>,
    /// The replay was interrupted, so further events are refused.
    is_closed: bool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker, bytes_max: usize) -> Self {
        Self { state: Mutex::default(), room: Condvar::new(), waker, bytes_max }
    }

    /// Adds an event, after waiting for room.
    pub(crate) fn send(&self, arrival: QueuedEvent) -> SendResult {
        let mut result = SendResult::Sent;
        let mut state = self.lock();
        while state.bytes >= self.bytes_max && !state.is_closed {
            result = SendResult::SentAfterWait;
            self.room.wait(&mut state);
        }
        if state.is_closed {
            return SendResult::Closed;
        }
        // If the queue was not empty, the worker has been woken for an earlier event and will fetch
        // this one, too.
        let was_empty = state.queue.is_empty();
        state.bytes += arrival.bytes;
        state.queue.push_back(arrival);
        drop(state);
        if was_empty {
            self.waker.wake();
        }
        result
    }

    /// Marks the end of the events; `last` is the captured time of the latest event of all workers.
    pub(crate) fn finish(&self, last: Timestamp) {
        self.lock().finished = Some(last);
        self.waker.wake();
    }

    /// Moves events from the front into `out` while `wanted` returns true. Returns the state of the
    /// queue afterwards.
    pub(crate) fn pop_while(
        &self,
        mut wanted: impl FnMut(&QueuedEvent) -> bool,
        out: &mut Vec<QueuedEvent>,
    ) -> QueueState {
        let mut state = self.lock();
        let before = state.bytes;
        while let Some(arrival) = state.queue.pop_front_if(|arrival| wanted(arrival)) {
            state.bytes -= arrival.bytes;
            out.push(arrival);
        }
        // Waking the dispatcher for each event would cost more than the event.
        let half = self.bytes_max / 2;
        if before > half && state.bytes <= half {
            self.room.notify_one();
        }
        match (state.queue.front(), state.finished) {
            (Some(next), _) => QueueState::Next(next.time),
            (None, Some(last)) => QueueState::Finished(last),
            (None, None) => QueueState::Empty,
        }
    }

    /// Drops the queued events and refuses further ones.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        state.queue.clear();
        state.bytes = 0;
        self.room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, InboxState> {
        // A panic on another thread leaves the queue valid.
        self.state.lock()
    }
}

/// The state of an inbox after [`Inbox::pop_while`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum QueueState {
    /// The next event was captured at this time.
    Next(Timestamp),
    /// The queue is empty, but more events may follow.
    Empty,
    /// The queue is empty, and no more events will follow. Contains the captured time of the latest
    /// event of all workers.
    Finished(Timestamp),
}

/// Returns the approximate memory that an event holds, in bytes; precise enough to bound queues.
pub(crate) fn event_bytes(event: &Event) -> usize {
    use howdah_traffic::{Action, Parameter};
    let text = event.action.sql().map_or(0, howdah_traffic::Text::len);
    let values = match &event.action {
        Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
            bound.parameters.iter().flatten().fold(0, |sum, parameter| {
                sum + 24
                    + match parameter {
                        Parameter::Null => 0,
                        Parameter::Value(text) | Parameter::Truncated(text) => text.len(),
                    }
            })
        }
        _ => 0,
    };
    let wire = event.wire.as_ref().map_or(0, |wire| size_of_val(&**wire) + wire.bytes());
    size_of::<Event>() + text + values + wire
}
