//! Where a client's request goes, before it has a server and while it has one: commands are answered here,
//! and what goes nowhere is refused with the session left as it is.
//!
//! A query string is looked at once. Messages of the extended protocol are looked at together, up to the Sync
//! or Flush that ends them ([`super::ahead`]), because a server is chosen before the first of them goes out;
//! no server says anything before that either, so nobody waits for longer than without us.

use howdah_route::{Answer, Command, NoShardKey, PinScope, Refusal, Request, Role, Route, Shards};
use howdah_wire::{
    Format, Frontend,
    backend::{ErrorField, Field, Severity, TransactionStatus, encode},
};

use super::rewrite::Message;
use crate::{
    client::Client,
    gather::Gather,
    routing::{Batch, Home, Routing, Slot},
    spread::FanOutRequest,
    statements::{Statements, sql_of},
};

/// What a client's messages are judged by, where its database has several servers.
pub(super) struct RoutingContext<'a> {
    pub(super) slot: &'a mut Slot,
    pub(super) home: &'a Home,
    pub(super) statements: &'a Statements,
    /// Another for each client.
    pub(super) seed: u64,
}

/// Whose business a request is.
pub(super) enum Way {
    /// A server's; of which shard and role, the client now says.
    Server,
    /// That is not known before more has come.
    Unknown,
    /// The pooler's, which gives this answer.
    Answered(Answer),
    /// The pooler's: the batch that begins is one of commands.
    Own,
    /// A BEGIN that waits for the next request to say where it goes.
    Begun(Route),
    /// That of servers of several shards.
    Spread(Box<FanOutRequest>),
    /// Nobody's.
    Refused(Refusal),
}

/// What answers of several shards are refused with.
pub(super) const SPREAD: Refusal =
    Refusal::Keyless(NoShardKey::Spread("are not put together with others in one batch"));

