//! Routes a client's requests, both while it has no server and while it has one. Answers the
//! pooler's own commands, and refuses requests that cannot be routed; a refusal leaves the session
//! unchanged.
//!
//! A query string is analyzed as soon as it arrives. Extended-protocol messages are analyzed
//! together, up to the next Sync or Flush ([`crate::messages::batch_plan`]), because a server
//! must be chosen before the first of them is sent. A server need not reply earlier either, so
//! clients cannot depend on it.

use howdah_route::{
    CommandAnswer, NoShardKey, PinScope, Refusal, Route, RouteCommand, RouteRole, RoutedRequest,
    ShardTarget,
};
use howdah_wire::{
    Frontend, ValueFormat,
    backend::{ErrorField, FieldDescription, Severity, TransactionStatus, encode},
};

use crate::{
    fan_out::active::FanOutRequest,
    messages::{gather_buffer::GatherBuffer, handling::PartialMessage},
    prepared::statements::{StatementRegistry, sql_text},
    routing::{BatchOwner, ClientRouting, DatabaseRouter, PoolRouting},
    state::client::ClientConnection,
};

/// The router and settings needed to route one client's messages.
pub(crate) struct RoutingContext<'a> {
    pub(crate) slot: &'a mut DatabaseRouter,
    pub(crate) pool: &'a PoolRouting,
    pub(crate) statements: &'a StatementRegistry,
    /// Seed for random shard choices, different for each connected client.
    pub(crate) seed: u64,
}

/// The routing decision for a request: where it is processed.
pub(crate) enum Dispatch {
    /// On a server; the required shard and role are now stored in the client.
    Server,
    /// Undecided: more input is needed.
    NeedsMoreInput,
    /// In the pooler, with this answer.
    Answered(CommandAnswer),
    /// In the pooler: the batch consists of the pooler's own commands or a BEGIN to defer.
    LocalBatch,
    /// In the pooler for now: a BEGIN that waits until the next request determines its shard.
    DeferredBegin(Route),
    /// On servers of several shards.
    FanOut(Box<FanOutRequest>),
    /// Nowhere: the request is refused.
    Refused(Refusal),
}

/// The error for a fan-out request mixed with other requests.
pub(crate) const FAN_OUT_IN_BATCH: Refusal = Refusal::UnknownShard(NoShardKey::FanOutNotAllowed(
    "cannot be combined with other requests in one batch",
));

