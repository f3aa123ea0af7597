//! A core's report for monitoring: a copy of its state, made on request. The query path records
//! nothing for it except statistics.

use std::{ops::AddAssign, sync::Arc, time::Duration};

use howdah_wire::startup::CancelKey;

use crate::{
    peers::Peers,
    pools::Pools,
    spec::PoolingMode,
    state::{
        client::ClientState,
        ids::{ClientId, PoolId, ServerId},
        pool_stats::PoolStats,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// The state of a worker's pools, clients and servers at one moment.
#[derive(Clone, Debug, Default)]
pub struct CoreReport {
    /// The worker's pools, in the order of their ids.
    pub pools: Vec<PoolReport>,
    /// The clients, in no particular order; empty unless requested.
    pub clients: Vec<ClientReport>,
    /// The server connections, in no particular order; empty unless requested.
    pub servers: Vec<ServerReport>,
}

/// The state of one worker's part of a pool.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// The pool's id, which is the same in every worker.
    pub pool: PoolId,
    /// The pooling mode, which determines when a client's server is released.
    pub mode: PoolingMode,
    /// Statistics since this worker added the pool.
    pub stats: PoolStats,
    /// Numbers of clients and servers by state.
    pub counts: PoolCounts,
}

/// Numbers of clients and servers of a pool by state, as shown by SHOW POOLS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Number of clients that have a server, do not need one now, or run a request on several
    /// shards.
    pub clients_active: u32,
    /// Number of clients that wait for a server, or for their login to finish.
    pub clients_waiting: u32,
    /// Number of server connections on which a login is in progress.
    pub servers_login: u32,
    /// Number of servers linked to a client.
    pub servers_active: u32,
    /// Number of servers available to the next client.
    pub servers_idle: u32,
    /// Number of servers that are being reset or checked, or wait for a CancelRequest to finish.
    pub servers_busy: u32,
    /// Number of clients that are pinned to a server.
    pub clients_pinned: u32,
    /// The longest time that a waiting client has waited so far.
    pub wait_max: Duration,
}

impl AddAssign<&Self> for PoolCounts {
    fn add_assign(&mut self, other: &Self) {
        self.clients_active += other.clients_active;
        self.clients_waiting += other.clients_waiting;
        self.servers_login += other.servers_login;
        self.servers_active += other.servers_active;
        self.servers_idle += other.servers_idle;
        self.servers_busy += other.servers_busy;
        self.clients_pinned += other.clients_pinned;
        self.wait_max = self.wait_max.max(other.wait_max);
    }
}

/// The state of a client as shown by SHOW CLIENTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhase {
    /// The client does not need a server now.
    Idle,
    /// The client has a server, or runs a request on several shards.
    Active,
    /// The client waits for a server, or for its login to finish.
    Waiting,
}

/// The state of one client, for SHOW CLIENTS.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// Id of the client within its worker.
    pub id: ClientId,
    /// The owner pool: that of the client's database and user.
    pub pool: PoolId,
    /// The user that the client logged in as, if it differs from its pool's user.
    pub user: Option<Arc<str>>,
    /// Whether the client waits for a server, or for its login to finish.
    pub phase: ClientPhase,
    /// Time since the client's login.
    pub age: Duration,
    /// Time since the client entered its current state, such as waiting, linked or idle.
    pub since: Duration,
    /// The server that the client is linked to, if any.
    pub server: Option<ServerId>,
    /// Number of the client's named prepared statements.
    pub statements: usize,
    /// The client's `application_name`; empty if it has none.
    pub application_name: Vec<u8>,
}

/// The state of a server as shown by SHOW SERVERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPhase {
    /// A login to the server is in progress.
    Login,
    /// The server is available to the next client.
    Idle,
    /// The server has been idle for so long that it must be checked before a client gets it.
    Used,
    /// The server is linked to a client.
    Active,
    /// The server is being checked, or reset after a client.
    Tested,
    /// The server has no client, and a CancelRequest to it is in flight.
    BeingCanceled,
}

/// The state of one server connection, for SHOW SERVERS.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// Id of the connection within its worker.
    pub id: ServerId,
    /// The pool that the connection belongs to.
    pub pool: PoolId,
    /// The connection's state, as in the `state` column.
    pub phase: ServerPhase,
    /// Time since the connection was opened.
    pub age: Duration,
    /// Time since the connection entered its state; while linked, since the server last started or
    /// finished work.
    pub since: Duration,
    /// The client that the connection is linked to, if any; for a sub-request, the client that sent
    /// the request.
    pub client: Option<ClientId>,
    /// Number of CancelRequests to the server that are in flight.
    pub cancels: u32,
    /// The process id of the server's backend; 0 if the server sent no key.
    pub process_id: i32,
    /// Number of statements prepared on the connection for clients.
    pub statements: usize,
    /// The connection's `application_name`; empty if the server reported none.
    pub application_name: Vec<u8>,
    /// Whether the connection is outdated, so that it is closed as soon as it is free
    /// (`close_needed` in PgBouncer).
    pub is_outdated: bool,
    /// Why the client is pinned to the connection, in adaptive mode; `None` if it is not.
    pub pin: Option<PinReport>,
}

