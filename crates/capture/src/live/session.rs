//! [`SessionDecoder`]: decodes the messages of one client and its server into events.
//!
//! Replies have no numbers: only the position of a reply tells which request it belongs to. So a
//! session keeps a queue of pending requests, as clients do. An event is emitted when its outcome
//! is known or certain to remain unknown; its time is the arrival of its message.

mod backend;
mod frontend;
mod results;

use std::{collections::VecDeque, sync::Arc};

use howdah_traffic::{
    Action, Bound, CapturedOutcome, CopyInData, Event, SessionId, Source, Text, Timestamp,
    WireDetail,
};
use howdah_wire::{Frontend, Tag};
pub(crate) use results::ReceivedResult;

use crate::live::{
    by_name::ByName,
    counts::RecorderCounts,
    parsed_statement::ParsedStatement,
    pending_messages::PendingMessages,
    secrets::sql_text,
    statement_cache::StatementCache,
    stream::{Malformed, MessageStream},
};

const SYNC: Tag = Frontend::Sync.tag();

/// Maximum number of events whose memory a session retains: one for Parse and one for Execute.
const SPARE_MAX: usize = 2;

/// The names that all events of a session have.
#[derive(Clone, Debug)]
pub(crate) struct SessionIdentity {
    pub(crate) session: SessionId,
    pub(crate) user: Arc<str>,
    pub(crate) database: Arc<str>,
    pub(crate) application: Arc<str>,
}

/// The state of a session when its recording starts or resumes.
#[derive(Debug, Default)]
pub(crate) struct SessionState {
    pub(crate) settings: Vec<(Text, Text)>,
    pub(crate) statements: ByName<Arc<ParsedStatement>>,
}

/// The part of the rows of `COPY … FROM STDIN` that a capture contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyRows {
    /// The rows, except those of a COPY that exceeds the limit.
    Full {
        /// Maximum bytes of rows of the COPYs in one message.
        bytes_max: usize,
    },
    /// Only the size of the rows in bytes.
    Length,
    /// No information about the rows.
    Off,
}

/// The limits that the decoder derives from [`CopyRows`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyRowLimits {
    /// Whether the size of the rows in bytes is recorded.
    pub(crate) counts_bytes: bool,
    /// Maximum bytes of rows recorded per message; 0 records none. A COPY beyond the limit is
    /// recorded without rows.
    pub(crate) bytes_max: usize,
}

impl From<CopyRows> for CopyRowLimits {
    fn from(rows: CopyRows) -> Self {
        match rows {
            CopyRows::Full { bytes_max } => Self { counts_bytes: true, bytes_max },
            CopyRows::Length => Self { counts_bytes: true, bytes_max: 0 },
            CopyRows::Off => Self { counts_bytes: false, bytes_max: 0 },
        }
    }
}

/// State that all sessions share while records are decoded.
pub(crate) struct DecodeContext<'a> {
    pub(crate) rows: CopyRowLimits,
    pub(crate) tally: &'a mut RecorderCounts,
    pub(crate) texts: &'a mut StatementCache,
    pub(crate) emit: &'a mut dyn FnMut(&Event),
    /// The wall-clock time of time 0 of the records.
    pub(crate) clock_origin: Timestamp,
}

impl DecodeContext<'_> {
    fn at(&self, nanos: u64) -> Timestamp {
        let micros = i64::try_from(nanos / 1000).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.clock_origin.as_micros().saturating_add(micros))
    }
}

