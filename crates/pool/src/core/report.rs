//! A core's report for monitoring: a copy of its state, made on request. Nothing is recorded for
//! it, and nothing on the path of a query knows of it.

use std::{ops::AddAssign, sync::Arc, time::Duration};

use howdah_wire::startup::CancelKey;

use super::Core;
use crate::core::{
    spec::PoolingMode,
    state::{
        client::ClientState,
        ids::{ClientId, PoolId, ServerId},
        pool_stats::PoolStats,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// A worker's pools, clients and servers at one moment.
#[derive(Clone, Debug, Default)]
pub struct CoreReport {
    /// The worker's pools, in the order of their ids.
    pub pools: Vec<PoolReport>,
    /// In no order.
    pub clients: Vec<ClientReport>,
    /// In no order.
    pub servers: Vec<ServerReport>,
}

/// A worker's part of a pool.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// The pool's id.
    pub pool: PoolId,
    /// The pooling mode.
    pub mode: PoolingMode,
    /// Its statistics since this worker got the pool.
    pub stats: PoolStats,
    /// Clients and servers by state.
    pub counts: PoolCounts,
}

/// Clients and servers of a pool by state; SHOW POOLS shows these.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolCounts {
    /// Clients that have a server or need none.
    pub clients_active: u32,
    /// Clients that wait for a server.
    pub clients_waiting: u32,
    /// Servers that are being logged in to.
    pub servers_login: u32,
    /// Servers linked to a client.
    pub servers_active: u32,
    /// Idle servers.
    pub servers_idle: u32,
    /// Servers that are being reset or checked, or wait for a CancelRequest to finish.
    pub servers_busy: u32,
    /// Waiting time of the client that has waited longest.
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
        self.wait_max = self.wait_max.max(other.wait_max);
    }
}

/// The state of a client as shown by SHOW CLIENTS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhase {
    /// It has a server, or needs none.
    Active,
    /// It waits for a server.
    Waiting,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// Its id in the worker.
    pub id: ClientId,
    /// Its pool.
    pub pool: PoolId,
    /// Its own user, where that differs from its pool's.
    pub user: Option<Arc<str>>,
    /// Its state.
    pub phase: ClientPhase,
    /// Time since its login.
    pub age: Duration,
    /// Time in its current phase.
    pub since: Duration,
    /// The server it is linked to.
    pub server: Option<ServerId>,
    /// Number of its named prepared statements.
    pub statements: usize,
    /// Its `application_name`; empty if it has none.
    pub application_name: Vec<u8>,
}

/// The state of a server as shown by SHOW SERVERS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPhase {
    /// It is being connected and logged in to.
    Login,
    /// It is idle.
    Idle,
    /// It is idle, and must be checked before a client gets it.
    Used,
    /// It is linked to a client.
    Active,
    /// It is being checked, or reset after a client.
    Tested,
    /// A CancelRequest to it is in flight.
    BeingCanceled,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// Its id in the worker.
    pub id: ServerId,
    /// Its pool.
    pub pool: PoolId,
    /// Its state.
    pub phase: ServerPhase,
    /// Time since the connection was opened.
    pub age: Duration,
    /// Time in its current phase.
    pub since: Duration,
    /// The client it is linked to.
    pub client: Option<ClientId>,
    /// CancelRequests to it that are in flight.
    pub cancels: u32,
    /// The process id of its backend; 0 if it sent none.
    pub process_id: i32,
    /// Number of statements prepared on it for clients.
    pub statements: usize,
    /// Its `application_name`; empty if it reported none.
    pub application_name: Vec<u8>,
    /// Whether it is closed as soon as its client releases it (`close_needed` in PgBouncer).
    pub is_outdated: bool,
}

