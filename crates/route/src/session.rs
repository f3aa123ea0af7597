//! [`Session`]: what a client has said about routing, and where its requests go.

use std::{ops::Range, sync::Arc};

use howdah_shard::Key;
use howdah_wire::frontend::Bind;

use crate::{
    Answer, Command, Refusal,
    dialect::Dialect,
    hint::Hints,
    keys::Values,
    plan::{Plan, ShardScope, Temporary},
    refusal::NoShardKey,
    role::{Cause, Role, RolePreference},
    route::{Route, Shards},
    router::{Router, anywhere, by_default},
    settings::{DefaultShard, Settings},
};

/// How long a server stays with a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinScope {
    /// For a transaction.
    Transaction,
    /// For the rest of the session: its first statement fixes server and shard.
    Session,
}

/// The routing of one client's session.
///
/// ```text
///             simple, bind, unbound: a Route            linked(shard)
///   free ────────────────────────────────────► free ───────────────────► linked
///    ▲  commands change what is wanted                 commands are refused, and │
///    │                                                 statements for other shards
///    └────────────────────────────── released() ◄────────────────────────────────┘
/// ```
///
/// Does no I/O: whoever has the connections asks for a route before a request that may need a server, says
/// when a server has been linked for it, and when it is let go.
#[derive(Clone, Debug)]
pub struct Session {
    hold: PinScope,
    /// What holds while it has said no role, in the place of what the settings say.
    own_role: Option<RolePreference>,
    said: Said,
    link: Option<Link>,
    /// The route given last, in case a server is linked for it.
    last_is_said: bool,
    /// A BEGIN that has not been sent yet.
    begun: Option<Role>,
    has_temporary: bool,
    dialect: Dialect,
    /// The state of the generator of random shards.
    dice: u64,
}

/// What a client has said by commands; it stays until it says something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Said {
    /// By `SET SERVER ROLE`.
    pub role: Option<RolePreference>,
    /// By `SET PRIMARY READS`.
    pub primary_reads: Option<bool>,
    /// By `SET READ YOUR WRITES`.
    pub read_your_writes: Option<bool>,
    /// By `SET SHARD` or `SET SHARDING KEY`.
    pub shard: Option<u32>,
}

/// A server that the session is on.
#[derive(Clone, Copy, Debug)]
struct Link {
    shard: u32,
    /// The client has said so, so statements are not looked at.
    is_said: bool,
}

/// What to do with a query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It is a command, and this is the answer; no server sees it.
    Command(Answer),
    /// It goes there.
    Route(Route),
}

/// A prepared statement, as far as routing goes.
#[derive(Clone, Debug)]
pub struct Statement {
    plan: Arc<Plan>,
    hints: Hints,
    types: Box<[u32]>,
    text: Option<Text>,
}

/// A text whose constants are keys.
#[derive(Clone, Debug)]
struct Text {
    sql: Box<[u8]>,
    constants: Box<[Range<usize>]>,
}

/// What a Parse holds.
#[derive(Clone, Debug)]
pub enum Parsed {
    /// A command. It is obeyed when it is executed, by [`Session::execute`].
    Command(Command),
    /// A statement for servers.
    Statement(Statement),
}

impl Session {
    /// Of a client that has said nothing yet. `seed` decides what `SET SHARD TO ANY` takes.
    pub fn new(hold: PinScope, seed: u64) -> Self {
        Self {
            hold,
            own_role: None,
            said: Said::default(),
            link: None,
            last_is_said: false,
            begun: None,
            has_temporary: false,
            dialect: Dialect::default(),
            dice: seed,
        }
    }

    /// The same for a client that has said at its start which servers would do: that is its `DEFAULT`.
    #[must_use]
    pub fn with_role(mut self, role: Option<RolePreference>) -> Self {
        self.own_role = role;
        self
    }

    /// What the client has said.
    pub fn said(&self) -> Said {
        self.said
    }

    /// Goes on where the client was elsewhere. A shard that is not there is forgotten.
    pub fn resume(&mut self, router: &Router, said: Said) {
        let shard = said.shard.filter(|shard| *shard < router.settings.shards);
        self.said = Said { shard, ..said };
    }

