//! The operations whose instructions are counted. Each returns a number that depends on all of its
//! work.

use std::{fmt::Write as _, hint::black_box, io::IoSlice, sync::Arc};

use howdah_logs::{ImportOptions, Importer, ServerLogFormat};
use howdah_pool_core::{
    Backlog, CancelSecret, ClientId, ClientLogin, Core, CoreEvent, CoreIo, PeerId, PoolId,
    PoolSpec, ServerId, ServerLogin, SessionParameter, Time, Transfer, WorkerId,
};
use howdah_route::{PinScope, RolePreference, RouteSession, RoutedRequest, Router};
use howdah_statsd::{aggregate::SampleShard, settings::StatsdSettings};
use howdah_wire::{
    Frame, Frontend,
    startup::{CancelKey, ProtocolVersion},
};

/// An operation to measure.
pub(crate) struct BenchCase {
    pub(crate) name: &'static str,
    /// Runs the operation a number of times.
    pub(crate) run: fn(u32) -> u64,
}

pub(crate) const ALL: &[BenchCase] = &[
    BenchCase { name: "wire-frame", run: wire_frame },
    BenchCase { name: "pool-simple", run: pool_simple },
    BenchCase { name: "pool-extended", run: pool_extended },
    BenchCase { name: "pool-prepared", run: pool_prepared },
    BenchCase { name: "route-auto", run: route_auto },
    BenchCase { name: "statsd-packet", run: statsd_packet },
    BenchCase { name: "log-stderr", run: log_stderr },
    BenchCase { name: "log-csv", run: log_csv },
    BenchCase { name: "log-json", run: log_json },
];

const SELECT: &[u8] = b"SELECT abalance FROM pgbench_accounts WHERE aid = 4711;";

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len() + 4).expect("messages here are short");
    [&[tag][..], &length.to_be_bytes(), body].concat()
}

/// Bind, Execute and Sync of a statement.
fn execution(statement: &[u8]) -> Vec<u8> {
    let bind = [b"\0", statement, b"\0\0\0\0\0\0\0"].concat();
    [message(b'B', &bind), message(b'E', b"\0\0\0\0\0"), message(b'S', b"")].concat()
}

fn parse(statement: &[u8]) -> Vec<u8> {
    message(b'P', &[statement, b"\0", SELECT, b"\0\0\0"].concat())
}

/// Splits a batch of four messages into frames, and determines their kinds.
fn wire_frame(rounds: u32) -> u64 {
    let batch = [parse(b"s"), execution(b"s")].concat();
    let mut sum = 0;
    for _ in 0..rounds {
        let mut rest = &black_box(&batch)[..];
        while let Ok(Some((frame, after))) = Frame::split(rest, u32::MAX) {
            sum += frame.body.len() as u64 + u64::from(Frontend::from_tag(frame.tag).is_some());
            rest = after;
        }
    }
    sum
}

/// Counts the bytes that the pooler's core sends.
#[derive(Default)]
struct CountingIo {
    bytes: u64,
    opened: Vec<ServerId>,
}

impl CoreIo for CountingIo {
    fn send(&mut self, _: PeerId, slices: &[IoSlice<'_>]) -> Backlog {
        self.bytes += slices.iter().map(|slice| slice.len() as u64).sum::<u64>();
        Backlog::Empty
    }

    fn pause(&mut self, _: PeerId) {}

    fn resume(&mut self, _: PeerId) {}

    fn close(&mut self, _: PeerId) {}

    fn open_server(&mut self, server: ServerId, _: PoolId) {
        self.opened.push(server);
    }

    fn send_cancel(&mut self, _: ServerId, _: PoolId, _: &CancelKey) {}

    fn request_server(&mut self, _: PoolId) {}

    fn hand_over(&mut self, _: ServerId, _: WorkerId, _: Box<Transfer>) {}
}

/// A pool with one server in transaction mode, and a client.
struct BenchPool {
    core: Core,
    io: CountingIo,
    client: ClientId,
    server: ServerId,
    now: u64,
}

impl BenchPool {
    fn new() -> Self {
        let (mut core, mut io) = (Core::new(WorkerId(0)), CountingIo::default());
        core.set_pool(PoolId(0), Arc::new(PoolSpec::new(1)));
        let login = ClientLogin {
            user: None,
            pool: PoolId(0),
            version: ProtocolVersion::V3_0,
            secret: CancelSecret([0; 32]),
            parameters: Vec::new(),
            role: None,
        };
        let client = core.add_client(login).expect("the pool is known");
        core.finish_client_login(client, b"", Time(0), &mut io);
        let server = io.opened.pop().expect("the client needs a server");
        let parameters = vec![SessionParameter::new("TimeZone", "UTC")];
        core.handle(
            CoreEvent::ServerReady(server, ServerLogin { parameters, cancel_key: None }),
            Time(0),
            &mut io,
        );
        Self { core, io, client, server, now: 0 }
    }

