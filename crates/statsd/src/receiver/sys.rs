//! System calls without a safe wrapper in a crate: `recvmmsg`, `SO_MEMINFO`, socket filters.
//!
//! Contains no policy: callers choose sizes and pauses, and handle drops.
#![allow(
    unsafe_code,
    reason = "three system calls without a safe wrapper; their pointers lead into PacketBatch or the stack"
)]

use std::{
    io,
    mem::size_of,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsFd, AsRawFd},
    ptr, slice,
};

/// Buffers for the packets of one `recvmmsg`.
///
/// Only packets long enough to reach a page of a buffer touch it, so buffers for the longest
/// possible packet cost address space, not memory.
#[derive(Debug)]
pub(crate) struct PacketBatch {
    /// All buffers, [`stride`](Self::stride) apart. Owned; freed in `drop`.
    rooms: *mut [u8],
    /// One vector per buffer, pointing into `rooms`. The kernel reads the vectors through
    /// `headers`.
    _vectors: Box<[libc::iovec]>,
    headers: Box<[libc::mmsghdr]>,
    /// The senders' addresses, one per buffer; empty if they are not needed. The kernel writes them
    /// through `headers`.
    senders: Box<[libc::sockaddr_storage]>,
    packet_bytes_max: usize,
    received: usize,
}

// SAFETY: the pointers lead to memory that the batch owns and does not share.
unsafe impl Send for PacketBatch {}

impl PacketBatch {
    /// Allocates buffers for `packets` packets of at most `packet_bytes_max` bytes.
    pub(crate) fn new(packets: usize, packet_bytes_max: usize) -> Self {
        let stride = Self::stride(packet_bytes_max);
        // Zeroed memory of this size comes from the kernel as untouched pages.
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
        let senders = Box::default();
        Self { rooms, _vectors: vectors, headers, senders, packet_bytes_max, received: 0 }
    }

    /// Also receives the address of each packet's sender.
    pub(crate) fn with_senders(mut self) -> Self {
        // SAFETY: a plain C struct, for which all zeros means an unspecified address family.
        let unspecified: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
        self.senders = vec![unspecified; self.headers.len()].into();
        self
    }

    /// Returns the distance between two buffers in bytes. It is not a power of two, because
    /// otherwise the starts of all packets, usually the only parts used, would compete for the same
    /// few lines of the L1 cache.
    fn stride(packet_bytes_max: usize) -> usize {
        packet_bytes_max.next_multiple_of(64) + 5 * 64
    }

    /// Returns the maximum number of packets.
    pub(crate) fn capacity(&self) -> usize {
        self.headers.len()
    }

    /// Receives packets without blocking, up to the capacity, and returns their number; 0 if the
    /// socket's buffer is empty or the call was interrupted. Replaces the previously received
    /// packets.
    ///
    /// # Errors
    ///
    /// An error of `recvmmsg`, such as a pending ICMP error.
    pub(crate) fn receive(&mut self, socket: impl AsFd) -> io::Result<usize> {
        self.received = 0;
        // The kernel replaces the length of each address buffer by the length of the address.
        for (header, sender) in self.headers.iter_mut().zip(self.senders.iter_mut()) {
            header.msg_hdr.msg_name = (&raw mut *sender).cast();
            header.msg_hdr.msg_namelen = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
        }
        let room = libc::c_uint::try_from(self.headers.len()).unwrap_or(libc::c_uint::MAX);
        // SAFETY: each header holds one vector, each vector one of our buffers of the stated size,
        // and each header's name is null or one of our addresses of the stated size; all live as
        // long as `self`, which is borrowed exclusively.
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

    /// Returns the packets of the last [`receive`](Self::receive).
    pub(crate) fn packets(&self) -> impl Iterator<Item = ReceivedPacket<'_>> {
        let base = self.rooms.cast::<u8>().cast_const();
        let stride = Self::stride(self.packet_bytes_max);
        self.headers[..self.received].iter().enumerate().map(move |(packet, header)| {
            let bytes = (header.msg_len as usize).min(self.packet_bytes_max);
            // SAFETY: the kernel has written `msg_len` bytes to this buffer, within the allocation,
            // and writes again only in `receive`, which needs `self` exclusively.
            let bytes = unsafe { slice::from_raw_parts(base.add(packet * stride), bytes) };
            ReceivedPacket {
                bytes,
                truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0,
                sender: self.senders.get(packet).and_then(ip_address),
            }
        })
    }
}

impl Drop for PacketBatch {
    fn drop(&mut self) {
        // SAFETY: the pointer came from `Box::into_raw` in `new` and is freed only here.
        drop(unsafe { Box::from_raw(self.rooms) });
    }
}

/// One packet of a [`PacketBatch`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReceivedPacket<'b> {
    /// The content, up to the buffer's size.
    pub(crate) bytes: &'b [u8],
    /// Whether the packet was longer than the buffer, so that the rest is lost.
    pub(crate) truncated: bool,
    /// The address of the sender, with [`PacketBatch::with_senders`].
    pub(crate) sender: Option<IpAddr>,
}

