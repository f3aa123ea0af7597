//! [`PendingLogin`]: a connection that is not logged in yet: from a client, or to a server for a
//! login or a CancelRequest.
//!
//! A pending login owns its socket and advances as far as the socket allows. Before a step that
//! takes more than a few microseconds (TLS handshakes, SCRAM, auth queries, host names) it returns
//! to the worker, which can have a helper thread do the step.

mod cancel;
mod client;
mod forward;
mod server;

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Instant,
};

use howdah_net::{Interest, Stream};
use howdah_pool_config::{AuthQuery, hba::ClientOrigin};
use howdah_pool_core::{ClientLogin, Permits, ServerFailure, ServerId};
use howdah_wire::startup::CancelKey;

pub(super) use self::{cancel::PendingCancel, client::PendingClient, server::PendingServer};
use super::{
    admin_console::AdminClient,
    cancel_peers::ForwardRequest,
    directory::{LocalSocket, PoolEntry, ServerRoute},
    shared_state::SharedState,
    startups::{StartupGuard, StartupStage},
};
use crate::auth::{
    Entropy, PasswordCheck, PasswordCheckResult, Rejection, ServerReady, UserSecret,
};

/// A connection that is not logged in yet.
#[derive(Debug)]
pub(super) struct PendingLogin {
    /// The stream; `None` while no connection to a server is open or being opened.
    pub(super) stream: Option<Stream>,
    /// Whether the peer has closed its side.
    pub(super) hung_up: bool,
    /// Events that the worker's poller watches the stream for; `None` if it is not registered.
    pub(super) watched: Option<Interest>,
    /// Whether the last read emptied the socket: another read before the next event is useless.
    pub(super) drained: bool,
    pub(super) kind: PendingKind,
    /// Time at which the login times out; until a client's startup packet has arrived, the time at
    /// which its startup times out.
    pub(super) deadline: Option<Instant>,
    /// The value of `deadline` for a client whose startup packet has arrived.
    login_deadline: Option<Instant>,
    /// A client's entry among the connections that have not logged in.
    startup: Option<StartupGuard>,
}

#[derive(Debug)]
pub(super) enum PendingKind {
    Client(PendingClient),
    Server(PendingServer),
    Cancel(PendingCancel),
    /// A CancelRequest to a peer.
    Forward(ForwardRequest),
}

/// The event that a pending login waits for, or its result.
#[derive(Debug)]
pub(super) enum LoginProgress {
    /// The login waits for its socket.
    Waiting,
    /// The next step takes CPU time.
    Heavy,
    /// The next step needs an auth query: see [`PendingLogin::run_auth_query`].
    AuthQuery,
    /// The next step needs the check of a unix socket: see [`PendingLogin::unchecked_socket`].
    CheckSocket,
    /// The next step needs the check of a password at a server: see
    /// [`PendingLogin::check_password`].
    CheckPassword,
    /// The next step needs the password for a server from its source: see
    /// [`PendingLogin::fetch_secret`].
    FetchSecret,
    /// The next step needs the address of a host name: see [`PendingLogin::host`].
    Resolve,
    /// A client's login is complete.
    Client(Box<LoggedIn>),
    /// A user of the console has logged in.
    Admin(Box<AdminClient>),
    /// The client sent a CancelRequest; its connection can be closed.
    CancelRequest(CancelKey),
    /// The login to a server has succeeded, over this route.
    Server(ServerId, Box<ServerReady>, ServerRoute),
    /// The login to a server has failed.
    NoServer(ServerId, ServerFailure),
    /// The server has closed the connection of a CancelRequest, or the attempt has failed.
    Cancelled(ServerId),
    /// The connection must be closed. The client has been sent the reason if possible.
    Close,
}

impl LoginProgress {
    /// Whether the login needs further steps.
    pub(super) fn is_unfinished(&self) -> bool {
        matches!(
            self,
            Self::Waiting
                | Self::Heavy
                | Self::AuthQuery
                | Self::CheckSocket
                | Self::CheckPassword
                | Self::FetchSecret
                | Self::Resolve
        )
    }
}

