//! [`ClientRouting`]: a client's routing settings, and how much of its input has been inspected.
//! [`Routers`]: a worker's routers, which cache the analyses of each database's statements.
//!
//! A client has a [`ClientRouting`] only if it has used one of the pooler's commands, or if its
//! database's configuration requires inspecting statements. For other clients, a statement is only
//! checked for being such a command.

pub(crate) mod context;

use std::sync::Arc;

use hashbrown::HashMap;
use howdah_route::{
    Parsed, PinScope, RolePreference, Route, RouteCommand, RouteSession, RouteSettings, Router,
};

use crate::{
    cluster::TargetRole,
    session::{
        parameter::{SessionParameter, eq_name},
        parameters::TrackedParameters,
    },
    spec::{PoolSpec, PoolingMode},
    state::{ids::PoolId, welcome::WelcomeMessage},
};

/// Size of a worker's statement cache for one database, in bytes.
const CACHE_BYTES: usize = 4 << 20;

/// Maximum number of statement analyses cached for one client; when it is exceeded, all are
/// discarded.
const KNOWN_STATEMENTS_MAX: usize = 512;

/// The routing state of a client.
#[derive(Debug)]
pub(crate) struct ClientRouting {
    pub(crate) session: RouteSession,
    /// The side that answers the batch of the next messages.
    pub(crate) batch_owner: BatchOwner,
    /// Number of bytes at the start of the remaining input that have already been inspected and
    /// routed.
    pub(crate) inspected_bytes: usize,
    /// The query string of a BEGIN that was answered but has not been sent to a server yet, and its
    /// route.
    pub(crate) deferred_begin: Option<(Box<[u8]>, Route)>,
    /// The role and shard of every request until the next command, if they do not depend on the
    /// text of requests.
    pub(crate) fixed_route: Option<(TargetRole, Option<u32>)>,
    /// Whether the inspected messages only parse or describe statements, which any shard can do, so
    /// that a deferred BEGIN stays deferred.
    pub(crate) is_describe_only: bool,
    /// The text and route of a BEGIN, if the batch that the pooler is answering is a single BEGIN.
    /// Its Execute turns it into `deferred_begin`.
    pub(crate) pending_begin: Option<(Box<[u8]>, Route)>,
    /// Portals bound to the pooler's commands in the current batch.
    pub(crate) portals: Vec<(Box<[u8]>, RouteCommand)>,
    /// Whether the client has prepared one of the pooler's commands.
    pub(crate) has_commands: bool,
    /// Analyses of named statements, by statement id, under the current settings.
    pub(crate) statements_by_id: HashMap<u64, Parsed>,
    /// Statements by name, if the pooler does not rewrite names. The value is `None` if it is
    /// uncertain which of several texts the server has.
    pub(crate) statements_by_name: HashMap<Box<[u8]>, Option<NamedStatement>>,
    /// The edition of the router for which the cached routes and analyses were made.
    edition: u32,
    has_server_encoding: bool,
}

/// The text of a statement, and its analysis.
pub(crate) type NamedStatement = (Box<[u8]>, Parsed);

/// The side that answers a batch: servers or the pooler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BatchOwner {
    /// One server, or servers of several shards.
    Servers,
    /// The pooler, because the batch consists of its own commands or a BEGIN to defer.
    Pooler,
    /// The pooler has refused the batch: everything up to its Sync is ignored.
    Refused,
}

impl ClientRouting {
    /// Creates the state of a client that has not used any command yet. `role` is the role
    /// requested at login; `welcome` contains the server's parameters.
    pub(crate) fn new(
        pin_scope: PinScope,
        seed: u64,
        role: Option<RolePreference>,
        parameters: &TrackedParameters,
        welcome: Option<&[SessionParameter]>,
    ) -> Self {
        let mut routing = Self {
            session: RouteSession::new(pin_scope, seed).with_role(role),
            batch_owner: BatchOwner::Servers,
            inspected_bytes: 0,
            deferred_begin: None,
            is_describe_only: false,
            fixed_route: None,
            pending_begin: None,
            portals: Vec::new(),
            has_commands: false,
            statements_by_id: HashMap::new(),
            statements_by_name: HashMap::new(),
            edition: 0,
            has_server_encoding: false,
        };
        for setting in welcome.unwrap_or_default().iter().chain(parameters.list()) {
            routing.handle_parameter(&setting.name, &setting.value);
        }
        routing
    }

