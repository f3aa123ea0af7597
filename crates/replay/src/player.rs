//! One captured session on the target: which of its events comes next and what to send for it.
//!
//! A player holds no socket and no clock. The worker gives it events, the time and the server's
//! replies; it says what to do. So its decisions can be tested without a server.

mod batch;
mod flight;
mod messages;
mod outcome;
mod typing;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Instant,
};

use howdah_session::{Client, EncodeError, TransactionStatus};
use howdah_traffic::{Action, CopyDirection, Event, Kind, Parameter, SessionId, SqlState, Text};

pub(crate) use self::{
    batch::ends_transaction,
    outcome::{End, Finished, Item, Skip},
};
use self::{
    batch::{begins, continues},
    flight::{Flight, Part},
    messages::function_oid,
};
use crate::{
    link::{Failure, Reply},
    types::{ParameterTypes, Probe, ProbeResult},
};

/// What a worker has to do for a player next.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nothing until the next event is due.
    WaitUntil(Instant),
    /// Nothing until something arrives: an event, or the server's reply.
    Wait,
    /// Open a connection. The item is the Connect event that asks for it, if one does.
    Connect(Option<Item>),
    /// Send what the client has queued.
    Send,
    /// Close the connection.
    Hangup(Item),
    /// Cancel what is in flight.
    Cancel(Item),
    /// Record this; nothing was sent.
    Record(Item, End),
}

/// Where the player's connection is.
#[derive(Clone, Debug)]
pub(crate) enum Presence {
    /// Not connected; `outage` says why, if it should be.
    Away {
        outage: Option<Outage>,
    },
    Arriving,
    Here,
}

/// A connection that was lost or could not be had.
#[derive(Clone, Debug)]
pub(crate) struct Outage {
    pub(crate) failure: Failure,
    /// When to try again.
    pub(crate) retry: Instant,
    /// It has lasted so long that events no longer wait for its end, even those without a due time.
    pub(crate) is_long: bool,
}

/// The state of one session's replay.
pub(crate) struct Player {
    pub(crate) id: SessionId,
    queue: VecDeque<Item>,
    pub(crate) presence: Presence,
    flight: Option<Flight>,
    /// Since when nothing has been in flight.
    free: Instant,
    /// What is prepared on the present connection, by name.
    statements: HashMap<Text, Prepared>,
    /// Portals opened on the present connection, by name.
    portals: HashSet<Text>,
    /// The capture has this session's Parse messages, so an Execute needs none of its own.
    parses_captured: bool,
    transaction: TransactionStatus,
    /// The connection was lost inside a transaction whose end has not come yet.
    transaction_lost: bool,
    /// Its Disconnect was the last that happened.
    has_left: bool,
    fetch_rows: u32,
    /// What its login is to set, if the capture says so.
    settings: Vec<(Text, Text)>,
    /// Types of parameters that a log does not hold.
    types: Arc<ParameterTypes>,
    /// The next try of types for the event at the front.
    probe: Option<Box<Probe>>,
}

/// A text that was prepared, with the types that it was prepared with.
#[derive(Debug)]
struct Prepared {
    sql: Text,
    types: Vec<u32>,
}

impl Prepared {
    /// What a Parse for this event prepares.
    fn of(item: &Item) -> Self {
        let sql = item.event.action.sql().cloned().unwrap_or_default();
        Self { sql, types: item.types().to_vec() }
    }

    fn is_of(&self, item: &Item) -> bool {
        item.event.action.sql() == Some(&self.sql) && self.types == item.types()
    }
}

impl Player {
    pub(crate) fn new(
        id: SessionId,
        now: Instant,
        fetch_rows: u32,
        types: Arc<ParameterTypes>,
    ) -> Self {
        Self {
            id,
            queue: VecDeque::new(),
            presence: Presence::Away { outage: None },
            flight: None,
            free: now,
            statements: HashMap::new(),
            portals: HashSet::new(),
            parses_captured: false,
            transaction: TransactionStatus::Idle,
            transaction_lost: false,
            has_left: false,
            fetch_rows,
            settings: Vec::new(),
            types,
            probe: None,
        }
    }

