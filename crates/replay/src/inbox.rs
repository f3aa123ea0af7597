//! The bounded hand-over of events from the reader to one worker.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use howdah_net::Waker;
use howdah_traffic::{Event, Timestamp};

/// An event on its way to a worker.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) event: Event,
    /// Memory it holds, roughly.
    pub(crate) bytes: usize,
    /// Sessions of this worker that were open in the capture at this point, this one included.
    /// A replay at the highest speed opens no more than that at once.
    pub(crate) open_sessions: usize,
    /// When the reader had it.
    pub(crate) read: Instant,
    /// When the reader last had to wait for room in an inbox, if it ever had: until then nothing
    /// could come in, for a reason that is not the source's.
    pub(crate) held_up: Option<Instant>,
}

impl Arrival {
    /// When an event that is due at `due` was there to be sent: then, or when the source gave it.
    pub(crate) fn here(&self, due: Instant) -> Instant {
        match self.held_up {
            Some(held_up) if held_up > due => due,
            _ => self.read.max(due),
        }
    }
}

/// How an event was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SendResult {
    /// There was room for it.
    AtOnce,
    /// There was none for a while.
    Late,
    /// The worker takes no more.
    Refused,
}

/// A queue between the reading thread, which waits when it is full, and a worker, which is woken
/// when it fills. That waiting is what keeps the reader only as far ahead as is needed.
pub(crate) struct Inbox {
    state: Mutex<State>,
    room: Condvar,
    waker: Waker,
    bytes_max: usize,
}

#[derive(Default)]
struct State {
    queue: VecDeque<Arrival>,
    bytes: usize,
    /// Set once no more will come, to the captured time of the last event of all workers.
    finished: Option<Timestamp>,
    /// The worker is gone: what comes is refused.
    closed: bool,
}

impl Inbox {
    pub(crate) fn new(waker: Waker, bytes_max: usize) -> Self {
        Self { state: Mutex::default(), room: Condvar::new(), waker, bytes_max }
    }

    /// Hands over an event, waiting for room before it.
    pub(crate) fn put(&self, arrival: Arrival) -> SendResult {
        let mut handed = SendResult::AtOnce;
        let mut state = self.lock();
        while state.bytes >= self.bytes_max && !state.closed {
            handed = SendResult::Late;
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if state.closed {
            return SendResult::Refused;
        }
        // A worker knows of the event at the front and comes for those behind it by itself.
        let news = state.queue.is_empty();
        state.bytes += arrival.bytes;
        state.queue.push_back(arrival);
        drop(state);
        if news {
            self.waker.wake();
        }
        handed
    }

    /// Marks the end of the events; `last` is the captured time of the latest event of all workers.
    pub(crate) fn finish(&self, last: Timestamp) {
        self.lock().finished = Some(last);
        self.waker.wake();
    }

    /// Takes events from the front while `wanted` says so. Whether more may come is the second
    /// value.
    pub(crate) fn take(
        &self,
        mut wanted: impl FnMut(&Arrival) -> bool,
        out: &mut Vec<Arrival>,
    ) -> Supply {
        let mut state = self.lock();
        let before = state.bytes;
        while let Some(arrival) = state.queue.pop_front_if(|arrival| wanted(arrival)) {
            state.bytes -= arrival.bytes;
            out.push(arrival);
        }
        if state.bytes < before {
            self.room.notify_one();
        }
        match (state.queue.front(), state.finished) {
            (Some(next), _) => Supply::Next(next.event.time),
            (None, Some(last)) => Supply::Finished(last),
            (None, None) => Supply::Dry,
        }
    }

    /// Refuses what comes from now on and drops what is here.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        state.bytes = 0;
        self.room.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere leaves a queue that is still a queue.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is left in an inbox after taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Supply {
    /// An event captured at this time, not wanted yet.
    Next(Timestamp),
    /// Nothing yet.
    Dry,
    /// Nothing, ever again. The captured time is that of the latest event of all workers.
    Finished(Timestamp),
}

/// Memory that an event holds, roughly: enough to bound queues by.
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
