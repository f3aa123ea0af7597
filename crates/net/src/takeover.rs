//! Takeover of sockets by another process: [`TakeoverFrame`]s over a unix socket, each with a kind,
//! a body, and at most one file descriptor.
//!
//! The socket is only for processes of the same user, or of root: [`bind_takeover_socket`] sets its
//! permissions to 0600, and both sides check [`is_same_user`].

use std::{
    fs,
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{
            fs::{FileTypeExt as _, PermissionsExt as _},
            net::{UnixListener, UnixStream},
        },
    },
    path::Path,
};

use rustix::{
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg,
        sendmsg, socket_with, sockopt::socket_peercred,
    },
    process::geteuid,
};
use zeroize::Zeroizing;

/// A message between two processes. Not `Debug`, because bodies contain cancel keys and secrets.
pub struct TakeoverFrame {
    /// The meaning of the frame, defined by the protocol that uses it.
    pub kind: u8,
    /// The contents, zeroed when dropped.
    pub body: Zeroizing<Vec<u8>>,
    /// The descriptor that came with the frame, with close-on-exec set.
    pub socket: Option<OwnedFd>,
}

/// Maximum length of a body in bytes. A larger one makes the takeover fail.
pub const BODY_BYTES_MAX: u32 = 64 << 20;

/// Length of a header in bytes: one for the kind and four for the length.
const HEADER_BYTES: usize = 5;

/// Maximum number of bytes reserved for a body before its bytes arrive. Bodies with secrets are
/// almost always shorter, so they are not moved to a larger buffer, which would leave a copy in
/// memory.
const RESERVED_BYTES_MAX: u32 = 64 << 10;

/// Listens on the takeover socket of a process, replacing the file of one that has ended. Only the
/// same user and root can connect.
///
/// # Errors
///
/// A running process listens there, or the path is too long, in a directory that is not writable,
/// or a file that is not a socket.
pub fn bind_takeover_socket(path: &Path) -> io::Result<UnixListener> {
    if is_live(path)? {
        let why = "another process listens on it";
        return Err(io::Error::new(io::ErrorKind::AddrInUse, why));
    }
    replace_takeover_socket(path)
}

/// Like [`bind_takeover_socket`], but also replaces the file of a running process, from which this
/// one has taken over.
///
/// # Errors
///
/// The path is too long, in a directory that is not writable, or a file that is not a socket.
pub fn replace_takeover_socket(path: &Path) -> io::Result<UnixListener> {
    if fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Whether a process listens on a socket file.
fn is_live(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path).is_ok_and(|meta| meta.file_type().is_socket()) {
        return Ok(false);
    }
    // Does not wait until that process has room for the connection.
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let probe = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    match connect(&probe, &SocketAddrUnix::new(path)?) {
        Err(rustix::io::Errno::CONNREFUSED | rustix::io::Errno::NOENT) => Ok(false),
        // Other errors, such as a full queue of connections, come from a process that listens.
        _ => Ok(true),
    }
}

/// Whether the peer process runs as the same user or as root.
pub fn is_same_user(socket: &UnixStream) -> bool {
    let user = geteuid();
    socket_peercred(socket.as_fd()).is_ok_and(|peer| peer.uid == user || peer.uid.is_root())
}

/// Sends a frame. The descriptor accompanies the first bytes of the header.
///
/// # Errors
///
/// The body is longer than [`BODY_BYTES_MAX`], or the other process has closed the socket or does
/// not read it within the socket's timeout.
pub fn send_frame(
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
///
/// # Errors
///
/// The socket was closed within a frame, the frame is longer than [`BODY_BYTES_MAX`], or nothing
/// was received within the socket's timeout.
pub fn receive_frame(stream: &UnixStream) -> io::Result<Option<TakeoverFrame>> {
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
    send_frame(&one, 7, b"hello", Some(passed.as_fd())).unwrap();
    send_frame(&one, 8, b"", None).unwrap();
    drop((one, passed));
    let first = receive_frame(&other).unwrap().unwrap();
    assert_eq!((first.kind, &first.body[..]), (7, &b"hello"[..]));
    let mut passed = UnixStream::from(first.socket.unwrap());
    passed.write_all(b"x").unwrap();
    let mut byte = [0];
    (&kept).read_exact(&mut byte).unwrap();
    assert_eq!(byte, *b"x");
    let second = receive_frame(&other).unwrap().unwrap();
    assert!(second.kind == 8 && second.body.is_empty() && second.socket.is_none());
    assert!(receive_frame(&other).unwrap().is_none());
}

#[test]
fn truncated_or_too_long_frame_is_an_error() {
    for bytes in [&b"\x01\0\0\0"[..], b"\x01\0\0\0\x05abc", b"\x01\xff\0\0\0"] {
        let (one, other) = UnixStream::pair().unwrap();
        (&one).write_all(bytes).unwrap();
        drop(one);
        assert!(receive_frame(&other).is_err(), "{}", bytes.escape_ascii());
    }
}

#[test]
fn takeover_socket_is_private_and_replaces_only_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    // The file of the first listener remains after its end.
    for bind in [bind_takeover_socket, bind_takeover_socket, replace_takeover_socket] {
        let listener = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let stream = UnixStream::connect(&path).unwrap();
        assert!(is_same_user(&stream) && is_same_user(&listener.accept().unwrap().0));
    }
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    assert!(bind_takeover_socket(&path).is_err());
}

#[test]
fn takeover_socket_of_a_running_process_is_replaced_only_by_its_successor() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("takeover");
    let running = bind_takeover_socket(&path).unwrap();
    let error = bind_takeover_socket(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    // The attempts to connect fill the queue, which no process empties.
    running.set_nonblocking(true).unwrap();
    for _ in 0..2 {
        assert!(bind_takeover_socket(&path).is_err());
    }
    let successor = replace_takeover_socket(&path).unwrap();
    drop(running);
    let stream = UnixStream::connect(&path).unwrap();
    assert!(is_same_user(&successor.accept().unwrap().0));
    drop(stream);
}
