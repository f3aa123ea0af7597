//! [`Line`]: a dedicated connection, and what comes by it.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_net::{Interest, Poller, Received, Stream, Token};
use howdah_wire::{Frame, backend::Message, frontend::encode};

use super::Notification;
use crate::{
    ServerId,
    worker::{
        directory::PoolEntry,
        entrance::{PendingLogin, Progress, ServerEntrance},
        front::Front,
        resolve,
    },
};

/// Longest message of an answer. A notification's payload has less than 8000 bytes.
const MESSAGE_BYTES_MAX: u32 = 1 << 20;

/// Most bytes that are read before they are passed on.
const ROUND_BYTES: usize = 1 << 20;

/// For a login, where settings give it no end.
const LOGIN_IN: Duration = Duration::from_secs(60);

/// What the connection begins with: a name to be known by, and no end while nothing is said on it.
const BEGINNING: &[u8] = b"SELECT pg_catalog.set_config(name, CASE name WHEN 'application_name' \
    THEN 'howdah: notifications' ELSE '0' END, false) FROM pg_catalog.pg_settings \
    WHERE name IN ('application_name', 'idle_session_timeout', 'statement_timeout')";

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum LineError {
    #[error("{0}")]
    Login(String),
    #[error("there is no primary")]
    NoPrimary,
    #[error("the database has shards, and each would notify on its own")]
    Shards,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("what the server says is no message")]
    Malformed,
    #[error("the server says goodbye: {0}")]
    Goodbye(String),
}

/// A dedicated connection.
#[derive(Debug)]
pub(super) struct Line {
    stream: Stream,
    read: Vec<u8>,
    unsent: Vec<u8>,
    /// By whose login it was made, and in which epoch of that pool.
    pub(super) entry: Arc<PoolEntry>,
    pub(super) epoch: u32,
    pub(super) process_id: Option<i32>,
    /// Since when it owes an answer.
    pub(super) asked: Option<Instant>,
    pub(super) quiet_since: Instant,
    /// What it said against the query that it is at.
    error: Option<String>,
    pub(super) notifications: Vec<Notification>,
    /// There was more to read than is read at once.
    pub(super) has_more: bool,
    begins: bool,
}

impl Line {
    /// Connects and logs in. Takes as long as the pool's servers may.
    pub(super) fn dial(
        poller: &mut Poller,
        entry: &Arc<PoolEntry>,
        front: &Front,
    ) -> Result<Self, LineError> {
        let limit = entry.settings.timeouts.server_connect.unwrap_or(LOGIN_IN);
        let deadline = Instant::now() + limit;
        let epoch = entry.spec.epoch();
        let name = ServerId::new(0, 0); // Of no core.
        let mut entrance = PendingLogin::server(ServerEntrance::new(name, Arc::clone(entry)));
        loop {
            match entrance.advance(front, true) {
                Progress::Server(_, ready, _) => {
                    let gone = || io::Error::from(io::ErrorKind::NotConnected);
                    let stream = entrance.stream.take().ok_or_else(gone)?;
                    if entrance.watched.is_none() {
                        poller.add_for(&stream, Token(0), Interest::Both)?;
                    }
                    let mut line = Self {
                        stream,
                        read: ready.received,
                        unsent: Vec::new(),
                        entry: Arc::clone(entry),
                        epoch,
                        process_id: ready.login.cancel_key.map(|key| key.process_id()),
                        asked: None,
                        quiet_since: Instant::now(),
                        error: None,
                        notifications: Vec::new(),
                        has_more: true,
                        begins: true,
                    };
                    line.query(BEGINNING)?;
                    return Ok(line);
                }
                Progress::NoServer(_, failure) => return Err(LineError::Login(failure.message)),
                Progress::Waiting => {}
                Progress::Resolve => {
                    resolve::now(&mut entrance, front);
                    continue;
                }
                _ => return Err(LineError::Malformed),
            }
            if let Some(stream) = entrance.stream.as_ref().filter(|_| entrance.watched.is_none()) {
                poller.add_for(stream, Token(0), Interest::Both)?;
                entrance.watched = Some(Interest::Both);
            }
            if Instant::now() >= deadline {
                return Err(LineError::Login("no login in time".to_owned()));
            }
            poller.wait(Some(deadline), &mut Vec::new())?;
        }
    }

    /// Whether it owes an answer.
    pub(super) fn is_busy(&self) -> bool {
        self.asked.is_some()
    }

    /// Sends a query string; its answer comes by [`Line::hear`].
    pub(super) fn query(&mut self, sql: &[u8]) -> Result<(), LineError> {
        encode::query(&mut self.unsent, sql).map_err(|_| LineError::Malformed)?;
        self.asked = Some(Instant::now());
        self.quiet_since = Instant::now();
        self.send()
    }

    fn send(&mut self) -> Result<(), LineError> {
        while !self.unsent.is_empty() {
            let taken = self.stream.send(&self.unsent)?;
            if taken == 0 {
                break;
            }
            self.unsent.drain(..taken);
        }
        Ok(())
    }

    /// Takes what has come. Gives how a query ended, if one did.
    pub(super) fn hear(&mut self) -> Result<Option<Result<(), String>>, LineError> {
        self.send()?;
        let mut buffer = [0; 16 << 10];
        self.has_more = true;
        let mut round = 0;
        let mut is_over = false;
        while round < ROUND_BYTES {
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
                // What it said before that is still to be passed on.
                Ok(Received::Closed) | Err(_) => {
                    is_over = true;
                    break;
                }
            }
        }
        match self.understand()? {
            None if is_over => Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
            ended => Ok(ended),
        }
    }

    /// Takes the messages that are there.
    fn understand(&mut self) -> Result<Option<Result<(), String>>, LineError> {
        let read = std::mem::take(&mut self.read);
        let (mut rest, mut ended) = (&read[..], None);
        while let Some((frame, behind)) =
            Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| LineError::Malformed)?
        {
            let message = &rest[..rest.len() - behind.len()];
            rest = behind;
            match Message::parse(frame).map_err(|_| LineError::Malformed)? {
                Message::NotificationResponse(found) => {
                    let channel = found.channel.into();
                    let message = message.into();
                    self.notifications.push(Notification { channel, message, position: 0 });
                    self.quiet_since = Instant::now();
                }
                Message::ErrorResponse(error) => {
                    let text = String::from_utf8_lossy(error.message()).into_owned();
                    if error.sqlstate().starts_with(b"57P") {
                        return Err(LineError::Goodbye(text));
                    }
                    self.error = Some(text);
                }
                Message::ReadyForQuery(_) => {
                    self.asked = None;
                    let error = self.error.take();
                    // What it begins with is a nicety.
                    if !std::mem::take(&mut self.begins) {
                        ended = Some(error.map_or(Ok(()), Err));
                    }
                }
                _ => {}
            }
        }
        self.read = rest.to_vec();
        Ok(ended)
    }
}
