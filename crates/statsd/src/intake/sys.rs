//! What the kernel offers and no safe crate wraps: `recvmmsg`, `SO_MEMINFO`, a socket filter.
//!
//! Not for policy: sizes, pauses and what a drop means are decided by the callers.
#![allow(
    unsafe_code,
    reason = "three system calls without a safe wrapper; the pointers they get live in Batch or on the stack"
)]

use std::{
    io,
    mem::size_of,
    os::fd::{AsFd, AsRawFd},
    ptr, slice,
};

/// Room for the packets of one `recvmmsg`.
///
/// The pages of a packet's room are only touched by packets that long, so that room for the longest
/// packet there can be costs address space, not memory.
#[derive(Debug)]
pub(crate) struct Batch {
    /// All rooms, one after another, [`stride`](Self::stride) apart. Owned; given back in `drop`.
    rooms: *mut [u8],
    /// One per room, pointing into `rooms`. The kernel reads them through `headers`.
    _vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    packet_bytes_max: usize,
    received: usize,
}

// SAFETY: the pointers lead to memory that the batch itself owns and nobody else knows.
unsafe impl Send for Batch {}

impl Batch {
    /// Room for `packets` packets of at most `packet_bytes_max` bytes.
    pub(crate) fn new(packets: usize, packet_bytes_max: usize) -> Self {
        let stride = Self::stride(packet_bytes_max);
        // Zeroed memory of this size comes straight from the kernel, untouched.
        let rooms = Box::into_raw(vec![0_u8; packets * stride].into_boxed_slice());
        let base = rooms.cast::<u8>();
        let mut vectors: Box<[libc::iovec]> = (0..packets)
            .map(|packet| libc::iovec {
                iov_base: base.wrapping_add(packet * stride).cast(),
                iov_len: packet_bytes_max,
            })
            .collect();
        let headers = vectors
            .iter_mut()
            .map(|vector| libc::mmsghdr { msg_hdr: header(vector), msg_len: 0 })
            .collect();
        Self { rooms, _vectors: vectors, headers, packet_bytes_max, received: 0 }
    }

    /// Distance between two rooms. Not a power of two, or the beginnings of all packets, the only
    /// parts used as a rule, would compete for the same few lines of the first cache.
    fn stride(packet_bytes_max: usize) -> usize {
        packet_bytes_max.next_multiple_of(64) + 5 * 64
    }

    /// How many packets there is room for.
    pub(crate) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Takes what is in the socket's buffer, up to the room there is, and never waits: an empty
    /// buffer is 0 packets. What was received before is gone.
    ///
    /// # Errors
    ///
    /// What `recvmmsg` says about the socket, such as a pending ICMP error.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.received = 0;
        let room = libc::c_uint::try_from(self.headers.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: each header holds one vector, each vector a room of ours of the stated size; all
        // three live as long as `self`, which is borrowed exclusively.
        let count = unsafe {
            libc::recvmmsg(
                socket.as_fd().as_raw_fd(),
                self.headers.as_mut_ptr(),
                room,
                libc::MSG_DONTWAIT,
                ptr::null_mut(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => self.received = count,
            Err(_) => match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => {}
                error if error.kind() == io::ErrorKind::Interrupted => {}
                error => return Err(error),
            },
        }
        Ok(self.received)
    }

    /// The packets received last.
    pub(crate) fn packets(&self) -> impl Iterator<Item = Packet<'_>> {
        let base = self.rooms.cast::<u8>().cast_const();
        let stride = Self::stride(self.packet_bytes_max);
        self.headers[..self.received].iter().enumerate().map(move |(packet, header)| {
            let bytes = (header.msg_len as usize).min(self.packet_bytes_max);
            // SAFETY: the kernel has written `msg_len` bytes to this room, within the allocation,
            // and writes again only in `receive`, which needs `self` exclusively.
            let bytes = unsafe { slice::from_raw_parts(base.add(packet * stride), bytes) };
            Packet { bytes, cut: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 }
        })
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        // SAFETY: it came from `Box::into_raw` in `new` and is given back once.
        drop(unsafe { Box::from_raw(self.rooms) });
    }
}

