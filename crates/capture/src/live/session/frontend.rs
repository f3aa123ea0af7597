//! Handles the messages from a client.

use howdah_traffic::{Action, Bound, Event, Parameter, Source, Text, Timestamp, WireDetail};
use howdah_wire::{
    Frame, Frontend, Tag, ValueFormat,
    frontend::{Bind, DescribeTarget, FrontendMessage, Parse},
};

use super::{
    AwaitedReply, CopyRowLimits, DecodeContext, PendingRequest, Portal, SYNC, SessionDecoder,
};
use crate::live::{
    pending_messages::LastEvent,
    secrets::sql_text,
    stream::{ClientItem, Malformed},
};

impl SessionDecoder {
    /// Handles a message from the client.
    pub(super) fn handle_message(
        &mut self,
        item: ClientItem<'_>,
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        let (tag, body) = match item {
            ClientItem::Message { tag, body } => (tag, body),
            ClientItem::Omitted { tag, body_bytes, front } => {
                return self.handle_omitted_message(tag, body_bytes, front, now, context);
            }
        };
        // Sync is the most frequent message and needs no parsing.
        if tag == SYNC && body.is_empty() && !self.is_copying {
            return self.sync(now, context);
        }
        let Ok(message) = FrontendMessage::parse(Frame { tag, body }) else {
            return self.check_stream(Err(Malformed), context);
        };
        match message {
            FrontendMessage::Sync if self.is_copying => return,
            FrontendMessage::Sync => return self.sync(now, context),
            FrontendMessage::CopyData(_)
            | FrontendMessage::CopyDone
            | FrontendMessage::CopyFail { .. }
                if self.pending.is_empty() =>
            {
                return; // The message belongs to a failed COPY; the server ignores it.
            }
            FrontendMessage::CopyData(data) => {
                return self.on_copy_data(data, data.len(), context.rows);
            }
            FrontendMessage::CopyDone => return self.on_copy_end(false),
            FrontendMessage::CopyFail { .. } => return self.on_copy_end(true),
            FrontendMessage::Terminate | FrontendMessage::Authentication(_) => return,
            FrontendMessage::Flush if self.is_skipping => return,
            _ if self.is_skipping => {
                context.tally.skipped_by_server += 1;
                return;
            }
            _ => {}
        }
        match &message {
            // These messages end a pipeline, as a Sync does.
            FrontendMessage::Query { .. } | FrontendMessage::FunctionCall(_) => self.end_pipeline(),
            _ => self.has_begun_pipeline = true,
        }
        match &message {
            FrontendMessage::Flush => return self.messages.add(b'H'),
            FrontendMessage::Bind(bind) => self.messages.add_named(b"B", bind.portal),
            FrontendMessage::Describe(DescribeTarget::Statement(name)) => {
                self.messages.add_named(b"DS", name);
            }
            FrontendMessage::Describe(DescribeTarget::Portal(name)) => {
                self.messages.add_named(b"DP", name);
            }
            FrontendMessage::Close(DescribeTarget::Statement(name)) => {
                self.messages.add_named(b"CS", name);
            }
            FrontendMessage::Close(DescribeTarget::Portal(name)) => {
                self.messages.add_named(b"CP", name);
            }
            _ => self.emit_held(context),
        }
        let time = context.at(now);
        let (kind, event) = match message {
            FrontendMessage::Query { sql } => {
                self.statements.set(Text::default(), None);
                let action = Action::Simple { sql: sql_text(sql) };
                let wire = WireDetail {
                    messages: self.messages.take_through(b'Q'),
                    ..WireDetail::default()
                };
                (AwaitedReply::Query, Some(self.event(action, Source::Wire, wire, time)))
            }
            FrontendMessage::FunctionCall(call) => {
                let action = Action::Call { function: call.function.to_string().into() };
                let arguments = call.arguments.clone().map(|value| value.map(Text::from));
                let wire = WireDetail {
                    formats: call.formats.clone().map(ValueFormat::code).collect(),
                    result_formats: vec![call.result_format.code()],
                    arguments: Some(arguments.collect()),
                    messages: self.messages.take_through(b'F'),
                    ..WireDetail::default()
                };
                (AwaitedReply::Call, Some(self.event(action, Source::Wire, wire, time)))
            }
            FrontendMessage::Parse(parse) => self.parse(&parse, time, context),
            FrontendMessage::Bind(bind) => (self.bind(&bind, context), None),
            FrontendMessage::Execute { portal, max_rows } => {
                self.execute(portal, max_rows, time, context)
            }
            FrontendMessage::Close(target) => {
                match target {
                    DescribeTarget::Statement(name) => drop(self.statements.set(name.into(), None)),
                    DescribeTarget::Portal(name) => {
                        let name = Text::from(name);
                        self.before_portal_closed(&name, context);
                        self.portals.set(name, None);
                    }
                }
                (AwaitedReply::Other, None)
            }
            _ => (AwaitedReply::Other, None),
        };
        self.pending.push_back(PendingRequest::new(kind, event, now));
    }

