//! A batch of the extended protocol, looked at before anything of it goes out: a server is chosen for all of
//! its messages, and what is refused is refused before anything of it has happened.
//!
//! Up to Sync or Flush no server has to answer, so a client that waits for an answer has sent one of them. A
//! batch that is longer than is held for one client is looked at in parts.

use std::sync::Arc;

use howdah_route::{FanOut, NoShardKey, Parsed, Refusal, Route, Shards};
use howdah_wire::{
    Frame, Frontend,
    frontend::{self, Bind, Target},
};

use super::{
    rewrite::{HELD_BYTES_MAX, Message},
    route::{RoutingContext, SPREAD, Way, both, command_of},
};
use crate::{
    client::Client,
    deallocate,
    inlet::header_at,
    routing::{Named, Routing},
    statements::sql_of,
};

/// What is to be said of a batch.
struct Found<'a> {
    /// Where its messages go together, so far.
    route: Option<Route>,
    /// Statements that it parses: name, text, what it is.
    parsed: Vec<(&'a [u8], &'a [u8], Parsed)>,
    binds: usize,
    executes: usize,
    /// The text of what was bound last, and is nothing but a BEGIN.
    begin: Option<Box<[u8]>>,
    /// Portals of commands.
    portals: Vec<&'a [u8]>,
    /// The last last.
    fans: Fans<'a>,
    /// Whether there are messages about commands, and others.
    has_own: bool,
    has_others: bool,
}

