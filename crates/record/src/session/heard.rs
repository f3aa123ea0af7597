//! What a client is told, and which of its requests that answers.

use howdah_traffic::{Action, CopyDirection, Event, Outcome, SqlState, Text};
use howdah_wire::{
    Backend, Frame,
    backend::{Message as Reply, TransactionStatus},
};

use super::{Asked, Desk, Session, What};
use crate::{script::add_sync, secrets};

impl Session {
    /// A message that the client was told; before it, so many others that answered requests of the
    /// extended protocol.
    pub(crate) fn heard(
        &mut self,
        kind: Backend,
        answered: u16,
        body: &[u8],
        now: u64,
        desk: &mut Desk<'_>,
    ) {
        if self.is_broken {
            return;
        }
        let is_simple = |asked: &Asked| matches!(asked.what, What::Query | What::Call);
        if !self.asked.front().is_some_and(is_simple) {
            self.answer(answered, desk);
        }
        let body_of = || Reply::parse(Frame { tag: kind.tag(), body });
        match kind {
            Backend::CommandComplete => {
                let rows = match body_of() {
                    Ok(Reply::CommandComplete(tag)) => tag.rows(),
                    _ => None,
                };
                self.completed(rows, now, desk);
            }
            Backend::EmptyQueryResponse => self.completed(None, now, desk),
            Backend::PortalSuspended => {
                let front = self.asked.front().and_then(|asked| asked.event.as_ref());
                let wire = front.and_then(|event| event.wire.as_ref());
                let rows = wire.map(|wire| u64::from(wire.rows_max));
                self.completed(rows, now, desk);
            }
            Backend::ErrorResponse => {
                let mut failure = Outcome { error: Some(Text::default()), ..Outcome::default() };
                if let Ok(Reply::ErrorResponse(error)) = body_of() {
                    failure.sqlstate = SqlState::new(error.sqlstate());
                    failure.error = Some(error.message().into());
                }
                self.failed(failure, now, desk);
            }
            Backend::CopyInResponse => self.copy_in(),
            Backend::CopyOutResponse => self.set_direction(CopyDirection::Out),
            Backend::ReadyForQuery => {
                let status = body.first().and_then(|byte| TransactionStatus::from_byte(*byte));
                self.ready(status, now, desk);
            }
            _ => {}
        }
    }

    /// So many requests are answered, and went well.
    fn answer(&mut self, count: u16, desk: &mut Desk<'_>) {
        for _ in 0..count {
            match self.asked.front().map(|asked| &asked.what) {
                Some(What::Parse(..) | What::Bind(..) | What::Other) => self.answered_well(desk),
                _ => return,
            }
        }
    }

    /// The front of what was asked went well.
    fn answered_well(&mut self, desk: &mut Desk<'_>) {
        let Some(asked) = self.asked.pop_front() else { return };
        let event = match &asked.what {
            What::Bind(portal, false) if asked.event.is_none() => {
                let messages = asked.messages.or_else(|| self.messages_so_far(0));
                self.bind_event(portal, messages, desk.at(asked.arrived))
            }
            _ => asked.event,
        };
        if let Some(event) = event {
            self.give(event, desk);
        }
    }

    /// The messages of a Bind that is answered before its Sync is sent. If another event came behind it, which
    /// begins at this index of what was asked, that one has them.
    fn messages_so_far(&mut self, behind: usize) -> Option<Text> {
        let behind = self.asked.iter().skip(behind);
        let mut behind = behind.take_while(|asked| !asked.ends_pipeline());
        match behind.any(Asked::will_be_event) {
            true => Some(Text::default()),
            false => self.script.take_rest(),
        }
    }

    /// A statement is done.
    fn completed(&mut self, rows: Option<u64>, now: u64, desk: &mut Desk<'_>) {
        let Some(front) = self.asked.front_mut() else { return };
        if let Some(wire) = front.event.as_mut().and_then(|event| event.wire.as_mut())
            && let Some(rows) = rows
        {
            wire.rows = Some(wire.rows.unwrap_or(0).saturating_add(rows));
        }
        if matches!(front.what, What::Execute) {
            self.conclude(None, now, desk);
        }
    }

    /// The front of what was asked is over.
    fn conclude(&mut self, failure: Option<Outcome>, now: u64, desk: &mut Desk<'_>) {
        let Some(asked) = self.asked.pop_front() else { return };
        let begun = asked.arrived.max(self.granted).max(self.answered);
        self.answered = now;
        let copying = self.copy.take();
        self.is_copying = false;
        let Some(mut event) = asked.event else { return };
        if let Some(failure) = failure {
            fail(&mut event, failure);
        }
        event.outcome.duration_us = Some(now.saturating_sub(begun) / 1000);
        if let Some(copying) = copying.filter(|copying| copying.is_wanted)
            && let Some(wire) = &mut event.wire
        {
            desk.tally.copies_without_rows +=
                u64::from(copying.copy.data.iter().any(Option::is_none));
            wire.copy_in = desk.rows.counts.then_some(copying.copy);
        }
        self.give(event, desk);
    }

