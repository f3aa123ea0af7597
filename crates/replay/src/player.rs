//! One captured session on the target: decides which event comes next and what to send.
//!
//! A player owns no socket and no clock. The worker passes in events, the time and the server's
//! replies, and the player returns what to do, so its decisions can be tested without a server.

mod batch;
mod deallocate;
mod in_flight;
mod lasting_settings;
mod messages;
mod order_hold;
mod outcome;
mod pacing;
mod spread;
mod typing;

use std::{
    collections::VecDeque,
    sync::{Arc, LazyLock},
    time::{Duration, Instant},
};

use howdah_session::{ClientSession, EncodeError, TransactionStatus};
use howdah_sql::ClientCopy;
use howdah_traffic::{
    Action, Bound, CopyDirection, Event, Kind, Parameter, SessionId, SqlState, Text, Timestamp,
    WireDetail,
};
use memchr::memmem::Finder;

pub(crate) use self::{
    batch::ends_transaction,
    outcome::{DropCause, EventEnd, FinishedEvent, ScheduledEvent, SkipCause},
};
use self::{
    batch::{begins_transaction, continues_batch},
    in_flight::{BatchPart, InFlightBatch},
    lasting_settings::LastingSettings,
    messages::{BatchContext, MessageWriter, function_oid, statement_text},
    order_hold::{OrderCheck, OrderHold},
    pacing::SessionPace,
    spread::TransactionSpread,
};
use crate::{
    ids::{GeneratedIds, SharedIds},
    link::{ReplayFailure, Reply},
    order::{StatementOrder, is_conflict_victim},
    pace::{Schedule, lag::LagPolicy},
    types::{ParameterTypes, TrialResult, TypeTrial},
};

/// The next thing that a worker must do for a player.
#[derive(Debug)]
pub(crate) enum PlayerStep {
    /// Wait until this time, or until an event or a reply arrives.
    WaitUntil(Instant),
    /// Wait for an event or a reply.
    Wait,
    /// Wait until all transactions before this captured time have ended.
    WaitForTransactions(Timestamp),
    /// Open a connection, for a Connect event if there is one.
    Connect(Option<ScheduledEvent>),
    /// Send what the client has queued.
    Send,
    /// Close the connection.
    Hangup(ScheduledEvent),
    /// Pass the session on to another connection, because the next event need not wait for the
    /// batch in flight.
    Spread,
    /// Send a cancel request for the batch in flight.
    Cancel(ScheduledEvent),
    /// Record the outcome; nothing was sent.
    Record(ScheduledEvent, EventEnd),
}

/// The state of the player's connection.
#[derive(Clone, Debug)]
pub(crate) enum LinkState {
    /// Not connected; `outage` is set if an attempt failed or the connection was lost.
    Disconnected {
        outage: Option<Outage>,
    },
    Connecting,
    Connected,
}

/// Whether a connection has the settings of its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkSettings {
    /// It has all of them.
    Current,
    /// It has only the settings of its login.
    OfLogin,
    /// It has earlier settings of the session.
    Outdated,
}

/// An ongoing failure to connect, or a lost connection.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) failure: ReplayFailure,
    /// Earliest time of the next attempt.
    pub(crate) retry: Instant,
    /// Whether events wait for a connection slot, although they are due.
    pub(crate) waits_for_slot: bool,
    /// Whether events no longer wait for the end of the outage, even if they have no due time: it
    /// has lasted long, or another attempt would fail in the same way.
    pub(crate) is_long: bool,
}

/// The state of one session's replay.
pub(crate) struct Player {
    pub(crate) id: SessionId,
    queue: VecDeque<ScheduledEvent>,
    pub(crate) link_state: LinkState,
    in_flight: Option<InFlightBatch>,
    /// When the session last became free to send its next event.
    pub(crate) free_since: Instant,
    /// When the server first refused to open the connection because it had no slot left, if it was
    /// not opened since.
    refused_since: Option<Instant>,
    messages: MessageWriter,
    transaction: TransactionStatus,
    /// Whether the connection was lost inside a transaction that the captured session has not ended
    /// yet.
    is_transaction_lost: bool,
    /// Whether the session has disconnected, and no event was queued since.
    has_disconnected: bool,
    /// Startup parameters of the session's login, if captured.
    pub(crate) settings: Vec<(Text, Text)>,
    /// The settings of the session since its login.
    lasting_settings: LastingSettings,
    link_settings: LinkSettings,
    pace: SessionPace,
    spread: TransactionSpread,
    /// Deduced types of parameters that a log does not contain.
    types: Arc<ParameterTypes>,
    /// The next trial of types for the event at the front.
    trial: Option<Box<TypeTrial>>,
    /// The state of the session in the commit order.
    pub(crate) order: OrderHold,
}