/// The decoder of one client's session.
#[derive(Debug)]
pub(crate) struct SessionDecoder {
    names: SessionIdentity,
    settings: Vec<(Text, Text)>,
    stream: MessageStream,
    is_broken: bool,
    statements: ByName<Arc<ParsedStatement>>,
    portals: ByName<Portal>,
    pending: VecDeque<PendingRequest>,
    /// Number of the current pipeline, from 1.
    pipeline: u32,
    /// Whether a message of the current pipeline was sent.
    has_begun_pipeline: bool,
    /// Messages that were sent and are not yet assigned to an event.
    messages: PendingMessages,
    /// The last event of the current pipeline, held until its later messages are known.
    held_event: Option<Box<Event>>,
    /// Events that have been emitted, to reuse their memory.
    #[expect(clippy::vec_box, reason = "the boxes are reused")]
    spare: Vec<Box<Event>>,
    /// Whether requests are skipped until a Sync.
    is_skipping: bool,
    /// Whether the server waits for the rows of a COPY that an Execute started, and ignores Syncs.
    is_copying: bool,
    copy: Option<CopyInProgress>,
    /// Time at which a server connection was last assigned, in nanoseconds of the worker's clock.
    server_assigned: u64,
    /// Time of the last reply that ended a statement or a pipeline, in nanoseconds of the worker's
    /// clock.
    last_reply: u64,
    /// The rows of the next reply.
    pub(crate) result: Option<ReceivedResult>,
}

/// An open portal of the client.
#[derive(Debug)]
struct Portal {
    bound: Bound,
    formats: Vec<u16>,
    result_formats: Vec<u16>,
    types: Vec<u32>,
    was_executed: bool,
    /// Number of the pipeline that contained its Bind.
    pipeline: u32,
}

/// A request whose reply is missing or incomplete.
#[derive(Debug)]
struct PendingRequest {
    kind: AwaitedReply,
    event: Option<Box<Event>>,
    arrived: u64,
    /// The messages of the event, for a Bind without an Execute.
    messages: Option<Text>,
    /// Whether a row of its results was too large to be read.
    is_result_lost: bool,
}

#[derive(Debug)]
enum AwaitedReply {
    Query,
    Call,
    /// A Parse, with the statement that previously had the name.
    Parse(Text, Option<Arc<ParsedStatement>>),
    /// A Bind: its portal, and whether it produces no event, because an Execute of the portal
    /// follows, or its statement or values are unknown.
    Bind(Text, bool),
    /// A Describe, a Close, or a Parse that was too long to be recorded.
    Other,
    Execute,
    Sync,
}

/// The state of the `COPY … FROM STDIN` statements in the first pending request.
#[derive(Debug, Default)]
struct CopyInProgress {
    copy: CopyInData,
    data: Vec<u8>,
    /// Whether part of the data was not recorded.
    is_incomplete: bool,
    /// Whether the server has asked for the rows.
    is_requested: bool,
}

impl SessionDecoder {
    pub(crate) fn new(names: SessionIdentity) -> Self {
        Self {
            names,
            settings: Vec::new(),
            stream: MessageStream::default(),
            is_broken: false,
            statements: ByName::default(),
            portals: ByName::default(),
            pending: VecDeque::new(),
            pipeline: 1,
            has_begun_pipeline: false,
            messages: PendingMessages::default(),
            held_event: None,
            spare: Vec::new(),
            is_skipping: false,
            is_copying: false,
            copy: None,
            server_assigned: 0,
            last_reply: 0,
            result: None,
        }
    }

    /// Starts the session with its state, and emits its Connect event. Unless the client `is_new`,
    /// the event is inferred.
    pub(crate) fn start(
        &mut self,
        state: SessionState,
        is_new: bool,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        context.tally.sessions += 1;
        context.tally.entered_open += u64::from(!is_new);
        let SessionState { settings, statements } = state;
        self.settings.clone_from(&settings);
        self.statements = statements;
        let source = if is_new { Source::Wire } else { Source::Inferred };
        let wire = WireDetail { settings, ..WireDetail::default() };
        let event = self.event(Action::Connect, source, wire, context.at(now));
        (context.emit)(&event);
    }