/// Why a client is pinned to its server, and since when.
#[derive(Clone, Debug)]
pub struct PinReport {
    /// Time since the client was pinned.
    pub since: Duration,
    /// The state of its session, as text.
    pub reasons: String,
}

/// Reports the state of all pools and, if `with_peers`, of all connected clients and servers.
pub(crate) fn report(peers: &Peers, pools: &Pools, with_peers: bool, now: Time) -> CoreReport {
    let mut report = CoreReport::default();
    for (id, pool) in pools.iter() {
        let (mode, stats, counts) = (pool.spec.mode, pool.stats.clone(), PoolCounts::default());
        report.pools.push(PoolReport { pool: id, mode, stats, counts });
    }
    count(peers, &mut report.pools, now);
    if with_peers {
        report.clients =
            (0..peers.clients.slots()).filter_map(|slot| client_report(peers, slot, now)).collect();
        report.servers = (0..peers.servers.slots())
            .filter_map(|slot| server_report(peers, pools, slot, now))
            .collect();
    }
    report
}

fn count(peers: &Peers, pools: &mut [PoolReport], now: Time) {
    // The reports are sorted by pool id, but ids may be missing.
    let at = |pools: &[PoolReport], id: PoolId| pools.binary_search_by_key(&id, |it| it.pool);
    let clients = (0..peers.clients.slots()).filter_map(|slot| peers.clients.occupant(slot));
    for (_, client) in clients.filter(|(_, client)| client.is_external()) {
        let Ok(pool) = at(pools, client.owner_pool) else { continue };
        let counts = &mut pools[pool].counts;
        match client.state {
            ClientState::Welcome | ClientState::Waiting => {
                counts.clients_waiting += 1;
                counts.wait_max = counts.wait_max.max(now.since(client.state_since));
            }
            ClientState::Idle | ClientState::Linked(_) | ClientState::FanOut => {
                counts.clients_active += 1;
            }
        }
    }
    for (_, server) in (0..peers.servers.slots()).filter_map(|slot| peers.servers.occupant(slot)) {
        let Ok(pool) = at(pools, server.pool) else { continue };
        let counts = &mut pools[pool].counts;
        match server.state {
            ServerState::Opening => counts.servers_login += 1,
            ServerState::Linked(_) => {
                counts.servers_active += 1;
                counts.clients_pinned += u32::from(server.is_pinned());
            }
            ServerState::Idle => counts.servers_idle += 1,
            ServerState::Cleaning => counts.servers_busy += 1,
        }
    }
}

fn client_report(peers: &Peers, slot: usize, now: Time) -> Option<ClientReport> {
    let (id, client) = peers.clients.occupant(slot).filter(|(_, client)| client.is_external())?;
    let name = client.parameters.value(b"application_name").unwrap_or_default();
    Some(ClientReport {
        id,
        pool: client.owner_pool,
        user: client.user.clone(),
        phase: match client.state {
            ClientState::Welcome | ClientState::Waiting => ClientPhase::Waiting,
            ClientState::Idle => ClientPhase::Idle,
            ClientState::Linked(_) | ClientState::FanOut => ClientPhase::Active,
        },
        age: now.since(client.connected_at),
        since: now.since(client.state_since),
        server: client.server(),
        statements: client.statements.named.len(),
        application_name: name.to_vec(),
    })
}

fn server_report(peers: &Peers, pools: &Pools, slot: usize, now: Time) -> Option<ServerReport> {
    let (id, server) = peers.servers.occupant(slot)?;
    let process_id = server.cancel_key.as_ref().map_or(0, CancelKey::process_id);
    Some(ServerReport {
        id,
        pool: server.pool,
        phase: phase(pools, server, now),
        age: now.since(server.opened_at),
        since: now.since(server.state_since),
        client: match server.state {
            ServerState::Linked(client) => Some(peers.clients.external(client)),
            _ => None,
        },
        cancels: server.cancels_in_flight,
        process_id,
        statements: server.statements.len(),
        application_name: server.parameters.value(b"application_name").unwrap_or_default().to_vec(),
        is_outdated: pools.is_outdated(server),
        pin: server.pin.as_ref().and_then(|pin| {
            let since = now.since(pin.pinned_since()?);
            Some(PinReport { since, reasons: pin.reasons() })
        }),
    })
}

fn phase(pools: &Pools, server: &ServerConnection, now: Time) -> ServerPhase {
    let check = pools.get(server.pool).and_then(|pool| pool.spec.check.as_ref());
    match server.state {
        ServerState::Opening => ServerPhase::Login,
        ServerState::Linked(_) => ServerPhase::Active,
        ServerState::Cleaning if server.cancels_in_flight > 0 => ServerPhase::BeingCanceled,
        ServerState::Cleaning => ServerPhase::Tested,
        ServerState::Idle => {
            let is_late = check.is_some_and(|check| now.since(server.state_since) >= check.idle);
            if is_late { ServerPhase::Used } else { ServerPhase::Idle }
        }
    }
}