/// One packet of a [`Batch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Packet<'b> {
    /// Its bytes.
    pub(crate) bytes: &'b [u8],
    /// It was longer, and the rest is lost.
    pub(crate) cut: bool,
}

/// A header for one vector, without sender's address and control data: nobody asks for them.
fn header(vector: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a plain C struct, for which zeros are nulls and lengths of nothing.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header
}

/// A socket's memory as `SO_MEMINFO` tells it (Linux 4.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Bytes that unread packets take, with the kernel's overhead.
    pub(crate) unread_bytes: u32,
    /// How many there may be: twice what was set.
    pub(crate) buffer_bytes: u32,
    /// Packets dropped since the socket was opened, modulo 2^32.
    pub(crate) drops: u32,
}

impl Memory {
    /// Asks the kernel.
    ///
    /// # Errors
    ///
    /// The kernel does not know the option.
    pub(crate) fn of(socket: impl AsFd) -> io::Result<Self> {
        // linux/sock_diag.h: RMEM_ALLOC 0, RCVBUF 1, …, BACKLOG 7, DROPS 8.
        let mut words = [0_u32; 9];
        let mut bytes = size_of::<[u32; 9]>() as libc::socklen_t;
        // SAFETY: `words` has the room that `bytes` states.
        let code = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                words.as_mut_ptr().cast(),
                &raw mut bytes,
            )
        };
        match code {
            0 => Ok(Self { unread_bytes: words[0], buffer_bytes: words[1], drops: words[8] }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// From now on the socket takes no packet more; each that comes is counted among its drops. What is
/// in its buffer stays to be read, so reading until it is empty comes to an end.
///
/// # Errors
///
/// The kernel has no memory for the filter.
pub(crate) fn refuse_packets(socket: impl AsFd) -> io::Result<()> {
    // `ret #0`: keep no byte of any packet.
    let mut program =
        [libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: 0 }];
    let filter = libc::sock_fprog { len: 1, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the one instruction that `filter` points to before it returns.
    let code = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of::<libc::sock_fprog>() as libc::socklen_t,
        )
    };
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn pair() -> (UdpSocket, UdpSocket) {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.connect(server.local_addr().unwrap()).unwrap();
        (server, client)
    }

    #[test]
    fn a_batch_holds_what_came_and_says_what_was_cut() {
        let (server, client) = pair();
        let mut batch = Batch::new(3, 8);
        assert_eq!(batch.receive(&server).unwrap(), 0, "nothing came, and nobody waits");
        for packet in ["a:1|c", "", "a long one", "next"] {
            client.send(packet.as_bytes()).unwrap();
        }
        assert_eq!(batch.receive(&server).unwrap(), 3);
        let packets: Vec<_> = batch.packets().map(|packet| (packet.bytes, packet.cut)).collect();
        assert_eq!(packets, [(&b"a:1|c"[..], false), (b"", false), (b"a long o", true)]);
        assert_eq!(batch.receive(&server).unwrap(), 1);
        assert_eq!(batch.packets().next().unwrap().bytes, b"next");
    }

    #[test]
    fn a_socket_that_refuses_keeps_what_it_has_and_counts_the_rest() {
        let (server, client) = pair();
        client.send(b"before").unwrap();
        let before = Memory::of(&server).unwrap();
        assert!(before.unread_bytes > 0 && before.buffer_bytes > 0 && before.drops == 0);
        refuse_packets(&server).unwrap();
        client.send(b"after").unwrap();
        client.send(b"after").unwrap();
        let mut batch = Batch::new(4, 64);
        assert_eq!(batch.receive(&server).unwrap(), 1);
        let after = Memory::of(&server).unwrap();
        assert_eq!((after.unread_bytes, after.drops), (0, 2));
    }
}
