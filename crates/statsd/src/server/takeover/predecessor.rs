//! The old process's side of a takeover.

use std::{
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant, SystemTime},
};

use howdah_net::takeover::{
    TakeoverFrame, bind_takeover_socket, is_same_user, receive_frame, replace_takeover_socket,
    send_frame,
};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::{
    BASE, COMMIT_TIMEOUT, CONNECTION, DONE, HELLO, LAST, MAGIC, PREPARED, READY, REFUSED, SOCKET,
    SOCKETS, SPOOL, SPOOL_END, STEP_TIMEOUT, TAKEN, VERSION, closed,
    format::{BackendId, BaseBody, ConnectionBody, LastBody, SocketBody, encode_spool},
    pending::PendingSpools,
    send_body,
};
use crate::{
    aggregate::ShardInterval,
    backends::BackendSpool,
    flush::{KeyRegistry, handover},
    management::pause_after_failed_accept,
    receiver::{InheritedSocket, LineRelay, PacketReceiver, SocketFile},
    server::{
        FlushCommand, ServerCore, SharedReceiver, backend_set::BackendSet, clock::FlushClock,
        key_log::KeyLog,
    },
};

/// The sources of the thread that waits for a new process.
#[derive(Debug)]
pub(in crate::server) struct HandoverSource {
    pub(in crate::server) receiver: SharedReceiver,
    pub(in crate::server) backends: Arc<BackendSet>,
    /// Sockets other than those of the receiver and the backends.
    pub(in crate::server) ports: Vec<InheritedSocket>,
    pub(in crate::server) flush: mpsc::Sender<FlushCommand>,
    /// The batches of the process before this one. `None` if there was none.
    pub(in crate::server) pending: Option<PendingSpools>,
}

/// Maximum time that a new process waits until this one has all batches of the one before it.
/// Shorter than [`STEP_TIMEOUT`], so that the new process gets the reason.
const PENDING_TIMEOUT: Duration = Duration::from_secs(20);

/// The takeover socket, with a thread that waits for a new process until this is dropped.
#[derive(Debug)]
pub(in crate::server) struct TakeoverListener {
    file: SharedFile,
    /// Closing it wakes the thread.
    _wake: io::PipeWriter,
}

/// The file of the takeover socket, until it is removed or left to another process.
pub(in crate::server) type SharedFile = Arc<Mutex<Option<SocketFile>>>;

impl TakeoverListener {
    /// Listens on the takeover socket. Replaces that of the process before this one.
    pub(in crate::server) fn start(path: &Path, source: HandoverSource) -> io::Result<Self> {
        let listener = if source.pending.is_some() {
            replace_takeover_socket(path)?
        } else {
            bind_takeover_socket(path)?
        };
        let file = Arc::new(Mutex::new(Some(SocketFile::at(path)?)));
        let (woken, wake) = io::pipe()?;
        let shared = Arc::clone(&file);
        thread::Builder::new()
            .name("statsd-takeover".into())
            .spawn(move || source.run(&listener, &shared, &woken.into()))?;
        Ok(Self { file, _wake: wake })
    }
}

impl Drop for TakeoverListener {
    fn drop(&mut self) {
        drop(self.file.lock().take());
    }
}

impl HandoverSource {
    /// Waits for new processes until one has taken over, or `woken` is closed.
    fn run(self, listener: &UnixListener, file: &SharedFile, woken: &OwnedFd) {
        loop {
            let mut ready =
                [PollFd::new(listener, PollFlags::IN), PollFd::new(woken, PollFlags::IN)];
            if let Err(error) = poll(&mut ready, None)
                && error != rustix::io::Errno::INTR
            {
                tracing::error!(%error, "cannot wait on the takeover socket");
                return;
            }
            if !ready[1].revents().is_empty() {
                return;
            }
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) => {
                    pause_after_failed_accept("takeover", &error, woken);
                    continue;
                }
            };
            match self.serve(&stream, file) {
                Ok(true) => return,
                Ok(false) => {}
                Err(error) => tracing::error!(%error, "takeover failed: this process goes on"),
            }
        }
    }

    /// Hands over to one new process. Returns false if it only checked whether a process listens.
    fn serve(&self, stream: &UnixStream, file: &SharedFile) -> io::Result<bool> {
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        if !is_same_user(stream) {
            return refuse(stream, "only the same user may take over");
        }
        let Some(hello) = receive_frame(stream)? else { return Ok(false) };
        if *hello.body != [MAGIC, &VERSION.to_be_bytes()].concat() || hello.kind != HELLO {
            return refuse(stream, &version_mismatch(&hello));
        }
        // The batches that may still arrive must be in the spools that are handed over.
        let until = Instant::now() + PENDING_TIMEOUT;
        if self.pending.as_ref().is_some_and(|pending| !pending.wait(until)) {
            return refuse(
                stream,
                "the process from which it took over has not ended yet: try again once its log \
                 says that the old process has ended",
            );
        }
        let mut sockets = match self.receiver.lock().as_ref() {
            Some(receiver) => receiver.passed_sockets()?,
            None => return refuse(stream, "it is shutting down"),
        };
        sockets.extend(self.backends.passed_sockets()?);
        for port in &self.ports {
            sockets.push(InheritedSocket {
                label: port.label.clone(),
                descriptor: port.descriptor.try_clone()?,
                is_managed: port.is_managed,
            });
        }
        for InheritedSocket { label, descriptor, is_managed } in sockets {
            let body = SocketBody { label, is_managed }.encode();
            send_frame(stream, SOCKET, &body, Some(descriptor.as_fd()))?;
        }
        send_frame(stream, SOCKETS, b"", None)?;
        super::expect_frame(stream, READY)?;
        let (reply, outcome) = mpsc::channel();
        let (stream, file) = (stream.try_clone()?, Arc::clone(file));
        let command = FlushCommand::HandOver { stream, file, reply };
        let stopped = || io::Error::other("this process is shutting down");
        self.flush.send(command).map_err(|_| stopped())?;
        outcome.recv().map_err(|_| stopped())?.map(|()| true)
    }
}

