//! Decides when to try parameter types that the capture lacks, and sends the trials.

use howdah_session::{ClientSession, EncodeError, TransactionStatus};
use howdah_traffic::{Action, Bound, Event, Parameter, Text};

use super::{
    Player, ScheduledEvent,
    in_flight::{BatchPart, InFlightBatch},
    messages::statement_text,
};
use crate::{
    link::Reply,
    types::{Decision, TypeTrial},
};

/// Name of the statement, the portal and the savepoint of a trial.
const TRIAL_NAME: &str = "howdah_types";

/// Maximum number of queued events that are searched for values bound to a parsed statement.
const EVENTS_AHEAD_MAX: usize = 64;

impl Player {
    /// Assigns types to the parts where they are needed. If a trial must decide that first, queues
    /// its messages in `client` and returns it.
    pub(super) fn prepare_types(
        &mut self,
        parts: &mut [BatchPart],
        client: &mut ClientSession,
    ) -> Option<Box<TypeTrial>> {
        let probe = match self.trial.take() {
            Some(probe) => probe,
            None => self.assign_types(parts)?,
        };
        match self.queue_trial(&probe, parts, client) {
            Ok(()) => Some(probe),
            Err(_) => {
                // The replies to the messages queued so far belong to no event.
                client.sync();
                self.types.mark_untypable(&probe);
                None
            }
        }
    }

    fn assign_types(&self, parts: &mut [BatchPart]) -> Option<Box<TypeTrial>> {
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
                Action::Bind(bound) | Action::Execute(bound) => match parameter_values(bound) {
                    Some(values) => self.types.decide(event, values, is_fragile, can_try),
                    None => continue,
                },
                Action::Parse { statement, sql } => {
                    let items = parts[at + 1..].iter().map(|part| &part.item);
                    let mut items = items.chain(self.queue.iter().take(EVENTS_AHEAD_MAX));
                    match items.find_map(|item| values_for(item, statement, sql)) {
                        Some((event, values)) => {
                            self.types.decide(event, values, is_fragile, can_try)
                        }
                        None if sql.as_bytes().contains(&b'$') => {
                            Decision::Send(self.types.known_types(event))
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

    /// Queues the messages of a trial: Parse, Describe and Bind, which have no lasting effect. In a
    /// transaction, a savepoint encloses them.
    fn queue_trial(
        &self,
        probe: &TypeTrial,
        parts: &[BatchPart],
        client: &mut ClientSession,
    ) -> Result<(), EncodeError> {
        let name = TRIAL_NAME.as_bytes();
        let is_in_block = self.transaction == TransactionStatus::InTransaction;
        if is_in_block {
            client.query(format!("savepoint {TRIAL_NAME}").as_bytes())?;
        }
        let text = match parts.first() {
            Some(part) => statement_text(&part.item.event, probe.sql.as_bytes(), client),
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
        // Sent after a separate Sync, so that the statement is closed even if a previous message
        // failed.
        client.close_statement(name)?;
        client.sync();
        if is_in_block {
            client.query(
                format!("rollback to savepoint {TRIAL_NAME}; release savepoint {TRIAL_NAME}")
                    .as_bytes(),
            )?;
        }
        Ok(())
    }

    /// Records a server's reply to the trial in flight. The last reply completes the trial, whose
    /// result may require another one.
    pub(super) fn handle_trial_reply(&mut self, reply: Reply, client: &ClientSession) {
        let probe = self.in_flight.as_mut().and_then(|flight| flight.trial.as_mut());
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
                    self.messages.portals.clear();
                }
                if client.pending_ready_count() > 0 {
                    return;
                }
                let flight = self.in_flight.take();
                if let Some((probe, result)) = flight.and_then(|flight| flight.trial) {
                    self.trial = self.types.record_result(probe, &result);
                }
            }
            Reply::LoggedIn | Reply::Parsed | Reply::Result(_) | Reply::Rows(_) | Reply::CopyIn => {
            }
        }
    }

    /// Returns a batch to the queue if its first execution was refused because of missing types, so
    /// that it is sent again with types. Otherwise, or if it is already the second attempt, returns
    /// the batch to the caller.
    pub(super) fn retry_with_types(&mut self, flight: InFlightBatch) -> Option<InFlightBatch> {
        // In a transaction block, the refusal has already aborted the transaction.
        let Some(failure) = flight.failure.as_ref().filter(|_| !self.is_in_transaction()) else {
            return Some(flight);
        };
        let executes = |part: &&BatchPart| part.item.event.action.kind().is_execution();
        let Some(first) = flight.parts.iter().find(executes) else {
            // A Parse without an execution: its Execute prepares again, with types.
            for part in &flight.parts {
                if part.item.event.wire.is_none() && part.item.types.is_none() {
                    self.types.record_refusal(&part.item.event, failure);
                }
            }
            return Some(flight);
        };
        let ScheduledEvent { event, types, is_retried, .. } = &first.item;
        let has_values =
            matches!(&event.action, Action::Execute(bound) if parameter_values(bound).is_some());
        let was_sent_without = event.wire.is_none() && types.is_none() && has_values;
        // A statement that also failed when captured does not fail because of missing types.
        let is_new = !*is_retried && !first.is_bind_done && !event.outcome.failed();
        if !was_sent_without || !is_new || !self.types.record_refusal(event, failure) {
            return Some(flight);
        }
        let mut parts = flight.parts;
        for part in &mut parts {
            part.item.is_retried = true;
        }
        self.requeue_parts(parts);
        None
    }

    /// Returns a batch to the front of the queue.
    pub(super) fn requeue_parts(&mut self, parts: Vec<BatchPart>) {
        for part in parts.into_iter().rev() {
            self.queue.push_front(part.item);
        }
    }
}

/// Returns the bound values, from which types can be deduced; `None` if there are none.
fn parameter_values(bound: &Bound) -> Option<&[Parameter]> {
    bound.parameters.as_deref().filter(|values| !values.is_empty())
}

/// Returns the values with which the event executes this prepared statement, if it does.
fn values_for<'a>(
    item: &'a ScheduledEvent,
    name: &Text,
    text: &Text,
) -> Option<(&'a Event, &'a [Parameter])> {
    match &item.event.action {
        Action::Bind(bound) | Action::Execute(bound)
            if bound.statement == *name && bound.sql == *text =>
        {
            parameter_values(bound).map(|values| (&*item.event, values))
        }
        _ => None,
    }
}