    /// Where every request goes that is no command, whatever its text; `None` if texts have to be looked
    /// at. Call it whether or not a server is linked.
    ///
    /// # Errors
    ///
    /// Requests go nowhere now.
    pub fn blind(&mut self, router: &Router) -> Result<Option<Route>, Refusal> {
        match router.settings.hints {
            Some(_) => Ok(None),
            None => self.without_plan(router, &Hints::default()),
        }
    }

    /// Messages that run nothing, such as a Close: where the client has said, else anywhere.
    pub fn aside(&mut self, router: &Router) -> Route {
        let settings = &*router.settings;
        let none = Hints::default();
        let said = self.said_shard(settings, &none).ok().flatten();
        self.last_is_said = said.is_some();
        let shards = match (self.link, said) {
            (Some(Link { shard, .. }), _) | (None, Some(shard)) => Shards::One(shard),
            _ if settings.shards == 1 => Shards::One(0),
            _ => Shards::Any,
        };
        let may_lead = self.may_lead(settings, &none);
        let role = match self.said_role(settings, &none) {
            RolePreference::Auto => Role::Any,
            _ => self.role_for(settings, &none, None),
        };
        Route { shards, role, may_lead, why: None, is_begin: false }
    }

    /// Whether it depends on its text where a request goes, once there is no server linked.
    pub fn depends_on_text(&self, router: &Router) -> bool {
        let settings = &*router.settings;
        settings.hints.is_some()
            || self.said_role(settings, &Hints::default()) == RolePreference::Auto
            || (self.said.shard.is_none() && settings.asks_statements())
    }

    /// Whether a server that has not got what the client wrote does not do for it.
    pub fn reads_own_writes(&self, router: &Router) -> bool {
        self.said.read_your_writes.unwrap_or(router.settings.read_your_writes)
    }

    /// A ParameterStatus that the client has been sent: some decide how its texts are to be read. Until
    /// `client_encoding` and `server_encoding` are known, only ASCII is read.
    pub fn parameter_status(&mut self, name: &[u8], value: &[u8]) {
        self.dialect.parameter_status(name, value);
    }

    /// Whether a text is sure to only read, by itself and outside of a transaction, and to leave nothing behind in
    /// its session: whether it does no harm to run it twice, wherever that is.
    pub fn only_reads(&self, router: &mut Router, sql: &[u8]) -> bool {
        let plan = router.plan(sql, &self.dialect);
        plan.primary.is_none() && !plan.is_begin && plan.temporary.is_none()
    }

    /// Whether text that the client sends is the same bytes on the server: for the rows of a COPY.
    pub fn same_encoding(&self) -> bool {
        self.dialect.same_encoding()
    }

    /// A Query. Call it whether or not a server is linked.
    ///
    /// # Errors
    ///
    /// It goes nowhere; nothing has changed.
    pub fn simple(&mut self, router: &mut Router, sql: &[u8]) -> Result<Request, Refusal> {
        if let Some(command) = Command::read(sql) {
            return self.execute(router, &command?).map(Request::Command);
        }
        let hints = self.hints(router, sql)?;
        if let Some(route) = self.without_plan(router, &hints)? {
            return Ok(Request::Route(route));
        }
        let plan = router.plan(sql, &self.dialect);
        let values = Values {
            sql,
            constants: router.cache.skeleton().constants(),
            bind: None,
            same_encoding: self.dialect.same_encoding(),
        };
        self.route(&router.settings, &plan, &hints, values).map(Request::Route)
    }

    /// A Parse, with the types of parameters that it says.
    ///
    /// # Errors
    ///
    /// A hint or command in it cannot be.
    pub fn parse(
        &mut self,
        router: &mut Router,
        sql: &[u8],
        types: impl IntoIterator<Item = u32>,
    ) -> Result<Parsed, Refusal> {
        if let Some(command) = Command::read(sql) {
            return command.map(Parsed::Command);
        }
        let hints = self.hints(router, sql)?;
        let plan = router.plan(sql, &self.dialect);
        let constants = router.cache.skeleton().constants();
        let text =
            plan.reach.has_keys().then(|| Text { sql: sql.into(), constants: constants.into() });
        Ok(Parsed::Statement(Statement { plan, hints, types: types.into_iter().collect(), text }))
    }