    /// Resumes recording after a gap. Emits a SET for each setting that is new or has changed.
    pub(crate) fn resume(
        &mut self,
        state: SessionState,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        self.interrupt(context);
        let SessionState { settings, statements } = state;
        let old = std::mem::take(&mut self.settings);
        for (name, value) in settings.iter().filter(|setting| !old.contains(setting)) {
            let sql = [&b"SET "[..], name.as_bytes(), b" = ", &quoted(value.as_bytes())].concat();
            let action = Action::Simple { sql: sql_text(&sql) };
            let event =
                self.event(action, Source::Inferred, WireDetail::default(), context.at(now));
            (context.emit)(&event);
        }
        (self.settings, self.statements) = (settings, statements);
        self.pipeline += 1;
    }

    /// Emits the events of pending requests without an outcome, because records are missing or the
    /// recording ends, and clears the state that depends on them.
    pub(crate) fn interrupt(&mut self, context: &mut DecodeContext<'_>) {
        self.emit_held(context);
        self.messages.clear();
        for request in self.pending.drain(..) {
            context.tally.cut_short += u64::from(request.event.is_some());
            if let Some(event) = request.event {
                (context.emit)(&event);
            }
        }
        self.stream = MessageStream::default();
        self.portals.clear();
        self.copy = None;
        (self.is_skipping, self.is_copying) = (false, false);
    }

    /// Handles bytes from the client.
    pub(crate) fn handle_frontend(
        &mut self,
        bytes: &[u8],
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        let mut stream = std::mem::take(&mut self.stream);
        let result = if self.is_broken {
            Ok(())
        } else {
            stream.push(bytes, &mut |item| self.handle_message(item, now, context))
        };
        self.stream = stream;
        self.check_stream(result, context);
    }

    /// Handles a number of omitted bytes from the client.
    pub(crate) fn handle_omitted(&mut self, bytes: u32, now: u64, context: &mut DecodeContext<'_>) {
        let mut stream = std::mem::take(&mut self.stream);
        let result = if self.is_broken {
            Ok(())
        } else {
            stream.omit(bytes, &mut |item| self.handle_message(item, now, context))
        };
        self.stream = stream;
        self.check_stream(result, context);
    }

    fn check_stream(&mut self, result: Result<(), Malformed>, context: &mut DecodeContext<'_>) {
        if result == Err(Malformed) {
            self.is_broken = true;
            context.tally.malformed += 1;
        }
    }

    /// Records that a server connection was assigned.
    pub(crate) fn on_server_assigned(&mut self, now: u64) {
        self.server_assigned = now;
    }

    /// Emits the event of a request to cancel the session's statement.
    pub(crate) fn on_cancel(&mut self, now: u64, context: &mut DecodeContext<'_>) {
        let event =
            self.event(Action::Cancel, Source::Wire, WireDetail::default(), context.at(now));
        (context.emit)(&event);
    }

    /// Emits the events of pending requests, whose outcome stays unknown, and the Disconnect event.
    pub(crate) fn on_disconnect(&mut self, now: u64, context: &mut DecodeContext<'_>) {
        self.emit_held(context);
        for request in std::mem::take(&mut self.pending) {
            if let Some(event) = request.event {
                (context.emit)(&event);
            }
        }
        let wire = WireDetail { messages: self.messages.take_all(), ..WireDetail::default() };
        let event = self.event(Action::Disconnect, Source::Wire, wire, context.at(now));
        (context.emit)(&event);
    }

    fn event(
        &mut self,
        action: Action,
        source: Source,
        wire: WireDetail,
        time: Timestamp,
    ) -> Box<Event> {
        if let Some(mut event) = self.spare.pop() {
            (event.time, event.action, event.source) = (time, action, source);
            (event.outcome, event.pipeline) = (CapturedOutcome::default(), None);
            match &mut event.wire {
                Some(place) => **place = wire,
                none => *none = Some(Box::new(wire)),
            }
            return event;
        }
        let SessionIdentity { session, user, database, application } = self.names.clone();
        Box::new(Event {
            time,
            session,
            user,
            database,
            application,
            action,
            outcome: CapturedOutcome::default(),
            source,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: Some(Box::new(wire)),
        })
    }

