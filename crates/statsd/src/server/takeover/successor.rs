//! The new process's side of a takeover.

use std::{
    io,
    os::unix::net::UnixStream,
    path::Path,
    sync::mpsc,
    thread,
    time::{Duration, SystemTime},
};

use howdah_net::takeover::{TakeoverFrame, is_same_user, receive_frame, send_frame};

use super::{
    BASE, CONNECTION, DONE, HELLO, LAST, MAGIC, PREPARED, READY, REFUSED, SOCKET, SOCKETS, SPOOL,
    SPOOL_END, STEP_TIMEOUT, TAKEN, TakeoverError, VERSION, closed,
    format::{BackendId, BaseBody, ConnectionBody, LastBody, SocketBody, SpoolPart, decode_spool},
    invalid,
    pending::PendingSpools,
    receive_body, unexpected,
};
use crate::{
    backends::BackendSpool,
    flush::{KeyRegistry, handover},
    forwarding::SequenceTable,
    receiver::{InheritedConnection, InheritedSocket, InheritedSockets, PacketReceiver},
    server::{FlushCommand, backend_set::BackendSet, clock::ClockState},
};

/// The running server that a new process takes over from, before the commit.
#[derive(Debug)]
pub struct Predecessor {
    stream: UnixStream,
}

/// The state that a new process has received by the commit, apart from its registry.
#[derive(Debug)]
pub(in crate::server) struct Inheritance {
    pub(in crate::server) clock: ClockState,
    pub(in crate::server) since_key_log: Duration,
    /// The health, if a command has set it.
    pub(in crate::server) health: Option<bool>,
    pub(in crate::server) connections: Vec<InheritedConnection>,
    pub(in crate::server) pending: PendingSpools,
    pub(in crate::server) sequences: SequenceTable,
}

/// The thread that receives batches that the old process could not deliver. It waits for the
/// connection.
#[derive(Debug)]
pub(in crate::server) struct SpoolReceiver {
    streams: mpsc::Sender<UnixStream>,
    pending: PendingSpools,
}

impl Predecessor {
    /// Connects to the running server at its takeover socket, and receives its sockets. The server
    /// goes on.
    ///
    /// # Errors
    ///
    /// No server of the same user listens there, or it refuses: it has another version of the
    /// protocol, or is shutting down.
    pub fn connect(path: &Path) -> Result<(Self, InheritedSockets), TakeoverError> {
        let unreachable = |source| TakeoverError::Unreachable { path: path.to_owned(), source };
        let stream = UnixStream::connect(path).map_err(unreachable)?;
        if !is_same_user(&stream) {
            let other = io::Error::other("it belongs to another user");
            return Err(unreachable(other));
        }
        stream.set_read_timeout(Some(STEP_TIMEOUT)).map_err(TakeoverError::Failed)?;
        stream.set_write_timeout(Some(STEP_TIMEOUT)).map_err(TakeoverError::Failed)?;
        let hello = [MAGIC, &VERSION.to_be_bytes()].concat();
        // If this fails, the running server may still have sent a reason.
        let sent = send_frame(&stream, HELLO, &hello, None);
        let mut sockets = InheritedSockets::default();
        loop {
            let frame = receive_frame(&stream).map_err(TakeoverError::Failed)?;
            let Some(frame) = frame else {
                return Err(TakeoverError::Failed(sent.err().unwrap_or_else(closed)));
            };
            match frame {
                TakeoverFrame { kind: SOCKET, body, socket: Some(descriptor) } => {
                    let body = SocketBody::decode(&body);
                    let body = body.map_err(|error| TakeoverError::Failed(invalid(error)))?;
                    let SocketBody { label, is_managed } = body;
                    sockets.push(InheritedSocket { label, descriptor, is_managed });
                }
                TakeoverFrame { kind: SOCKETS, .. } => return Ok((Self { stream }, sockets)),
                TakeoverFrame { kind: REFUSED, body, .. } => {
                    let why = String::from_utf8_lossy(&body).into_owned();
                    return Err(TakeoverError::Refused(why));
                }
                _ => return Err(TakeoverError::Failed(unexpected())),
            }
        }
    }

    /// Returns the connection, to play a new process that fails.
    #[cfg(test)]
    pub(super) fn into_stream(self) -> UnixStream {
        self.stream
    }

    /// Takes over: restores everything that the running server has, and commits. After that the
    /// caller must read, because the other server does not.
    pub(in crate::server) fn take_over(
        self,
        registry: &mut KeyRegistry,
        receiver: &PacketReceiver,
        backends: &BackendSet,
        spools: SpoolReceiver,
    ) -> Result<Inheritance, TakeoverError> {
        self.receive(registry, receiver, backends, spools).map_err(TakeoverError::Failed)
    }

