//! Tests of the core as dialogues, message by message. [`IoRecorder`] takes the place of the
//! worker.

mod cancel;
mod cluster;
mod listen;
mod mirror;
mod outdated_statements;
mod parse_settings;
mod pipelining;
mod read_your_writes;
mod release;
mod routing;
mod server_transfer;
mod settings;
mod shortage;
mod statements;
mod suspension;
mod transaction_mode;
mod workers;

use std::{collections::HashMap, io::IoSlice, sync::Arc, time::Duration};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    Backlog, CancelSecret, Channel, ClientId, ClientLogin, ClientRefusal, Core, CoreEvent, CoreIo,
    PeerId, PoolId, PoolSpec, ServerId, ServerLogin, SessionParameter, Time, Transfer, WorkerId,
};

/// Records the commands that the core has issued.
#[derive(Default)]
struct IoRecorder {
    sent: HashMap<PeerId, Vec<u8>>,
    sends: usize,
    opened: Vec<ServerId>,
    closed: Vec<PeerId>,
    paused: Vec<PeerId>,
    cancels: Vec<(ServerId, CancelKey)>,
    /// Peers whose sockets accept no bytes.
    stuck: Vec<PeerId>,
    /// The numbers of idle servers requested from each of the other workers.
    idle_requests: Vec<u32>,
    /// The workers that were told that they have all spare servers.
    idle_confirmations: Vec<WorkerId>,
    /// Number of requests to other workers for a server.
    server_requests: usize,
    handed_over: Vec<(WorkerId, Box<Transfer>)>,
    /// Channels that clients have started or stopped listening to.
    listens: Vec<(ClientId, Vec<Channel>)>,
    unlistens: Vec<(ClientId, Option<Vec<Channel>>)>,
    /// Errors reported for the log, and whether the client stays connected.
    errors_sent: Vec<(ClientId, String, bool)>,
    /// Pools for which a check of the primary was requested after a write.
    primary_checks: Vec<PoolId>,
}

impl CoreIo for IoRecorder {
    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        assert!(!self.closed.contains(&to), "{to:?} is closed");
        assert!(slices.len() <= 64 && slices.iter().all(|slice| !slice.is_empty()));
        self.sends += 1;
        let sent = self.sent.entry(to).or_default();
        slices.iter().for_each(|slice| sent.extend_from_slice(slice));
        if self.stuck.contains(&to) { Backlog::Waiting } else { Backlog::Empty }
    }

    fn pause(&mut self, peer: PeerId) {
        assert!(!self.paused.contains(&peer));
        self.paused.push(peer);
    }

    fn resume(&mut self, peer: PeerId) {
        let at = self.paused.iter().position(|paused| *paused == peer).unwrap();
        self.paused.remove(at);
    }

    fn close(&mut self, peer: PeerId) {
        self.closed.push(peer);
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, server: ServerId, _: PoolId, key: &CancelKey) {
        self.cancels.push((server, key.clone()));
    }

    fn listen(&mut self, client: ClientId, _: PoolId, channels: Vec<Channel>, _: bool) {
        self.listens.push((client, channels));
    }

    fn unlisten(&mut self, client: ClientId, _: PoolId, channels: Option<Vec<Channel>>) {
        self.unlistens.push((client, channels));
    }

    fn client_refused(&mut self, client: ClientId, refusal: &ClientRefusal) {
        self.errors_sent.push((client, refusal.to_string(), false));
    }

    fn request_failed(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        self.errors_sent.push((client, error.to_string(), true));
    }

    fn check_primary(&mut self, pool: PoolId) {
        self.primary_checks.push(pool);
    }

    fn request_server(&mut self, _: PoolId) {
        self.server_requests += 1;
    }

    fn request_idle_servers(&mut self, _: PoolId, servers_max: u32) {
        self.idle_requests.push(servers_max);
    }

    fn confirm_idle_servers(&mut self, _: PoolId, to: WorkerId) {
        self.idle_confirmations.push(to);
    }

    fn hand_over(&mut self, _: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        self.handed_over.push((to, transfer));
    }
}

/// A core with one pool, and the record of its commands.
struct CoreHarness {
    core: Core,
    io: IoRecorder,
    now: Time,
}

const POOL: PoolId = PoolId(0);

impl CoreHarness {
    fn new(spec: PoolSpec) -> Self {
        Self::for_worker(0, &Arc::new(spec))
    }

    fn for_worker(number: u8, spec: &Arc<PoolSpec>) -> Self {
        let mut core = Core::new(WorkerId(number));
        core.set_pool(POOL, Arc::clone(spec));
        Self { core, io: IoRecorder::default(), now: Time::default() }
    }

    fn client(&mut self) -> ClientId {
        self.client_with(Vec::new())
    }

    fn client_with(&mut self, settings: Vec<SessionParameter>) -> ClientId {
        self.client_in(POOL, settings)
    }

    fn client_in(&mut self, pool: PoolId, settings: Vec<SessionParameter>) -> ClientId {
        let secret = CancelSecret([7; 32]);
        let (user, version) = (None, ProtocolVersion::V3_0);
        let login = ClientLogin { pool, user, version, secret, parameters: settings, role: None };
        let id = self.core.add_client(login).unwrap();
        self.core.finish_client_login(id, b"", self.now, &mut self.io);
        id
    }

    /// Completes the server login that the core requested last.
    fn log_in_server(&mut self) -> ServerId {
        let id = self.io.opened.pop().expect("a server was ordered");
        let login = ServerLogin {
            parameters: vec![
                SessionParameter::new("server_version", "15.0"),
                SessionParameter::new("TimeZone", "UTC"),
            ],
            cancel_key: CancelKey::new(4711, b"four"),
        };
        self.core.handle(CoreEvent::ServerReady(id, login), self.now, &mut self.io);
        id
    }

    fn send_from_client(&mut self, id: ClientId, bytes: &[u8]) {
        self.core.client_bytes(id, bytes, self.now, &mut self.io);
    }

    fn send_from_server(&mut self, id: ServerId, bytes: &[u8]) {
        self.core.server_bytes(id, bytes, self.now, &mut self.io);
    }

    /// Advances the clock and runs timers.
    fn advance(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.core.tick(self.now, &mut self.io);
    }

    /// Returns the bytes sent to a client since the last call.
    fn sent_to_client(&mut self, id: ClientId) -> Vec<u8> {
        self.io.sent.remove(&PeerId::Client(id)).unwrap_or_default()
    }

    /// Returns the bytes sent to a server since the last call.
    fn sent_to_server(&mut self, id: ServerId) -> Vec<u8> {
        self.io.sent.remove(&PeerId::Server(id)).unwrap_or_default()
    }
}

/// Encodes a message with this tag and body.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}
