//! The pooler's data path, fed by a hostile client or a broken server after its login.

use std::{collections::HashMap, io::IoSlice, sync::Arc};

use howdah_pool_core::{
    Backlog, CancelSecret, ClientId, ClientLogin, Core, CoreEvent, CoreIo, PeerId, PoolId,
    PoolSpec, PoolingMode, ServerId, ServerLogin, SessionParameter, Time, Transfer, WorkerId,
};
use howdah_wire::{
    Header,
    startup::{CancelKey, ProtocolVersion},
};

use super::Shape;

/// Messages, complete and truncated.
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
    b"E\0\0\0\x13SERROR\0C0A000\0\0",
    b"E\0\0\0\x13SERROR\0C26000\0\0",
    b"C\0\0\0\x0aRESET\0",
    b"Q\0\0\0\x0ereset all\0",
    b"Q\0\0\0\x13deallocate all\0",
    b"F\0\0\0\x0e\0\0\0\x01\0\0\0\0\0\0",
    b"X\0\0\0\x04",
    b"\x7f\xff\xff\xff",
];

/// Requests of drivers.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![WORDS[..12].concat(), WORDS[12..22].concat(), WORDS[2..10].concat()]
}

/// Exchanges of both sides, encoded for [`dialogue`].
pub fn dialogues() -> Vec<Vec<u8>> {
    let turn = |side: u8, words: &[&[u8]]| {
        let said = words.concat();
        let bytes = u8::try_from(said.len()).expect("turns are short");
        [&[bytes << 1 | side][..], &said].concat()
    };
    let simple = [turn(0, &[WORDS[0]]), turn(1, &[WORDS[12]])].concat();
    let prepared = [
        turn(0, &[WORDS[2], WORDS[4], WORDS[8]]),
        turn(1, &[WORDS[14], WORDS[15], WORDS[12]]),
        turn(0, &[WORDS[4], WORDS[5], WORDS[8]]),
        turn(1, &[WORDS[23], WORDS[12]]),
        turn(1, &[WORDS[16], WORDS[14], WORDS[15]]),
    ];
    let reset = [turn(0, &[WORDS[26], WORDS[0]]), turn(1, &[WORDS[25], WORDS[21], WORDS[12]])];
    let with = |mode: u8, turns: &[u8]| [&[mode][..], turns].concat();
    vec![with(0x10, &simple), with(0x20, &prepared.concat()), with(0x15, &reset.concat())]
}

/// Records the bytes sent to each peer. Nothing may be sent to a closed peer.
#[derive(Default)]
struct Sent {
    bytes: HashMap<PeerId, Vec<u8>>,
    closed: Vec<PeerId>,
    opened: Vec<ServerId>,
}

impl CoreIo for Sent {
    fn send(&mut self, to: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        assert!(!self.closed.contains(&to), "{to:?} is closed");
        assert!(slices.iter().all(|slice| !slice.is_empty()));
        let sent = self.bytes.entry(to).or_default();
        slices.iter().for_each(|slice| sent.extend_from_slice(slice));
        Backlog::Empty
    }

    fn pause(&mut self, _: PeerId) {}

    fn resume(&mut self, _: PeerId) {}

    fn close(&mut self, peer: PeerId) {
        assert!(!self.closed.contains(&peer), "{peer:?} is closed twice");
        self.closed.push(peer);
    }

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, _: ServerId, _: PoolId, _: &CancelKey) {}

    fn request_server(&mut self, _: PoolId) {}

    fn hand_over(&mut self, _: ServerId, _: WorkerId, _: Box<Transfer>) {}
}

/// A core with one client and one server, both logged in.
fn stage() -> (Core, Sent, ClientId, ServerId) {
    stage_with(PoolSpec::new(1), Vec::new())
}

fn stage_with(spec: PoolSpec, settings: Vec<SessionParameter>) -> (Core, Sent, ClientId, ServerId) {
    let mut core = Core::new(WorkerId(0));
    let mut sent = Sent::default();
    core.set_pool(PoolId(0), Arc::new(spec));
    let login = ClientLogin {
        user: None,
        pool: PoolId(0),
        version: ProtocolVersion::V3_0,
        secret: CancelSecret([0; 32]),
        parameters: settings,
        role: None,
    };
    let client = core.add_client(login).expect("the pool is known");
    core.finish_client_login(client, b"", Time(0), &mut sent);
    let server = sent.opened.pop().expect("the client needs one");
    let parameters = vec![SessionParameter::new("TimeZone", "UTC")];
    let login = ServerLogin { parameters, cancel_key: None };
    core.handle(CoreEvent::ServerReady(server, login), Time(0), &mut sent);
    sent.bytes.clear();
    (core, sent, client, server)
}

