//! What a client sends, message by message.

use howdah_traffic::{Action, Bound, Event, Parameter, Source, Text, Timestamp, Wire};
use howdah_wire::{
    Format, Frame, Frontend, Tag,
    frontend::{Bind, Message, Parse, Target},
};

use super::{Asked, Desk, Portal, Rows, SYNC, Session, What, sql_text};
use crate::{
    script::Last,
    stream::{Heard, Malformed},
};

impl Session {
    /// A message of the client's.
    pub(super) fn sent(&mut self, heard: Heard<'_>, now: u64, desk: &mut Desk<'_>) {
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
}
