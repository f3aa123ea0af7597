//! What happens because time passes. Nothing here is on the path of a query: everything that has a
//! limit carries the time since when, and is looked at when a sweep is due.

use std::time::Duration;

use howdah_wire::backend::{Severity, encode};

use super::Core;
use crate::{
    Io, ServerRole,
    client::ClientState,
    cluster::Standing,
    ids::{ClientId, PoolId},
    pool::Pool,
    refusal::Refusal,
    server::{Server, ServerState},
    time::Time,
};

/// What a linked server is at.
#[derive(Clone, Copy)]
enum LinkedState {
    /// It owes an answer.
    Works,
    /// It waits for the client, in a transaction or a batch.
    InTransaction,
    /// It waits for the client, in session mode.
    Idle,
}

fn linked_state(server: &Server) -> LinkedState {
    match () {
        () if !server.owed.is_empty() => LinkedState::Works,
        () if server.is_settled() => LinkedState::Idle,
        () => LinkedState::InTransaction,
    }
}

/// What a client is told that waits for long.
const WAITS: &[u8] = b"all server connections of this pool are in use: waiting for one";

/// What a client is told that waited too long: if servers could not be had at all, why not.
fn waited_in_vain(pool: &Pool) -> Refusal {
    match &pool.last_failure {
        Some(failure) => Refusal::NoServerInTime { reason: failure.message.clone() },
        None => Refusal::QueryWait,
    }
}

/// Whether a client waits for a primary at its home, and there is one that nobody is let to because a newer
/// timeline than its own was known.
fn lacks_primary_for(role: ServerRole, home: &Pool) -> bool {
    let mut members = home.spec.clusters.iter().flat_map(|cluster| cluster.members.iter());
    role == ServerRole::Primary && members.any(|member| member.state.standing() == Standing::Stale)
}

/// Between two sweeps.
const SWEEP_EVERY: Duration = Duration::from_millis(100);

impl Core {
    pub(super) fn next_deadline(&self) -> Time {
        let is_still = self.is_suspended || self.clients.len() + self.servers.len() == 0;
        let is_still = is_still && (self.is_suspended || !self.keeps_minimum);
        if is_still { Time::NEVER } else { self.next_sweep }
    }

    pub(super) fn sweep(&mut self, io: &mut dyn Io) {
        if self.now < self.next_sweep || self.is_suspended {
            return;
        }
        self.next_sweep = self.now + SWEEP_EVERY;
        self.sweep_clusters(io);
        self.sweep_turns(io);
        for index in 0..self.clients.slots() {
            self.sweep_client(index, io);
            self.let_go(index, io);
        }
        for index in 0..self.servers.slots() {
            self.sweep_server(index, io);
        }
        for index in 0..self.pools.len() {
            if let Some(pool) = &mut self.pools[index] {
                if pool.shrinks {
                    pool.look_for_surplus();
                }
                let pool = PoolId(u32::try_from(index).expect("it was made of a u32"));
                self.welcome(pool, io);
                self.open_for_waiting(pool, io);
            }
        }
    }

    fn sweep_client(&mut self, index: usize, io: &mut dyn Io) {
        let Some((id, client)) = self.clients.at(index) else { return };
        let Some(pool) = &self.pools[client.pool.index()] else { return };
        let timeouts = &pool.spec.timeouts;
        let notify = timeouts.query_wait_notify;
        let (limit, refusal) = match client.state {
            ClientState::Waiting | ClientState::Welcome => {
                let waited = self.now.since(client.since);
                if client.state == ClientState::Waiting
                    && !client.notified
                    && notify.is_some_and(|notify| waited >= notify)
                {
                    return self.tell_that_it_waits(id, io);
                }
                // While an operator lets nobody have a server, nobody waits too long.
                let limit = timeouts.query_wait.filter(|_| !pool.spec.gate.is_paused());
                match pool.failover_timeout().filter(|_| !pool.spec.gate.is_paused()) {
                    Some(wait) if limit.is_none_or(|limit| wait < limit) => {
                        let is_behind =
                            client.floors.is_some() && client.role != ServerRole::Primary;
                        let refusal = match is_behind && client.pool == client.home {
                            true => Refusal::NotReplayed,
                            false if lacks_primary_for(client.role, pool) => Refusal::StalePrimary,
                            false => Refusal::NoMember(client.role),
                        };
                        (Some(wait), refusal)
                    }
                    _ => (limit, waited_in_vain(pool)),
                }
            }
            ClientState::Idle if client.has_begun() => {
                let limits = [timeouts.idle_transaction, timeouts.transaction];
                (limits.into_iter().flatten().min(), Refusal::IdleTransaction)
            }
            ClientState::Idle => (timeouts.client_idle, Refusal::ClientIdle),
            // Its legs have the limits.
            ClientState::Spread => return,
            ClientState::Linked(server) => {
                let Some(server) = self.servers.get(server) else { return };
                let (since, state) = (server.since, linked_state(server));
                let lasted = self.now.since(server.began);
                if timeouts.transaction.is_some_and(|limit| lasted >= limit) && !server.is_settled()
                {
                    return self.refuse(id, &Refusal::Transaction, io);
                }
                return self.sweep_linked(id, since, state, io);
            }
        };
        if limit.is_some_and(|limit| self.now.since(client.since) >= limit) {
            self.refuse(id, &refusal, io);
        }
    }

    fn tell_that_it_waits(&mut self, id: ClientId, io: &mut dyn Io) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.notified = true;
        if !client.cut_off {
            self.to_client.make(|buf| {
                let fields = encode::essentials(Severity::Notice, b"00000", WAITS);
                encode::notice_response(buf, fields).expect("it holds no zero byte");
            });
            self.flush_client(id, &[], io);
        }
    }

    /// A client that has a server, for which something is the case since some time.
    fn sweep_linked(&mut self, id: ClientId, since: Time, state: LinkedState, io: &mut dyn Io) {
        let Some(pool) = self.clients.get(id).and_then(|c| self.pools[c.pool.index()].as_ref())
        else {
            return;
        };
        let timeouts = &pool.spec.timeouts;
        let (limit, refusal) = match state {
            LinkedState::Works => (timeouts.query, Refusal::QueryTimeout),
            LinkedState::InTransaction => (timeouts.idle_transaction, Refusal::IdleTransaction),
            LinkedState::Idle => (timeouts.client_idle, Refusal::ClientIdle),
        };
        if limit.is_some_and(|limit| self.now.since(since) >= limit) {
            self.refuse(id, &refusal, io);
        }
    }

    fn sweep_server(&mut self, index: usize, io: &mut dyn Io) {
        let Some((id, server)) = self.servers.at(index) else { return };
        let Some(pool) = &self.pools[server.pool.index()] else { return };
        let timeouts = &pool.spec.timeouts;
        let spare = pool.servers > self.minimum_here(&pool.spec);
        let over = |limit: Option<Duration>, since| {
            limit.is_some_and(|limit| self.now.since(since) >= limit)
        };
        let close = match server.state {
            ServerState::Idle => {
                over(timeouts.server_lifetime, server.opened)
                    || spare && over(timeouts.server_idle, server.since)
            }
            ServerState::Cleaning => over(Some(timeouts.cleanup), server.since),
            ServerState::Opening | ServerState::Linked(_) => false,
        };
        if close {
            self.close_server(id, io);
        }
    }
}
