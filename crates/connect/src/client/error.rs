//! Errors of connections and statements.

use std::{fmt, io, net::SocketAddr, time::Duration};

use howdah_session as session;
use howdah_wire::backend::{self, Severity};

use crate::{
    Endpoint, LoginError, LoginRefused, SessionAttributes,
    tls::{NegotiationError, TlsError},
};

/// The reason why no connection could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The TLS settings cannot be applied.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system provides no random numbers for choosing an endpoint.
    #[error("cannot choose a host: the operating system provides no random numbers")]
    Random,
    /// The search for a suitable endpoint ended without a connection.
    #[error("{}", join(.failures))]
    Failed {
        /// The failures of all attempts, in order; at least one.
        failures: Vec<AttemptFailure>,
    },
}

impl ConnectError {
    /// Returns the SQLSTATE of the last attempt that a server refused with an error.
    pub fn sqlstate(&self) -> Option<&str> {
        let Self::Failed { failures } = self else { return None };
        failures.iter().rev().find_map(|failure| match &failure.cause {
            ConnectFailure::Sql(error) => Some(error.sqlstate.as_str()),
            _ => None,
        })
    }
}

fn join(failures: &[AttemptFailure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// The failure of one attempt to connect.
#[derive(Debug)]
pub struct AttemptFailure {
    /// The endpoint that was tried.
    pub endpoint: Endpoint,
    /// The resolved address; `None` for a unix socket, or if the host name could not be resolved.
    pub address: Option<SocketAddr>,
    /// Whether the attempt used TLS, or failed while starting it; `None` if it did not get that
    /// far.
    pub encrypted: Option<bool>,
    /// The reason why the attempt failed.
    pub cause: ConnectFailure,
}

impl fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)?;
        // A name may resolve to several addresses.
        if let (Endpoint::Tcp { host, .. }, Some(address)) = (&self.endpoint, self.address)
            && *host != address.ip().to_string()
        {
            write!(f, " ({})", address.ip())?;
        }
        match self.encrypted {
            Some(true) => f.write_str(" with TLS")?,
            Some(false) if matches!(self.endpoint, Endpoint::Tcp { .. }) => {
                f.write_str(" without TLS")?;
            }
            _ => {}
        }
        write!(f, ": {}", self.cause)
    }
}

/// The reason why an attempt to connect failed. The message includes the cause, because
/// [`ConnectError`] joins the messages of several attempts.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The host name could not be resolved, or has no address.
    #[error("no address found{}", detail(.reason.as_ref()))]
    Lookup {
        /// The resolver's error, if it reported one.
        reason: Option<io::Error>,
    },
    /// The server could not be reached.
    #[error("{0}")]
    Unreachable(io::Error),
    /// Connecting and logging in took longer than [`crate::ConnectTarget::connect_timeout`].
    #[error("no connection within {} s", .after.as_secs())]
    TimedOut {
        /// The timeout that was exceeded.
        after: Duration,
    },
    /// The connection was lost before the login was complete.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// The server closed the connection before the login was complete.
    #[error("the server closed the connection before the login was complete")]
    Closed,
    /// TLS negotiation failed.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The TLS handshake failed, or the server's certificate was rejected.
    #[error("the TLS handshake failed: {}", explain(.0))]
    Handshake(rustls::Error),
    /// `require_auth` or `channel_binding` does not allow the login that the server requests.
    #[error(transparent)]
    LoginRefused(#[from] LoginRefused),
    /// The server answered the login with an error.
    #[error(transparent)]
    Sql(Box<SqlError>),
    /// The system provides no random numbers, which a login needs.
    #[error("cannot log in: the operating system provides no random numbers")]
    Random,
    /// The server violated the protocol, or the client cannot do what the login needs, for example
    /// because no password is configured.
    #[error(transparent)]
    Protocol(session::SessionError),
    /// The session is not of the kind required by `target_session_attrs`.
    #[error("the session is not {required}, as target_session_attrs requires")]
    WrongSession {
        /// The kind of session that `target_session_attrs` requires.
        required: SessionAttributes,
    },
    /// The kind of session could not be determined.
    #[error("cannot check the session against target_session_attrs: {0}")]
    UnknownSession(Box<QueryError>),
}

impl From<LoginError> for ConnectFailure {
    fn from(error: LoginError) -> Self {
        match error {
            LoginError::Refused(refused) => Self::LoginRefused(refused),
            LoginError::Protocol(error) => Self::Protocol(error),
        }
    }
}

fn detail(reason: Option<&io::Error>) -> String {
    reason.map(|reason| format!(": {reason}")).unwrap_or_default()
}