/// Settings that the players of a replay share.
#[derive(Clone, Debug)]
pub(crate) struct PlayerSettings {
    pub(crate) fetch_rows: u32,
    pub(crate) lag: LagPolicy,
    /// See [`ReplaySettings::think_time`](crate::ReplaySettings::think_time).
    pub(crate) think_time: Option<f64>,
    pub(crate) order: StatementOrder,
    pub(crate) types: Arc<ParameterTypes>,
    /// The values that the target generated, if they replace captured ones.
    pub(crate) ids: Option<Arc<SharedIds>>,
}

/// The text of a prepared statement, with its parameter types.
#[derive(Debug)]
struct PreparedText {
    sql: Text,
    types: Vec<u32>,
    /// Whether it failed because its result has changed. Then it fails until it is prepared again,
    /// which a log does not always show.
    is_stale: bool,
}

impl PreparedText {
    /// Returns the text and types that a Parse for this event prepares.
    fn for_event(item: &ScheduledEvent) -> Self {
        let sql = item.event.action.sql().cloned().unwrap_or_default();
        Self { sql, types: item.types().to_vec(), is_stale: false }
    }

    fn matches(&self, item: &ScheduledEvent) -> bool {
        let is_usable = !self.is_stale || item.event.outcome.failed();
        is_usable && item.event.action.sql() == Some(&self.sql) && self.types == item.types()
    }
}

impl Player {
    pub(crate) fn new(id: SessionId, now: Instant, settings: &PlayerSettings) -> Self {
        Self {
            id,
            queue: VecDeque::new(),
            link_state: LinkState::Disconnected { outage: None },
            in_flight: None,
            free_since: now,
            refused_since: None,
            messages: MessageWriter::new(
                settings.fetch_rows,
                settings.ids.clone().map(GeneratedIds::new),
            ),
            transaction: TransactionStatus::Idle,
            is_transaction_lost: false,
            has_disconnected: false,
            settings: Vec::new(),
            lasting_settings: LastingSettings::default(),
            link_settings: LinkSettings::Current,
            pace: SessionPace::new(settings.lag, settings.think_time),
            spread: TransactionSpread::new(settings.order == StatementOrder::None),
            types: settings.types.clone(),
            trial: None,
            order: OrderHold::new(settings.order == StatementOrder::Commit),
        }
    }

    /// Queues the session's next event.
    pub(crate) fn push(&mut self, mut item: ScheduledEvent) {
        item.is_in_block = self.spread.note_queued(&item.event);
        self.messages.has_captured_parses |= item.event.action.kind() == Kind::Parse;
        self.has_disconnected = false;
        if let (Action::Connect, Some(wire)) = (&item.event.action, &item.event.wire) {
            self.settings.clone_from(&wire.settings);
        }
        self.queue.push_back(item);
    }

