//! Cancelling a statement: a connection of its own that says which session is meant.

use std::{
    fmt, io,
    time::{Duration, Instant},
};

use howdah_wire::startup::{self, CancelKey};

use super::{
    error::ConnectFailure,
    socket::{Address, Secure, Socket},
};
use crate::{Keepalive, tls::Encryption};

/// Cancels what a session is doing, from any thread and after the [`crate::Client`] is gone.
///
/// The request goes to the address the session is connected to, with TLS if the session has it. A
/// session that does nothing, or is over, is left alone; what arrives just when the next statement
/// has begun cancels that one: the protocol knows no names for statements.
#[derive(Clone)]
pub struct CancelHandle {
    pub(super) address: Address,
    pub(super) encryption: Encryption,
    pub(super) secure: Option<Secure>,
    pub(super) keepalive: Keepalive,
    pub(super) timeout: Option<Duration>,
    pub(super) key: CancelKey,
}

/// A request to cancel could not be delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// No connection could be made for it.
    #[error("cannot connect to cancel")]
    Connect(#[source] ConnectFailure),
    /// The connection was lost before the server took it.
    #[error("the request to cancel was lost")]
    Lost(#[source] io::Error),
}

impl CancelHandle {
    /// Asks the server to cancel, and waits until it has taken the request. Whether there was
    /// something to cancel shows only in the session: its statement fails with SQLSTATE 57014.
    ///
    /// # Errors
    ///
    /// The request could not be delivered within the connection's timeout.
    pub fn cancel(&self) -> Result<(), CancelError> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut socket = Socket::connect(&self.address, self.keepalive, deadline)
            .map_err(|error| CancelError::Connect(ConnectFailure::Unreachable(error)))?;
        socket.open(self.encryption, self.secure.as_ref()).map_err(CancelError::Connect)?;
        let mut request = Vec::new();
        startup::cancel_request(&mut request, &self.key);
        socket.send(&request).map_err(CancelError::Lost)?;
        // The server closes the connection once it has sent the signal; how, does not matter.
        match socket.receive(&mut [0; 16]) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(CancelError::Lost(error)),
            _ => Ok(()),
        }
    }
}

/// Without the key, which would let anybody cancel.
impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle")
            .field("address", &self.address)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
