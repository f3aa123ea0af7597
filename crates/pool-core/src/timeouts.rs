//! Timeouts and other periodic work. None of it is on the path of a query: an operation with a
//! timeout only records when it started, and periodic sweeps check it.

use std::time::Duration;

use howdah_wire::backend::{Severity, encode};

use super::Core;
use crate::{
    CoreIo, TargetRole,
    cluster::ServerStatus,
    refusal::ClientRefusal,
    state::{
        client::ClientState,
        ids::{ClientId, PoolId},
        pool::PoolState,
        server::{ServerConnection, ServerState},
    },
    time::Time,
};

/// The current activity of a linked server.
#[derive(Clone, Copy)]
enum LinkedState {
    /// The server has requests to answer.
    Active,
    /// The server waits for the client, inside a transaction or batch.
    IdleInTransaction,
    /// The server waits for the client, outside a transaction, as in session mode.
    Idle,
}

fn linked_state(server: &ServerConnection) -> LinkedState {
    match () {
        () if !server.outstanding.is_empty() => LinkedState::Active,
        () if server.is_quiescent() => LinkedState::Idle,
        () => LinkedState::IdleInTransaction,
    }
}

/// The text of the notice for a client that has waited longer than `query_wait_notify`.
const QUERY_WAIT_NOTICE: &[u8] = b"no server connection is available yet: waiting for one";

/// Returns the error for a client that has waited too long for a server, with the reason if the
/// last login failed.
fn query_wait_refusal(pool: &PoolState) -> ClientRefusal {
    match &pool.last_failure {
        Some(failure) => ClientRefusal::NoServerInTime { reason: failure.message.clone() },
        None => ClientRefusal::QueryWaitTimeout,
    }
}

/// Whether a client needs a primary, and a server that accepts writes is fenced, because another
/// primary is accepted or a newer timeline is known.
fn has_only_stale_primary(role: TargetRole, owner: &PoolState) -> bool {
    let mut members = owner.spec.clusters.iter().flat_map(|cluster| cluster.members.iter());
    role == TargetRole::Primary
        && members.any(|member| member.state.status() == ServerStatus::Stale)
}

/// Time between two sweeps, which limits the precision of all timeouts here.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

impl Core {
    /// Returns the time of the next sweep, or [`Time::NEVER`] if the worker is suspended or has
    /// nothing to check.
    pub(super) fn next_deadline(&self) -> Time {
        let is_still = self.is_suspended || self.clients.len() + self.servers.len() == 0;
        let is_still = is_still && (self.is_suspended || !self.has_min_pools);
        if is_still { Time::NEVER } else { self.next_sweep }
    }

    /// Enforces timeouts and does other periodic work, if a sweep is due.
    pub(super) fn sweep(&mut self, io: &mut dyn CoreIo) {
        if self.now < self.next_sweep || self.is_suspended {
            return;
        }
        self.next_sweep = self.now + SWEEP_INTERVAL;
        // This comes first, so that clients wait in the queues that match the clusters' current
        // state.
        self.sweep_clusters(io);
        self.sweep_awaiting_fan_outs(io);
        for index in 0..self.clients.slots() {
            self.sweep_client(index, io);
            self.disconnect_if_removed(index, io);
        }
        for index in 0..self.servers.slots() {
            self.sweep_server(index, io);
        }
        for index in 0..self.pools.len() {
            if let Some(pool) = &mut self.pools[index] {
                if pool.has_surplus {
                    pool.update_surplus();
                }
                let pool = PoolId(u32::try_from(index).expect("the index was a u32"));
                self.finish_pending_logins(pool, io);
                self.open_for_waiting(pool, io);
            }
        }
    }

