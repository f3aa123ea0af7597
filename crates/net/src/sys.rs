//! The one system call that has no safe wrapper.
#![allow(
    unsafe_code,
    reason = "a socket option that rustix does not know; what it gets lives on the stack"
)]

use std::{
    io,
    os::fd::{AsFd, AsRawFd as _},
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