    /// Handles a message whose body was not recorded, or only its start, `front`.
    fn handle_omitted_message(
        &mut self,
        tag: Tag,
        body_bytes: u32,
        front: &[u8],
        now: u64,
        context: &mut DecodeContext<'_>,
    ) {
        let kind = match Frontend::from_tag(tag) {
            // No COPY waits for this data: the server discards it after a failed COPY.
            Some(Frontend::CopyData) if self.pending.is_empty() => return,
            Some(Frontend::CopyData) => {
                let rows = CopyRowLimits { bytes_max: 0, ..context.rows };
                return self.on_copy_data(&[], body_bytes as usize, rows);
            }
            Some(
                kind
                @ (Frontend::Query | Frontend::FunctionCall | Frontend::Bind | Frontend::Parse),
            ) => kind,
            _ => return,
        };
        context.tally.too_long += 1;
        if self.is_skipping {
            return;
        }
        // The name ends with a zero byte. If the name itself is cut off, the message may have
        // replaced any name.
        let name = memchr::memchr(0, front).and_then(|end| front.get(..end)).map(Text::from);
        let kind = match kind {
            Frontend::Query | Frontend::FunctionCall => {
                self.emit_held(context);
                self.end_pipeline();
                match kind {
                    Frontend::Query => AwaitedReply::Query,
                    _ => AwaitedReply::Call,
                }
            }
            // The previous object of this name no longer exists, and the new one is unknown.
            Frontend::Bind => {
                match &name {
                    Some(portal) => {
                        self.before_portal_closed(portal, context);
                        self.portals.set(portal.clone(), None);
                    }
                    None => self.portals.clear(),
                }
                AwaitedReply::Bind(name.unwrap_or_default(), true)
            }
            _ => {
                match name {
                    Some(statement) => drop(self.statements.set(statement, None)),
                    None => self.statements.clear(),
                }
                AwaitedReply::Other
            }
        };
        if !matches!(kind, AwaitedReply::Query | AwaitedReply::Call) {
            self.has_begun_pipeline = true;
            self.messages.discard_pipeline();
        }
        self.pending.push_back(PendingRequest::new(kind, None, now));
    }

    fn sync(&mut self, now: u64, context: &mut DecodeContext<'_>) {
        self.is_skipping = false;
        self.has_begun_pipeline = true;
        self.end_pipeline();
        // Messages since the last event of the pipeline belong to that event.
        let mut last = self.pending.iter_mut().rev().take_while(|request| !request.ends_pipeline());
        let last = match last.find(|request| request.will_be_event()) {
            Some(PendingRequest { event: Some(event), .. }) => Some(LastEvent::Event(event)),
            Some(bind) => Some(LastEvent::Bind(&mut bind.messages)),
            None => self.held_event.as_deref_mut().map(LastEvent::Event),
        };
        context.tally.too_long += u64::from(!self.messages.add_sync(last));
        self.emit_held(context);
        let kind = AwaitedReply::Sync;
        self.pending.push_back(PendingRequest::new(kind, None, now));
    }

