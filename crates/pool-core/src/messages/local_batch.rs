//! Extended-protocol batches that the pooler answers itself: its own commands, a deferred BEGIN,
//! and refused batches.

use howdah_route::RouteCommand;
use howdah_wire::{
    Frame, Frontend,
    backend::{
        Severity, TransactionStatus,
        encode::{self, Bare},
    },
    frontend::{self, DescribeTarget},
};

use crate::{
    messages::{
        gather_buffer::GatherBuffer,
        handling::{PartialMessage, RewriteResult, StopReason},
    },
    prepared::statements::{is_simple, sql_text},
    refusal::ClientRefusal,
    routing::{
        BatchOwner,
        context::{
            RoutingContext, prepared_command, refuse_batch, write_row_and_tag,
            write_row_description,
        },
    },
    state::client::ClientConnection,
};

/// The handler for the messages of a batch that the pooler answers or has refused.
pub(crate) struct LocalBatchHandler<'a, 'r> {
    pub(crate) client: &'a mut ClientConnection,
    pub(crate) routing: &'a mut RoutingContext<'r>,
    pub(crate) to_client: &'a mut GatherBuffer,
    /// The transaction status to report in ReadyForQuery.
    pub(crate) status: TransactionStatus,
}

impl LocalBatchHandler<'_, '_> {
    /// Handles a message of the batch; `None` if the batch has ended and the message is for a
    /// server.
    pub(crate) fn handle(
        &mut self,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> Option<RewriteResult> {
        let batch =
            self.client.routing.as_ref().map_or(BatchOwner::Servers, |routing| routing.batch_owner);
        match (batch, kind) {
            (BatchOwner::Servers, _) => return None,
            (_, Frontend::Sync) => {
                self.finish();
                let status = self.status;
                self.to_client.push_with(|buf| encode::ready_for_query(buf, status));
            }
            (_, Frontend::Terminate) => return Some(RewriteResult::Stop(StopReason::Terminate)),
            (BatchOwner::Refused, _) | (BatchOwner::Pooler, Frontend::Flush) => {}
            (
                BatchOwner::Pooler,
                Frontend::Parse
                | Frontend::Bind
                | Frontend::Describe
                | Frontend::Execute
                | Frontend::Close,
            ) => return Some(self.handle_command(message)),
            (BatchOwner::Pooler, _) => {
                self.finish();
                return None;
            }
        }
        Some(RewriteResult::Consumed)
    }

    fn finish(&mut self) {
        if let Some(routing) = &mut self.client.routing {
            routing.batch_owner = BatchOwner::Servers;
            routing.pending_begin = None;
            routing.portals.clear();
        }
    }

    /// Handles a message of a batch that is a single BEGIN: answers the message, and defers the
    /// BEGIN itself.
    fn handle_begin(&mut self, message: &frontend::FrontendMessage<'_>, body: &[u8]) {
        match message {
            frontend::FrontendMessage::Parse(parse) => {
                self.store_statement(parse.statement, &body[parse.statement.len() + 1..]);
            }
            frontend::FrontendMessage::Bind(_) => self.reply(Bare::BindComplete),
            frontend::FrontendMessage::Describe(target) => {
                if matches!(target, DescribeTarget::Statement(_)) {
                    self.to_client.push_with(|buf| {
                        encode::parameter_description(buf, &[]).expect("an empty list fits");
                    });
                }
                self.reply(Bare::NoData);
            }
            frontend::FrontendMessage::Execute { .. } => {
                let Some(routing) = &mut self.client.routing else { return };
                let Some((text, route)) = routing.pending_begin.clone() else { return };
                routing.session.defer_begin(&route);
                routing.deferred_begin = Some((text, route));
                self.status = TransactionStatus::InTransaction;
                self.to_client.push_with(|buf| {
                    encode::command_complete(buf, b"BEGIN").expect("the text has no zero byte");
                });
            }
            frontend::FrontendMessage::Close(DescribeTarget::Statement(name)) => self.close(name),
            frontend::FrontendMessage::Close(DescribeTarget::Portal(_)) => {
                self.reply(Bare::CloseComplete);
            }
            _ => {}
        }
    }

    fn handle_command(&mut self, message: PartialMessage<'_>) -> RewriteResult {
        if !message.is_complete() {
            return RewriteResult::Stop(StopReason::NeedsMoreInput);
        }
        let frame = Frame { tag: message.header.tag, body: message.body };
        let parsed = match frontend::FrontendMessage::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => {
                return RewriteResult::Stop(StopReason::Fault(ClientRefusal::ProtocolViolation(
                    error.to_string(),
                )));
            }
        };
        if self.client.routing.as_ref().is_some_and(|routing| routing.pending_begin.is_some()) {
            self.handle_begin(&parsed, message.body);
            return RewriteResult::Consumed;
        }
        match parsed {
            frontend::FrontendMessage::Parse(parse) => self.parse(parse.statement, message.body),
            frontend::FrontendMessage::Bind(bind) => self.bind(bind.portal, bind.statement),
            frontend::FrontendMessage::Describe(DescribeTarget::Statement(name)) => {
                match prepared_command(self.client, name) {
                    Some(Ok(command)) => {
                        self.to_client.push_with(|buf| {
                            encode::parameter_description(buf, &[]).expect("an empty list fits");
                        });
                        self.write_columns(&command);
                    }
                    _ => self.reply_missing("prepared statement", name, b"26000"),
                }
            }
            frontend::FrontendMessage::Describe(DescribeTarget::Portal(name)) => {
                match self.portal(name) {
                    Some(command) => self.write_columns(&command),
                    None => self.reply_missing("portal", name, b"34000"),
                }
            }
            frontend::FrontendMessage::Execute { portal, .. } => match self.portal(portal) {
                Some(command) => self.execute(&command),
                None => self.reply_missing("portal", portal, b"34000"),
            },
            frontend::FrontendMessage::Close(DescribeTarget::Statement(name)) => self.close(name),
            frontend::FrontendMessage::Close(DescribeTarget::Portal(name)) => {
                if let Some(routing) = &mut self.client.routing {
                    routing.portals.retain(|(portal, _)| **portal != *name);
                }
                self.reply(Bare::CloseComplete);
            }
            _ => {}
        }
        RewriteResult::Consumed
    }

