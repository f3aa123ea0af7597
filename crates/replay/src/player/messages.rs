//! Builds the messages of a batch, which make the target do what the captured server did.

use std::borrow::Cow;

use hashbrown::{HashMap, HashSet};
use howdah_session::{ClientSession, EncodeError, RequestId};
use howdah_sql::{SqlCommand, split_statements};
use howdah_traffic::{
    Action, Bound, ClientMessage, Event, Kind, NamedObject, Parameter, Source, Text, WireDetail,
};
use howdah_wire::ValueFormat;

use super::{PreparedText, ScheduledEvent, deallocate::deallocated_name, in_flight::BatchPart};
use crate::{encoding, ids::GeneratedIds, target::CLIENT_ENCODING};

/// Writes the messages of a session's events. Knows what the connection has prepared and opened.
pub(super) struct MessageWriter {
    /// Statements prepared on the current connection, by name.
    pub(super) statements: HashMap<Text, PreparedText>,
    /// Portals opened on the current connection, by name.
    pub(super) portals: HashSet<Text>,
    /// Whether the capture has Parse messages of this session, so that the unnamed statement is not
    /// parsed again before each use.
    pub(super) has_captured_parses: bool,
    /// Rows per Execute of a portal that is fetched in parts, if the capture does not contain them.
    fetch_rows: u32,
    /// The values that the target generated, if they replace captured ones.
    pub(super) ids: Option<GeneratedIds>,
}

/// The state of the session in which a batch is sent.
#[derive(Clone, Copy)]
pub(super) struct BatchContext<'a> {
    pub(super) is_in_transaction: bool,
    /// The event after the batch, if it has been read.
    pub(super) next: Option<&'a Action>,
}

impl MessageWriter {
    pub(super) fn new(fetch_rows: u32, ids: Option<GeneratedIds>) -> Self {
        Self {
            statements: HashMap::new(),
            portals: HashSet::new(),
            has_captured_parses: false,
            fetch_rows,
            ids,
        }
    }

    /// Starts anew on another connection.
    pub(super) fn reset(&mut self) {
        self.statements.clear();
        self.portals.clear();
    }

    /// Queues the messages of one batch in the client.
    pub(super) fn queue_messages(
        &mut self,
        parts: &mut [BatchPart],
        context: BatchContext<'_>,
        client: &mut ClientSession,
    ) -> Result<(), EncodeError> {
        for at in 0..parts.len() {
            let (before, rest) = parts.split_at_mut(at);
            let (this, rest_of_batch) = rest.split_first_mut().expect("at is below the length");
            let mut rest_of_batch = rest_of_batch.iter().map(|part| &part.item.event.action);
            let item = &this.item;
            let event = &item.event;
            let wire = event.wire.as_deref();
            if event.messages().is_some() {
                self.queue_captured_messages(parts, at, client)?;
                continue;
            }
            let mut is_prepared = false;
            let request = match &event.action {
                Action::Simple { sql } | Action::Copy { sql, .. } => {
                    self.prepare_unknown(event, sql, client)?;
                    self.drop_deallocated(sql);
                    this.request = Some(client.query(&self.replaced(statement_text(
                        event,
                        sql.as_bytes(),
                        client,
                    )))?);
                    return Ok(());
                }
                Action::Parse { statement, .. } => self.parse(statement, item, client)?,
                // A Bind is sent together with its Execute, or alone if it has none.
                Action::Bind(bound) => match rest_of_batch.next() {
                    Some(Action::Execute(executed)) if executed.portal == bound.portal => continue,
                    _ => {
                        let (request, prepares) = self.bind(bound, item, client)?;
                        is_prepared = prepares;
                        request
                    }
                },
                Action::Execute(bound) => {
                    let (bind, prepares) = self.bind(bound, item, client)?;
                    is_prepared = prepares;
                    this.bind = Some(bind);
                    if let Some(last) = before.last_mut()
                        && last.item.event.action.kind() == Kind::Bind
                    {
                        last.request.get_or_insert(bind);
                    }
                    let rows_max = match wire {
                        Some(wire) => wire.rows_max,
                        None if will_fetch(bound, rest_of_batch.clone(), context) => {
                            self.fetch_rows
                        }
                        None => 0,
                    };
                    let request = client.execute(bound.portal.as_bytes(), rows_max)?;
                    self.drop_deallocated(&bound.sql);
                    if rest_of_batch.next().is_some() {
                        // With a Flush, the reply arrives when the statement is done, and its
                        // duration can be measured.
                        client.flush();
                    }
                    request
                }
                Action::Fetch(bound) => {
                    let rows_max = wire.map_or(self.fetch_rows, |wire| wire.rows_max);
                    client.execute(bound.portal.as_bytes(), rows_max)?
                }
                Action::Call { function } => {
                    return call(function, wire, client).map(drop);
                }
                Action::Connect | Action::Disconnect | Action::Cancel => {
                    unreachable!("these are not sent as messages of a session")
                }
            };
            (this.request, this.is_prepared) = (Some(request), is_prepared);
        }
        if client.has_open_batch() || client.pending_ready_count() == 0 {
            client.sync();
        }
        Ok(())
    }

