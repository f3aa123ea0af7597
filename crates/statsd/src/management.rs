//! The management port: text commands with replies in the format of etsy's or the Perl server.
//!
//! Additional commands are `format json`, `sets`, `delsets`, `top`, `drops`, `bad` and `cut`, and
//! commands may be pipelined. `reply` executes commands; this module handles connections.

mod cut;
pub(crate) mod health;
mod listener;
mod reply;
#[cfg(test)]
mod tests;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::Duration,
};

pub(crate) use self::listener::{PortListener, StopFlag, pause_after_failed_accept};
use self::reply::{CommandReply, ManagementSession};
use crate::server::{ServerCore, ServerStartError};

/// Maximum length of a command in bytes; far more than any command needs.
const COMMAND_BYTES_MAX: usize = 64 << 10;
/// Maximum concurrent connections, so that a script that leaks them cannot exhaust memory.
const CONNECTIONS_MAX: usize = 64;
/// A command without a newline is considered complete after this time.
const COMMAND_TIMEOUT: Duration = Duration::from_millis(200);
/// Maximum time for writing a reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The management port, which stays open until this is dropped.
#[derive(Debug)]
pub(crate) struct Management(PortListener);

impl Management {
    pub(crate) fn listen(
        listener: TcpListener,
        core: &Arc<ServerCore>,
    ) -> Result<Self, ServerStartError> {
        let core = Arc::clone(core);
        let address = listener.local_addr().unwrap_or(SocketAddr::from(([0; 4], 0)));
        let serve = move |stream: TcpStream, stopping: &StopFlag| {
            if let Err(error) = serve(stream, &core, stopping) {
                tracing::debug!(%error, "management connection failed");
            }
        };
        PortListener::open("statsd-mgmt", listener, CONNECTIONS_MAX, serve).map(Self).map_err(
            |source| ServerStartError::Listen { purpose: "the management port", address, source },
        )
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

fn serve(mut stream: TcpStream, core: &ServerCore, stopping: &StopFlag) -> io::Result<()> {
    stream.set_read_timeout(Some(COMMAND_TIMEOUT))?;
    stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
    stream.set_nodelay(true)?;
    let mut session = ManagementSession::default();
    let mut pending = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        let read = match stream.read(&mut buffer) {
            Ok(0) => None,
            Ok(bytes) => Some(&buffer[..bytes]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if is_timeout(&error) => {
                if stopping.is_set() {
                    return Ok(());
                }
                // A command without a newline, which etsy's server accepts.
                if !pending.is_empty()
                    && !reply_to_command(&mut stream, core, &mut session, &mut pending)?
                {
                    return Ok(());
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        pending.extend_from_slice(read.unwrap_or_default());
        while let Some(end) = memchr::memchr(b'\n', &pending) {
            let rest = pending.split_off(end + 1);
            if !reply_to_command(&mut stream, core, &mut session, &mut pending)? {
                return Ok(());
            }
            pending = rest;
        }
        if read.is_none() {
            if !pending.is_empty() {
                reply_to_command(&mut stream, core, &mut session, &mut pending)?;
            }
            return Ok(());
        }
        if pending.len() > COMMAND_BYTES_MAX {
            return stream.write_all(b"ERROR\n");
        }
    }
}

/// Executes the command in `line` and clears it; returns false if the connection must be closed.
fn reply_to_command(
    stream: &mut TcpStream,
    core: &ServerCore,
    session: &mut ManagementSession,
    line: &mut Vec<u8>,
) -> io::Result<bool> {
    let reply = reply::execute(core, session, &String::from_utf8_lossy(line));
    line.clear();
    match reply {
        CommandReply::Text(text) => stream.write_all(text.as_bytes()).map(|()| true),
        CommandReply::Close(text) => stream.write_all(text.as_bytes()).map(|()| false),
    }
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
