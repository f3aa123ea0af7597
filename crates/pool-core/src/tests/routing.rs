//! Tests of routing, message by message and byte by byte: which messages are analyzed before a
//! server is needed, and which ones the pooler answers itself.

use std::{sync::Arc, time::Duration};

use howdah_route::shard::{KeyType, ShardMap};
use howdah_route::{DefaultShard, RolePreference, RouteSettings, RoutedTable};

use super::{CoreHarness, message};
use crate::{
    BalancingStrategy, ClientId, ClientRefusal, ClusterMember, ClusterMembership, ClusterSpec,
    ClusterState, ConnectionLimit, CoreEvent, Mirror, MirrorTarget, PoolId, PoolSpec,
    ServerFailure, ServerId, cluster::AssignedRole,
};

const OWNER: PoolId = PoolId(1);
/// The pools of shard 0's primary and replica, then those of shard 1.
const MEMBERS: [PoolId; 4] = [PoolId(2), PoolId(3), PoolId(4), PoolId(5)];

fn sharded(role: RolePreference) -> RouteSettings {
    let orders =
        RoutedTable { schema: None, name: "orders".to_owned(), key: vec!["id".to_owned()] };
    RouteSettings {
        role,
        primary_reads: false,
        shards: 2,
        map: ShardMap::hash(2, vec![KeyType::Int]).ok(),
        tables: [orders].into_iter().collect(),
        default_shard: DefaultShard::Refuse,
        ..RouteSettings::default()
    }
}

/// A sharding key of shard 0 and one of shard 1.
fn keys() -> [i64; 2] {
    let map = ShardMap::hash(2, vec![KeyType::Int]).unwrap();
    let on = |key: &i64| map.shard(&[Some(howdah_route::shard::ShardKey::Int(*key))]).unwrap();
    [0, 1].map(|shard| (1..).find(|key| on(key) == shard).unwrap())
}

fn routing_harness(settings: RouteSettings) -> CoreHarness {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let shards = settings.shards;
    let mut clusters = Vec::new();
    for shard in 0..shards {
        let roles = [AssignedRole::Primary, AssignedRole::Replica];
        let state = ClusterState::new(roles, Duration::from_secs(60));
        let pools = &MEMBERS[shard as usize * 2..][..2];
        let member = |(pool, state): (&PoolId, &Arc<crate::MemberHealth>)| ClusterMember {
            pool: *pool,
            state: Arc::clone(state),
            weight: 1,
        };
        for (pool, state) in pools.iter().zip(&state.members) {
            let state = Arc::clone(state);
            let place = ClusterMembership { owner: OWNER, shard, state, failover_timeout: None };
            let server_limits = [ConnectionLimit::new(1)].into();
            let spec = PoolSpec { member: Some(place), server_limits, ..PoolSpec::new(1) };
            harness.core.set_pool(*pool, Arc::new(spec));
        }
        clusters.push(Arc::new(ClusterSpec {
            members: pools.iter().zip(&state.members).map(member).collect(),
            strategy: BalancingStrategy::RoundRobin,
            failover_timeout: None,
            slow_start: Duration::ZERO,
            state: Arc::clone(&state),
        }));
    }
    let routing = Some(Arc::new(settings));
    let spec = PoolSpec { clusters: clusters.into(), routing, ..PoolSpec::new(1) };
    harness.core.set_pool(OWNER, Arc::new(spec));
    harness
}

impl CoreHarness {
    /// Creates a client that is logged in, and an idle server.
    fn connected_client(&mut self) -> (ClientId, ServerId) {
        let client = self.client_in(OWNER, Vec::new());
        let server = self.log_in_server();
        self.sent_to_client(client);
        (client, server)
    }

    /// Returns the server that a client is linked to; first completes a server login if one was
    /// requested.
    fn linked_server(&mut self, client: ClientId) -> (ServerId, PoolId) {
        if !self.io.opened.is_empty() {
            self.log_in_server();
        }
        let report = self.core.report(true, self.now);
        let mut servers = report.servers.iter().map(|it| (it.id, it.pool));
        servers
            .find(|(id, _)| self.core.linked_client(*id) == Some(client))
            .expect("the client has a server")
    }

    fn complete(&mut self, server: ServerId, status: u8) {
        let answer = [message(b'C', b"SELECT 1\0"), message(b'Z', &[status])].concat();
        self.send_from_server(server, &answer);
    }
}

