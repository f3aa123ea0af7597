//! The old process's side.

use std::{
    collections::HashMap,
    io,
    os::{
        fd::AsFd as _,
        unix::{fs::MetadataExt as _, net::UnixStream},
    },
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant},
};

use howdah_net::{Listener, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{bind, format::*, is_one_of_us, line, unexpected};
use crate::{
    Migrant, Permits, PoolId, WorkerId,
    worker::{
        control::Control,
        mail::{Mail, Settler},
    },
};

/// A client that a worker has let go.
#[derive(Debug)]
pub(in crate::worker) struct Leaver {
    pub(in crate::worker) worker: WorkerId,
    pub(in crate::worker) pool: PoolId,
    pub(in crate::worker) migrant: Migrant,
    pub(in crate::worker) stream: Stream,
    /// Its share of the limits on clients.
    pub(in crate::worker) permits: Permits,
}

/// What the old process has to give.
#[derive(Debug)]
pub(in crate::worker) struct Giver {
    pub(in crate::worker) control: Control,
    pub(in crate::worker) listeners: Vec<Listener>,
    /// Whether others opened them, so that settings do not name them.
    pub(in crate::worker) are_given: bool,
    pub(in crate::worker) path: PathBuf,
}

/// For a step of the new process before it is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at who is left: at first, and when those who are left stay for long. Each costs
/// workers a walk over their clients.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOK_EVERY_MAX: Duration = Duration::from_secs(1);

/// Between two looks at whether the pooler is still there.
const POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Waits for a new process until the pooler ends.
pub(in crate::worker) fn watch(giver: &Giver) {
    let front = &giver.control.front;
    let bound = |result: io::Result<_>| {
        result
            .inspect_err(|error| {
                let path = giver.path.display();
                tracing::warn!(%error, %path, "no other process can take over from this one");
            })
            .ok()
    };
    let Some(mut door) = bound(bind(&giver.path)) else { return };
    let inode = || std::fs::symlink_metadata(&giver.path).map(|meta| meta.ino()).ok();
    let mut own = inode();
    while !front.is_over() {
        let mut ready = [PollFd::new(&door, PollFlags::IN)];
        if !matches!(poll(&mut ready, Some(&POLL)), Ok(some) if some > 0) {
            continue;
        }
        let Ok((line, _)) = door.accept() else { continue };
        if !is_one_of_us(&line) {
            let _ = line::send(&line, REFUSED, b"only the same user may take over", None);
            tracing::warn!("somebody of another user wanted to take over");
            continue;
        }
        match giver.give(&line) {
            Ok(()) => return,
            Err(error) if front.is_over() => {
                tracing::warn!(%error, "handing over has ended with the pooler");
                return;
            }
            Err(error) => {
                tracing::error!(%error, "the process that was to take over is gone; serving on");
                // It may have made itself the one who is knocked at.
                if inode() != own {
                    let Some(again) = bound(bind(&giver.path)) else { return };
                    (door, own) = (again, inode());
                }
            }
        }
    }
}

impl Giver {
    /// Hands everything over.
    ///
    /// # Errors
    ///
    /// The new process has gone before it was told that all is done; what it had not taken is served
    /// here again.
    fn give(&self, line: &UnixStream) -> io::Result<()> {
        line.set_read_timeout(Some(PATIENCE))?;
        line.set_write_timeout(Some(PATIENCE))?;
        let hello = line::receive(line)?.ok_or_else(unexpected)?;
        let expected = [MAGIC, &VERSION.to_be_bytes()].concat();
        if hello.kind != HELLO || hello.body != expected {
            let why = format!("this process speaks version {VERSION} of the takeover");
            line::send(line, REFUSED, why.as_bytes(), None)?;
            return Err(unexpected());
        }
        for listener in &self.listeners {
            let kind: &[u8] = if self.are_given { GIVEN } else { b"" };
            line::send(line, LISTENER, kind, Some(listener.as_fd()))?;
        }
        let gates = self.control.front.directory.gates().into_iter();
        let gates = gates.map(|(name, gate)| (name, gate.is_paused(), gate.is_disabled()));
        line::send(line, LISTENERS_END, &encode_gates(gates), None)?;
        if line::receive(line)?.is_none_or(|frame| frame.kind != READY) {
            return Err(unexpected());
        }
        tracing::info!("another process takes over");
        line.set_read_timeout(None)?;
        self.control.front.set_taken_over(true);
        let (to, leavers) = mpsc::channel();
        self.control.tell(|| Mail::Move(to.clone()));
        drop(to);
        let waiting = Waiting::default();
        std::thread::scope(|scope| {
            scope.spawn(|| self.hear(line, &waiting));
            let given = self.send_clients(line, &leavers, &waiting);
            // The one who listens on it hears the end.
            if given.is_err() {
                let _ = line.shutdown(std::net::Shutdown::Both);
                self.take_back(&leavers, &waiting);
            } else {
                let _ = line.shutdown(std::net::Shutdown::Read);
            }
            given
        })?;
        tracing::info!("another process has taken over");
        self.control.tell(|| Mail::Stop);
        Ok(())
    }

    /// Listens to the new process until its end.
    fn hear(&self, line: &UnixStream, waiting: &Waiting) {
        while let Ok(Some(frame)) = line::receive(line) {
            match frame.kind {
                TAKEN => {
                    if let Ok(id) = <[u8; 8]>::try_from(&frame.body[..]) {
                        waiting.clients().remove(&u64::from_be_bytes(id));
                    }
                }
                CANCEL => {
                    if let Some(key) = decode_key(&frame.body) {
                        self.control.mailboxes[0].send(Mail::CancelAnywhere(key));
                    }
                }
                _ => break,
            }
        }
        waiting.is_broken.store(true, Ordering::Release);
    }

    fn send_clients(
        &self,
        line: &UnixStream,
        leavers: &Receiver<Leaver>,
        waiting: &Waiting,
    ) -> io::Result<()> {
        let (mut last_id, mut asked_to_leave) = (0_u64, false);
        let patience = self.control.front.directory.config().timeouts.shutdown;
        let began = Instant::now();
        let mut look_every = LOOK_EVERY;
        loop {
            if waiting.is_broken.load(Ordering::Acquire) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            match leavers.recv_timeout(look_every) {
                Ok(leaver) => {
                    look_every = LOOK_EVERY;
                    let Some(entry) = self.control.front.directory.by_id(leaver.pool) else {
                        continue; // A pool that has a client is there.
                    };
                    let key = &entry.key;
                    last_id += 1;
                    let traveller = Traveller {
                        id: last_id,
                        database: key.database.clone(),
                        user: key.user.clone(),
                        from: leaver.stream.proxied_address(),
                        migrant: leaver.migrant.clone(),
                    };
                    let body = traveller.encode();
                    // Kept first: it may be taken before this thread goes on.
                    let socket = leaver.stream.as_fd().try_clone_to_owned();
                    waiting.clients().insert(last_id, leaver);
                    line::send(line, CLIENT, &body, Some(socket?.as_fd()))?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    if self.is_empty() && waiting.clients().is_empty() {
                        // Who left in this moment told so before the worker said that nobody is left.
                        match leavers.try_recv() {
                            Ok(leaver) => self.give_back(leaver),
                            Err(_) => return line::send(line, DONE, b"", None),
                        }
                    }
                    look_every = LOOK_EVERY_MAX.min(look_every * 2);
                    let is_late = patience.is_some_and(|patience| began.elapsed() >= patience);
                    if is_late && !asked_to_leave {
                        asked_to_leave = true;
                        tracing::info!("clients that could not be handed over have had their time");
                        self.control.tell(|| Mail::Evict);
                    }
                }
                // The workers have ended, by another order.
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(io::ErrorKind::ConnectionAborted.into());
                }
            }
        }
    }

    /// Whether no worker has clients, or somebody who logs in.
    fn is_empty(&self) -> bool {
        self.control.front.logins.iter().all(|limit| limit.taken() == 0)
            && self.control.counts_clients() == Some(0)
    }

    /// Serves on, with those that were not taken.
    fn take_back(&self, leavers: &Receiver<Leaver>, waiting: &Waiting) {
        self.control.front.set_taken_over(false);
        self.control.tell(|| Mail::Stay);
        let untaken = std::mem::take(&mut *waiting.clients());
        untaken.into_values().chain(leavers.try_iter()).for_each(|leaver| self.give_back(leaver));
        // Workers that had not read their letters yet may have let some go meanwhile.
        while let Ok(leaver) = leavers.recv_timeout(PATIENCE) {
            self.give_back(leaver);
        }
    }

    fn give_back(&self, leaver: Leaver) {
        let Leaver { worker, pool, migrant, stream, permits } = leaver;
        let settler = Settler { pool, migrant, stream, permits };
        self.control.mailboxes[usize::from(worker.0)].send(Mail::Settle(Box::new(settler)));
    }
}

/// Clients on their way, by their ids.
#[derive(Debug, Default)]
struct Waiting {
    clients: Mutex<HashMap<u64, Leaver>>,
    is_broken: AtomicBool,
}

impl Waiting {
    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Leaver>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
