//! Listening sockets that a service manager opened for us: systemd's socket activation. They are there
//! before we are, so who knocks early waits, and ports below 1024 need no rights of ours.
//!
//! Source: sd_listen_fds(3). The numbers begin at 3, `LISTEN_FDS` of them; `LISTEN_PID` says whose they
//! are, since processes that we were started by may have been meant; `LISTEN_FDNAMES` names them, with
//! colons in between.

use std::{
    env, io,
    os::fd::{OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{listener::Listener, sys::take_descriptor};

/// A listening socket that was passed to us.
#[derive(Debug)]
pub struct ActivatedSocket {
    /// What the service manager calls it: `FileDescriptorName=`, or the unit's name.
    pub name: String,
    /// The socket.
    pub listener: Listener,
}

/// What a service manager passed cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PassedError {
    /// `LISTEN_FDS` is no number of descriptors.
    #[error("LISTEN_FDS is {0:?}, which is no number of sockets")]
    Number(String),
    /// A descriptor is no socket that listens.
    #[error(
        "descriptor {number}, named {name:?}, is no stream socket that listens: \
         ListenStream= and Accept=no pass such"
    )]
    Socket {
        /// Its number.
        number: RawFd,
        /// Its name.
        name: String,
        /// The kernel's reason.
        source: io::Error,
    },
}

/// The first descriptor that is passed.
const FIRST: RawFd = 3;

/// Most sockets; a service has some.
const SOCKETS_MAX: usize = 64;

/// Takes the sockets that were passed to this process, if any were. They are given once: another call
/// finds none.
///
/// # Errors
///
/// See [`PassedError`]. What is no socket is closed with the others.
pub fn passed_sockets() -> Result<Vec<ActivatedSocket>, PassedError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let text = |name| env::var(name).ok();
    let (pid, fds, names) = (text("LISTEN_PID"), text("LISTEN_FDS"), text("LISTEN_FDNAMES"));
    let own = std::process::id();
    let names = names_of(pid.as_deref(), fds.as_deref(), names.as_deref(), own)?;
    if names.is_empty() || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let taken: Vec<io::Result<OwnedFd>> =
        (FIRST..).take(names.len()).map(take_descriptor).collect();
    let sockets = (FIRST..).zip(names).zip(taken);
    sockets
        .map(|((number, name), descriptor)| match descriptor.and_then(Listener::inherited) {
            Ok(listener) => Ok(ActivatedSocket { name, listener }),
            Err(source) => Err(PassedError::Socket { number, name, source }),
        })
        .collect()
}

/// A name for each socket that is ours.
fn names_of(
    pid: Option<&str>,
    fds: Option<&str>,
    names: Option<&str>,
    own: u32,
) -> Result<Vec<String>, PassedError> {
    let is_ours = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let Some(fds) = fds.filter(|_| is_ours) else { return Ok(Vec::new()) };
    let count: usize = fds.parse().map_err(|_| PassedError::Number(fds.to_owned()))?;
    if count > SOCKETS_MAX {
        return Err(PassedError::Number(fds.to_owned()));
    }
    let names = names.unwrap_or_default().split(':').filter(|name| !name.is_empty());
    let unnamed = std::iter::repeat("unknown");
    Ok(names.chain(unnamed).take(count).map(str::to_owned).collect())
}

#[test]
fn sockets_are_ours_by_our_process_id_only() {
    let names = |pid, fds, names| names_of(pid, fds, names, 7).unwrap();
    assert_eq!(names(Some("7"), Some("2"), Some("tcp:unix")), ["tcp", "unix"]);
    assert_eq!(names(Some("7"), Some("2"), Some("tcp")), ["tcp", "unknown"]);
    assert_eq!(names(Some("7"), Some("1"), None), ["unknown"]);
    assert_eq!(names(Some("7"), Some("0"), None), [""; 0]);
    assert_eq!(names(Some("8"), Some("2"), None), [""; 0], "another's");
    assert_eq!(names(None, Some("2"), None), [""; 0]);
    assert_eq!(names(Some("7"), None, None), [""; 0]);
    for wrong in ["", "-1", "two", "65", "99999999999999999999"] {
        assert!(names_of(Some("7"), Some(wrong), None, 7).is_err(), "{wrong}");
    }
}
