//! One captured session on the target: which of its events comes next and what to send for it.
//!
//! A player holds no socket and no clock. The worker gives it events, the time and the server's
//! replies; it says what to do. So its decisions can be tested without a server.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::{Duration, Instant},
};

use howdah_session::{Client, EncodeError, RequestId, TransactionStatus};
use howdah_sql::{Command, Lexer, split_statements};
use howdah_traffic::{
    Action, Bound, CopyDirection, Event, Kind, Parameter, SessionId, SqlState, Text,
};

use crate::link::{Failure, Reply};

/// An event with its due time.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) event: Event,
    pub(crate) due: Instant,
    /// When it was there to be sent: when it was due, or later where its source was late.
    pub(crate) here: Instant,
    pub(crate) bytes: usize,
}

/// What became of an event.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) item: Item,
    /// When it was sent, if it was.
    pub(crate) sent: Option<Instant>,
    /// When the server could begin with it, if it was sent: then, or when the statement before it in
    /// its pipeline was done.
    pub(crate) begun: Option<Instant>,
    /// When its answer was complete.
    pub(crate) ended: Instant,
    /// From when its session could have sent it.
    pub(crate) free: Instant,
    pub(crate) rows: Option<u64>,
    pub(crate) end: End,
}

/// How an event ended.
#[derive(Clone, Debug)]
pub(crate) enum End {
    Done,
    Failed(Failure),
    Skipped(Skip),
}

/// Why an event was not sent. The words appear in reports and in the run's files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Skip {
    CopyData,
    CallArguments,
    UnknownParameters,
    TruncatedParameter,
    PortalNotOpen,
    TransactionLost,
    NothingToCancel,
    TooFarBehind,
    Interrupted,
    Cancelled,
    Abandoned,
}

impl Skip {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::CopyData => "rows of COPY FROM STDIN not captured",
            Self::CallArguments => "arguments of function call not captured",
            Self::UnknownParameters => "parameter values not captured",
            Self::TruncatedParameter => "parameter value truncated in capture",
            Self::PortalNotOpen => "portal was not opened",
            Self::TransactionLost => "its transaction was lost with the connection",
            Self::NothingToCancel => "nothing left to cancel",
            Self::TooFarBehind => "session too far behind, queue limit reached",
            Self::Interrupted => "interrupted",
            Self::Cancelled => "in flight when interrupted, cancelled on the target",
            Self::Abandoned => "in flight when interrupted, not answered in time",
        }
    }
}

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
    statements: HashMap<Text, Text>,
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
}

/// Messages on their way, up to one Sync.
struct Flight {
    parts: Vec<Part>,
    sent: Instant,
    failure: Option<Failure>,
}

struct Part {
    item: Item,
    /// The message whose answer completes it.
    request: Option<RequestId>,
    /// When that answer arrived.
    completed: Option<Instant>,
    rows: u64,
}

/// How far apart, in captured time, a Parse, its Bind and its Execute may be and still have come in
/// one batch from the client. A log has no Sync, so this is a guess: drivers that send them together
/// have them logged within microseconds of work, drivers that prepare first add a round trip.
const BATCH_GAP: Duration = Duration::from_millis(2);

/// The least time a statement gets before its cancel is sent. A server ignores a request that comes
/// before the statement, and the times in a log may be whole seconds.
const CANCEL_GAP_MIN: Duration = Duration::from_millis(50);