impl RoutingContext<'_> {
    /// A batch of a client without a server begins, or goes on after a Flush.
    pub(super) fn batch(
        &mut self,
        client: &mut Client,
        kind: Frontend,
        message: Message<'_>,
        input: &[u8],
    ) -> Way {
        let begins_own = self.begins_own(client, kind, message);
        if let Some(routing) = &mut client.routing
            && !begins_own
            && let Some(fixed) = routing.fixed(self.slot.edition)
        {
            (client.role, client.shard) = fixed;
            routing.looked_at = message.bytes();
            return Way::Server;
        }
        if client.routing.is_none() && !self.slot.looks && !begins_own {
            return Way::Server;
        }
        match self.routing(client).session.blind(&self.slot.router) {
            Ok(Some(route)) if !begins_own => {
                let way = self.take(client, &route, message.bytes());
                self.fix(client, &way);
                return way;
            }
            Ok(_) => {}
            Err(refusal) => return Way::Refused(refusal),
        }
        let (end, route, fans, only_asks) = match self.look_ahead(client, message.at, input) {
            Ok(Some(found)) => found,
            Ok(None) => return Way::Unknown,
            Err(way) => return way,
        };
        if matches!(route.shards, Shards::Many { .. } | Shards::Copy(_)) {
            return self.spread_batch(&route, &input[message.at..end], &fans);
        }
        let way = self.take(client, &route, end - message.at);
        self.routing(client).only_asks = only_asks;
        way
    }

    /// A message of a batch of a client that has a server, and is in a transaction there, or in the middle of
    /// the batch.
    pub(super) fn batch_linked(
        &mut self,
        client: &mut Client,
        kind: Frontend,
        message: Message<'_>,
        input: &[u8],
        is_first: bool,
    ) -> Way {
        let begins_own = is_first && self.begins_own(client, kind, message);
        let routing = self.routing(client);
        match routing.session.blind(&self.slot.router) {
            Ok(Some(_)) if !begins_own => return Way::Server,
            Ok(_) => {}
            Err(refusal) => return Way::Refused(refusal),
        }
        match self.look_ahead(client, message.at, input) {
            Ok(Some((_, route, ..))) if matches!(route.shards, Shards::Many { .. }) => {
                Way::Refused(SPREAD)
            }
            Ok(Some((end, ..))) => {
                self.routing(client).looked_at = end - message.at;
                Way::Server
            }
            Ok(None) => Way::Unknown,
            Err(way) => way,
        }
    }

    /// Where what was looked at ends of the batch that is at `at`, where it goes, and whether it runs nothing
    /// and may go anywhere. `None` if more has to come.
    fn look_ahead<'a>(
        &mut self,
        client: &mut Client,
        at: usize,
        input: &'a [u8],
    ) -> Result<Option<(usize, Route, Fans<'a>, bool)>, Way> {
        let (end, is_over) = extent(input, at);
        if !is_over && input.len() - at < HELD_BYTES_MAX {
            return Ok(None);
        }
        if end == at {
            // A message that is not held whole tells nothing.
            return Err(Way::Refused(Refusal::Keyless(NoShardKey::Unreadable)));
        }
        match self.survey(client, &input[at..end]) {
            Ok(found) if found.has_own && !found.has_others => Err(Way::Own),
            Ok(found) if found.has_own => Err(Way::Refused(Refusal::NotAlone)),
            Ok(found) => match self.begins(client, &found, &input[at..end]) {
                true => Err(Way::Own),
                false => {
                    let route = match found.route {
                        Some(route) => route,
                        None => self.routing(client).session.aside(&self.slot.router),
                    };
                    let runs = found.binds > 0 || found.executes > 0;
                    let only_asks = !runs && route.shards == Shards::Any;
                    Ok(Some((end, route, found.fans, only_asks)))
                }
            },
            Err(refusal) => Err(Way::Refused(refusal)),
        }
    }

    /// Whether a batch of a client without a server is a BEGIN and nothing else, which waits for the next
    /// request to say where it goes. Notes it.
    fn begins(&self, client: &mut Client, found: &Found<'_>, batch: &[u8]) -> bool {
        let (Some(text), Some(route)) = (&found.begin, &found.route) else { return false };
        let is_alone = route.is_begin && (found.binds, found.executes) == (1, 1);
        let is_named = found.parsed.iter().any(|(name, ..)| !name.is_empty());
        let is_kept = self.home.follows_names || !is_named;
        let is_over = batch.ends_with(b"S\0\0\0\x04");
        let may_wait = self.home.may_begin && self.slot.router.settings().shards > 1;
        let begins = client.server().is_none()
            && route.shards == Shards::Any
            && is_alone
            && is_kept
            && is_over
            && may_wait;
        if let Some(routing) = &mut client.routing
            && begins
        {
            routing.begins = Some((text.clone(), route.clone()));
        }
        begins
    }

    fn survey<'a>(&mut self, client: &mut Client, input: &'a [u8]) -> Result<Found<'a>, Refusal> {
        let mut found = Found {
            route: None,
            parsed: Vec::new(),
            binds: 0,
            executes: 0,
            begin: None,
            portals: Vec::new(),
            fans: Vec::new(),
            has_own: false,
            has_others: false,
        };
        let mut at = 0;
        while let Ok(Some(header)) = header_at(input, at) {
            let start = at + howdah_wire::Header::BYTES;
            at = start + header.body_bytes as usize;
            let Some(body) = input.get(start..at) else { break };
            let frame = Frame { tag: header.tag, body };
            // What is no message is for the server to tell.
            let Ok(message) = frontend::Message::parse(frame) else {
                found.has_others = true;
                continue;
            };
            self.survey_message(client, &mut found, message)?;
        }
        // Nothing but a Close is for a server, too.
        found.has_others |= !found.has_own;
        if found.route.is_none() && !found.has_own {
            let Some(routing) = &mut client.routing else { return Ok(found) };
            for (.., parsed) in &found.parsed {
                let Parsed::Statement(statement) = parsed else { continue };
                let route = routing.session.unbound(&self.slot.router, statement)?;
                found.route = joined(found.route.take(), route)?;
            }
        }
        Ok(found)
    }

    fn survey_message<'a>(
        &mut self,
        client: &mut Client,
        found: &mut Found<'a>,
        message: frontend::Message<'a>,
    ) -> Result<(), Refusal> {
        match message {
            frontend::Message::Parse(parse) => {
                let router = &mut self.slot.router;
                let routing = client.routing.as_mut().expect("it was made before");
                let parsed = routing.session.parse(router, parse.sql, parse.types)?;
                self.note_name(client, parse.statement, parse.sql, &parsed);
                let is_own = matches!(parsed, Parsed::Command(_));
                (found.has_own, found.has_others) =
                    (found.has_own | is_own, found.has_others | !is_own);
                found.parsed.push((parse.statement, parse.sql, parsed));
            }
            frontend::Message::Bind(bind) => self.survey_bind(client, found, &bind)?,
            frontend::Message::Describe(Target::Statement(name)) => {
                let is_here = found.parsed.iter().any(|(its, ..)| *its == name);
                let is_own = match is_here {
                    true => found.is_command(name),
                    false => command_of(client, name).is_some(),
                };
                (found.has_own, found.has_others) =
                    (found.has_own | is_own, found.has_others | !is_own);
                if !is_own && !is_here {
                    self.describe(client, found, name)?;
                }
            }
            frontend::Message::Close(Target::Statement(name)) => {
                let is_own = command_of(client, name).is_some();
                if !self.home.follows_names
                    && let Some(routing) = &mut client.routing
                {
                    routing.names.remove(name);
                }
                // Drivers close what they are done with in front of what they do next.
                found.has_own |= is_own;
                found.has_others |= !is_own && !self.home.follows_names;
            }
            frontend::Message::Describe(Target::Portal(name))
            | frontend::Message::Execute { portal: name, .. } => {
                found.executes += usize::from(message.kind() == Frontend::Execute);
                let before = client.routing.iter().flat_map(|routing| &routing.portals);
                let is_own = found.portals.contains(&name)
                    || before.into_iter().any(|(portal, _)| **portal == *name);
                (found.has_own, found.has_others) =
                    (found.has_own | is_own, found.has_others | !is_own);
            }
            _ => {}
        }
        Ok(())
    }

    fn survey_bind<'a>(
        &mut self,
        client: &mut Client,
        found: &mut Found<'a>,
        bind: &Bind<'a>,
    ) -> Result<(), Refusal> {
        let is_here = found.parsed.iter().any(|(its, ..)| *its == bind.statement);
        let is_own = match is_here {
            true => found.is_command(bind.statement),
            false => command_of(client, bind.statement).is_some(),
        };
        if is_own {
            found.has_own = true;
            found.portals.push(bind.portal);
            return Ok(());
        }
        found.has_others = true;
        found.binds += 1;
        let mut text = None;
        let route = match found.parsed.iter().rev().find(|(its, ..)| *its == bind.statement) {
            Some((_, sql, Parsed::Statement(statement))) => {
                let Some(routing) = &mut client.routing else { return Ok(()) };
                text = Some(*sql);
                Some(routing.session.bind(&self.slot.router, statement, bind)?)
            }
            Some(_) => None,
            None => self.with_known(client, bind.statement, |session, router, statement| {
                session.bind(router, statement, bind)
            })?,
        };
        if let Some(route) = route {
            if route.is_begin {
                let text = text.or_else(|| text_of(client, bind.statement));
                found.begin = text.map(Into::into);
            }
            if let Shards::Many { how, .. } = &route.shards {
                found.fans.push((bind.portal, Arc::clone(how)));
            }
            found.route = joined(found.route.take(), route)?;
        }
        Ok(())
    }

    /// A statement from before is described.
    fn describe(
        &mut self,
        client: &mut Client,
        found: &mut Found<'_>,
        name: &[u8],
    ) -> Result<(), Refusal> {
        let route = self.with_known(client, name, |session, router, statement| {
            session.unbound(router, statement)
        })?;
        if let Some(route) = route {
            found.route = joined(found.route.take(), route)?;
        }
        Ok(())
    }

    /// Does something with a statement that the client has prepared before; `None` if it has none of this
    /// name: the server will tell.
    fn with_known(
        &mut self,
        client: &mut Client,
        name: &[u8],
        act: impl FnOnce(
            &mut howdah_route::Session,
            &howdah_route::Router,
            &howdah_route::Statement,
        ) -> Result<Route, Refusal>,
    ) -> Result<Option<Route>, Refusal> {
        let router = &mut self.slot.router;
        let Client { routing: Some(routing), statements, .. } = client else { return Ok(None) };
        let Routing { session, known, names, .. } = &mut **routing;
        if !self.home.follows_names {
            return match names.get(name) {
                Some(Some((_, Parsed::Statement(statement)))) => {
                    act(session, router, statement).map(Some)
                }
                None if router.settings().shards == 1 => Ok(None),
                _ => Err(Refusal::Keyless(NoShardKey::Unreadable)),
            };
        }
        if name.is_empty() {
            if statements.unnamed.is_empty() {
                return Ok(None);
            }
            let Parsed::Statement(statement) = parse(session, router, &statements.unnamed)? else {
                return Ok(None);
            };
            return act(session, router, &statement).map(Some);
        }
        let Some(statement) = statements.named.get(name) else { return Ok(None) };
        if !known.contains_key(&statement.id) {
            known.insert(statement.id, parse(session, router, &statement.text)?);
        }
        match known.get(&statement.id) {
            Some(Parsed::Statement(statement)) => act(session, router, statement).map(Some),
            _ => Ok(None),
        }
    }

    /// Keeps what a name means where the pooler does not follow names otherwise.
    fn note_name(&self, client: &mut Client, name: &[u8], sql: &[u8], parsed: &Parsed) {
        if self.home.follows_names {
            return;
        }
        if matches!(parsed, Parsed::Statement(_)) && !name.is_empty() {
            client.statements.named.remove(name);
        }
        let Some(routing) = &mut client.routing else { return };
        if deallocate::may_forget(sql) || routing.names.len() >= NAMES_MAX {
            routing.names.clear();
        }
        let is_other = |known: &Option<Named>| {
            !name.is_empty() && known.as_ref().is_none_or(|(text, _)| **text != *sql)
        };
        // Whether the server has taken the first or the second of two is not known.
        let value = match routing.names.get(name).is_some_and(is_other) {
            true => None,
            false => Some((sql.into(), parsed.clone())),
        };
        routing.names.insert(name.into(), value);
    }
}

