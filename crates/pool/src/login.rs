//! What a finished login hands to the core, for either side. How a peer proves who it is, is not
//! decided here.

use std::{fmt, sync::Arc};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{PoolId, ServerRole, Setting};

/// The random part of a client's cancel key. `Debug` does not show it.
#[derive(Clone, Copy)]
pub struct CancelSecret(
    /// The bytes; a key of protocol 3.0 shows four of them.
    pub [u8; 32],
);

impl fmt::Debug for CancelSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CancelSecret(…)")
    }
}

/// A client that has proven who it is.
///
/// AuthenticationOk has been sent to it (and NegotiateProtocolVersion before, where due), or goes with
/// [`crate::Core::greet_client`]; nothing after that: ParameterStatus, BackendKeyData and ReadyForQuery
/// are the core's.
#[derive(Clone, Debug)]
pub struct ClientLogin {
    /// The pool of its database and user.
    pub pool: PoolId,
    /// The client's own user, where its pool is that of the user that its database forces; `None` where
    /// the pool's user is its own.
    pub user: Option<Arc<str>>,
    /// The protocol version agreed on: decides the length of its cancel key.
    pub version: ProtocolVersion,
    /// Random bytes for its cancel key; from a source fit for secrets.
    pub secret: CancelSecret,
    /// Settings the client asked for, by startup parameters and by `-c` or `--name=` in `options`;
    /// the later of two comes later. Without `user`, `database`, `replication`, `options` and
    /// `_pq_.*`, and without what the configuration ignores. Names are as the client wrote them. Of
    /// a replication connection, every parameter and `options` as it came.
    pub settings: Vec<Setting>,
    /// Which servers of a cluster would do, if it says so; else what the pool says.
    pub role: Option<ServerRole>,
}

/// A server that lets us work: its first ReadyForQuery has come.
///
/// Bytes that came after that ReadyForQuery are handed to [`crate::Core::server_bytes`], after this.
#[derive(Clone, Debug)]
pub struct ServerLogin {
    /// Everything it reported by ParameterStatus, as reported.
    pub parameters: Vec<Setting>,
    /// What it takes to cancel its statements, if it said.
    pub cancel_key: Option<CancelKey>,
}

/// Why a server did not come to be.
#[derive(Clone, Debug)]
pub struct ServerFailure {
    /// Five characters: the server's own, or `08006` for one that could not be reached.
    pub sqlstate: [u8; 5],
    /// What clients are told, if this is what they wait for. In UTF-8, without a zero byte.
    pub message: String,
}

impl ServerFailure {
    /// Whether the same login may succeed later without anybody changing settings or passwords: the
    /// server cannot be reached (class 08, as the worker reports it), starts, stops or has crashed
    /// (57P01 to 57P03), or has no resources left (class 53, such as 53300).
    pub(crate) fn is_transient(&self) -> bool {
        matches!(&self.sqlstate, b"08000" | b"08001" | b"08003" | b"08004" | b"08006")
            || matches!(&self.sqlstate, b"57P01" | b"57P02" | b"57P03")
            || self.sqlstate.starts_with(b"53")
    }

    /// Whether the server itself is stopped, starting or out of reach, and not just full.
    pub(crate) fn is_outage(&self) -> bool {
        self.is_transient() && !self.sqlstate.starts_with(b"53")
    }
}
