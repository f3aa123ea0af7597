//! The old process's side.

use std::{
    collections::{HashMap, HashSet},
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

use zeroize::Zeroizing;

use super::{bind, format::*, is_one_of_us, line, unexpected};
use crate::{
    Channel, ClientHandover, Permits, PoolId, WorkerId,
    worker::{
        control::Control,
        directory::PoolEntry,
        hub::Positions,
        mail::{IncomingClient, WorkerMessage},
    },
};

/// A client that a worker has let go.
#[derive(Debug)]
pub(in crate::worker) struct OutgoingClient {
    pub(in crate::worker) worker: WorkerId,
    pub(in crate::worker) pool: PoolId,
    pub(in crate::worker) migrant: ClientHandover,
    pub(in crate::worker) stream: Stream,
    /// Its share of the limits on clients.
    pub(in crate::worker) permits: Permits,
    /// The last notifications that it was given.
    pub(in crate::worker) positions: Positions,
}

/// Something for the new process.
#[derive(Debug)]
pub(in crate::worker) enum Outgoing {
    /// A client.
    Client(Box<OutgoingClient>),
    /// Channels of a database to listen to, for clients of these pools.
    Channels {
        database: String,
        homes: Vec<PoolId>,
        round: u32,
        marker: Channel,
        channels: Vec<Channel>,
    },
}

/// What the old process has to give.
#[derive(Debug)]
pub(in crate::worker) struct HandoverSender {
    pub(in crate::worker) control: Control,
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
pub(in crate::worker) fn watch(giver: &HandoverSender) {
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

impl HandoverSender {
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
        if hello.kind != HELLO || *hello.body != expected {
            let theirs = hello.body.strip_prefix(MAGIC).and_then(|rest| rest.try_into().ok());
            let theirs = theirs.map(u16::from_be_bytes).filter(|_| hello.kind == HELLO);
            let theirs = theirs.map_or_else(|| "another".to_owned(), |it| it.to_string());
            let why = format!(
                "the running process speaks version {VERSION} of the takeover protocol and the new \
                 one version {theirs}: restart it instead"
            );
            line::send(line, REFUSED, why.as_bytes(), None)?;
            return Err(io::Error::other(why));
        }
        if self.control.front.is_shutting_down() {
            let why = "the running process is shutting down";
            line::send(line, REFUSED, why.as_bytes(), None)?;
            return Err(io::Error::other(why));
        }
        let listeners: io::Result<Vec<_>> =
            self.control.front.listeners().iter().map(Listener::try_clone).collect();
        for listener in listeners? {
            let kind: &[u8] = if self.are_given { GIVEN } else { b"" };
            line::send(line, LISTENER, kind, Some(listener.as_fd()))?;
        }
        let gates = self.control.front.directory.gates().into_iter();
        let gates = gates.map(|(database, gate)| GateState {
            database,
            is_paused: gate.is_paused(),
            is_disabled: gate.is_disabled(),
            paused_users: gate.paused_users(),
        });
        let gates: Vec<_> = gates.collect();
        line::send(line, LISTENERS_END, &encode_gates(&gates), None)?;
        if line::receive(line)?.is_none_or(|frame| frame.kind != READY) {
            return Err(unexpected());
        }
        tracing::info!("another process takes over");
        line.set_read_timeout(None)?;
        self.control.front.set_taken_over(true);
        let (to, leavers) = mpsc::channel();
        self.control.tell(|| WorkerMessage::Move(to.clone()));
        // After the workers know: they count from what the hubs tell them.
        self.control.front.hubs.depart(&to);
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
        self.control.tell(|| WorkerMessage::Stop);
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
                LISTENING => {
                    if let Some((database, round)) = decode_round(&frame.body) {
                        self.control.front.hubs.confirmed(&database, round);
                    }
                }
                CANCEL => {
                    if let Some(key) = decode_key(&frame.body) {
                        self.control.mailboxes[0].send(WorkerMessage::CancelAnywhere(key));
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
        leavers: &Receiver<Outgoing>,
        waiting: &Waiting,
    ) -> io::Result<()> {
        let (mut last_id, mut asked_to_leave) = (0_u64, false);
        let mut has_secrets_of = HashSet::new();
        let mut entries = self.control.front.directory.pools();
        // The first that comes is kept: that of the pool which new clients of the user come to.
        entries.sort_by_key(|entry| entry.is_retired);
        for entry in entries {
            send_secrets(line, &entry, &mut has_secrets_of)?;
        }
        let patience = self.control.front.directory.config().timeouts.shutdown;
        let began = Instant::now();
        let mut look_every = LOOK_EVERY;
        loop {
            if waiting.is_broken.load(Ordering::Acquire) {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            if self.control.front.is_over() {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let outgoing = match leavers.recv_timeout(look_every) {
                // Who left in this moment told so before the worker said that nobody is left.
                Err(RecvTimeoutError::Timeout)
                    if self.is_empty() && waiting.clients().is_empty() =>
                {
                    match leavers.try_recv() {
                        Ok(outgoing) => Ok(outgoing),
                        Err(_) => return line::send(line, DONE, b"", None),
                    }
                }
                outgoing => outgoing,
            };
            match outgoing {
                Ok(Outgoing::Channels { database, homes, round, marker, channels }) => {
                    let users = homes.into_iter();
                    let users = users.filter_map(|home| self.control.front.directory.by_id(home));
                    let users = users.map(|entry| entry.key.user.clone()).collect();
                    let channels = Channels { database, users, round, marker, channels };
                    line::send(line, CHANNELS, &channels.encode(), None)?;
                }
                Ok(Outgoing::Client(leaver)) => {
                    look_every = LOOK_EVERY;
                    let Some(entry) = self.control.front.directory.by_id(leaver.pool) else {
                        continue; // A pool that has a client is there.
                    };
                    // A login that ended after the others were sent.
                    send_secrets(line, &entry, &mut has_secrets_of)?;
                    let key = &entry.key;
                    last_id += 1;
                    let traveller = Traveller {
                        id: last_id,
                        database: key.database.clone(),
                        user: leaver.migrant.user.as_deref().unwrap_or(&key.user).to_owned(),
                        from: leaver.stream.proxied_address(),
                        migrant: leaver.migrant.clone(),
                        positions: leaver.positions.clone(),
                    };
                    let body = Zeroizing::new(traveller.encode());
                    // Kept first: it may be taken before this thread goes on.
                    let socket = leaver.stream.as_fd().try_clone_to_owned();
                    waiting.clients().insert(last_id, *leaver);
                    line::send(line, CLIENT, &body, Some(socket?.as_fd()))?;
                }
                Err(RecvTimeoutError::Timeout) => {
                    look_every = LOOK_EVERY_MAX.min(look_every * 2);
                    let is_late = patience.is_some_and(|patience| began.elapsed() >= patience);
                    if is_late && !asked_to_leave {
                        asked_to_leave = true;
                        tracing::info!("clients that could not be handed over have had their time");
                        self.control.tell(|| WorkerMessage::Evict);
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
        self.control.front.startups.count() == 0 && self.control.counts_clients() == Some(0)
    }

    /// Serves on, with those that were not taken.
    fn take_back(&self, leavers: &Receiver<Outgoing>, waiting: &Waiting) {
        self.control.front.set_taken_over(false);
        self.control.front.hubs.stay();
        self.control.tell(|| WorkerMessage::Stay);
        let untaken = std::mem::take(&mut *waiting.clients());
        untaken.into_values().for_each(|leaver| self.give_back(leaver));
        // Workers that had not read their letters yet may have let some go meanwhile.
        while let Ok(outgoing) = leavers.recv_timeout(PATIENCE) {
            if let Outgoing::Client(leaver) = outgoing {
                self.give_back(*leaver);
            }
        }
    }

    /// Serves a client here again. What was notified meanwhile it may have missed, so it is told that.
    fn give_back(&self, leaver: OutgoingClient) {
        let OutgoingClient { worker, pool, migrant, stream, permits, .. } = leaver;
        let settler = IncomingClient { pool, migrant, stream, permits, positions: Vec::new() };
        self.control.mailboxes[usize::from(worker.0)]
            .send(WorkerMessage::Settle(Box::new(settler)));
    }
}

/// Sends what opens the servers of a pool, once for each pool that has learned something. Members of a
/// cluster have what their home has.
fn send_secrets(
    line: &UnixStream,
    entry: &PoolEntry,
    sent: &mut HashSet<PoolId>,
) -> io::Result<()> {
    let (keys, looked_up) = entry.learned();
    let is_needed = entry.key.part.is_none() && entry.key.replication.is_none();
    if !is_needed || keys.is_none() && looked_up.is_none() || !sent.insert(entry.id) {
        return Ok(());
    }
    let (database, user) = (entry.key.database.clone(), entry.key.user.clone());
    let secrets = PoolSecrets { database, user, keys, looked_up };
    line::send(line, SECRETS, &secrets.encode(), None)
}

/// Clients on their way, by their ids.
#[derive(Debug, Default)]
struct Waiting {
    clients: Mutex<HashMap<u64, OutgoingClient>>,
    is_broken: AtomicBool,
}

impl Waiting {
    fn clients(&self) -> std::sync::MutexGuard<'_, HashMap<u64, OutgoingClient>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
