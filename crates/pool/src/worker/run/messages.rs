//! Handles the [`WorkerMessage`]s that a worker receives.

use std::{collections::HashMap, time::Instant};

use howdah_pool_core::{Channel, ClientId, CoreEvent, CoreIo as _, PeerId};

use super::{
    HandoverState, LISTEN_HANDOVER_TIMEOUT, PoolWorker, WorkerPhase, logins::handle_new_secret,
};
use crate::worker::{
    control::WorkerReport,
    messages::{CancelSource, IncomingClient, RoutedCancel, WorkerMessage},
    multiplexer::Positions,
    socket_table::{LoginSocket, SocketEntry},
    takeover::{Outgoing, OutgoingClient},
};

impl PoolWorker {
    pub(super) fn handle_messages(&mut self) {
        for message in self.mailbox.take_all() {
            match message {
                WorkerMessage::LoginStepDone { pending, progress, slot, generation } => {
                    if self.sockets.table.generation(slot) == generation {
                        self.resume_login(pending, progress, slot);
                    }
                }
                WorkerMessage::CloseStartup(place) => self.close_startup(place),
                WorkerMessage::RequestServer { pool, by } => {
                    // Even if the pool is unknown here, an idle server of this worker may need to
                    // be closed to make room.
                    self.ensure_pool(pool);
                    if self.core.has_pool(pool) {
                        self.core.handle(
                            CoreEvent::ServerRequested(pool, by),
                            self.now,
                            &mut self.sockets,
                        );
                    }
                }
                WorkerMessage::RequestIdleServers { pool, by, servers_max } => {
                    self.core.handle(
                        CoreEvent::IdleServersRequested { pool, by, servers_max },
                        self.now,
                        &mut self.sockets,
                    );
                }
                WorkerMessage::IdleServersConfirmed(pool) => {
                    self.core.handle(
                        CoreEvent::IdleServersConfirmed(pool),
                        self.now,
                        &mut self.sockets,
                    );
                }
                WorkerMessage::OpenMinimum(pool) => self.ensure_pool(pool),
                WorkerMessage::SecretChanged(pool) => handle_new_secret(self, pool),
                WorkerMessage::HandOver(transfer, stream, route) => {
                    let pool = transfer.pool();
                    self.ensure_pool(pool);
                    let Some(id) = self.core.adopt_server(transfer, self.now) else { continue };
                    let peer = PeerId::Server(id);
                    // The connection replaces this entry immediately.
                    let slot = self
                        .sockets
                        .table
                        .insert(SocketEntry::AtHelper { ready: false, hung_up: false });
                    self.sockets.set_socket_ref(peer, slot, Some(route), None);
                    self.sockets.register(slot, stream, peer, LoginSocket::default());
                    self.core.handle(
                        CoreEvent::ServersAvailable(pool),
                        self.now,
                        &mut self.sockets,
                    );
                }
                WorkerMessage::LocalClient(logged_in, stream) => {
                    let away = SocketEntry::AtHelper { ready: false, hung_up: false };
                    let slot = self.sockets.table.insert(away);
                    self.add_client(slot, *logged_in, stream, LoginSocket::default());
                }
                WorkerMessage::Cancel(cancel) => self.cancel_here(*cancel),
                WorkerMessage::Report { with_peers, to } => {
                    // Fails only if the requester has stopped waiting.
                    let _ = to.send(self.report(with_peers));
                }
                WorkerMessage::StartRecording { buffer, done } => {
                    self.core.capture().start(*buffer);
                    let _ = done.send(());
                }
                WorkerMessage::StopRecording => self.core.capture().stop(),
                WorkerMessage::Suspend { until, done } => self.suspend(until, done),
                WorkerMessage::Resume => self.resume(),
                WorkerMessage::RemovePools { pools, to } => {
                    let _ = to.send(self.core.remove_unused_pools(&pools));
                }
                WorkerMessage::ListenResult { client, result } => {
                    self.core.handle(
                        CoreEvent::ListenFinished(client, result),
                        self.now,
                        &mut self.sockets,
                    );
                }
                WorkerMessage::Notifications(batch) => {
                    for (notification, clients) in &batch.notifications {
                        let (channel, message) = (&notification.channel, &notification.message);
                        let io = &mut self.sockets;
                        self.core.handle(
                            CoreEvent::Notification { channel, message, clients },
                            self.now,
                            io,
                        );
                        if notification.position > 0 {
                            self.record_position(&batch.database, channel, notification.position);
                        }
                    }
                }
                WorkerMessage::PositionsStarted(database, channels) => {
                    if let Some(handover) = &mut self.handover {
                        let positions = handover.positions.entry(database).or_default();
                        positions.extend(channels.iter().map(|channel| (channel.clone(), 0)));
                    }
                }
                WorkerMessage::PositionsInvalid(database) => {
                    if let Some(handover) = &mut self.handover {
                        handover.positions.remove(&database);
                    }
                }
                WorkerMessage::ListenResumed(client) => {
                    self.resuming.remove(&client);
                }
                WorkerMessage::NotificationsMissed(clients) => {
                    self.core.handle(
                        CoreEvent::NotificationsMissed(&clients),
                        self.now,
                        &mut self.sockets,
                    );
                }
                WorkerMessage::ClusterStateChanged => {
                    self.core.handle(CoreEvent::ClusterStateChanged, self.now, &mut self.sockets);
                    let reads = self.core.take_reads_rerouted();
                    if reads > 0 {
                        tracing::warn!(
                            reads,
                            "reads moved to another server: the first one did not respond"
                        );
                    }
                }
                WorkerMessage::AdminStateChanged => {
                    self.core.handle(CoreEvent::AdminStateChanged, self.now, &mut self.sockets);
                }
                WorkerMessage::SettingsChanged(done) => {
                    self.apply_settings();
                    // Fails only if the requester has stopped waiting.
                    let _ = done.send(());
                }
                WorkerMessage::StartHandover(to) => {
                    self.cancel_suspend();
                    if self.phase == WorkerPhase::Running {
                        self.unregister_listeners();
                        self.accept_retry_at = None;
                        self.phase = WorkerPhase::HandingOver;
                        self.core.handle(
                            CoreEvent::CloseIdleServers(true),
                            self.now,
                            &mut self.sockets,
                        );
                        let listens_until = Instant::now() + LISTEN_HANDOVER_TIMEOUT;
                        self.handover =
                            Some(HandoverState { to, listens_until, positions: HashMap::new() });
                    }
                }
                WorkerMessage::CancelHandover => {
                    if self.phase == WorkerPhase::HandingOver {
                        self.phase = WorkerPhase::Running;
                        self.core.handle(
                            CoreEvent::CloseIdleServers(false),
                            self.now,
                            &mut self.sockets,
                        );
                        if let Err(error) = self.register_listeners() {
                            tracing::error!(%error, "cannot accept clients any more");
                        }
                    }
                    self.handover = None;
                }
                WorkerMessage::AdoptClient(client) => self.adopt_client(*client),
                WorkerMessage::CloseAllPools => {
                    for entry in self.shared.directory.pools() {
                        self.core.handle(
                            CoreEvent::KillPool(entry.id),
                            self.now,
                            &mut self.sockets,
                        );
                    }
                }
                WorkerMessage::CancelAnywhere(key) => {
                    self.cancel(RoutedCancel::new(key, CancelSource::Process));
                }
                WorkerMessage::KillPools(pools) => {
                    for pool in pools.iter() {
                        self.core.handle(CoreEvent::KillPool(*pool), self.now, &mut self.sockets);
                    }
                }
                WorkerMessage::KillClient { client, to } => {
                    let _ = to.send(self.core.kill_client(client, self.now, &mut self.sockets));
                }
                WorkerMessage::WaitForClients => {
                    self.stop_accepting(WorkerPhase::WaitingForClients);
                }
                WorkerMessage::Drain => self.stop_accepting(WorkerPhase::Draining),
                WorkerMessage::Stop => self.phase = WorkerPhase::Stopped,
            }
        }
    }

