//! Takeover: a new process receives the listeners of an old one, and its clients with their
//! sockets. Clients keep their connections and their session state.
//!
//! ```text
//! new                                   old
//!  │ HELLO ────────────────────────────► │ serves
//!  │ ◄──────────────── LISTENER … END    │ serves
//!  │ starts to serve; READY ───────────► │ accepts no clients any more
//!  │ ◄────────────── SECRETS, CHANNELS … │ credentials for servers; channels of clients
//!  │ LISTENING … ──────────────────────► │ marks where notifications continue in the new process
//!  │ ◄─────────────────────── CLIENT …   │ each client outside a transaction
//!  │ TAKEN … ──────────────────────────► │ drops that client
//!  │ ◄──────────────────────────── DONE  │ ends
//! ```
//!
//! Both processes listen until the old process receives READY, so no connection attempt fails. A
//! client is handed over when it has no server, no request in progress and no pending output. Until
//! it is TAKEN, the old process keeps its socket and state, and serves it again if the new process
//! fails. Clients that cannot be handed over stay until they disconnect, but at most for
//! `timeouts.shutdown`: for example clients with TLS, whose keys cannot be handed over; clients in
//! session mode while they have a server; and replication clients.
//!
//! Only a process of the same user, or of root, may take over.

mod format;
mod receiver;
mod sender;

use std::{io, path::PathBuf};

use howdah_net::takeover::send_frame;
use howdah_pool_config::Config;
use howdah_wire::startup::CancelKey;

pub(super) use self::{
    receiver::Successor,
    sender::{HandoverSender, Outgoing, OutgoingClient, accept_successor},
};
use super::shared_state::SharedState;

/// Returns the path of the takeover socket: `listen.takeover`, or else a name derived from
/// `listen.port` in the first unix directory outside the abstract namespace. Without
/// `listen.takeover`, returns `None` if no directory qualifies, or if the port is 0.
pub(super) fn socket_path(config: &Config) -> Option<PathBuf> {
    let listen = &config.listen;
    if listen.takeover.is_some() || listen.port == 0 {
        return listen.takeover.clone();
    }
    let is_path = |path: &&PathBuf| !path.as_os_str().as_encoded_bytes().starts_with(b"@");
    let directory = listen.unix_directories.iter().find(is_path)?;
    Some(directory.join(format!(".s.howdah.{}", listen.port)))
}

/// Forwards a CancelRequest to the old process while it may still have the client. Returns whether
/// it may.
pub(super) fn forward_cancel(key: &CancelKey, shared: &SharedState) -> bool {
    let old = shared.predecessor.socket.lock();
    if let Some(socket) = &*old {
        // If the old process is gone, it has no clients to cancel for.
        let _ = send_frame(socket, format::CANCEL, &format::encode_key(key), None);
    }
    old.is_some()
}

/// Notifies the old process that this one listens to the channels of a round.
pub(super) fn confirm_listening(database: &str, round: u32, shared: &SharedState) {
    let old = shared.predecessor.socket.lock();
    if let Some(socket) = &*old {
        // If the old process is gone, none of its clients waits for this.
        let _ = send_frame(socket, format::LISTENING, &format::encode_round(database, round), None);
    }
}

/// Returns the error for a frame that is invalid at this point of the protocol.
fn unexpected_frame() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other process sent an unexpected message")
}
