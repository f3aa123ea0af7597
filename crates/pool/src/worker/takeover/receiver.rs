//! The new process's side of a takeover.

use std::{
    convert::Infallible,
    io,
    os::unix::net::UnixStream,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use howdah_net::{
    Listener, Stream,
    takeover::{TakeoverFrame, is_same_user, receive_frame, send_frame},
};
use howdah_pool_config::{Config, StoredSecret};
use howdah_pool_core::Permits;

use super::{format::*, socket_path, unexpected_frame};
use crate::worker::{
    PoolerStartError,
    control::PoolerHandle,
    directory::{PoolEntry, PoolKey},
    messages::{IncomingClient, WorkerMessage},
    multiplexer::ListenRequest,
};

/// Timeout for each step of the old process before this process is ready.
const STEP_TIMEOUT: Duration = Duration::from_secs(60);

/// The new process's state in a takeover after it has received the listeners and before it is
/// ready for clients.
#[derive(Debug)]
pub(in crate::worker) struct Successor {
    socket: UnixStream,
    pub(in crate::worker) listeners: Vec<Listener>,
    /// Whether the listeners are used unchanged, regardless of the configured addresses.
    pub(in crate::worker) are_passed: bool,
    admin_states: Vec<AdminStateRecord>,
}

impl Successor {
    /// Connects to the running process and receives its listeners.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError::Takeover`]: no takeover socket is configured, no process of the same
    /// user listens on it, or that process refused or did not reply properly.
    pub(in crate::worker) fn connect(config: &Config) -> Result<Self, PoolerStartError> {
        let nowhere = || {
            "listen.takeover is not set, and there is no unix socket to derive it from".to_owned()
        };
        let path =
            socket_path(config).ok_or_else(|| PoolerStartError::Takeover { text: nowhere() })?;
        let failed = |error: io::Error| PoolerStartError::Takeover {
            text: format!("{}: {error}", path.display()),
        };
        let socket = UnixStream::connect(&path).map_err(failed)?;
        Self::request_listeners(socket).map_err(failed)
    }

    fn request_listeners(socket: UnixStream) -> io::Result<Self> {
        if !is_same_user(&socket) {
            return Err(io::Error::other("the running process belongs to another user"));
        }
        socket.set_read_timeout(Some(STEP_TIMEOUT))?;
        let hello = [MAGIC, &VERSION.to_be_bytes()].concat();
        let sent = send_frame(&socket, HELLO, &hello, None);
        if sent.is_err() {
            // The old process has closed the socket. It may have sent a reason, which explains more
            // than "broken pipe".
            if let Ok(Some(frame)) = receive_frame(&socket)
                && frame.kind == REFUSED
            {
                return Err(refusal_error(&frame));
            }
        }
        sent?;
        let (mut listeners, mut are_passed) = (Vec::new(), false);
        loop {
            let mut frame = receive_frame(&socket)?.ok_or_else(unexpected_frame)?;
            match (frame.kind, frame.socket.take()) {
                (LISTENER, Some(socket)) => {
                    are_passed |= *frame.body == PASSED;
                    listeners.push(Listener::inherited(socket)?);
                }
                (LISTENERS_END, _) => {
                    let admin_states =
                        decode_admin_states(&frame.body).ok_or_else(unexpected_frame)?;
                    return Ok(Self { socket, listeners, are_passed, admin_states });
                }
                (REFUSED, _) => return Err(refusal_error(&frame)),
                _ => return Err(unexpected_frame()),
            }
        }
    }

    /// Applies the admin states of the old process, and notifies it that this process is ready for
    /// its clients.
    ///
    /// # Errors
    ///
    /// [`PoolerStartError::Takeover`]: the old process is gone or has stopped waiting.
    pub(in crate::worker) fn ready(
        self,
        control: PoolerHandle,
    ) -> Result<HandoverReceiver, PoolerStartError> {
        let failed = |error: io::Error| PoolerStartError::Takeover {
            text: format!("the connection to the running process failed: {error}"),
        };
        for state in &self.admin_states {
            if let Some(admin_state) = control.shared.directory.admin_state(&state.database) {
                admin_state.set_paused(state.is_paused);
                admin_state.set_disabled(state.is_disabled);
                state
                    .paused_users
                    .iter()
                    .for_each(|user| admin_state.set_paused_for_user(user, true));
            }
        }
        self.socket.set_read_timeout(None).map_err(failed)?;
        let cancels = self.socket.try_clone().map_err(failed)?;
        control.shared.predecessor.has_clients.store(true, Ordering::Relaxed);
        *control.shared.predecessor.socket.lock() = Some(cancels);
        send_frame(&self.socket, READY, b"", None).map_err(failed)?;
        Ok(HandoverReceiver { socket: self.socket, control })
    }
}

/// Returns an error with the old process's reason for refusing the takeover.
fn refusal_error(frame: &TakeoverFrame) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&frame.body).into_owned())
}

/// The new process's end of the takeover socket, on which it receives clients.
#[derive(Debug)]
pub(in crate::worker) struct HandoverReceiver {
    socket: UnixStream,
    control: PoolerHandle,
}