impl Core {
    /// Reports pools, and with `with_peers` also clients and servers.
    pub fn report(&mut self, with_peers: bool, now: Time) -> CoreReport {
        self.now = now;
        let mut report = CoreReport::default();
        for (id, pool) in (0..).map(PoolId).zip(&self.pools) {
            let Some(pool) = pool else { continue };
            let (mode, stats, counts) = (pool.spec.mode, pool.stats.clone(), PoolCounts::default());
            report.pools.push(PoolReport { pool: id, mode, stats, counts });
        }
        self.count(&mut report.pools);
        if with_peers {
            report.clients =
                (0..self.clients.slots()).filter_map(|slot| self.client_report(slot)).collect();
            report.servers =
                (0..self.servers.slots()).filter_map(|slot| self.server_report(slot)).collect();
        }
        report
    }

    fn count(&self, pools: &mut [PoolReport]) {
        // They are sorted by id, with gaps.
        let at = |pools: &[PoolReport], id: PoolId| pools.binary_search_by_key(&id, |it| it.pool);
        let clients = (0..self.clients.slots()).filter_map(|slot| self.clients.occupant(slot));
        for (_, client) in clients.filter(|(_, client)| client.is_external()) {
            let Ok(pool) = at(pools, client.owner_pool) else { continue };
            let counts = &mut pools[pool].counts;
            match client.state {
                ClientState::Welcome | ClientState::Waiting => {
                    counts.clients_waiting += 1;
                    counts.wait_max = counts.wait_max.max(self.now.since(client.state_since));
                }
                ClientState::Idle | ClientState::Linked(_) | ClientState::FanOut => {
                    counts.clients_active += 1;
                }
            }
        }
        for (_, server) in (0..self.servers.slots()).filter_map(|slot| self.servers.occupant(slot))
        {
            let Ok(pool) = at(pools, server.pool) else { continue };
            let counts = &mut pools[pool].counts;
            match server.state {
                ServerState::Opening => counts.servers_login += 1,
                ServerState::Linked(_) => counts.servers_active += 1,
                ServerState::Idle => counts.servers_idle += 1,
                ServerState::Cleaning => counts.servers_busy += 1,
            }
        }
    }

    fn client_report(&self, slot: usize) -> Option<ClientReport> {
        let (id, client) =
            self.clients.occupant(slot).filter(|(_, client)| client.is_external())?;
        let name = client.parameters.value(b"application_name").unwrap_or_default();
        Some(ClientReport {
            id,
            pool: client.owner_pool,
            user: client.user.clone(),
            phase: match client.state {
                ClientState::Welcome | ClientState::Waiting => ClientPhase::Waiting,
                ClientState::Idle | ClientState::Linked(_) | ClientState::FanOut => {
                    ClientPhase::Active
                }
            },
            age: self.now.since(client.connected_at),
            since: self.now.since(client.state_since),
            server: client.server(),
            statements: client.statements.named.len(),
            application_name: name.to_vec(),
        })
    }

    fn server_report(&self, slot: usize) -> Option<ServerReport> {
        let (id, server) = self.servers.occupant(slot)?;
        let process_id = server.cancel_key.as_ref().map_or(0, CancelKey::process_id);
        Some(ServerReport {
            id,
            pool: server.pool,
            phase: self.phase(server),
            age: self.now.since(server.opened_at),
            since: self.now.since(server.state_since),
            client: match server.state {
                ServerState::Linked(client) => Some(self.external_client(client)),
                _ => None,
            },
            cancels: server.cancels_in_flight,
            process_id,
            statements: server.statements.len(),
            application_name: server
                .parameters
                .value(b"application_name")
                .unwrap_or_default()
                .to_vec(),
            is_outdated: self.is_outdated(server),
        })
    }

    fn phase(&self, server: &ServerConnection) -> ServerPhase {
        let check =
            self.pools[server.pool.index()].as_ref().and_then(|pool| pool.spec.check.as_ref());
        match server.state {
            ServerState::Opening => ServerPhase::Login,
            ServerState::Linked(_) => ServerPhase::Active,
            ServerState::Cleaning if server.cancels_in_flight > 0 => ServerPhase::BeingCanceled,
            ServerState::Cleaning => ServerPhase::Tested,
            ServerState::Idle => {
                let is_late =
                    check.is_some_and(|check| self.now.since(server.state_since) >= check.idle);
                if is_late { ServerPhase::Used } else { ServerPhase::Idle }
            }
        }
    }
}
