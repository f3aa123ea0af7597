//! A server without a database: it replies to each message of the benchmark's sessions with fixed
//! bytes, at the least cost. Other clients, such as a replay's control connection, are relayed to a
//! real server.

use std::{
    io::{Read, Write},
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    thread,
};

use anyhow::Context as _;
use rustix::event::epoll;

use crate::ROLE;

const LISTENER: u64 = u64::MAX;

/// SSLRequest and GSSENCRequest, after their length.
const ENCRYPTION_REQUESTS: [[u8; 4]; 2] =
    [80_877_103_u32.to_be_bytes(), 80_877_104_u32.to_be_bytes()];

/// AuthenticationOk, the parameters that a client needs, BackendKeyData, ReadyForQuery.
const WELCOME: &[&[u8]] = &[
    b"R\0\0\0\x08\0\0\0\0",
    b"S\0\0\0\x19client_encoding\0UTF8\0",
    b"S\0\0\0\x19server_encoding\0UTF8\0",
    b"S\0\0\0\x18server_version\x0015.0\0",
    b"S\0\0\0\x23standard_conforming_strings\0on\0",
    b"K\0\0\0\x0c\0\0\0\x01\0\0\0\x01",
    READY,
];
const READY: &[u8] = b"Z\0\0\0\x05I";
/// A row with the value 0, and `SELECT 1`.
const ROW: &[u8] = b"D\0\0\0\x0b\0\x01\0\0\0\x010C\0\0\0\x0dSELECT 1\0";
/// One column, `abalance integer`.
const ROW_DESCRIPTION: &[u8] =
    b"T\0\0\0\x21\0\x01abalance\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0";

pub(crate) fn run(server: &Path) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    // All sessions of a benchmark connect at once.
    rustix::net::listen(&listener, 4096)?;
    listener.set_nonblocking(true)?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?.port())?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut connections: Vec<Option<RespondingConnection>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut events = [MaybeUninit::uninit(); 256];
    loop {
        let ready = match epoll::wait(&poll, &mut events[..], None) {
            Ok((ready, _)) => ready,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let token = event.data.u64();
            if token == LISTENER {
                let socket = match listener.accept() {
                    Ok((socket, _)) => socket,
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => continue,
                    Err(error) => return Err(error).context("cannot accept a connection"),
                };
                socket.set_nodelay(true)?;
                socket.set_nonblocking(true)?;
                let data = epoll::EventData::new_u64(connections.len() as u64);
                let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                epoll::add(&poll, &socket, data, flags)?;
                let connection =
                    RespondingConnection { socket, unread: Vec::new(), is_open: false };
                connections.push(Some(connection));
                continue;
            }
            let slot = &mut connections[usize::try_from(token)?];
            let Some(connection) = slot.as_mut() else { continue };
            match connection.receive(&mut buffer) {
                NextStep::Wait => {}
                NextStep::Close => *slot = None,
                NextStep::Relay => {
                    if let Some(connection) = slot.take() {
                        epoll::delete(&poll, &connection.socket)?;
                        relay(connection, server.to_owned());
                    }
                }
            }
        }
    }
}

struct RespondingConnection {
    socket: TcpStream,
    /// The start of a message whose rest has not arrived.
    unread: Vec<u8>,
    /// Whether the startup packet has been received.
    is_open: bool,
}

enum NextStep {
    Wait,
    Close,
    Relay,
}

impl RespondingConnection {
    fn receive(&mut self, buffer: &mut [u8]) -> NextStep {
        loop {
            let bytes = match self.socket.read(buffer) {
                Ok(0) => return NextStep::Close,
                Ok(bytes) => bytes,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    return NextStep::Wait;
                }
                Err(_) => return NextStep::Close,
            };
            self.unread.extend_from_slice(&buffer[..bytes]);
            let mut replies = Vec::with_capacity(256);
            if !self.is_open {
                match self.start(&mut replies) {
                    NextStep::Wait => {}
                    other => return other,
                }
            }
            if self.is_open {
                let used = reply_to_messages(&self.unread, &mut replies);
                self.unread.drain(..used);
            }
            if !replies.is_empty() && self.socket.write_all(&replies).is_err() {
                return NextStep::Close;
            }
            if bytes < buffer.len() {
                return NextStep::Wait;
            }
        }
    }

    /// Handles the packets before the first message.
    fn start(&mut self, replies: &mut Vec<u8>) -> NextStep {
        while let Some((length, rest)) = self.unread.split_first_chunk::<4>() {
            let length = u32::from_be_bytes(*length) as usize;
            if self.unread.len() < length || length < 8 {
                return NextStep::Wait;
            }
            let is_request = rest.first_chunk().is_some_and(|it| ENCRYPTION_REQUESTS.contains(it));
            if is_request {
                replies.push(b'N');
                self.unread.drain(..length);
                continue;
            }
            let mut words = self.unread[8..length].split(|byte| *byte == 0);
            let is_ours = words.any(|word| word == b"user")
                && words.next().is_some_and(|name| name == ROLE.as_bytes());
            if !is_ours {
                return NextStep::Relay;
            }
            self.unread.drain(..length);
            self.is_open = true;
            replies.extend(WELCOME.iter().copied().flatten());
            break;
        }
        NextStep::Wait
    }
}

/// Appends the replies to the complete messages, and returns their length.
fn reply_to_messages(bytes: &[u8], replies: &mut Vec<u8>) -> usize {
    let mut used = 0;
    while let Some((&[tag, ref length @ ..], _)) = bytes[used..].split_first_chunk::<5>() {
        let length = 1 + u32::from_be_bytes(*length) as usize;
        let Some(message) = bytes.get(used..used + length) else { break };
        let reply: &[&[u8]] = match tag {
            b'P' => &[b"1\0\0\0\x04"],
            b'B' => &[b"2\0\0\0\x04"],
            b'C' => &[b"3\0\0\0\x04"],
            b'D' if message.get(5) == Some(&b'S') => {
                &[b"t\0\0\0\x0a\0\x01\0\0\0\x17", ROW_DESCRIPTION]
            }
            b'D' => &[ROW_DESCRIPTION],
            b'E' => &[ROW],
            b'S' => &[READY],
            b'Q' => &[ROW_DESCRIPTION, ROW, READY],
            _ => &[],
        };
        replies.extend(reply.iter().copied().flatten());
        used += length;
    }
    used
}

/// Copies in both directions between a client and the server, on threads of their own.
fn relay(connection: RespondingConnection, server: PathBuf) {
    thread::spawn(move || -> std::io::Result<()> {
        let RespondingConnection { socket: client, unread, .. } = connection;
        client.set_nonblocking(false)?;
        let mut server = UnixStream::connect(server)?;
        server.write_all(&unread)?;
        let (mut from_client, mut to_client) = (client.try_clone()?, client);
        let mut to_server = server.try_clone()?;
        thread::spawn(move || {
            let _ = std::io::copy(&mut from_client, &mut to_server);
            to_server.shutdown(std::net::Shutdown::Write)
        });
        std::io::copy(&mut server, &mut to_client)?;
        to_client.shutdown(std::net::Shutdown::Both)
    });
}
