//! A bare relay, one thread: the floor that poolers are measured above. Each client gets a server
//! connection of its own; what one side sends is read once and written once to the other. It knows no
//! protocol, and gives a connection up where a write is short.
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
    // Both ends of a pair stand side by side: 0 with 1, 2 with 3.
    let mut sockets: Vec<Option<TcpStream>> = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    let mut events = [MaybeUninit::uninit(); 256];
    loop {
        let ready = match epoll::wait(&poll, &mut events[..], None) {
            Ok((ready, _)) => ready,
            // A tracer came or went.
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
            Ok(some @ 1..) if rustix::io::write(sink, &buffer[..some]) == Ok(some) => {
                if some < buffer.len() {
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
