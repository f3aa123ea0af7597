//! Auth queries: reading a user's secret from a server.
//!
//! A helper thread acts as a client of this pooler, so limits on servers, pauses, retries and
//! resets apply to it as to any client, and the query uses a connection of the pool.
//!
//! The result is cached only for logins to servers, not for client logins. So each client login
//! costs one query, but a dropped role is refused at once; with the default query, so is one whose
//! `VALID UNTIL` has passed.

use std::{
    io::{self, Read as _, Write as _},
    os::unix::net::UnixStream,
    time::{Duration, Instant},
};

use howdah_net::Stream;
use howdah_pool_config::{AuthQuery, SECRET_BYTES_MAX, StoredSecret};
use howdah_pool_core::{ClientLogin, Permits};
use howdah_wire::{
    EncodeError, Frame,
    backend::BackendMessage,
    frontend::{DescribeTarget, encode},
    startup::ProtocolVersion,
};

use super::{
    directory::{NoPool, PoolEntry, PoolKey},
    messages::{Mailbox, WorkerMessage},
    pending_login::LoggedIn,
    shared_state::SharedState,
};
use crate::auth::{Rejection, UserSecret};

/// Timeout of an auth query if `timeouts.client-login` is not set.
const QUERY_TIMEOUT: Duration = Duration::from_secs(60);

/// Number of attempts if the server is lost while it runs an auth query, as in a restart or
/// failover. Another one waits for a server like any client.
const ATTEMPTS_MAX: usize = 3;

/// Maximum length of a message in bytes: the longest secret, a user name, and the overhead of a
/// row.
const MESSAGE_BYTES_MAX: u32 = 66 << 10;