impl RoutingContext<'_> {
    /// Dispatches a query string of a client without a server.
    #[inline]
    pub(crate) fn dispatch_query(
        &mut self,
        client: &mut ClientConnection,
        message: PartialMessage<'_>,
    ) -> Dispatch {
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        let is_whole = message.is_complete();
        let is_command = || is_whole && RouteCommand::read(sql).is_some();
        if let Some(routing) = &mut client.routing {
            if let Some(fixed) = routing.fixed_route(self.slot.edition)
                && !is_command()
            {
                (client.member.role, client.member.shard) = fixed;
                routing.inspected_bytes = message.total_bytes();
                return Dispatch::Server;
            }
        } else if !self.slot.inspects_statements && !is_command() {
            return Dispatch::Server;
        }
        self.dispatch_query_by_text(client, sql, message)
    }

    fn dispatch_query_by_text(
        &mut self,
        client: &mut ClientConnection,
        sql: &[u8],
        message: PartialMessage<'_>,
    ) -> Dispatch {
        let routing = self.client_routing(client);
        let router = &mut self.slot.router;
        let is_whole = message.is_complete();
        if !is_whole || RouteCommand::read(sql).is_none() {
            match routing.session.route_without_text(router) {
                Ok(Some(route)) => {
                    let dispatch = self.apply_route(client, &route, message.total_bytes());
                    self.cache_fixed_route(client, &dispatch);
                    return dispatch;
                }
                Ok(None) if is_whole => {}
                Ok(None) if sql.len() <= router.settings().text_bytes_max => {
                    return Dispatch::NeedsMoreInput;
                }
                Ok(None) => {}
                Err(refusal) => return Dispatch::Refused(refusal),
            }
        }
        match routing.session.simple(router, sql) {
            Ok(RoutedRequest::Command(answer)) => {
                routing.fixed_route = None;
                Dispatch::Answered(answer)
            }
            Ok(RoutedRequest::Route(route)) => {
                if matches!(route.shards, ShardTarget::Many { .. } | ShardTarget::Copy(_)) {
                    return self.plan_query_fan_out(client, route, sql, message.total_bytes());
                }
                let can_defer = route.is_begin && route.shards == ShardTarget::Any;
                if can_defer
                    && router.settings().shards > 1
                    && self.pool.can_defer_begin
                    && message.is_complete()
                {
                    routing.session.defer_begin(&route);
                    return Dispatch::DeferredBegin(route);
                }
                self.apply_route(client, &route, message.total_bytes())
            }
            Err(refusal) => Dispatch::Refused(refusal),
        }
    }

    /// Whether a query string of a client that has a server must be routed: it is one of the
    /// pooler's commands, or its destination depends on its text, in case an outstanding request
    /// ends the transaction.
    #[inline]
    pub(crate) fn query_needs_routing(
        &self,
        client: &ClientConnection,
        message: PartialMessage<'_>,
    ) -> bool {
        if client.routing.as_ref().is_some_and(|routing| routing.inspected_bytes > 0) {
            return false;
        }
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        self.depends_on_text(client) || message.is_complete() && RouteCommand::read(sql).is_some()
    }

    /// Like [`RoutingContext::query_needs_routing`], for a message that starts a batch.
    #[inline]
    pub(crate) fn batch_needs_routing(
        &self,
        client: &ClientConnection,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> bool {
        if client.routing.as_ref().is_some_and(|routing| routing.inspected_bytes > 0) {
            return false;
        }
        self.depends_on_text(client) || self.starts_local_batch(client, kind, message)
    }

    /// Whether a message inside a batch must be routed: if there are several shards, the part that
    /// was not analyzed yet may belong to another one.
    #[inline]
    pub(crate) fn message_needs_routing(&self, client: &ClientConnection) -> bool {
        self.slot.router.settings().shards > 1 && self.depends_on_text(client)
    }

    #[inline]
    fn depends_on_text(&self, client: &ClientConnection) -> bool {
        let router = &self.slot.router;
        let is_fixed = self.pool.pin_scope == PinScope::Session && router.settings().shards == 1;
        client.routing.as_ref().is_some_and(|routing| {
            routing.inspected_bytes == 0 && !is_fixed && routing.session.depends_on_text(router)
        })
    }

    /// Caches the route of a client whose requests all have the same destination, independent of
    /// their text.
    pub(crate) fn cache_fixed_route(&self, client: &mut ClientConnection, dispatch: &Dispatch) {
        let fixed = matches!(dispatch, Dispatch::Server)
            .then_some((client.member.role, client.member.shard));
        if let Some(routing) = &mut client.routing {
            routing.fixed_route = fixed;
        }
    }

    /// Dispatches a query string of a client that keeps its server, for example because it is in a
    /// transaction.
    pub(crate) fn dispatch_linked_query(
        &mut self,
        client: &mut ClientConnection,
        message: PartialMessage<'_>,
    ) -> Dispatch {
        let sql = message.body.strip_suffix(b"\0").unwrap_or(message.body);
        let routing = self.client_routing(client);
        let router = &mut self.slot.router;
        if !message.is_complete() {
            match routing.session.route_without_text(router) {
                Ok(Some(_)) => return Dispatch::Server,
                Ok(None) if sql.len() <= router.settings().text_bytes_max => {
                    return Dispatch::NeedsMoreInput;
                }
                Ok(None) => {}
                Err(refusal) => return Dispatch::Refused(refusal),
            }
        }
        match routing.session.simple(router, sql) {
            Ok(RoutedRequest::Command(answer)) => Dispatch::Answered(answer),
            Ok(RoutedRequest::Route(_)) => Dispatch::Server,
            Err(refusal) => Dispatch::Refused(refusal),
        }
    }

    /// Dispatches a FunctionCall, whose effect is unknown. Unless the session's settings determine
    /// its route, it goes to the primary, or is refused if there are several shards.
    pub(crate) fn dispatch_function_call(
        &mut self,
        client: &mut ClientConnection,
        message: PartialMessage<'_>,
    ) -> Dispatch {
        if client.routing.is_none() && !self.slot.inspects_statements {
            return Dispatch::Server;
        }
        let routing = self.client_routing(client);
        match routing.session.route_without_text(&self.slot.router) {
            Ok(Some(route)) => self.apply_route(client, &route, message.total_bytes()),
            Ok(None) if self.slot.router.settings().shards == 1 => {
                client.member.role = crate::TargetRole::Primary;
                Dispatch::Server
            }
            Ok(None) => Dispatch::Refused(Refusal::UnknownShard(NoShardKey::Function)),
            Err(refusal) => Dispatch::Refused(refusal),
        }
    }

    /// Returns the client's routing state, created if necessary and updated to the current
    /// settings. Also updates whether the client reads its own writes.
    pub(crate) fn client_routing<'c>(
        &self,
        client: &'c mut ClientConnection,
    ) -> &'c mut ClientRouting {
        let ClientConnection { routing, parameters, member, .. } = client;
        let routing = routing.get_or_insert_with(|| {
            let greeting = self.pool.welcome.parameters();
            Box::new(ClientRouting::new(
                self.pool.pin_scope,
                self.seed,
                member.requested_role,
                parameters,
                greeting.as_deref(),
            ))
        });
        routing.update_edition(self.slot.edition);
        member.has_read_your_writes = routing.session.reads_your_writes(&self.slot.router);
        if !member.has_read_your_writes {
            member.causal_token = None;
        }
        routing
    }

    /// Stores a route in the client, for the next `bytes` bytes of its input. Refuses a route to
    /// several shards, or to one that does not exist.
    pub(crate) fn apply_route(
        &self,
        client: &mut ClientConnection,
        route: &Route,
        bytes: usize,
    ) -> Dispatch {
        let shards = self.slot.router.settings().shards;
        client.member.shard = match route.shards {
            ShardTarget::Any => None,
            ShardTarget::One(shard) if shard < shards => Some(shard),
            // The session selected a shard that no longer exists, because the settings have
            // changed.
            ShardTarget::One(shard) => {
                return Dispatch::Refused(Refusal::ShardGone { shard, shards });
            }
            ShardTarget::Many { .. } | ShardTarget::Copy(_) => {
                return Dispatch::Refused(FAN_OUT_IN_BATCH);
            }
        };
        (client.member.role, client.member.can_use_primary) =
            (route.role.into(), route.may_use_primary);
        if let Some(routing) = &mut client.routing {
            routing.inspected_bytes = bytes;
            routing.is_describe_only = false;
        }
        Dispatch::Server
    }

    /// Whether a message that starts a batch refers to one of the pooler's own commands.
    pub(crate) fn starts_local_batch(
        &self,
        client: &ClientConnection,
        kind: Frontend,
        message: PartialMessage<'_>,
    ) -> bool {
        if kind == Frontend::Parse {
            let sql = memchr::memchr(0, message.body).map(|end| sql_text(&message.body[end + 1..]));
            return message.is_complete()
                && sql.is_some_and(|sql| RouteCommand::read(sql).is_some());
        }
        if !client.routing.as_ref().is_some_and(|routing| routing.has_commands) {
            return false;
        }
        let name = match kind {
            Frontend::Bind => message.body.split(|byte| *byte == 0).nth(1),
            Frontend::Describe | Frontend::Close if message.body.first() == Some(&b'S') => {
                Some(sql_text(&message.body[1..]))
            }
            _ => None,
        };
        name.and_then(|name| prepared_command(client, name)).is_some()
    }
}

