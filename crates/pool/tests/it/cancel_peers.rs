//! Cancel requests between poolers that share an address.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::unix::net::UnixStream,
    path::Path,
    sync::Arc,
};

use howdah_lab::{Cluster, skip_without_postgres, wait_until};
use howdah_pool::{CancelPeersReport, HostResolver, Pooler};
use howdah_pool_config::Config;
use parking_lot::Mutex;
use rustix::net::{AddressFamily, SocketType, bind, socket};

use crate::support::{RawClient, WAIT_TIMEOUT, connect};

/// The bytes before the key in a forwarded request. All versions must have the same.
const PREFIX: [u8; 16] = [
    0x84, 0xbc, 0x63, 0xc4, 0x13, 0xf1, 0xa1, 0x52, 0x4e, 0x34, 0x79, 0x0f, 0x0b, 0x95, 0xa4, 0xa6,
];

/// A key that a pooler could have issued, but has not.
const UNKNOWN_KEY: [u8; 8] = [0, 0x80, 0, 7, 1, 2, 3, 4];

/// A PostgreSQL server and poolers in front of it.
struct PeersFixture {
    server: Cluster,
    poolers: Vec<Pooler>,
}

impl PeersFixture {
    /// Starts poolers with two workers at these addresses, without peers. A port of 0 is that of
    /// the first pooler, which picks a free one.
    fn start(
        test: &str,
        addresses: &[&str],
        more: &str,
        resolver: Option<&HostResolver>,
    ) -> Option<Self> {
        let server = Cluster::builder().setting("max_connections", "60").start();
        let server = skip_without_postgres(test, server)?;
        let mut poolers = Vec::<Pooler>::new();
        for address in addresses {
            let text = format!(
                "[pool]\nworkers = 2\nadmin-users = ['postgres']\n[pool.listen]\n\
                 addresses = ['{address}']\nport = 0\nunix-directories = []\n{more}\n[pool.auth]\ntype = 'trust'\n\
                 [pool.users.postgres]\nsecret = ''\n[pool.databases.postgres]\n\
                 hosts = ['127.0.0.1:{}']\n",
                server.port(),
            );
            let config = Config::read_str(&text, Path::new("test.toml")).unwrap().config;
            let resolver = resolver.cloned().unwrap_or_default();
            poolers.push(Pooler::start_with_resolver(config, resolver).unwrap());
        }
        Some(Self { server, poolers })
    }

    /// Two poolers that are peers of each other. Both have the same list, which includes
    /// themselves.
    fn pair(test: &str) -> Option<Self> {
        let fixture = Self::start(test, &["127.0.0.1", "127.0.0.1"], "", None)?;
        let list = format!("{},{}", fixture.address(0), fixture.address(1));
        (0..2).for_each(|pooler| fixture.set_peers(pooler, &list));
        Some(fixture)
    }

    fn address(&self, pooler: usize) -> SocketAddr {
        self.poolers[pooler].addresses()[0]
    }

    fn report(&self, pooler: usize) -> CancelPeersReport {
        self.poolers[pooler].control().snapshot(false).cancel_peers
    }

    /// Sets the peers of a pooler at its console.
    fn set_peers(&self, pooler: usize, list: &str) {
        let (ip, port) = (self.address(pooler).ip(), self.address(pooler).port());
        let mut console =
            connect(&format!("host={ip} port={port} user=postgres dbname=howdah")).unwrap();
        console.query(&format!("set peers = '{list}'")).unwrap();
        let count = list.split(',').count();
        wait_until("the new peers", WAIT_TIMEOUT, || self.report(pooler).peers.len() == count);
    }

    /// Starts a long statement through a pooler.
    fn start_sleeping(&self, pooler: usize, minor: u16) -> SleepingClient {
        let mut raw = RawClient::connect(self.address(pooler));
        raw.send_startup(minor, "");
        let key = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
        raw.send_query("select pg_sleep(600)");
        let client = SleepingClient { raw, key };
        self.wait_until_sleeping(|count| count > 0);
        client
    }

    fn wait_until_sleeping(&self, is_enough: impl Fn(u32) -> bool) {
        let mut client = connect(&self.server.uri("postgres")).unwrap();
        let sql = "select count(*) from pg_stat_activity where query like 'select pg_sleep%' \
                   and state = 'active'";
        wait_until("statements to run", WAIT_TIMEOUT, || {
            let results = client.query(sql).unwrap();
            is_enough(results[0].rows[0].text(0).unwrap().parse().unwrap())
        });
    }
}

/// A client whose statement runs for minutes.
struct SleepingClient {
    raw: RawClient,
    key: Vec<u8>,
}