    /// Queues an event's own message, and the captured messages that the client sent before and
    /// after it.
    fn queue_captured_messages(
        &mut self,
        parts: &mut [BatchPart],
        at: usize,
        client: &mut ClientSession,
    ) -> Result<(), EncodeError> {
        let messages = parts[at].item.event.messages().cloned();
        for message in ClientMessage::all(messages.unwrap_or_default().as_bytes()) {
            match message {
                ClientMessage::EventMessage => {
                    let request = self.queue_own_message(&parts[at].item, client)?;
                    parts[at].request = Some(request);
                }
                ClientMessage::Bind(portal) => self.bind_as_captured(portal, parts, client)?,
                ClientMessage::Describe(NamedObject::Statement(name)) => {
                    client.describe_statement(name)?;
                }
                ClientMessage::Describe(NamedObject::Portal(name)) => {
                    client.describe_portal(name)?;
                }
                ClientMessage::Close(NamedObject::Statement(name)) => {
                    self.statements.remove(&Text::from(name));
                    client.close_statement(name)?;
                }
                ClientMessage::Close(NamedObject::Portal(name)) => {
                    self.portals.remove(&Text::from(name));
                    client.close_portal(name)?;
                }
                ClientMessage::Flush => client.flush(),
                ClientMessage::Sync => drop(client.sync()),
            }
        }
        Ok(())
    }

    /// Queues the message that the event represents.
    fn queue_own_message(
        &mut self,
        item: &ScheduledEvent,
        client: &mut ClientSession,
    ) -> Result<RequestId, EncodeError> {
        let event = &item.event;
        let wire = event.wire.as_deref();
        let rows_max = wire.map_or(0, |wire| wire.rows_max);
        match &event.action {
            Action::Simple { sql } | Action::Copy { sql, .. } => {
                self.drop_deallocated(sql);
                client.query(&self.replaced(Cow::Borrowed(sql.as_bytes())))
            }
            Action::Parse { statement, sql } => {
                let prepared = PreparedText::for_event(item);
                let text = Cow::Borrowed(sql.as_bytes());
                let text = if statement.is_empty() { self.replaced(text) } else { text };
                let request = client.parse(statement.as_bytes(), &text, &prepared.types)?;
                self.statements.insert(statement.clone(), prepared);
                Ok(request)
            }
            Action::Execute(bound) => {
                self.drop_deallocated(&bound.sql);
                client.execute(bound.portal.as_bytes(), rows_max)
            }
            Action::Bind(bound) | Action::Fetch(bound) => {
                client.execute(bound.portal.as_bytes(), rows_max)
            }
            Action::Call { function } => call(function, wire, client),
            Action::Connect | Action::Disconnect | Action::Cancel => Ok(client.sync()),
        }
    }

