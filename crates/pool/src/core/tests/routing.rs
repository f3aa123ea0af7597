//! Where requests go, message by message and byte by byte: what is looked at before a server is asked for,
//! and what the pooler answers itself.

use std::{sync::Arc, time::Duration};

use howdah_route::{DefaultShard, RolePreference, Settings, Table};
use howdah_shard::{KeyType, ShardMap};

use super::{Stage, message};
use crate::{
    ClientId, Cluster, ClusterMember, ClusterState, Limit, MemberPlace, PoolId, PoolSpec, Refusal,
    ServerFailure, ServerId, Strategy, config::ConfiguredRole,
};

const HOME: PoolId = PoolId(1);
/// Of shard 0, a primary and a replica; then the same of shard 1.
const MEMBERS: [PoolId; 4] = [PoolId(2), PoolId(3), PoolId(4), PoolId(5)];

fn sharded(role: RolePreference) -> Settings {
    let orders = Table { schema: None, name: "orders".to_owned(), key: vec!["id".to_owned()] };
    Settings {
        role,
        primary_reads: false,
        shards: 2,
        map: ShardMap::hash(2, vec![KeyType::Int]).ok(),
        tables: [orders].into_iter().collect(),
        default_shard: DefaultShard::Refuse,
        ..Settings::default()
    }
}

/// Keys of shard 0 and of shard 1.
fn keys() -> [i64; 2] {
    let map = ShardMap::hash(2, vec![KeyType::Int]).unwrap();
    let on = |key: &i64| map.shard(&[Some(howdah_shard::Key::Int(*key))]).unwrap();
    [0, 1].map(|shard| (1..).find(|key| on(key) == shard).unwrap())
}

fn stage(settings: Settings) -> Stage {
    let mut stage = Stage::new(PoolSpec::new(1));
    let shards = settings.shards;
    let mut clusters = Vec::new();
    for shard in 0..shards {
        let roles = [ConfiguredRole::Primary, ConfiguredRole::Replica];
        let state = ClusterState::new(roles, Duration::from_secs(60));
        let pools = &MEMBERS[shard as usize * 2..][..2];
        let member = |(pool, state): (&PoolId, &Arc<crate::Member>)| ClusterMember {
            pool: *pool,
            state: Arc::clone(state),
            weight: 1,
        };
        for (pool, state) in pools.iter().zip(&state.members) {
            let state = Arc::clone(state);
            let place = MemberPlace { home: HOME, shard, state, failover_timeout: None };
            let server_limits = [Limit::new(1)].into();
            let spec = PoolSpec { member: Some(place), server_limits, ..PoolSpec::new(1) };
            stage.core.set_pool(*pool, Arc::new(spec));
        }
        clusters.push(Arc::new(Cluster {
            members: pools.iter().zip(&state.members).map(member).collect(),
            strategy: Strategy::RoundRobin,
            failover_timeout: None,
            slow_start: Duration::ZERO,
            state: Arc::clone(&state),
        }));
    }
    let routing = Some(Arc::new(settings));
    let spec = PoolSpec { clusters: clusters.into(), routing, ..PoolSpec::new(1) };
    stage.core.set_pool(HOME, Arc::new(spec));
    stage
}

impl Stage {
    /// A client that has been greeted; its server is idle.
    fn routed(&mut self) -> (ClientId, ServerId) {
        let client = self.client_in(HOME, Vec::new());
        let server = self.server();
        self.client_gets(client);
        (client, server)
    }

    /// The server that a client has; one that was ordered for it is let in first.
    fn serving(&mut self, client: ClientId) -> (ServerId, PoolId) {
        if !self.io.opened.is_empty() {
            self.server();
        }
        let report = self.core.report(true, self.now);
        let mut servers = report.servers.iter().map(|it| (it.id, it.pool));
        servers.find(|(id, _)| self.core.linked_client(*id) == Some(client)).expect("it has one")
    }

