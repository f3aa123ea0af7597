//! What clients and servers do of their own accord.

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::{AT_LOGIN, End, Event, MS, World};
use crate::{CancelSecret, ClientLogin, Peer, ServerFailure, ServerLogin, Setting};

impl World {
    pub(super) fn connect(&mut self, client: usize) {
        let worker = self.random.below(self.workers.len() as u64) as usize;
        let zone = self.clients[client].0.zone.clone();
        let settings =
            if zone == "UTC" { Vec::new() } else { vec![Setting::new("timezone", zone)] };
        let mut secret = [0; 32];
        secret.fill_with(|| self.random.below(256) as u8);
        let secret = CancelSecret(secret);
        let pool = self.clients[client].1.pool;
        let role = Some(self.clients[client].0.role);
        let (user, version) = (None, ProtocolVersion::V3_2);
        let login = ClientLogin { pool, user, version, secret, settings, role };
        let id = self.workers[worker].core.add_client(login).expect("the pool is known");
        self.attach(End::Client(client), worker, Peer::Client(id));
        self.call(worker, |core, now, io| core.greet_client(id, b"", now, io));
        self.soon(Event::Step(client));
        if self.faults && self.random.percent(25) {
            let at = self.now + self.random.below(200 * MS);
            self.at(at, Event::Vanish(client));
        }
    }

    pub(super) fn step(&mut self, client: usize) {
        let (speaker, link) = &mut self.clients[client];
        if link.closed || speaker.dismissed {
            return;
        }
        let said = speaker.speak(&mut self.random);
        let sleeps = speaker.sleeps;
        self.trace(&format_args!("c{client} says"), &said);
        if !said.is_empty() {
            self.up(End::Client(client), Some(&said));
        }
        if sleeps && self.random.percent(30) {
            self.soon(Event::Cancel(client));
        }
        let at = self.now + self.random.below(10 * MS);
        self.at(at, Event::Step(client));
    }

    pub(super) fn cancel(&mut self, client: usize) {
        let Some((worker, Peer::Client(id))) = self.clients[client].1.at else { return };
        if !self.clients[client].0.sleeps {
            return;
        }
        let Some(key) = self.workers[worker].core.cancel_key_of(id) else { return };
        self.acting = Some(self.clients[client].0.number);
        self.call(worker, |core, now, io| core.cancel(&key, now, io));
        self.acting = None;
    }

    pub(super) fn backend_says(&mut self, backend: usize) {
        let said = std::mem::take(&mut self.backends[backend].0.output);
        self.trace(&format_args!("s{backend} says"), &said);
        if !said.is_empty() {
            self.up(End::Backend(backend), Some(&said));
        }
        if self.backends[backend].0.sleeping.is_some() {
            let at = self.now + 1 + self.random.below(60 * MS);
            self.at(at, Event::Wake(backend));
        }
        if self.faults && self.random.percent(3) {
            self.soon(Event::Chatter(backend));
        }
    }

    /// Whether a server's host is alive.
    fn is_there(&mut self, backend: usize) -> bool {
        let pool = self.backends[backend].1.pool;
        let host = self.hosts.as_mut().and_then(|hosts| hosts.host(pool));
        host.is_none_or(|host| host.is_alive)
    }

    pub(super) fn logged_in(&mut self, backend: usize, succeeded: bool) {
        let Some((worker, Peer::Server(id))) = self.backends[backend].1.at else { return };
        let succeeded = succeeded && self.is_there(backend);
        if succeeded && !self.backends[backend].1.closed {
            self.backends[backend].1.ready_at = self.now;
            let parameters = AT_LOGIN.map(|(name, value)| Setting::new(name, value)).into();
            let cancel_key = CancelKey::new(i32::try_from(backend).unwrap(), b"four");
            let login = ServerLogin { parameters, cancel_key };
            self.call(worker, |core, now, io| core.server_ready(id, login, now, io));
        } else {
            self.backends[backend].1.closed = true;
            self.backends[backend].1.at = None;
            self.workers[worker].ends.remove(&Peer::Server(id));
            let is_there = self.is_there(backend);
            let starts = is_there && self.random.percent(50);
            let sqlstate = if starts { *b"57P03" } else { *b"08006" };
            let failure = ServerFailure { sqlstate, message: "starting up".to_owned() };
            self.call(worker, |core, now, io| core.server_failed(id, failure, now, io));
        }
    }
}
