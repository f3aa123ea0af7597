//! [`Routing`]: what a client has said about where its requests go, and which of its messages have been
//! looked at for that. [`Routers`]: what a worker knows about the statements of databases.
//!
//! A client has a [`Routing`] only once it has used a command, or where the settings of its database ask for
//! texts to be looked at; so others pay nothing but one comparison.

use std::sync::Arc;

use hashbrown::HashMap;
use howdah_route::{Command, Parsed, PinScope, RolePreference, Route, Router, Session, Settings};

use crate::{
    cluster::ServerRole,
    ids::PoolId,
    pool::WelcomeMessage,
    settings::{Setting, TrackedParameters, same_name},
    spec::{Mode, PoolSpec},
};

/// What a worker remembers about the statements of one database.
const CACHE_BYTES: usize = 4 << 20;

/// Statements that are remembered for one client, beside those that it has names for.
const KNOWN_MAX: usize = 512;

/// A client's routing.
#[derive(Debug)]
pub(crate) struct Routing {
    pub(crate) session: Session,
    /// Whose messages come: of which batch they are.
    pub(crate) batch: Batch,
    /// So many bytes of what comes next have been looked at.
    pub(crate) looked_at: usize,
    /// A BEGIN that was answered and not sent yet.
    pub(crate) begun: Option<(Box<[u8]>, Route)>,
    /// Where every request goes, whatever it says, until there is another command.
    pub(crate) fixed: Option<(ServerRole, Option<u32>)>,
    /// What comes next only asks what statements are like, on any shard: a BEGIN waits on.
    pub(crate) only_asks: bool,
    /// The batch that the pooler answers is a BEGIN, of this text: it waits for the next request to say where
    /// it goes.
    pub(crate) begins: Option<(Box<[u8]>, Route)>,
    /// Portals of commands, in a batch of them.
    pub(crate) portals: Vec<(Box<[u8]>, Command)>,
    /// It has prepared a command.
    pub(crate) has_commands: bool,
    /// Statements by their ids, as far as they were bound since the settings changed.
    pub(crate) known: HashMap<u64, Parsed>,
    /// Where the pooler does not follow names: statements by them. Without a value it is not known which of
    /// several it is.
    pub(crate) names: HashMap<Box<[u8]>, Option<Named>>,
    /// Of the router that `known` is from.
    edition: u32,
    knows_encoding: bool,
}

/// A statement's text, and what it is.
pub(crate) type Named = (Box<[u8]>, Parsed);

/// Of which batch the messages are that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Batch {
    /// For servers.
    Servers,
    /// Of commands, which the pooler answers.
    Own,
    /// It was refused: up to its Sync nothing is looked at.
    Refused,
}

impl Routing {
    /// Of a client that has said nothing but which servers would do, when it came.
    pub(crate) fn new(
        hold: PinScope,
        seed: u64,
        role: Option<RolePreference>,
        wishes: &TrackedParameters,
        greeting: Option<&[Setting]>,
    ) -> Self {
        let mut routing = Self {
            session: Session::new(hold, seed).with_role(role),
            batch: Batch::Servers,
            looked_at: 0,
            begun: None,
            only_asks: false,
            fixed: None,
            begins: None,
            portals: Vec::new(),
            has_commands: false,
            known: HashMap::new(),
            names: HashMap::new(),
            edition: 0,
            knows_encoding: false,
        };
        for setting in greeting.unwrap_or_default().iter().chain(wishes.list()) {
            routing.parameter(&setting.name, &setting.value);
        }
        routing
    }

    /// Takes what the client is told of a setting.
    pub(crate) fn parameter(&mut self, name: &[u8], value: &[u8]) {
        for known in [&b"client_encoding"[..], b"server_encoding", b"standard_conforming_strings"] {
            if same_name(known, name) {
                self.session.parameter_status(known, value);
                self.knows_encoding |= known == b"server_encoding";
            }
        }
    }

    /// A server of a shard has been linked.
    pub(crate) fn linked<'a>(&mut self, shard: u32, value: impl Fn(&[u8]) -> Option<&'a [u8]>) {
        self.session.linked(shard);
        if !self.knows_encoding
            && let Some(encoding) = value(b"server_encoding")
        {
            self.parameter(b"server_encoding", encoding);
        }
    }

    /// Where every request goes that is no command, if that is known and the settings are as they were.
    #[inline]
    pub(crate) fn fixed(&self, edition: u32) -> Option<(ServerRole, Option<u32>)> {
        self.fixed.filter(|_| self.edition == edition)
    }

    /// Takes the BEGIN that is to be sent before what comes next.
    pub(crate) fn take_begun(&mut self) -> Option<Box<[u8]>> {
        if self.only_asks {
            return None;
        }
        self.begun.take().map(|(text, _)| text)
    }

    /// The client has its server no more.
    pub(crate) fn released(&mut self) {
        self.session.released();
        if let Some((_, route)) = &self.begun {
            self.session.begun(route);
        }
    }

    /// Forgets what was learnt by other settings.
    pub(crate) fn follow(&mut self, edition: u32) {
        if self.edition != edition || self.known.len() > KNOWN_MAX {
            self.edition = edition;
            self.fixed = None;
            self.known.clear();
        }
    }

    /// Whether the client is in the middle of nothing that only the pooler knows of.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.batch == Batch::Servers && self.begun.is_none()
    }
}

/// Which servers a role means. What only a text decides goes anywhere before there is one.
pub(crate) fn role_of(wish: RolePreference) -> ServerRole {
    match wish {
        RolePreference::Primary => ServerRole::Primary,
        RolePreference::Replica => ServerRole::Replica,
        RolePreference::PreferReplica => ServerRole::PreferReplica,
        RolePreference::Any | RolePreference::Auto => ServerRole::Any,
    }
}

