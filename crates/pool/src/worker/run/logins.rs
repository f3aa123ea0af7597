//! Accepts connections, and advances the pending logins of clients and servers.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_net::{Listener, Stream};
use howdah_pool_core::{CoreEvent, PeerId, PoolId};

use super::{PoolWorker, WorkerPhase, cancels};
use crate::{
    auth::Rejection,
    worker::{
        admin_console,
        control::PoolerHandle,
        helpers::{JobKind, LoginJob},
        messages::WorkerMessage,
        pending_login::{LoggedIn, LoginProgress, PendingLogin, refuse_unread},
        socket_table::{LoginSocket, SocketEntry},
        startups::{StartupRef, StartupsFull},
    },
};

/// Maximum number of connections accepted from one listener before other sockets are served. The
/// number starts at one, to avoid a system call that finds no second connection, and doubles for as
/// long as the listener is ready again in the next iteration.
const ACCEPTS_MAX: usize = 32;

/// Delay after `accept` failed, usually because the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

impl PoolWorker {
    pub(super) fn accept(&mut self, number: usize) {
        if self.iteration > self.accepted_iteration + 1 {
            self.accept_batch = 1;
        }
        for _ in 0..self.accept_batch {
            match self.listeners.get(number).map(Listener::accept) {
                Some(Ok(Some(stream))) => self.start_login(stream),
                Some(Ok(None)) | None => {
                    self.accept_batch = 1;
                    return;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot accept a client; retrying");
                    return self.pause_accepting();
                }
            }
        }
        self.accept_batch = ACCEPTS_MAX.min(self.accept_batch * 2);
        self.accepted_iteration = self.iteration;
    }

    /// Starts the login of an accepted connection. If the limit on connections that have not logged
    /// in is reached, closes another one or refuses this one.
    fn start_login(&mut self, stream: Stream) {
        // With TCP the first bytes have usually arrived with the connection.
        let has_data = !stream.is_unix();
        let address = stream.peer_address().map(|address| address.ip());
        let away = SocketEntry::AtHelper { ready: false, hung_up: false };
        let slot = self.sockets.table.insert(away);
        let generation = self.sockets.table.generation(slot);
        let place = StartupRef { worker: self.number, slot, generation };
        let (startups, max) = (&self.shared.startups, self.shared.logins_max());
        let entropy = self.shared.entropy().ok_or(Rejection::NoRandomness);
        let admitted = entropy.and_then(|entropy| {
            let admitted = startups.admit(address, stream.is_unix(), max, place);
            let (startup, victim) =
                admitted.map_err(|StartupsFull| Rejection::TooMany("max_client_conn"))?;
            Ok((startup, victim, entropy))
        });
        let pending = match admitted {
            Ok((startup, victim, entropy)) => {
                if let Some(victim) = victim {
                    self.evict_startup(victim);
                }
                PendingLogin::client(stream, startup, entropy, &self.shared)
            }
            Err(why) => {
                self.sockets.table.remove(slot);
                return refuse_unread(stream, &why, &self.shared);
            }
        };
        if let Some(place) = self.sockets.table.get_mut(slot) {
            *place = SocketEntry::Login(Box::new(pending));
        }
        let timeouts = self.shared.directory.config().timeouts;
        let startup = timeouts.client_startup.into_iter().chain(timeouts.client_login).min();
        self.set_login_timeout(slot, startup);
        if has_data {
            self.advance(slot);
        } else {
            self.watch_login(slot);
        }
    }

    /// Closes a connection that has not logged in, whichever worker owns it.
    fn evict_startup(&mut self, victim: StartupRef) {
        match self.sockets.mailboxes.get(usize::from(victim.worker.0)) {
            Some(mailbox) if victim.worker != self.number => {
                mailbox.send(WorkerMessage::CloseStartup(victim));
            }
            _ => self.close_startup(victim),
        }
    }

    /// Closes a connection to make room, unless it has logged in or is at a helper by now.
    pub(super) fn close_startup(&mut self, place: StartupRef) {
        let StartupRef { slot, generation, .. } = place;
        if self.sockets.table.generation(slot) != generation {
            return;
        }
        if let Some(SocketEntry::Login(pending)) = self.sockets.table.get_mut(slot) {
            let progress = pending.refuse(Rejection::TooMany("max_client_conn"), &self.shared);
            self.handle_progress(slot, progress);
        }
    }

