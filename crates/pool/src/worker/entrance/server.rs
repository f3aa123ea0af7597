//! Logging in at a server: the socket around [`ServerHandshake`].

use std::{net::SocketAddr, sync::Arc};

use howdah_net::{Received, Stream};
use howdah_wire::startup::ProtocolVersion;

use super::{Progress, READ_BYTES, dial::dial};
use crate::{
    ServerFailure, ServerId,
    auth::{ServerHandshake, ServerLoginError, ServerReady, ServerStep, Work},
    worker::{
        directory::{PoolEntry, Route},
        front::Front,
    },
};

/// A server that we log in to.
///
/// There may be several ways: more than one host, with TLS or without, a newer or an older protocol.
/// They are tried one after another, and the last failure is the one that is told.
#[derive(Debug)]
pub(in crate::worker) struct ServerEntrance {
    id: ServerId,
    entry: Arc<PoolEntry>,
    /// What is left to try, the next last.
    ways: Vec<Way>,
    way: Option<Way>,
    handshake: Option<Box<ServerHandshake>>,
    /// What the socket had no room for: a password may be longer than its buffer.
    unsent: Vec<u8>,
    keys: Option<Work>,
    failure: ServerFailure,
    redialled: bool,
    /// Where the next way leads, if its host has a name.
    address: Option<Result<SocketAddr, String>>,
}

#[derive(Clone, Debug)]
struct Way {
    route: Route,
    newest: ProtocolVersion,
}

/// Why one way leads nowhere.
#[derive(Debug)]
enum Blocked {
    /// Try the next.
    Connection(String),
    Login(ServerLoginError),
}

impl From<ServerLoginError> for Blocked {
    fn from(error: ServerLoginError) -> Self {
        Self::Login(error)
    }
}

impl ServerEntrance {
    pub(in crate::worker) fn new(id: ServerId, entry: Arc<PoolEntry>) -> Self {
        let way = |route| Way { route, newest: ProtocolVersion::V3_2 };
        let ways = entry.routes().into_iter().rev().map(way).collect();
        let failure = unreachable("no server is configured");
        let (way, handshake, unsent, keys) = (None, None, Vec::new(), None);
        let (redialled, address) = (false, None);
        Self { id, entry, ways, way, handshake, unsent, keys, failure, redialled, address }
    }

    pub(super) fn host(&self) -> Option<(String, u16)> {
        self.ways.last()?.route.host()
    }

    pub(super) fn resolved(&mut self, address: Result<SocketAddr, String>) {
        self.address = Some(address);
    }

    /// Whether the stream is another than before.
    pub(super) fn take_redialled(&mut self) -> bool {
        std::mem::take(&mut self.redialled)
    }

    pub(super) fn timed_out(&mut self) -> Progress {
        let failure = unreachable(&format!("{}: no login in time", self.place()));
        Progress::NoServer(self.id, failure)
    }

    pub(super) fn aim(&self) -> (&PoolEntry, String) {
        (&self.entry, self.place())
    }

    fn place(&self) -> String {
        self.way.as_ref().map_or_else(String::new, |way| way.route.place())
    }

