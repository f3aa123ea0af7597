//! [`RouteSession`]: a client's routing state, and the routes of its requests.

use std::{ops::Range, sync::Arc};

use crate::shard::ShardKey;
use howdah_wire::frontend::Bind;

use crate::{
    CommandAnswer, Refusal, RouteCommand,
    dialect::TextDialect,
    hint::Hints,
    keys::KeyValues,
    plan::{RoutePlan, ShardScope, Temporary},
    refusal::NoShardKey,
    role::{PrimaryReason, RolePreference, RouteRole},
    route::{Route, ShardTarget},
    router::{Router, default_shards, shards_for},
    settings::{DefaultShard, RouteSettings},
};

/// The period for which a server stays linked to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinScope {
    /// The server stays linked until the end of the transaction.
    Transaction,
    /// The server stays linked for the rest of the session, so the first statement determines
    /// server and shard.
    Session,
}

/// The routing state of one client session.
///
/// ```text
///         simple, bind, parse_or_describe: a Route           link
///   free ────────────────────────────────────► free ───────────────────► linked
///    ▲  commands change the overrides                  commands are refused, and │
///    │                                                 statements for other shards
///    └──────────────────────────────── release ◄─────────────────────────────────┘
/// ```
///
/// A session does no I/O. The owner of the connections asks for a route before a request that may
/// need a server, and reports when a server has been linked or released.
#[derive(Clone, Debug)]
pub struct RouteSession {
    pin_scope: PinScope,
    /// The role that the client requested at startup, which applies until the session sets one; the
    /// role of the settings if `None`.
    default_role: Option<RolePreference>,
    overrides: SessionOverrides,
    link: Option<ShardLink>,
    /// Whether the client chose the shard of the last route. `link` stores this for the linked
    /// server. Irrelevant if there is only one shard.
    last_is_explicit: bool,
    /// The role of a BEGIN that was answered before it was sent, until the server is released.
    deferred_begin: Option<RouteRole>,
    has_temporary: bool,
    dialect: TextDialect,
    /// State of the random generator for `SET SHARD TO ANY`.
    random_state: u64,
}

/// Settings that a client has changed by commands. They stay in effect until the client changes
/// them again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionOverrides {
    /// The role set by `SET SERVER ROLE`.
    pub role: Option<RolePreference>,
    /// The value set by `SET PRIMARY READS`.
    pub primary_reads: Option<bool>,
    /// The value set by `SET READ YOUR WRITES`.
    pub read_your_writes: Option<bool>,
    /// The shard set by `SET SHARD` or `SET SHARDING KEY`.
    pub shard: Option<u32>,
}

/// The shard of the server that is linked to the session.
#[derive(Clone, Copy, Debug)]
struct ShardLink {
    shard: u32,
    /// Whether the client chose the shard, so that statements are not analyzed for keys. Irrelevant
    /// if there is only one shard.
    is_explicit: bool,
}

/// The result of routing a Query message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RoutedRequest {
    /// The query was a command, which was executed and must not be sent to a server. Contains the
    /// reply.
    Command(CommandAnswer),
    /// The query must be sent to the servers that the route selects.
    Route(Route),
}

/// The routing information of a prepared statement.
#[derive(Clone, Debug)]
pub struct RoutedStatement {
    plan: Arc<RoutePlan>,
    hints: Hints,
    types: Box<[u32]>,
    text: Option<KeyedText>,
}

/// A text with sharding keys, and the positions of its constants.
#[derive(Clone, Debug)]
struct KeyedText {
    sql: Box<[u8]>,
    constants: Box<[Range<usize>]>,
}

/// The result of routing a Parse message.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// A command. The caller must pass it to [`RouteSession::execute`] when its portal is executed.
    Command(RouteCommand),
    /// A statement that is sent to servers.
    Statement(RoutedStatement),
}

impl RouteSession {
    /// Creates the state of a client that has set nothing yet. `seed` determines the shards that
    /// `SET SHARD TO ANY` picks.
    pub fn new(hold: PinScope, seed: u64) -> Self {
        Self {
            pin_scope: hold,
            default_role: None,
            overrides: SessionOverrides::default(),
            link: None,
            last_is_explicit: false,
            deferred_begin: None,
            has_temporary: false,
            dialect: TextDialect::default(),
            random_state: seed,
        }
    }