    /// Stops polling the listeners for a while: they would stay ready, and the loop would spin.
    pub(super) fn pause_accepting(&mut self) {
        self.unregister_listeners();
        self.accept_retry_at = Some(Instant::now() + ACCEPT_RETRY_DELAY);
    }

    pub(super) fn unregister_listeners(&mut self) {
        for slot in self.sockets.table.slots() {
            if let Some(SocketEntry::Listener(number)) = self.sockets.table.get_mut(slot) {
                let listener = &self.listeners[*number];
                let _ = self.sockets.poller.remove(listener);
                self.sockets.table.remove(slot);
            }
        }
    }

    /// Continues a pending login.
    pub(super) fn advance(&mut self, slot: usize) {
        let Some(SocketEntry::Login(pending)) = self.sockets.table.get_mut(slot) else { return };
        let progress = pending.advance(&self.shared, false);
        self.handle_progress(slot, progress);
    }

    /// Handles the progress of a pending login.
    pub(super) fn handle_progress(&mut self, slot: usize, progress: LoginProgress) {
        match progress {
            LoginProgress::Waiting => self.watch_login(slot),
            LoginProgress::Heavy => self.submit_to_helper(slot, JobKind::Heavy),
            LoginProgress::AuthQuery => self.submit_to_helper(slot, JobKind::AuthQuery),
            LoginProgress::CheckSocket => self.submit_to_helper(slot, JobKind::CheckSocket),
            LoginProgress::CheckPassword => self.submit_to_helper(slot, JobKind::CheckPassword),
            LoginProgress::FetchSecret => self.submit_to_helper(slot, JobKind::FetchSecret),
            LoginProgress::Resolve => self.submit_to_helper(slot, JobKind::Resolve),
            LoginProgress::Close => drop(self.sockets.table.remove(slot)),
            LoginProgress::CancelRequest(key) => {
                let stream = match self.sockets.table.remove(slot) {
                    Some(SocketEntry::Login(pending)) => pending.stream,
                    _ => None,
                };
                if let Some(cancel) = cancels::received(self, key, stream.as_ref()) {
                    self.cancel(cancel);
                }
            }
            LoginProgress::Client(logged_in) => {
                if let Some((stream, before)) = self.sockets.table.take_login_stream(slot) {
                    self.add_client(slot, *logged_in, stream, before);
                }
            }
            LoginProgress::Admin(admin) => {
                if let Some((stream, before)) = self.sockets.table.take_login_stream(slot) {
                    if before.watched.is_some() {
                        // If this fails, events for the old token are ignored.
                        let _ = self.sockets.poller.remove(&stream);
                    }
                    self.sockets.table.remove(slot);
                    let mailboxes = Arc::clone(&self.sockets.mailboxes);
                    let control = PoolerHandle { mailboxes, shared: Arc::clone(&self.shared) };
                    admin_console::spawn(*admin, stream, control);
                }
            }
            LoginProgress::Server(id, ready, route) => {
                let Some((stream, before)) = self.sockets.table.take_login_stream(slot) else {
                    return;
                };
                let peer = PeerId::Server(id);
                self.sockets.set_socket_ref(peer, slot, Some(route), None);
                self.sockets.register(slot, stream, peer, before);
                self.core.handle(
                    CoreEvent::ServerReady(id, ready.login),
                    self.now,
                    &mut self.sockets,
                );
                if !ready.received.is_empty() {
                    self.core.server_bytes(id, &ready.received, self.now, &mut self.sockets);
                }
            }
            LoginProgress::NoServer(id, failure) => {
                let removed = self.sockets.table.remove(slot);
                self.sockets.unregister(PeerId::Server(id));
                let error = &failure.message;
                if let Some(SocketEntry::Login(pending)) = &removed
                    && let Some((entry, server)) = pending.target()
                {
                    let (database, user) = (&entry.key.database, &entry.key.user);
                    if failure.sqlstate.starts_with(b"28") {
                        self.shared.password_checks.recheck(database, user);
                    }
                    tracing::warn!(database, user, server, error, "cannot log in to a server");
                } else {
                    tracing::warn!(error, "cannot log in to a server");
                }
                self.core.handle(CoreEvent::ServerFailed(id, failure), self.now, &mut self.sockets);
            }
            LoginProgress::Cancelled(server) => {
                self.sockets.table.remove(slot);
                self.core.handle(CoreEvent::CancelFinished(server), self.now, &mut self.sockets);
            }
        }
    }

