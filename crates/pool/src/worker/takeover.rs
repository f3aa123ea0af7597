//! A new process takes over from an old one: its listeners, and its clients with their sockets. A client
//! keeps its connection, and what it is to find on its servers.
//!
//! ```text
//! new                                   old
//!  │ HELLO ────────────────────────────► │ serves
//!  │ ◄──────────────── LISTENER … END    │ serves
//!  │ begins to serve; READY ───────────► │ accepts nobody any more
//!  │ ◄────────────── SECRETS, CHANNELS … │ what opens servers; what clients listen to
//!  │ LISTENING … ──────────────────────► │ marks the place where the other goes on
//!  │ ◄─────────────────────── CLIENT …   │ each that is in no transaction
//!  │ TAKEN … ──────────────────────────► │ forgets that client
//!  │ ◄──────────────────────────── DONE  │ ends
//! ```
//!
//! Both listen until the old one is told READY, so nobody knocks in vain. A client goes when it has no
//! server, asks for nothing and has been sent all that it is owed; until it is TAKEN, the old process
//! keeps its socket and its state, and serves it again if the new one goes. Clients with TLS (whose keys
//! are not passed on), in session mode while they have a server, and for replication, stay until they
//! leave, or for `timeouts.shutdown`.
//!
//! Whoever knocks has to be of our own user, or root.

mod format;
mod give;
mod line;
mod take;

use std::{
    io,
    os::{
        fd::AsFd,
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    sync::PoisonError,
};

use howdah_wire::startup::CancelKey;

use rustix::{net::sockopt::socket_peercred, process::geteuid};

pub(super) use self::{
    give::{HandoverSender, Outgoing, OutgoingClient, watch},
    take::Successor,
};
use super::front::Front;
use crate::config::Config;

/// Where a new process knocks: `listen.takeover`, or beside the first unix socket; `None` if there is
/// neither.
pub(super) fn place(config: &Config) -> Option<PathBuf> {
    let listen = &config.listen;
    if listen.takeover.is_some() || listen.port == 0 {
        return listen.takeover.clone();
    }
    let is_path = |path: &&PathBuf| !path.as_os_str().as_encoded_bytes().starts_with(b"@");
    let directory = listen.unix_directories.iter().find(is_path)?;
    Some(directory.join(format!(".s.howdah.{}", listen.port)))
}

/// Listens there, in the place of whoever did before.
fn bind(path: &Path) -> io::Result<UnixListener> {
    if std::fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        std::fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Whether the other end is of our own user, or root.
fn is_one_of_us(line: &UnixStream) -> bool {
    let user = geteuid();
    socket_peercred(line.as_fd()).is_ok_and(|peer| peer.uid == user || peer.uid.is_root())
}

/// Sends a CancelRequest to the old process, if it may have whom it is for.
pub(super) fn pass_cancel_on(key: &CancelKey, front: &Front) {
    let old = front.old.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = &*old {
        // One that is gone has nobody to cancel for.
        let _ = line::send(line, format::CANCEL, &format::encode_key(key), None);
    }
}

/// Tells the old process that the channels of a round are listened to here.
pub(super) fn confirm_channels(database: &str, round: u32, front: &Front) {
    let old = front.old.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(line) = &*old {
        // One that is gone has no clients left that wait for it.
        let _ = line::send(line, format::LISTENING, &format::encode_round(database, round), None);
    }
}

/// Something that is not of this version of the conversation.
fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the other process says what was not expected")
}