impl From<howdah_route::Role> for ServerRole {
    fn from(role: howdah_route::Role) -> Self {
        match role {
            howdah_route::Role::Primary => Self::Primary,
            howdah_route::Role::Replica => Self::Replica,
            howdah_route::Role::PreferReplica => Self::PreferReplica,
            howdah_route::Role::Any => Self::Any,
        }
    }
}

impl From<ServerRole> for RolePreference {
    fn from(role: ServerRole) -> Self {
        match role {
            ServerRole::Any => Self::Any,
            ServerRole::Primary => Self::Primary,
            ServerRole::Replica => Self::Replica,
            ServerRole::PreferReplica => Self::PreferReplica,
        }
    }
}

/// The routers of a worker: one for each database, however many users have a pool of it. Kept apart from
/// pools, so that a client's messages are judged with its router and its server's pool in hand.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    slots: Vec<Option<Slot>>,
    /// By the numbers of pools.
    homes: Vec<Option<Home>>,
    editions: u32,
}

/// A router.
#[derive(Debug)]
pub(crate) struct Slot {
    pub(crate) router: Router,
    /// Another for each router there ever was; from 1.
    pub(crate) edition: u32,
    /// Whether texts are looked at, of clients that have said nothing.
    pub(crate) looks: bool,
    /// How many homes use it.
    homes: u32,
}

/// What the routing of clients depends on that are at home in a pool.
#[derive(Debug)]
pub(crate) struct Home {
    slot: usize,
    pub(crate) hold: PinScope,
    /// Whether transactions may have several requests, and servers are given back behind them.
    pub(crate) may_begin: bool,
    /// Whether the pooler follows names of statements.
    pub(crate) follows_names: bool,
    pub(crate) greeting: Arc<WelcomeMessage>,
}

impl Routers {
    /// Follows the settings of a pool.
    pub(crate) fn follow(&mut self, pool: PoolId, spec: &PoolSpec) {
        let slot = spec.routing.as_ref().map(|settings| self.enter(settings));
        self.forget(pool);
        let Some(slot) = slot else { return };
        if self.homes.len() <= pool.index() {
            self.homes.resize_with(pool.index() + 1, || None);
        }
        let is_session = spec.mode == Mode::Session;
        self.homes[pool.index()] = Some(Home {
            slot,
            hold: if is_session { PinScope::Session } else { PinScope::Transaction },
            may_begin: spec.mode == Mode::Transaction,
            follows_names: !is_session && spec.statements_per_server > 0,
            greeting: Arc::clone(&spec.greeting),
        });
    }

    /// A pool is there no more, or its clients have no choice.
    pub(crate) fn forget(&mut self, pool: PoolId) {
        let Some(home) = self.homes.get_mut(pool.index()).and_then(Option::take) else { return };
        let Some(place) = self.slots.get_mut(home.slot) else { return };
        if let Some(slot) = place {
            slot.homes -= 1;
            if slot.homes == 0 {
                *place = None;
            }
        }
    }

    /// The router of the clients of a pool.
    #[inline]
    pub(crate) fn of(&mut self, pool: PoolId) -> Option<(&mut Slot, &Home)> {
        let home = self.homes.get(pool.index())?.as_ref()?;
        Some((self.slots.get_mut(home.slot)?.as_mut()?, home))
    }

    fn enter(&mut self, settings: &Arc<Settings>) -> usize {
        let is_its = |slot: &Option<Slot>| {
            slot.as_ref().is_some_and(|slot| std::ptr::eq(slot.router.settings(), &**settings))
        };
        if let Some(at) = self.slots.iter().position(is_its) {
            self.slots[at].iter_mut().for_each(|slot| slot.homes += 1);
            return at;
        }
        self.editions += 1;
        let looks = settings.role == RolePreference::Auto
            || settings.hints.is_some()
            || settings.shards > 1
            || settings.read_your_writes;
        let router = Router::new(Arc::clone(settings), CACHE_BYTES);
        let slot = Slot { router, edition: self.editions, looks, homes: 1 };
        let free = self.slots.iter().position(Option::is_none);
        let at = free.unwrap_or(self.slots.len());
        match self.slots.get_mut(at) {
            Some(free) => *free = Some(slot),
            None => self.slots.push(Some(slot)),
        }
        at
    }
}

#[test]
fn pools_of_one_database_share_a_router_until_the_last_is_gone() {
    let spec = |settings: &Arc<Settings>| PoolSpec {
        routing: Some(Arc::clone(settings)),
        ..PoolSpec::new(1)
    };
    let mut routers = Routers::default();
    let (one, other) = (Arc::new(Settings::default()), Arc::new(Settings::default()));
    let pools = [PoolId(0), PoolId(2), PoolId(5)];
    for (pool, settings) in pools.into_iter().zip([&one, &one, &other]) {
        routers.follow(pool, &spec(settings));
    }
    let mut edition = |pool: PoolId| routers.of(pool).map(|(slot, _)| slot.edition);
    assert_eq!(pools.map(&mut edition), [Some(1), Some(1), Some(2)]);
    assert_eq!(edition(PoolId(1)), None);
    routers.forget(pools[0]);
    routers.follow(pools[1], &spec(&one));
    assert_eq!(routers.of(pools[1]).map(|(slot, _)| slot.edition), Some(1), "it was kept");
    routers.follow(pools[1], &PoolSpec::new(1));
    routers.follow(pools[0], &spec(&one));
    assert_eq!(routers.of(pools[0]).map(|(slot, _)| slot.edition), Some(3), "it was forgotten");
    assert_eq!(routers.slots.len(), 2);
}
