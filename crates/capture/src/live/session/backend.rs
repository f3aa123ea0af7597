//! Handles messages to the client, and completes the requests that they answer.

use howdah_traffic::{Action, CapturedOutcome, CopyDirection, Event, SqlState, Text};
use howdah_wire::{
    Backend, Frame,
    backend::{BackendMessage as Reply, TransactionStatus},
};

use super::{AwaitedReply, DecodeContext, PendingRequest, SessionDecoder};
use crate::live::{pending_messages::add_sync, secrets};

impl SessionDecoder {
    /// Handles a message to the client that follows the replies to `completed` requests of the
    /// extended protocol.
    pub(crate) fn handle_backend(
        &mut self,
        kind: Backend,
        completed: u16,
        body: &[u8],
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        if self.is_broken {
            return;
        }
        let is_simple = |request: &PendingRequest| {
            matches!(request.kind, AwaitedReply::Query | AwaitedReply::Call)
        };
        // In a simple Query, the count includes its own RowDescriptions, which do not complete any
        // request.
        if !self.pending.front().is_some_and(is_simple) {
            self.complete_requests(completed, context);
        }
        let body_of = || Reply::parse(Frame { tag: kind.tag(), body });
        match kind {
            Backend::CommandComplete => {
                let rows = match body_of() {
                    Ok(Reply::CommandComplete(tag)) => tag.rows(),
                    _ => None,
                };
                self.on_command_complete(rows, now, context);
            }
            Backend::EmptyQueryResponse => self.on_command_complete(None, now, context),
            // The reply has no count, but the portal stopped exactly at the row limit of its
            // Execute.
            Backend::PortalSuspended => {
                let front = self.pending.front().and_then(|request| request.event.as_ref());
                let wire = front.and_then(|event| event.wire.as_ref());
                let rows = wire.map(|wire| u64::from(wire.rows_max));
                self.on_command_complete(rows, now, context);
            }
            Backend::ErrorResponse => {
                let mut failure =
                    CapturedOutcome { error: Some(Text::default()), ..CapturedOutcome::default() };
                if let Ok(Reply::ErrorResponse(error)) = body_of() {
                    failure.sqlstate = SqlState::new(error.sqlstate());
                    failure.error = Some(error.message().into());
                }
                self.on_error(failure, now, context);
            }
            Backend::CopyInResponse => self.copy_in(),
            Backend::CopyOutResponse => self.set_direction(CopyDirection::Out),
            Backend::ReadyForQuery => {
                let status = body.first().and_then(|byte| TransactionStatus::from_byte(*byte));
                self.on_ready(status, now, context);
            }
            _ => {}
        }
    }

    /// Completes up to `count` successful requests. Stops at a request that is completed by a reply
    /// with a record of its own.
    fn complete_requests(&mut self, count: u16, context: &mut DecodeContext<'_>) {
        for _ in 0..count {
            match self.pending.front().map(|request| &request.kind) {
                Some(AwaitedReply::Parse(..) | AwaitedReply::Bind(..) | AwaitedReply::Other) => {
                    self.complete_front(context);
                }
                _ => return,
            }
        }
    }

    /// Removes the first pending request, which succeeded, and emits or holds its event, if it has
    /// one.
    fn complete_front(&mut self, context: &mut DecodeContext<'_>) {
        let Some(request) = self.pending.pop_front() else { return };
        let event = match &request.kind {
            AwaitedReply::Bind(portal, false) if request.event.is_none() => {
                let messages = request.messages.or_else(|| self.messages_so_far(0));
                self.bind_event(portal, messages, context.at(request.arrived))
            }
            _ => request.event,
        };
        if let Some(event) = event {
            self.emit_or_hold(event, context);
        }
    }

    /// Returns the messages of a Bind whose reply arrives before its Sync is sent. If a pending
    /// request at or after index `later` will have an event, the messages belong to that event
    /// instead.
    fn messages_so_far(&mut self, later: usize) -> Option<Text> {
        let later = self.pending.iter().skip(later);
        let mut later = later.take_while(|request| !request.ends_pipeline());
        if later.any(PendingRequest::will_be_event) {
            Some(Text::default())
        } else {
            self.messages.take_all()
        }
    }

    fn on_command_complete(
        &mut self,
        rows: Option<u64>,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        let Some(front) = self.pending.front_mut() else { return };
        if let Some(wire) = front.event.as_mut().and_then(|event| event.wire.as_mut())
            && let Some(rows) = rows
        {
            wire.rows = Some(wire.rows.unwrap_or(0).saturating_add(rows));
        }
        front.add_result(self.result.take());
        if matches!(front.kind, AwaitedReply::Execute) {
            self.finish_front(None, now, context);
        }
    }

    /// Finishes the first pending request, with its duration until `now`, and with `failure` if it
    /// failed.
    fn finish_front(
        &mut self,
        failure: Option<CapturedOutcome>,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        let Some(request) = self.pending.pop_front() else { return };
        let started = request.arrived.max(self.server_assigned).max(self.last_reply);
        self.last_reply = now;
        let copying = self.copy.take();
        self.is_copying = false;
        let Some(mut event) = request.event else { return };
        if let Some(failure) = failure {
            set_failure(&mut event, failure);
        }
        event.outcome.duration_us = Some(now.saturating_sub(started) / 1000);
        if let Some(copying) = copying.filter(|copying| copying.is_requested)
            && let Some(wire) = &mut event.wire
        {
            context.tally.copies_without_rows +=
                u64::from(copying.copy.data.iter().any(Option::is_none));
            wire.copy_in = context.rows.counts_bytes.then_some(copying.copy);
        }
        self.emit_or_hold(event, context);
    }

