//! The management port: lines of text in, etsy's or the Perl server's replies out, byte for byte.
//!
//! Beyond theirs there are `format json`, `sets`, `delsets`, `top`, `drops` and `bad`, and commands
//! may follow each other without waiting. What a command answers is in `reply`; this module is the
//! connections.

pub(crate) mod health;
mod listener;
mod reply;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

use self::{
    listener::{Listener, Stopping},
    reply::{Answer, Session},
};
use crate::server::{Core, StartError};

/// Far more than any command.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Connections at once. A script that leaks them must not take all memory.
const CONNECTIONS_MAX: usize = 64;
/// A command without a newline is taken for complete after so long.
const PAUSE: Duration = Duration::from_millis(200);
/// How long a reader of a long reply may make us wait.
const WRITE_PATIENCE: Duration = Duration::from_secs(30);

/// The port, open until dropped.
#[derive(Debug)]
pub(crate) struct Management(Listener);

impl Management {
    pub(crate) fn listen(address: SocketAddr, core: &Arc<Core>) -> Result<Self, StartError> {
        let core = Arc::clone(core);
        let serve = move |stream: TcpStream, stopping: &Stopping| {
            if let Err(error) = converse(stream, &core, stopping) {
                tracing::debug!(%error, "a management connection broke");
            }
        };
        Listener::open("statsd-mgmt", address, CONNECTIONS_MAX, serve).map(Self).map_err(|source| {
            StartError::Listen { purpose: "the management port", address, source }
        })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

fn converse(mut stream: TcpStream, core: &Core, stopping: &Stopping) -> io::Result<()> {
    stream.set_read_timeout(Some(PAUSE))?;
    stream.set_write_timeout(Some(WRITE_PATIENCE))?;
    stream.set_nodelay(true)?;
    let mut session = Session::default();
    let mut pending = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) => None,
            Ok(bytes) => Some(&buffer[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_pause(&error) => {
                if stopping.is_ordered() {
                    return Ok(());
                }
                // Somebody sent a command and no newline, as etsy's server lets them.
                if !pending.is_empty() && !say(&mut stream, core, &mut session, &mut pending)? {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        pending.extend_from_slice(read.unwrap_or_default());
        while let Some(end) = memchr::memchr(b'\n', &pending) {
            let rest = pending.split_off(end + 1);
            if !say(&mut stream, core, &mut session, &mut pending)? {
                return Ok(());
            }
            pending = rest;
        }
        if read.is_none() {
            if !pending.is_empty() {
                say(&mut stream, core, &mut session, &mut pending)?;
            }
            return Ok(());
        }
        if pending.len() > COMMAND_BYTES_MAX {
            return stream.write_all(b"ERROR\n");
        }
    }
}

/// Answers the command in `line`, which is empty then; false when the connection is to end.
fn say(
    stream: &mut TcpStream,
    core: &Core,
    session: &mut Session,
    line: &mut Vec<u8>,
) -> io::Result<bool> {
    let answer = reply::answer(core, session, &String::from_utf8_lossy(line));
    line.clear();
    match answer {
        Answer::Reply(text) => stream.write_all(text.as_bytes()).map(|()| true),
        Answer::Close(text) => stream.write_all(text.as_bytes()).map(|()| false),
    }
}

fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