impl Player {
    pub(crate) fn new(id: SessionId, now: Instant, fetch_rows: u32) -> Self {
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
        }
    }

    /// Adds the session's next event.
    pub(crate) fn push(&mut self, item: Item) {
        self.parses_captured |= item.event.action.kind() == Kind::Parse;
        self.has_left = false;
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
            Action::Call { .. } => Some(Skip::CallArguments),
            Action::Copy { direction: CopyDirection::In, .. } => Some(Skip::CopyData),
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
            Kind::Disconnect => return Step::Hangup(self.pop()),
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
        // What cannot be written fails with all that stands behind it in its batch. What stands
        // before it is queued by then, and nobody answers that without a Sync.
        let failure = self.queue_messages(&mut parts, client).err().map(|reason| {
            client.sync();
            unwritable(&reason)
        });
        self.flight = Some(Flight { parts, sent: now, failure });
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

    /// Puts the messages of one batch into the client.
    fn queue_messages(
        &mut self,
        parts: &mut [Part],
        client: &mut Client,
    ) -> Result<(), EncodeError> {
        for at in 0..parts.len() {
            let (before, rest) = parts.split_at_mut(at);
            let (this, behind) = rest.split_first_mut().expect("at is inside");
            let mut behind = behind.iter().map(|part| &part.item.event.action);
            let request = match &this.item.event.action {
                Action::Simple { sql } | Action::Copy { sql, .. } => {
                    self.forget_deallocated(sql);
                    return client.query(sql.as_bytes()).map(drop);
                }
                Action::Parse { statement, sql } => self.parse(statement, sql, client)?,
                // Its Execute binds; a Bind that nothing executes is sent for its own sake.
                Action::Bind(bound) => match behind.next() {
                    Some(Action::Execute(executed)) if executed.portal == bound.portal => continue,
                    _ => self.bind(bound, client)?,
                },
                Action::Execute(bound) => {
                    let bind = self.bind(bound, client)?;
                    if let Some(last) = before.last_mut()
                        && last.item.event.action.kind() == Kind::Bind
                    {
                        last.request.get_or_insert(bind);
                    }
                    let will_fetch = self.will_fetch(bound, behind.clone());
                    let rows_max = if will_fetch { self.fetch_rows } else { 0 };
                    let request = client.execute(bound.portal.as_bytes(), rows_max)?;
                    self.forget_deallocated(&bound.sql);
                    if behind.next().is_some() {
                        // So that the answer comes when the statement is done, to be timed by.
                        client.flush();
                    }
                    request
                }
                Action::Fetch(bound) => client.execute(bound.portal.as_bytes(), self.fetch_rows)?,
                Action::Connect | Action::Disconnect | Action::Call { .. } | Action::Cancel => {
                    unreachable!("these are not sent as messages of a session")
                }
            };
            this.request = Some(request);
        }
        client.sync();
        Ok(())
    }

    /// Which names DEALLOCATE and DISCARD leave is known to the server: prepare again when used.
    fn forget_deallocated(&mut self, sql: &Text) {
        let forgets = |one| matches!(Command::of(one), Command::Deallocate | Command::Discard);
        let sql = sql.as_bytes().trim_ascii_end();
        let single = !sql.strip_suffix(b";").unwrap_or(sql).contains(&b';');
        // Most texts are spared a look beyond their first word, many even that.
        if !self.statements.is_empty()
            && if single { forgets(sql) } else { split_statements(sql).any(forgets) }
        {
            self.statements.clear();
        }
    }

    fn parse(
        &mut self,
        statement: &Text,
        sql: &Text,
        client: &mut Client,
    ) -> Result<RequestId, EncodeError> {
        if !statement.is_empty() {
            // The capture does not hold Close messages. To close what does not exist is no error.
            client.close_statement(statement.as_bytes())?;
        }
        let request = client.parse(statement.as_bytes(), sql.as_bytes(), &[])?;
        self.statements.insert(statement.clone(), sql.clone());
        Ok(request)
    }

    /// Binds, after preparing if the server has not this text under this name.
    fn bind(&mut self, bound: &Bound, client: &mut Client) -> Result<RequestId, EncodeError> {
        let known = self.statements.get(&bound.statement) == Some(&bound.sql);
        // A client that uses the unnamed statement parses it each time, unless the capture shows
        // its Parse messages and has none here.
        let anew = bound.statement.is_empty() && !self.parses_captured;
        if !known || anew {
            self.parse(&bound.statement, &bound.sql, client)?;
        }
        if !bound.portal.is_empty() {
            client.close_portal(bound.portal.as_bytes())?;
        }
        let values = bound.parameters.as_deref().unwrap_or_default();
        let request = client.bind(
            bound.portal.as_bytes(),
            bound.statement.as_bytes(),
            values.iter().map(|value| match value {
                Parameter::Null => None,
                Parameter::Value(text) | Parameter::Truncated(text) => Some(text.as_bytes()),
            }),
        )?;
        self.portals.insert(bound.portal.clone());
        Ok(request)
    }

    /// Whether the client will take the rows of this portal in parts. Logs do not hold the row
    /// limit of an Execute: a named portal inside a transaction is there to be fetched from, and
    /// of the unnamed one the next event tells. `behind`: what is sent in the same batch.
    fn will_fetch<'a>(&self, bound: &Bound, mut behind: impl Iterator<Item = &'a Action>) -> bool {
        let fetches = |action: &Action| matches!(action, Action::Fetch(fetched) if fetched.portal == bound.portal);
        if behind.any(fetches) {
            return true;
        }
        if self.transaction != TransactionStatus::InTransaction {
            return false;
        }
        !bound.portal.is_empty()
            || self.queue.front().is_some_and(|next| fetches(&next.event.action))
    }

    /// Takes in what the server said. `Some` when that ends what was in flight.
    pub(crate) fn heard(
        &mut self,
        reply: Reply,
        now: Instant,
        client: &mut Client,
    ) -> Vec<Finished> {
        match reply {
            Reply::Ready(status) => {
                self.transaction = status;
                if status == TransactionStatus::Idle {
                    // Portals end with their transaction.
                    self.portals.clear();
                }
                return self.land(now);
            }
            Reply::CopyIn => self.refuse_copy(client),
            Reply::LoggedIn => self.arrived(now),
            Reply::Parsed | Reply::Bound | Reply::Rows(_) | Reply::Failed(_) => {}
        }
        let Some(flight) = &mut self.flight else { return Vec::new() };
        match reply {
            Reply::Parsed | Reply::Bound => flight.complete(client.answered(), 0, now),
            Reply::Rows(rows) => flight.complete(client.answered(), rows, now),
            Reply::Failed(failure) => {
                // 26000: the name is not known there; prepare again before the next use.
                if failure.sqlstate == SqlState::new(b"26000") {
                    self.statements.clear();
                }
                flight.failure.get_or_insert(failure);
            }
            Reply::Ready(_) | Reply::CopyIn | Reply::LoggedIn => {}
        }
        Vec::new()
    }

    /// The server waits for rows that nobody has.
    fn refuse_copy(&self, client: &mut Client) {
        let refused = client.copy_fail(b"the rows of this COPY are not in the capture");
        refused.expect("there is no zero byte in it");
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
            // Whether the failed batch prepared anything is not worth knowing: do it again.
            for part in flight.parts.iter().filter(|part| part.completed.is_none()) {
                if let Action::Parse { statement, .. } = &part.item.event.action {
                    self.statements.remove(statement);
                }
                if let Action::Bind(bound) | Action::Execute(bound) = &part.item.event.action {
                    self.statements.remove(&bound.statement);
                }
            }
        }
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
        let end = End::Failed(failure.clone());
        Some(Finished {
            item,
            sent: None,
            begun: None,
            ended: now,
            free: self.free,
            rows: None,
            end,
        })
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
        let gone = |item| Finished {
            item,
            sent: None,
            begun: None,
            ended: now,
            free: self.free,
            rows: None,
            end: end.clone(),
        };
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

