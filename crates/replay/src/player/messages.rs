//! The messages of a batch: what of the extended protocol has to be said so that the target's server
//! does what the captured one did.

use std::borrow::Cow;

use howdah_session::{Client, EncodeError, RequestId, TransactionStatus};
use howdah_sql::{Command, split_statements};
use howdah_traffic::{Action, Bound, Event, Kind, Named, Parameter, Said, Text, Wire};
use howdah_wire::Format;

use super::{Item, Player, Prepared, flight::Part};
use crate::{encoding, target::CLIENT_ENCODING};

impl Player {
    /// Puts the messages of one batch into the client.
    pub(super) fn queue_messages(
        &mut self,
        parts: &mut [Part],
        client: &mut Client,
    ) -> Result<(), EncodeError> {
        for at in 0..parts.len() {
            let (before, rest) = parts.split_at_mut(at);
            let (this, behind) = rest.split_first_mut().expect("at is inside");
            let mut behind = behind.iter().map(|part| &part.item.event.action);
            let item = &this.item;
            let event = &item.event;
            let wire = event.wire.as_deref();
            if event.messages().is_some() {
                self.queue_as_captured(parts, at, client)?;
                continue;
            }
            let mut is_prepared = false;
            let request = match &event.action {
                Action::Simple { sql } | Action::Copy { sql, .. } => {
                    self.forget_deallocated(sql);
                    this.request = Some(client.query(&text_of(event, sql, client))?);
                    return Ok(());
                }
                Action::Parse { statement, .. } => self.parse(statement, item, client)?,
                // Its Execute binds; a Bind that nothing executes is sent for its own sake.
                Action::Bind(bound) => match behind.next() {
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
                        None if self.will_fetch(bound, behind.clone()) => self.fetch_rows,
                        None => 0,
                    };
                    let request = client.execute(bound.portal.as_bytes(), rows_max)?;
                    self.forget_deallocated(&bound.sql);
                    if behind.next().is_some() {
                        // So that the answer comes when the statement is done, to be timed by.
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
        if client.has_open_batch() || client.ready_owed() == 0 {
            client.sync();
        }
        Ok(())
    }

    /// The messages around an event, as its client sent them.
    fn queue_as_captured(
        &mut self,
        parts: &mut [Part],
        at: usize,
        client: &mut Client,
    ) -> Result<(), EncodeError> {
        let messages = parts[at].item.event.messages().cloned();
        for said in Said::all(messages.unwrap_or_default().as_bytes()) {
            match said {
                Said::Own => {
                    let request = self.own_message(&parts[at].item, client)?;
                    parts[at].request = Some(request);
                }
                Said::Bind(portal) => self.bind_as_captured(portal, parts, client)?,
                Said::Describe(Named::Statement(name)) => drop(client.describe_statement(name)?),
                Said::Describe(Named::Portal(name)) => drop(client.describe_portal(name)?),
                Said::Close(Named::Statement(name)) => {
                    self.statements.remove(&Text::from(name));
                    client.close_statement(name)?;
                }
                Said::Close(Named::Portal(name)) => {
                    self.portals.remove(&Text::from(name));
                    client.close_portal(name)?;
                }
                Said::Flush => client.flush(),
                Said::Sync => drop(client.sync()),
            }
        }
        Ok(())
    }

    /// The message that an event is of.
    fn own_message(&mut self, item: &Item, client: &mut Client) -> Result<RequestId, EncodeError> {
        let event = &item.event;
        let wire = event.wire.as_deref();
        let rows_max = wire.map_or(0, |wire| wire.rows_max);
        match &event.action {
            Action::Simple { sql } | Action::Copy { sql, .. } => {
                self.forget_deallocated(sql);
                client.query(sql.as_bytes())
            }
            Action::Parse { statement, sql } => {
                let prepared = Prepared::of(item);
                let request =
                    client.parse(statement.as_bytes(), sql.as_bytes(), &prepared.types)?;
                self.statements.insert(statement.clone(), prepared);
                Ok(request)
            }
            Action::Execute(bound) => {
                self.forget_deallocated(&bound.sql);
                client.execute(bound.portal.as_bytes(), rows_max)
            }
            Action::Bind(bound) | Action::Fetch(bound) => {
                client.execute(bound.portal.as_bytes(), rows_max)
            }
            Action::Call { function } => call(function, wire, client),
            Action::Connect | Action::Disconnect | Action::Cancel => Ok(client.sync()),
        }
    }

    /// A Bind of a portal, for the first event of the batch that is about it and has none yet.
    fn bind_as_captured(
        &mut self,
        portal: &[u8],
        parts: &mut [Part],
        client: &mut Client,
    ) -> Result<(), EncodeError> {
        for part in parts.iter_mut().filter(|part| !part.is_bound) {
            let event = &part.item.event;
            let (Action::Bind(bound) | Action::Execute(bound)) = &event.action else { continue };
            if bound.portal.as_bytes() != portal {
                continue;
            }
            if !self.statements.get(&bound.statement).is_some_and(|it| it.is_of(&part.item)) {
                // It was prepared before the capture began, or was lost with a connection.
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
        item: &Item,
        client: &mut Client,
    ) -> Result<RequestId, EncodeError> {
        if !statement.is_empty() {
            // The capture does not hold Close messages. To close what does not exist is no error.
            client.close_statement(statement.as_bytes())?;
        }
        let prepared = Prepared::of(item);
        let text = text_of(&item.event, &prepared.sql, client);
        let request = client.parse(statement.as_bytes(), &text, &prepared.types)?;
        self.statements.insert(statement.clone(), prepared);
        Ok(request)
    }

    /// Binds, after preparing if the server has not this text under this name. Gives whether it prepares.
    fn bind(
        &mut self,
        bound: &Bound,
        item: &Item,
        client: &mut Client,
    ) -> Result<(RequestId, bool), EncodeError> {
        let is_same = |prepared: &Prepared| prepared.is_of(item);
        let known = self.statements.get(&bound.statement).is_some_and(is_same);
        // A client that uses the unnamed statement parses it each time, unless the capture shows
        // its Parse messages and has none here.
        let anew = bound.statement.is_empty() && !self.parses_captured;
        let prepares = !known || anew;
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
        client: &mut Client,
    ) -> Result<RequestId, EncodeError> {
        let values = bound.parameters.as_deref().unwrap_or_default();
        let formats = |of: fn(&Wire) -> &[u16]| -> Vec<Format> {
            let codes = event.wire.as_deref().map_or(&[][..], of);
            codes.iter().map(|code| format_of(*code)).collect()
        };
        let request = client.bind_with_formats(
            bound.portal.as_bytes(),
            bound.statement.as_bytes(),
            &formats(|wire| &wire.formats),
            values.iter().map(|value| match value {
                Parameter::Null => None,
                Parameter::Value(text) | Parameter::Truncated(text) => Some(text.as_bytes()),
            }),
            &formats(|wire| &wire.result_formats),
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
}

/// A function call, of which the arguments are known.
fn call(
    function: &Text,
    wire: Option<&Wire>,
    client: &mut Client,
) -> Result<RequestId, EncodeError> {
    let formats = |codes: &[u16]| codes.iter().map(|code| format_of(*code)).collect::<Vec<_>>();
    let arguments = wire.and_then(|wire| wire.arguments.as_deref()).unwrap_or_default();
    client.call_function_with_formats(
        function_oid(function).unwrap_or_default(),
        &wire.map_or_else(Vec::new, |wire| formats(&wire.formats)),
        arguments.iter().map(|value| value.as_ref().map(Text::as_bytes)),
        wire.and_then(|wire| wire.result_formats.first())
            .map_or(Format::Text, |code| format_of(*code)),
    )
}

/// The OID of a called function: a capture of the wire has that for a name.
pub(super) fn function_oid(function: &Text) -> Option<u32> {
    function.to_str()?.parse().ok()
}

/// The text to send. One that was seen on the wire is in the encoding that its session had chosen, and goes
/// as it is; one from a log is in that of the database, and must not choose another.
pub(super) fn text_of<'a>(event: &Event, sql: &'a Text, client: &Client) -> Cow<'a, [u8]> {
    match event.wire {
        Some(_) => Cow::Borrowed(sql.as_bytes()),
        None => encoding::keep(sql.as_bytes(), client.parameter(CLIENT_ENCODING)),
    }
}

/// A code that is neither was refused by the captured server too, so no such value is in a capture.
fn format_of(code: u16) -> Format {
    if code == Format::Binary.code() { Format::Binary } else { Format::Text }
}
