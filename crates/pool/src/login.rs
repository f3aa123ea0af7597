//! What a finished login hands to the core, for either side. How a peer proves who it is, is not
//! decided here.

use std::fmt;

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
    /// The protocol version agreed on: decides the length of its cancel key.
    pub version: ProtocolVersion,
    /// Random bytes for its cancel key; from a source fit for secrets.
    pub secret: CancelSecret,
    /// Settings the client asked for, by startup parameters and by `-c` or `--name=` in `options`;
    /// the later of two comes later. Without `user`, `database`, `replication`, `options` and
    /// `_pq_.*`, and without what the configuration ignores. Names are as the client wrote them.
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