    /// Adds a client that has logged in. Closes the connection if the client cannot be added, for
    /// example during a shutdown.
    pub(super) fn add_client(
        &mut self,
        slot: usize,
        logged_in: LoggedIn,
        stream: Stream,
        before: LoginSocket,
    ) {
        let LoggedIn { login, permits, output, received, is_logged, has_new_secret } = logged_in;
        let (pool, user) = (login.pool, login.user.clone());
        self.ensure_pool(pool);
        if has_new_secret {
            for (number, mailbox) in self.sockets.mailboxes.iter().enumerate() {
                if number != usize::from(self.number.0) {
                    mailbox.send(WorkerMessage::SecretChanged(pool));
                }
            }
            handle_new_secret(self, pool);
        }
        let may_stay = matches!(self.phase, WorkerPhase::Running | WorkerPhase::HandingOver);
        let added = if may_stay { self.core.add_client(login) } else { None };
        let Some(id) = added else {
            if !may_stay {
                let mut error_response = Vec::new();
                Rejection::ShuttingDown.write(&mut error_response);
                let mut stream = stream;
                // Best effort: the socket is closed right after.
                let _ = stream.send(&error_response);
            }
            return drop(self.sockets.table.remove(slot));
        };
        let peer = PeerId::Client(id);
        self.sockets.set_socket_ref(peer, slot, None, Some(permits));
        self.sockets.register(slot, stream, peer, before);
        if is_logged && let Some(entry) = self.shared.directory.by_id(pool) {
            self.sockets.log_connected(peer, &entry, user);
        }
        self.core.finish_client_login(id, &output, self.now, &mut self.sockets);
        if !received.is_empty() {
            self.core.client_bytes(id, &received, self.now, &mut self.sockets);
        }
    }

    pub(super) fn submit_to_helper(&mut self, slot: usize, errand: JobKind) {
        let generation = self.sockets.table.generation(slot);
        let Some(place) = self.sockets.table.get_mut(slot) else { return };
        let away = SocketEntry::AtHelper { ready: false, hung_up: false };
        if let SocketEntry::Login(mut pending) = std::mem::replace(place, away) {
            pending.set_busy();
            let reply_to = Arc::clone(&self.mailbox);
            self.helpers.submit(errand, LoginJob { pending, slot, generation, reply_to });
        }
    }

    pub(super) fn resume_login(
        &mut self,
        mut pending: Box<PendingLogin>,
        progress: LoginProgress,
        slot: usize,
    ) {
        let Some(place) = self.sockets.table.get_mut(slot) else { return };
        let SocketEntry::AtHelper { ready, hung_up } = *place else { return };
        pending.hung_up |= hung_up;
        // An event that arrived while the helper had the login is not reported again.
        pending.drained &= !ready;
        // The deadline may have passed while the helper had the login.
        let is_late = progress.is_unfinished() && pending.is_expired(Instant::now());
        let has_more = is_late && pending.extend_deadline();
        let due = pending.deadline;
        *place = SocketEntry::Login(pending);
        if has_more {
            self.schedule_timeout(slot, due);
        } else if is_late {
            return self.handle_login_timeout(slot);
        }
        match progress {
            LoginProgress::Waiting if ready => self.advance(slot),
            progress => self.handle_progress(slot, progress),
        }
    }
}

/// Logs in to the servers of a pool again if they have refused the former secret.
pub(super) fn handle_new_secret(worker: &mut PoolWorker, pool: PoolId) {
    let Some(entry) = worker.shared.directory.by_id(pool) else { return };
    for pool in entry.parts().chain([pool]) {
        worker.core.handle(CoreEvent::SecretChanged(pool), worker.now, &mut worker.sockets);
    }
}