    /// Queues the Bind of a portal for the first event of the batch that uses the portal and has no
    /// Bind yet.
    fn bind_as_captured(
        &mut self,
        portal: &[u8],
        parts: &mut [BatchPart],
        client: &mut ClientSession,
    ) -> Result<(), EncodeError> {
        for part in parts.iter_mut().filter(|part| !part.is_bound) {
            let event = &part.item.event;
            let (Action::Bind(bound) | Action::Execute(bound)) = &event.action else { continue };
            if bound.portal.as_bytes() != portal {
                continue;
            }
            if !self.statements.get(&bound.statement).is_some_and(|it| it.matches(&part.item)) {
                // The statement was prepared before the capture started, or lost with a connection.
                self.parse(&bound.statement, &part.item, client)?;
                part.is_prepared = true;
            }
            let event = &part.item.event;
            let request = self.bind_only(bound, event, client)?;
            part.is_bound = true;
            if event.action.kind() == Kind::Bind {
                part.request = Some(request);
            }
            return Ok(());
        }
        Ok(())
    }

    /// Prepares an empty statement before a DEALLOCATE of a name that is not known to be prepared.
    /// A log shows no names of statements that were never executed, or only failed in Bind. The
    /// DEALLOCATE would fail without the statement, and with it its transaction.
    fn prepare_unknown(
        &self,
        event: &Event,
        sql: &Text,
        client: &mut ClientSession,
    ) -> Result<(), EncodeError> {
        if event.source == Source::Wire || event.outcome.failed() {
            return Ok(());
        }
        let Some(name) = deallocated_name(sql.as_bytes()) else { return Ok(()) };
        if !self.statements.contains_key(&Text::from(&*name)) {
            client.close_statement(&name)?;
            client.parse(&name, b"", &[])?;
        }
        Ok(())
    }

    /// Forgets what a DEALLOCATE or DISCARD drops, so that it is prepared again before use: one
    /// statement, or all if `sql` is more than one DEALLOCATE of a name.
    fn drop_deallocated(&mut self, sql: &Text) {
        if self.statements.is_empty() {
            return;
        }
        let deallocates =
            |one| matches!(SqlCommand::from_sql(one), SqlCommand::Deallocate | SqlCommand::Discard);
        let sql = sql.as_bytes().trim_ascii_end();
        let single = !sql.strip_suffix(b";").unwrap_or(sql).contains(&b';');
        // Most texts are decided by their first word, many without any lookup.
        if !(if single { deallocates(sql) } else { split_statements(sql).any(deallocates) }) {
            return;
        }
        match deallocated_name(sql) {
            Some(name) => drop(self.statements.remove(&Text::from(&*name))),
            None => self.statements.clear(),
        }
    }

    fn parse(
        &mut self,
        statement: &Text,
        item: &ScheduledEvent,
        client: &mut ClientSession,
    ) -> Result<RequestId, EncodeError> {
        if !statement.is_empty() {
            // The capture contains no Close messages. Closing a statement that does not exist is
            // not an error.
            client.close_statement(statement.as_bytes())?;
        }
        let prepared = PreparedText::for_event(item);
        let text = statement_text(&item.event, prepared.sql.as_bytes(), client);
        // A named statement is executed again later, when other values may have replaced these.
        let text = if statement.is_empty() { self.replaced(text) } else { text };
        let request = client.parse(statement.as_bytes(), &text, &prepared.types)?;
        self.statements.insert(statement.clone(), prepared);
        Ok(request)
    }

    /// Queues a Bind, preceded by a Parse if the statement must be prepared first. Returns the
    /// Bind's id, and whether a Parse was queued.
    fn bind(
        &mut self,
        bound: &Bound,
        item: &ScheduledEvent,
        client: &mut ClientSession,
    ) -> Result<(RequestId, bool), EncodeError> {
        let is_same = |prepared: &PreparedText| prepared.matches(item);
        let known = self.statements.get(&bound.statement).is_some_and(is_same);
        // A client parses the unnamed statement before each use. The exception is a capture that
        // has Parse messages, but none here.
        let must_parse_again = bound.statement.is_empty() && !self.has_captured_parses;
        let prepares = !known || must_parse_again;
        if prepares {
            self.parse(&bound.statement, item, client)?;
        }
        if !bound.portal.is_empty() {
            client.close_portal(bound.portal.as_bytes())?;
        }
        Ok((self.bind_only(bound, &item.event, client)?, prepares))
    }

