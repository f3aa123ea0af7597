//! A client's way in: the socket around [`ClientHandshake`].

use std::{io, sync::Arc};

use howdah_net::{Received, Stream};

use super::{Arrival, Progress, READ_BYTES};
use crate::{
    ClientLogin, Permits,
    auth::{Admitted, ClientHandshake, ClientStep, Known, Rejection, Replication, Work},
    config::{CONSOLE_DATABASES, Lookup},
    hba::Origin,
    worker::{desk::Visitor, directory::Key, front::Front},
};

/// A client that logs in.
#[derive(Debug)]
pub(in crate::worker) struct ClientEntrance {
    handshake: Box<ClientHandshake>,
    next: Next,
}

/// What the handshake waits for.
#[derive(Debug)]
enum Next {
    Bytes,
    Tls,
    Keys(Work),
    LookUp(Lookup),
    LookedUp(Option<Known>),
    /// It is over.
    Nothing,
}

impl ClientEntrance {
    pub(super) fn new(front: &Front, from: Origin) -> Self {
        let rules = Arc::clone(&front.rules);
        let handshake = ClientHandshake::new(rules, from, front.entropy());
        Self { handshake: Box::new(handshake), next: Next::Bytes }
    }

    /// Goes on; `drained` tells whether the socket is known to be empty. One who hung up is read to the
    /// end: no readiness will tell of it again.
    pub(super) fn advance(
        &mut self,
        stream: &mut Stream,
        hung_up: bool,
        drained: &mut bool,
        front: &Front,
        heavy: bool,
    ) -> Progress {
        loop {
            *drained &= !hung_up;
            if !heavy && matches!(self.next, Next::Tls | Next::Keys(_)) {
                return Progress::Heavy;
            }
            let step = match std::mem::replace(&mut self.next, Next::Nothing) {
                Next::Bytes => match self.read(stream, drained) {
                    Ok(Some(step)) => step,
                    Ok(None) => {
                        self.next = Next::Bytes;
                        return Progress::Waiting;
                    }
                    Err(_) => return Progress::Close,
                },
                Next::Tls => match stream.open() {
                    Ok(true) => {
                        // What follows the handshake may have come, and been read, with its end.
                        *drained = false;
                        self.handshake.tls_started(front.tls_facts(stream))
                    }
                    Ok(false) => {
                        self.next = Next::Tls;
                        return Progress::Waiting;
                    }
                    Err(error) => {
                        tracing::debug!(%error, "TLS handshake with a client failed");
                        return Progress::Close;
                    }
                },
                Next::Keys(work) => self.handshake.work_done(work.run()),
                Next::LookUp(lookup) => {
                    self.next = Next::LookUp(lookup);
                    return Progress::LookUp;
                }
                Next::LookedUp(known) => self.handshake.looked_up(known),
                Next::Nothing => return Progress::Close,
            };
            // Short answers into the empty buffer of a new socket: a client that makes them not fit
            // has not read for long, and is none.
            let output = self.handshake.take_output();
            if let ClientStep::Admitted(admitted) = step {
                return admit(*admitted, output, stream, front);
            }
            if !output.is_empty() && stream.send(&output).ok() != Some(output.len()) {
                return Progress::Close;
            }
            if let Some(progress) = self.follow(step, stream, front) {
                return progress;
            }
        }
    }

    /// One read; `None` if there is nothing.
    fn read(&mut self, stream: &mut Stream, drained: &mut bool) -> io::Result<Option<ClientStep>> {
        if *drained {
            return Ok(None);
        }
        let mut buffer = [0; READ_BYTES];
        let received = stream.receive(&mut buffer)?;
        *drained = matches!(received, Received::Drained(_));
        match received {
            Received::Closed => Err(io::ErrorKind::UnexpectedEof.into()),
            Received::Drained(0) => Ok(None),
            Received::Bytes(some) | Received::Drained(some) => {
                Ok(Some(self.handshake.receive(&buffer[..some])))
            }
        }
    }