    fn sweep_client(&mut self, index: usize, io: &mut dyn CoreIo) {
        let Some((id, client)) = self.clients.occupant(index) else { return };
        let Some(pool) = &self.pools[client.pool.index()] else { return };
        let timeouts = &pool.spec.timeouts;
        let notify = timeouts.query_wait_notify;
        let (limit, refusal) = match client.state {
            ClientState::Waiting | ClientState::Welcome => {
                let waited = self.now.since(client.state_since);
                if client.state == ClientState::Waiting
                    && !client.has_wait_notice
                    && notify.is_some_and(|notify| waited >= notify)
                {
                    return self.send_wait_notice(id, io);
                }
                // During PAUSE, clients may wait without limit.
                let limit = timeouts.query_wait.filter(|_| !pool.spec.admin_state.is_paused());
                match pool.failover_timeout().filter(|_| !pool.spec.admin_state.is_paused()) {
                    Some(wait) if limit.is_none_or(|limit| wait < limit) => {
                        let is_behind =
                            client.causal_token.is_some() && client.role != TargetRole::Primary;
                        let refusal = match is_behind && client.pool == client.owner_pool {
                            true => ClientRefusal::NotReplayed,
                            false if has_only_stale_primary(client.role, pool) => {
                                ClientRefusal::StalePrimary
                            }
                            false => ClientRefusal::NoMember(client.role),
                        };
                        (Some(wait), refusal)
                    }
                    _ => (limit, query_wait_refusal(pool)),
                }
            }
            ClientState::Idle if client.has_deferred_begin() => {
                let limits = [timeouts.idle_transaction, timeouts.transaction];
                (limits.into_iter().flatten().min(), ClientRefusal::IdleTransactionTimeout)
            }
            ClientState::Idle => (timeouts.client_idle, ClientRefusal::ClientIdleTimeout),
            // The timeouts apply to its sub-requests.
            ClientState::FanOut => return self.repeat_cancels(id, io),
            ClientState::Linked(server) => {
                let Some(server) = self.servers.get(server) else { return };
                let (since, state) = (server.state_since, linked_state(server));
                let lasted = self.now.since(server.work_started);
                if timeouts.transaction.is_some_and(|limit| lasted >= limit)
                    && !server.is_quiescent()
                {
                    return self.refuse(id, &ClientRefusal::TransactionTimeout, io);
                }
                return self.sweep_linked_client(id, since, state, io);
            }
        };
        if limit.is_some_and(|limit| self.now.since(client.state_since) >= limit) {
            self.refuse(id, &refusal, io);
        }
    }

    fn send_wait_notice(&mut self, id: ClientId, io: &mut dyn CoreIo) {
        let Some(client) = self.clients.get_mut(id) else { return };
        client.has_wait_notice = true;
        if !client.has_partial_message {
            self.to_client.push_with(|buf| {
                let fields = encode::essentials(Severity::Notice, b"00000", QUERY_WAIT_NOTICE);
                encode::notice_response(buf, fields).expect("the text has no zero byte");
            });
            self.flush_client(id, &[], io);
        }
    }

    /// Applies timeouts to a client whose server has been in `state` since `since`.
    fn sweep_linked_client(
        &mut self,
        id: ClientId,
        since: Time,
        state: LinkedState,
        io: &mut dyn CoreIo,
    ) {
        let Some(pool) = self.clients.get(id).and_then(|c| self.pools[c.pool.index()].as_ref())
        else {
            return;
        };
        let timeouts = &pool.spec.timeouts;
        let (limit, refusal) = match state {
            LinkedState::Active => (timeouts.query, ClientRefusal::QueryTimeout),
            LinkedState::IdleInTransaction => {
                (timeouts.idle_transaction, ClientRefusal::IdleTransactionTimeout)
            }
            LinkedState::Idle => (timeouts.client_idle, ClientRefusal::ClientIdleTimeout),
        };
        if limit.is_some_and(|limit| self.now.since(since) >= limit) {
            self.refuse(id, &refusal, io);
        }
    }

    fn sweep_server(&mut self, index: usize, io: &mut dyn CoreIo) {
        let Some((id, server)) = self.servers.occupant(index) else { return };
        let Some(pool) = &self.pools[server.pool.index()] else { return };
        let timeouts = &pool.spec.timeouts;
        let spare = pool.servers > self.min_servers_here(&pool.spec);
        let over = |limit: Option<Duration>, since| {
            limit.is_some_and(|limit| self.now.since(since) >= limit)
        };
        let close = match server.state {
            ServerState::Idle => {
                over(timeouts.server_lifetime, server.opened_at)
                    || spare && over(timeouts.server_idle, server.state_since)
            }
            ServerState::Cleaning => over(Some(timeouts.cleanup), server.state_since),
            ServerState::Opening | ServerState::Linked(_) => false,
        };
        if close {
            self.close_server(id, io);
        }
    }
}
