//! The two system calls that have no safe wrapper.
#![allow(
    unsafe_code,
    reason = "a socket option that rustix does not know, and descriptors that we know by number"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

/// Has a listener tell of a connection only when something was sent on it, or when nothing was for so
/// long (tcp(7), `TCP_DEFER_ACCEPT`).
///
/// # Errors
///
/// The socket is none of TCP.
pub(crate) fn set_tcp_defer_accept(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    let whole = patience.as_secs() + u64::from(patience.subsec_nanos() > 0);
    let seconds = libc::c_int::try_from(whole).unwrap_or(libc::c_int::MAX);
    let bytes = libc::socklen_t::try_from(size_of_val(&seconds)).expect("it is four");
    // SAFETY: the option's value is an int, which is read during the call from this stack.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_DEFER_ACCEPT,
            (&raw const seconds).cast(),
            bytes,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Makes a descriptor ours that was open when the process began and that nothing else of it knows of; a
/// process that we start does not get it.
///
/// # Errors
///
/// Nothing is open under the number.
pub(crate) fn take_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call has numbers only; one that is not open is an error.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is open, and by the caller's word nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