    fn ready(&mut self, server: ServerId, status: u8) {
        let answer = [message(b'C', b"SELECT 1\0"), message(b'Z', &[status])].concat();
        self.server_says(server, &answer);
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
fn a_batch_is_held_until_its_end_says_where_it_goes() {
    let [zero, one] = keys().map(|key| key.to_string());
    for (sql, key, pool) in [(READ, &zero, 3), (WRITE, &zero, 2), (READ, &one, 5), (WRITE, &one, 4)]
    {
        let batch = [parse(sql), bind(key), execute(), sync()].concat();
        // However it is cut, nothing is asked for before the last byte has come.
        for cut in [0, 1, 7, parse(sql).len(), parse(sql).len() + 9, batch.len() - 1] {
            let mut stage = stage(sharded(RolePreference::Auto));
            let (client, _) = stage.routed();
            stage.client_says(client, &batch[..cut]);
            assert!(!stage.core.is_waiting(client) && stage.io.opened.is_empty(), "{cut}");
            stage.client_says(client, &batch[cut..]);
            let (server, its) = stage.serving(client);
            assert_eq!(its, PoolId(pool), "{sql} {key}");
            assert!(stage.server_gets(server).ends_with(&sync()));
        }
        // One byte after the other, too.
        let mut stage = stage(sharded(RolePreference::Primary));
        let (client, _) = stage.routed();
        let (last, first) = batch.split_last().unwrap();
        for byte in first {
            stage.client_says(client, &[*byte]);
        }
        assert!(!stage.core.is_waiting(client) && stage.io.opened.is_empty());
        stage.client_says(client, &[*last]);
        let (server, _) = stage.serving(client);
        assert_eq!(stage.server_gets(server), batch);
    }
}

#[test]
fn a_begin_is_answered_and_sent_with_what_comes_next() {
    let [_, one] = keys();
    for begin in [
        query("begin"),
        [parse("BEGIN"), message(b'B', b"\0\0\0\0\0\0\0\0"), execute(), sync()].concat(),
    ] {
        let mut stage = stage(sharded(RolePreference::Primary));
        let (client, _) = stage.routed();
        stage.client_says(client, &begin);
        let answer = stage.client_gets(client);
        assert!(answer.ends_with(&[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat()));
        assert!(stage.io.opened.is_empty());
        // A Sync is answered in the transaction that it believes to be in.
        stage.client_says(client, &sync());
        assert_eq!(stage.client_gets(client), message(b'Z', b"T"));
        let write = query(&format!("insert into orders (id) values ({one})"));
        stage.client_says(client, &write);
        let (server, pool) = stage.serving(client);
        assert_eq!(pool, PoolId(4));
        let asked = stage.server_gets(server);
        assert!(asked.eq_ignore_ascii_case(&[query("begin"), write].concat()));
        // Its answer is not the client's.
        stage.server_says(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
        assert_eq!(stage.client_gets(client), b"");
        stage.ready(server, b'T');
        assert!(stage.client_gets(client).ends_with(b"T"));
        // The transaction has its server until it ends.
        stage.client_says(client, &query("commit"));
        assert_eq!(stage.server_gets(server), query("commit"));
        stage.ready(server, b'I');
        assert_eq!(stage.core.linked_client(server), None);
    }
}

#[test]
fn what_is_sent_without_waiting_goes_where_it_would_alone() {
    let [zero, one] = keys();
    let mut stage = stage(sharded(RolePreference::Primary));
    let (client, _) = stage.routed();
    let read = |key: i64| query(&format!("select * from orders where id = {key}"));
    stage.client_says(client, &[read(one), read(zero), query("SHOW SHARD"), read(one)].concat());
    let (first, pool) = stage.serving(client);
    assert_eq!((pool, stage.server_gets(first)), (PoolId(4), read(one)), "and nothing behind it");
    stage.ready(first, b'I');
    stage.client_gets(client);
    let (second, pool) = stage.serving(client);
    assert_eq!((pool, stage.server_gets(second)), (PoolId(2), read(zero)));
    stage.ready(second, b'I');
    let told = stage.client_gets(client);
    let shown = told.windows(5).position(|it| it == b"unset").expect("the command is answered");
    assert!(shown > message(b'C', b"SELECT 1\0").len(), "behind what was asked before it");
    assert_eq!(stage.server_gets(first), read(one), "and what is behind it follows");
}

#[test]
fn what_is_refused_has_not_happened_and_is_skipped_to_its_sync() {
    let [zero, one] = keys().map(|key| key.to_string());
    let mut stage = stage(sharded(RolePreference::Primary));
    let (client, _) = stage.routed();
    let two = [parse(WRITE), bind(&zero), execute(), bind(&one), execute()].concat();
    stage.client_says(client, &[two, sync(), query("SHOW SHARD")].concat());
    assert!(stage.io.opened.is_empty(), "no server is asked");
    let told = stage.client_gets(client);
    let errors = told.windows(6).filter(|it| *it == b"C0A000").count();
    assert_eq!(errors, 1);
    let ready = told.windows(6).filter(|it| *it == message(b'Z', b"I")).count();
    assert_eq!(ready, 2, "of the Sync, and of the command behind it");
    // With a transaction under way its status is told, and it goes on.
    let write = query(&format!("insert into orders (id) values ({zero})"));
    stage.client_says(client, &[query("begin"), write].concat());
    let (server, _) = stage.serving(client);
    stage.server_says(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
    stage.ready(server, b'T');
    stage.client_gets(client);
    stage.server_gets(server);
    stage.client_says(client, &[parse(READ), bind(&one), execute(), sync()].concat());
    assert!(stage.client_gets(client).ends_with(&message(b'Z', b"T")));
    assert_eq!(stage.server_gets(server), b"", "the server hears nothing of it");
}

#[test]
fn a_begin_that_nothing_follows_is_an_idle_transaction() {
    let mut stage = stage(sharded(RolePreference::Primary));
    for pool in stage.core.pools.iter_mut().flatten() {
        let timeouts = &mut Arc::make_mut(&mut pool.spec).timeouts;
        timeouts.idle_transaction = Some(Duration::from_secs(1));
        timeouts.client_idle = Some(Duration::from_secs(60));
    }
    let (client, _) = stage.routed();
    stage.wait(900);
    stage.client_says(client, &query("begin"));
    stage.client_gets(client);
    // Who stops the pooler waits for it, as for any transaction.
    stage.core.drain(stage.now, &mut stage.io);
    stage.wait(900);
    assert_eq!(stage.client_gets(client), b"");
    stage.wait(200);
    let told = stage.client_gets(client);
    assert!(told.windows(7).any(|it| it == b"C25P03\0"), "{}", String::from_utf8_lossy(&told));
    assert!(stage.io.closed.contains(&crate::Peer::Client(client)));
}

#[test]
fn shards_that_share_a_limit_are_asked_in_turn() {
    const ALL: &str = "select * from orders";
    let mut stage = stage(sharded(RolePreference::Primary));
    let clients = [(); 3].map(|()| stage.client_in(HOME, Vec::new()));
    while !stage.io.opened.is_empty() {
        let server = stage.server();
        stage.core.server_closed(server, stage.now, &mut stage.io);
    }
    let shared = Limit::new(2);
    for pool in stage.core.pools.iter_mut().flatten() {
        let spec = Arc::make_mut(&mut pool.spec);
        spec.server_limits = spec.server_limits.iter().chain([&shared]).cloned().collect();
    }
    let [ahead, cancelled, behind] = clients;
    clients.iter().for_each(|id| drop(stage.client_gets(*id)));
    clients.iter().for_each(|id| stage.client_says(*id, &query(ALL)));
    let first = stage.server();
    assert_eq!(stage.server_gets(first), query(ALL), "of who came first");
    let second = stage.server();
    assert!(stage.io.opened.is_empty());
    assert_eq!(stage.server_gets(second), query(ALL));
    // Who waits for its turn can be cancelled, and others have theirs all the same.
    let key = stage.core.cancel_key_of(cancelled).unwrap();
    stage.core.cancel(&key, stage.now, &mut stage.io);
    let told = stage.client_gets(cancelled);
    assert!(told.windows(7).any(|it| it == b"C57014\0") && told.ends_with(b"\x05I"));
    let answer = [message(b'T', b"\0\0"), message(b'C', b"SELECT 0\0"), message(b'Z', b"I")];
    for server in [first, second] {
        assert_eq!(stage.client_gets(behind), b"");
        stage.server_says(server, &answer.concat());
    }
    assert_eq!(stage.client_gets(ahead), answer.concat());
    for server in [first, second] {
        assert_eq!(stage.server_gets(server), query(ALL));
        stage.server_says(server, &answer.concat());
    }
    assert_eq!(stage.client_gets(behind), answer.concat());
    // What can never be is refused at once.
    shared.set_max(1);
    stage.client_says(behind, &query(ALL));
    let told = stage.client_gets(behind);
    assert!(told.windows(7).any(|it| it == b"C53300\0") && told.ends_with(b"\x05I"));
}

#[test]
fn what_a_shards_server_does_to_a_request_is_for_the_log_once() {
    const ALL: &str = "select * from orders";
    let mut stage = stage(sharded(RolePreference::Primary));
    let client = stage.client_in(HOME, Vec::new());
    let greeting = stage.server();
    stage.core.server_closed(greeting, stage.now, &mut stage.io);
    stage.io.opened.clear();
    stage.client_gets(client);
    // The second shard takes nobody.
    stage.client_says(client, &query(ALL));
    let first = stage.server();
    let second = stage.io.opened.pop().unwrap();
    let message = "no pg_hba.conf entry".to_owned();
    let failure = ServerFailure { sqlstate: *b"28000", message: message.clone() };
    stage.core.server_failed(second, failure, stage.now, &mut stage.io);
    let told = stage.client_gets(client);
    assert!(told.windows(7).any(|it| it == b"C28000\0"), "{}", told.escape_ascii());
    assert_eq!(stage.io.told, [(client, message, true)]);
    // The first one's end says nothing new.
    stage.core.server_closed(first, stage.now, &mut stage.io);
    assert!(stage.client_gets(client).ends_with(b"Z\0\0\0\x05I"));
    assert_eq!(stage.io.told.len(), 1);
    // A server that is lost in the middle, and the client goes on.
    stage.io.told.clear();
    stage.io.opened.clear();
    stage.client_says(client, &query(ALL));
    let first = stage.server();
    stage.core.server_closed(first, stage.now, &mut stage.io);
    let lost = Refusal::ServerLost.to_string();
    assert_eq!(stage.io.told, [(client, lost, true)]);
    assert!(!stage.io.closed.contains(&crate::Peer::Client(client)));
}

#[test]
fn who_uses_no_command_has_no_routing() {
    let mut stage = stage(Settings { role: RolePreference::Any, ..Settings::default() });
    let client = stage.client_in(HOME, Vec::new());
    stage.server();
    stage.client_gets(client);
    stage.client_says(client, &query("select 1"));
    let (server, _) = stage.serving(client);
    stage.ready(server, b'I');
    assert!(!stage.core.has_routing(client));
    stage.client_says(client, &query("set server role to 'primary'"));
    assert!(stage.core.has_routing(client));
}