    /// Hands over the clients that can move now, if a takeover is in progress.
    pub(super) fn hand_over_clients(&mut self) {
        let Some(takeover) = &self.handover else { return };
        let has_timed_out = Instant::now() >= takeover.listens_until;
        for client in self.core.takeover().candidates() {
            if !self.sockets.can_hand_over(client) {
                continue;
            }
            let Some(positions) = self.listen_positions(client, takeover, has_timed_out) else {
                continue;
            };
            let Some((pool, handover)) =
                self.core.takeover().hand_over(client, self.now, &mut self.sockets)
            else {
                continue;
            };
            let Some((stream, permits)) = self.sockets.take_client(client) else { continue };
            if !handover.channels.is_empty() {
                self.sockets.unlisten(client, pool, None);
            }
            let worker = self.number;
            let client = OutgoingClient { worker, pool, handover, stream, permits, positions };
            // The receiver lives as long as the takeover and returns clients it cannot hand over.
            let _ = takeover.to.send(Outgoing::Client(Box::new(client)));
        }
    }

    /// Returns the positions at which another process resumes a client's notifications. `None` if
    /// the client must wait until that process listens to its channels, or until this process has
    /// sent pending notifications.
    fn listen_positions(
        &self,
        id: ClientId,
        handover: &HandoverState,
        has_timed_out: bool,
    ) -> Option<Positions> {
        let Some((home, mut channels)) = self.core.committed_channels(id) else {
            return Some(Vec::new());
        };
        // This worker's positions are not valid for a client that has not been resumed yet. Without
        // positions, the next process warns it that it may have missed notifications.
        if self.resuming.contains_key(&id) {
            return has_timed_out.then(Vec::new);
        }
        let entry = self.shared.directory.by_id(home);
        let positions = entry.and_then(|entry| handover.positions.get(&*entry.key.database));
        let number = |channel: &Channel| {
            let position = positions.and_then(|positions| positions.get(channel))?;
            Some((channel.clone(), *position))
        };
        if has_timed_out {
            return Some(channels.filter_map(number).collect());
        }
        channels.try_fold(Vec::new(), |mut numbered, channel| {
            numbered.push(number(channel)?);
            Some(numbered)
        })
    }

