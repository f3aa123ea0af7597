//! [`TakeoverFrame`]s between two processes: a kind, a body, and at most one file descriptor.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::net::UnixStream,
    },
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use zeroize::Zeroizing;

/// A message between two processes. Not `Debug`, because bodies contain cancel keys and secrets.
pub(super) struct TakeoverFrame {
    pub(super) kind: u8,
    /// The contents, zeroed when dropped.
    pub(super) body: Zeroizing<Vec<u8>>,
    pub(super) socket: Option<OwnedFd>,
}

/// Maximum length of a body in bytes. If a client has a larger state, the takeover fails.
pub(super) const BODY_BYTES_MAX: u32 = 64 << 20;

/// Length of a header in bytes: one for the kind and four for the length.
const HEADER_BYTES: usize = 5;

/// Maximum number of bytes reserved for a body before its bytes arrive. Bodies with secrets are
/// almost always shorter, so they are not moved to a larger buffer, which would leave a copy in
/// memory.
const RESERVED_BYTES_MAX: u32 = 64 << 10;

/// Sends a frame. The descriptor accompanies the first bytes of the header.
pub(super) fn send(
    stream: &UnixStream,
    kind: u8,
    body: &[u8],
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let too_long = || io::Error::other("a message to the other process is too long");
    let bytes = u32::try_from(body.len()).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX);
    let [a, b, c, d] = bytes.ok_or_else(too_long)?.to_be_bytes();
    let header = [kind, a, b, c, d];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = socket.as_slice();
    if !sockets.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other(
            "a socket does not fit into the message to the other process",
        ));
    }
    let sent =
        sendmsg(stream.as_fd(), &[IoSlice::new(&header)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut stream = stream;
    stream.write_all(&header[sent..])?;
    stream.write_all(body)
}

/// Waits for a frame; `None` if the other process has closed the socket between two frames.
pub(super) fn receive(stream: &UnixStream) -> io::Result<Option<TakeoverFrame>> {
    let mut header = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut header)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(stream.as_fd(), &mut slices, &mut ancillary, flags) {
            Err(rustix::io::Errno::INTR) => {}
            other => break other?,
        }
    };
    if received.bytes == 0 {
        return Ok(None);
    }
    let socket = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut sockets) => sockets.next(),
        _ => None,
    });
    let mut stream = stream;
    stream.read_exact(&mut header[received.bytes..])?;
    let [kind, a, b, c, d] = header;
    let bytes = u32::from_be_bytes([a, b, c, d]);
    if bytes > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the received message is too long"));
    }
    let mut body = Zeroizing::new(Vec::with_capacity(bytes.min(RESERVED_BYTES_MAX) as usize));
    // The buffer grows with the received bytes, not by the declared length.
    let read = stream.take(u64::from(bytes)).read_to_end(&mut body)?;
    if u32::try_from(read) == Ok(bytes) {
        Ok(Some(TakeoverFrame { kind, body, socket }))
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

#[test]
fn frame_carries_a_file_descriptor() {
    let (one, other) = UnixStream::pair().unwrap();
    let (passed, kept) = UnixStream::pair().unwrap();
    send(&one, 7, b"hello", Some(passed.as_fd())).unwrap();
    send(&one, 8, b"", None).unwrap();
    drop((one, passed));
    let first = receive(&other).unwrap().unwrap();
    assert_eq!((first.kind, &first.body[..]), (7, &b"hello"[..]));
    let mut passed = UnixStream::from(first.socket.unwrap());
    passed.write_all(b"x").unwrap();
    let mut byte = [0];
    (&kept).read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
    let second = receive(&other).unwrap().unwrap();
    assert!(second.kind == 8 && second.body.is_empty() && second.socket.is_none());
    assert!(receive(&other).unwrap().is_none());
}

#[test]
fn truncated_or_too_long_frame_is_an_error() {
    for bytes in [&b"\x01\0\0\0"[..], b"\x01\0\0\0\x05abc", b"\x01\xff\0\0\0"] {
        let (one, other) = UnixStream::pair().unwrap();
        (&one).write_all(bytes).unwrap();
        drop(one);
        assert!(receive(&other).is_err(), "{}", bytes.escape_ascii());
    }
}