    pub(super) fn advance(
        &mut self,
        stream: &mut Option<Stream>,
        front: &Front,
        heavy: bool,
    ) -> Progress {
        loop {
            if stream.is_none() {
                let Some(way) = self.ways.last() else {
                    return Progress::NoServer(self.id, self.failure.clone());
                };
                if way.route.host().is_some() && self.address.is_none() {
                    return Progress::Resolve;
                }
                let address = self.address.take().transpose();
                let dialled = address.and_then(|address| dial(&self.entry, &way.route, address));
                (self.way, self.redialled) = (self.ways.pop(), true);
                (self.handshake, self.keys) = (None, None);
                self.unsent.clear();
                match dialled {
                    Ok(dialled) => *stream = Some(dialled),
                    Err(text) => self.failure = unreachable(&text),
                }
            }
            let (Some(open), Some(way)) = (stream.as_mut(), self.way.clone()) else { continue };
            // Part of it is a TLS handshake, or the derivation of keys.
            if !heavy && (self.keys.is_some() || way.route.is_encrypted()) {
                return Progress::Heavy;
            }
            match self.talk(open, way.newest, front, heavy) {
                Ok(Talked::Waiting) => return Progress::Waiting,
                Ok(Talked::Heavy) => return Progress::Heavy,
                Ok(Talked::Ready(ready)) => {
                    return Progress::Server(self.id, ready, way.route);
                }
                Err(blocked) => {
                    *stream = None;
                    if let Some(failure) = self.blocked(blocked, way) {
                        return Progress::NoServer(self.id, failure);
                    }
                }
            }
        }
    }

    /// Gives the failure if there is no other way.
    fn blocked(&mut self, blocked: Blocked, way: Way) -> Option<ServerFailure> {
        match blocked {
            Blocked::Connection(text) => {
                self.failure = unreachable(&format!("{}: {text}", self.place()));
                None
            }
            Blocked::Login(error) => {
                self.failure = error.failure();
                if error.may_retry_as_3_0() && way.newest != ProtocolVersion::V3_0 {
                    self.ways.push(Way { newest: ProtocolVersion::V3_0, ..way });
                    return None;
                }
                let other = howdah_connect::tls::Encryption::may_fall_back(&self.failure.sqlstate);
                (!other).then(|| self.failure.clone())
            }
        }
    }

    fn talk(
        &mut self,
        stream: &mut Stream,
        newest: ProtocolVersion,
        front: &Front,
        heavy: bool,
    ) -> Result<Talked, Blocked> {
        let lost = |error: std::io::Error| Blocked::Connection(error.to_string());
        if !stream.open().map_err(lost)? {
            return Ok(Talked::Waiting);
        }
        if self.handshake.is_none() {
            let intent = self.entry.intent(newest, stream);
            let entropy = front.entropy().ok_or_else(|| {
                Blocked::Connection("the system has no random bytes for a login".to_owned())
            })?;
            let handshake = ServerHandshake::new(intent, front.server_keys.clone(), entropy.nonce)?;
            self.handshake = Some(Box::new(handshake));
        }
        loop {
            let Some(handshake) = &mut self.handshake else { return Ok(Talked::Waiting) };
            self.unsent.append(&mut handshake.take_output());
            // Bytes that TLS has taken may still be on their way out: a send of nothing pushes them.
            if !self.unsent.is_empty() || stream.holds_bytes() {
                let sent = stream.send(&self.unsent).map_err(lost)?;
                self.unsent.drain(..sent);
            }
            let step = match self.keys.take() {
                Some(work) if heavy => handshake.work_done(work.run())?,
                Some(work) => {
                    self.keys = Some(work);
                    return Ok(Talked::Heavy);
                }
                None => {
                    let mut buffer = [0; READ_BYTES];
                    match stream.receive(&mut buffer).map_err(lost)? {
                        Received::Drained(0) => return Ok(Talked::Waiting),
                        Received::Bytes(some) | Received::Drained(some) => {
                            handshake.receive(&buffer[..some])?
                        }
                        Received::Closed => {
                            let text = "the server closed the connection".to_owned();
                            return Err(Blocked::Connection(text));
                        }
                    }
                }
            };
            match step {
                ServerStep::Read => {}
                ServerStep::Work(work) => self.keys = Some(work),
                ServerStep::Ready(ready) => return Ok(Talked::Ready(ready)),
            }
        }
    }
}

/// How far a talk got.
enum Talked {
    Waiting,
    Heavy,
    Ready(Box<ServerReady>),
}

fn unreachable(text: &str) -> ServerFailure {
    ServerFailure { sqlstate: *b"08006", message: format!("cannot reach the server: {text}") }
}
