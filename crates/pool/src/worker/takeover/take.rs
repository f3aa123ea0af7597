//! The new process's side.

use std::{
    convert::Infallible,
    io,
    os::unix::net::UnixStream,
    sync::{Arc, PoisonError, atomic::Ordering},
    time::Duration,
};

use howdah_net::{Listener, Stream};

use super::{format::*, is_one_of_us, line, place, unexpected};
use crate::{
    Permits,
    auth::Rejection,
    config::Config,
    worker::{
        StartError,
        control::Control,
        directory::{Key, PoolEntry},
        hub::Request,
        mail::{IncomingClient, WorkerMessage},
    },
};

/// For each step of the old process before this one is ready.
const PATIENCE: Duration = Duration::from_secs(60);

/// A new process that has been given listeners, and is not ready yet.
#[derive(Debug)]
pub(in crate::worker) struct Successor {
    line: UnixStream,
    pub(in crate::worker) listeners: Vec<Listener>,
    /// Whether they are to be used as they are, whatever the settings say.
    pub(in crate::worker) are_given: bool,
    gates: Vec<GateState>,
}

impl Successor {
    /// Knocks at the process that serves now.
    ///
    /// # Errors
    ///
    /// [`StartError::Takeover`]: there is none, or it does not hand over.
    pub(in crate::worker) fn knock(config: &Config) -> Result<Self, StartError> {
        let nowhere = || "listen.takeover does not say where to knock".to_owned();
        let path = place(config).ok_or_else(|| StartError::Takeover { text: nowhere() })?;
        let failed = |error: io::Error| StartError::Takeover {
            text: format!("{}: {error}", path.display()),
        };
        let line = UnixStream::connect(&path).map_err(failed)?;
        Self::ask(line).map_err(failed)
    }

    fn ask(line: UnixStream) -> io::Result<Self> {
        if !is_one_of_us(&line) {
            return Err(io::Error::other("the process there is of another user"));
        }
        line.set_read_timeout(Some(PATIENCE))?;
        let hello = [MAGIC, &VERSION.to_be_bytes()].concat();
        let sent = line::send(&line, HELLO, &hello, None);
        if sent.is_err() {
            // It has hung up, and may have said why: that says more than "broken pipe".
            if let Ok(Some(frame)) = line::receive(&line)
                && frame.kind == REFUSED
            {
                return Err(refused(&frame));
            }
        }
        sent?;
        let (mut listeners, mut are_given) = (Vec::new(), false);
        loop {
            let mut frame = line::receive(&line)?.ok_or_else(unexpected)?;
            match (frame.kind, frame.socket.take()) {
                (LISTENER, Some(socket)) => {
                    are_given |= *frame.body == GIVEN;
                    listeners.push(Listener::inherited(socket)?);
                }
                (LISTENERS_END, _) => {
                    let gates = decode_gates(&frame.body).ok_or_else(unexpected)?;
                    return Ok(Self { line, listeners, are_given, gates });
                }
                (REFUSED, _) => return Err(refused(&frame)),
                _ => return Err(unexpected()),
            }
        }
    }

    /// Says that clients may come.
    ///
    /// # Errors
    ///
    /// The old process is gone, or waits no more.
    pub(in crate::worker) fn ready(self, control: Control) -> io::Result<Taker> {
        for state in &self.gates {
            if let Some(gate) = control.front.directory.gate(&state.database) {
                gate.set_paused(state.is_paused);
                gate.set_disabled(state.is_disabled);
                state.paused_users.iter().for_each(|user| gate.set_paused_for(user, true));
            }
        }
        self.line.set_read_timeout(None)?;
        let cancels = self.line.try_clone()?;
        control.front.has_foreigners.store(true, Ordering::Relaxed);
        *control.front.old.lock().unwrap_or_else(PoisonError::into_inner) = Some(cancels);
        line::send(&self.line, READY, b"", None)?;
        Ok(Taker { line: self.line, control })
    }
}

/// Why the old process does not hand over, in its words.
fn refused(frame: &line::Frame) -> io::Error {
    io::Error::other(String::from_utf8_lossy(&frame.body).into_owned())
}

/// Takes clients in as they come.
#[derive(Debug)]
pub(in crate::worker) struct Taker {
    line: UnixStream,
    control: Control,
}