    fn on_error(&mut self, failure: CapturedOutcome, now: u64, context: &mut DecodeContext<'_>) {
        let Some(front) = self.pending.front_mut() else { return };
        match front.kind {
            AwaitedReply::Query | AwaitedReply::Call => {
                if let Some(event) = &mut front.event
                    && !event.outcome.failed()
                {
                    set_failure(event, failure);
                }
            }
            AwaitedReply::Sync => {} // The end of the transaction failed; ReadyForQuery follows.
            _ => {
                match &front.kind {
                    AwaitedReply::Parse(name, before) => {
                        self.statements.set(name.clone(), before.clone());
                    }
                    // If a Bind fails, its statement has failed.
                    AwaitedReply::Bind(portal, is_executed) => {
                        let (portal, is_executed) = (portal.clone(), *is_executed);
                        let time = context.at(front.arrived);
                        let event = match is_executed {
                            true => self.take_execute_event(),
                            false if front.event.is_some() => front.event.take(),
                            false => {
                                let messages = front.messages.take();
                                let messages = messages.or_else(|| self.messages_so_far(1));
                                self.bind_event(&portal, messages, time)
                            }
                        };
                        if let Some(front) = self.pending.front_mut() {
                            front.event = event;
                        }
                    }
                    _ => {}
                }
                self.move_sync_to_front();
                self.finish_front(Some(failure), now, context);
                self.skip_to_sync(context);
            }
        }
    }

    /// Adds the Sync after the failed first request to that request's event, if the Sync was
    /// assigned to the event of a request that the server skips.
    fn move_sync_to_front(&mut self) {
        let Some(sync) = self.pending.iter().position(PendingRequest::is_sync) else { return };
        let is_last = !self.pending.range(1..sync.max(1)).any(PendingRequest::will_be_event);
        if let Some(event) = self.pending.front_mut().and_then(|front| front.event.as_mut())
            && !is_last
        {
            add_sync(event);
        }
    }

    /// Takes the event of the first pending Execute.
    fn take_execute_event(&mut self) -> Option<Box<Event>> {
        let is_execute =
            |request: &&mut PendingRequest| matches!(request.kind, AwaitedReply::Execute);
        self.pending.iter_mut().find(is_execute)?.event.take()
    }

    /// Removes the requests that the server skips after a failure: those up to the Sync, which may
    /// not have been sent yet.
    fn skip_to_sync(&mut self, context: &mut DecodeContext<'_>) {
        let sync = self.pending.iter().position(PendingRequest::is_sync);
        self.is_skipping = sync.is_none();
        self.is_copying = false;
        let skipped = sync.unwrap_or(self.pending.len());
        for request in self.pending.drain(..skipped).rev() {
            context.tally.skipped_by_server += 1;
            if let AwaitedReply::Parse(name, before) = request.kind {
                // The name refers to the previous statement again.
                self.statements.set(name, before);
            }
        }
    }

    /// Handles CopyInResponse: the server waits for rows, and ignores Syncs that were sent after
    /// the COPY.
    fn copy_in(&mut self) {
        self.set_direction(CopyDirection::In);
        let copying = self.copy.get_or_insert_default();
        copying.is_requested = true;
        let has_ended = !copying.copy.data.is_empty();
        let is_extended =
            self.pending.front().is_some_and(|it| matches!(it.kind, AwaitedReply::Execute));
        if is_extended && !has_ended {
            self.is_copying = true;
            while self.pending.get(1).is_some_and(PendingRequest::is_sync) {
                self.pending.remove(1);
            }
        }
    }

    fn set_direction(&mut self, direction: CopyDirection) {
        let Some(event) = self.pending.front_mut().and_then(|request| request.event.as_mut())
        else {
            return;
        };
        if let Action::Simple { sql } = &event.action {
            event.action = Action::Copy { sql: sql.clone(), direction };
        }
    }

    fn on_ready(
        &mut self,
        status: Option<TransactionStatus>,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        while let Some(front) = self.pending.front() {
            match front.kind {
                AwaitedReply::Query | AwaitedReply::Call => {
                    self.finish_front(None, now, context);
                    break;
                }
                AwaitedReply::Sync => {
                    self.pending.pop_front();
                    break;
                }
                // The request has ended, regardless of the kind of its reply.
                AwaitedReply::Execute => self.finish_front(None, now, context),
                // The count does not include this reply.
                _ => self.complete_front(context),
            }
        }
        self.last_reply = now;
        self.result = None;
        if self.pending.is_empty() {
            self.copy = None;
        }
        if status == Some(TransactionStatus::Idle) && self.pending.is_empty() {
            self.portals.clear();
        }
    }
}

/// Sets the failure of an event. An error about a text with a secret may quote the secret, so its
/// message is replaced.
fn set_failure(event: &mut Event, failure: CapturedOutcome) {
    let finder = memchr::memmem::Finder::new(secrets::PLACEHOLDER);
    let has_secret = event.action.sql().is_some_and(|sql| finder.find(sql.as_bytes()).is_some());
    event.outcome = if has_secret {
        CapturedOutcome { error: Some(secrets::PLACEHOLDER.into()), ..failure }
    } else {
        failure
    };
}