    /// What its login is to set.
    pub(crate) fn settings(&self) -> &[(Text, Text)] {
        &self.settings
    }

    /// Adds the session's next event.
    pub(crate) fn push(&mut self, item: Item) {
        self.parses_captured |= item.event.action.kind() == Kind::Parse;
        self.has_left = false;
        if let (Action::Connect, Some(wire)) = (&item.event.action, &item.event.wire) {
            self.settings.clone_from(&wire.settings);
        }
        self.queue.push_back(item);
    }

    /// Whether it has nothing to do and nothing to wait for.
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.is_empty()
            && self.flight.is_none()
            && !matches!(self.presence, Presence::Arriving)
    }

    /// Whether events wait, for their time or for the session.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether an event waits that is due.
    pub(crate) fn is_behind(&self, now: Instant) -> bool {
        self.queue.front().is_some_and(|head| head.due <= now)
    }

    /// Whether a statement is on its way.
    pub(crate) fn is_busy(&self) -> bool {
        self.flight.is_some()
    }

    /// Whether its connection has an open transaction block.
    pub(crate) fn is_in_transaction(&self) -> bool {
        matches!(self.presence, Presence::Here) && self.transaction != TransactionStatus::Idle
    }

    /// Whether it has left and nothing more is known of it: its place can be given away.
    pub(crate) fn is_done(&self) -> bool {
        self.has_left && self.queue.is_empty()
    }

    /// The event that comes next.
    pub(crate) fn next_event(&self) -> Option<&Event> {
        self.queue.front().map(|head| &head.event)
    }

    /// Decides what comes next at `now`. Where that is [`Step::Send`], the messages are in `client`,
    /// which must be given while the player is [`Presence::Here`].
    pub(crate) fn step(&mut self, now: Instant, paced: bool, client: Option<&mut Client>) -> Step {
        let Some(head) = self.queue.front() else { return Step::Wait };
        if let Some(flight) = &self.flight {
            // All others wait for what is in flight, which will look here when it has landed.
            if head.event.action != Action::Cancel {
                return Step::Wait;
            }
            let at = flight.cancel_at(head, paced);
            return if at > now { Step::WaitUntil(at) } else { Step::Cancel(self.pop()) };
        }
        if head.due > now {
            return Step::WaitUntil(head.due);
        }
        if let Some(skip) = self.reason_to_skip(&head.event) {
            let item = self.pop();
            self.note_skipped(&item.event);
            return Step::Record(item, End::Skipped(skip));
        }
        match (&self.presence, client) {
            (Presence::Here, Some(client)) => self.play(now, client),
            (Presence::Away { outage }, _) => {
                let outage = outage.clone().filter(|outage| outage.retry > now);
                self.step_away(now, paced, outage)
            }
            (Presence::Arriving | Presence::Here, _) => Step::Wait,
        }
    }

    fn pop(&mut self) -> Item {
        self.queue.pop_front().expect("callers have looked at the front")
    }

    /// Decides what comes next without a connection, while `outage` allows no attempt to get one.
    fn step_away(&mut self, now: Instant, paced: bool, outage: Option<Outage>) -> Step {
        let head = self.queue.front().expect("step has looked").event.action.kind();
        match outage {
            _ if head == Kind::Disconnect => {
                self.left(now);
                Step::Record(self.pop(), End::Done)
            }
            Some(outage) if paced || outage.is_long => {
                Step::Record(self.pop(), End::Failed(outage.failure))
            }
            Some(outage) => Step::WaitUntil(outage.retry),
            None if head == Kind::Connect => Step::Connect(Some(self.pop())),
            None => Step::Connect(None),
        }
    }

    /// Why this event cannot or must not be sent, if so.
    fn reason_to_skip(&self, event: &Event) -> Option<Skip> {
        // A Parse is the session's, not the transaction's.
        let kind = event.action.kind();
        let runs = kind.is_execution() || kind == Kind::Bind;
        if self.transaction_lost && runs && !begins(&event.action) {
            return Some(Skip::TransactionLost);
        }
        match &event.action {
            Action::Cancel => Some(Skip::NothingToCancel),
            Action::Call { function } => {
                let wire = event.wire.as_ref();
                let is_known = wire.is_some_and(|wire| wire.arguments.is_some())
                    && function_oid(function).is_some();
                (!is_known).then_some(Skip::CallArguments)
            }
            Action::Copy { direction: CopyDirection::In, .. } => {
                (!has_copy_data(event)).then_some(Skip::CopyData)
            }
            Action::Bind(bound) | Action::Execute(bound) => unusable(bound.parameters.as_deref()),
            Action::Fetch(bound) => {
                (!self.portals.contains(&bound.portal)).then_some(Skip::PortalNotOpen)
            }
            _ => None,
        }
    }

    fn note_skipped(&mut self, event: &Event) {
        if let Action::Execute(bound) = &event.action {
            self.portals.remove(&bound.portal);
        }
        if ends_transaction(&event.action) {
            self.transaction_lost = false;
        }
    }

    /// Sends the head event, and those that belong to the same batch.
    fn play(&mut self, now: Instant, client: &mut Client) -> Step {
        let head = self.queue.front().expect("step has looked");
        match head.event.action.kind() {
            Kind::Connect => return Step::Record(self.pop(), End::Done),
            Kind::Disconnect => return self.leave(now, client),
            _ => {}
        }
        let mut parts = vec![Part::new(self.pop())];
        while let Some(next) = self.queue.front() {
            let last = parts.last().expect("it began with one");
            if !continues(&last.item.event, &next.event) || self.reason_to_part(&parts, next) {
                break;
            }
            parts.push(Part::new(self.pop()));
        }
        if self.transaction_lost && begins(&parts[0].item.event.action) {
            self.transaction_lost = false;
        }
        if let Some(probe) = self.probe_before(&mut parts, client) {
            self.put_back_parts(parts);
            let flight = Flight::new(Vec::new(), now, None);
            self.flight = Some(Flight { probe: Some((probe, ProbeResult::default())), ..flight });
            return Step::Send;
        }
        // What cannot be written fails with all that stands behind it in its batch. What stands
        // before it is queued by then, and nobody answers that without a Sync.
        let failure = self.queue_messages(&mut parts, client).err().map(|reason| {
            client.sync();
            unwritable(&reason)
        });
        self.flight = Some(Flight::new(parts, now, failure));
        Step::Send
    }

    /// Sends what was sent before a session's end, for no event of its own; then ends it.
    fn leave(&mut self, now: Instant, client: &mut Client) -> Step {
        let mut last = Part::new(self.pop());
        if last.item.event.messages().is_none() {
            return Step::Hangup(last.item);
        }
        let sent = self.queue_messages(std::slice::from_mut(&mut last), client);
        if sent.is_err() {
            client.sync();
        }
        if let Some(wire) = &mut last.item.event.wire {
            wire.messages = None;
        }
        self.queue.push_front(last.item);
        self.flight = Some(Flight::new(Vec::new(), now, None));
        Step::Send
    }

    /// Whether `next` cannot go out with `parts`, although it belongs to them.
    fn reason_to_part(&self, parts: &[Part], next: &Item) -> bool {
        let is_opened = |portal: &Text| {
            parts.iter().any(|part| {
                matches!(&part.item.event.action, Action::Execute(bound) if bound.portal == *portal)
            })
        };
        match &next.event.action {
            Action::Fetch(bound) if is_opened(&bound.portal) => false,
            _ => self.reason_to_skip(&next.event).is_some(),
        }
    }

    /// Takes in what the server said. `Some` when that ends what was in flight.
    pub(crate) fn heard(
        &mut self,
        reply: Reply,
        now: Instant,
        client: &mut Client,
    ) -> Vec<Finished> {
        if self.flight.as_ref().is_some_and(|flight| flight.probe.is_some()) {
            self.heard_of_probe(reply, client);
            return Vec::new();
        }
        match reply {
            Reply::Ready(status) => {
                self.transaction = status;
                if status == TransactionStatus::Idle {
                    // Portals end with their transaction.
                    self.portals.clear();
                }
                if client.ready_owed() > 0
                    && let Some(flight) = &mut self.flight
                {
                    // Of a pipeline that was sent in front, for no event.
                    flight.failure = None;
                    return Vec::new();
                }
                return self.land(now);
            }
            Reply::CopyIn => self.copy_in(client),
            Reply::LoggedIn => self.arrived(now),
            Reply::Parsed
            | Reply::ParameterTypes(_)
            | Reply::Bound
            | Reply::Rows(_)
            | Reply::Failed(_) => {}
        }
        let Some(flight) = &mut self.flight else { return Vec::new() };
        match reply {
            Reply::Bound => {
                flight.bound(client.answered());
                flight.complete(client.answered(), 0, now);
            }
            Reply::Parsed => flight.complete(client.answered(), 0, now),
            Reply::Rows(rows) => flight.complete(client.answered(), rows, now),
            Reply::Failed(failure) => {
                // 26000: the name is not known there; prepare again before the next use.
                if failure.sqlstate == SqlState::new(b"26000") {
                    self.statements.clear();
                }
                flight.failure.get_or_insert(failure);
                if client.ready_owed() == 0 {
                    // No Sync ended what was sent, but a Query, and that is passed over now.
                    client.sync();
                }
            }
            Reply::ParameterTypes(_) | Reply::Ready(_) | Reply::CopyIn | Reply::LoggedIn => {}
        }
        Vec::new()
    }

    /// The server waits for rows: those that were captured, if they were.
    fn copy_in(&mut self, client: &mut Client) {
        let part = self.flight.as_mut().and_then(|flight| flight.parts.last_mut());
        let copy = part.and_then(|part| {
            let copy = part.item.event.wire.as_ref()?.copy_in.as_ref()?;
            let data = copy.data.get(part.copies)?.as_ref()?;
            part.copies += 1;
            Some((data, copy.failed && part.copies == copy.data.len()))
        });
        let sent = match copy {
            Some((data, fails)) => data
                .as_bytes()
                .chunks(COPY_PIECE_BYTES)
                .try_for_each(|it| client.copy_data(it))
                .and_then(|()| match fails {
                    true => client.copy_fail(b"the client ended this COPY"),
                    false => {
                        client.copy_done();
                        Ok(())
                    }
                }),
            None => client.copy_fail(b"the rows of this COPY are not in the capture"),
        };
        sent.expect("there is no zero byte in the reasons, and pieces are short");
        let kind = self.flight.as_ref().and_then(|flight| flight.parts.last());
        if kind.is_some_and(|part| part.item.event.action.kind() == Kind::Execute) {
            // The server ignored the Sync that came while it waited for rows.
            client.sync();
        }
    }

    fn arrived(&mut self, now: Instant) {
        self.presence = Presence::Here;
        self.free = now;
        self.transaction = TransactionStatus::Idle;
        self.statements.clear();
        self.portals.clear();
    }

    /// What was in flight has been answered.
    fn land(&mut self, now: Instant) -> Vec<Finished> {
        let Some(flight) = self.flight.take() else { return Vec::new() };
        if flight.failure.is_some() {
            // What was prepared before stays so; whether the failed batch prepared anything is not worth
            // knowing: do it again.
            for part in flight.parts.iter().filter(|part| part.completed.is_none()) {
                match &part.item.event.action {
                    Action::Parse { statement, .. } => drop(self.statements.remove(statement)),
                    Action::Bind(bound) | Action::Execute(bound) if part.is_prepared => {
                        self.statements.remove(&bound.statement);
                    }
                    _ => {}
                }
            }
        }
        let Some(flight) = self.retry_with_types(flight) else { return Vec::new() };
        let free = std::mem::replace(&mut self.free, now);
        flight.finish(now, free)
    }

    /// The connection is gone, or could not be had. What was in flight fails.
    pub(crate) fn lost(&mut self, outage: Outage, now: Instant) -> Vec<Finished> {
        let mut finished = Vec::new();
        if let Some(mut flight) = self.flight.take() {
            flight.failure.get_or_insert_with(|| outage.failure.clone());
            let free = std::mem::replace(&mut self.free, now);
            finished = flight.finish(now, free);
        }
        // A COMMIT that was in flight ended its transaction, one way or the other.
        let ended = finished.last().is_some_and(|last| ends_transaction(&last.item.event.action));
        self.transaction_lost |= self.transaction != TransactionStatus::Idle && !ended;
        self.transaction = TransactionStatus::Idle;
        self.presence = Presence::Away { outage: Some(outage) };
        finished
    }

    /// The connection that the next event needed could not be had: the event fails with it.
    pub(crate) fn refuse_head(&mut self, failure: &Failure, now: Instant) -> Option<Finished> {
        let item = self.queue.pop_front()?;
        Some(Finished::unsent(item, now, self.free, End::Failed(failure.clone())))
    }

    /// Takes back the Connect event of a connection that could not be had, to try again.
    pub(crate) fn put_back(&mut self, item: Item) {
        self.queue.push_front(item);
    }

    /// The connection was closed as the capture has it.
    pub(crate) fn left(&mut self, now: Instant) {
        self.presence = Presence::Away { outage: None };
        self.transaction = TransactionStatus::Idle;
        self.transaction_lost = false;
        self.has_left = true;
        self.free = now;
    }

    /// Since when it could have sent its next event.
    pub(crate) fn free(&self) -> Instant {
        self.free
    }

    /// Gives up all that waits.
    pub(crate) fn give_up_waiting(&mut self, now: Instant) -> Vec<Finished> {
        let end = End::Skipped(Skip::Interrupted);
        let gone = |item| Finished::unsent(item, now, self.free, end.clone());
        std::mem::take(&mut self.queue).into_iter().map(gone).collect()
    }

    /// Gives up what is in flight.
    pub(crate) fn give_up_flight(&mut self, now: Instant) -> Vec<Finished> {
        let Some(flight) = self.flight.take() else { return Vec::new() };
        let end = End::Skipped(Skip::Abandoned);
        let gone = |part: Part| Finished {
            item: part.item,
            sent: Some(flight.sent),
            begun: Some(flight.sent),
            ended: now,
            free: self.free,
            rows: None,
            end: end.clone(),
        };
        flight.parts.into_iter().map(gone).collect()
    }
}

/// Whether the rows of all its COPYs were captured.
fn has_copy_data(event: &Event) -> bool {
    let copy = event.wire.as_ref().and_then(|wire| wire.copy_in.as_ref());
    copy.is_some_and(|copy| copy.data.iter().all(Option::is_some))
}

/// Bytes of one CopyData message.
const COPY_PIECE_BYTES: usize = 64 << 10;

/// Why these values cannot be bound, if so.
fn unusable(parameters: Option<&[Parameter]>) -> Option<Skip> {
    match parameters {
        None => Some(Skip::UnknownParameters),
        Some(values) => values
            .iter()
            .any(|value| matches!(value, Parameter::Truncated(_)))
            .then_some(Skip::TruncatedParameter),
    }
}

/// The failure of an event that the protocol has no bytes for. No server said it, so it has no code.
fn unwritable(reason: &EncodeError) -> Failure {
    Failure { sqlstate: None, message: Text::from(reason.to_string()) }
}

#[cfg(test)]
mod tests;
