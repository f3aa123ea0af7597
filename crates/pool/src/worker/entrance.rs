//! [`PendingLogin`]: a connection on its way in: a client that logs in, a server that we log in to, a
//! CancelRequest that we send. It owns its socket, and goes as far as the socket lets it. What costs
//! more than some microseconds (TLS handshakes, SCRAM, look-ups) is said beforehand, so that the
//! worker can have it done by a thread beside the data path.

mod client;
mod dial;
mod server;

use std::{net::SocketAddr, time::Instant};

use howdah_net::{Interest, Stream};
use howdah_wire::startup::CancelKey;

pub(super) use self::{client::ClientEntrance, dial::CancelEntrance, server::ServerEntrance};
use super::{
    desk::Visitor,
    directory::{PoolEntry, Route},
    front::Front,
    startups::{Stage, Startup},
};
use crate::{
    ClientLogin, Permits, ServerFailure, ServerId,
    auth::{Entropy, Known, Rejection, ServerReady},
    config::Lookup,
    hba::Origin,
};

/// A connection on its way in.
#[derive(Debug)]
pub(super) struct PendingLogin {
    /// `None` while a server has not been dialled.
    pub(super) stream: Option<Stream>,
    /// Whether the peer has closed its side.
    pub(super) hung_up: bool,
    /// What the worker's poller watches the stream for, if it does.
    pub(super) watched: Option<Interest>,
    /// Whether the last read emptied the socket: another before it is ready again would find nothing.
    pub(super) drained: bool,
    pub(super) kind: Kind,
    /// When its time is over.
    pub(super) due: Option<Instant>,
    /// When a client has to be logged in.
    login_due: Option<Instant>,
    /// A client's place among those that are on their way in.
    startup: Option<Startup>,
}

#[derive(Debug)]
pub(super) enum Kind {
    Client(ClientEntrance),
    Server(ServerEntrance),
    Cancel(CancelEntrance),
}

/// How far an entrance got.
#[derive(Debug)]
pub(super) enum Progress {
    /// Until its socket is ready again.
    Waiting,
    /// The next step is heavy.
    Heavy,
    /// The next step waits for a server: see [`PendingLogin::look_up`].
    LookUp,
    /// The next step waits for a resolver: see [`PendingLogin::host`].
    Resolve,
    /// A client is in.
    Client(Box<Arrival>),
    /// An operator is in.
    Visitor(Box<Visitor>),
    /// A client wants another's statement cancelled; there is nothing more to do for it.
    CancelRequest(CancelKey),
    /// We are in at a server, by this route.
    Server(ServerId, Box<ServerReady>, Route),
    /// There is no way in at a server.
    NoServer(ServerId, ServerFailure),
    /// A CancelRequest to a server is over.
    Cancelled(ServerId),
    /// Close it; the client has been told why, or will not listen.
    Close,
}

impl Progress {
    /// Whether there is more to do.
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(self, Self::Waiting | Self::Heavy | Self::LookUp | Self::Resolve)
    }
}

/// A client that is in.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) login: ClientLogin,
    /// Its share of the limits on clients.
    pub(super) permits: Permits,
    /// What it is owed before its greeting: one write, one wake-up for both.
    pub(super) owed: Vec<u8>,
    /// What it sent after its login.
    pub(super) received: Vec<u8>,
    /// Whether the log is to tell of it.
    pub(super) is_told: bool,
}

impl PendingLogin {
    /// A client that has connected.
    pub(super) fn client(
        stream: Stream,
        startup: Startup,
        entropy: Entropy,
        front: &Front,
    ) -> Self {
        let kind = Kind::Client(ClientEntrance::new(front, &stream, entropy));
        let limit = front.directory.config().timeouts.client_login;
        let login_due = limit.map(|limit| Instant::now() + limit);
        let entrance = Self::without_stream(kind);
        Self { stream: Some(stream), login_due, startup: Some(startup), ..entrance }
    }

    pub(super) fn server(entrance: ServerEntrance) -> Self {
        Self::without_stream(Kind::Server(entrance))
    }

    pub(super) fn cancel(entrance: CancelEntrance) -> Self {
        Self::without_stream(Kind::Cancel(entrance))
    }

    fn without_stream(kind: Kind) -> Self {
        let (hung_up, watched, drained) = (false, None, false);
        let (due, login_due, startup) = (None, None, None);
        Self { stream: None, hung_up, watched, drained, kind, due, login_due, startup }
    }

    /// It waits for its peer now.
    pub(super) fn waits(&mut self) {
        if let (Some(startup), Kind::Client(client)) = (&mut self.startup, &self.kind) {
            startup.set_stage(if client.has_started() { Stage::Asked } else { Stage::Silent });
        }
    }

