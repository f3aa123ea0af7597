//! [`NotifyConnection`]: the dedicated connection of a multiplexer.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_net::{Interest, Poller, Received, Stream, Token};
use howdah_pool_core::ServerId;
use howdah_wire::{Frame, backend::BackendMessage, frontend::encode};

use super::ServerNotification;
use crate::worker::{
    directory::PoolEntry,
    pending_login::{LoginProgress, PendingLogin, PendingServer},
    resolver_threads,
    shared_state::SharedState,
};

/// Maximum length of a message in bytes. The payload of a notification is shorter than 8000 bytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Maximum number of bytes to read before notifications are dispatched.
const READ_BYTES_MAX: usize = 1 << 20;

/// Login timeout if `timeouts.server-connect` is not set.
const LOGIN_TIMEOUT: Duration = Duration::from_secs(60);

/// The first query: sets an application name, and disables the idle session and statement timeouts.
const SETUP_QUERY: &[u8] = b"SELECT pg_catalog.set_config(name, CASE name WHEN 'application_name' \
    THEN 'howdah: notifications' ELSE '0' END, false) FROM pg_catalog.pg_settings \
    WHERE name IN ('application_name', 'idle_session_timeout', 'statement_timeout')";

/// The reason why the dedicated connection is not available.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotifyConnectionError {
    #[error("{0}")]
    Login(String),
    #[error("LISTEN needs the primary, but no primary is known")]
    NoPrimary,
    #[error(
        "LISTEN is not supported on a sharded database, because each shard has its own notifications"
    )]
    Shards,
    #[error("the connection to the server failed: {0}")]
    Io(#[from] io::Error),
    #[error("the server sent a malformed message")]
    Malformed,
    #[error("the server closed the connection: {0}")]
    ShutDown(String),
}

/// The dedicated connection to a server.
#[derive(Debug)]
pub(super) struct NotifyConnection {
    stream: Stream,
    read: Vec<u8>,
    unsent: Vec<u8>,
    /// The pool whose login was used; `epoch` is the pool's epoch at that time.
    pub(super) entry: Arc<PoolEntry>,
    pub(super) epoch: u32,
    pub(super) process_id: Option<i32>,
    /// Time at which the query in progress was sent.
    pub(super) query_sent: Option<Instant>,
    pub(super) idle_since: Instant,
    /// The error of the query in progress, if it has failed.
    error: Option<String>,
    pub(super) notifications: Vec<ServerNotification>,
    /// Whether more bytes may be available to read.
    pub(super) has_more: bool,
    is_setting_up: bool,
}

impl NotifyConnection {
    /// Connects and logs in. Blocks for at most the pool's `server-connect` timeout, not counting
    /// the resolution of host names.
    pub(super) fn connect(
        poller: &mut Poller,
        entry: &Arc<PoolEntry>,
        shared: &SharedState,
    ) -> Result<Self, NotifyConnectionError> {
        let limit = entry.settings.timeouts.server_connect.unwrap_or(LOGIN_TIMEOUT);
        let deadline = Instant::now() + limit;
        let epoch = entry.spec.epoch();
        let name = ServerId::new(0, 0); // An id that belongs to no core.
        let mut pending = PendingLogin::server(PendingServer::new(name, Arc::clone(entry)));
        loop {
            match pending.advance(shared, true) {
                LoginProgress::Server(_, ready, _) => {
                    let gone = || io::Error::from(io::ErrorKind::NotConnected);
                    let stream = pending.stream.take().ok_or_else(gone)?;
                    if pending.watched.is_none() {
                        poller.add_with_interest(&stream, Token(0), Interest::Both)?;
                    }
                    let mut connection = Self {
                        stream,
                        read: ready.received,
                        unsent: Vec::new(),
                        entry: Arc::clone(entry),
                        epoch,
                        process_id: ready.login.cancel_key.map(|key| key.process_id()),
                        query_sent: None,
                        idle_since: Instant::now(),
                        error: None,
                        notifications: Vec::new(),
                        has_more: true,
                        is_setting_up: true,
                    };
                    connection.query(SETUP_QUERY)?;
                    return Ok(connection);
                }
                LoginProgress::NoServer(_, failure) => {
                    return Err(NotifyConnectionError::Login(failure.message));
                }
                LoginProgress::Waiting => {}
                LoginProgress::FetchSecret => {
                    pending.fetch_secret(shared);
                    continue;
                }
                LoginProgress::Resolve => {
                    resolver_threads::resolve_blocking(&mut pending, shared);
                    continue;
                }
                _ => return Err(NotifyConnectionError::Malformed),
            }
            if let Some(stream) = pending.stream.as_ref().filter(|_| pending.watched.is_none()) {
                poller.add_with_interest(stream, Token(0), Interest::Both)?;
                pending.watched = Some(Interest::Both);
            }
            if Instant::now() >= deadline {
                return Err(NotifyConnectionError::Login("the login timed out".to_owned()));
            }
            poller.wait(Some(deadline), &mut Vec::new())?;
        }
    }