impl Flight {
    /// When to send the request that cancels this: a statement that was sent late has as much time
    /// as it had when it was captured.
    fn cancel_at(&self, cancel: &Item, paced: bool) -> Instant {
        let Some(Part { item: cancelled, .. }) = self.parts.first() else { return cancel.due };
        let gap = match paced {
            true => cancel.due.saturating_duration_since(cancelled.due),
            false => cancel.event.time.saturating_since(cancelled.event.time),
        };
        cancel.due.max(self.sent + gap.max(CANCEL_GAP_MIN))
    }

    /// Takes the answer to a request, and the rows it told of.
    fn complete(&mut self, request: Option<RequestId>, rows: u64, now: Instant) {
        if let [Part { item, rows: sum, .. }] = &mut self.parts[..]
            && matches!(item.event.action.kind(), Kind::Simple | Kind::Copy)
        {
            // One of several statements, perhaps: ReadyForQuery tells when all are done.
            *sum += rows;
            return;
        }
        let answered = |part: &&mut Part| part.request == request && request.is_some();
        if let Some(part) = self.parts.iter_mut().find(answered) {
            part.rows += rows;
            part.completed = Some(now);
        }
    }

    fn finish(self, now: Instant, free: Instant) -> Vec<Finished> {
        let Self { parts, sent, failure } = self;
        let executes = |part: &Part| part.item.event.action.kind().is_execution();
        let last = parts.iter().rposition(executes);
        let mut begun = sent;
        let mut finished = Vec::with_capacity(parts.len());
        for (at, part) in parts.into_iter().enumerate() {
            let execution = executes(&part);
            let is_done = part.completed.is_some() || failure.is_none();
            // The answer to the last is complete when the server is ready for more.
            let is_early = execution && last.is_some_and(|last| at < last);
            let ended = part.completed.filter(|_| is_early).unwrap_or(now);
            finished.push(Finished {
                sent: Some(sent),
                begun: Some(begun),
                ended,
                free,
                rows: (execution && is_done).then_some(part.rows),
                end: match &failure {
                    Some(failure) if !is_done => End::Failed(failure.clone()),
                    _ => End::Done,
                },
                item: part.item,
            });
            if is_early {
                begun = ended;
            }
        }
        finished
    }
}