    fn bind_only(
        &mut self,
        bound: &Bound,
        event: &Event,
        client: &mut ClientSession,
    ) -> Result<RequestId, EncodeError> {
        let values: Vec<_> = self.bound_values(bound, event).collect();
        let formats = |of: fn(&WireDetail) -> &[u16]| -> Vec<ValueFormat> {
            let codes = event.wire.as_deref().map_or(&[][..], of);
            codes.iter().map(|code| value_format(*code)).collect()
        };
        let request = client.bind_with_formats(
            bound.portal.as_bytes(),
            bound.statement.as_bytes(),
            &formats(|wire| &wire.formats),
            values.iter().map(|value| value.as_deref()),
            &formats(|wire| &wire.result_formats),
        )?;
        self.portals.insert(bound.portal.clone());
        Ok(request)
    }

    /// Returns the values to bind.
    fn bound_values<'a>(
        &self,
        bound: &'a Bound,
        event: &Event,
    ) -> impl Iterator<Item = Option<Cow<'a, [u8]>>> {
        let wire = event.wire.as_deref();
        let values = bound.parameters.as_deref().unwrap_or_default().iter().enumerate();
        values.map(move |(at, value)| match value {
            Parameter::Null => None,
            Parameter::Value(text) | Parameter::Truncated(text) => Some(match &self.ids {
                Some(ids) => {
                    ids.bound_value(text.as_bytes(), wire.is_some_and(|wire| wire.is_binary(at)))
                }
                None => Cow::Borrowed(text.as_bytes()),
            }),
        })
    }

    /// Returns the text of a query with values replaced that the target generated otherwise.
    fn replaced<'a>(&self, sql: Cow<'a, [u8]>) -> Cow<'a, [u8]> {
        match &self.ids {
            Some(ids) => ids.statement(sql),
            None => sql,
        }
    }
}

/// Whether the client will fetch the rows of this portal in parts. Logs do not contain the row
/// limit of an Execute. A named portal inside a transaction is assumed to be fetched in parts; for
/// the unnamed portal, the next event decides.
fn will_fetch<'a>(
    bound: &Bound,
    mut rest_of_batch: impl Iterator<Item = &'a Action>,
    context: BatchContext<'_>,
) -> bool {
    let fetches = |action: &Action| matches!(action, Action::Fetch(fetched) if fetched.portal == bound.portal);
    if rest_of_batch.any(fetches) {
        return true;
    }
    context.is_in_transaction && (!bound.portal.is_empty() || context.next.is_some_and(fetches))
}

/// Queues a function call with its captured arguments.
fn call(
    function: &Text,
    wire: Option<&WireDetail>,
    client: &mut ClientSession,
) -> Result<RequestId, EncodeError> {
    let formats = |codes: &[u16]| codes.iter().map(|code| value_format(*code)).collect::<Vec<_>>();
    let arguments = wire.and_then(|wire| wire.arguments.as_deref()).unwrap_or_default();
    client.call_function_with_formats(
        function_oid(function).unwrap_or_default(),
        &wire.map_or_else(Vec::new, |wire| formats(&wire.formats)),
        arguments.iter().map(|value| value.as_ref().map(Text::as_bytes)),
        wire.and_then(|wire| wire.result_formats.first())
            .map_or(ValueFormat::Text, |code| value_format(*code)),
    )
}

/// Returns the OID of a called function. Captures of the wire protocol store it as the function's
/// name.
pub(super) fn function_oid(function: &Text) -> Option<u32> {
    function.to_str()?.parse().ok()
}

/// Returns the text to send. Text captured on the wire is in the encoding that its session chose,
/// and is sent unchanged. Text from a log is in the encoding of the database; if it would set
/// another client encoding, the session's encoding replaces that.
pub(super) fn statement_text<'a>(
    event: &Event,
    sql: &'a [u8],
    client: &ClientSession,
) -> Cow<'a, [u8]> {
    match event.wire {
        Some(_) => Cow::Borrowed(sql),
        None => encoding::with_session_encoding(sql, client.parameter(CLIENT_ENCODING)),
    }
}

/// Converts a format code. A capture contains only the codes 0 and 1, because the captured server
/// rejected any other.
fn value_format(code: u16) -> ValueFormat {
    if code == ValueFormat::Binary.code() { ValueFormat::Binary } else { ValueFormat::Text }
}
