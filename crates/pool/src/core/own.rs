//! Batches of the extended protocol that the pooler answers itself: commands, and what was refused.

use howdah_route::Command;
use howdah_wire::{
    Frame, Frontend,
    backend::{
        Severity, TransactionStatus,
        encode::{self, Bare},
    },
    frontend::{self, Target},
};

use super::{
    rewrite::{Message, Rewritten},
    route::{RoutingContext, command_of, refuse_batch, write_column, write_result},
    upstream::Stop,
};
use crate::{
    client::Client,
    gather::Gather,
    refusal::Refusal,
    routing::Batch,
    statements::{is_plain, sql_of},
};

/// Who answers a batch.
pub(super) struct Own<'a, 'r> {
    pub(super) client: &'a mut Client,
    pub(super) roads: &'a mut RoutingContext<'r>,
    pub(super) to_client: &'a mut Gather,
    /// What ReadyForQuery says.
    pub(super) status: TransactionStatus,
}

impl Own<'_, '_> {
    /// A message of the batch; `None` if it is of the next, which is for servers.
    pub(super) fn judge(&mut self, kind: Frontend, message: Message<'_>) -> Option<Rewritten> {
        let batch = self.client.routing.as_ref().map_or(Batch::Servers, |routing| routing.batch);
        match (batch, kind) {
            (Batch::Servers, _) => return None,
            (_, Frontend::Sync) => {
                self.end();
                let status = self.status;
                self.to_client.make(|buf| encode::ready_for_query(buf, status));
            }
            (_, Frontend::Terminate) => return Some(Rewritten::Stop(Stop::Goodbye)),
            (Batch::Refused, _) | (Batch::Own, Frontend::Flush) => {}
            (
                Batch::Own,
                Frontend::Parse
                | Frontend::Bind
                | Frontend::Describe
                | Frontend::Execute
                | Frontend::Close,
            ) => return Some(self.answer(message)),
            (Batch::Own, _) => {
                self.end();
                return None;
            }
        }
        Some(Rewritten::Whole)
    }

    fn end(&mut self) {
        if let Some(routing) = &mut self.client.routing {
            routing.batch = Batch::Servers;
            routing.begins = None;
            routing.portals.clear();
        }
    }

    /// A message of a batch that is a BEGIN and nothing else: it is answered, and kept.
    fn begin(&mut self, message: &frontend::Message<'_>, body: &[u8]) {
        match message {
            frontend::Message::Parse(parse) => {
                self.keep(parse.statement, &body[parse.statement.len() + 1..]);
            }
            frontend::Message::Bind(_) => self.says(Bare::BindComplete),
            frontend::Message::Describe(target) => {
                if matches!(target, Target::Statement(_)) {
                    self.to_client.make(|buf| {
                        encode::parameter_description(buf, &[]).expect("there are none");
                    });
                }
                self.says(Bare::NoData);
            }
            frontend::Message::Execute { .. } => {
                let Some(routing) = &mut self.client.routing else { return };
                let Some((text, route)) = routing.begins.clone() else { return };
                routing.session.begun(&route);
                routing.begun = Some((text, route));
                self.status = TransactionStatus::InTransaction;
                self.to_client.make(|buf| {
                    encode::command_complete(buf, b"BEGIN").expect("it holds no zero byte");
                });
            }
            frontend::Message::Close(Target::Statement(name)) => self.close(name),
            frontend::Message::Close(Target::Portal(_)) => self.says(Bare::CloseComplete),
            _ => {}
        }
    }

    fn answer(&mut self, message: Message<'_>) -> Rewritten {
        if !message.is_whole() {
            return Rewritten::Stop(Stop::Starved);
        }
        let frame = Frame { tag: message.header.tag, body: message.body };
        let parsed = match frontend::Message::parse(frame) {
            Ok(parsed) => parsed,
            Err(error) => {
                return Rewritten::Stop(Stop::Fault(Refusal::Protocol(error.to_string())));
            }
        };
        if self.client.routing.as_ref().is_some_and(|routing| routing.begins.is_some()) {
            self.begin(&parsed, message.body);
            return Rewritten::Whole;
        }
        match parsed {
            frontend::Message::Parse(parse) => self.parse(parse.statement, message.body),
            frontend::Message::Bind(bind) => self.bind(bind.portal, bind.statement),
            frontend::Message::Describe(Target::Statement(name)) => {
                match command_of(self.client, name) {
                    Some(Ok(command)) => {
                        self.to_client.make(|buf| {
                            encode::parameter_description(buf, &[]).expect("there are none");
                        });
                        self.columns(&command);
                    }
                    _ => self.misses("prepared statement", name, b"26000"),
                }
            }
            frontend::Message::Describe(Target::Portal(name)) => match self.portal(name) {
                Some(command) => self.columns(&command),
                None => self.misses("portal", name, b"34000"),
            },
            frontend::Message::Execute { portal, .. } => match self.portal(portal) {
                Some(command) => self.execute(&command),
                None => self.misses("portal", portal, b"34000"),
            },
            frontend::Message::Close(Target::Statement(name)) => self.close(name),
            frontend::Message::Close(Target::Portal(name)) => {
                if let Some(routing) = &mut self.client.routing {
                    routing.portals.retain(|(portal, _)| **portal != *name);
                }
                self.says(Bare::CloseComplete);
            }
            _ => {}
        }
        Rewritten::Whole
    }

