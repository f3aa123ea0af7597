//! [`Session`]: from what one client said and heard to its events.
//!
//! Replies carry no numbers: which request one belongs to follows from its place alone. So a session keeps
//! what was asked and is not answered, as the client itself has to. An event goes out when its outcome is
//! known, with the time at which its message arrived.

mod heard;
mod sent;

use std::{collections::VecDeque, sync::Arc};

use howdah_traffic::{
    Action, Bound, CopyIn, Event, Outcome, SessionId, Source, Text, Timestamp, Wire,
};
use howdah_wire::{
    Frame, Frontend, Tag,
    frontend::{Message, Parse},
};

use crate::{
    by_name::ByName,
    script::Script,
    secrets,
    stream::{Malformed, Stream},
    tally::Tally,
    texts::Texts,
};

/// A text that was prepared, and the types it was prepared with.
#[derive(Debug)]
pub(crate) struct Prepared {
    sql: Text,
    types: Vec<u32>,
}

impl Prepared {
    /// From what a Parse has behind its name.
    pub(crate) fn of(text: &[u8]) -> Option<Arc<Self>> {
        // A Parse without a name: an empty string in front.
        let body = [b"\0", text].concat();
        match Message::parse(Frame { tag: Frontend::Parse.tag(), body: &body }) {
            Ok(Message::Parse(parse)) => Some(Arc::new(Self::parsed(&parse))),
            _ => None,
        }
    }

    pub(crate) fn parsed(parse: &Parse<'_>) -> Self {
        Self { sql: sql_text(parse.sql), types: parse.types.clone().collect() }
    }

    /// Whether this Parse prepares the same.
    pub(crate) fn is_of(&self, parse: &Parse<'_>) -> bool {
        self.sql.as_bytes() == parse.sql && parse.types.clone().eq(self.types.iter().copied())
    }
}

const SYNC: Tag = Frontend::Sync.tag();

/// Events whose memory a session keeps: those of Parse and Execute.
const SPARE_MAX: usize = 2;

/// Who a session is.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    pub(crate) session: SessionId,
    pub(crate) user: Arc<str>,
    pub(crate) database: Arc<str>,
    pub(crate) application: Arc<str>,
}

/// How a session begins to be recorded.
#[derive(Debug, Default)]
pub(crate) struct Beginning {
    pub(crate) settings: Vec<(Text, Text)>,
    pub(crate) statements: ByName<Arc<Prepared>>,
}

/// What is kept of the rows of COPY.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows {
    /// Whether how many bytes they had is told.
    pub(crate) counts: bool,
    /// Most bytes that are kept of one message's COPYs; 0 keeps none.
    pub(crate) bytes_max: usize,
}

/// What sessions share while a tape is read.
pub(crate) struct Desk<'a> {
    pub(crate) rows: Rows,
    pub(crate) tally: &'a mut Tally,
    pub(crate) texts: &'a mut Texts,
    pub(crate) give: &'a mut dyn FnMut(&Event),
    /// When time 0 of the tape was.
    pub(crate) zero: Timestamp,
}

impl Desk<'_> {
    fn at(&self, nanos: u64) -> Timestamp {
        let micros = i64::try_from(nanos / 1000).unwrap_or(i64::MAX);
        Timestamp::from_micros(self.zero.as_micros().saturating_add(micros))
    }
}

/// One client's dialogue.
#[derive(Debug)]
pub(crate) struct Session {
    names: Names,
    settings: Vec<(Text, Text)>,
    stream: Stream,
    is_broken: bool,
    statements: ByName<Arc<Prepared>>,
    portals: ByName<Portal>,
    asked: VecDeque<Asked>,
    /// The pipeline that is being sent, from 1.
    pipeline: u32,
    /// Something of it was sent.
    has_begun_pipeline: bool,
    /// Messages that were sent and that no event has yet.
    script: Script,
    /// The last event of the pipeline that is being sent, of which all is known but what may be sent behind it.
    held: Option<Box<Event>>,
    /// Events that were given, for the memory of the next.
    #[expect(clippy::vec_box, reason = "the boxes are what is kept")]
    spare: Vec<Box<Event>>,
    /// What is sent is not looked at, up to a Sync.
    is_skipping: bool,
    /// The server waits for rows.
    is_copying: bool,
    copy: Option<Copying>,
    /// Since when the server could work for it.
    granted: u64,
    /// When it was last answered.
    answered: u64,
}

