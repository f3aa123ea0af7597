//! systemd socket activation: listening sockets that the service manager opened. They exist before
//! the process starts, so early clients wait, and ports below 1024 need no privileges here.
//!
//! Source: sd_listen_fds(3). Descriptors start at 3, and `LISTEN_FDS` is their number. `LISTEN_PID`
//! identifies the intended process, because the variables may have been inherited from a parent.
//! `LISTEN_FDNAMES` contains colon-separated names.

use std::{
    env, io,
    os::fd::{OwnedFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

use crate::{listener::Listener, sys::adopt_descriptor};

/// A listening socket passed by the service manager.
#[derive(Debug)]
pub struct ActivatedSocket {
    /// The name in the service manager: `FileDescriptorName=`, or the unit's name; `unknown` if the
    /// service manager passed none.
    pub name: String,
    /// The socket, listening and non-blocking.
    pub listener: Listener,
}

/// A descriptor passed by the service manager, of any kind.
#[derive(Debug)]
pub struct ActivatedDescriptor {
    /// Number of the descriptor.
    pub number: RawFd,
    /// The name in the service manager; see [`ActivatedSocket::name`].
    pub name: String,
    /// The descriptor, with close-on-exec set.
    pub descriptor: OwnedFd,
}

/// The reason why the sockets of the service manager cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ActivationError {
    /// `LISTEN_FDS` is not a valid number of descriptors.
    #[error("LISTEN_FDS is {0:?}, which is not a number of sockets from 0 to {SOCKETS_MAX}")]
    Number(String),
    /// A descriptor is not open.
    #[error("descriptor {number}, named {name:?}, is not open")]
    Closed {
        /// Number of the descriptor.
        number: RawFd,
        /// Name of the socket; see [`ActivatedSocket::name`].
        name: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// A descriptor is not a listening stream socket, or cannot be used as one.
    #[error(
        "descriptor {number}, named {name:?}, is not a listening stream socket: \
         set ListenStream= and Accept=no in the socket unit"
    )]
    Socket {
        /// Number of the descriptor.
        number: RawFd,
        /// Name of the socket; see [`ActivatedSocket::name`].
        name: String,
        /// The error of the kernel or of the check.
        source: io::Error,
    },
}

/// Number of the first descriptor that is passed.
const FIRST_DESCRIPTOR: RawFd = 3;

/// Maximum number of sockets; services have a few.
const SOCKETS_MAX: usize = 64;

/// Takes the listening stream sockets that were passed to this process, if any. Works once: a
/// second call returns none.
///
/// # Errors
///
/// See [`ActivationError`]. An invalid descriptor is closed along with the others.
pub fn activated_sockets() -> Result<Vec<ActivatedSocket>, ActivationError> {
    let descriptors = activated_descriptors()?.into_iter();
    let sockets =
        descriptors.map(
            |ActivatedDescriptor { number, name, descriptor }| match Listener::inherited(descriptor)
            {
                Ok(listener) => Ok(ActivatedSocket { name, listener }),
                Err(source) => Err(ActivationError::Socket { number, name, source }),
            },
        );
    sockets.collect()
}

/// Takes all descriptors that were passed to this process, if any, without checking their kinds.
/// Works once: a second call, of this function or of [`activated_sockets`], returns none.
///
/// # Errors
///
/// `LISTEN_FDS` is invalid, or a descriptor is not open.
pub fn activated_descriptors() -> Result<Vec<ActivatedDescriptor>, ActivationError> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let text = |name| env::var(name).ok();
    let (pid, fds, names) = (text("LISTEN_PID"), text("LISTEN_FDS"), text("LISTEN_FDNAMES"));
    let own = std::process::id();
    let names = socket_names(pid.as_deref(), fds.as_deref(), names.as_deref(), own)?;
    if names.is_empty() || TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    // All are adopted before the first error returns, so that all are closed.
    let adopted: Vec<io::Result<OwnedFd>> =
        (FIRST_DESCRIPTOR..).take(names.len()).map(adopt_descriptor).collect();
    let all = (FIRST_DESCRIPTOR..).zip(names).zip(adopted);
    all.map(|((number, name), descriptor)| match descriptor {
        Ok(descriptor) => Ok(ActivatedDescriptor { number, name, descriptor }),
        Err(source) => Err(ActivationError::Closed { number, name, source }),
    })
    .collect()
}

/// Returns the name of each socket that is meant for this process.
fn socket_names(
    pid: Option<&str>,
    fds: Option<&str>,
    names: Option<&str>,
    own: u32,
) -> Result<Vec<String>, ActivationError> {
    let is_ours = pid.and_then(|pid| pid.parse().ok()) == Some(own);
    let Some(fds) = fds.filter(|_| is_ours) else { return Ok(Vec::new()) };
    let count: usize = fds.parse().map_err(|_| ActivationError::Number(fds.to_owned()))?;
    if count > SOCKETS_MAX {
        return Err(ActivationError::Number(fds.to_owned()));
    }
    let names = names.unwrap_or_default().split(':').filter(|name| !name.is_empty());
    let unnamed = std::iter::repeat("unknown");
    Ok(names.chain(unnamed).take(count).map(str::to_owned).collect())
}

#[test]
fn sockets_require_matching_process_id() {
    let names = |pid, fds, names| socket_names(pid, fds, names, 7).unwrap();
    assert_eq!(names(Some("7"), Some("2"), Some("tcp:unix")), ["tcp", "unix"]);
    assert_eq!(names(Some("7"), Some("2"), Some("tcp")), ["tcp", "unknown"]);
    assert_eq!(names(Some("7"), Some("1"), None), ["unknown"]);
    assert_eq!(names(Some("7"), Some("0"), None), [""; 0]);
    assert_eq!(names(Some("8"), Some("2"), None), [""; 0], "another's");
    assert_eq!(names(None, Some("2"), None), [""; 0]);
    assert_eq!(names(Some("7"), None, None), [""; 0]);
    for wrong in ["", "-1", "two", "65", "99999999999999999999"] {
        assert!(socket_names(Some("7"), Some(wrong), None, 7).is_err(), "{wrong}");
    }
}
