//! [`Engines`]: the parts of a core, and what connects them: each event goes to the engine that
//! handles it, and each [`Step`] that follows to another.

pub(crate) mod admin;
mod timeouts;

use std::{sync::Arc, time::Duration};

use crate::{
    CoreEvent,
    call::{CoreCall, Step},
    clients::{leaving, login},
    fan_out::{self, FanOuts},
    listen::notifications,
    messages::MessagePath,
    mirror::Mirrors,
    peers::Peers,
    pinning::effects_cache::SessionEffectsCache,
    pools::Pools,
    prepared::statements::StatementRegistry,
    routing::Routers,
    servers::{
        self, assignment, cleaning, closing, fencing, opening, rerouting, sharing, transfer,
    },
    session::{Sessions, parameters::ParameterSets},
    state::ids::{PeerId, WorkerId},
    time::Time,
};

/// Time between two sweeps, which limits the precision of all timeouts of the core.
const SWEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The engines of one worker's core.
#[derive(Debug)]
pub(crate) struct Engines {
    pub(crate) peers: Peers,
    pub(crate) pools: Pools,
    pub(crate) sessions: Sessions,
    pub(crate) routers: Routers,
    pub(crate) fan_outs: FanOuts,
    pub(crate) mirrors: Mirrors,
    next_sweep: Time,
}

impl Engines {
    pub(crate) fn new(worker: WorkerId, statements: Arc<StatementRegistry>) -> Self {
        Self {
            peers: Peers::new(),
            pools: Pools::new(worker),
            sessions: Sessions {
                parameters: ParameterSets::default(),
                effects: SessionEffectsCache::default(),
                statements,
            },
            routers: Routers::default(),
            fan_outs: FanOuts::default(),
            mirrors: Mirrors::new(),
            next_sweep: Time::default(),
        }
    }