    /// Whether the player has nothing to do and nothing to wait for.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.in_flight.is_none()
            && !matches!(self.link_state, LinkState::Connecting)
    }

    /// Whether events are queued.
    pub(crate) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether the next event is due.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        self.queue.front().is_some_and(|next| next.due <= now)
    }

    /// Whether a batch is in flight.
    pub(crate) fn is_busy(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Whether the connection has an open transaction block.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.link_state, LinkState::Connected)
            && self.transaction != TransactionStatus::Idle
    }

    /// Whether the session has disconnected and nothing is queued, so that its slot can be reused.
    pub(crate) fn is_done(&self) -> bool {
        self.has_disconnected && self.queue.is_empty()
    }

    /// Moves queued events that are not due yet to their due times in another schedule.
    pub(crate) fn reschedule(&mut self, now: Instant, schedule: &Schedule) {
        for item in self.queue.iter_mut().filter(|item| item.scheduled > now) {
            item.scheduled = schedule.due(item.time);
            item.postpone(item.scheduled);
        }
    }

    /// Returns how late the next event is.
    pub(crate) fn lag(&self, now: Instant) -> Duration {
        self.queue.front().map_or(Duration::ZERO, |next| now.saturating_duration_since(next.due))
    }

    /// Returns the event at the front of the queue, which is next.
    pub(crate) fn next_event(&self) -> Option<&Event> {
        self.queue.front().map(|next| &*next.event)
    }

    /// Decides what to do at `now`. For [`PlayerStep::Send`], the messages are queued in `client`,
    /// which must be given if the state is [`LinkState::Connected`]. All transactions
    /// before the captured time `clear_until` have ended.
    pub(crate) fn step(
        &mut self,
        now: Instant,
        schedule: &Schedule,
        clear_until: Timestamp,
        client: Option<&mut ClientSession>,
    ) -> PlayerStep {
        if self.in_flight.is_some() {
            return self.step_in_flight(now, schedule.is_paced());
        }
        let Some(next) = self.queue.front_mut() else { return PlayerStep::Wait };
        self.pace.set_due(next, self.free_since, schedule);
        if next.due > now {
            return PlayerStep::WaitUntil(next.due);
        }
        let Some(next) = self.queue.front() else { return PlayerStep::Wait };
        if self.order.is_enabled && is_conflict_victim(&next.event) {
            return self.repeat_conflict(now, client);
        }
        if let Some(skip) = self.reason_to_skip(&next.event) {
            let item = self.pop();
            self.on_skipped(&item.event);
            return PlayerStep::Record(item, EventEnd::Skipped(skip));
        }
        let is_idle = self.transaction == TransactionStatus::Idle && !self.is_transaction_lost;
        if self.queue.front().is_some_and(|next| self.pace.drops(next, now, is_idle)) {
            return PlayerStep::Record(self.pop(), EventEnd::Dropped(DropCause::Late));
        }
        match self.order.check(&self.queue, clear_until, now) {
            OrderCheck::Passed => {}
            OrderCheck::WaitFor(needs) => return PlayerStep::WaitForTransactions(needs),
            OrderCheck::Wait => return PlayerStep::Wait,
        }
        match (&self.link_state, client) {
            (LinkState::Connected, Some(client)) => self.play(now, client),
            (LinkState::Disconnected { outage }, _) => {
                let outage = outage.clone().filter(|outage| outage.retry > now);
                self.step_disconnected(now, schedule.is_paced(), outage)
            }
            (LinkState::Connecting | LinkState::Connected, _) => PlayerStep::Wait,
        }
    }

    /// Decides what to do while a batch is in flight. Events wait for its replies, except cancel
    /// requests, and transactions that can be sent on another connection.
    fn step_in_flight(&mut self, now: Instant, paced: bool) -> PlayerStep {
        let (Some(flight), Some(next)) = (&self.in_flight, self.queue.front()) else {
            return PlayerStep::Wait;
        };
        if next.event.action == Action::Cancel {
            let at = flight.cancel_at(next, paced);
            return if at > now {
                PlayerStep::WaitUntil(at)
            } else {
                PlayerStep::Cancel(self.pop())
            };
        }
        if !paced || !self.can_spread(flight, next) {
            return PlayerStep::Wait;
        }
        if next.due > now { PlayerStep::WaitUntil(next.due) } else { PlayerStep::Spread }
    }

    /// Handles a statement that failed in the capture by a conflict with another session, such as a
    /// deadlock, which may not occur in the same place again. The statement is not sent; if it was
    /// part of a transaction, another one that fails is sent in its place.
    fn repeat_conflict(&mut self, now: Instant, client: Option<&mut ClientSession>) -> PlayerStep {
        if self.transaction == TransactionStatus::InTransaction
            && let (LinkState::Connected, Some(client)) = (&self.link_state, client)
        {
            client.query(FAILING_SQL).expect("the text has no zero byte");
            self.in_flight = Some(InFlightBatch::new(Vec::new(), now, None));
            return PlayerStep::Send;
        }
        let item = self.pop();
        self.on_skipped(&item.event);
        PlayerStep::Record(item, EventEnd::Skipped(SkipCause::Conflict))
    }

    fn pop(&mut self) -> ScheduledEvent {
        self.queue.pop_front().expect("callers check that the queue has a front")
    }

    /// Decides what to do without a connection. While `outage` is set, the next attempt to connect
    /// is not due yet.
    fn step_disconnected(
        &mut self,
        now: Instant,
        paced: bool,
        outage: Option<Outage>,
    ) -> PlayerStep {
        let next =
            self.queue.front().expect("step checks that the queue has a front").event.action.kind();
        match outage {
            _ if next == Kind::Disconnect => {
                self.on_disconnected(now);
                PlayerStep::Record(self.pop(), EventEnd::Done)
            }
            Some(outage) if paced && !outage.waits_for_slot || outage.is_long => {
                PlayerStep::Record(self.pop(), EventEnd::Failed(outage.failure))
            }
            Some(outage) => PlayerStep::WaitUntil(outage.retry),
            None if next == Kind::Connect => {
                let item = self.pop();
                self.pace.note_sent(&item);
                PlayerStep::Connect(Some(item))
            }
            None => PlayerStep::Connect(None),
        }
    }

    /// Returns the reason why this event cannot or must not be sent, if there is one.
    fn reason_to_skip(&self, event: &Event) -> Option<SkipCause> {
        // A prepared statement belongs to the session, so a Parse is sent even if its transaction
        // was lost.
        let kind = event.action.kind();
        let runs = kind.is_execution() || kind == Kind::Bind;
        if self.is_transaction_lost && runs && !begins_transaction(&event.action) {
            return Some(SkipCause::TransactionLost);
        }
        match &event.action {
            Action::Cancel => Some(SkipCause::NothingToCancel),
            Action::Call { function } => {
                let wire = event.wire.as_ref();
                let is_known = wire.is_some_and(|wire| wire.arguments.is_some())
                    && function_oid(function).is_some();
                (!is_known).then_some(SkipCause::CallArguments)
            }
            Action::Copy { direction: CopyDirection::In, .. } => {
                (!has_copy_data(event)).then_some(SkipCause::CopyData)
            }
            Action::Simple { sql } if sets_removed_password(sql.as_bytes()) => {
                Some(SkipCause::RemovedPassword)
            }
            Action::Execute(bound) if sets_removed_password(bound.sql.as_bytes()) => {
                Some(SkipCause::RemovedPassword)
            }
            Action::Execute(bound) if is_missing_copy_data(event, bound) => {
                Some(SkipCause::CopyData)
            }
            Action::Bind(bound) | Action::Execute(bound) => {
                parameters_skip_reason(bound.parameters.as_deref())
            }
            Action::Fetch(bound) => {
                (!self.messages.portals.contains(&bound.portal)).then_some(SkipCause::PortalNotOpen)
            }
            _ => None,
        }
    }

    fn on_skipped(&mut self, event: &Event) {
        if let Action::Execute(bound) = &event.action {
            self.messages.portals.remove(&bound.portal);
        }
        if ends_transaction(&event.action) {
            self.is_transaction_lost = false;
        }
    }

    /// Queues the messages of the next event and of the events in the same batch.
    fn play(&mut self, now: Instant, client: &mut ClientSession) -> PlayerStep {
        let next = self.queue.front().expect("step checks that the queue has a front");
        match next.event.action.kind() {
            Kind::Connect => return PlayerStep::Record(self.pop(), EventEnd::Done),
            Kind::Disconnect => return self.disconnect(now, client),
            _ => {}
        }
        if self.restores_state(now, client) {
            return PlayerStep::Send;
        }
        let mut parts = vec![BatchPart::new(self.pop())];
        while let Some(next) = self.queue.front() {
            let last = parts.last().expect("parts has at least one element");
            if !continues_batch(&last.item.event, &next.event)
                || self.must_split_before(&parts, next)
            {
                break;
            }
            let mut item = self.pop();
            self.pace.set_due_in_batch(&mut item, &parts[0].item);
            parts.push(BatchPart::new(item));
        }
        if let Some(last) = parts.last() {
            self.pace.note_sent(&last.item);
        }
        if let Some(at) = self.order.ended_at.take() {
            parts.iter_mut().for_each(|part| part.item.held_until = Some(at));
        }
        if self.is_transaction_lost && begins_transaction(&parts[0].item.event.action) {
            self.is_transaction_lost = false;
        }
        if let Some(probe) = self.prepare_types(&mut parts, client) {
            self.requeue_parts(parts);
            let flight = InFlightBatch::new(Vec::new(), now, None);
            self.in_flight =
                Some(InFlightBatch { trial: Some((probe, TrialResult::default())), ..flight });
            return PlayerStep::Send;
        }
        // If an event cannot be encoded, it fails, and so do the following events of its batch.
        // Earlier events are already queued and need a Sync to get a reply.
        let context = BatchContext {
            is_in_transaction: self.transaction == TransactionStatus::InTransaction,
            next: self.queue.front().map(|next| &next.event.action),
        };
        let queued = self.messages.queue_messages(&mut parts, context, client);
        let failure = queued.err().map(|reason| {
            client.sync();
            encode_failure(&reason)
        });
        self.in_flight = Some(InFlightBatch::new(parts, now, failure));
        PlayerStep::Send
    }

    /// Queues the statements that give the connection what the session has set. Returns false if it
    /// has that already.
    fn restores_state(&mut self, now: Instant, client: &mut ClientSession) -> bool {
        let before = std::mem::replace(&mut self.link_settings, LinkSettings::Current);
        let mut restores = false;
        if before == LinkSettings::Outdated {
            for sql in RESET_SQL {
                restores |= client.query(sql).is_ok();
            }
            self.messages.reset();
        }
        if before != LinkSettings::Current {
            for sql in self.lasting_settings.statements() {
                // A text that was sent once has no zero byte.
                restores |= client.query(sql).is_ok();
            }
        }
        if restores {
            self.in_flight = Some(InFlightBatch::new(Vec::new(), now, None));
        }
        restores
    }

    /// Disconnects. Messages captured before the session's end that belong to no event are sent
    /// first; the next step after their replies disconnects.
    fn disconnect(&mut self, now: Instant, client: &mut ClientSession) -> PlayerStep {
        let mut last = BatchPart::new(self.pop());
        if last.item.event.messages().is_none() {
            return PlayerStep::Hangup(last.item);
        }
        let context = BatchContext { is_in_transaction: false, next: None };
        let sent = self.messages.queue_messages(std::slice::from_mut(&mut last), context, client);
        if sent.is_err() {
            client.sync();
        }
        if let Some(wire) = &mut last.item.event.wire {
            wire.messages = None;
        }
        self.queue.push_front(last.item);
        self.in_flight = Some(InFlightBatch::new(Vec::new(), now, None));
        PlayerStep::Send
    }

    /// Whether `next` cannot be sent with `parts`, although it belongs to the same batch.
    fn must_split_before(&self, parts: &[BatchPart], next: &ScheduledEvent) -> bool {
        let is_opened = |portal: &Text| {
            parts.iter().any(|part| {
                matches!(&part.item.event.action, Action::Execute(bound) if bound.portal == *portal)
            })
        };
        match &next.event.action {
            Action::Fetch(bound) if is_opened(&bound.portal) => false,
            _ => {
                self.reason_to_skip(&next.event).is_some()
                    || self.order.is_enabled && is_conflict_victim(&next.event)
            }
        }
    }

    /// Handles a reply. If it completes the batch in flight, adds its events to `finished`.
    pub(crate) fn handle_reply(
        &mut self,
        reply: Reply,
        now: Instant,
        client: &mut ClientSession,
        finished: &mut Vec<FinishedEvent>,
    ) {
        if self.in_flight.as_ref().is_some_and(|flight| flight.trial.is_some()) {
            return self.handle_trial_reply(reply, client);
        }
        match reply {
            Reply::Ready(status) => {
                self.transaction = status;
                if status == TransactionStatus::Idle {
                    self.order.is_released = false;
                    // Portals end with their transaction.
                    self.messages.portals.clear();
                }
                if client.pending_ready_count() > 0
                    && let Some(flight) = &mut self.in_flight
                {
                    // This ReadyForQuery completes an earlier pipeline within the batch, not the
                    // whole batch.
                    flight.failure = None;
                    return;
                }
                return self.finish_batch(now, client, finished);
            }
            Reply::CopyIn => self.copy_in(client),
            Reply::LoggedIn => self.on_logged_in(now),
            Reply::Parsed
            | Reply::ParameterTypes(_)
            | Reply::Bound
            | Reply::Result(_)
            | Reply::Rows(_)
            | Reply::Failed(_) => {}
        }
        let Some(flight) = &mut self.in_flight else { return };
        match reply {
            Reply::Bound => {
                flight.on_bind_complete(client.answered());
                flight.complete(client.answered(), 0, now);
            }
            Reply::Parsed => flight.complete(client.answered(), 0, now),
            Reply::Result(result) => flight.next_result = Some(result),
            Reply::Rows(rows) => flight.complete(client.answered(), rows, now),
            Reply::Failed(failure) => {
                // 26000 invalid_sql_statement_name: prepare again before the next use.
                if failure.sqlstate == SqlState::new(b"26000") {
                    self.messages.statements.clear();
                }
                flight.failure.get_or_insert(failure);
                if client.pending_ready_count() == 0 {
                    // The batch ends with a Query instead of a Sync, and the server skips it after
                    // an error.
                    client.sync();
                }
            }
            Reply::ParameterTypes(_) | Reply::Ready(_) | Reply::CopyIn | Reply::LoggedIn => {}
        }
    }

    /// Sends the captured rows to a server that waits for COPY data. Fails the COPY if the capture
    /// does not have them, or if the captured client failed it.
    fn copy_in(&mut self, client: &mut ClientSession) {
        let part = self.in_flight.as_mut().and_then(|flight| flight.parts.last_mut());
        let copy = part.and_then(|part| {
            let copy = part.item.event.wire.as_ref()?.copy_in.as_ref()?;
            let data = copy.data.get(part.copies)?.as_ref()?;
            part.copies += 1;
            Some((data, copy.failed && part.copies == copy.data.len()))
        });
        let sent = match copy {
            Some((data, fails)) => data
                .as_bytes()
                .chunks(COPY_CHUNK_BYTES)
                .try_for_each(|it| client.copy_data(it))
                .and_then(|()| {
                    if fails {
                        client.copy_fail(b"the client ended this COPY")
                    } else {
                        client.copy_done();
                        Ok(())
                    }
                }),
            None => client.copy_fail(b"the rows of this COPY are not in the capture"),
        };
        sent.expect("the reasons have no zero byte and chunks are short");
        let kind = self.in_flight.as_ref().and_then(|flight| flight.parts.last());
        if kind.is_some_and(|part| part.item.event.action.kind() == Kind::Execute) {
            // The server ignored the previous Sync, which arrived while it waited for rows.
            client.sync();
        }
    }

    fn on_logged_in(&mut self, now: Instant) {
        self.link_state = LinkState::Connected;
        // The wait for a slot is not the server's: it has as many as it is configured to.
        self.free_since = self.refused_since.take().unwrap_or(now);
        self.transaction = TransactionStatus::Idle;
        self.messages.reset();
        self.link_settings = LinkSettings::OfLogin;
    }

    /// Completes the batch in flight, once all its replies have arrived.
    fn finish_batch(
        &mut self,
        now: Instant,
        client: &ClientSession,
        finished: &mut Vec<FinishedEvent>,
    ) {
        let Some(flight) = self.in_flight.take() else { return };
        if let Some(failure) = &flight.failure {
            // 0A000 feature_not_supported: `cached plan must not change result type`.
            if failure.sqlstate == SqlState::new(b"0A000")
                && let Some(failed) = flight.parts.iter().find(|part| part.completed.is_none())
                && let Action::Bind(bound) | Action::Execute(bound) = &failed.item.event.action
                && let Some(prepared) = self.messages.statements.get_mut(&bound.statement)
            {
                prepared.is_stale = true;
            }
            // Statements prepared earlier remain prepared. It is unknown whether the failed batch
            // prepared any, so those are prepared again.
            for part in flight.parts.iter().filter(|part| part.completed.is_none()) {
                match &part.item.event.action {
                    Action::Parse { statement, .. } => {
                        self.messages.statements.remove(statement);
                    }
                    Action::Bind(bound) | Action::Execute(bound) if part.is_prepared => {
                        self.messages.statements.remove(&bound.statement);
                    }
                    _ => {}
                }
            }
        }
        let Some(flight) = self.retry_with_types(flight) else { return };
        self.note_settings(&flight, client);
        self.note_generated_ids(&flight);
        let free = std::mem::replace(&mut self.free_since, now);
        flight.finish(now, free, finished);
    }

    /// Records the values that the target generated in place of captured ones.
    fn note_generated_ids(&mut self, flight: &InFlightBatch) {
        let Some(ids) = &mut self.messages.ids else { return };
        for part in &flight.parts {
            if let (Some(wire), Some(replayed)) = (&part.item.event.wire, &part.result)
                && let Some(captured) = &wire.result
            {
                ids.note(wire, captured, replayed);
            }
        }
    }

    /// Records the settings that the statements of a batch have changed.
    fn note_settings(&mut self, flight: &InFlightBatch, client: &ClientSession) {
        for part in &flight.parts {
            let event = &part.item.event;
            let Some(sql) = event.action.sql().filter(|_| event.action.kind().is_execution())
            else {
                continue;
            };
            if part.completed.is_some() || flight.failure.is_none() {
                self.lasting_settings.note_done(sql.as_bytes(), |sql| {
                    statement_text(event, sql, client).into_owned()
                });
            } else {
                self.lasting_settings.note_failed();
            }
        }
        if self.transaction == TransactionStatus::Idle {
            self.lasting_settings.note_idle();
        }
    }

    /// Handles the loss of the connection or a failed attempt to connect. Events in flight fail,
    /// except those that were already complete.
    pub(crate) fn on_connection_lost(
        &mut self,
        outage: Outage,
        now: Instant,
    ) -> Vec<FinishedEvent> {
        let mut finished = Vec::new();
        if let Some(mut flight) = self.in_flight.take() {
            flight.failure.get_or_insert_with(|| outage.failure.clone());
            let free = std::mem::replace(&mut self.free_since, now);
            flight.finish(now, free, &mut finished);
        }
        // A COMMIT in flight has ended its transaction, whether it succeeded or not.
        let ended = finished.last().is_some_and(|last| ends_transaction(&last.item.event.action));
        self.is_transaction_lost |= self.transaction != TransactionStatus::Idle && !ended;
        self.transaction = TransactionStatus::Idle;
        self.lasting_settings.note_connection_lost();
        if outage.waits_for_slot {
            self.refused_since.get_or_insert(now);
        }
        self.link_state = LinkState::Disconnected { outage: Some(outage) };
        finished
    }

    /// Fails the next event with the error of the connection attempt made for it.
    pub(crate) fn fail_next(
        &mut self,
        failure: &ReplayFailure,
        now: Instant,
    ) -> Option<FinishedEvent> {
        let item = self.queue.pop_front()?;
        Some(FinishedEvent::unsent(item, now, self.free_since, EventEnd::Failed(failure.clone())))
    }

    /// Returns the Connect event of a failed attempt to the queue, to try again.
    pub(crate) fn requeue(&mut self, item: ScheduledEvent) {
        self.queue.push_front(item);
    }

    /// Records that the session is disconnected, by its Disconnect event or because the capture has
    /// no further events of it.
    pub(crate) fn on_disconnected(&mut self, now: Instant) {
        self.link_state = LinkState::Disconnected { outage: None };
        self.transaction = TransactionStatus::Idle;
        self.is_transaction_lost = false;
        self.has_disconnected = true;
        self.free_since = now;
        self.lasting_settings = LastingSettings::default();
        self.pace.reset();
    }

    /// Ends the session of a player that has passed its events on: now, or after the batch in
    /// flight.
    pub(crate) fn end_when_free(&mut self, now: Instant) {
        self.has_disconnected = true;
        if self.is_idle() {
            self.on_disconnected(now);
        }
    }

    /// Ends all queued events as skipped, because the replay is interrupted.
    pub(crate) fn skip_queued(&mut self, now: Instant) -> Vec<FinishedEvent> {
        let end = EventEnd::Skipped(SkipCause::Interrupted);
        let abandoned = |item| FinishedEvent::unsent(item, now, self.free_since, end.clone());
        std::mem::take(&mut self.queue).into_iter().map(abandoned).collect()
    }

    /// Ends the events in flight as skipped, without waiting for their replies.
    pub(crate) fn abandon_in_flight(&mut self, now: Instant) -> Vec<FinishedEvent> {
        let Some(flight) = self.in_flight.take() else { return Vec::new() };
        let end = EventEnd::Skipped(SkipCause::Abandoned);
        let abandoned = |part: BatchPart| FinishedEvent {
            item: part.item,
            sent: Some(flight.sent),
            started: Some(flight.sent),
            ended: now,
            free_since: self.free_since,
            rows: None,
            result: None,
            end: end.clone(),
        };
        flight.parts.into_iter().map(abandoned).collect()
    }
}