    /// A Bind to a statement: the portal has to be executed there.
    ///
    /// # Errors
    ///
    /// It goes nowhere; nothing has changed.
    pub fn bind(
        &mut self,
        router: &Router,
        statement: &Statement,
        bind: &Bind<'_>,
    ) -> Result<Route, Refusal> {
        if let Some(route) = self.without_plan(router, &statement.hints)? {
            return Ok(route);
        }
        let text = statement.text.as_ref();
        let sql = text.map_or(&[][..], |text| &text.sql);
        let constants = text.map_or(&[][..], |text| &text.constants);
        let same_encoding = self.dialect.same_encoding();
        let values = Values { sql, constants, bind: Some((&statement.types, bind)), same_encoding };
        self.route(&router.settings, &statement.plan, &statement.hints, values)
    }

    /// Parse or Describe of a statement without a Bind: any shard that has its tables knows what it is like.
    ///
    /// # Errors
    ///
    /// A hint says a shard that is not there, or another than the one that a server is linked of; or nothing
    /// says where its tables are.
    pub fn unbound(&mut self, router: &Router, statement: &Statement) -> Result<Route, Refusal> {
        if let Some(route) = self.without_plan(router, &statement.hints)? {
            return Ok(route);
        }
        self.last_is_said = false;
        let values = Values { sql: b"", constants: &[], bind: None, same_encoding: false };
        let settings = &*router.settings;
        let shards = match (&statement.plan.reach, self.link) {
            (_, Some(link)) => Shards::One(link.shard),
            _ if settings.shards == 1 => Shards::One(0),
            _ if !settings.asks_statements() => by_default(settings),
            (ShardScope::Unlisted { .. }, None) => anywhere(settings, &statement.plan, values)?,
            (_, None) => match settings.default_shard {
                DefaultShard::One(shard) if statement.plan.reads_catalog => Shards::One(shard),
                _ => Shards::Any,
            },
        };
        Ok(self.to(&router.settings, shards, &statement.plan, &statement.hints))
    }

    /// Obeys a command, which [`Self::simple`] does by itself.
    ///
    /// # Errors
    ///
    /// It is not possible now, or not with this value; nothing has changed.
    pub fn execute(&mut self, router: &Router, command: &Command) -> Result<Answer, Refusal> {
        let settings = &*router.settings;
        let tag = command.tag();
        let shows = matches!(
            command,
            Command::ShowShard
                | Command::ShowServerRole
                | Command::ShowPrimaryReads
                | Command::ShowReadYourWrites
        );
        if !shows && (self.link.is_some() || self.begun.is_some()) {
            return Err(Refusal::TooLate { tag, in_session_mode: self.is_in_session_mode() });
        }
        let mut row = None;
        match command {
            Command::SetShard(None) => self.said.shard = Some(self.roll(settings.shards)),
            Command::SetShard(Some(shard)) => {
                self.said.shard = Some(self.checked(settings, *shard)?);
            }
            Command::SetShardingKey(key) => {
                let texts: Vec<_> = key.iter().map(String::as_str).collect();
                self.said.shard = Some(self.shard_of(settings, &texts)?);
            }
            Command::SetServerRole(Some(RolePreference::Auto)) if !cfg!(feature = "grammar") => {
                return Err(Refusal::NoGrammar);
            }
            Command::SetServerRole(wish) => self.said.role = *wish,
            Command::SetPrimaryReads(on) => self.said.primary_reads = *on,
            Command::SetReadYourWrites(on) => self.said.read_your_writes = *on,
            Command::ShowShard => {
                let shard = self.link.map(|link| link.shard).or(self.said.shard);
                let text = shard.map_or("unset".to_owned(), |shard| shard.to_string());
                row = Some(text);
            }
            Command::ShowServerRole => {
                let wish = self.said_role(settings, &Hints::default());
                row = Some(wish.as_str().to_owned());
            }
            Command::ShowPrimaryReads => {
                let on = self.said.primary_reads.unwrap_or(settings.primary_reads);
                row = Some(if on { "on" } else { "off" }.to_owned());
            }
            Command::ShowReadYourWrites => {
                let on = self.reads_own_writes(router);
                row = Some(if on { "on" } else { "off" }.to_owned());
            }
        }
        Ok(Answer { row: command.column().zip(row), tag })
    }

    /// A server of this shard has been linked, for the route given last. Of a database that is not sharded it
    /// is 0.
    pub fn linked(&mut self, shard: u32) {
        self.link = Some(Link { shard, is_said: self.last_is_said });
    }