    fn parse(&mut self, name: &[u8], body: &[u8]) {
        let text = &body[name.len() + 1..];
        let sql = sql_text(text);
        match RouteCommand::read(sql) {
            Some(Ok(_)) => {}
            Some(Err(refusal)) => return refuse_batch(self.client, self.to_client, &refusal),
            None => {
                let refusal = howdah_route::Refusal::MixedBatch;
                return refuse_batch(self.client, self.to_client, &refusal);
            }
        }
        if let Some(routing) = &mut self.client.routing {
            routing.has_commands = true;
        }
        self.store_statement(name, text);
    }

    /// Stores a statement under the client's name. `text` is the body of the Parse message after
    /// the name.
    fn store_statement(&mut self, name: &[u8], text: &[u8]) {
        let statements = &mut self.client.statements;
        if name.is_empty() {
            statements.set_unnamed(text, is_simple(sql_text(text)), None);
        } else if statements.named.contains_key(name) {
            let name = String::from_utf8_lossy(name);
            let text = format!("prepared statement \"{name}\" already exists");
            return self.reply_error(b"42P05", &text);
        } else {
            statements.named.insert(name.into(), self.routing.statements.intern(text, None));
        }
        self.reply(Bare::ParseComplete);
    }

    fn close(&mut self, name: &[u8]) {
        match name {
            b"" => self.client.statements.clear_unnamed(),
            name => drop(self.client.statements.named.remove(name)),
        }
        self.reply(Bare::CloseComplete);
    }

    fn bind(&mut self, portal: &[u8], statement: &[u8]) {
        let Some(Ok(command)) = prepared_command(self.client, statement) else {
            return self.reply_missing("prepared statement", statement, b"26000");
        };
        let Some(routing) = &mut self.client.routing else { return };
        let is_taken = routing.portals.iter().any(|(its, _)| **its == *portal);
        if is_taken && !portal.is_empty() {
            let name = String::from_utf8_lossy(portal);
            return self.reply_error(b"42P03", &format!("cursor \"{name}\" already exists"));
        }
        if !is_taken && routing.portals.len() >= PORTALS_MAX {
            let text = format!("too many portals: a batch can have at most {PORTALS_MAX}");
            return self.reply_error(b"54000", &text);
        }
        routing.portals.retain(|(its, _)| **its != *portal);
        routing.portals.push((portal.into(), command));
        self.reply(Bare::BindComplete);
    }

    fn execute(&mut self, command: &RouteCommand) {
        let router = &self.routing.slot.router;
        let Some(routing) = &mut self.client.routing else { return };
        routing.fixed_route = None;
        match routing.session.execute(router, command) {
            Ok(answer) => self.to_client.push_with(|buf| write_row_and_tag(buf, &answer)),
            Err(refusal) => refuse_batch(self.client, self.to_client, &refusal),
        }
    }

    fn portal(&self, name: &[u8]) -> Option<RouteCommand> {
        let routing = self.client.routing.as_ref()?;
        let found = routing.portals.iter().find(|(portal, _)| **portal == *name);
        found.map(|(_, command)| command.clone())
    }

    fn write_columns(&mut self, command: &RouteCommand) {
        match command.column() {
            Some(column) => self.to_client.push_with(|buf| write_row_description(buf, column)),
            None => self.reply(Bare::NoData),
        }
    }

    fn reply(&mut self, message: Bare) {
        self.to_client.push_with(|buf| encode::bare(buf, message));
    }

    fn reply_missing(&mut self, what: &str, name: &[u8], sqlstate: &[u8; 5]) {
        let name = String::from_utf8_lossy(name);
        self.reply_error(sqlstate, &format!("{what} \"{name}\" does not exist"));
    }

    fn reply_error(&mut self, sqlstate: &[u8; 5], text: &str) {
        self.to_client.push_with(|buf| {
            let fields = encode::essentials(Severity::Error, sqlstate, text.as_bytes());
            encode::error_response(buf, fields).expect("a name on the wire has no zero byte");
        });
        if let Some(routing) = &mut self.client.routing {
            routing.batch_owner = BatchOwner::Refused;
            routing.pending_begin = None;
            routing.portals.clear();
        }
    }
}

/// Maximum number of portals bound to the pooler's commands in one batch.
const PORTALS_MAX: usize = 1000;