    /// Records the value of a parameter that affects how statements are read, and ignores others.
    pub(crate) fn handle_parameter(&mut self, name: &[u8], value: &[u8]) {
        for known in [&b"client_encoding"[..], b"server_encoding", b"standard_conforming_strings"] {
            if eq_name(known, name) {
                self.session.parameter_status(known, value);
                self.has_server_encoding |= known == b"server_encoding";
            }
        }
    }

    /// Records the shard of the server that was linked to the client, and its encoding if that is
    /// not known yet. `value` returns the server's parameters.
    pub(crate) fn server_linked<'a>(
        &mut self,
        shard: u32,
        value: impl Fn(&[u8]) -> Option<&'a [u8]>,
    ) {
        self.session.link(shard);
        if !self.has_server_encoding
            && let Some(encoding) = value(b"server_encoding")
        {
            self.handle_parameter(b"server_encoding", encoding);
        }
    }

    /// Returns the fixed route, if there is one and the settings are unchanged.
    #[inline]
    pub(crate) fn fixed_route(&self, edition: u32) -> Option<(TargetRole, Option<u32>)> {
        self.fixed_route.filter(|_| self.edition == edition)
    }

    /// Takes the deferred BEGIN if it must be sent before the next request.
    pub(crate) fn take_deferred_begin(&mut self) -> Option<Box<[u8]>> {
        if self.is_describe_only {
            return None;
        }
        self.deferred_begin.take().map(|(text, _)| text)
    }

    /// Called when the client's server has been released; a BEGIN that is still deferred keeps the
    /// session in its transaction.
    pub(crate) fn server_released(&mut self) {
        self.session.release();
        if let Some((_, route)) = &self.deferred_begin {
            self.session.defer_begin(route);
        }
    }

    /// Discards cached data if the settings have changed, or if there is too much of it.
    pub(crate) fn update_edition(&mut self, edition: u32) {
        if self.edition != edition || self.statements_by_id.len() > KNOWN_STATEMENTS_MAX {
            self.edition = edition;
            self.fixed_route = None;
            self.statements_by_id.clear();
        }
    }

    /// Whether the client is neither in a batch that the pooler answers nor in a transaction whose
    /// BEGIN is deferred.
    pub(crate) fn is_idle(&self) -> bool {
        self.batch_owner == BatchOwner::Servers && self.deferred_begin.is_none()
    }
}

/// Returns the role of the servers that are suitable for a role preference. `Auto` depends on the
/// statement's text, and counts as `Any` until there is one.
pub(crate) fn target_role(preference: RolePreference) -> TargetRole {
    match preference {
        RolePreference::Primary => TargetRole::Primary,
        RolePreference::Replica => TargetRole::Replica,
        RolePreference::PreferReplica => TargetRole::PreferReplica,
        RolePreference::Any | RolePreference::Auto => TargetRole::Any,
    }
}

impl From<howdah_route::RouteRole> for TargetRole {
    fn from(role: howdah_route::RouteRole) -> Self {
        match role {
            howdah_route::RouteRole::Primary => Self::Primary,
            howdah_route::RouteRole::Replica => Self::Replica,
            howdah_route::RouteRole::PreferReplica => Self::PreferReplica,
            howdah_route::RouteRole::Any => Self::Any,
        }
    }
}

impl From<TargetRole> for RolePreference {
    fn from(role: TargetRole) -> Self {
        match role {
            TargetRole::Any => Self::Any,
            TargetRole::Primary => Self::Primary,
            TargetRole::Replica => Self::Replica,
            TargetRole::PreferReplica => Self::PreferReplica,
        }
    }
}

/// The routers of a worker, one for each database, and the routing settings of its pools. They are
/// stored separately from the pools so that the router of a client and the pool of its server can
/// be borrowed at the same time.
#[derive(Debug, Default)]
pub(crate) struct Routers {
    routers: Vec<Option<DatabaseRouter>>,
    /// Routing settings of each pool, by the pool's index.
    pools: Vec<Option<PoolRouting>>,
    editions: u32,
}

/// The router for all clients of a database, in one worker.
#[derive(Debug)]
pub(crate) struct DatabaseRouter {
    pub(crate) router: Router,
    /// Unique for each router of this worker; editions start at 1. A new one shows that the
    /// settings have changed.
    pub(crate) edition: u32,
    /// Whether statements are inspected even for clients that have not used any command.
    pub(crate) inspects_statements: bool,
    /// Number of pools that use the router.
    users: u32,
}

