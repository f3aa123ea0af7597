//! Merges the aggregates that other servers forward: see [`crate::forwarding`].
//!
//! The other servers are not trusted: each message has a maximum size and a deadline, before HELLO
//! only a few bytes are accepted, and the memory of all batches together is limited.

mod connection;

use std::{
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use howdah_codec::ByteWriter as _;
use parking_lot::Mutex;

use self::connection::{BatchMemory, ForwardConnection};
use super::ServerCore;
use crate::{
    binary::BinaryWriter as _,
    flush::ForwardedBatch,
    forwarding::{
        self, ACK, BATCH, BODY_BYTES_MAX, ForwardFrame, ForwardFrameHeader, HELLO, HELLO_BYTES_MAX,
        NO, VERSION, receive_frame, send_frame,
    },
    management::{PortListener, StopFlag},
    receiver::{ForwardListener, ForwardRules, RefusalNotice, SocketCounts},
};

/// Maximum time for a message once it has begun, and for sending a reply.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves the listeners for other servers until the returned values are dropped.
pub(super) fn serve_all(
    listeners: Vec<ForwardListener>,
    core: &Arc<ServerCore>,
) -> io::Result<Vec<PortListener>> {
    let memory = Arc::new(BatchMemory::default());
    let served = listeners.into_iter().map(|listener| {
        let ForwardListener { listener, counts, rules } = listener;
        let connections_max = rules.connections_max;
        let port = ForwardPort {
            core: Arc::clone(core),
            counts,
            rules: Mutex::new(rules),
            notice: Mutex::default(),
            memory: Arc::clone(&memory),
        };
        PortListener::open("statsd-forward", listener, connections_max, move |stream, stopping| {
            port.serve(stream, stopping);
        })
    });
    served.collect()
}

/// A listener for other servers.
struct ForwardPort {
    core: Arc<ServerCore>,
    counts: Arc<SocketCounts>,
    rules: Mutex<ForwardRules>,
    notice: Mutex<RefusalNotice>,
    memory: Arc<BatchMemory>,
}

impl ForwardPort {
    /// Merges the batches of one connection until it is closed or the server stops.
    fn serve(&self, stream: TcpStream, stopping: &StopFlag) {
        let peer = stream.peer_addr().ok();
        if let Some(senders) = &mut self.rules.lock().senders
            && !senders.permits(peer.map(|peer| peer.ip()))
        {
            senders.report(&self.counts);
            return;
        }
        let mut connection = match self.admit(stream) {
            Ok(Some(connection)) => connection,
            Ok(None) => return,
            Err(error) => return self.refuse(peer, &error),
        };
        if let Err(error) = self.receive_batches(&mut connection, stopping) {
            let socket = self.counts.name();
            tracing::warn!(socket, peer = peer.map(tracing::field::display), %error, "a forwarding server failed");
        }
    }

    /// Completes TLS, and receives the token and HELLO. Returns `None` if the other server closes
    /// the connection instead.
    fn admit(&self, stream: TcpStream) -> io::Result<Option<ForwardConnection>> {
        let (access, timeout) = {
            let rules = self.rules.lock();
            (rules.access.clone(), rules.handshake_timeout)
        };
        let secrets = access.map(|access| access.secrets());
        let tls = secrets.as_ref().and_then(|secrets| secrets.tls.as_ref());
        let deadline = Instant::now() + timeout;
        let mut connection = ForwardConnection::new(stream, tls, deadline)?;
        if let Some(secrets) = secrets.filter(|secrets| secrets.needs_token()) {
            let Some(line) = connection.receive_token()? else { return Ok(None) };
            if !secrets.accepts(&line) {
                let why = "the first line is not `auth TOKEN` with a valid token";
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
            }
        }
        let frame = receive_frame(&mut connection, HELLO_BYTES_MAX)?;
        let Some(ForwardFrame { kind, body }) = frame else { return Ok(None) };
        if kind == HELLO && body == forwarding::hello() {
            return Ok(Some(connection));
        }
        Err(refuse_version(&mut connection))
    }

    /// Counts a connection that is not admitted, and logs it from time to time.
    fn refuse(&self, peer: Option<SocketAddr>, error: &io::Error) {
        self.counts.fail_handshake();
        if let Some(failed) = self.notice.lock().record(1, Instant::now()) {
            let example = peer.map(|peer| peer.ip().to_canonical().to_string());
            let socket = self.counts.name();
            tracing::warn!(socket, failed, example, %error, "forwarding servers were not admitted");
        }
    }

    fn receive_batches(
        &self,
        connection: &mut ForwardConnection,
        stopping: &StopFlag,
    ) -> io::Result<()> {
        let idle_timeout = self.rules.lock().idle_timeout;
        loop {
            let idle = (!idle_timeout.is_zero()).then(|| Instant::now() + idle_timeout);
            let Some(first) = connection.wait_for_message(idle, stopping)? else { return Ok(()) };
            let deadline = Instant::now() + FRAME_TIMEOUT;
            connection.set_deadline(deadline);
            let header = ForwardFrameHeader::receive(&mut (&[first][..]).chain(&mut *connection))?;
            let Some(header) = header else { return Ok(()) };
            if header.kind != BATCH {
                header.receive_body(connection, HELLO_BYTES_MAX)?;
                return Err(refuse_version(connection));
            }
            let reserved =
                self.memory.reserve(header.body_bytes().min(BODY_BYTES_MAX), deadline)?;
            connection.set_deadline(Instant::now() + FRAME_TIMEOUT);
            let body = header.receive_body(connection, BODY_BYTES_MAX)?;
            let (kind, reply) = {
                let _one_at_a_time = self.memory.decoding.lock();
                merge(&self.core, &body)
            };
            let bytes = body.len() as u64;
            drop((body, reserved));
            if kind == ACK {
                self.counts.add_shared(1, bytes);
            } else {
                self.counts.discard(1);
            }
            connection.set_deadline(Instant::now() + FRAME_TIMEOUT);
            send_frame(connection, kind, &reply)?;
            connection.flush()?;
        }
    }
}

/// Replies that a message does not belong to this version of the protocol, and returns the error.
fn refuse_version(connection: &mut ForwardConnection) -> io::Error {
    let why = format!("this server has version {VERSION} of the protocol");
    let sent = send_frame(connection, NO, &refusal(false, &why)).and_then(|()| connection.flush());
    let unexpected = || io::Error::new(io::ErrorKind::InvalidData, "unexpected message");
    sent.err().unwrap_or_else(unexpected)
}

/// Merges a batch, and returns the reply.
fn merge(core: &ServerCore, body: &[u8]) -> (u8, Vec<u8>) {
    let read =
        forwarding::decode_batch(body).and_then(|(id, part)| Ok((id, ForwardedBatch::read(part)?)));
    let (id, batch) = match read {
        Ok(read) => read,
        Err(error) => return (NO, refusal(true, &error.to_string())),
    };
    match core.merge_batch(&id, batch, SystemTime::now()) {
        Some(is_new) => {
            if !is_new {
                tracing::debug!(sender = id.sender, sequence = id.sequence, "batch repeated");
            }
            let mut reply = Vec::new();
            reply.write_varint(id.sequence);
            (ACK, reply)
        }
        None => (NO, refusal(false, "this server is stopping")),
    }
}

fn refusal(is_final: bool, why: &str) -> Vec<u8> {
    let mut body = Vec::new();
    body.write_bool(is_final);
    body.write_text(why);
    body
}

#[cfg(test)]
mod tests;
