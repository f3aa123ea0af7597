//! Hands clients over to another process, with their sockets, and adopts clients that another
//! process hands over.

use std::{sync::Arc, time::Duration};

use howdah_route::{RolePreference, RouteCommand, SessionOverrides};
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    Channel,
    call::CoreCall,
    clients::{Clients, leaving},
    login::{CancelSecret, ClientLogin},
    peers::Peers,
    pools::Pools,
    prepared::{
        parse_settings::{ParseSettingValues as ParseValues, ParseSettings, borrowed},
        statements::{is_simple, sql_text},
    },
    routing::{ClientRouting, Routers, target_role},
    session::{Sessions, parameter::SessionParameter},
    state::{
        client::{ClientConnection, ClientState},
        ids::{ClientId, PoolId, WorkerId},
    },
    time::Time,
};

/// The state of a client that moves to another process, except its socket and the name of its pool.
/// The client has no server, no outstanding request, and no unsent reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientHandover {
    /// The user that the client logged in as, if it differs from its pool's user.
    pub user: Option<Arc<str>>,
    /// The negotiated protocol version.
    pub version: ProtocolVersion,
    /// The client's cancel key, which stays valid in the new process.
    pub key: CancelKey,
    /// Time since the client's login.
    pub age: Duration,
    /// The session parameters that the client expects on every server.
    pub parameters: Vec<SessionParameter>,
    /// The session parameters that the client's startup packet requested.
    pub startup_parameters: Vec<SessionParameter>,
    /// The settings under which the client's statements were parsed, without duplicates.
    pub parse_settings: Vec<ParseValues>,
    /// The client's prepared statements, by name.
    pub statements: Vec<(Vec<u8>, HandoverStatement)>,
    /// The client's unnamed statement; the text is empty if it has none.
    pub unnamed: HandoverStatement,
    /// The server role that the client requested at login; `None` to use the pool's.
    pub role: Option<RolePreference>,
    /// The routing settings changed by the client's own commands since its login.
    pub session_overrides: SessionOverrides,
    /// The shards that the client wrote to, if it reads its own writes.
    pub written_shards: Vec<u32>,
    /// The channels that the client listens to.
    pub channels: Vec<Channel>,
}

/// A prepared statement of a client that is handed over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HandoverStatement {
    /// The body of the statement's Parse message after the name.
    pub text: Vec<u8>,
    /// Index into [`ClientHandover::parse_settings`]; `None` if the statement's meaning depends on
    /// no settings, or they are unknown.
    pub settings: Option<usize>,
}

/// Maximum total length of the prepared statements of a client that is handed over: 16 MiB.
const STATEMENT_BYTES_MAX: usize = 16 << 20;

/// Returns the clients that can be handed over now: they have no server, no unfinished request,
/// no unsent reply or notification, and prepared statements of at most 16 MiB.
pub(crate) fn candidates(clients: &Clients) -> Vec<ClientId> {
    clients.iter().filter(|(_, client)| can_hand_over(client)).map(|(id, _)| id).collect()
}

/// Returns the owner pool of a listening client, and the channels that it listens to; `None` if
/// it does not listen.
pub(crate) fn committed_channels(
    clients: &Clients,
    id: ClientId,
) -> Option<(PoolId, impl Iterator<Item = &Channel> + use<'_>)> {
    let client = clients.get(id)?;
    let mut channels = client.channels.as_ref()?.committed().peekable();
    channels.peek()?;
    Some((client.owner_pool, channels))
}

/// Removes a client without closing its connection, and returns its owner pool and state. Its
/// slot may then be reused. Returns `None`, without any change, if the client cannot be handed
/// over now.
pub(crate) fn hand_over(
    peers: &mut Peers,
    worker: WorkerId,
    call: &mut CoreCall<'_>,
    id: ClientId,
) -> Option<(PoolId, ClientHandover)> {
    peers.clients.get(id).filter(|client| can_hand_over(client))?;
    let client = leaving::remove(peers, call, id)?;
    let mut parse_settings: Vec<Arc<ParseSettings>> = Vec::new();
    let mut statement = |text: &[u8], settings: Option<&Arc<ParseSettings>>| HandoverStatement {
        text: text.to_vec(),
        settings: settings.map(|settings| {
            let known = parse_settings.iter().position(|known| known.id == settings.id);
            known.unwrap_or_else(|| {
                parse_settings.push(Arc::clone(settings));
                parse_settings.len() - 1
            })
        }),
    };
    let named = client.statements.named.iter();
    let statements = named
        .map(|(name, it)| (name.to_vec(), statement(&it.text, it.settings.as_ref())))
        .collect();
    let unnamed =
        statement(&client.statements.unnamed, client.statements.unnamed_settings.as_ref());
    let handover = ClientHandover {
        user: client.user.clone(),
        version: client.version,
        key: client.cancel_key(worker, id),
        age: call.now.since(client.connected_at),
        parameters: client.parameters.list().to_vec(),
        startup_parameters: client.startup_parameters.list().to_vec(),
        parse_settings: parse_settings.iter().map(|it| it.values.clone()).collect(),
        statements,
        unnamed,
        role: client.member.requested_role,
        session_overrides: client
            .routing
            .map(|routing| routing.session.overrides())
            .unwrap_or_default(),
        written_shards: client
            .member
            .causal_token
            .iter()
            .flat_map(|floors| floors.shards())
            .collect(),
        channels: client.channels.iter().flat_map(|it| it.committed()).cloned().collect(),
    };
    Some((client.owner_pool, handover))
}