/// The settings of a pool that affect how its clients are routed.
#[derive(Debug)]
pub(crate) struct PoolRouting {
    router: usize,
    pub(crate) pin_scope: PinScope,
    /// Whether a BEGIN can be deferred: in transaction mode.
    pub(crate) can_defer_begin: bool,
    /// Whether the pooler rewrites the names of prepared statements, and so knows what each means.
    pub(crate) has_tracked_names: bool,
    pub(crate) welcome: Arc<WelcomeMessage>,
}

impl Routers {
    /// Adds a pool or applies its new settings.
    pub(crate) fn update_pool(&mut self, pool: PoolId, spec: &PoolSpec) {
        let entry = spec.routing.as_ref().map(|settings| self.add_user(settings));
        self.remove_pool(pool);
        let Some(entry) = entry else { return };
        if self.pools.len() <= pool.index() {
            self.pools.resize_with(pool.index() + 1, || None);
        }
        let is_session = spec.mode == PoolingMode::Session;
        self.pools[pool.index()] = Some(PoolRouting {
            router: entry,
            pin_scope: if is_session { PinScope::Session } else { PinScope::Transaction },
            can_defer_begin: matches!(spec.mode, PoolingMode::Transaction | PoolingMode::Adaptive),
            has_tracked_names: !is_session && spec.statements_per_server > 0,
            welcome: Arc::clone(&spec.welcome),
        });
    }

    /// Removes a pool, and its router if no other pool uses it.
    pub(crate) fn remove_pool(&mut self, pool: PoolId) {
        let Some(pool_routing) = self.pools.get_mut(pool.index()).and_then(Option::take) else {
            return;
        };
        let Some(slot) = self.routers.get_mut(pool_routing.router) else { return };
        if let Some(entry) = slot {
            entry.users -= 1;
            if entry.users == 0 {
                *slot = None;
            }
        }
    }

    /// Returns the router for the clients of a pool, with the pool's settings; `None` if they are
    /// not routed.
    #[inline]
    pub(crate) fn for_pool(&mut self, pool: PoolId) -> Option<(&mut DatabaseRouter, &PoolRouting)> {
        let pool_routing = self.pools.get(pool.index())?.as_ref()?;
        Some((self.routers.get_mut(pool_routing.router)?.as_mut()?, pool_routing))
    }

    fn add_user(&mut self, settings: &Arc<RouteSettings>) -> usize {
        let is_equal = |entry: &Option<DatabaseRouter>| {
            entry.as_ref().is_some_and(|entry| std::ptr::eq(entry.router.settings(), &**settings))
        };
        if let Some(at) = self.routers.iter().position(is_equal) {
            self.routers[at].iter_mut().for_each(|entry| entry.users += 1);
            return at;
        }
        self.editions += 1;
        let inspects_statements = settings.role == RolePreference::Auto
            || settings.hints.is_some()
            || settings.shards > 1
            || settings.read_your_writes;
        let router = Router::new(Arc::clone(settings), CACHE_BYTES);
        let entry =
            DatabaseRouter { router, edition: self.editions, inspects_statements, users: 1 };
        let free = self.routers.iter().position(Option::is_none);
        let at = free.unwrap_or(self.routers.len());
        match self.routers.get_mut(at) {
            Some(free) => *free = Some(entry),
            None => self.routers.push(Some(entry)),
        }
        at
    }
}

#[test]
fn pools_of_one_database_share_router_until_last_is_removed() {
    let spec = |settings: &Arc<RouteSettings>| PoolSpec {
        routing: Some(Arc::clone(settings)),
        ..PoolSpec::new(1)
    };
    let mut routers = Routers::default();
    let (one, other) = (Arc::new(RouteSettings::default()), Arc::new(RouteSettings::default()));
    let pools = [PoolId(0), PoolId(2), PoolId(5)];
    for (pool, settings) in pools.into_iter().zip([&one, &one, &other]) {
        routers.update_pool(pool, &spec(settings));
    }
    let mut edition = |pool: PoolId| routers.for_pool(pool).map(|(entry, _)| entry.edition);
    assert_eq!(pools.map(&mut edition), [Some(1), Some(1), Some(2)]);
    assert_eq!(edition(PoolId(1)), None);
    routers.remove_pool(pools[0]);
    routers.update_pool(pools[1], &spec(&one));
    assert_eq!(
        routers.for_pool(pools[1]).map(|(entry, _)| entry.edition),
        Some(1),
        "the router still has a user"
    );
    routers.update_pool(pools[1], &PoolSpec::new(1));
    routers.update_pool(pools[0], &spec(&one));
    assert_eq!(
        routers.for_pool(pools[0]).map(|(entry, _)| entry.edition),
        Some(3),
        "the router was removed"
    );
    assert_eq!(routers.routers.len(), 2);
}
