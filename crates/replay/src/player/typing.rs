//! Parameter types that the capture does not hold: when they are tried, and how.

use howdah_session::{Client, EncodeError, TransactionStatus};
use howdah_traffic::{Action, Bound, Event, Parameter, Text};

use super::{
    Item, Player,
    flight::{Flight, Part},
    messages::text_of,
};
use crate::{
    link::Reply,
    types::{Decision, Probe},
};

/// Name of the statement, the portal and the savepoint of a try.
const NAME: &str = "howdah_types";

/// Events that are looked through for the values of a Parse.
const EVENTS_AHEAD: usize = 64;

impl Player {
    /// Gives the parts types where they need some. A probe, whose messages are in `client` then, if that
    /// has to be found out first.
    pub(super) fn probe_before(
        &mut self,
        parts: &mut [Part],
        client: &mut Client,
    ) -> Option<Box<Probe>> {
        let probe = match self.probe.take() {
            Some(probe) => probe,
            None => self.assign_types(parts)?,
        };
        match self.queue_probe(&probe, parts, client) {
            Ok(()) => Some(probe),
            Err(_) => {
                // What was queued before is answered, for no event.
                client.sync();
                self.types.give_up(&probe);
                None
            }
        }
    }

    fn assign_types(&self, parts: &mut [Part]) -> Option<Box<Probe>> {
        let executions = parts.iter().filter(|part| part.item.event.action.kind().is_execution());
        let is_in_block = self.transaction == TransactionStatus::InTransaction;
        let is_fragile = is_in_block || executions.count() > 1;
        let can_try = is_in_block || self.transaction == TransactionStatus::Idle;
        for at in 0..parts.len() {
            let event = &parts[at].item.event;
            if event.wire.is_some() {
                continue;
            }
            let types = match &event.action {
                Action::Bind(bound) | Action::Execute(bound) => match values_of(bound) {
                    Some(values) => self.types.decide(event, values, is_fragile, can_try),
                    None => continue,
                },
                Action::Parse { statement, sql } => {
                    let items = parts[at + 1..].iter().map(|part| &part.item);
                    let mut items = items.chain(self.queue.iter().take(EVENTS_AHEAD));
                    match items.find_map(|item| values_for(item, statement, sql)) {
                        Some((event, values)) => {
                            self.types.decide(event, values, is_fragile, can_try)
                        }
                        None if sql.as_bytes().contains(&b'$') => {
                            Decision::Send(self.types.known(event))
                        }
                        None => continue,
                    }
                }
                _ => continue,
            };
            match types {
                Decision::Send(types) => parts[at].item.types = types,
                Decision::Try(probe) => return Some(probe),
            }
        }
        None
    }

    /// Parse, Describe and Bind, which leave nothing behind.
    fn queue_probe(
        &self,
        probe: &Probe,
        parts: &[Part],
        client: &mut Client,
    ) -> Result<(), EncodeError> {
        let name = NAME.as_bytes();
        let is_in_block = self.transaction == TransactionStatus::InTransaction;
        if is_in_block {
            client.query(format!("savepoint {NAME}").as_bytes())?;
        }
        let text = match parts.first() {
            Some(part) => text_of(&part.item.event, &probe.sql, client),
            None => probe.sql.as_bytes().into(),
        };
        client.parse(name, &text, &probe.types())?;
        client.describe_statement(name)?;
        let values = probe.values.iter().map(|value| match value {
            Parameter::Null => None,
            Parameter::Value(text) | Parameter::Truncated(text) => Some(text.as_bytes()),
        });
        client.bind_with_formats(name, name, &[], values, &[])?;
        client.sync();
        // After its own Sync, so that it happens even if one of those before it failed.
        client.close_statement(name)?;
        client.sync();
        if is_in_block {
            client.query(
                format!("rollback to savepoint {NAME}; release savepoint {NAME}").as_bytes(),
            )?;
        }
        Ok(())
    }

    /// Takes in what the server made of a try.
    pub(super) fn heard_of_probe(&mut self, reply: Reply, client: &Client) {
        let probe = self.flight.as_mut().and_then(|flight| flight.probe.as_mut());
        let Some((_, result)) = probe else { return };
        match reply {
            Reply::ParameterTypes(types) => result.types = types,
            Reply::Bound => result.is_bound = true,
            Reply::Failed(failure) => {
                result.failure.get_or_insert(failure);
            }
            Reply::Ready(status) => {
                self.transaction = status;
                if status == TransactionStatus::Idle {
                    self.portals.clear();
                }
                if client.ready_owed() > 0 {
                    return;
                }
                let flight = self.flight.take();
                if let Some((probe, result)) = flight.and_then(|flight| flight.probe) {
                    self.probe = self.types.conclude(probe, &result);
                }
            }
            Reply::LoggedIn | Reply::Parsed | Reply::Rows(_) | Reply::CopyIn => {}
        }
    }

    /// Puts a batch back into the queue whose first execution was refused for want of types, to send it
    /// again with types. Gives it back if that is not what happened, or did before.
    pub(super) fn retry_with_types(&mut self, flight: Flight) -> Option<Flight> {
        // In a transaction block the refusal has aborted it.
        let Some(failure) = flight.failure.as_ref().filter(|_| !self.is_in_transaction()) else {
            return Some(flight);
        };
        let executes = |part: &&Part| part.item.event.action.kind().is_execution();
        let Some(first) = flight.parts.iter().find(executes) else {
            // A Parse of its own: its Execute prepares again, with types.
            for part in &flight.parts {
                if part.item.event.wire.is_none() && part.item.types.is_none() {
                    self.types.refused(&part.item.event, failure);
                }
            }
            return Some(flight);
        };
        let Item { event, types, is_retried, .. } = &first.item;
        let has_values =
            matches!(&event.action, Action::Execute(bound) if values_of(bound).is_some());
        let was_sent_without = event.wire.is_none() && types.is_none() && has_values;
        // What has failed in production too is no want of types.
        let is_new = !*is_retried && !first.is_bind_done && !event.outcome.failed();
        if !was_sent_without || !is_new || !self.types.refused(event, failure) {
            return Some(flight);
        }
        let mut parts = flight.parts;
        for part in &mut parts {
            part.item.is_retried = true;
        }
        self.put_back_parts(parts);
        None
    }

    /// Puts a batch back to where it was taken from.
    pub(super) fn put_back_parts(&mut self, parts: Vec<Part>) {
        for part in parts.into_iter().rev() {
            self.queue.push_front(part.item);
        }
    }
}

/// Values that types can be deduced from.
fn values_of(bound: &Bound) -> Option<&[Parameter]> {
    bound.parameters.as_deref().filter(|values| !values.is_empty())
}

/// The values of an execution of this prepared statement.
fn values_for<'a>(
    item: &'a Item,
    name: &Text,
    text: &Text,
) -> Option<(&'a Event, &'a [Parameter])> {
    match &item.event.action {
        Action::Bind(bound) | Action::Execute(bound)
            if bound.statement == *name && bound.sql == *text =>
        {
            values_of(bound).map(|values| (&item.event, values))
        }
        _ => None,
    }
}
