//! Dialogues: a recording [`Io`] in the place of a worker.

mod cancel;
mod cluster;
mod doubts;
mod hand_over;
mod listen;
mod mirror;
mod outdated;
mod own_writes;
mod release;
mod routing;
mod settings;
mod shortage;
mod statements;
mod suspend;
mod transaction_mode;
mod workers;

use std::{collections::HashMap, io::IoSlice, sync::Arc, time::Duration};

use howdah_wire::startup::{CancelKey, ProtocolVersion};

use crate::{
    Backlog, CancelSecret, Channel, ClientId, ClientLogin, Core, Io, Peer, PoolId, PoolSpec,
    Refusal, ServerId, ServerLogin, Setting, Time, Transfer, WorkerId,
};

/// What the core ordered.
#[derive(Default)]
struct Recorder {
    sent: HashMap<Peer, Vec<u8>>,
    sends: usize,
    opened: Vec<ServerId>,
    closed: Vec<Peer>,
    paused: Vec<Peer>,
    cancels: Vec<(ServerId, CancelKey)>,
    /// Peers that take nothing.
    stuck: Vec<Peer>,
    /// How often other workers were asked for a server.
    wants: usize,
    handed_over: Vec<(WorkerId, Box<Transfer>)>,
    /// Channels that clients want to hear of, and do not any more.
    listens: Vec<(ClientId, Vec<Channel>)>,
    unlistens: Vec<(ClientId, Option<Vec<Channel>>)>,
    /// What clients were told that is for the log, and whether they go on.
    told: Vec<(ClientId, String, bool)>,
    /// Where somebody wrote, each time that the primary has to be asked for it.
    wrote: Vec<PoolId>,
}

impl Io for Recorder {
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        assert!(!self.closed.contains(&to), "{to:?} is closed");
        assert!(slices.len() <= 64 && slices.iter().all(|slice| !slice.is_empty()));
        self.sends += 1;
        let sent = self.sent.entry(to).or_default();
        slices.iter().for_each(|slice| sent.extend_from_slice(slice));
        if self.stuck.contains(&to) { Backlog::Waiting } else { Backlog::Empty }
    }

    fn pause(&mut self, peer: Peer) {
        assert!(!self.paused.contains(&peer));
        self.paused.push(peer);
    }

    fn resume(&mut self, peer: Peer) {
        let at = self.paused.iter().position(|paused| *paused == peer).unwrap();
        self.paused.remove(at);
    }

    fn close(&mut self, peer: Peer) {
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

    fn refused(&mut self, client: ClientId, refusal: &Refusal) {
        self.told.push((client, refusal.to_string(), false));
    }

    fn told(&mut self, client: ClientId, error: &dyn std::fmt::Display) {
        self.told.push((client, error.to_string(), true));
    }

    fn wrote(&mut self, pool: PoolId) {
        self.wrote.push(pool);
    }

    fn want_server(&mut self, _: PoolId) {
        self.wants += 1;
    }

    fn hand_over(&mut self, _: ServerId, to: WorkerId, transfer: Box<Transfer>) {
        self.handed_over.push((to, transfer));
    }
}

/// A core with one pool, and what it ordered.
struct Stage {
    core: Core,
    io: Recorder,
    now: Time,
}

const POOL: PoolId = PoolId(0);

impl Stage {
    fn new(spec: PoolSpec) -> Self {
        Self::of_worker(0, &Arc::new(spec))
    }

    fn of_worker(number: u8, spec: &Arc<PoolSpec>) -> Self {
        let mut core = Core::new(WorkerId(number));
        core.set_pool(POOL, Arc::clone(spec));
        Self { core, io: Recorder::default(), now: Time::default() }
    }

    fn client(&mut self) -> ClientId {
        self.client_with(Vec::new())
    }

    fn client_with(&mut self, settings: Vec<Setting>) -> ClientId {
        self.client_in(POOL, settings)
    }

    fn client_in(&mut self, pool: PoolId, settings: Vec<Setting>) -> ClientId {
        let secret = CancelSecret([7; 32]);
        let (user, version) = (None, ProtocolVersion::V3_0);
        let login = ClientLogin { pool, user, version, secret, settings, role: None };
        let id = self.core.add_client(login).unwrap();
        self.core.greet_client(id, b"", self.now, &mut self.io);
        id
    }

    /// Lets the login that was ordered last succeed.
    fn server(&mut self) -> ServerId {
        let id = self.io.opened.pop().expect("a server was ordered");
        let login = ServerLogin {
            parameters: vec![
                Setting::new("server_version", "15.0"),
                Setting::new("TimeZone", "UTC"),
            ],
            cancel_key: CancelKey::new(4711, b"four"),
        };
        self.core.server_ready(id, login, self.now, &mut self.io);
        id
    }

    fn client_says(&mut self, id: ClientId, bytes: &[u8]) {
        self.core.client_bytes(id, bytes, self.now, &mut self.io);
    }

    fn server_says(&mut self, id: ServerId, bytes: &[u8]) {
        self.core.server_bytes(id, bytes, self.now, &mut self.io);
    }

    /// Lets time pass.
    fn wait(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.core.tick(self.now, &mut self.io);
    }

    /// What was sent to a client since last asked.
    fn client_gets(&mut self, id: ClientId) -> Vec<u8> {
        self.io.sent.remove(&Peer::Client(id)).unwrap_or_default()
    }

    /// What was sent to a server since last asked.
    fn server_gets(&mut self, id: ServerId) -> Vec<u8> {
        self.io.sent.remove(&Peer::Server(id)).unwrap_or_default()
    }
}

/// A message with a body.
fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).unwrap();
    [&[tag][..], &length.to_be_bytes(), body].concat()
}
