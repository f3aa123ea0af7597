//! A client's way in: the socket around [`ClientHandshake`].

use std::{io, sync::Arc};

use howdah_net::{Received, Stream};

use super::{Arrival, Progress, READ_BYTES, origin};
use crate::{
    ClientLogin, Permits, Setting,
    auth::{
        AuthenticatedClient, ClientHandshake, ClientStep, Entropy, Known, Rejection, Replication,
        Work,
    },
    config::{CONSOLE_DATABASES, Lookup},
    proxy,
    worker::{
        desk::Visitor,
        directory::Key,
        front::{AcceptSettings, Front},
        refusals::{self, Refused},
    },
};

/// A client that logs in.
#[derive(Debug)]
pub(in crate::worker) struct ClientEntrance {
    handshake: Box<ClientHandshake>,
    doors: Arc<AcceptSettings>,
    next: Next,
    /// What of a PROXY header has come, if there has to be one.
    header: Option<Vec<u8>>,
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
    pub(super) fn new(front: &Front, stream: &Stream, entropy: Entropy) -> Self {
        let doors = front.doors();
        let rules = Arc::clone(&doors.rules);
        let handshake = ClientHandshake::new(rules, origin(stream), entropy);
        let known = &doors.rules.config().listen.proxy_from;
        // Most have none: then nothing is asked of the kernel.
        let is_proxy = !known.is_empty() && {
            let from = stream.peer_address().map(|address| address.ip());
            (from.is_some() || stream.is_unix()) && known.iter().any(|source| source.is(from))
        };
        let header = is_proxy.then(Vec::new);
        Self { handshake: Box::new(handshake), doors, next: Next::Bytes, header }
    }

    /// Whether its startup packet has come.
    pub(super) fn has_started(&self) -> bool {
        self.handshake.names().is_some()
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
                        self.handshake.tls_started(self.doors.tls_facts(stream))
                    }
                    Ok(false) => {
                        self.next = Next::Tls;
                        return Progress::Waiting;
                    }
                    Err(error) => {
                        front.refusals.handshake(&refusals::from(stream), &error);
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
                Ok(Some(self.receive(&buffer[..some], stream)))
            }
        }
    }

    /// Takes bytes, behind the PROXY header if there has to be one.
    fn receive(&mut self, bytes: &[u8], stream: &mut Stream) -> ClientStep {
        let Some(header) = &mut self.header else { return self.handshake.receive(bytes) };
        header.extend_from_slice(bytes);
        match proxy::parse(header) {
            Ok(None) => ClientStep::Read,
            Ok(Some(found)) => {
                let behind = header.split_off(found.bytes);
                self.header = None;
                if let Some(source) = found.source {
                    stream.set_peer_address(source);
                    self.handshake.set_origin(origin(stream));
                }
                self.handshake.receive(&behind)
            }
            Err(error) => self.handshake.refuse(error.into()),
        }
    }

    fn follow(&mut self, step: ClientStep, stream: &mut Stream, front: &Front) -> Option<Progress> {
        match step {
            ClientStep::Read => self.next = Next::Bytes,
            ClientStep::Work(work) => self.next = Next::Keys(work),
            ClientStep::LookUp(lookup) => self.next = Next::LookUp(lookup),
            ClientStep::StartTls { received } => {
                let config = &self.doors.tls.as_ref()?.config;
                if stream.begin_tls(Arc::clone(config), &received).is_err() {
                    return Some(Progress::Close);
                }
                self.next = Next::Tls;
            }
            ClientStep::Cancel(key) => return Some(Progress::CancelRequest(key)),
            ClientStep::Admitted(_) => return None,
            ClientStep::Close(rejection) => {
                refused(self.handshake.names(), &rejection, stream, front);
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

    /// Ends it for a reason of the worker's, of which the client is told.
    pub(super) fn refuse(&mut self, why: Rejection, stream: &mut Stream, front: &Front) {
        refused(self.handshake.names(), &why, stream, front);
        let _ = self.handshake.refuse(why);
        let _ = stream.send(&self.handshake.take_output());
    }
}

fn admit(
    admitted: AuthenticatedClient,
    owed: Vec<u8>,
    stream: &mut Stream,
    front: &Front,
) -> Progress {
    let AuthenticatedClient {
        user, database, version, replication, mut settings, received, ..
    } = admitted;
    if let Some(template) = &front.directory.config().application_name {
        let is_name = |it: &Setting| it.name.eq_ignore_ascii_case(b"application_name");
        let own = settings.iter().rfind(|it| is_name(it));
        let own = own.map(|it| String::from_utf8_lossy(&it.value).into_owned());
        let name = template.of(own.as_deref(), stream.peer_address(), &user, &database);
        settings.retain(|it| !is_name(it));
        settings.push(Setting::new(b"application_name", name.as_bytes()));
    }
    let replication = match replication {
        Replication::None => None,
        Replication::Physical => Some(("true", settings.clone())),
        Replication::Logical => Some(("database", settings.clone())),
    };
    let refuse = |stream: &mut Stream, why: Rejection| {
        refused(Some((&user, &database)), &why, stream, front);
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
    if front.is_shutting_down() {
        return refuse(stream, Rejection::ShuttingDown);
    }
    let Some(secret) = front.cancel_secret() else {
        return refuse(stream, Rejection::NoRandomness);
    };
    let key = Key { database: database.clone(), user: user.clone(), replication, part: None };
    let entered = front.directory.enter(&key, |pool, limits| match pool.spec.gate.is_disabled() {
        true => Err(Rejection::Disabled(key.database.clone())),
        false => limits.try_take().map_err(Rejection::TooMany),
    });
    let (pool, permits) = match entered {
        Some(Ok(entered)) => entered,
        Some(Err(why)) => return refuse(stream, why),
        None => return refuse(stream, Rejection::UnknownDatabase(key.database)),
    };
    // What a client has shown opens servers to its own user only.
    let is_login = pool.settings.login.user == key.user;
    if let Some(keys) = admitted.scram_keys.filter(|_| is_login) {
        // Who keeps the same secret takes the same keys.
        for part in pool.parts().filter_map(|part| front.directory.by_id(part)) {
            part.learn(keys.clone());
        }
        pool.learn(keys);
    }
    if let Some(secret) = admitted.secret.filter(|_| is_login) {
        for part in pool.parts().filter_map(|part| front.directory.by_id(part)) {
            part.learn_secret(secret.clone());
        }
        pool.learn_secret(secret);
    }
    let login = ClientLogin {
        pool: pool.id,
        user: pool.other_user(&key.user),
        version,
        secret,
        settings,
        role: admitted.role,
    };
    Progress::Client(Box::new(Arrival { login, permits, owed, received, is_told: true }))
}

/// Counts a login that was refused, and logs it.
pub(super) fn refused(
    names: Option<(&str, &str)>,
    why: &Rejection,
    stream: &Stream,
    front: &Front,
) {
    let is_told = front.directory.config().log.pooler_errors;
    let named = |name: &'_ str| !name.is_empty();
    let (user, database) = names.unzip();
    let (user, database) = (user.filter(|it| named(it)), database.filter(|it| named(it)));
    let from = refusals::from(stream);
    front.refusals.login(Refused { user, database, from: &from }, why, is_told);
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