    /// Something failed.
    fn failed(&mut self, failure: Outcome, now: u64, desk: &mut Desk<'_>) {
        let Some(front) = self.asked.front_mut() else { return };
        match front.what {
            What::Query | What::Call => {
                if let Some(event) = &mut front.event
                    && !event.outcome.failed()
                {
                    fail(event, failure);
                }
            }
            What::Sync => {} // Of the transaction's end; ReadyForQuery follows.
            _ => {
                match &front.what {
                    What::Parse(name, before) => {
                        self.statements.set(name.clone(), before.clone());
                    }
                    // A Bind that fails fails its statement.
                    What::Bind(portal, is_executed) => {
                        let (portal, is_executed) = (portal.clone(), *is_executed);
                        let time = desk.at(front.arrived);
                        let event = match is_executed {
                            true => self.take_executed(),
                            false if front.event.is_some() => front.event.take(),
                            false => {
                                let messages = front.messages.take();
                                let messages = messages.or_else(|| self.messages_so_far(1));
                                self.bind_event(&portal, messages, time)
                            }
                        };
                        if let Some(front) = self.asked.front_mut() {
                            front.event = event;
                        }
                    }
                    _ => {}
                }
                self.keep_sync();
                self.conclude(Some(failure), now, desk);
                self.skip(desk);
            }
        }
    }

    /// The front of what was asked has failed: if the Sync behind it was sent, and goes with an event that the
    /// server will not look at, it goes with this one instead.
    fn keep_sync(&mut self) {
        let Some(sync) = self.asked.iter().position(Asked::is_sync) else { return };
        let is_last = !self.asked.range(1..sync.max(1)).any(Asked::will_be_event);
        if let Some(event) = self.asked.front_mut().and_then(|front| front.event.as_mut())
            && !is_last
        {
            add_sync(event);
        }
    }

    /// The event of the first Execute.
    fn take_executed(&mut self) -> Option<Box<Event>> {
        let is_execute = |asked: &&mut Asked| matches!(asked.what, What::Execute);
        self.asked.iter_mut().find(is_execute)?.event.take()
    }

    /// What stands behind a failure, up to Sync, is not looked at.
    fn skip(&mut self, desk: &mut Desk<'_>) {
        let sync = self.asked.iter().position(Asked::is_sync);
        self.is_skipping = sync.is_none();
        self.is_copying = false;
        let skipped = sync.unwrap_or(self.asked.len());
        for asked in self.asked.drain(..skipped).rev() {
            desk.tally.skipped_by_server += 1;
            if let What::Parse(name, before) = asked.what {
                // Its name stands for what it stood for before.
                self.statements.set(name, before);
            }
        }
    }

    /// The server waits for rows, and ignores the Syncs that came behind what made it wait.
    fn copy_in(&mut self) {
        self.set_direction(CopyDirection::In);
        let copying = self.copy.get_or_insert_default();
        copying.is_wanted = true;
        let has_ended = !copying.copy.data.is_empty();
        let is_extended = self.asked.front().is_some_and(|it| matches!(it.what, What::Execute));
        if is_extended && !has_ended {
            self.is_copying = true;
            while self.asked.get(1).is_some_and(Asked::is_sync) {
                self.asked.remove(1);
            }
        }
    }

    fn set_direction(&mut self, direction: CopyDirection) {
        let Some(event) = self.asked.front_mut().and_then(|asked| asked.event.as_mut()) else {
            return;
        };
        if let Action::Simple { sql } = &event.action {
            event.action = Action::Copy { sql: sql.clone(), direction };
        }
    }

    /// The server is ready for more.
    fn ready(&mut self, status: Option<TransactionStatus>, now: u64, desk: &mut Desk<'_>) {
        while let Some(front) = self.asked.front() {
            match front.what {
                What::Query | What::Call => {
                    self.conclude(None, now, desk);
                    break;
                }
                What::Sync => {
                    self.asked.pop_front();
                    break;
                }
                // It is over, however that was said.
                What::Execute => self.conclude(None, now, desk),
                // Its answer was not counted.
                _ => self.answered_well(desk),
            }
        }
        self.answered = now;
        if self.asked.is_empty() {
            self.copy = None;
        }
        if status == Some(TransactionStatus::Idle) && self.asked.is_empty() {
            self.portals.clear();
        }
    }
}

/// An event failed. What the server says of a text with a secret in it may quote the secret.
fn fail(event: &mut Event, failure: Outcome) {
    let finder = memchr::memmem::Finder::new(secrets::HIDDEN);
    let hides = event.action.sql().is_some_and(|sql| finder.find(sql.as_bytes()).is_some());
    event.outcome = match hides {
        true => Outcome { error: Some(secrets::HIDDEN.into()), ..failure },
        false => failure,
    };
}