impl HandoverReceiver {
    /// Receives clients, credentials and channels until the old process has no clients left or is
    /// gone.
    pub(in crate::worker) fn run(self) {
        let shared = Arc::clone(&self.control.shared);
        let mut taken = 0_usize;
        let end = loop {
            match receive_frame(&self.socket) {
                Ok(Some(TakeoverFrame { kind: CLIENT, body, socket: Some(socket) })) => {
                    let (Some(snapshot), Ok(stream)) =
                        (ClientSnapshot::decode(&body), Stream::inherited(socket))
                    else {
                        break Err(unexpected_frame());
                    };
                    let id = snapshot.id;
                    self.adopt_client(snapshot, stream, taken);
                    taken += 1;
                    if let Err(error) = self.send(TAKEN, &id.to_be_bytes()) {
                        break Err(error);
                    }
                }
                Ok(Some(TakeoverFrame { kind: SECRETS, body, .. })) => {
                    match PoolSecrets::decode(&body) {
                        Some(secrets) => self.adopt_secrets(secrets),
                        None => break Err(unexpected_frame()),
                    }
                }
                Ok(Some(TakeoverFrame { kind: CHANNELS, body, .. })) => {
                    match ListenedChannels::decode(&body) {
                        Some(channels) => self.listen(channels),
                        None => break Err(unexpected_frame()),
                    }
                }
                Ok(Some(TakeoverFrame { kind: DONE, .. })) => break Ok(()),
                Ok(Some(_)) => break Err(unexpected_frame()),
                Ok(None) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => break Err(error),
            }
        };
        *shared.predecessor.socket.lock() = None;
        shared.multiplexers.finish_takeover();
        match end {
            Ok(()) => tracing::info!(clients = taken, "taken over"),
            Err(error) => {
                tracing::warn!(
                    %error, clients = taken,
                    "the old process ended before the takeover was complete"
                );
            }
        }
    }

    /// Sends a frame. The lock serializes it with forwarded cancels, which another thread writes.
    fn send(&self, kind: u8, body: &[u8]) -> io::Result<()> {
        let _alone = self.control.shared.predecessor.socket.lock();
        send_frame(&self.socket, kind, body, None)
    }

    /// Caches the credentials of a pool for logins to servers.
    fn adopt_secrets(&self, secrets: PoolSecrets) {
        let PoolSecrets { database, user, keys, looked_up, is_passed_through } = secrets;
        if let Some(StoredSecret::Plain(password)) = &looked_up
            && is_passed_through
        {
            let checks = &self.control.shared.password_checks;
            checks.adopt(&database, &user, password.clone());
        }
        let key = PoolKey { database, user, replication: None, part: None };
        let directory = &self.control.shared.directory;
        let take_occupancy =
            |entry: &PoolEntry, _: &_| Ok::<_, Infallible>(Permits::acquire(&entry.occupancy));
        // Without a pool for them, the clients get an error when they arrive.
        let Ok(Ok((entry, _used))) = directory.admit(&key, take_occupancy) else { return };
        for part in entry.parts().filter_map(|part| directory.by_id(part)) {
            part.adopt_credentials(keys.as_ref(), looked_up.as_ref());
        }
        entry.adopt_credentials(keys.as_ref(), looked_up.as_ref());
    }

    /// Listens to the channels of clients that are expected from the old process.
    fn listen(&self, channels: ListenedChannels) {
        let ListenedChannels { database, users, round, marker, channels } = channels;
        let shared = &self.control.shared;
        let take_occupancy =
            |entry: &PoolEntry, _: &_| Ok::<_, Infallible>(Permits::acquire(&entry.occupancy));
        let pool = |user| {
            let key = PoolKey { database: database.clone(), user, replication: None, part: None };
            let (entry, _used) = shared.directory.admit(&key, take_occupancy).ok()?.ok()?;
            Some(entry.id)
        };
        let pools: Vec<_> = users.into_iter().filter_map(pool).collect();
        if !pools.is_empty() {
            let request = ListenRequest::PinChannels { pools, round, marker, channels };
            shared.multiplexers.send_request(&database, request, shared, &self.control.mailboxes);
        }
    }

    /// Assigns a client to a worker, round-robin. A client that gets no pool is sent an error
    /// and is disconnected.
    fn adopt_client(&self, snapshot: ClientSnapshot, mut stream: Stream, number: usize) {
        let ClientSnapshot { database, user, from, mut handover, positions, .. } = snapshot;
        if let Some(from) = from {
            stream.set_peer_address(from);
        }
        let key = PoolKey { database, user, replication: None, part: None };
        let directory = &self.control.shared.directory;
        let admitted = directory.admit(&key, |_, limits| Ok::<_, Infallible>(limits.acquire()));
        let (entry, permits) = match admitted {
            Ok(Ok(admitted)) => admitted,
            Err(why) => {
                let mut error_response = Vec::new();
                why.rejection(key.database).write(&mut error_response);
                let _ = stream.send(&error_response);
                return;
            }
        };
        handover.user = entry.differing_user(&key.user);
        let client = IncomingClient { pool: entry.id, handover, stream, permits, positions };
        let mailboxes = &self.control.mailboxes;
        mailboxes[number % mailboxes.len()].send(WorkerMessage::AdoptClient(Box::new(client)));
    }
}

#[test]
fn refusal_is_read_after_peer_has_hung_up() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    send_frame(&theirs, REFUSED, b"only the same user may take over", None).unwrap();
    // With the other end closed, sending HELLO fails with a broken pipe.
    drop(theirs);
    let error = Successor::request_listeners(ours).unwrap_err();
    assert_eq!(error.to_string(), "only the same user may take over");
}