/// A client that has logged in, ready to be added to a worker.
#[derive(Debug)]
pub(super) struct LoggedIn {
    pub(super) login: ClientLogin,
    /// The permits that the client holds, usually from the limits on clients.
    pub(super) permits: Permits,
    /// Output to send before the welcome message, in the same write.
    pub(super) output: Vec<u8>,
    /// Bytes that the client sent after its login.
    pub(super) received: Vec<u8>,
    /// Whether to log the client's login.
    pub(super) is_logged: bool,
    /// Whether the login has brought a secret for logins to servers that differs from the former
    /// one, so that those may succeed now.
    pub(super) has_new_secret: bool,
}

impl PendingLogin {
    /// Starts the login of a client that has connected.
    pub(super) fn client(
        stream: Stream,
        startup: StartupGuard,
        entropy: Entropy,
        shared: &SharedState,
    ) -> Self {
        let kind = PendingKind::Client(PendingClient::new(shared, &stream, entropy));
        let limit = shared.directory.config().timeouts.client_login;
        let login_deadline = limit.map(|limit| Instant::now() + limit);
        let pending = Self::without_stream(kind);
        Self { stream: Some(stream), login_deadline, startup: Some(startup), ..pending }
    }

    pub(super) fn server(pending: PendingServer) -> Self {
        Self::without_stream(PendingKind::Server(pending))
    }

    pub(super) fn cancel(pending: PendingCancel) -> Self {
        Self::without_stream(PendingKind::Cancel(pending))
    }

    pub(super) fn forward(request: ForwardRequest) -> Self {
        Self::without_stream(PendingKind::Forward(request))
    }

    pub(super) fn is_cancel(&self) -> bool {
        matches!(self.kind, PendingKind::Cancel(_) | PendingKind::Forward(_))
    }

    fn without_stream(kind: PendingKind) -> Self {
        let (hung_up, watched, drained) = (false, None, false);
        let (deadline, login_deadline, startup) = (None, None, None);
        Self { stream: None, hung_up, watched, drained, kind, deadline, login_deadline, startup }
    }

    /// Records that the login waits for its peer.
    pub(super) fn set_waiting(&mut self) {
        if let (Some(startup), PendingKind::Client(client)) = (&mut self.startup, &self.kind) {
            startup.set_stage(if client.has_startup_packet() {
                StartupStage::AwaitingResponse
            } else {
                StartupStage::Silent
            });
        }
    }

    /// Records that the login waits for the pooler, so that the connection is not closed to make
    /// room. Not needed while it advances in its worker: the worker would close it only afterwards,
    /// if it then waits for the client again.
    pub(super) fn set_busy(&mut self) {
        if let Some(startup) = &mut self.startup {
            startup.set_stage(StartupStage::Busy);
        }
    }

    /// Whether the login's deadline has passed.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Extends the deadline of a client whose startup packet has arrived to the end of the login
    /// timeout. Returns whether it was extended.
    pub(super) fn extend_deadline(&mut self) -> bool {
        let PendingKind::Client(client) = &self.kind else { return false };
        let has_more = client.has_startup_packet() && self.deadline != self.login_deadline;
        if has_more {
            self.deadline = self.login_deadline;
        }
        has_more
    }

    /// Returns the host and port that must be resolved for the next attempt.
    pub(super) fn host(&self) -> Option<(String, u16)> {
        match &self.kind {
            PendingKind::Client(_) | PendingKind::Forward(_) => None,
            PendingKind::Server(server) => server.host(),
            PendingKind::Cancel(cancel) => cancel.host(),
        }
    }

    /// Returns the unix socket that must be checked before the next attempt, and its pool.
    pub(super) fn unchecked_socket(&self) -> Option<(Arc<LocalSocket>, Arc<PoolEntry>)> {
        match &self.kind {
            PendingKind::Server(server) => server.unchecked_socket(),
            _ => None,
        }
    }

    /// Fetches the password for a server that the login waits for, on the calling thread.
    pub(super) fn fetch_secret(&mut self, shared: &SharedState) {
        if let PendingKind::Server(server) = &mut self.kind
            && let Some(source) = server.secret_source()
        {
            let secret = shared.server_secrets.fetch(source);
            server.set_secret(secret);
        }
    }

    /// Sets the resolved address, or the reason why it is unknown.
    pub(super) fn set_address(&mut self, address: Result<SocketAddr, String>) {
        match &mut self.kind {
            PendingKind::Client(_) | PendingKind::Forward(_) => {}
            PendingKind::Server(server) => server.set_address(address),
            PendingKind::Cancel(cancel) => cancel.set_address(address),
        }
    }