    fn parse(&mut self, name: &[u8], body: &[u8]) {
        let text = &body[name.len() + 1..];
        let sql = sql_of(text);
        match Command::read(sql) {
            Some(Ok(_)) => {}
            Some(Err(refusal)) => return refuse_batch(self.client, self.to_client, &refusal),
            None => {
                let refusal = howdah_route::Refusal::NotAlone;
                return refuse_batch(self.client, self.to_client, &refusal);
            }
        }
        if let Some(routing) = &mut self.client.routing {
            routing.has_commands = true;
        }
        self.keep(name, text);
    }

    /// Takes what a Parse has behind its name for the client's statement of that name.
    fn keep(&mut self, name: &[u8], text: &[u8]) {
        let statements = &mut self.client.statements;
        if name.is_empty() {
            statements.set_unnamed(text, is_plain(sql_of(text)), None);
        } else if statements.named.contains_key(name) {
            let name = String::from_utf8_lossy(name);
            let text = format!("prepared statement \"{name}\" already exists");
            return self.fails(b"42P05", &text);
        } else {
            statements.named.insert(name.into(), self.roads.statements.intern(text, None));
        }
        self.says(Bare::ParseComplete);
    }

    fn close(&mut self, name: &[u8]) {
        match name {
            b"" => self.client.statements.drop_unnamed(),
            name => drop(self.client.statements.named.remove(name)),
        }
        self.says(Bare::CloseComplete);
    }

    fn bind(&mut self, portal: &[u8], statement: &[u8]) {
        let Some(Ok(command)) = command_of(self.client, statement) else {
            return self.misses("prepared statement", statement, b"26000");
        };
        let Some(routing) = &mut self.client.routing else { return };
        let is_taken = routing.portals.iter().any(|(its, _)| **its == *portal);
        if is_taken && !portal.is_empty() || routing.portals.len() >= PORTALS_MAX {
            let name = String::from_utf8_lossy(portal);
            return self.fails(b"42P03", &format!("cursor \"{name}\" already exists"));
        }
        routing.portals.retain(|(its, _)| **its != *portal);
        routing.portals.push((portal.into(), command));
        self.says(Bare::BindComplete);
    }

    fn execute(&mut self, command: &Command) {
        let router = &self.roads.slot.router;
        let Some(routing) = &mut self.client.routing else { return };
        routing.fixed = None;
        match routing.session.execute(router, command) {
            Ok(answer) => self.to_client.make(|buf| write_result(buf, &answer)),
            Err(refusal) => refuse_batch(self.client, self.to_client, &refusal),
        }
    }

    fn portal(&self, name: &[u8]) -> Option<Command> {
        let routing = self.client.routing.as_ref()?;
        let found = routing.portals.iter().find(|(portal, _)| **portal == *name);
        found.map(|(_, command)| command.clone())
    }

    fn columns(&mut self, command: &Command) {
        match command.column() {
            Some(column) => self.to_client.make(|buf| write_column(buf, column)),
            None => self.says(Bare::NoData),
        }
    }

    fn says(&mut self, message: Bare) {
        self.to_client.make(|buf| encode::bare(buf, message));
    }

    fn misses(&mut self, what: &str, name: &[u8], sqlstate: &[u8; 5]) {
        let name = String::from_utf8_lossy(name);
        self.fails(sqlstate, &format!("{what} \"{name}\" does not exist"));
    }

    fn fails(&mut self, sqlstate: &[u8; 5], text: &str) {
        self.to_client.make(|buf| {
            let fields = encode::essentials(Severity::Error, sqlstate, text.as_bytes());
            encode::error_response(buf, fields).expect("a name on the wire holds no zero byte");
        });
        if let Some(routing) = &mut self.client.routing {
            routing.batch = Batch::Refused;
            routing.begins = None;
            routing.portals.clear();
        }
    }
}

/// Portals of commands in one batch.
const PORTALS_MAX: usize = 1000;
