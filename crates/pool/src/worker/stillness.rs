//! SUSPEND: a worker that stands still. Everything that was to be sent is sent, nothing is read, and no
//! time passes for the core; so kernels hold what peers send, and peers wait.
//!
//! Who comes anew may log in, which needs no server, and waits then like all others. So an operator gets
//! to the console, and can say RESUME.

use std::{sync::mpsc::Sender, time::Instant};

use super::{
    run::{Stage, Worker},
    seats::Seat,
    sockets::Order,
};
use crate::Backlog;

/// That a worker stands still.
#[derive(Debug)]
pub(super) struct Suspended {
    since: Instant,
    /// Until everything is sent: who waits for that, and to when.
    flush: Option<(Sender<()>, Option<Instant>)>,
}

impl Suspended {
    /// When those that have not taken what is theirs have had their time.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.flush.as_ref().and_then(|(_, until)| *until)
    }
}

impl Worker {
    /// Stands still; `done` is dropped when everything is sent. One that lets its clients go to another
    /// process, or waits for them to leave, does not.
    pub(super) fn stand_still(&mut self, until: Option<Instant>, done: Sender<()>) {
        if self.stage != Stage::Open {
            self.front.set_suspended(false);
        } else if self.stillness.is_none() {
            self.stillness = Some(Suspended { since: Instant::now(), flush: Some((done, until)) });
            self.core.suspend(true, self.now, &mut self.sockets);
        }
    }

    /// Goes on for good: what comes now does not go with standing still.
    pub(super) fn go_on_for_good(&mut self) {
        self.front.set_suspended(false);
        self.go_on();
    }

    /// Goes on where everything stopped.
    pub(super) fn go_on(&mut self) {
        let Some(Suspended { since, .. }) = self.stillness.take() else { return };
        // The core's clock goes on from where it stood.
        self.began += since.elapsed();
        self.core.suspend(false, self.now, &mut self.sockets);
        for seat in self.sockets.seats.indexes() {
            let token = self.sockets.seats.token(seat);
            if self.sockets.seats.link(seat).is_some_and(|link| link.unread && !link.paused) {
                self.sockets.orders.push_back(Order::Read(token));
            }
        }
    }

    /// Looks whether everything is sent; who has not taken what is theirs in time is closed.
    pub(super) fn go_on_flushing(&mut self) {
        let Some(Suspended { flush: Some((_, until)), .. }) = &self.stillness else { return };
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        let (mut waiting, mut late) = (false, Vec::new());
        for seat in self.sockets.seats.indexes() {
            if let Some(Seat::Link(link)) = self.sockets.seats.at(seat)
                && link.backlog() == Backlog::Waiting
            {
                if is_late { late.push(seat) } else { waiting = true }
            }
        }
        if !late.is_empty() {
            tracing::warn!(
                connections = late.len(),
                "closed at SUSPEND: they did not take what was to be sent within timeouts.suspend"
            );
        }
        late.into_iter().for_each(|seat| self.lost(seat));
        if !waiting && let Some(stillness) = &mut self.stillness {
            stillness.flush = None;
        }
    }
}