    /// Emits an event, and retains its memory for reuse.
    fn emit(&mut self, event: Box<Event>, context: &mut DecodeContext<'_>) {
        (context.emit)(&event);
        // The identity of the session stays the same, so it can be reused.
        if self.spare.len() < SPARE_MAX {
            self.spare.push(event);
        }
    }

    fn end_pipeline(&mut self) {
        if std::mem::take(&mut self.has_begun_pipeline) {
            self.pipeline = self.pipeline.saturating_add(1);
        }
    }

    /// Emits the held event, since no more messages belong to it.
    fn emit_held(&mut self, context: &mut DecodeContext<'_>) {
        if let Some(event) = self.held_event.take() {
            self.emit(event, context);
        }
    }

    /// Emits a complete event, or holds it while later messages of its pipeline may belong to it.
    fn emit_or_hold(&mut self, event: Box<Event>, context: &mut DecodeContext<'_>) {
        if event.pipeline != Some(self.pipeline) {
            return self.emit(event, context);
        }
        self.emit_held(context);
        self.held_event = Some(event);
    }

    /// Creates the event of the Bind of a portal that is about to be closed or replaced, unless the
    /// portal was executed or the Bind already has a reply.
    fn before_portal_closed(&mut self, portal: &Text, context: &DecodeContext<'_>) {
        let is_its_bind = |request: &&mut PendingRequest| {
            request.event.is_none()
                && matches!(&request.kind, AwaitedReply::Bind(bound, false) if bound == portal)
        };
        let arrived =
            self.pending.iter_mut().rev().find(is_its_bind).map(|request| request.arrived);
        let Some(arrived) = arrived else { return };
        let event = self.bind_event(portal, None, context.at(arrived));
        if let Some(request) = self.pending.iter_mut().rev().find(is_its_bind) {
            request.event = event;
        }
    }

    /// Creates the event of a Bind. A Bind has its own event only if its portal is not executed.
    fn bind_event(
        &mut self,
        portal: &Text,
        messages: Option<Text>,
        time: Timestamp,
    ) -> Option<Box<Event>> {
        let portal = self.portals.get(portal)?;
        let action = Action::Bind(portal.bound.clone());
        let wire = portal.wire(0, messages.or_else(|| Some(Text::default())));
        let pipeline = portal.pipeline;
        let mut event = self.event(action, Source::Wire, wire, time);
        event.pipeline = Some(pipeline);
        Some(event)
    }

    fn with_pipeline(&self, mut event: Box<Event>) -> Box<Event> {
        event.pipeline = Some(self.pipeline);
        event
    }
}

impl PendingRequest {
    fn new(kind: AwaitedReply, event: Option<Box<Event>>, arrived: u64) -> Self {
        Self { kind, event, arrived, messages: None, is_result_lost: false }
    }

    fn is_sync(&self) -> bool {
        matches!(self.kind, AwaitedReply::Sync)
    }

    /// Whether requests after this one belong to another pipeline.
    fn ends_pipeline(&self) -> bool {
        matches!(self.kind, AwaitedReply::Sync | AwaitedReply::Query | AwaitedReply::Call)
    }

    /// Whether this request will have an event.
    fn will_be_event(&self) -> bool {
        self.event.is_some() || matches!(self.kind, AwaitedReply::Bind(_, false))
    }
}

impl Portal {
    fn wire(&self, rows_max: u32, messages: Option<Text>) -> WireDetail {
        WireDetail {
            messages,
            types: self.types.clone(),
            formats: self.formats.clone(),
            result_formats: self.result_formats.clone(),
            rows_max,
            ..WireDetail::default()
        }
    }
}

/// Quotes a value so that it is valid with either setting of `standard_conforming_strings`.
fn quoted(value: &[u8]) -> Vec<u8> {
    let mut out = if value.contains(&b'\\') { b"E'".to_vec() } else { b"'".to_vec() };
    for byte in value {
        if matches!(byte, b'\'' | b'\\') {
            out.push(*byte);
        }
        out.push(*byte);
    }
    out.push(b'\'');
    out
}