/// A statement that always fails, in place of one whose failure cannot be repeated.
const FAILING_SQL: &[u8] = b"select 'failed in the capture by a conflict'::pg_catalog.int4";

/// Returns a connection to the settings of its login.
const RESET_SQL: [&[u8]; 5] =
    [b"reset session authorization", b"reset role", b"reset all", b"unlisten *", b"deallocate all"];

/// Whether the rows of all the event's COPYs were captured.
fn has_copy_data(event: &Event) -> bool {
    let copy = event.wire.as_ref().and_then(|wire| wire.copy_in.as_ref());
    copy.is_some_and(|copy| copy.data.iter().all(Option::is_some))
}

/// Whether an Execute would wait for rows that are not in the capture. If it were sent, it would
/// have to fail, and with it the rest of its transaction.
fn is_missing_copy_data(event: &Event, bound: &Bound) -> bool {
    match event.wire.as_deref() {
        Some(WireDetail { copy_in, .. }) => copy_in.is_some() && !has_copy_data(event),
        None => ClientCopy::of_prepared(bound.sql.as_bytes()) == Some(ClientCopy::FromStdin),
    }
}

/// Maximum bytes of one CopyData message.
const COPY_CHUNK_BYTES: usize = 64 << 10;

/// Whether a statement sets a password that was removed from the capture: sending it would give a
/// role the placeholder as its password. Quotes are doubled inside of another string.
fn sets_removed_password(sql: &[u8]) -> bool {
    const PASSWORD: &[u8] = b"password";
    // Preparing a search takes longer than most searches.
    static REDACTED: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"'redacted'"));
    // Most statements have no quote, and finding a byte is faster.
    if memchr::memchr(b'\'', sql).is_none() {
        return false;
    }
    REDACTED.find_iter(sql).any(|at| {
        let before = &sql[..at];
        let is_filler = |byte: &u8| byte.is_ascii_whitespace() || *byte == b'\'';
        let end = before.iter().rposition(|byte| !is_filler(byte)).map_or(0, |last| last + 1);
        let word = &before[end.saturating_sub(PASSWORD.len())..end];
        word.eq_ignore_ascii_case(PASSWORD)
    })
}

/// Returns the reason why these values cannot be bound, if there is one.
fn parameters_skip_reason(parameters: Option<&[Parameter]>) -> Option<SkipCause> {
    match parameters {
        None => Some(SkipCause::UnknownParameters),
        Some(values) => values
            .iter()
            .any(|value| matches!(value, Parameter::Truncated(_)))
            .then_some(SkipCause::TruncatedParameter),
    }
}

/// Returns the failure of an event that the protocol cannot encode. It has no code because no
/// server reported it.
fn encode_failure(reason: &EncodeError) -> ReplayFailure {
    ReplayFailure { sqlstate: None, message: Text::from(reason.to_string()) }
}

#[cfg(test)]
mod tests;