    fn parse(
        &mut self,
        parse: &Parse<'_>,
        time: Timestamp,
        context: &mut DecodeContext<'_>,
    ) -> (AwaitedReply, Option<Box<Event>>) {
        let prepared = context.texts.get_or_parse(parse);
        let statement = Text::from(parse.statement);
        let action = Action::Parse { statement: statement.clone(), sql: prepared.sql.clone() };
        let messages = self.messages.take_through(b'P');
        let wire = WireDetail { types: prepared.types.clone(), messages, ..WireDetail::default() };
        let event = self.event(action, Source::Wire, wire, time);
        let before = self.statements.set(statement.clone(), Some(prepared));
        (AwaitedReply::Parse(statement, before), Some(self.with_pipeline(event)))
    }

    fn bind(&mut self, bind: &Bind<'_>, context: &mut DecodeContext<'_>) -> AwaitedReply {
        let (statement, portal) = (Text::from(bind.statement), Text::from(bind.portal));
        let Some(prepared) = self.statements.get(&statement) else {
            context.tally.unknown_statements += 1;
            self.portals.set(portal.clone(), None);
            self.messages.discard_pipeline();
            return AwaitedReply::Bind(portal, true);
        };
        let value = |value: Option<&[u8]>| match value {
            None => Parameter::Null,
            Some(bytes) => Parameter::Value(bytes.into()),
        };
        let codes =
            |formats: &howdah_wire::Formats<'_>| formats.clone().map(ValueFormat::code).collect();
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
        self.before_portal_closed(&portal, context);
        self.portals.set(portal.clone(), Some(opened));
        AwaitedReply::Bind(portal, false)
    }

    fn execute(
        &mut self,
        portal: &[u8],
        rows_max: u32,
        time: Timestamp,
        context: &mut DecodeContext<'_>,
    ) -> (AwaitedReply, Option<Box<Event>>) {
        let name = Text::from(portal);
        for request in self.pending.iter_mut().rev() {
            match &mut request.kind {
                AwaitedReply::Bind(bound, is_executed) if *bound == name => {
                    *is_executed = true;
                    break;
                }
                AwaitedReply::Sync => break,
                _ => {}
            }
        }
        let Some(portal) = self.portals.get_mut(&name) else {
            context.tally.unknown_statements += u64::from(!name.is_empty());
            return (AwaitedReply::Execute, None);
        };
        // Without a row limit, no rows can remain.
        let bound = match rows_max {
            0 => Bound { parameters: portal.bound.parameters.take(), ..portal.bound.clone() },
            _ => portal.bound.clone(),
        };
        let action = if std::mem::replace(&mut portal.was_executed, true) {
            Action::Fetch(bound)
        } else {
            Action::Execute(bound)
        };
        let messages = self.messages.take_through(b'E');
        let wire = portal.wire(rows_max, messages);
        let event = self.event(action, Source::Wire, wire, time);
        (AwaitedReply::Execute, Some(self.with_pipeline(event)))
    }

    fn on_copy_data(&mut self, data: &[u8], bytes: usize, rows: CopyRowLimits) {
        let copying = self.copy.get_or_insert_default();
        copying.copy.bytes += bytes as u64;
        let kept_bytes: usize = copying.copy.data.iter().flatten().map(Text::len).sum();
        copying.is_incomplete |=
            bytes > data.len() || kept_bytes + copying.data.len() + data.len() > rows.bytes_max;
        if copying.is_incomplete {
            copying.data = Vec::new();
        } else {
            copying.data.extend_from_slice(data);
        }
    }

    fn on_copy_end(&mut self, failed: bool) {
        self.is_copying = false;
        let copying = self.copy.get_or_insert_default();
        let data = std::mem::take(&mut copying.data);
        let is_bare = std::mem::take(&mut copying.is_incomplete);
        copying.copy.data.push((!is_bare).then(|| data.into()));
        copying.copy.failed = failed;
    }
}