/// Returns the pooler's own command that a client has prepared under a name, or the reason why it
/// is invalid; `None` for other statements.
pub(crate) fn prepared_command(
    client: &ClientConnection,
    name: &[u8],
) -> Option<Result<RouteCommand, Refusal>> {
    let text = match name {
        b"" => &client.statements.unnamed[..],
        name => &client.statements.named.get(name)?.text[..],
    };
    RouteCommand::read(sql_text(text))
}

/// Combines the routes of two messages in a batch: the stricter role, and a shard that suits both.
/// Refuses the batch if no shard suits both.
pub(crate) fn combine_routes(one: Route, other: Route) -> Result<Route, Refusal> {
    let strictness = |role: RouteRole| match role {
        RouteRole::Any => 0,
        RouteRole::PreferReplica => 1,
        RouteRole::Replica => 2,
        RouteRole::Primary => 3,
    };
    let role = if strictness(one.role) < strictness(other.role) { other.role } else { one.role };
    let shards = match (one.shards, other.shards) {
        (ShardTarget::Any, shards @ (ShardTarget::Any | ShardTarget::One(_)))
        | (shards @ ShardTarget::One(_), ShardTarget::Any) => shards,
        (ShardTarget::One(one), ShardTarget::One(other)) if one == other => ShardTarget::One(one),
        (ShardTarget::One(one), ShardTarget::One(other)) => {
            let shards = vec![one.min(other), one.max(other)];
            return Err(Refusal::SeveralShards { shards });
        }
        (
            ShardTarget::Many { shards: one, fan_out: how },
            ShardTarget::Many { shards: other, .. },
        ) if one == other => ShardTarget::Many { shards: one, fan_out: how },
        _ => return Err(FAN_OUT_IN_BATCH),
    };
    let can_use_primary = one.may_use_primary && other.may_use_primary;
    Ok(Route {
        shards,
        role,
        may_use_primary: can_use_primary,
        primary_reason: one.primary_reason.or(other.primary_reason),
        is_begin: false,
    })
}