impl SleepingClient {
    fn assert_cancelled(&mut self) {
        let received = self.raw.read_until(b'E').pop().unwrap().1;
        let is_cancelled = memchr::memmem::find(&received, b"C57014\0").is_some();
        assert!(is_cancelled, "{}", received.escape_ascii());
        self.raw.read_until(b'Z');
    }
}

fn cancel_request(key: &[u8]) -> Vec<u8> {
    let bytes = u32::try_from(8 + key.len()).unwrap().to_be_bytes();
    [&bytes[..], &80_877_102_u32.to_be_bytes(), key].concat()
}

/// Sends a CancelRequest, and waits until its connection is closed without a reply.
fn send_cancel(address: SocketAddr, key: &[u8]) {
    send_over(TcpStream::connect(address).unwrap(), &cancel_request(key));
}

fn send_over(mut stream: TcpStream, packet: &[u8]) {
    stream.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    stream.write_all(packet).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_or(0), 0);
}

/// Connects from another address than 127.0.0.1.
fn connect_from(source: [u8; 4], address: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &SocketAddr::from((source, 0))).unwrap();
    rustix::net::connect(&socket, &address).unwrap();
    socket.into()
}

#[test]
fn cancel_request_reaches_client_of_peer() {
    let Some(fixture) = PeersFixture::pair("peers") else { return };
    for (minor, from, to) in [(0, 0, 1), (2, 1, 0), (2, 0, 1), (0, 1, 0)] {
        let mut client = fixture.start_sleeping(from, minor);
        send_cancel(fixture.address(to), &client.key);
        client.assert_cancelled();
    }
    for pooler in 0..2 {
        let report = fixture.report(pooler);
        assert_eq!((report.sent, report.received, report.dropped), (2, 2, 0));
        // The pooler itself is in the list.
        assert_eq!(report.peers.len(), 2);
    }
    // A client of the pooler that gets the request: nothing is forwarded.
    let mut client = fixture.start_sleeping(0, 2);
    send_cancel(fixture.address(0), &client.key);
    client.assert_cancelled();
    assert_eq!(fixture.report(0).sent, 2);
}

#[test]
fn forwarded_request_is_never_forwarded() {
    let Some(fixture) = PeersFixture::pair("unknown keys") else { return };
    send_cancel(fixture.address(0), &UNKNOWN_KEY);
    wait_until("the peer to get the request", WAIT_TIMEOUT, || fixture.report(1).received == 1);
    // The next request takes the same way, after the first one.
    let mut client = fixture.start_sleeping(1, 0);
    send_cancel(fixture.address(0), &client.key);
    client.assert_cancelled();
    let (first, second) = (fixture.report(0), fixture.report(1));
    assert_eq!((first.sent, first.received, first.dropped), (2, 0, 0));
    assert_eq!((second.sent, second.received, second.dropped), (0, 2, 0));
    // A key that is too long for a forwarded request has no effect either.
    send_cancel(fixture.address(0), &[7; 260]);
    wait_until("the long key to be dropped", WAIT_TIMEOUT, || fixture.report(0).dropped == 1);
}

#[test]
fn forwarded_request_is_accepted_only_from_peers() {
    for more in ["", "proxy-from = ['127.0.0.1', '127.0.0.2']"] {
        let Some(fixture) = PeersFixture::start("sources", &["127.0.0.1"], more, None) else {
            return;
        };
        let address = fixture.address(0);
        // With proxies, clients need a header.
        let header: &[u8] = if more.is_empty() { b"" } else { b"PROXY UNKNOWN\r\n" };
        let mut raw = RawClient::connect(address);
        raw.0.write_all(header).unwrap();
        raw.send_startup(2, "");
        let key = raw.read_until(b'Z').into_iter().find(|(tag, _)| *tag == b'K').unwrap().1;
        let mut client = SleepingClient { raw, key };
        client.raw.send_query("select pg_sleep(600)");
        fixture.wait_until_sleeping(|count| count == 1);
        let forwarded = cancel_request(&[&PREFIX[..], &client.key].concat());
        let refused = || {
            let refused = fixture.poolers[0].control().snapshot(false).refused;
            refused.iter().find(|(reason, _)| reason.as_str() == "cancel-key").unwrap().1
        };
        // Without peers, and from addresses that are not theirs.
        send_over(TcpStream::connect(address).unwrap(), &forwarded);
        wait_until("the request to be refused", WAIT_TIMEOUT, || refused() == 1);
        let mut console = TcpStream::connect(address).unwrap();
        let peers = ["127.0.0.1:9", "localhost:9"][usize::from(more.is_empty())];
        if more.is_empty() {
            drop(console);
            fixture.set_peers(0, peers);
        } else {
            console.write_all(header).unwrap();
            let mut console = RawClient(console);
            console.send_startup_for_database("howdah", "");
            console.read_until(b'Z');
            console.send_query(&format!("set peers = '{peers}'"));
            console.read_until(b'Z');
        }
        wait_until("the peer", WAIT_TIMEOUT, || fixture.report(0).peers.len() == 1);
        send_over(connect_from([127, 0, 0, 2], address), &forwarded);
        wait_until("the request to be refused", WAIT_TIMEOUT, || refused() == 2);
        if !more.is_empty() {
            // A proxy that claims to forward a connection of a peer.
            let header = b"PROXY TCP4 127.0.0.1 127.0.0.1 5 6\r\n";
            let claimed = [&header[..], &forwarded].concat();
            send_over(connect_from([127, 0, 0, 2], address), &claimed);
            wait_until("the request to be refused", WAIT_TIMEOUT, || refused() == 3);
        }
        assert_eq!(fixture.report(0).received, 0);
        fixture.wait_until_sleeping(|count| count == 1);
        // From a peer. Its name may not be resolved yet.
        wait_until("the request to be accepted", WAIT_TIMEOUT, || {
            send_over(TcpStream::connect(address).unwrap(), &forwarded);
            fixture.report(0).received > 0
        });
        client.assert_cancelled();
    }
}