    /// Advances as far as the socket allows. CPU-heavy steps are done only if `heavy`.
    pub(super) fn advance(&mut self, shared: &SharedState, heavy: bool) -> LoginProgress {
        let Self { stream, hung_up, watched, drained, kind, .. } = self;
        match kind {
            PendingKind::Client(client) => match stream {
                Some(stream) => client.advance(stream, *hung_up, drained, shared, heavy),
                None => LoginProgress::Close,
            },
            PendingKind::Server(server) => {
                // The stream of a new attempt is not registered with the poller yet.
                let progress = server.advance(stream, shared, heavy);
                if server.take_redialled() {
                    (*watched, *hung_up) = (None, false);
                }
                progress
            }
            PendingKind::Cancel(cancel) => cancel.advance(stream),
            PendingKind::Forward(request) => forward::advance(request, stream),
        }
    }

    /// Runs the auth query that the login waits for. Call [`PendingLogin::advance`] afterwards.
    pub(super) fn run_auth_query(
        &mut self,
        ask: impl FnOnce(AuthQuery) -> Result<Option<UserSecret>, Rejection>,
    ) {
        if let PendingKind::Client(client) = &mut self.kind {
            client.run_auth_query(ask);
        }
    }

    /// Returns the database and the user whose password must be checked.
    pub(super) fn password_check(&self) -> Option<(String, String)> {
        match &self.kind {
            PendingKind::Client(client) => client.password_check(),
            _ => None,
        }
    }

    /// Checks the password that the login waits for; the address of the client is an argument of
    /// `run`. Call [`PendingLogin::advance`] afterwards.
    pub(super) fn check_password(
        &mut self,
        run: impl FnOnce(PasswordCheck, Option<IpAddr>) -> PasswordCheckResult,
    ) {
        let address = self.stream.as_ref().and_then(Stream::peer_address);
        if let PendingKind::Client(client) = &mut self.kind {
            client.check_password(|check| run(check, address.map(|it| it.ip())));
        }
    }

    /// Returns the events to watch the stream for. Outgoing connections are also watched for
    /// writability, which shows that they are established. A client's login output is short and
    /// fits into the empty socket buffer.
    pub(super) fn interest(&self) -> Interest {
        if matches!(self.kind, PendingKind::Client(_)) { Interest::Read } else { Interest::Both }
    }

    /// For a login to a server, returns the pool and the endpoint that was tried last.
    pub(super) fn target(&self) -> Option<(&PoolEntry, String)> {
        match &self.kind {
            PendingKind::Server(server) => Some(server.target()),
            _ => None,
        }
    }

    /// Ends the login because its deadline has passed.
    pub(super) fn timed_out(&mut self, shared: &SharedState) -> LoginProgress {
        match &mut self.kind {
            PendingKind::Client(_) => self.refuse(Rejection::Timeout, shared),
            PendingKind::Server(server) => server.timed_out(),
            PendingKind::Cancel(cancel) => LoginProgress::Cancelled(cancel.server()),
            PendingKind::Forward(_) => LoginProgress::Close,
        }
    }
}

impl PendingLogin {
    /// Refuses a client that has not logged in yet.
    pub(super) fn refuse(&mut self, why: Rejection, shared: &SharedState) -> LoginProgress {
        if let (PendingKind::Client(client), Some(stream)) = (&mut self.kind, &mut self.stream) {
            client.refuse(why, stream, shared);
        }
        LoginProgress::Close
    }
}

/// Refuses a connection before its login starts.
pub(super) fn refuse_unread(mut stream: Stream, why: &Rejection, shared: &SharedState) {
    client::record_refusal(None, why, &stream, shared);
    // Read the bytes that were sent already, usually a startup packet: with unread bytes the kernel
    // would reset the connection, and the client would not see the error.
    let _ = stream.receive(&mut [0; READ_BYTES]);
    let mut bytes = Vec::new();
    why.write(&mut bytes);
    let _ = stream.send(&bytes);
    stream.close();
}

/// Returns the origin of a client: its address, or its UID if it uses a unix socket.
fn origin(stream: &Stream) -> ClientOrigin {
    match stream.peer_address() {
        None if stream.is_unix() => ClientOrigin::Unix { uid: stream.peer_uid() },
        address => ClientOrigin::Tcp(address.map(|address| address.ip())),
    }
}

/// Size in bytes of reads during a login, whose packets are short.
const READ_BYTES: usize = 1024;
