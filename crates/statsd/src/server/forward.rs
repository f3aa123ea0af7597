//! Merges the aggregates that other servers forward: see [`crate::forwarding`].

use std::{
    io,
    net::TcpStream,
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_codec::ByteWriter as _;
use parking_lot::Mutex;

use super::ServerCore;
use crate::{
    binary::BinaryWriter as _,
    flush::ForwardedBatch,
    forwarding::{
        self, ACK, BATCH, BODY_BYTES_MAX, ForwardFrame, HELLO, NO, VERSION, receive_frame,
        send_frame,
    },
    management::{PortListener, StopFlag},
    receiver::{ForwardListener, SocketCounts},
};

/// Interval at which an idle connection checks whether the server stops.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Maximum time for receiving a frame once it has begun, and for sending a reply.
const FRAME_TIMEOUT: Duration = Duration::from_secs(30);

/// Serves the listeners for other servers until the returned values are dropped.
pub(super) fn serve_all(
    listeners: Vec<ForwardListener>,
    core: &Arc<ServerCore>,
) -> io::Result<Vec<PortListener>> {
    let served = listeners.into_iter().map(|listener| {
        let ForwardListener { listener, counts, connections_max, senders } = listener;
        let core = Arc::clone(core);
        let senders = senders.map(Mutex::new);
        PortListener::open("statsd-forward", listener, connections_max, move |stream, stopping| {
            if let Some(senders) = &senders {
                let mut senders = senders.lock();
                let peer = stream.peer_addr().ok();
                if !senders.permits(peer.map(|peer| peer.ip())) {
                    senders.report(&counts);
                    return;
                }
            }
            if let Err(error) = serve(stream, &core, &counts, stopping) {
                tracing::warn!(socket = counts.name(), %error, "a forwarding server failed");
            }
        })
    });
    served.collect()
}

/// Merges the batches of one connection until it is closed or the server stops.
fn serve(
    mut stream: TcpStream,
    core: &ServerCore,
    counts: &SocketCounts,
    stopping: &StopFlag,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_write_timeout(Some(FRAME_TIMEOUT))?;
    let mut is_greeted = false;
    while wait_for_frame(&stream, stopping)? {
        stream.set_read_timeout(Some(FRAME_TIMEOUT))?;
        let Some(frame) = receive_frame(&mut stream, BODY_BYTES_MAX)? else { return Ok(()) };
        match frame {
            ForwardFrame { kind: HELLO, body } if body == forwarding::hello() => is_greeted = true,
            ForwardFrame { kind: BATCH, body } if is_greeted => {
                let bytes = body.len() as u64;
                let (kind, reply) = merge(core, &body);
                if kind == ACK {
                    counts.add_shared(1, bytes);
                } else {
                    counts.discard(1);
                }
                send_frame(&mut stream, kind, &reply)?;
            }
            _ => {
                let why = format!("this server has version {VERSION} of the protocol");
                send_frame(&mut stream, NO, &refusal(false, &why))?;
                return Err(io::Error::new(io::ErrorKind::InvalidData, "unexpected message"));
            }
        }
    }
    Ok(())
}

/// Waits until bytes can be read. Returns false if the connection is closed or the server stops.
fn wait_for_frame(stream: &TcpStream, stopping: &StopFlag) -> io::Result<bool> {
    stream.set_read_timeout(Some(STOP_CHECK_INTERVAL))?;
    loop {
        match stream.peek(&mut [0]) {
            Ok(bytes) => return Ok(bytes > 0 && !stopping.is_set()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) =>
            {
                if stopping.is_set() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
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