#[test]
fn unreachable_peers_do_not_delay_others() {
    let Some(fixture) = PeersFixture::pair("dead peers") else { return };
    // One accepts connections and reads nothing, the other refuses them.
    let hung = TcpListener::bind("127.0.0.1:0").unwrap();
    let gone = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let list = format!("{},{gone},{}", hung.local_addr().unwrap(), fixture.address(1));
    fixture.set_peers(0, &list);
    for _ in 0..20 {
        send_cancel(fixture.address(0), &UNKNOWN_KEY);
    }
    let mut client = fixture.start_sleeping(1, 2);
    let peer = |number: usize| fixture.report(0).peers[number].clone();
    // More than 8 requests to one address at a time are dropped.
    assert_eq!((peer(0).sent + peer(0).connecting, peer(0).connections_max), (8, 8));
    wait_until("requests to the other peer to end", WAIT_TIMEOUT, || peer(2).sent == 0);
    let received = fixture.report(1).received;
    send_cancel(fixture.address(0), &client.key);
    client.assert_cancelled();
    assert_eq!(fixture.report(1).received, received + 1);
    assert!(fixture.report(0).dropped >= 20 + 13, "{:?}", fixture.report(0));
    // The connections to a peer that does not close them are given up.
    wait_until("connections to be closed", WAIT_TIMEOUT, || peer(0).sent == 0);
}

#[test]
fn host_name_stands_for_all_its_addresses() {
    // As a headless service: each pooler has the same settings, and finds itself in the answer.
    let known = Arc::new(Mutex::new(Vec::<[u8; 4]>::new()));
    let addresses = Arc::clone(&known);
    let resolver = HostResolver::new(move |host, port| {
        let addresses = addresses.lock().clone();
        let known = addresses.into_iter().map(|address| SocketAddr::from((address, port)));
        match host {
            "poolers.test" => Ok(known.collect()),
            other => Err(std::io::Error::other(other.to_owned())),
        }
    });
    let more = "[pool.timeouts]\ndns-max-ttl = '100ms'";
    let Some(mut fixture) = PeersFixture::start("headless", &["127.0.0.1"], more, Some(&resolver))
    else {
        return;
    };
    let port = fixture.address(0).port();
    let second = format!("127.0.0.2:{port}");
    let other = PeersFixture::start("headless", &[&second], more, Some(&resolver)).unwrap();
    let mut in_other = other.start_sleeping(0, 2);
    fixture.poolers.extend(other.poolers);
    for pooler in 0..2 {
        fixture.set_peers(pooler, &format!("poolers.test:{port},unknown.test:{port}"));
    }
    // Nothing is known: the request is lost, and counted.
    send_cancel(fixture.address(0), &in_other.key);
    wait_until("the request to be dropped", WAIT_TIMEOUT, || fixture.report(0).dropped == 1);
    // Both poolers appear later.
    known.lock().extend([[127, 0, 0, 1], [127, 0, 0, 2]]);
    wait_until("the name to be resolved", WAIT_TIMEOUT, || {
        send_cancel(fixture.address(0), &in_other.key);
        fixture.report(1).received > 0
    });
    in_other.assert_cancelled();
    // Neither has sent a request to itself.
    assert_eq!(fixture.report(0).received, 0);
    let mut here = fixture.start_sleeping(0, 0);
    wait_until("the name to be resolved", WAIT_TIMEOUT, || {
        send_cancel(fixture.address(1), &here.key);
        fixture.report(0).received > 0
    });
    here.assert_cancelled();
}