    fn receive(
        self,
        registry: &mut KeyRegistry,
        receiver: &PacketReceiver,
        backends: &BackendSet,
        spools: SpoolReceiver,
    ) -> io::Result<Inheritance> {
        let Self { stream } = self;
        send_frame(&stream, READY, b"", None)?;
        let first = receive_frame(&stream)?.ok_or_else(closed)?;
        let base = receive_body(&stream, first, BASE)?;
        let base = BaseBody::decode(&base).map_err(invalid)?;
        let now = SystemTime::now();
        handover::import_registry(registry, &base.registry, now).map_err(invalid)?;
        let BaseBody { clock, since_key_log, health, backends: states, .. } = base;
        for (id, state) in states {
            if !backends.import_state(&id, state, STEP_TIMEOUT).map_err(invalid)? {
                tracing::warn!(
                    backend = id.name,
                    "the values of a backend that is not configured any more are dropped"
                );
            }
        }
        send_frame(&stream, PREPARED, b"", None)?;
        let mut connections = Vec::new();
        let last = loop {
            match receive_frame(&stream)?.ok_or_else(closed)? {
                TakeoverFrame { kind: CONNECTION, body, socket: Some(descriptor) } => {
                    let body = ConnectionBody::decode(&body).map_err(invalid)?;
                    let ConnectionBody { listener, is_skipping, tail } = body;
                    connections.push(InheritedConnection {
                        descriptor,
                        listener,
                        tail,
                        is_skipping,
                    });
                }
                first => break receive_body(&stream, first, LAST)?,
            }
        };
        let last = LastBody::decode(&last).map_err(invalid)?;
        let intervals = handover::ImportedIntervals::read(&last.intervals).map_err(invalid)?;
        intervals.add_to(registry, SystemTime::now());
        handover::import_rules(registry, &last.rules).map_err(invalid)?;
        let sockets = receiver.shard_sockets();
        handover::import_running_totals(registry, sockets, &last.running_totals)
            .map_err(invalid)?;
        handover::continue_stamps(registry, last.stamp);
        let sequences = SequenceTable::import(&last.sequences).map_err(invalid)?;
        receiver.restore_totals(last.sockets, last.backlog_before);
        // The old process delivers for as long as its settings allow.
        stream.set_read_timeout(None)?;
        // The commit. Nothing after it may fail.
        send_frame(&stream, TAKEN, b"", None)?;
        let pending = spools.receive(stream);
        Ok(Inheritance { clock, since_key_log, health, connections, pending, sequences })
    }
}

impl SpoolReceiver {
    /// Starts the thread, before the commit, so that nothing that may fail is left after it.
    ///
    /// # Errors
    ///
    /// The thread cannot be started.
    pub(in crate::server) fn start(flush: mpsc::Sender<FlushCommand>) -> io::Result<Self> {
        let (streams, stream) = mpsc::channel();
        let pending = PendingSpools::default();
        let end = pending.end_guard();
        thread::Builder::new().name("statsd-spools".into()).spawn(move || {
            let _end = end;
            // Without a stream, the takeover failed.
            if let Ok(stream) = stream.recv() {
                receive_spools(&stream, &flush);
            }
        })?;
        Ok(Self { streams, pending })
    }

    /// Receives the batches until the old process ends, and passes them to the flush thread.
    fn receive(self, stream: UnixStream) -> PendingSpools {
        // The thread ends only after it has received a stream.
        let _ = self.streams.send(stream);
        self.pending
    }
}

/// A message of the old process after the commit.
enum SpoolMessage {
    Part(Vec<u8>),
    BackendEnd(BackendId),
    Done,
}

fn receive_spools(stream: &UnixStream, flush: &mpsc::Sender<FlushCommand>) {
    // The parts of one backend are adopted together, so that their order stays the same.
    let mut parts: Option<(BackendId, BackendSpool)> = None;
    loop {
        let message = receive_message(stream);
        let is_part = matches!(&message, Ok(SpoolMessage::Part(_)));
        if let Some((id, spool)) = parts.take_if(|_| !is_part) {
            pass_on(flush, id, spool);
        }
        match message {
            Ok(SpoolMessage::Part(body)) => match decode_spool(&body) {
                Ok(SpoolPart { id, is_last, spool }) => {
                    let (_, all) = parts.get_or_insert_with(|| (id, BackendSpool::default()));
                    all.append(spool);
                    if let Some((id, spool)) = parts.take_if(|_| is_last) {
                        pass_on(flush, id, spool);
                    }
                }
                Err(error) => tracing::error!(%error, "values dropped"),
            },
            // If the flush thread has ended, no backend waits.
            Ok(SpoolMessage::BackendEnd(id)) => drop(flush.send(FlushCommand::Release(Some(id)))),
            Ok(SpoolMessage::Done) => {
                tracing::info!("the old process has ended");
                break;
            }
            Err(error) => {
                tracing::warn!(
                    %error,
                    "the old process ended early: intervals that it had not delivered may be lost"
                );
                break;
            }
        }
    }
    drop(flush.send(FlushCommand::Release(None)));
}

fn receive_message(stream: &UnixStream) -> io::Result<SpoolMessage> {
    match receive_frame(stream)?.ok_or_else(closed)? {
        TakeoverFrame { kind: DONE, .. } => Ok(SpoolMessage::Done),
        TakeoverFrame { kind: SPOOL_END, body, .. } => {
            Ok(SpoolMessage::BackendEnd(BackendId::decode(&body).map_err(invalid)?))
        }
        first => receive_body(stream, first, SPOOL).map(SpoolMessage::Part),
    }
}

/// Passes batches to the flush thread.
fn pass_on(flush: &mpsc::Sender<FlushCommand>, id: BackendId, spool: BackendSpool) {
    if let Err(mpsc::SendError(FlushCommand::Adopt(id, spool))) =
        flush.send(FlushCommand::Adopt(id, spool))
    {
        let values = spool.batches.iter().map(|batch| batch.values).sum::<u64>();
        tracing::error!(
            backend = id.name,
            values,
            "values dropped: the old process could not deliver them, and this one is stopping"
        );
    }
}
