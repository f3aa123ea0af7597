//! The pooler's data path, fed with what a hostile client, or a broken server, may send after its login.

use std::{collections::HashMap, io::IoSlice, sync::Arc};

use howdah_pool::{
    Backlog, CancelSecret, ClientId, ClientLogin, Core, Io, Peer, PoolId, PoolSpec, ServerId,
    ServerLogin, Setting, Time, Transfer, WorkerId,
};
use howdah_wire::startup::{CancelKey, ProtocolVersion};

use super::Shape;

/// Messages, whole and cut.
pub const WORDS: &[&[u8]] = &[
    b"Q\0\0\0\x0dselect 1\0",
    b"Q\0\0\0\x11DEALLOCATE s\0",
    b"P\0\0\0\x11s\0select $1\0\0\0",
    b"P\0\0\0\x10\0select $1\0\0\0",
    b"B\0\0\0\x0c\0s\0\0\0\0\0\0\0",
    b"D\0\0\0\x07Ss\0",
    b"C\0\0\0\x07Ss\0",
    b"E\0\0\0\x09\0\0\0\0\0",
    b"S\0\0\0\x04",
    b"H\0\0\0\x04",
    b"d\0\0\0\x05x",
    b"c\0\0\0\x04",
    b"Z\0\0\0\x05I",
    b"Z\0\0\0\x05T",
    b"1\0\0\0\x04",
    b"2\0\0\0\x04",
    b"3\0\0\0\x04",
    b"n\0\0\0\x04",
    b"G\0\0\0\x07\0\0\0",
    b"C\0\0\0\x08SET\0",
    b"C\0\0\0\x10DISCARD ALL\0",
    b"S\0\0\0\x11TimeZone\0CET\0",
    b"E\0\0\0\x0dC42P05\0\0",
    b"\x7f\xff\xff\xff",
];

/// Dialogues to begin with.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![WORDS[..12].concat(), WORDS[12..22].concat(), WORDS[2..10].concat()]
}

/// What was sent to whom. A peer that was closed must not be sent anything.
#[derive(Default)]
struct Sent {
    bytes: HashMap<Peer, Vec<u8>>,
    closed: Vec<Peer>,
    opened: Vec<ServerId>,
}

impl Io for Sent {
    fn send(&mut self, to: Peer, slices: &[IoSlice<'_>]) -> Backlog {
        assert!(!self.closed.contains(&to), "{to:?} is closed");
        assert!(slices.iter().all(|slice| !slice.is_empty()));
        let sent = self.bytes.entry(to).or_default();
        slices.iter().for_each(|slice| sent.extend_from_slice(slice));
        Backlog::Empty
    }

    fn pause(&mut self, _: Peer) {}

    fn resume(&mut self, _: Peer) {}

    fn close(&mut self, peer: Peer) {
        assert!(!self.closed.contains(&peer), "{peer:?} is closed twice");
        self.closed.push(peer);
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, _: ServerId, _: PoolId, _: &CancelKey) {}

    fn want_server(&mut self, _: PoolId) {}

    fn hand_over(&mut self, _: ServerId, _: WorkerId, _: Box<Transfer>) {}
}

/// One client and one server, greeted.
fn stage() -> (Core, Sent, ClientId, ServerId) {
    let mut core = Core::new(WorkerId(0));
    let mut sent = Sent::default();
    core.set_pool(PoolId(0), Arc::new(PoolSpec::new(1)));
    let login = ClientLogin {
        pool: PoolId(0),
        version: ProtocolVersion::V3_0,
        secret: CancelSecret([0; 32]),
        settings: Vec::new(),
    };
    let client = core.add_client(login).expect("the pool is known");
    core.greet_client(client, Time(0), &mut sent);
    let server = sent.opened.pop().expect("the client needs one");
    let parameters = vec![Setting::new("TimeZone", "UTC")];
    let login = ServerLogin { parameters, cancel_key: None };
    core.server_ready(server, login, Time(0), &mut sent);
    sent.bytes.clear();
    (core, sent, client, server)
}

/// What a client says is understood the same however it is cut.
pub fn client(input: &[u8]) -> Shape {
    let feed = |step: usize| {
        let (mut core, mut sent, client, server) = stage();
        for piece in input.chunks(step) {
            core.client_bytes(client, piece, Time(0), &mut sent);
        }
        let of = |peer: Peer| sent.bytes.get(&peer).cloned().unwrap_or_default();
        let gone = sent.closed.contains(&Peer::Client(client));
        (of(Peer::Client(client)), of(Peer::Server(server)), gone)
    };
    let whole = feed(input.len().max(1));
    for step in [1, 3, 64] {
        assert!(whole == feed(step), "in pieces of {step} it is something else");
    }
    let tags: Vec<u8> = whole.1.iter().copied().filter(u8::is_ascii_uppercase).take(8).collect();
    Shape::of((tags, whole.2, whole.0.first().copied()))
}

/// A server may say anything: nobody is sent more than it said and a few replies of the pooler's own,
/// and a server that cannot be followed is closed.
pub fn server(input: &[u8]) -> Shape {
    let (mut core, mut sent, client, server) = stage();
    core.client_bytes(client, &WORDS[2..9].concat(), Time(0), &mut sent);
    core.client_bytes(client, WORDS[0], Time(0), &mut sent);
    for piece in input.chunks(7) {
        core.server_bytes(server, piece, Time(0), &mut sent);
    }
    let told = sent.bytes.get(&Peer::Client(client)).map_or(0, Vec::len);
    assert!(told <= input.len() + 4096, "{told} bytes of {}", input.len());
    assert!(core.servers() <= 2, "the limit is one, and one may be on its way out");
    let closed = sent.closed.len();
    let first = sent.bytes.get(&Peer::Client(client)).and_then(|told| told.first().copied());
    Shape::of((closed, first, told.min(64) / 8))
}
