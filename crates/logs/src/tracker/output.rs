//! The queue of finished events, and the two ways of emitting.

use std::collections::VecDeque;

use howdah_traffic::{Event, Outcome};

use super::session::Session;
use crate::{options::Emit, summary::Summary};

/// Events on their way out.
#[derive(Debug)]
pub(super) struct Output {
    emit: Emit,
    queue: VecDeque<Event>,
}

impl Output {
    pub(super) fn new(emit: Emit) -> Self {
        Self { emit, queue: VecDeque::new() }
    }

    pub(super) fn poll(&mut self) -> Option<Event> {
        self.queue.pop_front()
    }

    /// An action whose outcome may come later.
    pub(super) fn open(&mut self, session: &mut Session, event: Event, summary: &mut Summary) {
        self.close(session, summary);
        if self.emit == Emit::Start {
            self.push(event.clone(), summary);
        }
        session.open = Some(event);
    }

    /// The outcome of the open action.
    pub(super) fn conclude(
        &mut self,
        session: &mut Session,
        outcome: Outcome,
        summary: &mut Summary,
    ) {
        if let Some(event) = &mut session.open {
            event.outcome = outcome;
        }
        self.close(session, summary);
    }

    /// No outcome of the open action will come any more.
    pub(super) fn close(&mut self, session: &mut Session, summary: &mut Summary) {
        let Some(event) = session.open.take() else { return };
        summary.count_outcome(&event);
        if self.emit == Emit::End {
            self.push(event, summary);
        }
    }

    /// An action of which all is known.
    pub(super) fn emit_whole(
        &mut self,
        session: &mut Session,
        event: Event,
        summary: &mut Summary,
    ) {
        self.close(session, summary);
        summary.count_outcome(&event);
        self.push(event, summary);
    }

    fn push(&mut self, event: Event, summary: &mut Summary) {
        summary.count_event(&event);
        self.queue.push_back(event);
    }
}