/// An open portal.
#[derive(Debug)]
struct Portal {
    bound: Bound,
    formats: Vec<u16>,
    result_formats: Vec<u16>,
    types: Vec<u32>,
    was_executed: bool,
    /// The pipeline that it was bound in.
    pipeline: u32,
}

/// A request that has yet to be answered.
#[derive(Debug)]
struct Asked {
    what: What,
    event: Option<Box<Event>>,
    arrived: u64,
    /// Of a Bind that nothing executes: the messages that are its event's.
    messages: Option<Text>,
}

#[derive(Debug)]
enum What {
    Query,
    Call,
    /// With what the name stood for before.
    Parse(Text, Option<Arc<Prepared>>),
    /// With its portal, and whether something executes that.
    Bind(Text, bool),
    /// A Describe or a Close.
    Other,
    Execute,
    Sync,
}

/// The rows of a message's COPYs.
#[derive(Debug, Default)]
struct Copying {
    copy: CopyIn,
    data: Vec<u8>,
    /// Not all of it is kept.
    is_bare: bool,
    /// The server has asked for it.
    is_wanted: bool,
}

impl Session {
    pub(crate) fn new(names: Names) -> Self {
        Self {
            names,
            settings: Vec::new(),
            stream: Stream::default(),
            is_broken: false,
            statements: ByName::default(),
            portals: ByName::default(),
            asked: VecDeque::new(),
            pipeline: 1,
            has_begun_pipeline: false,
            script: Script::default(),
            held: None,
            spare: Vec::new(),
            is_skipping: false,
            is_copying: false,
            copy: None,
            granted: 0,
            answered: 0,
        }
    }

    /// It is recorded from here on.
    pub(crate) fn begin(
        &mut self,
        beginning: Beginning,
        is_new: bool,
        now: u64,
        desk: &mut Desk<'_>,
    ) {
        desk.tally.sessions += 1;
        desk.tally.entered_open += u64::from(!is_new);
        let Beginning { settings, statements } = beginning;
        self.settings.clone_from(&settings);
        self.statements = statements;
        let source = if is_new { Source::Wire } else { Source::Inferred };
        let wire = Wire { settings, ..Wire::default() };
        let event = self.event(Action::Connect, source, wire, desk.at(now));
        (desk.give)(&event);
    }

    /// It is recorded again, after a gap.
    pub(crate) fn resume(&mut self, beginning: Beginning, now: u64, desk: &mut Desk<'_>) {
        self.cut(desk);
        let Beginning { settings, statements } = beginning;
        let old = std::mem::take(&mut self.settings);
        for (name, value) in settings.iter().filter(|setting| !old.contains(setting)) {
            let sql = [&b"SET "[..], name.as_bytes(), b" = ", &quoted(value.as_bytes())].concat();
            let action = Action::Simple { sql: sql_text(&sql) };
            let event = self.event(action, Source::Inferred, Wire::default(), desk.at(now));
            (desk.give)(&event);
        }
        (self.settings, self.statements) = (settings, statements);
        self.pipeline += 1;
    }

    /// What follows of it is missing: what is under way has no outcome.
    pub(crate) fn cut(&mut self, desk: &mut Desk<'_>) {
        self.let_go(desk);
        self.script.clear();
        for asked in self.asked.drain(..) {
            desk.tally.cut_short += u64::from(asked.event.is_some());
            if let Some(event) = asked.event {
                (desk.give)(&event);
            }
        }
        self.stream = Stream::default();
        self.portals.clear();
        self.copy = None;
        (self.is_skipping, self.is_copying) = (false, false);
    }

    /// What it sent.
    pub(crate) fn said(&mut self, bytes: &[u8], now: u64, desk: &mut Desk<'_>) {
        let mut stream = std::mem::take(&mut self.stream);
        let result = match self.is_broken {
            true => Ok(()),
            false => stream.take(bytes, &mut |heard| self.sent(heard, now, desk)),
        };
        self.stream = stream;
        self.note(result, desk);
    }

    /// It sent so many bytes that are not kept.
    pub(crate) fn left_out(&mut self, bytes: u32, now: u64, desk: &mut Desk<'_>) {
        let mut stream = std::mem::take(&mut self.stream);
        let result = match self.is_broken {
            true => Ok(()),
            false => stream.leave_out(bytes, &mut |heard| self.sent(heard, now, desk)),
        };
        self.stream = stream;
        self.note(result, desk);
    }

    fn note(&mut self, result: Result<(), Malformed>, desk: &mut Desk<'_>) {
        if result == Err(Malformed) {
            self.is_broken = true;
            desk.tally.malformed += 1;
        }
    }