    /// Sets the role that the client requested at startup, which `SET SERVER ROLE TO DEFAULT`
    /// restores.
    #[must_use]
    pub fn with_role(mut self, role: Option<RolePreference>) -> Self {
        self.default_role = role;
        self
    }

    /// Returns the settings that the client has changed by commands.
    pub fn overrides(&self) -> SessionOverrides {
        self.overrides
    }

    /// Restores the overrides that a client set with another router. A shard that does not exist in
    /// `router` is dropped.
    pub fn resume(&mut self, router: &Router, overrides: SessionOverrides) {
        let shard = overrides.shard.filter(|shard| *shard < router.settings.shards);
        self.overrides = SessionOverrides { shard, ..overrides };
    }

    /// Returns the route of all requests except commands, if it does not depend on their texts;
    /// otherwise `None`. Can be called whether or not a server is linked.
    ///
    /// # Errors
    ///
    /// No request can be routed, for example because the session's shard no longer exists.
    pub fn route_without_text(&mut self, router: &Router) -> Result<Option<Route>, Refusal> {
        match router.settings.hints {
            Some(_) => Ok(None),
            None => self.without_plan(router, &Hints::default()),
        }
    }

    /// Returns the route of messages that execute nothing, such as Close: the linked or explicit
    /// shard, or any.
    pub fn route_unrelated_message(&mut self, router: &Router) -> Route {
        let settings = &*router.settings;
        let none = Hints::default();
        let explicit = self.requested_shard(settings, &none).ok().flatten();
        self.last_is_explicit = explicit.is_some();
        let shards = match (self.link, explicit) {
            (Some(ShardLink { shard, .. }), _) | (None, Some(shard)) => ShardTarget::One(shard),
            _ if settings.shards == 1 => ShardTarget::One(0),
            _ => ShardTarget::Any,
        };
        let may_use_primary = self.may_use_primary(settings, &none);
        let role = match self.requested_role(settings, &none) {
            RolePreference::Auto => RouteRole::Any,
            _ => self.role_for(settings, &none, None),
        };
        Route { shards, role, may_use_primary, primary_reason: None, is_begin: false }
    }

    /// Whether the route of a request may depend on its text while no server is linked.
    pub fn depends_on_text(&self, router: &Router) -> bool {
        let settings = &*router.settings;
        settings.hints.is_some()
            || self.requested_role(settings, &Hints::default()) == RolePreference::Auto
            || (self.overrides.shard.is_none() && settings.inspects_statements())
    }

    /// Whether the client's reads may only go to servers that have its writes.
    pub fn reads_your_writes(&self, router: &Router) -> bool {
        self.overrides.read_your_writes.unwrap_or(router.settings.read_your_writes)
    }

    /// Handles a ParameterStatus sent to the client, since some parameters affect how the client's
    /// texts are lexed. Only ASCII texts are analyzed until `client_encoding` is known, or if its
    /// characters may contain ASCII bytes.
    pub fn parameter_status(&mut self, name: &[u8], value: &[u8]) {
        self.dialect.parameter_status(name, value);
    }

    /// Whether a text, run by itself outside a transaction, is certain to only read and to leave no
    /// session state, so that it can safely run twice and on any server.
    pub fn only_reads(&self, router: &mut Router, sql: &[u8]) -> bool {
        let plan = router.plan(sql, &self.dialect);
        plan.primary.is_none() && !plan.is_begin && plan.temporary.is_none()
    }

    /// Whether all text from the client has the same bytes on the server. If not, a COPY row whose
    /// key has non-ASCII characters is refused.
    pub fn encodings_match(&self) -> bool {
        self.dialect.encodings_match()
    }

