//! The old process's side of a takeover.

use std::{
    collections::{HashMap, HashSet},
    io,
    os::{
        fd::AsFd as _,
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::PathBuf,
    sync::{
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_net::{
    Listener, Stream,
    takeover::{
        bind_takeover_socket, is_same_user, receive_frame, replace_takeover_socket, send_frame,
    },
};
use howdah_pool_config::StoredSecret;
use howdah_pool_core::{Channel, ClientHandover, Permits, PoolId, WorkerId};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use zeroize::Zeroizing;

use super::{format::*, unexpected_frame};
use crate::worker::{
    control::PoolerHandle,
    directory::PoolEntry,
    messages::{IncomingClient, WorkerMessage},
    multiplexer::Positions,
};

/// A client that a worker hands over.
#[derive(Debug)]
pub(in crate::worker) struct OutgoingClient {
    pub(in crate::worker) worker: WorkerId,
    pub(in crate::worker) pool: PoolId,
    pub(in crate::worker) handover: ClientHandover,
    pub(in crate::worker) stream: Stream,
    /// Permits from the limits on clients.
    pub(in crate::worker) permits: Permits,
    /// The positions of the last notifications that the client received.
    pub(in crate::worker) positions: Positions,
}

/// Data for the new process.
#[derive(Debug)]
pub(in crate::worker) enum Outgoing {
    /// A client that can be handed over now.
    Client(Box<OutgoingClient>),
    /// Channels of a database to listen to, for clients of these pools.
    Channels {
        database: String,
        pools: Vec<PoolId>,
        round: u32,
        marker: Channel,
        channels: Vec<Channel>,
    },
}

/// The old process's side of a takeover, which hands listeners and clients over.
#[derive(Debug)]
pub(in crate::worker) struct HandoverSender {
    pub(in crate::worker) control: PoolerHandle,
    /// Whether the listeners were passed to this process, rather than opened as configured.
    pub(in crate::worker) are_passed: bool,
    /// Whether this process has taken over itself, so that the socket is still its predecessor's.
    pub(in crate::worker) has_predecessor: bool,
    pub(in crate::worker) path: PathBuf,
}

/// Timeout for each step of the new process before it is ready.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// First interval between checks for remaining clients; it doubles up to [`POLL_INTERVAL_MAX`].
/// Each check makes the workers iterate over their clients.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// Longest interval between checks for remaining clients.
const POLL_INTERVAL_MAX: Duration = Duration::from_secs(1);

/// Interval at which to check whether the pooler has stopped.
const SHUTDOWN_CHECK_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits for a new process and hands over to it. Returns after a successful handover, when the
/// pooler ends, or if the takeover socket cannot be created.
pub(in crate::worker) fn accept_successor(sender: &HandoverSender) {
    let shared = &sender.control.shared;
    let bound = |result: io::Result<_>| {
        result
            .inspect_err(|error| {
                let path = sender.path.display();
                tracing::warn!(
                    %error, %path,
                    "cannot create the takeover socket: no other process can take over"
                );
            })
            .ok()
    };
    let bind = if sender.has_predecessor { replace_takeover_socket } else { bind_takeover_socket };
    let Some(mut listener) = bound(bind(&sender.path)) else { return };
    let inode = || std::fs::symlink_metadata(&sender.path).map(|meta| meta.ino()).ok();
    let mut own = inode();
    while !shared.is_stopped() {
        let mut ready = [PollFd::new(&listener, PollFlags::IN)];
        if !matches!(poll(&mut ready, Some(&SHUTDOWN_CHECK_INTERVAL)), Ok(some) if some > 0) {
            continue;
        }
        let Ok((socket, _)) = listener.accept() else { continue };
        if !is_same_user(&socket) {
            let _ = send_frame(&socket, REFUSED, b"only the same user may take over", None);
            tracing::warn!("takeover refused: the other process runs as another user");
            continue;
        }
        match sender.hand_over(&socket) {
            Ok(()) => return,
            Err(error) if shared.is_stopped() => {
                tracing::warn!(%error, "handover ended by the shutdown of this process");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "takeover failed, this process keeps serving");
                // The new process may have replaced the takeover socket with its own.
                if inode() != own {
                    let again = bound(replace_takeover_socket(&sender.path));
                    let Some(again) = again else { return };
                    (listener, own) = (again, inode());
                }
            }
        }
    }
}

impl HandoverSender {
    /// Hands over the listeners and all clients.
    ///
    /// # Errors
    ///
    /// The new process was refused, because of its protocol version or a shutdown of this process,
    /// or the handover failed before the end. Clients that the new process has not acknowledged are
    /// served here again.
    fn hand_over(&self, socket: &UnixStream) -> io::Result<()> {
        socket.set_read_timeout(Some(STEP_TIMEOUT))?;
        socket.set_write_timeout(Some(STEP_TIMEOUT))?;
        let hello = receive_frame(socket)?.ok_or_else(unexpected_frame)?;
        let expected = [MAGIC, &VERSION.to_be_bytes()].concat();
        if hello.kind != HELLO || *hello.body != expected {
            let theirs = hello.body.strip_prefix(MAGIC).and_then(|rest| rest.try_into().ok());
            let theirs = theirs.map(u16::from_be_bytes).filter(|_| hello.kind == HELLO);
            let theirs = theirs.map_or_else(|| "unknown".to_owned(), |it| it.to_string());
            let why = format!(
                "the running process has version {VERSION} of the takeover protocol, the new one has \
                 version {theirs}: restart it instead"
            );
            send_frame(socket, REFUSED, why.as_bytes(), None)?;
            return Err(io::Error::other(why));
        }
        if self.control.shared.is_shutting_down() {
            let why = "the running process is shutting down";
            send_frame(socket, REFUSED, why.as_bytes(), None)?;
            return Err(io::Error::other(why));
        }
        let listeners: io::Result<Vec<_>> =
            self.control.shared.listeners().iter().map(Listener::try_clone).collect();
        for listener in listeners? {
            let kind: &[u8] = if self.are_passed { PASSED } else { b"" };
            send_frame(socket, LISTENER, kind, Some(listener.as_fd()))?;
        }
        let admin_states = self.control.shared.directory.admin_states().into_iter();
        let admin_states = admin_states.map(|(database, state)| AdminStateRecord {
            database,
            is_paused: state.is_paused(),
            is_disabled: state.is_disabled(),
            paused_users: state.paused_users(),
        });
        let admin_states: Vec<_> = admin_states.collect();
        send_frame(socket, LISTENERS_END, &encode_admin_states(&admin_states), None)?;
        if receive_frame(socket)?.is_none_or(|frame| frame.kind != READY) {
            return Err(unexpected_frame());
        }
        tracing::info!("another process takes over");
        socket.set_read_timeout(None)?;
        self.control.shared.set_taken_over(true);
        let (to, outgoing_clients) = mpsc::channel();
        self.control.broadcast(|| WorkerMessage::StartHandover(to.clone()));
        // The multiplexers start after the workers, which need the positions that the multiplexers
        // send.
        self.control.shared.multiplexers.start_handover(&to);
        drop(to);
        let unacknowledged = UnacknowledgedClients::default();
        std::thread::scope(|scope| {
            scope.spawn(|| self.receive_frames(socket, &unacknowledged));
            let sent = self.send_clients(socket, &outgoing_clients, &unacknowledged);
            // Shutting the socket down ends the receiving thread.
            if sent.is_err() {
                let _ = socket.shutdown(std::net::Shutdown::Both);
                self.resume_clients(&outgoing_clients, &unacknowledged);
            } else {
                let _ = socket.shutdown(std::net::Shutdown::Read);
            }
            sent
        })?;
        tracing::info!("another process has taken over");
        self.control.broadcast(|| WorkerMessage::Stop);
        Ok(())
    }

    /// Handles frames of the new process until it closes the socket or sends an unexpected frame.
    fn receive_frames(&self, socket: &UnixStream, unacknowledged: &UnacknowledgedClients) {
        while let Ok(Some(frame)) = receive_frame(socket) {
            match frame.kind {
                TAKEN => {
                    if let Ok(id) = <[u8; 8]>::try_from(&frame.body[..]) {
                        unacknowledged.clients().remove(&u64::from_be_bytes(id));
                    }
                }
                LISTENING => {
                    if let Some((database, round)) = decode_round(&frame.body) {
                        self.control.shared.multiplexers.confirm_round(&database, round);
                    }
                }
                CANCEL => {
                    if let Some(key) = decode_key(&frame.body) {
                        self.control.mailboxes[0].send(WorkerMessage::CancelAnywhere(key));
                    }
                }
                _ => break,
            }
        }
        unacknowledged.is_broken.store(true, Ordering::Release);
    }

    fn send_clients(
        &self,
        socket: &UnixStream,
        outgoing_clients: &Receiver<Outgoing>,
        unacknowledged: &UnacknowledgedClients,
    ) -> io::Result<()> {
        let (mut last_id, mut has_closed_pools) = (0_u64, false);
        let mut has_secrets_of = HashSet::new();
        let mut entries = self.control.shared.directory.pools();
        // The new process keeps the first credentials of a user, so those of the pool in use come
        // first.
        entries.sort_by_key(|entry| entry.is_retired);
        for entry in entries {
            self.send_secrets(socket, &entry, &mut has_secrets_of)?;
        }
        let timeout = self.control.shared.directory.config().timeouts.shutdown;
        let started = Instant::now();
        let mut poll_interval = POLL_INTERVAL;
        loop {
            if unacknowledged.is_broken.load(Ordering::Acquire) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if self.control.shared.is_stopped() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let outgoing = match outgoing_clients.recv_timeout(poll_interval) {
                // A worker queues its last client before it reports zero clients, so check once
                // more.
                Err(RecvTimeoutError::Timeout)
                    if self.has_no_clients() && unacknowledged.clients().is_empty() =>
                {
                    match outgoing_clients.try_recv() {
                        Ok(outgoing) => Ok(outgoing),
                        Err(_) => return send_frame(socket, DONE, b"", None),
                    }
                }
                outgoing => outgoing,
            };
            match outgoing {
                Ok(Outgoing::Channels { database, pools, round, marker, channels }) => {
                    let users = pools.into_iter();
                    let users = users.filter_map(|home| self.control.shared.directory.by_id(home));
                    let users = users.map(|entry| entry.key.user.clone()).collect();
                    let channels = ListenedChannels { database, users, round, marker, channels };
                    send_frame(socket, CHANNELS, &channels.encode(), None)?;
                }
                Ok(Outgoing::Client(client)) => {
                    poll_interval = POLL_INTERVAL;
                    let Some(entry) = self.control.shared.directory.by_id(client.pool) else {
                        continue; // Unreachable: a pool with a client exists.
                    };
                    // The client's login may have finished after the other credentials were sent.
                    self.send_secrets(socket, &entry, &mut has_secrets_of)?;
                    let key = &entry.key;
                    last_id += 1;
                    let snapshot = ClientSnapshot {
                        id: last_id,
                        database: key.database.clone(),
                        user: client.handover.user.as_deref().unwrap_or(&key.user).to_owned(),
                        from: client.stream.proxied_address(),
                        handover: client.handover.clone(),
                        positions: client.positions.clone(),
                    };
                    let body = Zeroizing::new(snapshot.encode());
                    // Stored before sending: the reply may arrive before this thread continues.
                    let descriptor = client.stream.as_fd().try_clone_to_owned();
                    unacknowledged.clients().insert(last_id, *client);
                    send_frame(socket, CLIENT, &body, Some(descriptor?.as_fd()))?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    poll_interval = POLL_INTERVAL_MAX.min(poll_interval * 2);
                    let is_late = timeout.is_some_and(|timeout| started.elapsed() >= timeout);
                    if is_late && !has_closed_pools {
                        has_closed_pools = true;
                        tracing::info!(
                            "closing clients that could not be handed over within timeouts.shutdown"
                        );
                        self.control.broadcast(|| WorkerMessage::CloseAllPools);
                    }
                }
                // The workers have been stopped in the meantime.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    }

    /// Sends the cached credentials of a pool, if any, once per pool. Cluster members have the same
    /// credentials as their owner pool.
    fn send_secrets(
        &self,
        socket: &UnixStream,
        entry: &PoolEntry,
        sent: &mut HashSet<PoolId>,
    ) -> io::Result<()> {
        let (keys, looked_up) = entry.cached_credentials();
        let is_needed = entry.key.part.is_none() && entry.key.replication.is_none();
        if !is_needed || keys.is_none() && looked_up.is_none() || !sent.insert(entry.id) {
            return Ok(());
        }
        let (database, user) = (entry.key.database.clone(), entry.key.user.clone());
        let checks = &self.control.shared.password_checks;
        let is_passed_through = matches!(&looked_up, Some(StoredSecret::Plain(password))
            if checks.is_accepted(&database, &user, password));
        let secrets = PoolSecrets { database, user, keys, looked_up, is_passed_through };
        send_frame(socket, SECRETS, &secrets.encode(), None)
    }

    /// Whether no worker has clients or pending logins.
    fn has_no_clients(&self) -> bool {
        self.control.shared.startups.count() == 0 && self.control.client_count() == Some(0)
    }

    /// Resumes serving, including the clients that the new process has not acknowledged.
    fn resume_clients(
        &self,
        outgoing_clients: &Receiver<Outgoing>,
        unacknowledged: &UnacknowledgedClients,
    ) {
        self.control.shared.set_taken_over(false);
        self.control.shared.multiplexers.cancel_handover();
        self.control.broadcast(|| WorkerMessage::CancelHandover);
        let untaken = std::mem::take(&mut *unacknowledged.clients());
        untaken.into_values().for_each(|client| self.return_client(client));
        // Workers may have sent more clients before they handled the message.
        while let Ok(outgoing) = outgoing_clients.recv_timeout(STEP_TIMEOUT) {
            if let Outgoing::Client(client) = outgoing {
                self.return_client(*client);
            }
        }
    }

    /// Serves a client here again, and warns it that it may have missed notifications.
    fn return_client(&self, client: OutgoingClient) {
        let OutgoingClient { worker, pool, handover, stream, permits, .. } = client;
        let client = IncomingClient { pool, handover, stream, permits, positions: Vec::new() };
        self.control.mailboxes[usize::from(worker.0)]
            .send(WorkerMessage::AdoptClient(Box::new(client)));
    }
}

/// The clients that were sent to the new process and not acknowledged yet.
#[derive(Debug, Default)]
struct UnacknowledgedClients {
    clients: Mutex<HashMap<u64, OutgoingClient>>,
    is_broken: AtomicBool,
}

impl UnacknowledgedClients {
    fn clients(&self) -> parking_lot::MutexGuard<'_, HashMap<u64, OutgoingClient>> {
        self.clients.lock()
    }
}