impl Taker {
    /// Does so until the old process has none left, or is gone.
    pub(in crate::worker) fn run(self) {
        let front = Arc::clone(&self.control.front);
        let mut taken = 0_usize;
        let end = loop {
            match line::receive(&self.line) {
                Ok(Some(line::Frame { kind: CLIENT, body, socket: Some(socket) })) => {
                    let (Some(traveller), Ok(stream)) =
                        (Traveller::decode(&body), Stream::inherited(socket))
                    else {
                        break Err(unexpected());
                    };
                    let id = traveller.id;
                    self.settle(traveller, stream, taken);
                    taken += 1;
                    if let Err(error) = self.tell(TAKEN, &id.to_be_bytes()) {
                        break Err(error);
                    }
                }
                Ok(Some(line::Frame { kind: SECRETS, body, .. })) => {
                    match PoolSecrets::decode(&body) {
                        Some(secrets) => self.inherit(secrets),
                        None => break Err(unexpected()),
                    }
                }
                Ok(Some(line::Frame { kind: CHANNELS, body, .. })) => {
                    match Channels::decode(&body) {
                        Some(channels) => self.listen(channels),
                        None => break Err(unexpected()),
                    }
                }
                Ok(Some(line::Frame { kind: DONE, .. })) => break Ok(()),
                Ok(Some(_)) => break Err(unexpected()),
                Ok(None) => break Err(io::ErrorKind::UnexpectedEof.into()),
                Err(error) => break Err(error),
            }
        };
        *front.old.lock().unwrap_or_else(PoisonError::into_inner) = None;
        front.hubs.release();
        match end {
            Ok(()) => tracing::info!(clients = taken, "taken over"),
            Err(error) => tracing::warn!(%error, clients = taken, "the old process has gone early"),
        }
    }

    /// One line for two threads: whoever writes holds the lock that cancels hold.
    fn tell(&self, kind: u8, body: &[u8]) -> io::Result<()> {
        let _alone = self.control.front.old.lock().unwrap_or_else(PoisonError::into_inner);
        line::send(&self.line, kind, body, None)
    }

    /// Keeps what opens the servers of a pool, so that its clients get some here.
    fn inherit(&self, secrets: PoolSecrets) {
        let PoolSecrets { database, user, keys, looked_up } = secrets;
        let key = Key { database, user, replication: None, part: None };
        let directory = &self.control.front.directory;
        let count = |entry: &PoolEntry, _: &_| Ok::<_, Infallible>(Permits::take(&entry.occupancy));
        // A database that these settings do not have: its clients are told so when they come.
        let Some(Ok((entry, _used))) = directory.enter(&key, count) else { return };
        for part in entry.parts().filter_map(|part| directory.by_id(part)) {
            part.inherit(keys.as_ref(), looked_up.as_ref());
        }
        entry.inherit(keys.as_ref(), looked_up.as_ref());
    }

    /// Listens to what clients that are to come listen to.
    fn listen(&self, channels: Channels) {
        let Channels { database, users, round, marker, channels } = channels;
        let front = &self.control.front;
        let count = |entry: &PoolEntry, _: &_| Ok::<_, Infallible>(Permits::take(&entry.occupancy));
        let pool = |user| {
            let key = Key { database: database.clone(), user, replication: None, part: None };
            let (entry, _used) = front.directory.enter(&key, count)?.ok()?;
            Some(entry.id)
        };
        let homes: Vec<_> = users.into_iter().filter_map(pool).collect();
        if !homes.is_empty() {
            let request = Request::Hold { homes, round, marker, channels };
            front.hubs.ask(&database, request, front, &self.control.mailboxes);
        }
    }

    /// Gives a client to a worker, one after the other.
    fn settle(&self, traveller: Traveller, mut stream: Stream, number: usize) {
        let Traveller { database, user, from, mut migrant, positions, .. } = traveller;
        if let Some(from) = from {
            stream.set_peer_address(from);
        }
        let key = Key { database, user, replication: None, part: None };
        let directory = &self.control.front.directory;
        let Some(Ok((entry, permits))) =
            directory.enter(&key, |_, limits| Ok::<_, Infallible>(limits.take()))
        else {
            let mut farewell = Vec::new();
            Rejection::UnknownDatabase(key.database).write(&mut farewell);
            let _ = stream.send(&farewell);
            return;
        };
        migrant.user = entry.other_user(&key.user);
        let settler = IncomingClient { pool: entry.id, migrant, stream, permits, positions };
        let mailboxes = &self.control.mailboxes;
        mailboxes[number % mailboxes.len()].send(WorkerMessage::Settle(Box::new(settler)));
    }
}

#[test]
fn refusal_of_a_process_that_has_hung_up_already_is_read() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    line::send(&theirs, REFUSED, b"only the same user may take over", None).unwrap();
    // So our hello meets a broken pipe.
    drop(theirs);
    let error = Successor::ask(ours).unwrap_err();
    assert_eq!(error.to_string(), "only the same user may take over");
}