    /// Routes a Query, or executes it if it is a command. Can be called whether or not a server is
    /// linked.
    ///
    /// # Errors
    ///
    /// The query cannot be routed; nothing has changed.
    pub fn simple(&mut self, router: &mut Router, sql: &[u8]) -> Result<RoutedRequest, Refusal> {
        if let Some(command) = RouteCommand::read(sql) {
            return self.execute(router, &command?).map(RoutedRequest::Command);
        }
        let hints = self.hints(router, sql)?;
        if let Some(route) = self.without_plan(router, &hints)? {
            return Ok(RoutedRequest::Route(route));
        }
        let plan = router.plan(sql, &self.dialect);
        let values = KeyValues {
            sql,
            constants: router.cache.parameterized().constants(),
            bind: None,
            same_encoding: self.dialect.encodings_match(),
        };
        self.route(&router.settings, &plan, &hints, values).map(RoutedRequest::Route)
    }

    /// Analyzes the statement of a Parse with its declared parameter types.
    ///
    /// # Errors
    ///
    /// The text contains an invalid hint or command.
    pub fn parse(
        &mut self,
        router: &mut Router,
        sql: &[u8],
        types: impl IntoIterator<Item = u32>,
    ) -> Result<Parsed, Refusal> {
        if let Some(command) = RouteCommand::read(sql) {
            return command.map(Parsed::Command);
        }
        let hints = self.hints(router, sql)?;
        let plan = router.plan(sql, &self.dialect);
        let constants = router.cache.parameterized().constants();
        let text = plan
            .scope
            .has_keys()
            .then(|| KeyedText { sql: sql.into(), constants: constants.into() });
        Ok(Parsed::Statement(RoutedStatement {
            plan,
            hints,
            types: types.into_iter().collect(),
            text,
        }))
    }

    /// Routes the Bind of a statement. The portal must be executed on the server that receives the
    /// Bind.
    ///
    /// # Errors
    ///
    /// The statement cannot be routed; nothing has changed.
    pub fn bind(
        &mut self,
        router: &Router,
        statement: &RoutedStatement,
        bind: &Bind<'_>,
    ) -> Result<Route, Refusal> {
        if let Some(route) = self.without_plan(router, &statement.hints)? {
            return Ok(route);
        }
        let text = statement.text.as_ref();
        let sql = text.map_or(&[][..], |text| &text.sql);
        let constants = text.map_or(&[][..], |text| &text.constants);
        let same_encoding = self.dialect.encodings_match();
        let values =
            KeyValues { sql, constants, bind: Some((&statement.types, bind)), same_encoding };
        self.route(&router.settings, &statement.plan, &statement.hints, values)
    }

    /// Routes a Parse or Describe of a statement without a Bind: any shard with its tables can
    /// describe it.
    ///
    /// # Errors
    ///
    /// The shard set by a hint or command does not exist or differs from the linked one, or the
    /// location of the statement's tables is unknown.
    pub fn parse_or_describe(
        &mut self,
        router: &Router,
        statement: &RoutedStatement,
    ) -> Result<Route, Refusal> {
        if let Some(route) = self.without_plan(router, &statement.hints)? {
            return Ok(route);
        }
        self.last_is_explicit = false;
        let values = KeyValues { sql: b"", constants: &[], bind: None, same_encoding: false };
        let settings = &*router.settings;
        let shards = match (&statement.plan.scope, self.link) {
            (_, Some(link)) => ShardTarget::One(link.shard),
            _ if settings.shards == 1 => ShardTarget::One(0),
            _ if !settings.inspects_statements() => default_shards(settings),
            (ShardScope::Unlisted { .. }, None) => shards_for(settings, &statement.plan, values)?,
            (_, None) => match settings.default_shard {
                DefaultShard::One(shard) if statement.plan.reads_catalog => ShardTarget::One(shard),
                _ => ShardTarget::Any,
            },
        };
        Ok(self.route_to(&router.settings, shards, &statement.plan, &statement.hints))
    }

