//! [`Entrance`]: a connection on its way in: a client that logs in, a server that we log in to, a
//! CancelRequest that we send. It owns its socket, and goes as far as the socket lets it. What costs
//! more than some microseconds (TLS handshakes, SCRAM, look-ups) is said beforehand, so that the
//! worker can have it done by a thread beside the data path.

mod client;
mod dial;
mod server;

use howdah_net::{Interest, Stream};
use howdah_wire::startup::CancelKey;

pub(super) use self::{client::ClientEntrance, dial::CancelEntrance, server::ServerEntrance};
use super::{
    desk::Visitor,
    directory::{PoolEntry, Route},
    front::Front,
};
use crate::{
    ClientLogin, Permits, ServerFailure, ServerId,
    auth::{Known, Rejection, ServerReady},
    config::Lookup,
    hba::Origin,
};

/// A connection on its way in.
#[derive(Debug)]
pub(super) struct Entrance {
    /// `None` while a server has not been dialled.
    pub(super) stream: Option<Stream>,
    /// Whether the peer has closed its side.
    pub(super) hung_up: bool,
    /// What the worker's poller watches the stream for, if it does.
    pub(super) watched: Option<Interest>,
    /// Whether the last read emptied the socket: another before it is ready again would find nothing.
    pub(super) drained: bool,
    pub(super) kind: Kind,
    /// A client's share of the limit on those that are on their way in.
    _permits: Option<Permits>,
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
    /// The next step waits for a server: see [`Entrance::look_up`].
    LookUp,
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

impl Entrance {
    /// A client that has connected; `None`, after it was told, if too many are on their way in.
    pub(super) fn client(mut stream: Stream, front: &Front) -> Option<Self> {
        let Some(permits) = Permits::try_take(&front.logins) else {
            let mut bytes = Vec::new();
            Rejection::TooMany("max_client_conn").write(&mut bytes);
            let _ = stream.send(&bytes);
            return None;
        };
        let kind = Kind::Client(ClientEntrance::new(front, &stream));
        let _permits = Some(permits);
        let (hung_up, watched, drained) = (false, None, false);
        Some(Self { stream: Some(stream), hung_up, watched, drained, kind, _permits })
    }

    pub(super) fn server(entrance: ServerEntrance) -> Self {
        Self::without_stream(Kind::Server(entrance))
    }

    pub(super) fn cancel(entrance: CancelEntrance) -> Self {
        Self::without_stream(Kind::Cancel(entrance))
    }

    fn without_stream(kind: Kind) -> Self {
        let (hung_up, watched, drained) = (false, None, false);
        Self { stream: None, hung_up, watched, drained, kind, _permits: None }
    }

    /// Goes on as far as the socket allows; heavy steps only if `heavy`.
    pub(super) fn advance(&mut self, front: &Front, heavy: bool) -> Progress {
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
            Kind::Cancel(cancel) => cancel.advance(stream, heavy),
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
    pub(super) fn timed_out(&mut self) -> Progress {
        match &mut self.kind {
            Kind::Client(client) => {
                if let Some(stream) = &mut self.stream {
                    client.timed_out(stream);
                }
                Progress::Close
            }
            Kind::Server(server) => server.timed_out(),
            Kind::Cancel(cancel) => Progress::Cancelled(cancel.server()),
        }
    }
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