fn refuse(stream: &UnixStream, why: &str) -> io::Result<bool> {
    send_frame(stream, REFUSED, why.as_bytes(), None)?;
    Err(io::Error::other(format!("refused: {why}")))
}

fn version_mismatch(hello: &TakeoverFrame) -> String {
    let theirs = hello.body.strip_prefix(MAGIC).and_then(|rest| rest.try_into().ok());
    let theirs = theirs.map(u16::from_be_bytes).filter(|_| hello.kind == HELLO);
    let theirs = theirs.map_or_else(|| "unknown".to_owned(), |version| version.to_string());
    format!(
        "it has version {VERSION} of the takeover protocol, the new process has version {theirs}: \
         restart it instead"
    )
}

/// Hands over aggregates, connections and totals. Called by the flush thread, so that no flush
/// happens meanwhile.
///
/// # Errors
///
/// The new process failed before it sent TAKEN. This process continues as before.
pub(in crate::server) fn hand_over(
    stream: &UnixStream,
    core: &ServerCore,
    receiver: &Mutex<Option<PacketReceiver>>,
    backends: &BackendSet,
    (clock, key_log): (&FlushClock, &KeyLog),
) -> io::Result<LineRelay> {
    let started = Instant::now();
    let mut slot = receiver.lock();
    let packets = slot.as_mut().ok_or_else(|| io::Error::other("this process is stopping"))?;
    let backends = backends.export_states(STEP_TIMEOUT).map_err(io::Error::other)?;
    // The lock is held until the end, so that nothing else collects the shards.
    let mut registry = core.registry();
    let body = BaseBody {
        clock: clock.state(),
        since_key_log: key_log.elapsed(Instant::now()),
        health: Some(core.is_healthy()).filter(|health| *health != core.settings().healthy),
        registry: handover::export_registry(&mut registry, SystemTime::now()),
        backends,
    };
    send_body(stream, BASE, &body.encode())?;
    drop(body);
    super::expect_frame(stream, PREPARED)?;
    let timer = CommitTimer::start(stream, COMMIT_TIMEOUT)?;
    let halted = Instant::now();
    packets.halt();
    let intervals = handover::take_intervals(&mut registry, SystemTime::now());
    let sequences = core.forwarded_sequences();
    let sent = send_last(stream, packets, (&mut registry, &intervals), sequences);
    let committed = sent.and_then(|()| wait_for_commit(stream));
    let is_late = !timer.stop();
    if let Err(error) = committed {
        handover::restore_intervals(&mut registry, intervals, SystemTime::now());
        if let Err(error) = packets.resume() {
            tracing::error!(%error, "cannot read a socket any more");
        }
        let too_late = || io::Error::new(io::ErrorKind::TimedOut, "the commit takes too long");
        return Err(if is_late { too_late() } else { error });
    }
    core.close_forwarding();
    let paused_us = halted.elapsed().as_micros() as u64;
    let total_ms = started.elapsed().as_millis() as u64;
    tracing::info!(paused_us, total_ms, "another process has taken over");
    // It is there: see above.
    let receiver = slot.take().ok_or_else(closed)?;
    Ok(receiver.detach())
}