/// Portals, and how what they read on several shards becomes one answer.
pub(super) type Fans<'a> = Vec<(&'a [u8], Arc<FanOut>)>;

/// Names that are kept for one client where they are not followed otherwise.
const NAMES_MAX: usize = 10_000;

impl Found<'_> {
    fn is_command(&self, name: &[u8]) -> bool {
        let last = self.parsed.iter().rev().find(|(its, ..)| *its == name);
        matches!(last, Some((.., Parsed::Command(_))))
    }
}

fn joined(before: Option<Route>, route: Route) -> Result<Option<Route>, Refusal> {
    match before {
        Some(before) => both(before, route).map(Some),
        None => Ok(Some(route)),
    }
}

/// The text of a statement that the client has prepared before.
fn text_of<'a>(client: &'a Client, name: &[u8]) -> Option<&'a [u8]> {
    match name {
        b"" => Some(sql_of(&client.statements.unnamed)),
        name => client.statements.named.get(name).map(|statement| sql_of(&statement.text)),
    }
}

/// Reads what a Parse has behind its name.
fn parse(
    session: &mut howdah_route::Session,
    router: &mut howdah_route::Router,
    text: &[u8],
) -> Result<Parsed, Refusal> {
    let sql = sql_of(text);
    let types = text.get(sql.len() + 3..).unwrap_or_default().chunks_exact(4);
    let types = types.map(|oid| u32::from_be_bytes(oid.try_into().expect("there are four")));
    session.parse(router, sql, types)
}

/// Where the messages end that are there of a batch, and whether it is over there.
fn extent(input: &[u8], start: usize) -> (usize, bool) {
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
            // What is no part of a batch ends it.
            _ => return (at, at > start),
        }
    }
    // A header that cannot be is told of when its turn comes.
    (at, header_at(input, at).is_err())
}
