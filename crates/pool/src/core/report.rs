//! What a core tells about itself, for who watches over it. A copy of everything, made when asked for:
//! nothing is kept for it, and nothing on the path of a query knows of it.

use std::{ops::AddAssign, sync::Arc, time::Duration};

use howdah_wire::startup::CancelKey;

use super::Core;
use crate::{
    client::ClientState,
    ids::{ClientId, PoolId, ServerId},
    server::{Server, ServerState},
    spec::Mode,
    tally::Tally,
    time::Time,
};

/// A worker's pools, clients and servers at one moment.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Those known to the worker.
    pub pools: Vec<PoolReport>,
    /// In no order.
    pub clients: Vec<ClientReport>,
    /// In no order.
    pub servers: Vec<ServerReport>,
}

/// A worker's part of a pool.
#[derive(Clone, Debug)]
pub struct PoolReport {
    /// Which.
    pub pool: PoolId,
    /// For how long clients have servers.
    pub mode: Mode,
    /// What was counted.
    pub tally: Tally,
    /// How many there are of what.
    pub counts: Counts,
}

/// How many clients and servers of a pool are at what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Clients that have a server or need none.
    pub clients_active: u32,
    /// Clients that need a server.
    pub clients_waiting: u32,
    /// Servers that log in.
    pub servers_login: u32,
    /// Servers that work for a client.
    pub servers_active: u32,
    /// Servers that wait for a client.
    pub servers_idle: u32,
    /// Servers that undo what a client left, are asked whether they live, or wait for a CancelRequest.
    pub servers_busy: u32,
    /// For how long the client has waited that has for longest.
    pub wait_max: Duration,
}

impl AddAssign<&Self> for Counts {
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

/// What a client is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPhase {
    /// It has a server, or needs none.
    Active,
    /// It needs a server.
    Waiting,
}

/// A client.
#[derive(Clone, Debug)]
pub struct ClientReport {
    /// Its name in the worker.
    pub id: ClientId,
    /// Its pool.
    pub pool: PoolId,
    /// Its own user, where that is not its pool's.
    pub user: Option<Arc<str>>,
    /// What it is at.
    pub phase: ClientPhase,
    /// How long ago it logged in.
    pub age: Duration,
    /// For how long it has been where it is.
    pub since: Duration,
    /// The server that it has.
    pub server: Option<ServerId>,
    /// How many statements it has prepared by names.
    pub statements: usize,
    /// Its `application_name`, if it gave one.
    pub application_name: Vec<u8>,
}

/// What a server is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerPhase {
    /// We connect and log in.
    Login,
    /// It waits for a client.
    Idle,
    /// It waits for a client, and is asked whether it lives before it gets one.
    Used,
    /// It works for a client.
    Active,
    /// It is asked whether it lives, or undoes what a client left behind.
    Tested,
    /// It waits for a CancelRequest that is under way to it.
    BeingCanceled,
}

/// A server.
#[derive(Clone, Debug)]
pub struct ServerReport {
    /// Its name in the worker.
    pub id: ServerId,
    /// Its pool.
    pub pool: PoolId,
    /// What it is at.
    pub phase: ServerPhase,
    /// How long ago it was opened.
    pub age: Duration,
    /// For how long it has been where it is.
    pub since: Duration,
    /// The client that it works for.
    pub client: Option<ClientId>,
    /// CancelRequests under way to it.
    pub cancels: u32,
    /// Its process there, if it said.
    pub process_id: i32,
    /// How many statements are prepared on it for clients.
    pub statements: usize,
    /// Its `application_name`.
    pub application_name: Vec<u8>,
    /// It is closed as soon as its client leaves it.
    pub is_outdated: bool,
}

impl Core {
    /// Tells about pools, and about clients and servers if `with_peers`.
    pub fn report(&mut self, with_peers: bool, now: Time) -> Report {
        self.now = now;
        let mut report = Report::default();
        for (id, pool) in (0..).map(PoolId).zip(&self.pools) {
            let Some(pool) = pool else { continue };
            let (mode, tally, counts) = (pool.spec.mode, pool.tally.clone(), Counts::default());
            report.pools.push(PoolReport { pool: id, mode, tally, counts });
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
        // They are in the order of their numbers, with gaps.
        let at = |pools: &[PoolReport], id: PoolId| pools.binary_search_by_key(&id, |it| it.pool);
        let clients = (0..self.clients.slots()).filter_map(|slot| self.clients.at(slot));
        for (_, client) in clients.filter(|(_, client)| client.is_somebody()) {
            let Ok(pool) = at(pools, client.home) else { continue };
            let counts = &mut pools[pool].counts;
            match client.state {
                ClientState::Welcome | ClientState::Waiting => {
                    counts.clients_waiting += 1;
                    counts.wait_max = counts.wait_max.max(self.now.since(client.since));
                }
                ClientState::Idle | ClientState::Linked(_) | ClientState::Spread => {
                    counts.clients_active += 1;
                }
            }
        }
        for (_, server) in (0..self.servers.slots()).filter_map(|slot| self.servers.at(slot)) {
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
        let (id, client) = self.clients.at(slot).filter(|(_, client)| client.is_somebody())?;
        let name = client.wishes.value(b"application_name").unwrap_or_default();
        Some(ClientReport {
            id,
            pool: client.home,
            user: client.user.clone(),
            phase: match client.state {
                ClientState::Welcome | ClientState::Waiting => ClientPhase::Waiting,
                ClientState::Idle | ClientState::Linked(_) | ClientState::Spread => {
                    ClientPhase::Active
                }
            },
            age: self.now.since(client.came),
            since: self.now.since(client.since),
            server: client.server(),
            statements: client.statements.named.len(),
            application_name: name.to_vec(),
        })
    }

    fn server_report(&self, slot: usize) -> Option<ServerReport> {
        let (id, server) = self.servers.at(slot)?;
        let process_id = server.cancel_key.as_ref().map_or(0, CancelKey::process_id);
        Some(ServerReport {
            id,
            pool: server.pool,
            phase: self.phase(server),
            age: self.now.since(server.opened),
            since: self.now.since(server.since),
            client: match server.state {
                ServerState::Linked(client) => Some(self.whose(client)),
                _ => None,
            },
            cancels: server.cancels,
            process_id,
            statements: server.statements.len(),
            application_name: server
                .settings
                .value(b"application_name")
                .unwrap_or_default()
                .to_vec(),
            is_outdated: self.is_outdated(server),
        })
    }

    fn phase(&self, server: &Server) -> ServerPhase {
        let check =
            self.pools[server.pool.index()].as_ref().and_then(|pool| pool.spec.check.as_ref());
        match server.state {
            ServerState::Opening => ServerPhase::Login,
            ServerState::Linked(_) => ServerPhase::Active,
            ServerState::Cleaning if server.cancels > 0 => ServerPhase::BeingCanceled,
            ServerState::Cleaning => ServerPhase::Tested,
            ServerState::Idle => {
                let is_late = check.is_some_and(|check| self.now.since(server.since) >= check.idle);
                if is_late { ServerPhase::Used } else { ServerPhase::Idle }
            }
        }
    }
}
