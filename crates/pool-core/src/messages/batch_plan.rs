//! Routing of extended-protocol batches: all messages of a batch are analyzed before the first one
//! is sent, so that one server is chosen for all of them and a refused batch has no effect.
//!
//! Analysis may wait for the end of a batch: a server need not reply before Sync or Flush, so a
//! client that waits for a reply has sent one of them. A batch longer than [`HELD_BYTES_MAX`] is
//! analyzed in parts.

use std::sync::Arc;

use howdah_route::{FanOut, NoShardKey, Parsed, Refusal, Route, ShardTarget};
use howdah_wire::{
    Frame, Frontend,
    frontend::{self, Bind, DescribeTarget},
};

use crate::{
    messages::{
        frame_cursor::header_at,
        handling::{HELD_BYTES_MAX, PartialMessage},
    },
    prepared::{deallocate, statements::sql_text},
    routing::{
        ClientRouting, NamedStatement,
        context::{Dispatch, FAN_OUT_IN_BATCH, RoutingContext, combine_routes, prepared_command},
    },
    state::client::ClientConnection,
};

/// The results of analyzing a batch so far.
struct BatchInfo<'a> {
    /// The combined route of all messages so far; `None` if none of them has determined one.
    route: Option<Route>,
    /// Statements that the batch parses: name, text and analysis result.
    parsed: Vec<(&'a [u8], &'a [u8], Parsed)>,
    binds: usize,
    executes: usize,
    /// The text of the last bound statement that is a BEGIN.
    begin: Option<Box<[u8]>>,
    /// Portals bound to the pooler's own commands, such as SHOW SHARD.
    portals: Vec<&'a [u8]>,
    /// Portals that run on several shards, in the order of their Binds.
    fan_outs: FanOutPlans<'a>,
    /// Whether the batch has messages for the pooler's own commands.
    has_commands: bool,
    has_others: bool,
}