/// Returns the message of rustls, with advice for the most common failures.
fn explain(error: &rustls::Error) -> String {
    use rustls::{CertificateError, Error};
    let hint = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            ": the server's certificate is not signed by an authority in sslrootcert"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => ": the server's certificate is for another host",
        _ => "",
    };
    format!("{error}{hint}")
}

/// The reason why a statement did not complete.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The server reported an error.
    #[error(transparent)]
    Sql(Box<SqlError>),
    /// The statement is a `COPY … FROM STDIN`, but the call has no data for it. Nothing was copied.
    #[error("the statement is COPY FROM STDIN, but there is no data for it")]
    NoCopyData,
    /// The statement is a `COPY … TO STDOUT`, but the call does not take its data, which was
    /// discarded.
    #[error("the statement is COPY TO STDOUT, whose data cannot be read here")]
    CopyOutput,
    /// The statement starts replication, which this client does not support.
    #[error("the statement starts replication, which is not supported")]
    Replication,
    /// The statement is not a `COPY … TO STDOUT`.
    #[error("the statement is not COPY TO STDOUT")]
    NotCopy,
    /// The statement is not a `COPY … FROM STDIN`.
    #[error("the statement is not COPY FROM STDIN")]
    NotCopyIn,
    /// The reader of the data for a `COPY` failed. Nothing was copied in.
    #[error("cannot read the data for COPY FROM STDIN")]
    Reader(#[source] io::Error),
    /// The protocol cannot represent the statement or its values: for example, the text contains a
    /// zero byte. The statement was not executed.
    #[error("the statement cannot be sent")]
    Unsendable(#[from] session::EncodeError),
    /// The rows of a call exceed the limit for results in memory. The connection cannot be used any
    /// more.
    #[error("the result has more than {bytes_max} bytes")]
    TooLarge {
        /// The limit in bytes, [`crate::client::RESULT_BYTES_MAX`].
        bytes_max: usize,
    },
    /// The call exceeded its timeout. The connection cannot be used any more; the server may
    /// continue its work.
    #[error("the statement did not complete within {after:?}")]
    TimedOut {
        /// The timeout that was exceeded.
        after: Duration,
    },
    /// The connection was lost before the call was complete.
    #[error("the connection was lost")]
    Lost(#[source] io::Error),
    /// The server violated the protocol. The connection cannot be used any more.
    #[error(transparent)]
    Protocol(#[from] session::SessionError),
    /// The writer for the data of a `COPY` failed. The connection cannot be used any more.
    #[error("cannot write the data of COPY TO STDOUT")]
    Writer(#[source] io::Error),
    /// An earlier error left the connection unusable.
    #[error("the connection cannot be used after an earlier error")]
    Closed,
}

impl QueryError {
    /// Whether the connection cannot be used after this error.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Sql(error) => error.closes_connection(),
            Self::NoCopyData
            | Self::CopyOutput
            | Self::Replication
            | Self::NotCopy
            | Self::NotCopyIn
            | Self::Reader(_)
            | Self::Unsendable(_) => false,
            _ => true,
        }
    }

    /// Returns the SQLSTATE, if the server reported the error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Sql(error) => Some(&error.sqlstate),
            _ => None,
        }
    }
}

/// An error reported by the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqlError {
    /// The severity: `ERROR`, `FATAL` or `PANIC`, possibly in the server's language.
    pub severity: String,
    /// The SQLSTATE, an error code of five characters.
    pub sqlstate: String,
    /// The primary message, usually one line.
    pub message: String,
    /// Further details about the error, if the server sent any.
    pub detail: Option<String>,
    /// A suggestion for solving the problem, if the server sent one.
    pub hint: Option<String>,
    /// Position in the statement, in characters from 1.
    pub position: Option<u32>,
    closes_connection: bool,
}

impl SqlError {
    /// Whether the server closes the connection after this error.
    pub fn closes_connection(&self) -> bool {
        self.closes_connection
    }
}

impl From<&backend::ServerError<'_>> for SqlError {
    fn from(error: &backend::ServerError<'_>) -> Self {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let severity = error.field(backend::ErrorField::LocalizedSeverity.code());
        Self {
            severity: severity.map_or_else(|| "ERROR".to_owned(), text),
            sqlstate: text(error.sqlstate()),
            message: text(error.message()),
            detail: error.detail().map(text),
            hint: error.hint().map(text),
            position: error.position(),
            closes_connection: error.severity().is_some_and(Severity::closes_connection),
        }
    }
}

/// Writes the message and its SQLSTATE, on one line.
impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)
    }
}

impl std::error::Error for SqlError {}
