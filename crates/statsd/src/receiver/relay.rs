//! [`RelayEnd`]: passes on the lines of encrypted connections after a takeover.
//!
//! The state of TLS stays in the process that made the handshake. So that process goes on to read
//! and decrypt such connections until their clients close them, at the longest for
//! `shutdown-timeout`, and sends the complete lines to the new process through a pair of sockets.
//! For the new process, its end is a connection like any other. The old process asks clients at
//! once to open new connections, which are the new process's.

use std::{
    io::{self, Write as _},
    os::unix::net::UnixStream,
    time::Duration,
};

use super::{passed::InheritedConnection, socket_counts::SocketCounts};

/// Maximum wait until the new process reads.
const SEND_TIMEOUT: Duration = Duration::from_secs(5);

/// The old process's end of a relayed connection, `None` once sending has failed. Dropping it ends
/// the connection.
#[derive(Debug)]
pub(crate) struct RelayEnd(Option<UnixStream>);

impl RelayEnd {
    /// Creates an end, and the connection for the new process, which is one of `listener`.
    ///
    /// # Errors
    ///
    /// The process has no free file descriptor.
    pub(crate) fn pair(listener: &str) -> io::Result<(Self, InheritedConnection)> {
        let (old, new) = UnixStream::pair()?;
        old.set_write_timeout(Some(SEND_TIMEOUT))?;
        new.set_nonblocking(true)?;
        let passed = InheritedConnection {
            descriptor: new.into(),
            listener: listener.to_owned(),
            tail: Vec::new(),
            is_skipping: false,
        };
        Ok((Self(Some(old)), passed))
    }

    /// Sends complete lines. If that fails, they and all further ones are dropped, because a part
    /// of a line may have been sent.
    pub(super) fn send(&mut self, lines: &[u8], counts: &SocketCounts) {
        let Some(stream) = &mut self.0 else { return counts.discard(1) };
        if let Err(error) = stream.write_all(lines) {
            tracing::error!(socket = counts.name(), %error, "cannot relay lines: dropped");
            counts.discard(1);
            self.0 = None;
        }
    }
}