    fn follow(&mut self, step: ClientStep, stream: &mut Stream, front: &Front) -> Option<Progress> {
        match step {
            ClientStep::Read => self.next = Next::Bytes,
            ClientStep::Work(work) => self.next = Next::Keys(work),
            ClientStep::LookUp(lookup) => self.next = Next::LookUp(lookup),
            ClientStep::StartTls { received } => {
                let config = front.tls.as_ref()?;
                if stream.begin_tls(Arc::clone(config), &received).is_err() {
                    return Some(Progress::Close);
                }
                self.next = Next::Tls;
            }
            ClientStep::Cancel(key) => return Some(Progress::CancelRequest(key)),
            ClientStep::Admitted(_) => return None,
            ClientStep::Close(rejection) => {
                tracing::debug!(%rejection, "a client was not let in");
                return Some(Progress::Close);
            }
        }
        None
    }

    /// Has looked up what there is to look up.
    pub(super) fn look_up(&mut self, ask: impl FnOnce(Lookup) -> Option<Known>) {
        match std::mem::replace(&mut self.next, Next::Nothing) {
            Next::LookUp(lookup) => self.next = Next::LookedUp(ask(lookup)),
            next => self.next = next,
        }
    }

    pub(super) fn timed_out(&mut self, stream: &mut Stream) {
        let _ = self.handshake.refuse(Rejection::Timeout);
        let _ = stream.send(&self.handshake.take_output());
    }
}

fn admit(admitted: Admitted, owed: Vec<u8>, stream: &mut Stream, front: &Front) -> Progress {
    let Admitted { user, database, version, replication, settings, received, .. } = admitted;
    let replication = match replication {
        Replication::None => None,
        Replication::Physical => Some(("true", settings.clone())),
        Replication::Logical => Some(("database", settings.clone())),
    };
    let refuse = |stream: &mut Stream, why: Rejection| {
        let mut bytes = Vec::new();
        why.write(&mut bytes);
        let _ = stream.send(&bytes);
        Progress::Close
    };
    if CONSOLE_DATABASES.contains(&database.as_str()) {
        return match visit(&user, admitted.is_owner, owed, received, front) {
            Ok(visitor) => Progress::Visitor(Box::new(visitor)),
            Err(why) => refuse(stream, why),
        };
    }
    let key = Key { database, user, replication };
    let Some(pool) = front.directory.pool(&key) else {
        return refuse(stream, Rejection::UnknownDatabase(key.database));
    };
    if pool.spec.gate.is_disabled() {
        return refuse(stream, Rejection::Disabled(key.database));
    }
    let permits = match pool.clients.try_take() {
        Ok(permits) => permits,
        Err(full) => return refuse(stream, Rejection::TooMany(full)),
    };
    if let Some(keys) = admitted.scram_keys {
        pool.learn(keys);
    }
    if let Some(secret) = admitted.secret {
        pool.learn_secret(secret);
    }
    let Some(secret) = front.cancel_secret() else { return Progress::Close };
    let login = ClientLogin { pool: pool.id, version, secret, settings };
    Progress::Client(Box::new(Arrival { login, permits, owed, received }))
}

/// Lets somebody to the console, who may.
fn visit(
    user: &str,
    is_owner: bool,
    owed: Vec<u8>,
    received: Vec<u8>,
    front: &Front,
) -> Result<Visitor, Rejection> {
    let config = front.directory.config();
    let is_in = |users: &[String]| users.iter().any(|known| known == user);
    let is_admin = is_owner || is_in(&config.admin_users);
    if !is_admin && !is_in(&config.stats_users) {
        return Err(Rejection::NoOperator(user.to_owned()));
    }
    let permits = Permits::try_take(&front.visitors).ok_or(Rejection::TooMany("operators"))?;
    Ok(Visitor { is_admin, owed, received, permits })
}
