//! SUSPEND: a worker flushes its output, reads nothing, and stops the core's clock. Bytes that
//! peers send stay in kernel buffers, and peers wait.
//!
//! New clients can still log in, because a login needs no server, and then wait like all others. So
//! an administrator can connect to the console and issue RESUME.

use std::{sync::mpsc::Sender, time::Instant};

use howdah_pool_core::{Backlog, CoreEvent};

use super::{
    run::{PoolWorker, WorkerPhase},
    socket_table::SocketEntry,
    sockets::DeferredAction,
};

/// The state of a suspended worker.
#[derive(Debug)]
pub(super) struct Suspended {
    since: Instant,
    /// A sender to drop once all output is sent, and the deadline; `None` afterwards.
    flush: Option<(Sender<()>, Option<Instant>)>,
}

impl Suspended {
    /// Returns the time at which connections that have not read their output are closed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.flush.as_ref().and_then(|(_, until)| *until)
    }
}

impl PoolWorker {
    /// Suspends the worker; `done` is dropped when all output is sent. A worker that hands its
    /// clients over or shuts down is not suspended.
    pub(super) fn suspend(&mut self, until: Option<Instant>, done: Sender<()>) {
        if self.phase != WorkerPhase::Running {
            self.shared.set_suspended(false);
        } else if self.suspended.is_none() {
            self.suspended = Some(Suspended { since: Instant::now(), flush: Some((done, until)) });
            self.core.handle(CoreEvent::Suspend(true), self.now, &mut self.sockets);
        }
    }

    /// Ends the suspension, because an operation starts that cannot run during one.
    pub(super) fn cancel_suspend(&mut self) {
        self.shared.set_suspended(false);
        self.resume();
    }

    pub(super) fn resume(&mut self) {
        let Some(Suspended { since, .. }) = self.suspended.take() else { return };
        // The core's clock continues from the time at which it was stopped.
        self.started_at += since.elapsed();
        self.core.handle(CoreEvent::Suspend(false), self.now, &mut self.sockets);
        for slot in self.sockets.table.slots() {
            let token = self.sockets.table.token(slot);
            if self
                .sockets
                .table
                .connection(slot)
                .is_some_and(|connection| connection.unread && !connection.paused)
            {
                self.sockets.deferred.push_back(DeferredAction::Read(token));
            }
        }
    }

    /// Checks whether all output is sent. After the deadline, closes connections with unsent
    /// output.
    pub(super) fn flush_suspended(&mut self) {
        let Some(Suspended { flush: Some((_, until)), .. }) = &self.suspended else { return };
        let is_late = until.is_some_and(|until| Instant::now() >= until);
        let (mut waiting, mut late) = (false, Vec::new());
        for slot in self.sockets.table.slots() {
            if let Some(SocketEntry::Connected(connection)) = self.sockets.table.get_mut(slot)
                && connection.backlog() == Backlog::Waiting
            {
                if is_late { late.push(slot) } else { waiting = true }
            }
        }
        if !late.is_empty() {
            tracing::warn!(
                connections = late.len(),
                "connections closed by SUSPEND: they did not read their pending output within timeouts.suspend"
            );
        }
        late.into_iter().for_each(|slot| self.connection_lost(slot));
        if !waiting && let Some(stillness) = &mut self.suspended {
            stillness.flush = None;
        }
    }
}