/// Returns the IP address that the kernel wrote; `None` if it is of another family.
fn ip_address(storage: &libc::sockaddr_storage) -> Option<IpAddr> {
    let storage = &raw const *storage;
    // SAFETY: `sockaddr_storage` is larger than the struct of either family, is aligned for both,
    // and all its bytes are initialized.
    unsafe {
        match i32::from((*storage).ss_family) {
            libc::AF_INET => {
                let address = (*storage.cast::<libc::sockaddr_in>()).sin_addr.s_addr;
                // In network order, so its bytes in memory are the address.
                Some(Ipv4Addr::from(address.to_ne_bytes()).into())
            }
            libc::AF_INET6 => {
                let address = (*storage.cast::<libc::sockaddr_in6>()).sin6_addr.s6_addr;
                Some(Ipv6Addr::from(address).into())
            }
            _ => None,
        }
    }
}

/// Returns a message header for one vector, without sender address and control data.
fn header(vector: &mut libc::iovec) -> libc::msghdr {
    // SAFETY: a plain C struct, for which all zeros means null pointers and zero lengths.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = vector;
    header.msg_iovlen = 1;
    header
}

/// A socket's memory statistics from `SO_MEMINFO` (Linux 4.12).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SocketMemory {
    /// Bytes used by unread packets, including the kernel's overhead.
    pub(crate) unread_bytes: u32,
    /// Maximum of `unread_bytes`: twice the buffer size that was set.
    pub(crate) buffer_bytes: u32,
    /// Packets dropped since the socket was opened, modulo 2^32.
    pub(crate) drops: u32,
}

impl SocketMemory {
    /// Reads the statistics of a socket.
    ///
    /// # Errors
    ///
    /// The kernel does not support the option.
    pub(crate) fn query(socket: impl AsFd) -> io::Result<Self> {
        // linux/sock_diag.h: RMEM_ALLOC 0, RCVBUF 1, …, BACKLOG 7, DROPS 8.
        let mut words = [0_u32; 9];
        let mut bytes = size_of::<[u32; 9]>() as libc::socklen_t;
        // SAFETY: `words` has the size given in `bytes`.
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

/// Makes the socket refuse new packets; they are counted as drops. Packets already in its buffer
/// can still be read, so reading until it is empty terminates.
///
/// # Errors
///
/// The kernel refuses the filter, for example for lack of memory.
pub(crate) fn refuse_packets(socket: impl AsFd) -> io::Result<()> {
    // `ret #0`: accept zero bytes of every packet.
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
    fn batch_returns_packets_and_marks_truncated_ones() {
        let (server, client) = pair();
        let mut batch = PacketBatch::new(3, 8);
        assert_eq!(batch.receive(&server).unwrap(), 0, "an empty socket does not block");
        for packet in ["a:1|c", "", "a long one", "next"] {
            client.send(packet.as_bytes()).unwrap();
        }
        assert_eq!(batch.receive(&server).unwrap(), 3);
        let packets: Vec<_> =
            batch.packets().map(|packet| (packet.bytes, packet.truncated)).collect();
        assert_eq!(packets, [(&b"a:1|c"[..], false), (b"", false), (b"a long o", true)]);
        assert_eq!(batch.receive(&server).unwrap(), 1);
        assert_eq!(batch.packets().next().unwrap().bytes, b"next");
    }

    #[test]
    fn batch_returns_senders_on_request() {
        for any in ["127.0.0.1:0", "[::1]:0"] {
            let server = UdpSocket::bind(any).unwrap();
            let client = UdpSocket::bind(any).unwrap();
            let mut batch = PacketBatch::new(4, 64).with_senders();
            // Twice, because the kernel overwrites the lengths.
            for _ in 0..2 {
                client.send_to(b"a:1|c", server.local_addr().unwrap()).unwrap();
                assert_eq!(batch.receive(&server).unwrap(), 1);
                let sender = batch.packets().next().unwrap().sender;
                assert_eq!(sender, Some(client.local_addr().unwrap().ip()));
            }
        }
        let (server, client) = pair();
        client.send(b"a:1|c").unwrap();
        let mut batch = PacketBatch::new(4, 64);
        assert_eq!(batch.receive(&server).unwrap(), 1);
        assert_eq!(batch.packets().next().unwrap().sender, None);
    }

    #[test]
    fn refusing_socket_retains_queue_and_counts_drops() {
        let (server, client) = pair();
        client.send(b"before").unwrap();
        let before = SocketMemory::query(&server).unwrap();
        assert!(before.unread_bytes > 0 && before.buffer_bytes > 0 && before.drops == 0);
        refuse_packets(&server).unwrap();
        client.send(b"after").unwrap();
        client.send(b"after").unwrap();
        let mut batch = PacketBatch::new(4, 64);
        assert_eq!(batch.receive(&server).unwrap(), 1);
        let after = SocketMemory::query(&server).unwrap();
        assert_eq!((after.unread_bytes, after.drops), (0, 2));
    }
}