/// As the example in PgBouncer's manual, with `so_reuseport`: the peers are directories of unix
/// sockets.
#[test]
fn peers_of_pgbouncer_ini_are_unix_sockets() {
    let Some(server) = skip_without_postgres("ini peers", Cluster::builder().start()) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let directory = |number: u32| folder.path().join(number.to_string()).display().to_string();
    let start = |number: u32| {
        let own = directory(number);
        std::fs::create_dir(&own).unwrap();
        let text = format!(
            "[databases]\npostgres = host=127.0.0.1 port={}\n\
             [peers]\n1 = host={}\n2 = host={} port=6432 pool_size=3\n\
             [pgbouncer]\nlisten_addr =\nunix_socket_dir = {own}\npeer_id = {number}\n\
             auth_type = trust\nauth_file = {own}/users\nadmin_users = postgres\n",
            server.port(),
            directory(1),
            directory(2),
        );
        std::fs::write(format!("{own}/users"), "\"postgres\" \"\"\n").unwrap();
        let parsed = Config::read_str(&text, Path::new("test.ini")).unwrap();
        assert_eq!(parsed.warnings.len(), 1, "{:?}", parsed.warnings);
        Pooler::start(parsed.config).unwrap()
    };
    let poolers = [start(1), start(2)];
    for pooler in &poolers {
        let report = || pooler.control().snapshot(false).cancel_peers;
        wait_until("the peers", WAIT_TIMEOUT, || report().peers.len() == 2);
    }
    let words =
        |database: &str| format!("host={} port=6432 user=postgres dbname={database}", directory(1));
    let socket =
        |number: u32| UnixStream::connect(format!("{}/.s.PGSQL.6432", directory(number))).unwrap();
    let mut client = socket(1);
    client.set_read_timeout(Some(WAIT_TIMEOUT)).unwrap();
    let startup = b"\0\0\0\x29\0\x03\0\0user\0postgres\0database\0postgres\0\0";
    client.write_all(startup).unwrap();
    let mut received = Vec::new();
    let mut read_until = |end: &[u8]| loop {
        let mut some = [0; 4096];
        let bytes = client.read(&mut some).unwrap();
        assert!(bytes > 0, "{}", received.escape_ascii());
        received.extend_from_slice(&some[..bytes]);
        if let Some(at) = memchr::memmem::find(&received, end) {
            break received.drain(..at + end.len()).collect::<Vec<_>>();
        }
    };
    let welcome = read_until(b"Z\0\0\0\x05I");
    let key_data = memchr::memmem::find(&welcome, b"K\0\0\0\x0c").unwrap();
    let key = welcome[key_data + 5..][..8].to_vec();
    socket(1); // Another connection without a login changes nothing.
    let query = b"Q\0\0\0\x19select pg_sleep(600)\0";
    let mut writer = client.try_clone().unwrap();
    writer.write_all(query).unwrap();
    let mut at_server = connect(&server.uri("postgres")).unwrap();
    wait_until("the statement to run", WAIT_TIMEOUT, || {
        let sql = "select 1 from pg_stat_activity where query like 'select pg_sleep%'";
        !at_server.query(sql).unwrap()[0].rows.is_empty()
    });
    socket(2).write_all(&cancel_request(&key)).unwrap();
    let error = {
        let mut error = Vec::new();
        let mut some = [0; 4096];
        while memchr::memmem::find(&error, b"C57014\0").is_none() {
            let bytes = client.read(&mut some).unwrap();
            assert!(bytes > 0, "{}", error.escape_ascii());
            error.extend_from_slice(&some[..bytes]);
        }
        error
    };
    assert!(!error.is_empty());

    let mut console = connect(&words("pgbouncer")).unwrap();
    let mut show = |what: &str| -> Vec<String> {
        let results = console.query(&format!("show {what}")).unwrap();
        let (columns, rows) = (results[0].columns.len(), results[0].rows.iter());
        rows.map(|row| {
            let cells = (0..columns).map(|at| row.text(at).unwrap_or_default());
            cells.collect::<Vec<_>>().join("|")
        })
        .collect()
    };
    let (one, two) = (directory(1), directory(2));
    assert_eq!(show("peers"), [format!("1|{one}|6432|8"), format!("2|{two}|6432|8")]);
    assert_eq!(show("peer_pools"), ["1|0|0|0|0", "2|0|0|0|0"]);
    assert!(show("lists").contains(&"peers|2".to_owned()));
    let config = show("config");
    assert!(config.contains(&"peer_id|1|0|yes".to_owned()), "{config:?}");
}
