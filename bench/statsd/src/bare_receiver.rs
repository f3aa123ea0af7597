//! The lower bound of the cost of receiving: a loop that counts packets without reading them.
#![allow(unsafe_code, reason = "recvmmsg, which no safe crate wraps, over arrays on this page")]

use std::{net::UdpSocket, os::fd::AsRawFd, ptr};

use rustix::net::sockopt;

/// Packets received by one call.
const BATCH: usize = 64;
/// Buffer bytes per packet.
const ROOM: usize = 2048;

/// Receives until killed. The benchmark reads the kernel's counters.
pub(crate) fn run(port: u16, buffer_bytes: usize) -> anyhow::Result<()> {
    let socket = UdpSocket::bind(("127.0.0.1", port))?;
    if sockopt::set_socket_recv_buffer_size_force(&socket, buffer_bytes).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, buffer_bytes)?;
    }
    let mut rooms = vec![[0_u8; ROOM]; BATCH];
    let mut vectors: Vec<libc::iovec> = rooms
        .iter_mut()
        .map(|room| libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: ROOM })
        .collect();
    let mut headers: Vec<libc::mmsghdr> = vectors
        .iter_mut()
        .map(|vector| {
            // SAFETY: a plain C struct, for which all zeros means null pointers and zero lengths.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = vector;
            header.msg_hdr.msg_iovlen = 1;
            header
        })
        .collect();
    let mut packets = 0_u64;
    loop {
        // SAFETY: each header holds one vector, each vector a buffer of the stated size; all three
        // are locals of this function and outlive the call.
        let received = unsafe {
            libc::recvmmsg(
                socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as libc::c_uint,
                libc::MSG_WAITFORONE,
                ptr::null_mut(),
            )
        };
        match u64::try_from(received) {
            Ok(received) => packets += received,
            Err(_) => return Err(std::io::Error::last_os_error().into()),
        }
        std::hint::black_box(packets);
    }
}