impl RoutingContext<'_> {
    /// A query string of a client without a server.
    #[inline]
    pub(super) fn query(&mut self, client: &mut Client, message: Message<'_>) -> Way {
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        let is_whole = message.is_whole();
        let is_command = || is_whole && Command::read(sql).is_some();
        if let Some(routing) = &mut client.routing {
            if let Some(fixed) = routing.fixed(self.slot.edition)
                && !is_command()
            {
                (client.role, client.shard) = fixed;
                routing.looked_at = message.bytes();
                return Way::Server;
            }
        } else if !self.slot.looks && !is_command() {
            return Way::Server;
        }
        self.look_at_query(client, sql, message)
    }

    fn look_at_query(&mut self, client: &mut Client, sql: &[u8], message: Message<'_>) -> Way {
        let routing = self.routing(client);
        let router = &mut self.slot.router;
        let is_whole = message.is_whole();
        if !is_whole || Command::read(sql).is_none() {
            match routing.session.blind(router) {
                Ok(Some(route)) => {
                    let way = self.take(client, &route, message.bytes());
                    self.fix(client, &way);
                    return way;
                }
                Ok(None) if is_whole => {}
                Ok(None) if sql.len() <= router.settings().text_bytes_max => return Way::Unknown,
                Ok(None) => {}
                Err(refusal) => return Way::Refused(refusal),
            }
        }
        match routing.session.simple(router, sql) {
            Ok(Request::Command(answer)) => {
                routing.fixed = None;
                Way::Answered(answer)
            }
            Ok(Request::Route(route)) => {
                if matches!(route.shards, Shards::Many { .. } | Shards::Copy(_)) {
                    return self.spread_query(client, route, sql, message.bytes());
                }
                let waits = route.is_begin && route.shards == Shards::Any;
                if waits
                    && router.settings().shards > 1
                    && self.home.may_begin
                    && message.is_whole()
                {
                    routing.session.begun(&route);
                    return Way::Begun(route);
                }
                self.take(client, &route, message.bytes())
            }
            Err(refusal) => Way::Refused(refusal),
        }
    }

    /// Whether a query string of a client that has a server may not be for that: it is a command, or would go
    /// elsewhere if what is under way ends the transaction.
    #[inline]
    pub(super) fn concerns_query(&self, client: &Client, message: Message<'_>) -> bool {
        if client.routing.as_ref().is_some_and(|routing| routing.looked_at > 0) {
            return false;
        }
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        self.concerns(client) || message.is_whole() && Command::read(sql).is_some()
    }

    /// The same of a message that begins a batch.
    #[inline]
    pub(super) fn concerns_batch(
        &self,
        client: &Client,
        kind: Frontend,
        message: Message<'_>,
    ) -> bool {
        if client.routing.as_ref().is_some_and(|routing| routing.looked_at > 0) {
            return false;
        }
        self.concerns(client) || self.begins_own(client, kind, message)
    }

    /// The same of a message in the middle of a batch: on shards what was not looked at may be for another.
    #[inline]
    pub(super) fn concerns_message(&self, client: &Client) -> bool {
        self.slot.router.settings().shards > 1 && self.concerns(client)
    }

    #[inline]
    fn concerns(&self, client: &Client) -> bool {
        let router = &self.slot.router;
        let is_fixed = self.home.hold == PinScope::Session && router.settings().shards == 1;
        client.routing.as_ref().is_some_and(|routing| {
            routing.looked_at == 0 && !is_fixed && routing.session.depends_on_text(router)
        })
    }

    /// Notes where a client's requests go, whatever they say.
    pub(super) fn fix(&self, client: &mut Client, way: &Way) {
        let fixed = matches!(way, Way::Server).then_some((client.role, client.shard));
        if let Some(routing) = &mut client.routing {
            routing.fixed = fixed;
        }
    }

    /// A query string of a client that has a server, and is in a transaction there.
    pub(super) fn query_linked(&mut self, client: &mut Client, message: Message<'_>) -> Way {
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        let routing = self.routing(client);
        let router = &mut self.slot.router;
        if !message.is_whole() {
            match routing.session.blind(router) {
                Ok(Some(_)) => return Way::Server,
                Ok(None) if sql.len() <= router.settings().text_bytes_max => return Way::Unknown,
                Ok(None) => {}
                Err(refusal) => return Way::Refused(refusal),
            }
        }
        match routing.session.simple(router, sql) {
            Ok(Request::Command(answer)) => Way::Answered(answer),
            Ok(Request::Route(_)) => Way::Server,
            Err(refusal) => Way::Refused(refusal),
        }
    }

    /// A function call: what it does, and where, nobody knows.
    pub(super) fn function_call(&mut self, client: &mut Client, message: Message<'_>) -> Way {
        if client.routing.is_none() && !self.slot.looks {
            return Way::Server;
        }
        let routing = self.routing(client);
        match routing.session.blind(&self.slot.router) {
            Ok(Some(route)) => self.take(client, &route, message.bytes()),
            Ok(None) if self.slot.router.settings().shards == 1 => {
                client.role = crate::ServerRole::Primary;
                Way::Server
            }
            Ok(None) => Way::Refused(Refusal::Keyless(NoShardKey::Function)),
            Err(refusal) => Way::Refused(refusal),
        }
    }

    /// The client's routing, which it has from now on.
    pub(super) fn routing<'c>(&self, client: &'c mut Client) -> &'c mut Routing {
        let Client { routing, own_role, wishes, minds_writes, floors, .. } = client;
        let routing = routing.get_or_insert_with(|| {
            let greeting = self.home.greeting.known();
            let role = *own_role;
            Box::new(Routing::new(self.home.hold, self.seed, role, wishes, greeting.as_deref()))
        });
        routing.follow(self.slot.edition);
        *minds_writes = routing.session.reads_own_writes(&self.slot.router);
        if !*minds_writes {
            *floors = None;
        }
        routing
    }

    /// Has a client go where it was found to be sent, for messages of so many bytes.
    pub(super) fn take(&self, client: &mut Client, route: &Route, bytes: usize) -> Way {
        let shards = self.slot.router.settings().shards;
        client.shard = match route.shards {
            Shards::Any => None,
            Shards::One(shard) if shard < shards => Some(shard),
            // There were more before the settings changed.
            Shards::One(shard) => {
                return Way::Refused(Refusal::NoSuchShard { shard, shards, stays: Some(shard) });
            }
            Shards::Many { .. } | Shards::Copy(_) => return Way::Refused(SPREAD),
        };
        (client.role, client.may_lead) = (route.role.into(), route.may_lead);
        if let Some(routing) = &mut client.routing {
            routing.looked_at = bytes;
            routing.only_asks = false;
        }
        Way::Server
    }

    /// Whether a message that begins a batch is about a command.
    pub(super) fn begins_own(&self, client: &Client, kind: Frontend, message: Message<'_>) -> bool {
        if kind == Frontend::Parse {
            let sql = memchr::memchr(0, message.body).map(|end| sql_of(&message.body[end + 1..]));
            return message.is_whole() && sql.is_some_and(|sql| Command::read(sql).is_some());
        }
        if !client.routing.as_ref().is_some_and(|routing| routing.has_commands) {
            return false;
        }
        let name = match kind {
            Frontend::Bind => message.body.split(|byte| *byte == 0).nth(1),
            Frontend::Describe | Frontend::Close if message.body.first() == Some(&b'S') => {
                Some(sql_of(&message.body[1..]))
            }
            _ => None,
        };
        name.and_then(|name| command_of(client, name)).is_some()
    }
}

