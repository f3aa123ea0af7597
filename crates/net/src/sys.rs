//! Two operations on descriptors that have no safe wrapper.
#![allow(
    unsafe_code,
    reason = "a socket option that rustix does not know, and descriptors that we know by number"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    time::Duration,
};

/// Makes a listener report a connection only when data has arrived on it, or after at least
/// `defer_timeout` without data (tcp(7), `TCP_DEFER_ACCEPT`).
///
/// # Errors
///
/// The socket is not a TCP socket.
pub(crate) fn set_tcp_defer_accept(socket: impl AsFd, defer_timeout: Duration) -> io::Result<()> {
    let rounded = defer_timeout.as_secs() + u64::from(defer_timeout.subsec_nanos() > 0);
    let seconds = libc::c_int::try_from(rounded).unwrap_or(libc::c_int::MAX);
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

/// Takes ownership of a descriptor that was open when the process started and that no other code of
/// the process uses; sets close-on-exec.
///
/// # Errors
///
/// The descriptor is not open.
pub(crate) fn adopt_descriptor(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the call takes only numbers; a descriptor that is not open is an error.
    if unsafe { libc::fcntl(number, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and the caller guarantees that nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}