impl RoutingContext<'_> {
    /// Dispatches a batch of a client without a server: a new batch, or the rest of one after a
    /// Flush.
    pub(crate) fn dispatch_batch(
        &mut self,
        client: &mut ClientConnection,
        kind: Frontend,
        message: PartialMessage<'_>,
        input: &[u8],
    ) -> Dispatch {
        let is_local = self.starts_local_batch(client, kind, message);
        if let Some(routing) = &mut client.routing
            && !is_local
            && let Some(fixed) = routing.fixed_route(self.slot.edition)
        {
            (client.member.role, client.member.shard) = fixed;
            routing.inspected_bytes = message.total_bytes();
            return Dispatch::Server;
        }
        if client.routing.is_none() && !self.slot.inspects_statements && !is_local {
            return Dispatch::Server;
        }
        match self.client_routing(client).session.route_without_text(&self.slot.router) {
            Ok(Some(route)) if !is_local => {
                let dispatch = self.apply_route(client, &route, message.total_bytes());
                self.cache_fixed_route(client, &dispatch);
                return dispatch;
            }
            Ok(_) => {}
            Err(refusal) => return Dispatch::Refused(refusal),
        }
        let (end, route, fan_outs, is_describe_only) =
            match self.plan_batch(client, message.at, input) {
                Ok(Some(info)) => info,
                Ok(None) => return Dispatch::NeedsMoreInput,
                Err(dispatch) => return dispatch,
            };
        if matches!(route.shards, ShardTarget::Many { .. } | ShardTarget::Copy(_)) {
            return self.plan_batch_fan_out(&route, &input[message.at..end], &fan_outs);
        }
        let dispatch = self.apply_route(client, &route, end - message.at);
        self.client_routing(client).is_describe_only = is_describe_only;
        dispatch
    }

    /// Dispatches a batch, or its next part, of a client that keeps its server, for example because
    /// it is in a transaction or in the middle of the batch.
    pub(crate) fn dispatch_linked_batch(
        &mut self,
        client: &mut ClientConnection,
        kind: Frontend,
        message: PartialMessage<'_>,
        input: &[u8],
        is_first: bool,
    ) -> Dispatch {
        let is_local = is_first && self.starts_local_batch(client, kind, message);
        let routing = self.client_routing(client);
        match routing.session.route_without_text(&self.slot.router) {
            Ok(Some(_)) if !is_local => return Dispatch::Server,
            Ok(_) => {}
            Err(refusal) => return Dispatch::Refused(refusal),
        }
        match self.plan_batch(client, message.at, input) {
            Ok(Some((_, route, ..))) if matches!(route.shards, ShardTarget::Many { .. }) => {
                Dispatch::Refused(FAN_OUT_IN_BATCH)
            }
            Ok(Some((end, ..))) => {
                self.client_routing(client).inspected_bytes = end - message.at;
                Dispatch::Server
            }
            Ok(None) => Dispatch::NeedsMoreInput,
            Err(dispatch) => dispatch,
        }
    }

    /// Plans the batch at `at`: returns the end of the analyzed part, its route, its fan-out plans,
    /// and whether it only parses or describes statements and may go to any shard. Returns `None`
    /// if more input is needed, and an error for a batch that the pooler answers or refuses.
    fn plan_batch<'a>(
        &mut self,
        client: &mut ClientConnection,
        at: usize,
        input: &'a [u8],
    ) -> Result<Option<(usize, Route, FanOutPlans<'a>, bool)>, Dispatch> {
        let (end, is_complete) = batch_extent(input, at);
        if !is_complete && input.len() - at < HELD_BYTES_MAX {
            return Ok(None);
        }
        if end == at {
            // A single message exceeds the limit, so it cannot be routed by its contents.
            return Err(Dispatch::Refused(Refusal::UnknownShard(NoShardKey::Unreadable)));
        }
        match self.analyze(client, &input[at..end]) {
            Ok(info) if info.has_commands && !info.has_others => Err(Dispatch::LocalBatch),
            Ok(info) if info.has_commands => Err(Dispatch::Refused(Refusal::MixedBatch)),
            Ok(info) => {
                if self.defer_begin(client, &info, &input[at..end]) {
                    Err(Dispatch::LocalBatch)
                } else {
                    let route = match info.route {
                        Some(route) => route,
                        None => self
                            .client_routing(client)
                            .session
                            .route_unrelated_message(&self.slot.router),
                    };
                    let runs = info.binds > 0 || info.executes > 0;
                    let is_describe_only = !runs && route.shards == ShardTarget::Any;
                    Ok(Some((end, route, info.fan_outs, is_describe_only)))
                }
            }
            Err(refusal) => Err(Dispatch::Refused(refusal)),
        }
    }

    /// Stores the client's pending BEGIN, if the client has no server and its batch is a single
    /// BEGIN that must wait until the next request determines the shard. Returns whether it did.
    fn defer_begin(
        &self,
        client: &mut ClientConnection,
        info: &BatchInfo<'_>,
        batch: &[u8],
    ) -> bool {
        let (Some(text), Some(route)) = (&info.begin, &info.route) else { return false };
        let is_alone = route.is_begin && (info.binds, info.executes) == (1, 1);
        let is_named = info.parsed.iter().any(|(name, ..)| !name.is_empty());
        let is_kept = self.pool.has_tracked_names || !is_named;
        let is_complete = batch.ends_with(b"S\0\0\0\x04");
        let can_wait = self.pool.can_defer_begin && self.slot.router.settings().shards > 1;
        let is_deferred = client.server().is_none()
            && route.shards == ShardTarget::Any
            && is_alone
            && is_kept
            && is_complete
            && can_wait;
        if let Some(routing) = &mut client.routing
            && is_deferred
        {
            routing.pending_begin = Some((text.clone(), route.clone()));
        }
        is_deferred
    }

    fn analyze<'a>(
        &mut self,
        client: &mut ClientConnection,
        input: &'a [u8],
    ) -> Result<BatchInfo<'a>, Refusal> {
        let mut info = BatchInfo {
            route: None,
            parsed: Vec::new(),
            binds: 0,
            executes: 0,
            begin: None,
            portals: Vec::new(),
            fan_outs: Vec::new(),
            has_commands: false,
            has_others: false,
        };
        let mut at = 0;
        while let Ok(Some(header)) = header_at(input, at) {
            let start = at + howdah_wire::Header::BYTES;
            at = start + header.body_bytes as usize;
            let Some(body) = input.get(start..at) else { break };
            let frame = Frame { tag: header.tag, body };
            // The server will reject the malformed message.
            let Ok(message) = frontend::FrontendMessage::parse(frame) else {
                info.has_others = true;
                continue;
            };
            self.analyze_message(client, &mut info, message)?;
        }
        // A batch without any statement, such as one with only Close messages, also goes to a
        // server.
        info.has_others |= !info.has_commands;
        if info.route.is_none() && !info.has_commands {
            let Some(routing) = &mut client.routing else { return Ok(info) };
            for (.., parsed) in &info.parsed {
                let Parsed::Statement(statement) = parsed else { continue };
                let route = routing.session.parse_or_describe(&self.slot.router, statement)?;
                info.route = add_route(info.route.take(), route)?;
            }
        }
        Ok(info)
    }

    fn analyze_message<'a>(
        &mut self,
        client: &mut ClientConnection,
        info: &mut BatchInfo<'a>,
        message: frontend::FrontendMessage<'a>,
    ) -> Result<(), Refusal> {
        match message {
            frontend::FrontendMessage::Parse(parse) => {
                let router = &mut self.slot.router;
                let routing = client.routing.as_mut().expect("the caller has created it");
                let parsed = routing.session.parse(router, parse.sql, parse.types)?;
                self.record_name(client, parse.statement, parse.sql, &parsed);
                let is_command = matches!(parsed, Parsed::Command(_));
                (info.has_commands, info.has_others) =
                    (info.has_commands | is_command, info.has_others | !is_command);
                info.parsed.push((parse.statement, parse.sql, parsed));
            }
            frontend::FrontendMessage::Bind(bind) => self.analyze_bind(client, info, &bind)?,
            frontend::FrontendMessage::Describe(DescribeTarget::Statement(name)) => {
                let is_in_batch = info.parsed.iter().any(|(parsed_name, ..)| *parsed_name == name);
                let is_command = if is_in_batch {
                    info.is_command(name)
                } else {
                    prepared_command(client, name).is_some()
                };
                (info.has_commands, info.has_others) =
                    (info.has_commands | is_command, info.has_others | !is_command);
                if !is_command && !is_in_batch {
                    self.analyze_describe(client, info, name)?;
                }
            }
            frontend::FrontendMessage::Close(DescribeTarget::Statement(name)) => {
                let is_command = prepared_command(client, name).is_some();
                if !self.pool.has_tracked_names
                    && let Some(routing) = &mut client.routing
                {
                    routing.statements_by_name.remove(name);
                }
                // A Close of a statement name does not make the batch mixed, because drivers close
                // old statements right before the next request.
                info.has_commands |= is_command;
                info.has_others |= !is_command && !self.pool.has_tracked_names;
            }
            frontend::FrontendMessage::Describe(DescribeTarget::Portal(name))
            | frontend::FrontendMessage::Execute { portal: name, .. } => {
                info.executes += usize::from(message.kind() == Frontend::Execute);
                let earlier = client.routing.iter().flat_map(|routing| &routing.portals);
                let is_command = info.portals.contains(&name)
                    || earlier.into_iter().any(|(portal, _)| **portal == *name);
                (info.has_commands, info.has_others) =
                    (info.has_commands | is_command, info.has_others | !is_command);
            }
            _ => {}
        }
        Ok(())
    }

    fn analyze_bind<'a>(
        &mut self,
        client: &mut ClientConnection,
        info: &mut BatchInfo<'a>,
        bind: &Bind<'a>,
    ) -> Result<(), Refusal> {
        let is_in_batch =
            info.parsed.iter().any(|(parsed_name, ..)| *parsed_name == bind.statement);
        let is_command = if is_in_batch {
            info.is_command(bind.statement)
        } else {
            prepared_command(client, bind.statement).is_some()
        };
        if is_command {
            info.has_commands = true;
            info.portals.push(bind.portal);
            return Ok(());
        }
        info.has_others = true;
        info.binds += 1;
        let mut text = None;
        let route =
            match info.parsed.iter().rev().find(|(parsed_name, ..)| *parsed_name == bind.statement)
            {
                Some((_, sql, Parsed::Statement(statement))) => {
                    let Some(routing) = &mut client.routing else { return Ok(()) };
                    text = Some(*sql);
                    Some(routing.session.bind(&self.slot.router, statement, bind)?)
                }
                Some(_) => None,
                None => {
                    self.with_prepared(client, bind.statement, |session, router, statement| {
                        session.bind(router, statement, bind)
                    })?
                }
            };
        if let Some(route) = route {
            if route.is_begin {
                let text = text.or_else(|| prepared_text(client, bind.statement));
                info.begin = text.map(Into::into);
            }
            if let ShardTarget::Many { fan_out: how, .. } = &route.shards {
                info.fan_outs.push((bind.portal, Arc::clone(how)));
            }
            info.route = add_route(info.route.take(), route)?;
        }
        Ok(())
    }

    /// Adds the route of a Describe for a statement that an earlier batch prepared.
    fn analyze_describe(
        &mut self,
        client: &mut ClientConnection,
        info: &mut BatchInfo<'_>,
        name: &[u8],
    ) -> Result<(), Refusal> {
        let route = self.with_prepared(client, name, |session, router, statement| {
            session.parse_or_describe(router, statement)
        })?;
        if let Some(route) = route {
            info.route = add_route(info.route.take(), route)?;
        }
        Ok(())
    }

    /// Calls `use_statement` with a statement that the client prepared in an earlier batch. Returns
    /// `None` if no statement has this name; the server then reports the error. If the pooler does
    /// not track names, a name that may stand for several texts is refused and, with several
    /// shards, an unknown name too.
    fn with_prepared(
        &mut self,
        client: &mut ClientConnection,
        name: &[u8],
        use_statement: impl FnOnce(
            &mut howdah_route::RouteSession,
            &howdah_route::Router,
            &howdah_route::RoutedStatement,
        ) -> Result<Route, Refusal>,
    ) -> Result<Option<Route>, Refusal> {
        let router = &mut self.slot.router;
        let ClientConnection { routing: Some(routing), statements, .. } = client else {
            return Ok(None);
        };
        let ClientRouting { session, statements_by_id: known, statements_by_name: names, .. } =
            &mut **routing;
        if !self.pool.has_tracked_names {
            return match names.get(name) {
                Some(Some((_, Parsed::Statement(statement)))) => {
                    use_statement(session, router, statement).map(Some)
                }
                None if router.settings().shards == 1 => Ok(None),
                _ => Err(Refusal::UnknownShard(NoShardKey::Unreadable)),
            };
        }
        if name.is_empty() {
            if statements.unnamed.is_empty() {
                return Ok(None);
            }
            let Parsed::Statement(statement) = parse_text(session, router, &statements.unnamed)?
            else {
                return Ok(None);
            };
            return use_statement(session, router, &statement).map(Some);
        }
        let Some(statement) = statements.named.get(name) else { return Ok(None) };
        if !known.contains_key(&statement.id) {
            known.insert(statement.id, parse_text(session, router, &statement.text)?);
        }
        match known.get(&statement.id) {
            Some(Parsed::Statement(statement)) => {
                use_statement(session, router, statement).map(Some)
            }
            _ => Ok(None),
        }
    }

    /// Records the text that a name refers to, in modes where the pooler does not rewrite statement
    /// names.
    fn record_name(&self, client: &mut ClientConnection, name: &[u8], sql: &[u8], parsed: &Parsed) {
        if self.pool.has_tracked_names {
            return;
        }
        if matches!(parsed, Parsed::Statement(_)) && !name.is_empty() {
            client.statements.named.remove(name);
        }
        let Some(routing) = &mut client.routing else { return };
        if deallocate::may_deallocate(sql) || routing.statements_by_name.len() >= NAMES_MAX {
            routing.statements_by_name.clear();
        }
        let is_other = |known: &Option<NamedStatement>| {
            !name.is_empty() && known.as_ref().is_none_or(|(text, _)| **text != *sql)
        };
        // If one name has had two texts, it is unknown which one the server accepted.
        let value = if routing.statements_by_name.get(name).is_some_and(is_other) {
            None
        } else {
            Some((sql.into(), parsed.clone()))
        };
        routing.statements_by_name.insert(name.into(), value);
    }
}

