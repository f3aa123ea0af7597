//! A bare relay with one thread, the lower bound for the cost of a pooler. Each client gets its own
//! server connection; data from one side is read once and written once to the other. It does not
//! parse the protocol, and closes a connection after a short write.
//!
//! `howdah-bench-pool LISTEN-PORT SERVER-PORT`

use std::{
    mem::MaybeUninit,
    net::{TcpListener, TcpStream},
};

use anyhow::Context as _;
use rustix::event::epoll;

const LISTENER: u64 = u64::MAX;

fn main() -> anyhow::Result<()> {
    let mut ports = std::env::args().skip(1).map(|port| port.parse::<u16>());
    let own = ports.next().context("the first argument is the port to listen on")??;
    let server = ports.next().context("the second argument is the server's port")??;
    let listener = TcpListener::bind(("127.0.0.1", own))?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, &listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    // Client and server sockets of a pair are adjacent: 0 and 1, 2 and 3.
    let mut sockets: Vec<Option<TcpStream>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut events = [MaybeUninit::uninit(); 256];
    loop {
        let ready = match epoll::wait(&poll, &mut events[..], None) {
            Ok((ready, _)) => ready,
            // A tracer attached or detached.
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for event in ready {
            let token = event.data.u64();
            if token == LISTENER {
                let client = listener.accept()?.0;
                for socket in [client, TcpStream::connect(("127.0.0.1", server))?] {
                    socket.set_nodelay(true)?;
                    socket.set_nonblocking(true)?;
                    let data = epoll::EventData::new_u64(sockets.len() as u64);
                    let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
                    epoll::add(&poll, &socket, data, flags)?;
                    sockets.push(Some(socket));
                }
            } else {
                relay(&mut sockets, usize::try_from(token)?, &mut buffer);
            }
        }
    }
}

fn relay(sockets: &mut [Option<TcpStream>], from: usize, buffer: &mut [u8]) {
    loop {
        let (Some(source), Some(sink)) = (&sockets[from], &sockets[from ^ 1]) else { return };
        match rustix::io::read(source, &mut *buffer) {
            Err(rustix::io::Errno::AGAIN) => return,
            Ok(bytes @ 1..) if rustix::io::write(sink, &buffer[..bytes]) == Ok(bytes) => {
                if bytes < buffer.len() {
                    return;
                }
            }
            _ => {
                (sockets[from], sockets[from ^ 1]) = (None, None);
                return;
            }
        }
    }
}