    /// Executes a command. [`Self::simple`] does this itself.
    ///
    /// # Errors
    ///
    /// The command is not possible now, or its value is invalid; nothing has changed.
    pub fn execute(
        &mut self,
        router: &Router,
        command: &RouteCommand,
    ) -> Result<CommandAnswer, Refusal> {
        let settings = &*router.settings;
        let tag = command.tag();
        let shows = matches!(
            command,
            RouteCommand::ShowShard
                | RouteCommand::ShowServerRole
                | RouteCommand::ShowPrimaryReads
                | RouteCommand::ShowReadYourWrites
        );
        // A command affects the choice of the next server. While a server is linked, or a BEGIN has
        // been answered but not sent, that choice has already been made for the current
        // transaction.
        if !shows && (self.link.is_some() || self.deferred_begin.is_some()) {
            return Err(Refusal::ServerLinked { tag, in_session_mode: self.is_in_session_mode() });
        }
        let mut row = None;
        match command {
            RouteCommand::SetShard(None) => {
                self.overrides.shard = Some(self.random_shard(settings.shards));
            }
            RouteCommand::SetShard(Some(shard)) => {
                self.overrides.shard = Some(self.check_shard(settings, *shard)?);
            }
            RouteCommand::SetShardingKey(key) => {
                let texts: Vec<_> = key.iter().map(String::as_str).collect();
                self.overrides.shard = Some(self.shard_for_key(settings, &texts)?);
            }
            RouteCommand::SetServerRole(Some(RolePreference::Auto))
                if !cfg!(feature = "grammar") =>
            {
                return Err(Refusal::NoGrammar);
            }
            RouteCommand::SetServerRole(wish) => self.overrides.role = *wish,
            RouteCommand::SetPrimaryReads(on) => self.overrides.primary_reads = *on,
            RouteCommand::SetReadYourWrites(on) => self.overrides.read_your_writes = *on,
            RouteCommand::ShowShard => {
                let shard = self.link.map(|link| link.shard).or(self.overrides.shard);
                let text = shard.map_or("unset".to_owned(), |shard| shard.to_string());
                row = Some(text);
            }
            RouteCommand::ShowServerRole => {
                let wish = self.requested_role(settings, &Hints::default());
                row = Some(wish.as_str().to_owned());
            }
            RouteCommand::ShowPrimaryReads => {
                let on = self.overrides.primary_reads.unwrap_or(settings.primary_reads);
                row = Some(if on { "on" } else { "off" }.to_owned());
            }
            RouteCommand::ShowReadYourWrites => {
                let on = self.reads_your_writes(router);
                row = Some(if on { "on" } else { "off" }.to_owned());
            }
        }
        Ok(CommandAnswer { row: command.column().zip(row), tag })
    }

    /// Records that a server of this shard has been linked for the last route. The shard is 0 for a
    /// database that is not sharded.
    pub fn link(&mut self, shard: u32) {
        self.link = Some(ShardLink { shard, is_explicit: self.last_is_explicit });
    }

    /// Records that the server has been released. In session mode this happens only when the
    /// session ends.
    pub fn release(&mut self) {
        self.link = None;
        self.deferred_begin = None;
    }

    /// Records that the BEGIN with the last route, `route`, was answered but not sent. It is sent
    /// together with the next request, to a server that is suitable for both.
    pub fn defer_begin(&mut self, route: &Route) {
        self.deferred_begin = Some(route.role);
    }

    fn is_in_session_mode(&self) -> bool {
        self.pin_scope == PinScope::Session
    }

    fn hints(&self, router: &Router, sql: &[u8]) -> Result<Hints, Refusal> {
        match &router.settings.hints {
            Some(names) => match Hints::read(sql, names)? {
                Hints { role: Some(RolePreference::Auto), .. } if !cfg!(feature = "grammar") => {
                    Err(Refusal::NoGrammar)
                }
                hints => Ok(hints),
            },
            None => Ok(Hints::default()),
        }
    }