impl Part {
    fn new(item: Item) -> Self {
        Self { item, request: None, completed: None, rows: 0 }
    }
}

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

/// Whether `next` came in the same batch of messages as `last`, as far as the capture can tell.
fn continues(last: &Event, next: &Event) -> bool {
    if let (Some(pipeline), Some(next_pipeline)) = (last.pipeline, next.pipeline) {
        // While it waits for the rows of a COPY, a server ignores the Sync behind it.
        let copies = |event: &Event| {
            event.action.sql().is_some_and(|sql| Command::of(sql.as_bytes()) == Command::Copy)
        };
        return pipeline == next_pipeline && !copies(last) && !copies(next);
    }
    let (Some(name), Some(next_name)) = (statement(&last.action), statement(&next.action)) else {
        return false;
    };
    let ahead = matches!(
        (last.action.kind(), next.action.kind()),
        (Kind::Parse, Kind::Bind | Kind::Execute) | (Kind::Bind, Kind::Execute)
    );
    let worked = Duration::from_micros(last.outcome.duration_us.unwrap_or(0));
    let gap = next.time.saturating_since(last.time).saturating_sub(worked);
    // A Bind has no effect of its own, so it waits for its Execute however late that comes.
    ahead
        && name == next_name
        && last.action.sql() == next.action.sql()
        && (last.action.kind() == Kind::Bind || gap <= BATCH_GAP)
}

fn statement(action: &Action) -> Option<&Text> {
    match action {
        Action::Parse { statement, .. } => Some(statement),
        Action::Bind(bound) | Action::Execute(bound) => Some(&bound.statement),
        _ => None,
    }
}

/// Whether it begins a transaction, so that it belongs to none before.
fn begins(action: &Action) -> bool {
    action.sql().is_some_and(|sql| Command::of(sql.as_bytes()) == Command::Begin)
}

/// Whether no transaction that was open before it is open behind it.
pub(crate) fn ends_transaction(action: &Action) -> bool {
    let Some(sql) = action.sql() else { return false };
    let mut ended = false;
    for statement in split_statements(sql.as_bytes()) {
        let has =
            |word: &[u8]| Lexer::new(statement).any(|token| token.text.eq_ignore_ascii_case(word));
        // COMMIT AND CHAIN begins the next one.
        let chains = || has(b"chain") && !has(b"no");
        match Command::of(statement) {
            Command::Begin => ended = false,
            Command::Commit => ended = !chains(),
            // ROLLBACK TO goes back to a savepoint and stays in the transaction.
            Command::Rollback => ended = !has(b"to") && !chains(),
            _ => {}
        }
    }
    ended
}

/// The failure of an event that the protocol has no bytes for. No server said it, so it has no code.
fn unwritable(reason: &EncodeError) -> Failure {
    Failure { sqlstate: None, message: Text::from(reason.to_string()) }
}

#[cfg(test)]
mod tests;