    /// Returns the path of the messages of clients and servers.
    #[inline]
    pub(crate) fn messages(&mut self) -> MessagePath<'_> {
        MessagePath {
            peers: &mut self.peers,
            pools: &mut self.pools,
            routers: &mut self.routers,
            mirrors: &mut self.mirrors,
            parameter_sets: &mut self.sessions.parameters,
            effects: &mut self.sessions.effects,
            statements: &self.sessions.statements,
        }
    }

    /// Passes an event to the engine that handles it.
    pub(crate) fn handle(&mut self, event: CoreEvent<'_>, call: &mut CoreCall<'_>) {
        let Self { peers, pools, mirrors, .. } = self;
        match event {
            CoreEvent::ClientClosed(id) => leaving::disconnect(peers, pools, call, id),
            CoreEvent::ServerReady(id, login) => {
                servers::login::succeeded(peers, pools, call, id, login);
            }
            CoreEvent::ServerFailed(id, failure) => {
                servers::login::failed(peers, pools, call, id, failure);
            }
            CoreEvent::ServerClosed(id) => {
                closing::suspect_member(peers, pools, call, id);
                closing::disconnect(peers, pools, call, id);
            }
            CoreEvent::Drained(peer) => {
                peers.drained(peer, call);
                if let PeerId::Client(id) = peer {
                    notifications::send_pending(peers, pools, call, id);
                }
            }
            CoreEvent::CancelFinished(id) => cleaning::cancel_finished(peers, pools, call, id),
            CoreEvent::ServerRequested(pool, by) => {
                transfer::handle_request(peers, pools, call, pool, by);
            }
            CoreEvent::IdleServersRequested { pool, by, servers_max } => {
                transfer::handle_idle_request(peers, pools, call, pool, by, servers_max);
            }
            CoreEvent::IdleServersConfirmed(pool) => sharing::handle_reply(pools, call, pool),
            CoreEvent::ServersAvailable(pool) => {
                closing::close_unusable_idle(peers, pools, call, pool);
                assignment::serve_waiting(peers, pools, call, pool);
            }
            CoreEvent::ListenFinished(id, result) => {
                notifications::listen_finished(peers, id, result, call);
            }
            CoreEvent::Relisten(id) => notifications::relisten(&peers.clients, call, id),
            CoreEvent::Notification { channel, message, clients } => {
                notifications::deliver(peers, pools, channel, message, clients, call);
            }
            CoreEvent::NotificationsMissed(clients) => {
                notifications::missed(peers, pools, clients, call);
            }
            CoreEvent::ClusterStateChanged => self.cluster_state_changed(call),
            CoreEvent::AdminStateChanged => admin::state_changed(peers, pools, call),
            CoreEvent::PoolsChanged => {
                mirrors.resample(&mut peers.clients, pools, call);
                admin::disconnect_removed(peers, pools, call);
                admin::state_changed(peers, pools, call);
            }
            CoreEvent::SecretChanged(pool) => {
                servers::login::secret_changed(peers, pools, call, pool);
            }
            CoreEvent::FillMinPool(pool) => {
                if pools.get(pool).is_some() {
                    opening::open_for_waiting(peers, pools, call, pool);
                }
            }
            CoreEvent::KillPool(pool) => admin::kill_pool(peers, pools, call, pool),
            CoreEvent::Suspend(suspend) => admin::suspend(peers, pools, call, suspend),
            CoreEvent::Drain => admin::drain(peers, pools, call),
            CoreEvent::CloseIdleServers(closes) => {
                pools.closes_idle_servers = closes;
                admin::state_changed(peers, pools, call);
            }
        }
    }

    /// Takes all steps, including those that follow from them.
    #[cold]
    pub(crate) fn take_steps(&mut self, call: &mut CoreCall<'_>) {
        while let Some(step) = call.steps.next() {
            self.take(step, call);
        }
    }

    fn take(&mut self, step: Step, call: &mut CoreCall<'_>) {
        let Self { peers, pools, sessions, fan_outs, mirrors, .. } = self;
        match step {
            Step::Input(id) => self.messages().process_buffered(id, call),
            Step::Client(id) => {
                fan_outs.advance(peers, pools, call, id);
                if let Some(client) = peers.clients.get_mut(id) {
                    mirrors.queue_transaction(client, call);
                }
            }
            Step::CancelFanOut(id) => fan_out::cancel_request(peers, pools, call, id),
            Step::NextFanOut(owner) => fan_outs.wake_next(&peers.clients, call, owner),
            Step::Refuse(id, refusal) => leaving::refuse(peers, pools, call, id, &refusal),
            Step::LoggedIn(id) => {
                mirrors.buffer_earlier_input(peers, id);
                self.messages().process_buffered(id, call);
            }
            Step::Remove(id) => leaving::disconnect(peers, pools, call, id),
            Step::Serve(pool) => {
                if pools.get(pool).is_some() {
                    assignment::serve_waiting(peers, pools, call, pool);
                    opening::open_for_waiting(peers, pools, call, pool);
                }
            }
            Step::OpenForStarved => opening::open_for_starved(peers, pools, call),
            Step::MirrorQueue(id) => {
                mirrors.advance(id, peers, pools, &sessions.statements, call);
            }
            Step::MirrorFailed(id, refusal) => mirrors.client_refused(id, &refusal),
            Step::StopMirroring(mirrored) => mirrors.stop(*mirrored, call),
            Step::KeepStatements(id, statements) => {
                mirrors.store_statements(id, *statements);
                call.steps.push(Step::MirrorQueue(id));
            }
        }
    }

    /// Returns the time of the next sweep, or [`Time::NEVER`] if the worker is suspended or has
    /// nothing to check.
    pub(crate) fn next_sweep(&self) -> Time {
        let is_idle = self.peers.clients.len() + self.peers.servers.len() == 0;
        let is_still = self.pools.is_suspended || is_idle && !self.pools.has_min_pools;
        if is_still { Time::NEVER } else { self.next_sweep }
    }

    /// Enforces timeouts and does other periodic work, if a sweep is due.
    pub(crate) fn sweep(&mut self, call: &mut CoreCall<'_>) {
        if call.now < self.next_sweep || self.pools.is_suspended {
            return;
        }
        self.next_sweep = call.now + SWEEP_INTERVAL;
        // This comes first, so that clients wait in the queues that match the clusters' current
        // state.
        self.sweep_clusters(call);
        let Self { peers, pools, fan_outs, .. } = self;
        fan_outs.sweep(peers, pools, call);
        for slot in 0..peers.clients.slots() {
            timeouts::sweep_client(peers, pools, call, slot);
            admin::disconnect_if_removed(peers, pools, call, slot);
        }
        for slot in 0..peers.servers.slots() {
            timeouts::sweep_server(peers, pools, call, slot);
        }
        for pool in pools.ids() {
            if let Some(pool) = pools.get_mut(pool).filter(|pool| pool.has_surplus) {
                pool.update_surplus();
            }
            login::finish_pending(peers, pools, call, pool);
            opening::open_for_waiting(peers, pools, call, pool);
        }
    }

    /// Updates the load balancers of all clusters, and applies changes of member states that the
    /// worker has not reported.
    fn sweep_clusters(&mut self, call: &mut CoreCall<'_>) {
        let Self { peers, pools, routers, .. } = self;
        for owner in pools.owner_pools() {
            let Some(mut balancers) = pools.pool(owner).balancers.take() else { continue };
            balancers.tick(call.now, |pool| pools.get(pool).map(|pool| &pool.stats));
            let has_changed = balancers.refresh();
            pools.pool(owner).balancers = Some(balancers);
            assignment::redirect_waiting(peers, pools, call, owner);
            if has_changed {
                rerouting::all_of(peers, pools, routers, call, owner);
                fencing::fence(peers, pools, call, owner);
            }
        }
    }

    /// Handles changed states of cluster members: waiting clients and requests that can be rerouted
    /// move to suitable members, servers that must not be used any more are closed, and their
    /// clients are disconnected.
    pub(crate) fn cluster_state_changed(&mut self, call: &mut CoreCall<'_>) {
        let Self { peers, pools, routers, .. } = self;
        for owner in pools.owner_pools() {
            // Redirect waiting clients first, so that none of them gets a server that is about to
            // be closed.
            assignment::redirect_waiting(peers, pools, call, owner);
            rerouting::all_of(peers, pools, routers, call, owner);
            fencing::fence(peers, pools, call, owner);
            for pool in pools.cluster_pools(owner) {
                closing::close_unusable_idle(peers, pools, call, pool);
            }
        }
    }
}