    /// Returns the route of a request with these hints, if it does not depend on the statement;
    /// otherwise `None`.
    fn without_plan(&mut self, router: &Router, hints: &Hints) -> Result<Option<Route>, Refusal> {
        let settings = &*router.settings;
        let explicit = self.requested_shard(settings, hints)?;
        if let (Some(link), Some(wanted)) = (self.link, explicit) {
            let in_session_mode = self.is_in_session_mode();
            if link.shard != wanted {
                return Err(Refusal::OtherShard { wanted, linked: link.shard, in_session_mode });
            }
        }
        let shard = match (self.link, explicit) {
            (Some(link), _) if link.is_explicit || explicit.is_some() => Some(link.shard),
            (_, Some(shard)) => Some(shard),
            // With a single shard, no choice is needed.
            _ if settings.shards == 1 => Some(0),
            _ => None,
        };
        // While a server is linked, all requests go to it, so the role does not matter.
        let role_is_known =
            self.link.is_some() || self.requested_role(settings, hints) != RolePreference::Auto;
        match shard {
            Some(shard) if role_is_known => {
                self.last_is_explicit = true;
                let role = self.role_for(settings, hints, None);
                let (shards, may_use_primary) =
                    (ShardTarget::One(shard), self.may_use_primary(settings, hints));
                Ok(Some(Route {
                    shards,
                    role,
                    may_use_primary,
                    primary_reason: None,
                    is_begin: false,
                }))
            }
            None if role_is_known && !settings.inspects_statements() => {
                self.last_is_explicit = false;
                let shards = match self.link {
                    Some(link) => ShardTarget::One(link.shard),
                    None => default_shards(settings),
                };
                let role = self.role_for(settings, hints, None);
                let may_use_primary = self.may_use_primary(settings, hints);
                Ok(Some(Route {
                    shards,
                    role,
                    may_use_primary,
                    primary_reason: None,
                    is_begin: false,
                }))
            }
            _ => Ok(None),
        }
    }

    /// Returns the route of a request whose text has been analyzed.
    fn route(
        &mut self,
        settings: &RouteSettings,
        plan: &RoutePlan,
        hints: &Hints,
        values: KeyValues<'_>,
    ) -> Result<Route, Refusal> {
        let explicit = self.requested_shard(settings, hints)?;
        let one = explicit.or((settings.shards == 1).then_some(0));
        let shards = match one {
            Some(shard) => ShardTarget::One(shard),
            None => self.target_shards(settings, plan, values)?,
        };
        self.last_is_explicit = explicit.is_some();
        match plan.temporary {
            Some(Temporary::Creates) => self.has_temporary = true,
            Some(Temporary::Discards) => self.has_temporary = false,
            None => {}
        }
        Ok(self.route_to(settings, shards, plan, hints))
    }

    fn route_to(
        &self,
        settings: &RouteSettings,
        shards: ShardTarget,
        plan: &RoutePlan,
        hints: &Hints,
    ) -> Route {
        let primary_reason = match plan.primary {
            None if self.has_temporary => Some(PrimaryReason::Temporary),
            reason => reason,
        };
        let role = self.role_for(settings, hints, Some(primary_reason));
        let may_use_primary = self.may_use_primary(settings, hints);
        Route { shards, role, may_use_primary, primary_reason, is_begin: plan.is_begin }
    }

    /// Returns the shards of a statement whose session has no explicit shard.
    fn target_shards(
        &self,
        settings: &RouteSettings,
        plan: &RoutePlan,
        values: KeyValues<'_>,
    ) -> Result<ShardTarget, Refusal> {
        let shards = if settings.inspects_statements() {
            shards_for(settings, plan, values)?
        } else {
            default_shards(settings)
        };
        let stays = self.link.is_some() || self.deferred_begin.is_some();
        match (shards, self.link) {
            (ShardTarget::Any, Some(link)) => Ok(ShardTarget::One(link.shard)),
            // Catalog queries prefer the default shard, so that repeated ones get the same result.
            (ShardTarget::Any, None) if plan.reads_catalog => match settings.default_shard {
                DefaultShard::One(shard) => Ok(ShardTarget::One(shard)),
                DefaultShard::Any | DefaultShard::Refuse => Ok(ShardTarget::Any),
            },
            (ShardTarget::One(wanted), Some(link)) if wanted != link.shard => {
                let in_session_mode = self.is_in_session_mode();
                Err(Refusal::OtherShard { wanted, linked: link.shard, in_session_mode })
            }
            (ShardTarget::Many { .. }, _) if stays || self.is_in_session_mode() => {
                let why = if self.is_in_session_mode() {
                    "is not possible in session mode"
                } else {
                    "is not possible in a transaction"
                };
                Err(Refusal::UnknownShard(NoShardKey::FanOutNotAllowed(why)))
            }
            (ShardTarget::Copy(_), _) if stays || self.is_in_session_mode() => {
                Err(Refusal::UnknownShard(NoShardKey::FanOutNotAllowed(
                    "is not possible for COPY in a transaction or in session mode",
                )))
            }
            (shards, _) => Ok(shards),
        }
    }