    /// Records that all notifications of a channel up to this position were delivered by this
    /// worker.
    fn record_position(&mut self, database: &str, channel: &Channel, position: u64) {
        let Some(handover) = &mut self.handover else { return };
        let positions = handover.positions.get_mut(database);
        if let Some(current) = positions.and_then(|positions| positions.get_mut(channel)) {
            *current = position;
        }
    }

    /// Adds a client that was handed over.
    pub(super) fn adopt_client(&mut self, client: IncomingClient) {
        let IncomingClient { pool, handover, stream, permits, positions } = client;
        self.ensure_pool(pool);
        let user = handover.user.clone();
        let Some(id) = self.core.takeover().adopt(pool, handover, self.now) else { return };
        let peer = PeerId::Client(id);
        let slot =
            self.sockets.table.insert(SocketEntry::AtHelper { ready: false, hung_up: false });
        self.sockets.set_socket_ref(peer, slot, None, Some(permits));
        self.sockets.register(slot, stream, peer, LoginSocket::default());
        if let Some(entry) = self.shared.directory.by_id(pool) {
            self.sockets.log_connected(peer, &entry, user);
        }
        if self.core.committed_channels(id).is_some() {
            self.resuming.insert(id, positions);
        }
        self.core.handle(CoreEvent::Relisten(id), self.now, &mut self.sockets);
    }

    /// Applies the directory's current settings to the core.
    pub(super) fn apply_settings(&mut self) {
        self.limit_message_size();
        self.sockets.log = self.shared.directory.config().log.clone();
        for entry in self.shared.directory.pools() {
            if self.core.has_pool(entry.id) {
                self.apply_pool(&entry);
            }
        }
        self.ensure_forced_pools();
        self.core.handle(CoreEvent::PoolsChanged, self.now, &mut self.sockets);
    }

    pub(super) fn limit_message_size(&mut self) {
        let longest = self.shared.directory.config().limits.message_bytes;
        // The protocol's maximum means no limit.
        let longest = if longest < i32::MAX.cast_unsigned() { longest } else { u32::MAX };
        self.core.limit_message_size(longest);
    }

    /// Stops accepting clients, except on unix sockets for the console. Changes the phase to
    /// `stage`, unless the worker is already draining or stopped.
    pub(super) fn stop_accepting(&mut self, stage: WorkerPhase) {
        self.cancel_suspend();
        self.unregister_listeners();
        // Unix sockets stay open, for the console.
        self.listeners.retain(|listener| listener.tcp_address().is_none());
        if let Err(error) = self.register_listeners() {
            tracing::warn!(%error, "cannot accept new console connections");
        }
        self.accept_retry_at = None;
        self.handover = None;
        if matches!(
            self.phase,
            WorkerPhase::Running | WorkerPhase::HandingOver | WorkerPhase::WaitingForClients
        ) {
            self.phase = stage;
        }
    }

    /// Returns the worker's state for monitoring; with clients and servers if `with_peers`.
    pub(super) fn report(&mut self, with_peers: bool) -> WorkerReport {
        let report = self.core.report(with_peers, self.now);
        let clients = report.clients.iter().map(|client| PeerId::Client(client.id));
        let servers = report.servers.iter().map(|server| PeerId::Server(server.id));
        let addresses =
            clients.chain(servers).filter_map(|peer| Some((peer, self.sockets.addresses(peer)?)));
        WorkerReport { worker: self.number, addresses: addresses.collect(), report }
    }
}