/// Checks that a client's bytes have the same effect however they are split.
pub fn client(input: &[u8]) -> Shape {
    let feed = |step: usize| {
        let (mut core, mut sent, client, server) = stage();
        for piece in input.chunks(step) {
            core.client_bytes(client, piece, Time(0), &mut sent);
        }
        let of = |peer: PeerId| sent.bytes.get(&peer).cloned().unwrap_or_default();
        let gone = sent.closed.contains(&PeerId::Client(client));
        (of(PeerId::Client(client)), of(PeerId::Server(server)), gone)
    };
    let whole = feed(input.len().max(1));
    for step in [1, 3, 64] {
        assert!(whole == feed(step), "in pieces of {step} it is something else");
    }
    let tags: Vec<u8> = whole.1.iter().copied().filter(u8::is_ascii_uppercase).take(8).collect();
    Shape::of((tags, whole.2, whole.0.first().copied()))
}

/// Feeds arbitrary server bytes: the client receives at most those and a few replies of the
/// pooler's own, and the limit on servers holds.
pub fn server(input: &[u8]) -> Shape {
    let (mut core, mut sent, client, server) = stage();
    core.client_bytes(client, &WORDS[2..9].concat(), Time(0), &mut sent);
    core.client_bytes(client, WORDS[0], Time(0), &mut sent);
    for piece in input.chunks(7) {
        core.server_bytes(server, piece, Time(0), &mut sent);
    }
    let told = sent.bytes.get(&PeerId::Client(client)).map_or(0, Vec::len);
    assert!(told <= input.len() + 4096, "{told} bytes of {}", input.len());
    assert!(core.servers() <= 2, "the limit is one, and one may be on its way out");
    let closed = sent.closed.len();
    let first = sent.bytes.get(&PeerId::Client(client)).and_then(|told| told.first().copied());
    Shape::of((closed, first, told.min(64) / 8))
}

/// Feeds arbitrary bytes from client and server in turns: the client receives at most one
/// ReadyForQuery per request, closed peers receive nothing, and the limit on servers holds.
///
/// The first byte selects the pooling mode. Each turn is a byte for the sender and the length, then
/// the bytes to send.
pub fn dialogue(input: &[u8]) -> Shape {
    let Some((&mode, mut rest)) = input.split_first() else { return Shape::of(()) };
    let mut spec = PoolSpec::new(1);
    spec.mode = [PoolingMode::Transaction, PoolingMode::Session, PoolingMode::Statement]
        [usize::from(mode) % 3];
    spec.statements_per_server = u32::from(mode >> 4);
    let settings =
        if mode & 4 == 0 { Vec::new() } else { vec![SessionParameter::new("TimeZone", "CET")] };
    let (mut core, mut sent, client, mut server) = stage_with(spec, settings);
    let (mut said, mut turns) = (Vec::new(), 0);
    while let Some((&turn, more)) = rest.split_first() {
        let (now, later) = more.split_at(usize::from(turn >> 1).min(more.len()));
        rest = later;
        turns += 1;
        if turn & 1 == 0 {
            said.extend_from_slice(now);
            core.client_bytes(client, now, Time(turns), &mut sent);
        } else {
            core.server_bytes(server, now, Time(turns), &mut sent);
        }
        if let Some(opened) = sent.opened.pop() {
            server = opened;
            let parameters = vec![SessionParameter::new("TimeZone", "UTC")];
            let login = ServerLogin { parameters, cancel_key: None };
            core.handle(CoreEvent::ServerReady(server, login), Time(turns), &mut sent);
        }
        assert!(core.servers() <= 1, "the limit is one");
    }
    let told = sent.bytes.get(&PeerId::Client(client)).map_or(&[][..], Vec::as_slice);
    let asked = count(&said, b"QSF");
    let answered = count(told, b"Z");
    assert!(answered <= asked, "{answered} answers to {asked} requests");
    Shape::of((mode % 3, asked.min(4), answered.min(4), sent.closed.len(), told.first().copied()))
}

/// Counts messages with one of these tags. An incomplete one counts too: the core may have acted on
/// its header.
fn count(bytes: &[u8], tags: &[u8]) -> usize {
    let (mut found, mut at) = (0, 0);
    while let Some(Ok(Some(header))) = bytes.get(at..).map(Header::parse) {
        found += usize::from(tags.contains(&header.tag.0));
        at += Header::BYTES + header.body_bytes as usize;
    }
    found
}