/// Appends the reply to a command in a query string, without ReadyForQuery.
pub(crate) fn write_command_reply(buf: &mut Vec<u8>, answer: &CommandAnswer) {
    if let Some((column, _)) = answer.row {
        write_row_description(buf, column);
    }
    write_row_and_tag(buf, answer);
}

/// Appends the RowDescription of a SHOW, which has one column.
pub(crate) fn write_row_description(buf: &mut Vec<u8>, column: &str) {
    let field = FieldDescription {
        name: column.as_bytes(),
        table: 0,
        column: 0,
        type_oid: TEXT_OID,
        type_bytes: -1,
        type_modifier: -1,
        format: ValueFormat::Text,
    };
    encode::row_description(buf, [field]).expect(NO_ZERO_BYTE);
}

/// Appends the DataRow, if the answer has a row, and the CommandComplete.
pub(crate) fn write_row_and_tag(buf: &mut Vec<u8>, answer: &CommandAnswer) {
    if let Some((_, value)) = &answer.row {
        encode::data_row(buf, [Some(value.as_bytes())]).expect("the row is short");
    }
    encode::command_complete(buf, answer.tag.as_bytes()).expect(NO_ZERO_BYTE);
}

/// OID of the type `text` in `pg_type`.
const TEXT_OID: u32 = 25;
const NO_ZERO_BYTE: &str = "the pooler's own text has no zero byte";

/// Appends the ErrorResponse for a refused request.
pub(crate) fn write_refusal(buf: &mut Vec<u8>, refusal: &Refusal) {
    let message = refusal.to_string().replace('\0', " ");
    let sqlstate = refusal.sqlstate();
    let fields = encode::essentials(Severity::Error, &sqlstate, message.as_bytes());
    let hint = refusal.hint().map(|hint| (ErrorField::Hint.code(), hint.as_bytes()));
    encode::error_response(buf, fields.into_iter().chain(hint)).expect(NO_ZERO_BYTE);
}

/// Refuses a query string: appends an error, then ReadyForQuery.
pub(crate) fn refuse_query(to: &mut GatherBuffer, refusal: &Refusal, status: TransactionStatus) {
    to.push_with(|buf| {
        write_refusal(buf, refusal);
        encode::ready_for_query(buf, status);
    });
}

/// Refuses a batch: appends an error, and skips further messages up to its Sync.
pub(crate) fn refuse_batch(
    client: &mut ClientConnection,
    to: &mut GatherBuffer,
    refusal: &Refusal,
) {
    to.push_with(|buf| write_refusal(buf, refusal));
    if let Some(routing) = &mut client.routing {
        routing.batch_owner = BatchOwner::Refused;
        routing.pending_begin = None;
        routing.portals.clear();
    }
}