    /// Whether a query is in progress.
    pub(super) fn is_busy(&self) -> bool {
        self.query_sent.is_some()
    }

    /// Sends a query string; [`NotifyConnection::receive`] returns its result.
    pub(super) fn query(&mut self, sql: &[u8]) -> Result<(), NotifyConnectionError> {
        encode::query(&mut self.unsent, sql).map_err(|_| NotifyConnectionError::Malformed)?;
        self.query_sent = Some(Instant::now());
        self.idle_since = Instant::now();
        self.send()
    }

    fn send(&mut self) -> Result<(), NotifyConnectionError> {
        while !self.unsent.is_empty() {
            let taken = self.stream.send(&self.unsent)?;
            if taken == 0 {
                break;
            }
            self.unsent.drain(..taken);
        }
        Ok(())
    }

    /// Reads available bytes. Returns the result of the query in progress if it is complete.
    pub(super) fn receive(&mut self) -> Result<Option<Result<(), String>>, NotifyConnectionError> {
        self.send()?;
        let mut buffer = [0; 16 << 10];
        self.has_more = true;
        let mut round = 0;
        let mut has_ended = false;
        while round < READ_BYTES_MAX {
            match self.stream.receive(&mut buffer) {
                Ok(Received::Drained(some)) => {
                    self.read.extend_from_slice(&buffer[..some]);
                    self.has_more = false;
                    break;
                }
                Ok(Received::Bytes(some)) => {
                    self.read.extend_from_slice(&buffer[..some]);
                    round += some;
                }
                // Messages received before the end are still dispatched.
                Ok(Received::Closed) | Err(_) => {
                    has_ended = true;
                    break;
                }
            }
        }
        match self.parse_messages()? {
            None if has_ended => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            result => Ok(result),
        }
    }

    /// Parses the complete messages in the buffer.
    fn parse_messages(&mut self) -> Result<Option<Result<(), String>>, NotifyConnectionError> {
        let read = std::mem::take(&mut self.read);
        let (mut rest, mut result) = (&read[..], None);
        while let Some((frame, tail)) =
            Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| NotifyConnectionError::Malformed)?
        {
            let message = &rest[..rest.len() - tail.len()];
            rest = tail;
            match BackendMessage::parse(frame).map_err(|_| NotifyConnectionError::Malformed)? {
                BackendMessage::NotificationResponse(found) => {
                    let channel = found.channel.into();
                    let message = message.into();
                    self.notifications.push(ServerNotification { channel, message, position: 0 });
                    self.idle_since = Instant::now();
                }
                BackendMessage::ErrorResponse(error) => {
                    let text = String::from_utf8_lossy(error.message()).into_owned();
                    if error.sqlstate().starts_with(b"57P") {
                        return Err(NotifyConnectionError::ShutDown(text));
                    }
                    self.error = Some(text);
                }
                BackendMessage::ReadyForQuery(_) => {
                    self.query_sent = None;
                    let error = self.error.take();
                    // A failed setup query is ignored.
                    if !std::mem::take(&mut self.is_setting_up) {
                        result = Some(error.map_or(Ok(()), Err));
                    }
                }
                _ => {}
            }
        }
        self.read = rest.to_vec();
        Ok(result)
    }
}
