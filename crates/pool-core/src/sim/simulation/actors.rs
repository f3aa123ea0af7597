//! Actions of clients and servers: connections, logins, input, output and cancel requests.

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::{AT_LOGIN, MS, SimEvent, SimPeer, Simulation};
use crate::{
    CancelSecret, ClientLogin, CoreEvent, PeerId, ServerFailure, ServerLogin, SessionParameter,
    sim::faults,
};

impl Simulation {
    pub(super) fn connect(&mut self, client: usize) {
        let workers = self.workers_of(self.processes.len() - 1);
        let worker = *self.random.pick(&workers);
        let zone = self.clients[client].0.zone.clone();
        let settings =
            if zone == "UTC" { Vec::new() } else { vec![SessionParameter::new("timezone", zone)] };
        let mut secret = [0; 32];
        secret.fill_with(|| self.random.below(256) as u8);
        let secret = CancelSecret(secret);
        let pool = self.clients[client].1.pool;
        let script = &self.clients[client].0;
        let role = (!script.has_auto_role).then_some(script.role);
        let (user, version) = (self.clients[client].0.user.clone(), ProtocolVersion::V3_2);
        let login = ClientLogin { pool, user, version, secret, parameters: settings, role };
        let id = self.workers[worker].core.add_client(login).expect("the pool exists");
        self.attach(SimPeer::Client(client), worker, PeerId::Client(id));
        self.call(worker, |core, now, io| core.finish_client_login(id, b"", now, io));
        self.schedule_soon(SimEvent::Step(client));
        if self.has_faults && self.random.percent(25) {
            let at = self.now + self.random.below(200 * MS);
            self.schedule(at, SimEvent::Vanish(client));
        }
    }

    pub(super) fn client_step(&mut self, client: usize) {
        let (script_client, link) = &mut self.clients[client];
        if link.is_closed || script_client.is_disconnected {
            return;
        }
        let output = script_client.next_input(&mut self.random);
        let (sleeps, repeats) = (script_client.is_sleeping, script_client.is_stalled);
        self.trace(&format_args!("c{client} says"), &output);
        if !output.is_empty() {
            self.send_to_pooler(SimPeer::Client(client), Some(&output));
        }
        if repeats || sleeps && self.random.percent(30) {
            self.schedule_soon(SimEvent::Cancel(client));
        }
        let at = self.now + self.random.below(10 * MS);
        self.schedule(at, SimEvent::Step(client));
    }

    pub(super) fn forward_output(&mut self, backend: usize) {
        let output = std::mem::take(&mut self.backends[backend].0.output);
        self.trace(&format_args!("s{backend} says"), &output);
        if !output.is_empty() {
            self.send_to_pooler(SimPeer::Backend(backend), Some(&output));
        }
        if self.backends[backend].0.sleeping.is_some() && !self.backends[backend].0.is_stalled {
            let at = self.now + 1 + self.random.below(60 * MS);
            self.schedule(at, SimEvent::Wake(backend));
        }
        if self.has_faults && self.random.percent(3) {
            self.schedule_soon(SimEvent::Chatter(backend));
        }
    }

    /// Whether a server's host is up.
    fn is_host_alive(&self, backend: usize) -> bool {
        self.host_of(self.backends[backend].1.pool).is_none_or(|host| host.is_alive)
    }

    pub(super) fn logged_in(&mut self, backend: usize, succeeded: bool) {
        let Some((worker, PeerId::Server(id))) = self.backends[backend].1.worker else { return };
        let succeeded = succeeded && self.is_host_alive(backend);
        if succeeded && !self.backends[backend].1.is_closed {
            self.backends[backend].1.ready_at = self.now;
            let pool = self.backends[backend].1.pool;
            if let Some(query) = self.specs[pool.index()].connect_query.clone() {
                let sql = String::from_utf8_lossy(&query.query).into_owned();
                self.backends[backend].0.run_connect_query(&sql);
            }
            let parameters =
                AT_LOGIN.map(|(name, value)| SessionParameter::new(name, value)).into();
            let cancel_key = CancelKey::new(i32::try_from(backend).unwrap(), b"four");
            let login = ServerLogin { parameters, cancel_key };
            self.call(worker, |core, now, io| {
                core.handle(CoreEvent::ServerReady(id, login), now, io);
            });
        } else {
            self.backends[backend].1.is_closed = true;
            self.backends[backend].1.worker = None;
            self.workers[worker].peers.remove(&PeerId::Server(id));
            let is_there = self.is_host_alive(backend);
            let starts = is_there && self.random.percent(50);
            let sqlstate = if starts { *b"57P03" } else { *b"08006" };
            let failure = ServerFailure { sqlstate, message: "starting up".to_owned() };
            let (fault, pool) = (self.fault, self.backends[backend].1.pool);
            self.call(worker, |core, now, io| {
                core.handle(CoreEvent::ServerFailed(id, failure), now, io);
                faults::after_failed_login(fault, core, pool, io);
            });
        }
    }
}