fn query(sql: &str) -> Vec<u8> {
    message(b'Q', format!("{sql}\0").as_bytes())
}

fn parse(sql: &str) -> Vec<u8> {
    message(b'P', format!("\0{sql}\0\0\0").as_bytes())
}

fn bind(value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_be_bytes();
    message(b'B', &[b"\0\0\0\0\0\x01", &length[..], value.as_bytes(), b"\0\0"].concat())
}

fn execute() -> Vec<u8> {
    message(b'E', b"\0\0\0\0\0")
}

fn sync() -> Vec<u8> {
    message(b'S', b"")
}

const READ: &str = "select * from orders where id = $1";
const WRITE: &str = "insert into orders (id) values ($1)";

#[test]
fn batch_is_held_until_it_can_be_routed() {
    let [zero, one] = keys().map(|key| key.to_string());
    for (sql, key, pool) in [(READ, &zero, 3), (WRITE, &zero, 2), (READ, &one, 5), (WRITE, &one, 4)]
    {
        let batch = [parse(sql), bind(key), execute(), sync()].concat();
        // Wherever the batch is split, no server is requested before its last byte arrives.
        for cut in [0, 1, 7, parse(sql).len(), parse(sql).len() + 9, batch.len() - 1] {
            let mut harness = routing_harness(sharded(RolePreference::Auto));
            let (client, _) = harness.connected_client();
            harness.send_from_client(client, &batch[..cut]);
            assert!(!harness.core.is_waiting(client) && harness.io.opened.is_empty(), "{cut}");
            harness.send_from_client(client, &batch[cut..]);
            let (server, its) = harness.linked_server(client);
            assert_eq!(its, PoolId(pool), "{sql} {key}");
            assert!(harness.sent_to_server(server).ends_with(&sync()));
        }
        // The same holds if the batch arrives byte by byte.
        let mut harness = routing_harness(sharded(RolePreference::Primary));
        let (client, _) = harness.connected_client();
        let (last, first) = batch.split_last().unwrap();
        for byte in first {
            harness.send_from_client(client, &[*byte]);
        }
        assert!(!harness.core.is_waiting(client) && harness.io.opened.is_empty());
        harness.send_from_client(client, &[*last]);
        let (server, _) = harness.linked_server(client);
        assert_eq!(harness.sent_to_server(server), batch);
    }
}