/// Creates the client that another process handed over, for a pool of this worker.
pub(crate) fn adopt(
    pools: &Pools,
    routers: &mut Routers,
    sessions: &mut Sessions,
    pool: PoolId,
    handover: ClientHandover,
    now: Time,
) -> ClientConnection {
    let ClientHandover {
        user,
        version,
        key,
        age,
        parameters,
        startup_parameters,
        parse_settings,
        statements,
        unnamed,
        role,
        session_overrides,
        written_shards,
        channels,
    } = handover;
    // The client keeps its old cancel key, so it needs no random secret.
    let secret = CancelSecret([0; 32]);
    let login = ClientLogin { pool, user, version, secret, parameters: Vec::new(), role: None };
    let parameters = sessions.parameters.intern(parameters);
    let mut client = ClientConnection::new(&login, parameters);
    client.member.requested_role = role;
    pools.attach_to_cluster(&mut client, role.map(target_role));
    client.startup_parameters = sessions.parameters.intern(startup_parameters);
    client.state = ClientState::Idle;
    client.state_since = now;
    let age = u64::try_from(age.as_nanos()).unwrap_or(u64::MAX);
    client.connected_at = Time(now.0.saturating_sub(age));
    let parse_settings: Vec<_> = parse_settings
        .iter()
        .map(|values| sessions.statements.parse_settings(&borrowed(values)))
        .collect();
    let settings = |of: &HandoverStatement| of.settings.and_then(|at| parse_settings.get(at));
    for (name, of) in statements {
        let statement = sessions.statements.intern(&of.text, settings(&of));
        client.statements.named.insert(name.into(), statement);
    }
    let is_simple = is_simple(sql_text(&unnamed.text));
    client.statements.set_unnamed(&unnamed.text, is_simple, settings(&unnamed));
    restore_routing(pools, routers, &mut client, session_overrides);
    restore_causal_token(pools, &mut client, &written_shards);
    if !channels.is_empty() {
        client.channels.get_or_insert_default().restore(channels.into_iter());
    }
    client.takeover_key = Some(Box::new(key));
    client
}

/// Restores a client's routing settings, and whether it has prepared routing commands.
fn restore_routing(
    pools: &Pools,
    routers: &mut Routers,
    client: &mut ClientConnection,
    session_overrides: SessionOverrides,
) {
    let context =
        if client.member.is_clustered { routers.for_pool(client.owner_pool) } else { None };
    let Some((slot, owner)) = context else { return };
    let mut statements = client.statements.named.values();
    let is_command = |text: &[u8]| RouteCommand::read(sql_text(text)).is_some();
    let has_commands = is_command(&client.statements.unnamed)
        || statements.any(|statement| is_command(&statement.text));
    if session_overrides == SessionOverrides::default() && !has_commands {
        return;
    }
    let greeting = owner.welcome.parameters();
    let seed = u64::from(pools.worker.0);
    let (role, parameters) = (client.member.requested_role, &client.parameters);
    let mut routing =
        ClientRouting::new(owner.pin_scope, seed, role, parameters, greeting.as_deref());
    routing.session.resume(&slot.router, session_overrides);
    routing.has_commands = has_commands;
    client.routing = Some(Box::new(routing));
}

/// Records the client's earlier writes as if they were made now, which is safe: a replica that
/// has replayed the primary's current position has them all.
fn restore_causal_token(pools: &Pools, client: &mut ClientConnection, shards: &[u32]) {
    let pool = pools.get(client.owner_pool);
    let clusters = pool.map_or(&[][..], |pool| &pool.spec.clusters);
    for shard in shards.iter().copied() {
        let cluster = usize::try_from(shard).ok().and_then(|at| clusters.get(at));
        let Some(cluster) = cluster else { continue };
        let floor = cluster.state.write_tracker.record_deferrable_write();
        client.member.has_read_your_writes = true;
        client.member.causal_token.get_or_insert_default().raise(shard, floor);
    }
}

fn can_hand_over(client: &ClientConnection) -> bool {
    let named = &client.statements.named;
    client.state == ClientState::Idle
        && client.is_external()
        && !client.has_unprocessed_input()
        && !client.flow.is_backlogged
        && !client.has_partial_message
        && client.routing.as_ref().is_none_or(|routing| routing.is_idle())
        && !client.channels.as_ref().is_some_and(|it| it.has_pending())
        && named.iter().map(|(name, it)| name.len() + it.text.len()).sum::<usize>()
            + client.statements.unnamed.len()
            <= STATEMENT_BYTES_MAX
}