/// Names of portals, each with the plan for merging its results from several shards.
pub(crate) type FanOutPlans<'a> = Vec<(&'a [u8], Arc<FanOut>)>;

/// Maximum number of statement names recorded for one client, if the pooler does not rewrite names.
/// When it is reached, all names are forgotten.
const NAMES_MAX: usize = 10_000;

impl BatchInfo<'_> {
    fn is_command(&self, name: &[u8]) -> bool {
        let last = self.parsed.iter().rev().find(|(parsed_name, ..)| *parsed_name == name);
        matches!(last, Some((.., Parsed::Command(_))))
    }
}

fn add_route(earlier: Option<Route>, route: Route) -> Result<Option<Route>, Refusal> {
    match earlier {
        Some(earlier) => combine_routes(earlier, route).map(Some),
        None => Ok(Some(route)),
    }
}

/// Returns the text of a statement that the client prepared in an earlier batch.
fn prepared_text<'a>(client: &'a ClientConnection, name: &[u8]) -> Option<&'a [u8]> {
    match name {
        b"" => Some(sql_text(&client.statements.unnamed)),
        name => client.statements.named.get(name).map(|statement| sql_text(&statement.text)),
    }
}

/// Analyzes a statement, given the body of its Parse message after the name.
fn parse_text(
    session: &mut howdah_route::RouteSession,
    router: &mut howdah_route::Router,
    text: &[u8],
) -> Result<Parsed, Refusal> {
    let sql = sql_text(text);
    let types = text.get(sql.len() + 3..).unwrap_or_default().chunks_exact(4);
    let types =
        types.map(|oid| u32::from_be_bytes(oid.try_into().expect("a chunk has four bytes")));
    session.parse(router, sql, types)
}

/// Returns the end of the last complete message of the batch at `start`, and whether the batch ends
/// there.
fn batch_extent(input: &[u8], start: usize) -> (usize, bool) {
    let mut at = start;
    while let Ok(Some(header)) = header_at(input, at) {
        let end = at + howdah_wire::Header::BYTES + header.body_bytes as usize;
        match Frontend::from_tag(header.tag) {
            Some(Frontend::Sync | Frontend::Flush) if end <= input.len() => return (end, true),
            Some(
                Frontend::Parse
                | Frontend::Bind
                | Frontend::Describe
                | Frontend::Execute
                | Frontend::Close,
            ) if end <= input.len() => at = end,
            Some(
                Frontend::Parse
                | Frontend::Bind
                | Frontend::Describe
                | Frontend::Execute
                | Frontend::Close,
            ) => return (at, false),
            // Any other message ends the batch.
            _ => return (at, at > start),
        }
    }
    // An invalid header also ends the batch; it is reported when it is processed.
    (at, header_at(input, at).is_err())
}