    /// One request of the client and the server's reply.
    fn transaction(&mut self, request: &[u8], answer: &[u8]) {
        self.now += 1000;
        self.core.client_bytes(self.client, black_box(request), Time(self.now), &mut self.io);
        self.core.server_bytes(self.server, black_box(answer), Time(self.now), &mut self.io);
    }
}

/// A server's reply with one row.
fn row(before: &[Vec<u8>]) -> Vec<u8> {
    let row = message(b'D', b"\0\x01\0\0\0\x011");
    let end = [row, message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    [before.concat(), end].concat()
}

fn pool_simple(rounds: u32) -> u64 {
    let description = message(b'T', b"\0\x01a\0\0\0\0\0\0\0\0\0\0\x17\0\x04\xff\xff\xff\xff\0\0");
    let request = message(b'Q', &[SELECT, b"\0"].concat());
    let answer = row(&[description]);
    let mut pool = BenchPool::new();
    (0..rounds).for_each(|_| pool.transaction(&request, &answer));
    pool.io.bytes
}

fn pool_extended(rounds: u32) -> u64 {
    let request = [parse(b""), execution(b"")].concat();
    let answer = row(&[message(b'1', b""), message(b'2', b"")]);
    let mut pool = BenchPool::new();
    (0..rounds).for_each(|_| pool.transaction(&request, &answer));
    pool.io.bytes
}

fn pool_prepared(rounds: u32) -> u64 {
    let mut pool = BenchPool::new();
    let first = [parse(b"s"), execution(b"s")].concat();
    pool.transaction(&first, &row(&[message(b'1', b""), message(b'2', b"")]));
    let (request, answer) = (execution(b"s"), row(&[message(b'2', b"")]));
    (0..rounds).for_each(|_| pool.transaction(&request, &answer));
    pool.io.bytes
}

/// Routes a statement with a known shape by `role = auto`.
fn route_auto(rounds: u32) -> u64 {
    let settings = howdah_route::RouteSettings {
        role: RolePreference::Auto,
        ..howdah_route::RouteSettings::default()
    };
    let mut router = Router::new(Arc::new(settings), 16 << 20);
    let mut session = RouteSession::new(PinScope::Transaction, 1);
    session.parameter_status(b"client_encoding", b"UTF8");
    session.parameter_status(b"server_encoding", b"UTF8");
    let mut sum = 0;
    for _ in 0..rounds {
        if let Ok(RoutedRequest::Route(route)) = session.simple(&mut router, black_box(SELECT)) {
            sum += 1 + route.role as u64;
        }
    }
    sum
}

/// Parses a packet of four samples and aggregates them under existing keys.
fn statsd_packet(rounds: u32) -> u64 {
    let packet = b"shop.orders:1|c\nshop.checkout:12.5|ms|@0.5\nshop.carts:37|g\n\
        shop.logins:1|c|#country:de,kind:web";
    let mut shard = SampleShard::new(&StatsdSettings::default());
    (0..rounds).for_each(|_| shard.apply_packet(black_box(packet)));
    shard.swap(howdah_statsd::aggregate::ShardInterval::default()).samples
}

/// Number of records that are written once and repeated, so that writing them is not counted.
const BLOCK: u32 = 20;

/// A log of `rounds` records.
fn repeated(block: &str, rounds: u32) -> String {
    block.repeat((rounds / BLOCK) as usize)
}

/// Imports the records of one session, and counts their events.
fn import(format: ServerLogFormat, prefix: Option<&str>, log: &str) -> u64 {
    let options = ImportOptions {
        format: Some(format),
        prefix: prefix.map(str::to_owned),
        ..ImportOptions::default()
    };
    let mut importer = Importer::new(options).expect("the options fit together");
    importer.start_file("log");
    let mut events = 0;
    for chunk in log.as_bytes().chunks(64 << 10) {
        let result = importer.feed(chunk);
        assert!(result.is_ok(), "the log is well-formed");
        while importer.poll_event().is_some() {
            events += 1;
        }
    }
    assert!(importer.finish_file().is_ok() && importer.finish().is_ok(), "the log is well-formed");
    while importer.poll_event().is_some() {
        events += 1;
    }
    events
}

fn log_stderr(rounds: u32) -> u64 {
    let mut log = String::new();
    for number in 0..BLOCK {
        let _ = writeln!(
            log,
            "2026-11-20 12:00:00.123 UTC|app|shop|6b004067.8|LOG:  duration: 0.{:03} ms  statement: \
             SELECT abalance FROM pgbench_accounts WHERE aid = {number};",
            100 + number % 900
        );
    }
    import(ServerLogFormat::Stderr, Some("%m|%u|%d|%c|"), &repeated(&log, rounds))
}

fn log_csv(rounds: u32) -> u64 {
    let mut log = String::new();
    for number in 0..BLOCK {
        let _ = writeln!(
            log,
            "2026-11-20 12:00:00.123 UTC,\"app\",\"shop\",8,\"[local]\",6b004067.8,{},\"SELECT\",\
             2026-11-20 11:00:00 UTC,3/{number},0,LOG,00000,\"duration: 0.{:03} ms  statement: SELECT \
             abalance FROM pgbench_accounts WHERE aid = {number};\",,,,,,,,,\"psql\",\"client backend\",,0",
            number + 1,
            100 + number % 900
        );
    }
    import(ServerLogFormat::Csv, None, &repeated(&log, rounds))
}

fn log_json(rounds: u32) -> u64 {
    let mut log = String::new();
    for number in 0..BLOCK {
        let _ = writeln!(
            log,
            "{{\"timestamp\":\"2026-11-20 12:00:00.123 UTC\",\"user\":\"app\",\"dbname\":\"shop\",\"pid\":8,\
             \"session_id\":\"6b004067.8\",\"line_num\":{},\"ps\":\"SELECT\",\"session_start\":\
             \"2026-11-20 11:00:00 UTC\",\"vxid\":\"3/{number}\",\"txid\":0,\"error_severity\":\"LOG\",\
             \"message\":\"duration: 0.{:03} ms  statement: SELECT abalance FROM pgbench_accounts WHERE \
             aid = {number};\",\"application_name\":\"psql\",\"backend_type\":\"client backend\"}}",
            number + 1,
            100 + number % 900
        );
    }
    import(ServerLogFormat::Json, None, &repeated(&log, rounds))
}
