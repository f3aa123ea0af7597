//! Cancelling a statement, over a separate connection that identifies the session.

use std::{
    fmt, io,
    time::{Duration, Instant},
};

use howdah_wire::startup::{self, CancelKey};

use super::{
    error::ConnectFailure,
    socket::{ResolvedAddress, Socket, TlsSetup},
};
use crate::{Keepalive, tls::Encryption};

/// A handle that cancels the current statement of a session, from any thread, even after the
/// [`crate::Client`] has been dropped.
///
/// The request is sent to the address that the session is connected to, with TLS if the session
/// uses it. It has no effect on an idle or finished session. A request that arrives just after the
/// next statement has started cancels that one: the protocol does not identify statements.
#[derive(Clone)]
pub struct CancelHandle {
    pub(super) address: ResolvedAddress,
    pub(super) encryption: Encryption,
    pub(super) secure: Option<TlsSetup>,
    pub(super) keepalive: Keepalive,
    pub(super) timeout: Option<Duration>,
    pub(super) key: CancelKey,
}

/// The reason why a cancel request could not be delivered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CancelError {
    /// The connection for the request failed.
    #[error("cannot connect to send the cancel request")]
    Connect(#[source] ConnectFailure),
    /// Sending failed, or the server did not close the connection in time, which would confirm that
    /// it has read the request.
    #[error("cannot deliver the cancel request")]
    Lost(#[source] io::Error),
}

impl CancelHandle {
    /// Sends the cancel request, and waits until the server has read it. Only the session shows
    /// whether a statement was cancelled: it then fails with SQLSTATE 57014.
    ///
    /// # Errors
    ///
    /// The request could not be delivered within the `connect_timeout` of the session's target.
    pub fn cancel(&self) -> Result<(), CancelError> {
        let deadline = self.timeout.map(|timeout| Instant::now() + timeout);
        let mut socket = Socket::connect(&self.address, self.keepalive, deadline)
            .map_err(|error| CancelError::Connect(ConnectFailure::Unreachable(error)))?;
        socket.open(self.encryption, self.secure.as_ref()).map_err(CancelError::Connect)?;
        let mut request = Vec::new();
        startup::cancel_request(&mut request, &self.key);
        socket.send(&request).map_err(CancelError::Lost)?;
        // The server closes the connection after signalling the backend; how it closes does not
        // matter.
        match socket.receive(&mut [0; 16]) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(CancelError::Lost(error)),
            _ => Ok(()),
        }
    }
}

/// Shows the process id, but not the secret, which would allow anyone to cancel.
impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle")
            .field("address", &self.address)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