    fn requested_role(&self, settings: &RouteSettings, hints: &Hints) -> RolePreference {
        hints.role.or(self.overrides.role).or(self.default_role).unwrap_or(settings.role)
    }

    /// Returns the role for a request; `why` is the reason why it needs the primary, if its text
    /// has been analyzed.
    fn role_for(
        &self,
        settings: &RouteSettings,
        hints: &Hints,
        why: Option<Option<PrimaryReason>>,
    ) -> RouteRole {
        let role = match self.requested_role(settings, hints) {
            RolePreference::Primary => RouteRole::Primary,
            RolePreference::Replica => RouteRole::Replica,
            RolePreference::PreferReplica => RouteRole::PreferReplica,
            RolePreference::Any => RouteRole::Any,
            // Later statements of the session may write.
            RolePreference::Auto if self.is_in_session_mode() => RouteRole::Primary,
            RolePreference::Auto if why != Some(None) => RouteRole::Primary,
            RolePreference::Auto
                if self.overrides.primary_reads.unwrap_or(settings.primary_reads) =>
            {
                RouteRole::Any
            }
            RolePreference::Auto => RouteRole::Replica,
        };
        // The server must also be suitable for the deferred BEGIN.
        match self.deferred_begin {
            Some(RouteRole::Primary) => RouteRole::Primary,
            _ => role,
        }
    }

    /// Whether the primary may handle a request that was routed to a replica: only the role
    /// `replica` forbids it.
    fn may_use_primary(&self, settings: &RouteSettings, hints: &Hints) -> bool {
        self.requested_role(settings, hints) != RolePreference::Replica
    }

    /// Returns the shard that the client has set explicitly, by a hint in this request or by a
    /// command.
    fn requested_shard(
        &self,
        settings: &RouteSettings,
        hints: &Hints,
    ) -> Result<Option<u32>, Refusal> {
        if let Some(shard) = hints.shard {
            return self.check_shard(settings, shard).map(Some);
        }
        match &hints.key {
            Some(key) => self.shard_for_key(settings, &[key]).map(Some),
            // While a server is linked, the shard of the link applies, since a hint may have
            // overridden the session's shard for this transaction.
            None => Ok(match self.link {
                Some(link) => link.is_explicit.then_some(link.shard),
                None => match self.overrides.shard {
                    // The number of shards has changed since the client set its shard.
                    Some(shard) if shard >= settings.shards => {
                        return Err(Refusal::ShardGone { shard, shards: settings.shards });
                    }
                    explicit => explicit,
                },
            }),
        }
    }

    fn check_shard(&self, settings: &RouteSettings, shard: u32) -> Result<u32, Refusal> {
        let shards = settings.shards;
        if shard < shards {
            Ok(shard)
        } else {
            Err(Refusal::NoSuchShard { shard, shards, stays: self.overrides.shard })
        }
    }

    fn shard_for_key(&self, settings: &RouteSettings, key: &[&str]) -> Result<u32, Refusal> {
        let map = settings.map.as_ref().ok_or(Refusal::NoMap)?;
        let column = |(text, of): (&&str, &crate::shard::KeyType)| {
            // The server would convert the text to other bytes, which have another hash.
            if *of == crate::shard::KeyType::Text && !self.dialect.is_unconverted(text.as_bytes()) {
                Err(Refusal::UnknownShard(NoShardKey::Encoding))
            } else {
                Ok(of.parse(text)?)
            }
        };
        let columns = map.columns();
        let mut values =
            key.iter().zip(columns).map(column).collect::<Result<Vec<ShardKey>, _>>()?;
        // For a wrong number of columns, placeholders are added and the map reports the error.
        values.extend((columns.len()..key.len()).map(|_| ShardKey::Int(0)));
        let values: Vec<_> = values.into_iter().map(Some).collect();
        Ok(map.shard(&values)?)
    }

    /// Returns a random shard, by one step of SplitMix64.
    fn random_shard(&mut self, sides: u32) -> u32 {
        self.random_state = self.random_state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random_state;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(sides.max(1))) as u32
    }
}

#[cfg(test)]
mod tests;
