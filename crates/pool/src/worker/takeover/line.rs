//! [`Frame`]s between two processes: a kind, a body, and at most one descriptor beside them.

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

/// What one process tells the other. It has no `Debug`: bodies hold keys for cancels and secrets.
pub(super) struct Frame {
    pub(super) kind: u8,
    /// Overwritten when it is dropped.
    pub(super) body: Zeroizing<Vec<u8>>,
    pub(super) socket: Option<OwnedFd>,
}

/// Longest body: a client whose state is longer stays where it is.
pub(super) const BODY_BYTES_MAX: u32 = 64 << 20;

/// Kind and length.
const HEADER_BYTES: usize = 5;

/// Memory reserved for a body before its bytes have come. A body with secrets is shorter, so it is never
/// moved to a larger buffer, which would leave a copy behind.
const RESERVED_BYTES_MAX: u32 = 64 << 10;

/// Sends a frame. The descriptor goes with the header, of which the kernel never sends a part only.
pub(super) fn send(
    line: &UnixStream,
    kind: u8,
    body: &[u8],
    socket: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let too_long = || io::Error::other("a frame is too long");
    let bytes = u32::try_from(body.len()).ok().filter(|bytes| *bytes <= BODY_BYTES_MAX);
    let [a, b, c, d] = bytes.ok_or_else(too_long)?.to_be_bytes();
    let header = [kind, a, b, c, d];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let sockets = socket.as_slice();
    if !sockets.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(sockets)) {
        return Err(io::Error::other("there is no room for a descriptor"));
    }
    let sent =
        sendmsg(line.as_fd(), &[IoSlice::new(&header)], &mut ancillary, SendFlags::NOSIGNAL)?;
    let mut line = line;
    line.write_all(&header[sent..])?;
    line.write_all(body)
}

/// Waits for a frame; `None` if the other has closed the line between two.
pub(super) fn receive(line: &UnixStream) -> io::Result<Option<Frame>> {
    let mut header = [0; HEADER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut slices = [IoSliceMut::new(&mut header)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = loop {
        match recvmsg(line.as_fd(), &mut slices, &mut ancillary, flags) {
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
    let mut line = line;
    line.read_exact(&mut header[received.bytes..])?;
    let [kind, a, b, c, d] = header;
    let bytes = u32::from_be_bytes([a, b, c, d]);
    if bytes > BODY_BYTES_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a frame is too long"));
    }
    let mut body = Zeroizing::new(Vec::with_capacity(bytes.min(RESERVED_BYTES_MAX) as usize));
    // What was promised is made room for as it comes.
    let read = line.take(u64::from(bytes)).read_to_end(&mut body)?;
    match u32::try_from(read) == Ok(bytes) {
        true => Ok(Some(Frame { kind, body, socket })),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[test]
fn frames_bring_descriptors_along() {
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
fn a_frame_that_ends_early_or_is_too_long_is_an_error() {
    for bytes in [&b"\x01\0\0\0"[..], b"\x01\0\0\0\x05abc", b"\x01\xff\0\0\0"] {
        let (one, other) = UnixStream::pair().unwrap();
        (&one).write_all(bytes).unwrap();
        drop(one);
        assert!(receive(&other).is_err(), "{}", bytes.escape_ascii());
    }
}