fn send_last(
    stream: &UnixStream,
    packets: &mut PacketReceiver,
    (registry, intervals): (&mut KeyRegistry, &[ShardInterval]),
    sequences: Vec<u8>,
) -> io::Result<()> {
    for connection in packets.passed_connections()? {
        let body = ConnectionBody {
            listener: connection.listener,
            is_skipping: connection.is_skipping,
            tail: connection.tail,
        };
        send_frame(stream, CONNECTION, &body.encode(), Some(connection.descriptor.as_fd()))?;
    }
    let (sockets, backlog_before) = packets.totals();
    let (intervals, rules) = handover::export_intervals(registry, intervals);
    let body = LastBody {
        intervals,
        rules,
        running_totals: handover::export_running_totals(registry, packets.shard_sockets()),
        stamp: handover::last_stamp(registry),
        sockets,
        backlog_before,
        sequences,
    };
    send_body(stream, LAST, &body.encode())
}

/// Closes a connection after a time, unless it is stopped before. So neither a write nor a read
/// waits longer, however slowly the other process reads.
#[derive(Debug)]
struct CommitTimer {
    /// The connection, until the time is over or the timer is stopped.
    stream: Arc<Mutex<Option<UnixStream>>>,
    /// Dropping it wakes the thread.
    _wake: mpsc::Sender<()>,
}

impl CommitTimer {
    fn start(stream: &UnixStream, timeout: Duration) -> io::Result<Self> {
        let stream = Arc::new(Mutex::new(Some(stream.try_clone()?)));
        let (wake, woken) = mpsc::channel::<()>();
        let shared = Arc::clone(&stream);
        thread::Builder::new().name("statsd-commit".into()).spawn(move || {
            if woken.recv_timeout(timeout) == Err(mpsc::RecvTimeoutError::Timeout)
                && let Some(stream) = shared.lock().take()
            {
                // Fails only if the other process is gone, which ends the wait, too.
                let _ = stream.shutdown(std::net::Shutdown::Both);
            }
        })?;
        Ok(Self { stream, _wake: wake })
    }

    /// Returns false if the connection has been closed.
    fn stop(self) -> bool {
        self.stream.lock().take().is_some()
    }
}

/// Waits for TAKEN. Whether it has arrived is decided once: see the module's documentation.
fn wait_for_commit(stream: &UnixStream) -> io::Result<()> {
    stream.set_read_timeout(Some(COMMIT_TIMEOUT))?;
    let received = super::expect_frame(stream, TAKEN);
    let Err(error) = received else { return Ok(()) };
    // From here on the kernel refuses a TAKEN, but one that was sent before can still be read.
    stream.shutdown(std::net::Shutdown::Both)?;
    match receive_frame(stream) {
        Ok(Some(frame)) if frame.kind == TAKEN => Ok(()),
        _ => Err(error),
    }
}

/// Maximum time by which a flush that is in progress at the takeover delays the end of a backend:
/// longer than the backends' budgets for a flush.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(40);

/// Delivers the intervals that were flushed before the takeover, within `timeout`, and sends what
/// remains to the new process. Returns the backends whose values are lost, each with the reason.
pub(in crate::server) fn send_spools(
    stream: &UnixStream,
    backends: &BackendSet,
    timeout: Duration,
) -> Vec<(&'static str, String)> {
    let mut undelivered = Vec::new();
    // A receiver that does not reply makes a backend use all of its time. The spool is complete
    // only after that.
    let margin = (timeout / 4).min(Duration::from_secs(2));
    let deadline = Instant::now() + timeout;
    for (id, finishing) in backends.hand_over(deadline - margin) {
        let name = finishing.name();
        let finished = finishing.wait(deadline + FLUSH_TIMEOUT);
        undelivered.extend(finished.error.map(|why| (name, why)));
        let Some(id) = id else { continue };
        if let Err(error) = send_spool(stream, &id, finished.spool) {
            let why = format!("cannot hand over values that were not delivered: {error}");
            undelivered.push((name, why));
        }
        // If the new process is gone, that was reported with a spool, or there was none.
        let _ = send_frame(stream, SPOOL_END, &id.encode(), None);
    }
    undelivered
}

/// Reports the end of this process's work to the new one.
pub(in crate::server) fn finish(stream: &UnixStream) {
    // If the new process is gone, that was reported with a spool, or there was none.
    let _ = send_frame(stream, DONE, b"", None);
}

pub(super) fn send_spool(
    stream: &UnixStream,
    id: &BackendId,
    spool: BackendSpool,
) -> io::Result<()> {
    if spool.batches.is_empty() {
        return Ok(());
    }
    let values = spool.batches.iter().map(|batch| batch.values).sum::<u64>();
    tracing::info!(
        backend = id.name,
        batches = spool.batches.len(),
        values,
        "handing over values that could not be delivered"
    );
    let mut sent = encode_spool(id, spool).into_iter().map(|body| send_body(stream, SPOOL, &body));
    let failed = |error| io::Error::other(format!("{error} ({values} values)"));
    sent.try_for_each(|sent| sent).map_err(failed)
}
