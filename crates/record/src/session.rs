//! [`Session`]: from what one client said and heard to its events.
//!
//! Replies carry no numbers: which request one belongs to follows from its place alone. So a session keeps
//! what was asked and is not answered, as the client itself has to. An event goes out when its outcome is
//! known, with the time at which its message arrived.

use std::{collections::VecDeque, sync::Arc};

use howdah_traffic::{
    Action, Bound, CopyDirection, CopyIn, Event, Outcome, Parameter, SessionId, Source, SqlState,
    Text, Timestamp, Wire,
};
use howdah_wire::{
    Backend, Format, Frame, Frontend, Tag,
    backend::{Message as Reply, TransactionStatus},
    frontend::{Bind, Message, Parse, Target},
};

use crate::{
    by_name::ByName,
    script::{Last, Script, add_sync},
    secrets,
    stream::{Heard, Malformed, Stream},
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

    /// A message of the client's.
    fn sent(&mut self, heard: Heard<'_>, now: u64, desk: &mut Desk<'_>) {
        let (tag, body) = match heard {
            Heard::Message { tag, body } => (tag, body),
            Heard::Bare { tag, body_bytes, front } => {
                return self.sent_bare(tag, body_bytes, front, now, desk);
            }
        };
        // Every other message is one, and has nothing to be read.
        if tag == SYNC && body.is_empty() && !self.is_copying {
            return self.sync(now, desk);
        }
        let Ok(message) = Message::parse(Frame { tag, body }) else {
            return self.note(Err(Malformed), desk);
        };
        match message {
            Message::Sync if self.is_copying => return,
            Message::Sync => return self.sync(now, desk),
            Message::CopyData(_) | Message::CopyDone | Message::CopyFail { .. }
                if self.asked.is_empty() =>
            {
                return; // Of a COPY that has failed: nobody looks at it.
            }
            Message::CopyData(data) => return self.copied(data, data.len(), desk.rows),
            Message::CopyDone => return self.copy_ended(false),
            Message::CopyFail { .. } => return self.copy_ended(true),
            Message::Terminate | Message::Authentication(_) => return,
            Message::Flush if self.is_skipping => return,
            _ if self.is_skipping => {
                desk.tally.skipped_by_server += 1;
                return;
            }
            _ => {}
        }
        match &message {
            // They end a pipeline, as a Sync does.
            Message::Query { .. } | Message::FunctionCall(_) => self.end_pipeline(),
            _ => self.has_begun_pipeline = true,
        }
        match &message {
            Message::Flush => return self.script.add(b'H'),
            Message::Bind(bind) => self.script.add_named(b"B", bind.portal),
            Message::Describe(Target::Statement(name)) => self.script.add_named(b"DS", name),
            Message::Describe(Target::Portal(name)) => self.script.add_named(b"DP", name),
            Message::Close(Target::Statement(name)) => self.script.add_named(b"CS", name),
            Message::Close(Target::Portal(name)) => self.script.add_named(b"CP", name),
            _ => self.let_go(desk),
        }
        let time = desk.at(now);
        let (what, event) = match message {
            Message::Query { sql } => {
                self.statements.set(Text::default(), None);
                let action = Action::Simple { sql: sql_text(sql) };
                let wire = Wire { messages: self.script.take_up_to(b'Q'), ..Wire::default() };
                (What::Query, Some(self.event(action, Source::Wire, wire, time)))
            }
            Message::FunctionCall(call) => {
                let action = Action::Call { function: call.function.to_string().into() };
                let arguments = call.arguments.clone().map(|value| value.map(Text::from));
                let wire = Wire {
                    formats: call.formats.clone().map(Format::code).collect(),
                    result_formats: vec![call.result_format.code()],
                    arguments: Some(arguments.collect()),
                    messages: self.script.take_up_to(b'F'),
                    ..Wire::default()
                };
                (What::Call, Some(self.event(action, Source::Wire, wire, time)))
            }
            Message::Parse(parse) => self.parse(&parse, time, desk),
            Message::Bind(bind) => (self.bind(&bind, desk), None),
            Message::Execute { portal, max_rows } => self.execute(portal, max_rows, time, desk),
            Message::Close(target) => {
                match target {
                    Target::Statement(name) => drop(self.statements.set(name.into(), None)),
                    Target::Portal(name) => {
                        let name = Text::from(name);
                        self.portal_goes(&name, desk);
                        self.portals.set(name, None);
                    }
                }
                (What::Other, None)
            }
            _ => (What::Other, None),
        };
        self.asked.push_back(Asked { what, event, arrived: now, messages: None });
    }

    /// A message of which the body is not kept, but perhaps its front.
    fn sent_bare(
        &mut self,
        tag: Tag,
        body_bytes: u32,
        front: &[u8],
        now: u64,
        desk: &mut Desk<'_>,
    ) {
        let kind = match Frontend::from_tag(tag) {
            Some(Frontend::CopyData) if self.asked.is_empty() => return,
            Some(Frontend::CopyData) => {
                let rows = Rows { bytes_max: 0, ..desk.rows };
                return self.copied(&[], body_bytes as usize, rows);
            }
            Some(
                kind
                @ (Frontend::Query | Frontend::FunctionCall | Frontend::Bind | Frontend::Parse),
            ) => kind,
            _ => return,
        };
        desk.tally.too_long += 1;
        if self.is_skipping {
            return;
        }
        let name = memchr::memchr(0, front).and_then(|end| front.get(..end)).map(Text::from);
        let what = match kind {
            Frontend::Query | Frontend::FunctionCall => {
                self.let_go(desk);
                self.end_pipeline();
                match kind {
                    Frontend::Query => What::Query,
                    _ => What::Call,
                }
            }
            // What its name stood for is gone, or nobody knows what is.
            Frontend::Bind => {
                match &name {
                    Some(portal) => {
                        self.portal_goes(portal, desk);
                        self.portals.set(portal.clone(), None);
                    }
                    None => self.portals.clear(),
                }
                What::Bind(name.unwrap_or_default(), true)
            }
            _ => {
                match name {
                    Some(statement) => drop(self.statements.set(statement, None)),
                    None => self.statements.clear(),
                }
                What::Other
            }
        };
        if !matches!(what, What::Query | What::Call) {
            self.has_begun_pipeline = true;
            self.script.lose();
        }
        self.asked.push_back(Asked { what, event: None, arrived: now, messages: None });
    }

    fn sync(&mut self, now: u64, desk: &mut Desk<'_>) {
        self.is_skipping = false;
        self.has_begun_pipeline = true;
        self.end_pipeline();
        // What was sent since the last event of the pipeline goes with it.
        let mut last = self.asked.iter_mut().rev().take_while(|asked| !asked.ends_pipeline());
        let last = match last.find(|asked| asked.will_be_event()) {
            Some(Asked { event: Some(event), .. }) => Some(Last::Event(event)),
            Some(bind) => Some(Last::Bind(&mut bind.messages)),
            None => self.held.as_deref_mut().map(Last::Event),
        };
        desk.tally.too_long += u64::from(!self.script.add_sync(last));
        self.let_go(desk);
        let what = What::Sync;
        self.asked.push_back(Asked { what, event: None, arrived: now, messages: None });
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

    fn parse(
        &mut self,
        parse: &Parse<'_>,
        time: Timestamp,
        desk: &mut Desk<'_>,
    ) -> (What, Option<Box<Event>>) {
        let prepared = desk.texts.prepared(parse);
        let statement = Text::from(parse.statement);
        let action = Action::Parse { statement: statement.clone(), sql: prepared.sql.clone() };
        let messages = self.script.take_up_to(b'P');
        let wire = Wire { types: prepared.types.clone(), messages, ..Wire::default() };
        let event = self.event(action, Source::Wire, wire, time);
        let before = self.statements.set(statement.clone(), Some(prepared));
        (What::Parse(statement, before), Some(self.of_pipeline(event)))
    }

    fn bind(&mut self, bind: &Bind<'_>, desk: &mut Desk<'_>) -> What {
        let (statement, portal) = (Text::from(bind.statement), Text::from(bind.portal));
        let Some(prepared) = self.statements.get(&statement) else {
            desk.tally.unknown_statements += 1;
            self.portals.set(portal.clone(), None);
            self.script.lose();
            return What::Bind(portal, true);
        };
        let value = |value: Option<&[u8]>| match value {
            None => Parameter::Null,
            Some(bytes) => Parameter::Value(bytes.into()),
        };
        let codes =
            |formats: &howdah_wire::Formats<'_>| formats.clone().map(Format::code).collect();
        let opened = Portal {
            bound: Bound {
                statement,
                portal: portal.clone(),
                sql: prepared.sql.clone(),
                parameters: Some(bind.values.clone().map(value).collect()),
            },
            formats: codes(&bind.formats),
            result_formats: codes(&bind.result_formats),
            types: prepared.types.clone(),
            was_executed: false,
            pipeline: self.pipeline,
        };
        self.portal_goes(&portal, desk);
        self.portals.set(portal.clone(), Some(opened));
        What::Bind(portal, false)
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

    fn execute(
        &mut self,
        portal: &[u8],
        rows_max: u32,
        time: Timestamp,
        desk: &mut Desk<'_>,
    ) -> (What, Option<Box<Event>>) {
        let name = Text::from(portal);
        for asked in self.asked.iter_mut().rev() {
            match &mut asked.what {
                What::Bind(bound, is_executed) if *bound == name => {
                    *is_executed = true;
                    break;
                }
                What::Sync => break,
                _ => {}
            }
        }
        let Some(portal) = self.portals.get_mut(&name) else {
            desk.tally.unknown_statements += u64::from(!name.is_empty());
            return (What::Execute, None);
        };
        // Without a limit there is nothing left to be fetched.
        let bound = match rows_max {
            0 => Bound { parameters: portal.bound.parameters.take(), ..portal.bound.clone() },
            _ => portal.bound.clone(),
        };
        let action = match std::mem::replace(&mut portal.was_executed, true) {
            false => Action::Execute(bound),
            true => Action::Fetch(bound),
        };
        let messages = self.script.take_up_to(b'E');
        let wire = portal.wire(rows_max, messages);
        let event = self.event(action, Source::Wire, wire, time);
        (What::Execute, Some(self.of_pipeline(event)))
    }

    fn of_pipeline(&self, mut event: Box<Event>) -> Box<Event> {
        event.pipeline = Some(self.pipeline);
        event
    }

    fn copied(&mut self, data: &[u8], bytes: usize, rows: Rows) {
        let copying = self.copy.get_or_insert_default();
        copying.copy.bytes += bytes as u64;
        let held: usize = copying.copy.data.iter().flatten().map(Text::len).sum();
        copying.is_bare |=
            bytes > data.len() || held + copying.data.len() + data.len() > rows.bytes_max;
        if copying.is_bare {
            copying.data = Vec::new();
        } else {
            copying.data.extend_from_slice(data);
        }
    }

    fn copy_ended(&mut self, failed: bool) {
        self.is_copying = false;
        let copying = self.copy.get_or_insert_default();
        let data = std::mem::take(&mut copying.data);
        let is_bare = std::mem::take(&mut copying.is_bare);
        copying.copy.data.push((!is_bare).then(|| data.into()));
        copying.copy.failed = failed;
    }

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

/// An event failed. What the server says of a text with a secret in it may quote the secret.
fn fail(event: &mut Event, failure: Outcome) {
    let finder = memchr::memmem::Finder::new(secrets::HIDDEN);
    let hides = event.action.sql().is_some_and(|sql| finder.find(sql.as_bytes()).is_some());
    event.outcome = match hides {
        true => Outcome { error: Some(secrets::HIDDEN.into()), ..failure },
        false => failure,
    };
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