/// The reason why an auth query failed. It is logged, but not sent to the client.
#[derive(Debug, thiserror::Error)]
enum AuthQueryError {
    #[error("there is no pool for the auth query")]
    NoPool(#[from] NoPool),
    #[error("the database of the auth query is disabled")]
    Disabled,
    #[error("the auth query timed out")]
    Timeout,
    #[error("the connection for the auth query was closed before the result arrived")]
    Closed,
    #[error("the connection for the auth query failed")]
    Broken(#[source] io::Error),
    #[error("the server returned an error: {message} ({sqlstate})")]
    Refused { sqlstate: String, message: String },
    #[error("the auth query's result {0}")]
    Reply(&'static str),
    #[error("the auth query cannot be sent")]
    Encode(#[from] EncodeError),
}

impl AuthQueryError {
    /// Whether the server was lost while it ran the query.
    fn is_lost_server(&self) -> bool {
        match self {
            Self::Closed | Self::Broken(_) => true,
            Self::Refused { sqlstate, .. } => {
                sqlstate.starts_with("57P0") || ["08006", "08003"].contains(&&**sqlstate)
            }
            _ => false,
        }
    }
}

/// Runs an auth query. Returns `None` if the user does not exist or the query fails.
///
/// # Errors
///
/// An administrator has disabled the database in which the query runs.
pub(super) fn user_secret(
    auth_query: &AuthQuery,
    worker: &Mailbox,
    shared: &SharedState,
) -> Result<Option<UserSecret>, Rejection> {
    let AuthQuery { user, database, auth_user, .. } = auth_query;
    let limit = shared.directory.config().timeouts.client_login.unwrap_or(QUERY_TIMEOUT);
    let deadline = Instant::now() + limit;
    let mut result = run_query(auth_query, worker, shared, deadline);
    for _ in 1..ATTEMPTS_MAX {
        match result {
            Err(error) if error.is_lost_server() => {
                result = run_query(auth_query, worker, shared, deadline);
            }
            done => {
                result = done;
                break;
            }
        }
    }
    match result {
        Ok(Some(known)) if known.secret.is_none() => {
            tracing::info!(user, database, auth_user, "the server has no valid secret of the user");
            Ok(Some(known))
        }
        Ok(Some(known)) => Ok(Some(known)),
        Err(AuthQueryError::Disabled) => Err(Rejection::Disabled(database.clone())),
        Ok(None) => {
            tracing::info!(user, database, auth_user, "the server has no such user");
            Ok(None)
        }
        Err(error) => {
            let reason = &error as &dyn std::error::Error;
            tracing::warn!(user, database, auth_user, reason, "cannot look up a user's secret");
            Ok(None)
        }
    }
}

fn run_query(
    auth_query: &AuthQuery,
    worker: &Mailbox,
    shared: &SharedState,
    deadline: Instant,
) -> Result<Option<UserSecret>, AuthQueryError> {
    let mut connection = AuthQueryConnection {
        socket: connect(auth_query, worker, shared)?,
        read: Vec::new(),
        deadline,
    };
    connection.receive(|_| Ok(()))?;
    let mut query = Vec::new();
    encode::parse(&mut query, b"", auth_query.query.as_bytes(), &[])?;
    encode::bind(&mut query, b"", b"", &[], [Some(auth_query.user.as_bytes())], &[])?;
    encode::describe(&mut query, DescribeTarget::Portal(b""))?;
    encode::execute(&mut query, b"", 0)?;
    encode::sync(&mut query);
    connection.socket.write_all(&query).map_err(broken)?;
    let mut rows = Vec::new();
    let mut has_rows = false;
    connection.receive(|message| {
        match message {
            BackendMessage::RowDescription(_) => has_rows = true,
            BackendMessage::DataRow(_) if rows.len() == 2 => {
                return Err(AuthQueryError::Reply("has more than one row"));
            }
            BackendMessage::DataRow(cells) => {
                rows.extend(cells.map(|cell| cell.map(<[u8]>::to_vec)));
                if rows.len() != 2 {
                    return Err(AuthQueryError::Reply(
                        "does not have two columns, user and secret",
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    })?;
    let mut terminate = Vec::new();
    encode::terminate(&mut terminate);
    // Best effort: the result is complete, and closing the socket ends the session anyway.
    let _ = connection.socket.write_all(&terminate);
    match &rows[..] {
        [] if has_rows => Ok(None),
        [] => Err(AuthQueryError::Reply("has no columns")),
        [Some(user), _] if user != auth_query.user.as_bytes() => {
            Err(AuthQueryError::Reply("is about another user"))
        }
        [Some(_), secret] => parse_secret(secret.as_deref()).map(Some),
        _ => Err(AuthQueryError::Reply("has a null user")),
    }
}

fn parse_secret(secret: Option<&[u8]>) -> Result<UserSecret, AuthQueryError> {
    let text = secret.map(std::str::from_utf8).transpose();
    let text = text.map_err(|_| AuthQueryError::Reply("contains a secret that is not UTF-8"))?;
    if text.is_some_and(|text| text.len() > SECRET_BYTES_MAX) {
        return Err(AuthQueryError::Reply("contains a secret of more than 65,530 bytes"));
    }
    let secret = text.map(StoredSecret::parse).filter(|secret| !secret.is_empty());
    Ok(UserSecret { secret })
}

/// Connects to the pool as a client over a socket pair, and sends the other end to the worker.
fn connect(
    auth_query: &AuthQuery,
    worker: &Mailbox,
    shared: &SharedState,
) -> Result<UnixStream, AuthQueryError> {
    let AuthQuery { auth_user: user, database, .. } = auth_query.clone();
    let key = PoolKey { database, user, replication: None, part: None };
    // The client limits do not apply: the login that waits for the result already holds permits.
    let take_occupancy = |entry: &PoolEntry| {
        let is_disabled = entry.spec.admin_state.is_disabled();
        if is_disabled {
            return Err(AuthQueryError::Disabled);
        }
        Ok(Permits::acquire(&entry.occupancy))
    };
    let (pool, permits) = shared.directory.admit(&key, |pool, _| take_occupancy(pool))??;
    let (ours, theirs) = UnixStream::pair().map_err(broken)?;
    let stream = Stream::from_unix(theirs).map_err(broken)?;
    let no_random =
        || broken(io::Error::other("could not get random bytes from the operating system"));
    let secret = shared.cancel_secret().ok_or_else(no_random)?;
    let (version, settings) = (ProtocolVersion::V3_0, Vec::new());
    let login = ClientLogin {
        pool: pool.id,
        user: None,
        version,
        secret,
        parameters: settings,
        role: None,
    };
    let (output, received) = (Vec::new(), Vec::new());
    let (is_logged, has_new_secret) = (false, false);
    let logged_in = LoggedIn { login, permits, output, received, is_logged, has_new_secret };
    worker.send(WorkerMessage::LocalClient(Box::new(logged_in), stream));
    Ok(ours)
}

/// The client's end of the socket pair, with a buffer of received bytes.
struct AuthQueryConnection {
    socket: UnixStream,
    read: Vec<u8>,
    deadline: Instant,
}

impl AuthQueryConnection {
    /// Receives messages up to the next ReadyForQuery, and passes the ones before it to `take`. An
    /// ErrorResponse ends the query with [`AuthQueryError::Refused`].
    fn receive(
        &mut self,
        mut take: impl FnMut(BackendMessage<'_>) -> Result<(), AuthQueryError>,
    ) -> Result<(), AuthQueryError> {
        let malformed = || AuthQueryError::Reply("is malformed");
        loop {
            let read = std::mem::take(&mut self.read);
            let mut rest = &read[..];
            while let Some((frame, tail)) =
                Frame::split(rest, MESSAGE_BYTES_MAX).map_err(|_| malformed())?
            {
                rest = tail;
                match BackendMessage::parse(frame).map_err(|_| malformed())? {
                    BackendMessage::ReadyForQuery(_) => {
                        self.read = rest.to_vec();
                        return Ok(());
                    }
                    BackendMessage::ErrorResponse(error) => {
                        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
                        let (sqlstate, message) = (text(error.sqlstate()), text(error.message()));
                        return Err(AuthQueryError::Refused { sqlstate, message });
                    }
                    message => take(message)?,
                }
            }
            self.read = rest.to_vec();
            self.wait_for_more()?;
        }
    }

    fn wait_for_more(&mut self) -> Result<(), AuthQueryError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(AuthQueryError::Timeout);
        }
        self.socket.set_read_timeout(Some(left)).map_err(broken)?;
        let mut buffer = [0; 4096];
        match self.socket.read(&mut buffer) {
            Ok(0) => Err(AuthQueryError::Closed),
            Ok(some) => {
                self.read.extend_from_slice(&buffer[..some]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(AuthQueryError::Timeout),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(broken(error)),
        }
    }
}

fn broken(error: io::Error) -> AuthQueryError {
    AuthQueryError::Broken(error)
}