    /// It waits for us now.
    pub(super) fn is_busy(&mut self) {
        if let Some(startup) = &mut self.startup {
            startup.set_stage(Stage::Busy);
        }
    }

    /// Whether its time is over.
    pub(super) fn is_late(&self, now: Instant) -> bool {
        self.due.is_some_and(|due| now >= due)
    }

    /// Its first time is over. A client whose startup packet has come has until its login's end, which is
    /// [`PendingLogin::due`] then. Gives whether it is one that has more time.
    pub(super) fn extend(&mut self) -> bool {
        let Kind::Client(client) = &self.kind else { return false };
        let has_more = client.has_started() && self.due != self.login_due;
        if has_more {
            self.due = self.login_due;
        }
        has_more
    }

    /// The host and port that it has to know the address of.
    pub(super) fn host(&self) -> Option<(String, u16)> {
        match &self.kind {
            Kind::Client(_) => None,
            Kind::Server(server) => server.host(),
            Kind::Cancel(cancel) => cancel.host(),
        }
    }

    /// That address, or why there is none.
    pub(super) fn resolved(&mut self, address: Result<SocketAddr, String>) {
        match &mut self.kind {
            Kind::Client(_) => {}
            Kind::Server(server) => server.resolved(address),
            Kind::Cancel(cancel) => cancel.resolved(address),
        }
    }

    /// Goes on as far as the socket allows; heavy steps only if `heavy`.
    pub(super) fn advance(&mut self, front: &Front, heavy: bool) -> Progress {
        // A client that has been asked for its secret is not to be taken for a silent one meanwhile.
        self.is_busy();
        let Self { stream, hung_up, watched, drained, kind, .. } = self;
        match kind {
            Kind::Client(client) => match stream {
                Some(stream) => client.advance(stream, *hung_up, drained, front, heavy),
                None => Progress::Close,
            },
            Kind::Server(server) => {
                // A stream that is replaced by another attempt's was closed with it.
                let progress = server.advance(stream, front, heavy);
                if server.take_redialled() {
                    (*watched, *hung_up) = (None, false);
                }
                progress
            }
            Kind::Cancel(cancel) => cancel.advance(stream),
        }
    }

    /// Has looked up what there is to look up; then there is more to advance.
    pub(super) fn look_up(&mut self, ask: impl FnOnce(Lookup) -> Option<Known>) {
        if let Kind::Client(client) = &mut self.kind {
            client.look_up(ask);
        }
    }

    /// What its stream is to be watched for. Ours have to be told when they are connected; a client's
    /// login is short, and fits into an empty socket.
    pub(super) fn interest(&self) -> Interest {
        if matches!(self.kind, Kind::Client(_)) { Interest::Read } else { Interest::Both }
    }

    /// Of a server, what it is to be one of, and its place as far as one was tried.
    pub(super) fn aim(&self) -> Option<(&PoolEntry, String)> {
        match &self.kind {
            Kind::Server(server) => Some(server.aim()),
            Kind::Client(_) | Kind::Cancel(_) => None,
        }
    }

    /// What becomes of it when its time is over.
    pub(super) fn timed_out(&mut self, front: &Front) -> Progress {
        match &mut self.kind {
            Kind::Client(_) => self.refuse(Rejection::Timeout, front),
            Kind::Server(server) => server.timed_out(),
            Kind::Cancel(cancel) => Progress::Cancelled(cancel.server()),
        }
    }
}

impl PendingLogin {
    /// Refuses a client that is on its way in, and closes its connection.
    pub(super) fn refuse(&mut self, why: Rejection, front: &Front) -> Progress {
        if let (Kind::Client(client), Some(stream)) = (&mut self.kind, &mut self.stream) {
            client.refuse(why, stream, front);
        }
        Progress::Close
    }
}

/// Refuses a connection that is not even to begin its login.
pub(super) fn refuse_unread(mut stream: Stream, why: &Rejection, front: &Front) {
    client::refused(None, why, &stream, front);
    // What it has sent already, mostly its startup packet: unread, it would make the kernel reset the
    // connection, and the client would not see why.
    let _ = stream.receive(&mut [0; READ_BYTES]);
    let mut bytes = Vec::new();
    why.write(&mut bytes);
    let _ = stream.send(&bytes);
    stream.close();
}

/// Where a client comes from.
fn origin(stream: &Stream) -> Origin {
    match stream.peer_address() {
        None if stream.is_unix() => Origin::Unix { uid: stream.peer_uid() },
        address => Origin::Tcp(address.map(|address| address.ip())),
    }
}

/// Bytes of one read while logging in; packets of logins are short.
const READ_BYTES: usize = 1024;
