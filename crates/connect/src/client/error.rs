//! What can go wrong with a connection and with a statement.

use std::{fmt, io, net::SocketAddr, time::Duration};

use howdah_session as session;
use howdah_wire::backend::{self, Severity};

use crate::{
    Endpoint, LoginFault, LoginRefused, SessionAttributes,
    tls::{NegotiationError, TlsError},
};

/// No connection could be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The settings for TLS cannot be put into effect.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The system gives no random numbers to choose an endpoint by.
    #[error("the system gives no random numbers")]
    Random,
    /// Every endpoint that was tried has failed.
    #[error("{}", join(.failures))]
    Failed {
        /// What each attempt met with, in their order; at least one.
        failures: Vec<Failure>,
    },
}

impl ConnectError {
    /// The SQLSTATE with which a server refused, of the last attempt where one did.
    pub fn sqlstate(&self) -> Option<&str> {
        let Self::Failed { failures } = self else { return None };
        failures.iter().rev().find_map(|failure| match &failure.cause {
            ConnectFailure::Sql(error) => Some(error.sqlstate.as_str()),
            _ => None,
        })
    }
}

fn join(failures: &[Failure]) -> String {
    failures.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// What one attempt to connect met with.
#[derive(Debug)]
pub struct Failure {
    /// Where.
    pub endpoint: Endpoint,
    /// The address, if it came to that.
    pub address: Option<SocketAddr>,
    /// Whether the attempt was with TLS, without it, or did not come to that.
    pub encrypted: Option<bool>,
    /// What happened.
    pub cause: ConnectFailure,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)?;
        // A name may stand for several addresses.
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

/// Why an attempt to connect failed. The message is whole: there is no chain of sources behind it,
/// since [`ConnectError`] has to join several.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectFailure {
    /// The host name has no address.
    #[error("no address found{}", detail(.said.as_ref()))]
    Lookup {
        /// What the resolver said, if it said more than "none".
        said: Option<io::Error>,
    },
    /// Nobody could be reached.
    #[error("{0}")]
    Unreachable(io::Error),
    /// It took longer than [`crate::Target::connect_timeout`].
    #[error("no connection within {} s", .after.as_secs())]
    TimedOut {
        /// The limit.
        after: Duration,
    },
    /// The connection broke off before the login was complete.
    #[error("the connection was lost: {0}")]
    Lost(io::Error),
    /// The server closed the connection before the login was complete.
    #[error("the server closed the connection before the login was complete")]
    Closed,
    /// TLS could not begin.
    #[error(transparent)]
    Negotiation(#[from] NegotiationError),
    /// The TLS handshake failed, or the server's certificate was not believed.
    #[error("TLS: {}", explain(.0))]
    Handshake(rustls::Error),
    /// The server asks for the wrong proof of identity.
    #[error(transparent)]
    LoginRefused(#[from] LoginRefused),
    /// The server refused the login.
    #[error(transparent)]
    Sql(Box<SqlError>),
    /// The system gives no random numbers, which a login needs.
    #[error("the system gives no random numbers")]
    Random,
    /// What the server says makes no sense, or the login cannot be done.
    #[error(transparent)]
    Protocol(session::Error),
    /// The session is not of the kind that `target_session_attrs` asks for.
    #[error("the session is not {wanted}")]
    WrongSession {
        /// What was asked for.
        wanted: SessionAttributes,
    },
    /// The kind of session could not be found out.
    #[error("cannot tell what kind of session it is: {0}")]
    UnknownSession(Box<QueryError>),
}

impl From<LoginFault> for ConnectFailure {
    fn from(fault: LoginFault) -> Self {
        match fault {
            LoginFault::Refused(refused) => Self::LoginRefused(refused),
            LoginFault::Protocol(error) => Self::Protocol(error),
        }
    }
}

fn detail(said: Option<&io::Error>) -> String {
    said.map(|said| format!(": {said}")).unwrap_or_default()
}

/// rustls' words, with a way out for what people meet most.
fn explain(error: &rustls::Error) -> String {
    use rustls::{CertificateError, Error};
    let hint = match error {
        Error::InvalidCertificate(CertificateError::UnknownIssuer) => {
            ": the server's certificate is not of an authority in sslrootcert"
        }
        Error::InvalidCertificate(
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
        ) => ": the server's certificate is for another host",
        _ => "",
    };
    format!("{error}{hint}")
}

/// A statement did not run to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The server reports an error.
    #[error(transparent)]
    Sql(Box<SqlError>),
    /// The statement is a `COPY` that needs the client's data, or gives data to a call that has no
    /// place for it. It was ended; nothing was copied in.
    #[error("the statement is a COPY from or to the client, which is not possible here")]
    Copy,
    /// The statement is no `COPY … TO STDOUT`.
    #[error("the statement is not a COPY to the client")]
    NotCopy,
    /// The statement is no `COPY … FROM STDIN`.
    #[error("the statement is not a COPY from the client")]
    NotCopyIn,
    /// The reader of the data for a `COPY` failed. Nothing was copied in.
    #[error("cannot read the data")]
    Reader(#[source] io::Error),
    /// The statement's text has a zero byte, or there are too many values: the protocol cannot carry
    /// that. Nothing was done.
    #[error("the statement cannot be sent")]
    Unsendable(#[from] session::EncodeError),
    /// The result is larger than what may be held in memory. The connection is closed.
    #[error("the result has more than {bytes_max} bytes")]
    TooLarge {
        /// [`crate::client::RESULT_BYTES_MAX`].
        bytes_max: usize,
    },
    /// The call took longer than it may. The connection is closed; the server may go on with it.
    #[error("no answer within {after:?}")]
    TimedOut {
        /// The limit.
        after: Duration,
    },
    /// The connection is lost.
    #[error("the connection was lost")]
    Lost(#[source] io::Error),
    /// What the server says makes no sense. The connection is closed.
    #[error(transparent)]
    Protocol(#[from] session::Error),
    /// The writer for the data of a `COPY` failed. The connection is closed.
    #[error("cannot write the data")]
    Writer(#[source] io::Error),
    /// The connection had been closed before, after an earlier error.
    #[error("the connection is closed")]
    Closed,
}

impl QueryError {
    /// Whether the connection cannot be used after this error.
    pub fn is_fatal(&self) -> bool {
        match self {
            Self::Sql(error) => error.ends_session(),
            Self::Copy
            | Self::NotCopy
            | Self::NotCopyIn
            | Self::Reader(_)
            | Self::Unsendable(_) => false,
            _ => true,
        }
    }

    /// The SQLSTATE, if the server reported the error.
    pub fn sqlstate(&self) -> Option<&str> {
        match self {
            Self::Sql(error) => Some(&error.sqlstate),
            _ => None,
        }
    }
}

/// An error as the server reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SqlError {
    /// How bad it is: `ERROR`, `FATAL` or `PANIC`, perhaps in the server's language.
    pub severity: String,
    /// The five characters of the error's code.
    pub sqlstate: String,
    /// The primary message.
    pub message: String,
    /// More about it.
    pub detail: Option<String>,
    /// What to do about it.
    pub hint: Option<String>,
    /// Where in the statement it is, in characters from 1.
    pub position: Option<u32>,
    ends_session: bool,
}

impl SqlError {
    /// Whether the server closes the connection after it.
    pub fn ends_session(&self) -> bool {
        self.ends_session
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
            ends_session: error.severity().is_some_and(Severity::ends_session),
        }
    }
}

/// The message and its SQLSTATE, on one line.
impl fmt::Display for SqlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (SQLSTATE {})", self.message, self.sqlstate)
    }
}

impl std::error::Error for SqlError {}