    /// The server has been let go. In session mode that is never before the end.
    pub fn released(&mut self) {
        self.link = None;
        self.begun = None;
    }

    /// A BEGIN, whose route was given last, has been answered and is kept until the next request tells where
    /// it goes: that is on one shard, and on a server that would do for both.
    pub fn begun(&mut self, route: &Route) {
        self.begun = Some(route.role);
    }

    fn is_in_session_mode(&self) -> bool {
        self.hold == PinScope::Session
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

    /// The route of a request that goes somewhere whatever it says: no text has to be looked at.
    fn without_plan(&mut self, router: &Router, hints: &Hints) -> Result<Option<Route>, Refusal> {
        let settings = &*router.settings;
        let said = self.said_shard(settings, hints)?;
        if let (Some(link), Some(wanted)) = (self.link, said) {
            let in_session_mode = self.is_in_session_mode();
            if link.shard != wanted {
                return Err(Refusal::OtherShard { wanted, linked: link.shard, in_session_mode });
            }
        }
        let shard = match (self.link, said) {
            (Some(link), _) if link.is_said || said.is_some() => Some(link.shard),
            (_, Some(shard)) => Some(shard),
            // One shard is where everything is.
            _ if settings.shards == 1 => Some(0),
            _ => None,
        };
        // Nothing is sent elsewhere once there is a server.
        let role_is_known =
            self.link.is_some() || self.said_role(settings, hints) != RolePreference::Auto;
        match shard {
            Some(shard) if role_is_known => {
                self.last_is_said = true;
                let role = self.role_for(settings, hints, None);
                let (shards, may_lead) = (Shards::One(shard), self.may_lead(settings, hints));
                Ok(Some(Route { shards, role, may_lead, why: None, is_begin: false }))
            }
            None if role_is_known && !settings.asks_statements() => {
                self.last_is_said = false;
                let shards = match self.link {
                    Some(link) => Shards::One(link.shard),
                    None => by_default(settings),
                };
                let role = self.role_for(settings, hints, None);
                let may_lead = self.may_lead(settings, hints);
                Ok(Some(Route { shards, role, may_lead, why: None, is_begin: false }))
            }
            _ => Ok(None),
        }
    }

    /// The route of a request whose text has been looked at.
    fn route(
        &mut self,
        settings: &Settings,
        plan: &Plan,
        hints: &Hints,
        values: Values<'_>,
    ) -> Result<Route, Refusal> {
        let said = self.said_shard(settings, hints)?;
        let one = said.or((settings.shards == 1).then_some(0));
        let shards = match one {
            Some(shard) => Shards::One(shard),
            None => self.reached(settings, plan, values)?,
        };
        self.last_is_said = said.is_some();
        match plan.temporary {
            Some(Temporary::Makes) => self.has_temporary = true,
            Some(Temporary::Forgets) => self.has_temporary = false,
            None => {}
        }
        Ok(self.to(settings, shards, plan, hints))
    }

    fn to(&self, settings: &Settings, shards: Shards, plan: &Plan, hints: &Hints) -> Route {
        let why = match plan.primary {
            None if self.has_temporary => Some(Cause::Temporary),
            why => why,
        };
        let role = self.role_for(settings, hints, Some(why));
        let may_lead = self.may_lead(settings, hints);
        Route { shards, role, may_lead, why, is_begin: plan.is_begin }
    }

    /// Where a statement goes by itself.
    fn reached(
        &self,
        settings: &Settings,
        plan: &Plan,
        values: Values<'_>,
    ) -> Result<Shards, Refusal> {
        let shards = match settings.asks_statements() {
            true => anywhere(settings, plan, values)?,
            false => by_default(settings),
        };
        let stays = self.link.is_some() || self.begun.is_some();
        match (shards, self.link) {
            (Shards::Any, Some(link)) => Ok(Shards::One(link.shard)),
            // Whoever asks what there is has to be told the same each time.
            (Shards::Any, None) if plan.reads_catalog => match settings.default_shard {
                DefaultShard::One(shard) => Ok(Shards::One(shard)),
                DefaultShard::Any | DefaultShard::Refuse => Ok(Shards::Any),
            },
            (Shards::One(wanted), Some(link)) if wanted != link.shard => {
                let in_session_mode = self.is_in_session_mode();
                Err(Refusal::OtherShard { wanted, linked: link.shard, in_session_mode })
            }
            (Shards::Many { .. }, _) if stays || self.is_in_session_mode() => {
                let why = match self.is_in_session_mode() {
                    true => "is not possible in session mode",
                    false => "is not possible in a transaction",
                };
                Err(Refusal::Keyless(NoShardKey::Spread(why)))
            }
            (Shards::Copy(_), _) if stays || self.is_in_session_mode() => {
                Err(Refusal::Keyless(NoShardKey::Spread("COPY cannot do in a transaction")))
            }
            (shards, _) => Ok(shards),
        }
    }

    fn said_role(&self, settings: &Settings, hints: &Hints) -> RolePreference {
        hints.role.or(self.said.role).or(self.own_role).unwrap_or(settings.role)
    }

    /// `why` a request needs the primary, if its text has been looked at.
    fn role_for(&self, settings: &Settings, hints: &Hints, why: Option<Option<Cause>>) -> Role {
        let role = match self.said_role(settings, hints) {
            RolePreference::Primary => Role::Primary,
            RolePreference::Replica => Role::Replica,
            RolePreference::PreferReplica => Role::PreferReplica,
            RolePreference::Any => Role::Any,
            // What comes later in the session nobody knows.
            RolePreference::Auto if self.is_in_session_mode() => Role::Primary,
            RolePreference::Auto if why != Some(None) => Role::Primary,
            RolePreference::Auto if self.said.primary_reads.unwrap_or(settings.primary_reads) => {
                Role::Any
            }
            RolePreference::Auto => Role::Replica,
        };
        // The BEGIN before it needs a server that would do for both.
        match self.begun {
            Some(Role::Primary) => Role::Primary,
            _ => role,
        }
    }

    /// Whether the primary does for a request that goes to a replica, if it comes to that: nobody has said that
    /// it has to be a replica.
    fn may_lead(&self, settings: &Settings, hints: &Hints) -> bool {
        self.said_role(settings, hints) != RolePreference::Replica
    }

    /// The shard that the client has said, for this request or until it says another.
    fn said_shard(&self, settings: &Settings, hints: &Hints) -> Result<Option<u32>, Refusal> {
        if let Some(shard) = hints.shard {
            return self.checked(settings, shard).map(Some);
        }
        match &hints.key {
            Some(key) => self.shard_of(settings, &[key]).map(Some),
            // What it has said may differ from where it is by a hint, which is for the transaction.
            None => Ok(match self.link {
                Some(link) => link.is_said.then_some(link.shard),
                None => match self.said.shard {
                    // The list of shards is another one now.
                    Some(shard) if shard >= settings.shards => {
                        return Err(Refusal::ShardGone { shard, shards: settings.shards });
                    }
                    said => said,
                },
            }),
        }
    }

    fn checked(&self, settings: &Settings, shard: u32) -> Result<u32, Refusal> {
        let shards = settings.shards;
        match shard < shards {
            true => Ok(shard),
            false => Err(Refusal::NoSuchShard { shard, shards, stays: self.said.shard }),
        }
    }

    fn shard_of(&self, settings: &Settings, key: &[&str]) -> Result<u32, Refusal> {
        let map = settings.map.as_ref().ok_or(Refusal::NoMap)?;
        let column = |(text, of): (&&str, &howdah_shard::KeyType)| {
            // The server would be sent other bytes.
            match *of == howdah_shard::KeyType::Text && !self.dialect.is_same(text.as_bytes()) {
                true => Err(Refusal::Keyless(NoShardKey::Encoding)),
                false => Ok(of.parse(text)?),
            }
        };
        let columns = map.columns();
        let mut values = key.iter().zip(columns).map(column).collect::<Result<Vec<Key>, _>>()?;
        // The map says what is wrong with too many or too few.
        values.extend((columns.len()..key.len()).map(|_| Key::Int(0)));
        let values: Vec<_> = values.into_iter().map(Some).collect();
        Ok(map.shard(&values)?)
    }

    /// SplitMix64.
    fn roll(&mut self, sides: u32) -> u32 {
        self.dice = self.dice.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.dice;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(sides.max(1))) as u32
    }
}

#[cfg(test)]
mod tests;