#[test]
fn begin_is_answered_and_sent_with_next_request() {
    let [_, one] = keys();
    for begin in [
        query("begin"),
        [parse("BEGIN"), message(b'B', b"\0\0\0\0\0\0\0\0"), execute(), sync()].concat(),
    ] {
        let mut harness = routing_harness(sharded(RolePreference::Primary));
        let (client, _) = harness.connected_client();
        harness.send_from_client(client, &begin);
        let answer = harness.sent_to_client(client);
        assert!(answer.ends_with(&[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat()));
        assert!(harness.io.opened.is_empty());
        // A Sync is answered with the status of the deferred transaction.
        harness.send_from_client(client, &sync());
        assert_eq!(harness.sent_to_client(client), message(b'Z', b"T"));
        let write = query(&format!("insert into orders (id) values ({one})"));
        harness.send_from_client(client, &write);
        let (server, pool) = harness.linked_server(client);
        assert_eq!(pool, PoolId(4));
        let asked = harness.sent_to_server(server);
        assert!(asked.eq_ignore_ascii_case(&[query("begin"), write].concat()));
        // The reply to the BEGIN is not forwarded.
        harness
            .send_from_server(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
        assert_eq!(harness.sent_to_client(client), b"");
        harness.complete(server, b'T');
        assert!(harness.sent_to_client(client).ends_with(b"T"));
        // The transaction keeps its server until its end.
        harness.send_from_client(client, &query("commit"));
        assert_eq!(harness.sent_to_server(server), query("commit"));
        harness.complete(server, b'I');
        assert_eq!(harness.core.linked_client(server), None);
    }
}

#[test]
fn pipelined_queries_are_routed_one_by_one() {
    let [zero, one] = keys();
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let (client, _) = harness.connected_client();
    let read = |key: i64| query(&format!("select * from orders where id = {key}"));
    harness.send_from_client(
        client,
        &[read(one), read(zero), query("SHOW SHARD"), read(one)].concat(),
    );
    let (first, pool) = harness.linked_server(client);
    assert_eq!(
        (pool, harness.sent_to_server(first)),
        (PoolId(4), read(one)),
        "and nothing after it"
    );
    harness.complete(first, b'I');
    harness.sent_to_client(client);
    let (second, pool) = harness.linked_server(client);
    assert_eq!((pool, harness.sent_to_server(second)), (PoolId(2), read(zero)));
    harness.complete(second, b'I');
    let received = harness.sent_to_client(client);
    let shown = received.windows(5).position(|it| it == b"unset").expect("the command is answered");
    assert!(shown > message(b'C', b"SELECT 1\0").len(), "after the query before it");
    assert_eq!(harness.sent_to_server(first), read(one), "the next query follows");
}

#[test]
fn refused_batch_is_skipped_to_its_sync() {
    let [zero, one] = keys().map(|key| key.to_string());
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let (client, _) = harness.connected_client();
    let two = [parse(WRITE), bind(&zero), execute(), bind(&one), execute()].concat();
    harness.send_from_client(client, &[two, sync(), query("SHOW SHARD")].concat());
    assert!(harness.io.opened.is_empty(), "no server is used");
    let received = harness.sent_to_client(client);
    let errors = received.windows(6).filter(|it| *it == b"C0A000").count();
    assert_eq!(errors, 1);
    let ready = received.windows(6).filter(|it| *it == message(b'Z', b"I")).count();
    assert_eq!(ready, 2, "for the Sync, and for the command after it");
    // Inside a transaction, ReadyForQuery reports its status, and the transaction continues.
    let write = query(&format!("insert into orders (id) values ({zero})"));
    harness.send_from_client(client, &[query("begin"), write].concat());
    let (server, _) = harness.linked_server(client);
    harness.send_from_server(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
    harness.complete(server, b'T');
    harness.sent_to_client(client);
    harness.sent_to_server(server);
    harness.send_from_client(client, &[parse(READ), bind(&one), execute(), sync()].concat());
    assert!(harness.sent_to_client(client).ends_with(&message(b'Z', b"T")));
    assert_eq!(harness.sent_to_server(server), b"", "the server gets nothing of it");
}

#[test]
fn portals_of_pooler_commands_are_limited() {
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let (client, _) = harness.connected_client();
    let bound = |number: u32| message(b'B', format!("{number}\0\0\0\0\0\0\0\0").as_bytes());
    let mut reply = |portals: u32| {
        let binds: Vec<_> = (0..portals).map(bound).collect();
        let batch = [parse("SET SHARD TO '0'"), binds.concat(), sync()].concat();
        harness.send_from_client(client, &batch);
        harness.sent_to_client(client)
    };
    let is_refused =
        |received: &[u8]| memchr::memmem::find(received, b"C54000\0Mtoo many portals").is_some();
    assert!(!is_refused(&reply(1000)));
    assert!(is_refused(&reply(1001)));
}

#[test]
fn deferred_begin_counts_as_idle_transaction() {
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let pools = &mut harness.core.engines().pools;
    for id in pools.ids() {
        let pool = pools.pool(id);
        let timeouts = &mut Arc::make_mut(&mut pool.spec).timeouts;
        timeouts.idle_transaction = Some(Duration::from_secs(1));
        timeouts.client_idle = Some(Duration::from_secs(60));
    }
    let (client, _) = harness.connected_client();
    harness.advance(900);
    harness.send_from_client(client, &query("begin"));
    harness.sent_to_client(client);
    // A shutdown waits for a deferred BEGIN, as for any transaction.
    harness.core.handle(CoreEvent::Drain, harness.now, &mut harness.io);
    harness.advance(900);
    assert_eq!(harness.sent_to_client(client), b"");
    harness.advance(200);
    let received = harness.sent_to_client(client);
    assert!(
        received.windows(7).any(|it| it == b"C25P03\0"),
        "{}",
        String::from_utf8_lossy(&received)
    );
    assert!(harness.io.closed.contains(&crate::PeerId::Client(client)));
}

#[test]
fn fan_outs_under_shared_limit_run_in_order() {
    const ALL: &str = "select * from orders";
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let clients = [(); 3].map(|()| harness.client_in(OWNER, Vec::new()));
    while !harness.io.opened.is_empty() {
        let server = harness.log_in_server();
        harness.core.handle(CoreEvent::ServerClosed(server), harness.now, &mut harness.io);
    }
    let shared = ConnectionLimit::new(2);
    let pools = &mut harness.core.engines().pools;
    for id in pools.ids() {
        let pool = pools.pool(id);
        let spec = Arc::make_mut(&mut pool.spec);
        spec.server_limits = spec.server_limits.iter().chain([&shared]).cloned().collect();
    }
    let [first_client, cancelled, last_client] = clients;
    clients.iter().for_each(|id| drop(harness.sent_to_client(*id)));
    clients.iter().for_each(|id| harness.send_from_client(*id, &query(ALL)));
    let first = harness.log_in_server();
    assert_eq!(harness.sent_to_server(first), query(ALL), "the first client is served first");
    let second = harness.log_in_server();
    assert!(harness.io.opened.is_empty());
    assert_eq!(harness.sent_to_server(second), query(ALL));
    // A waiting request can be cancelled without affecting other requests.
    let key = harness.core.cancel_key_of(cancelled).unwrap();
    harness.core.cancel(&key, harness.now, &mut harness.io);
    let received = harness.sent_to_client(cancelled);
    assert!(received.windows(7).any(|it| it == b"C57014\0") && received.ends_with(b"\x05I"));
    let answer = [message(b'T', b"\0\0"), message(b'C', b"SELECT 0\0"), message(b'Z', b"I")];
    for server in [first, second] {
        assert_eq!(harness.sent_to_client(last_client), b"");
        harness.send_from_server(server, &answer.concat());
    }
    assert_eq!(harness.sent_to_client(first_client), answer.concat());
    for server in [first, second] {
        assert_eq!(harness.sent_to_server(server), query(ALL));
        harness.send_from_server(server, &answer.concat());
    }
    assert_eq!(harness.sent_to_client(last_client), answer.concat());
    // A request that the limit can never allow is refused at once.
    shared.set_max(1);
    harness.send_from_client(last_client, &query(ALL));
    let received = harness.sent_to_client(last_client);
    assert!(received.windows(7).any(|it| it == b"C53300\0") && received.ends_with(b"\x05I"));
}

#[test]
fn shard_failure_is_logged_once() {
    const ALL: &str = "select * from orders";
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let client = harness.client_in(OWNER, Vec::new());
    let greeting = harness.log_in_server();
    harness.core.handle(CoreEvent::ServerClosed(greeting), harness.now, &mut harness.io);
    harness.io.opened.clear();
    harness.sent_to_client(client);
    // The second shard refuses the login.
    harness.send_from_client(client, &query(ALL));
    let first = harness.log_in_server();
    let second = harness.io.opened.pop().unwrap();
    let message = "no pg_hba.conf entry".to_owned();
    let failure = ServerFailure { sqlstate: *b"28000", message: message.clone() };
    harness.core.handle(CoreEvent::ServerFailed(second, failure), harness.now, &mut harness.io);
    let received = harness.sent_to_client(client);
    assert!(received.windows(7).any(|it| it == b"C28000\0"), "{}", received.escape_ascii());
    assert_eq!(harness.io.errors_sent, [(client, message, true)]);
    // The loss of the first shard's connection is not reported again.
    harness.core.handle(CoreEvent::ServerClosed(first), harness.now, &mut harness.io);
    assert!(harness.sent_to_client(client).ends_with(b"Z\0\0\0\x05I"));
    assert_eq!(harness.io.errors_sent.len(), 1);
    // The client survives the loss of a server during its request.
    harness.io.errors_sent.clear();
    harness.io.opened.clear();
    harness.send_from_client(client, &query(ALL));
    let first = harness.log_in_server();
    harness.core.handle(CoreEvent::ServerClosed(first), harness.now, &mut harness.io);
    let lost = ClientRefusal::ServerLost.to_string();
    assert_eq!(harness.io.errors_sent, [(client, lost, true)]);
    assert!(!harness.io.closed.contains(&crate::PeerId::Client(client)));
}

#[test]
fn copy_that_fails_on_one_shard_ends_on_shard_that_starts_it_late() {
    const COPY: &str = "copy orders (id, x) from stdin";
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let client = harness.client_in(OWNER, Vec::new());
    let greeting = harness.log_in_server();
    harness.core.handle(CoreEvent::ServerClosed(greeting), harness.now, &mut harness.io);
    harness.io.opened.clear();
    harness.sent_to_client(client);
    harness.send_from_client(client, &query(COPY));
    let [first, second] = [(); 2].map(|()| harness.log_in_server());
    let begun = [message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat();
    let failed = [message(b'E', b"SERROR\0C53100\0Mdisk full\0\0"), message(b'Z', b"E")].concat();
    harness.send_from_server(second, &begun);
    harness.send_from_server(first, &[&begun[..], &failed].concat());
    let copy_fail = message(b'f', b"another shard failed\0");
    let expected = [query("BEGIN"), query(COPY), copy_fail, query("ROLLBACK")].concat();
    assert_eq!(harness.sent_to_server(second), expected);
    let rolled_back = [message(b'C', b"ROLLBACK\0"), message(b'Z', b"I")].concat();
    let late = [&message(b'G', b"\0\0\0")[..], &failed, &rolled_back].concat();
    harness.send_from_server(second, &late);
    harness.send_from_server(first, &rolled_back);
    let received = harness.sent_to_client(client);
    assert!(received.windows(7).any(|it| it == b"C53100\0") && received.ends_with(b"\x05I"));
    assert!(harness.io.closed.is_empty());
}

#[test]
fn error_of_request_on_several_shards_is_compared_with_mirror() {
    const ALL: &str = "select * from orders";
    let mut harness = routing_harness(sharded(RolePreference::Primary));
    let (mirror, mirror_pool) = (Arc::<Mirror>::default(), PoolId(9));
    harness.core.set_pool(mirror_pool, Arc::new(PoolSpec::new(1)));
    let target = MirrorTarget {
        pool: mirror_pool,
        mirror: Arc::clone(&mirror),
        sample_rate: 1.0,
        client_bytes: 1 << 20,
        buffer_bytes: 1 << 20,
        timeout: Duration::from_secs(5),
    };
    let spec = Arc::make_mut(&mut harness.core.engines().pools.pool(OWNER).spec);
    spec.mirrors = [target].into();
    let client = harness.client_in(OWNER, Vec::new());
    let greeting = harness.log_in_server();
    harness.core.handle(CoreEvent::ServerClosed(greeting), harness.now, &mut harness.io);
    harness.io.opened.clear();
    harness.send_from_client(client, &query(ALL));
    let shards = [(); 2].map(|()| harness.log_in_server());
    let failed = [message(b'E', b"SERROR\0C53100\0Mdisk full\0\0"), message(b'Z', b"I")].concat();
    for server in shards {
        harness.send_from_server(server, &failed);
    }
    let at_mirror = harness.log_in_server();
    assert_eq!(harness.sent_to_server(at_mirror), query(ALL));
    harness.send_from_server(at_mirror, &failed);
    let report = mirror.report();
    assert_eq!((report.transactions, report.failed_mirror_only), (1, 0), "{report:?}");
}

#[test]
fn change_of_other_shard_does_not_move_waiting_client_back_and_forth() {
    let settings = RouteSettings { primary_reads: true, ..sharded(RolePreference::Any) };
    let mut harness = routing_harness(settings);
    let [(busy, one), (waiting, other)] = [(); 2].map(|()| harness.connected_client());
    for server in [one, other] {
        harness.core.handle(CoreEvent::ServerClosed(server), harness.now, &mut harness.io);
    }
    harness.io.opened.clear();
    let sql = query(&format!("select * from orders where id = {}", keys()[0]));
    harness.send_from_client(busy, &sql);
    let (first, _) = harness.linked_server(busy);
    harness.send_from_client(waiting, &sql);
    assert_eq!(harness.io.opened.len(), 1, "the client waits for the other member of the shard");
    harness.advance(150);
    // The other shard changes, and both members of the first one have an idle server.
    let owner = harness.core.engines().pools.get(OWNER).unwrap();
    owner.spec.clusters[1].state.members[1].connect_failed(harness.now, "refused");
    harness.complete(first, b'I');
    harness.sent_to_server(first);
    let second = harness.log_in_server();
    let sent = [first, second].map(|server| harness.sent_to_server(server)).concat();
    assert_eq!(sent, sql);
}

#[test]
fn client_without_commands_has_no_routing_state() {
    let mut harness =
        routing_harness(RouteSettings { role: RolePreference::Any, ..RouteSettings::default() });
    let client = harness.client_in(OWNER, Vec::new());
    harness.log_in_server();
    harness.sent_to_client(client);
    harness.send_from_client(client, &query("select 1"));
    let (server, _) = harness.linked_server(client);
    harness.complete(server, b'I');
    assert!(!harness.core.has_routing(client));
    harness.send_from_client(client, &query("set server role to 'primary'"));
    assert!(harness.core.has_routing(client));
}