/// The command that a client has prepared by a name.
pub(super) fn command_of(client: &Client, name: &[u8]) -> Option<Result<Command, Refusal>> {
    let text = match name {
        b"" => &client.statements.unnamed[..],
        name => &client.statements.named.get(name)?.text[..],
    };
    Command::read(sql_of(text))
}

/// The strictest of two roles, and the one shard of two places.
pub(super) fn both(one: Route, other: Route) -> Result<Route, Refusal> {
    let strictness = |role: Role| match role {
        Role::Any => 0,
        Role::PreferReplica => 1,
        Role::Replica => 2,
        Role::Primary => 3,
    };
    let role = if strictness(one.role) < strictness(other.role) { other.role } else { one.role };
    let shards = match (one.shards, other.shards) {
        (Shards::Any, shards @ (Shards::Any | Shards::One(_)))
        | (shards @ Shards::One(_), Shards::Any) => shards,
        (Shards::One(one), Shards::One(other)) if one == other => Shards::One(one),
        (Shards::One(one), Shards::One(other)) => {
            let shards = vec![one.min(other), one.max(other)];
            return Err(Refusal::SeveralShards { shards });
        }
        (Shards::Many { shards: one, how }, Shards::Many { shards: other, .. }) if one == other => {
            Shards::Many { shards: one, how }
        }
        _ => return Err(SPREAD),
    };
    let may_lead = one.may_lead && other.may_lead;
    Ok(Route { shards, role, may_lead, why: one.why.or(other.why), is_begin: false })
}

/// The answer to a command that came as a query string, without ReadyForQuery.
pub(super) fn write_answer(buf: &mut Vec<u8>, answer: &Answer) {
    if let Some((column, _)) = answer.row {
        write_column(buf, column);
    }
    write_result(buf, answer);
}

/// The only column of a SHOW.
pub(super) fn write_column(buf: &mut Vec<u8>, column: &str) {
    let field = Field {
        name: column.as_bytes(),
        table: 0,
        column: 0,
        type_oid: TEXT,
        type_bytes: -1,
        type_modifier: -1,
        format: Format::Text,
    };
    encode::row_description(buf, [field]).expect(NO_ZERO_BYTE);
}

/// The row, if there is one, and the tag.
pub(super) fn write_result(buf: &mut Vec<u8>, answer: &Answer) {
    if let Some((_, value)) = &answer.row {
        encode::data_row(buf, [Some(value.as_bytes())]).expect("it is short");
    }
    encode::command_complete(buf, answer.tag.as_bytes()).expect(NO_ZERO_BYTE);
}

/// OID of `text`.
const TEXT: u32 = 25;
const NO_ZERO_BYTE: &str = "words of the pooler's hold no zero byte";

/// Why a request goes nowhere, as an error that leaves the session as it is.
pub(super) fn write_refusal(buf: &mut Vec<u8>, refusal: &Refusal) {
    let message = refusal.to_string().replace('\0', " ");
    let sqlstate = refusal.sqlstate();
    let fields = encode::essentials(Severity::Error, &sqlstate, message.as_bytes());
    let hint = refusal.hint().map(|hint| (ErrorField::Hint.code(), hint.as_bytes()));
    encode::error_response(buf, fields.into_iter().chain(hint)).expect(NO_ZERO_BYTE);
}

/// Tells a client that its query string, or the batch that begins, goes nowhere.
pub(super) fn refuse_query(to: &mut Gather, refusal: &Refusal, status: TransactionStatus) {
    to.make(|buf| {
        write_refusal(buf, refusal);
        encode::ready_for_query(buf, status);
    });
}

/// Has a batch be skipped up to its Sync.
pub(super) fn refuse_batch(client: &mut Client, to: &mut Gather, refusal: &Refusal) {
    to.make(|buf| write_refusal(buf, refusal));
    if let Some(routing) = &mut client.routing {
        routing.batch = Batch::Refused;
        routing.begins = None;
        routing.portals.clear();
    }
}