    /// It has a server.
    pub(crate) fn granted(&mut self, now: u64) {
        self.granted = now;
    }

    /// Its statement is to be cancelled.
    pub(crate) fn cancelled(&mut self, now: u64, desk: &mut Desk<'_>) {
        let event = self.event(Action::Cancel, Source::Wire, Wire::default(), desk.at(now));
        (desk.give)(&event);
    }

    /// It is gone.
    pub(crate) fn left(&mut self, now: u64, desk: &mut Desk<'_>) {
        self.let_go(desk);
        for asked in std::mem::take(&mut self.asked) {
            if let Some(event) = asked.event {
                (desk.give)(&event);
            }
        }
        let wire = Wire { messages: self.script.take_rest(), ..Wire::default() };
        let event = self.event(Action::Disconnect, Source::Wire, wire, desk.at(now));
        (desk.give)(&event);
    }

    fn event(&mut self, action: Action, source: Source, wire: Wire, time: Timestamp) -> Box<Event> {
        if let Some(mut event) = self.spare.pop() {
            (event.time, event.action, event.source) = (time, action, source);
            (event.outcome, event.pipeline) = (Outcome::default(), None);
            match &mut event.wire {
                Some(place) => **place = wire,
                none => *none = Some(Box::new(wire)),
            }
            return event;
        }
        let Names { session, user, database, application } = self.names.clone();
        Box::new(Event {
            time,
            session,
            user,
            database,
            application,
            action,
            outcome: Outcome::default(),
            source,
            vxid: None,
            query_id: None,
            pipeline: None,
            wire: Some(Box::new(wire)),
        })
    }

    /// An event is told.
    fn out(&mut self, event: Box<Event>, desk: &mut Desk<'_>) {
        (desk.give)(&event);
        // Whose it is stays the same.
        if self.spare.len() < SPARE_MAX {
            self.spare.push(event);
        }
    }

    fn end_pipeline(&mut self) {
        if std::mem::take(&mut self.has_begun_pipeline) {
            self.pipeline = self.pipeline.saturating_add(1);
        }
    }

    /// Nothing more belongs to the event that was held.
    fn let_go(&mut self, desk: &mut Desk<'_>) {
        if let Some(event) = self.held.take() {
            self.out(event, desk);
        }
    }

    /// All is known of an event but what may be sent behind it in its pipeline.
    fn give(&mut self, event: Box<Event>, desk: &mut Desk<'_>) {
        if event.pipeline != Some(self.pipeline) {
            return self.out(event, desk);
        }
        self.let_go(desk);
        self.held = Some(event);
    }

    /// A portal is closed, or another one takes its name. If nothing has executed it and its Bind is not
    /// answered yet, that is the last moment to tell of it.
    fn portal_goes(&mut self, portal: &Text, desk: &Desk<'_>) {
        let is_its = |asked: &&mut Asked| {
            asked.event.is_none()
                && matches!(&asked.what, What::Bind(bound, false) if bound == portal)
        };
        let arrived = self.asked.iter_mut().rev().find(is_its).map(|asked| asked.arrived);
        let Some(arrived) = arrived else { return };
        let event = self.bind_event(portal, None, desk.at(arrived));
        if let Some(asked) = self.asked.iter_mut().rev().find(is_its) {
            asked.event = event;
        }
    }

    /// A Bind has an event of its own only if nothing executes its portal.
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

    fn of_pipeline(&self, mut event: Box<Event>) -> Box<Event> {
        event.pipeline = Some(self.pipeline);
        event
    }
}

impl Asked {
    fn is_sync(&self) -> bool {
        matches!(self.what, What::Sync)
    }

    /// Whether what was sent behind it is of another pipeline.
    fn ends_pipeline(&self) -> bool {
        matches!(self.what, What::Sync | What::Query | What::Call)
    }

    /// Whether it will be an event of its own.
    fn will_be_event(&self) -> bool {
        self.event.is_some() || matches!(self.what, What::Bind(_, false))
    }
}

impl Portal {
    fn wire(&self, rows_max: u32, messages: Option<Text>) -> Wire {
        Wire {
            messages,
            types: self.types.clone(),
            formats: self.formats.clone(),
            result_formats: self.result_formats.clone(),
            rows_max,
            ..Wire::default()
        }
    }
}

/// A text as it is kept.
fn sql_text(sql: &[u8]) -> Text {
    match secrets::hide(sql) {
        Some(hidden) => hidden.into(),
        None => sql.into(),
    }
}

/// A value in quotes, whatever `standard_conforming_strings` is.
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
