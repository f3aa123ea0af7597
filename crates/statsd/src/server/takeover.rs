//! Takeover: a new process continues the work of a running one, without a gap in reading, in the
//! aggregates or in the sequence of flushes.
//!
//! ```text
//!  new                                      old
//!   │ HELLO ───────────────────────────────► │ checks user and version     reads, flushes
//!   │ ◄───────────────── SOCKET … SOCKETS ── │ copies of all descriptors   reads, flushes
//!   │ opens what its settings add, starts    │
//!   │ threads that do not read yet           │
//!   │ READY ───────────────────────────────► │ stops the flush clock       reads
//!   │ ◄──────────────────────────── BASE ─── │ all aggregates so far       reads
//!   │ restores them                          │
//!   │ PREPARED ────────────────────────────► │ readers stop after a batch; from now on packets
//!   │ ◄─────────────── CONNECTION … LAST ─── │ wait in the sockets' buffers
//!   │ adds the samples since BASE            │
//!   │ TAKEN ══════════ commit ═════════════► │ never reads or flushes again
//!   │ reads, flushes                         │ delivers intervals that were flushed before
//!   │ ◄─────── SPOOL … SPOOL_END … DONE ──── │ batches that it could not deliver; ends
//! ```
//!
//! The order of the steps has these reasons:
//!
//! - Both processes have the same sockets, so packets that are not read wait in the kernel, and
//!   each is read by one process. The new process must not read before the commit, because packets
//!   that it has read would be lost if it failed. So neither reads between PREPARED and TAKEN. To
//!   make this time short, the large part, BASE, is sent before, while the old process reads; only
//!   what arrives meanwhile is left for LAST.
//! - The old process does not flush from READY on: neither process can write an interval that the
//!   other one also has. The new process continues the clock, so if the time of a flush passes
//!   during a takeover, the flush is late, and happens once.
//! - TAKEN is the only commit. The old process decides by one fact: whether TAKEN has arrived. If
//!   the socket ends, or nothing arrives in time, it closes its end first and then checks once
//!   more. The kernel refuses a TAKEN that is sent after that, with an error for the new process,
//!   which then ends. So both always decide alike, and before TAKEN a failure of the new process,
//!   at any step, changes nothing in the old one but the time of a flush.
//! - Intervals that were flushed before belong to the old process, which delivers them within
//!   `shutdown-timeout`. It hands over only batches that their receiver has not accepted by then:
//!   handing over earlier could deliver the batch in progress twice. Backends get less time than
//!   that, so that the spool of one whose receiver hangs is complete in time. Receivers that need
//!   intervals in their order get none of the new process before SPOOL_END of the same backend.
//! - A process that still waits for DONE does not hand over itself, because the batches that it
//!   would get later would be lost. The third process waits.
//!
//! Only a process of the same user, or of root, may take over. Frames are those of
//! [`howdah_net::takeover`]; `format` has their bodies.

mod format;
mod pending;
mod predecessor;
mod successor;
#[cfg(test)]
mod tests;

use std::{io, os::unix::net::UnixStream, path::PathBuf, time::Duration};

use howdah_net::takeover::{receive_frame, send_frame};

pub use self::successor::Predecessor;
pub(super) use self::{
    format::BackendId,
    pending::PendingSpools,
    predecessor::{HandoverSource, SharedFile, TakeoverListener, finish, hand_over, send_spools},
    successor::SpoolReceiver,
};

/// The version of the protocol and of all bodies. Processes with different versions do not take
/// over from each other.
const VERSION: u16 = 1;

/// The start of HELLO; the version follows it.
const MAGIC: &[u8] = b"howdah statsd takeover";

/// New to old: magic and version.
const HELLO: u8 = 1;
/// Old to new: a socket with its label.
const SOCKET: u8 = 2;
/// Old to new: the end of the sockets.
const SOCKETS: u8 = 3;
/// New to old: the new process can start.
const READY: u8 = 4;
/// Old to new: the aggregates, the clock and the state of backends.
const BASE: u8 = 5;
/// New to old: everything so far is restored.
const PREPARED: u8 = 6;
/// Old to new: a connection of a stream listener with its incomplete line.
const CONNECTION: u8 = 7;
/// Old to new: samples since BASE, and totals of sockets.
const LAST: u8 = 8;
/// New to old: the new process serves from now on.
const TAKEN: u8 = 9;
/// Old to new: a batch that a backend could not deliver.
const SPOOL: u8 = 10;
/// Old to new: the old process has delivered or handed over everything of this backend.
const SPOOL_END: u8 = 14;
/// Old to new: the old process has delivered or handed over everything.
const DONE: u8 = 11;
/// Old to new: the takeover is refused for this reason.
const REFUSED: u8 = 12;
/// Old to new: a part of the body of the next frame of another kind.
const PART: u8 = 13;

/// Timeout for each step while the old process reads.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the commit, while packets wait in the kernel.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time beyond `shutdown-timeout` for which backends that need the order of intervals wait
/// for the old process: a flush in progress may delay it.
pub(super) const ORDER_GRACE: Duration = Duration::from_secs(10);

/// Maximum size of a part of a body.
const PART_BYTES: usize = 16 << 20;
/// Maximum size of a body. Aggregates of ten million keys take less.
const BODY_BYTES_MAX: usize = 8 << 30;

/// The reason why a process cannot take over.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TakeoverError {
    /// No process listens on the takeover socket.
    #[error("cannot reach a running server at {path}")]
    Unreachable {
        /// The path of the takeover socket.
        path: PathBuf,
        /// The system error.
        source: io::Error,
    },
    /// The running process refused.
    #[error("the running server refused the takeover: {0}")]
    Refused(String),
    /// The connection to the running process failed before the commit. That process goes on.
    #[error("the takeover failed, and the running server goes on")]
    Failed(#[source] io::Error),
}

/// Sends a body of any length.
fn send_body(stream: &UnixStream, kind: u8, body: &[u8]) -> io::Result<()> {
    let mut rest = body;
    while rest.len() > PART_BYTES {
        let (part, after) = rest.split_at(PART_BYTES);
        send_frame(stream, PART, part, None)?;
        rest = after;
    }
    send_frame(stream, kind, rest, None)
}

/// Receives a body that was sent by [`send_body`]; its first frame has been received already.
fn receive_body(
    stream: &UnixStream,
    first: howdah_net::takeover::TakeoverFrame,
    kind: u8,
) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    let mut frame = first;
    loop {
        if body.len() + frame.body.len() > BODY_BYTES_MAX {
            return Err(invalid("the other process sent too much"));
        }
        body.extend_from_slice(&frame.body);
        match frame.kind {
            PART => frame = receive_frame(stream)?.ok_or_else(closed)?,
            other if other == kind => return Ok(body),
            _ => return Err(unexpected()),
        }
    }
}

/// Waits for a frame of one kind, without a body.
fn expect_frame(stream: &UnixStream, kind: u8) -> io::Result<()> {
    match receive_frame(stream)? {
        Some(frame) if frame.kind == kind => Ok(()),
        Some(_) => Err(unexpected()),
        None => Err(closed()),
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other process closed the connection")
}

/// Returns the error for a frame that is invalid at this point of the protocol.
fn unexpected() -> io::Error {
    invalid("the other process sent an unexpected message")
}

fn invalid(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}
