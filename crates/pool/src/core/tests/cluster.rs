//! Clients of a cluster: whose servers they get, and where they wait.

use std::{sync::Arc, time::Duration};

use super::{Stage, message};
use crate::{
    ClientId, Cluster, ClusterMember, ClusterState, Limit, MemberPlace, Peer, PoolId, PoolSpec,
    ServerFailure, ServerId, ServerRole, Strategy, cluster::Standing, config::ConfiguredRole,
};

const HOME: PoolId = PoolId(1);
const BAN: Duration = Duration::from_secs(60);

/// A stage with a cluster of these servers, whose pools follow that of their home.
fn stage(roles: &[ConfiguredRole]) -> (Stage, Arc<ClusterState>) {
    let mut stage = Stage::new(PoolSpec::new(1));
    let state = ClusterState::new(roles.iter().copied(), BAN);
    let member = |(number, state): (u32, &Arc<crate::Member>)| ClusterMember {
        pool: PoolId(HOME.0 + 1 + number),
        state: Arc::clone(state),
        weight: 1,
    };
    let failover_timeout = Some(Duration::from_secs(5));
    let cluster = Arc::new(Cluster {
        members: (0..).zip(&state.members).map(member).collect(),
        strategy: Strategy::RoundRobin,
        failover_timeout,
        slow_start: Duration::ZERO,
        state: Arc::clone(&state),
    });
    let spec = PoolSpec::new(1);
    for member in &cluster.members {
        let place = MemberPlace {
            home: HOME,
            shard: 0,
            state: Arc::clone(&member.state),
            failover_timeout,
        };
        let server_limits = [Limit::new(1)].into();
        let spec = PoolSpec { member: Some(place), server_limits, ..spec.clone() };
        stage.core.set_pool(member.pool, Arc::new(spec));
    }
    stage.core.set_pool(HOME, Arc::new(PoolSpec { clusters: [cluster].into(), ..spec }));
    (stage, state)
}

const NAMED: [ConfiguredRole; 2] = [ConfiguredRole::Primary, ConfiguredRole::Replica];

impl Stage {
    /// The pool of a server.
    fn pool_of(&mut self, server: ServerId) -> PoolId {
        let report = self.core.report(true, self.now);
        report.servers.iter().find(|it| it.id == server).expect("it is there").pool
    }

    fn asks(&mut self, client: ClientId) {
        self.client_says(client, &message(b'Q', b"select 1\0"));
    }

    /// Has the server that was opened last log in, and gives whose it is.
    fn logs_in(&mut self) -> (ServerId, PoolId) {
        let server = self.server();
        let pool = self.pool_of(server);
        (server, pool)
    }

    fn answers(&mut self, server: ServerId) {
        assert!(!self.server_gets(server).is_empty(), "it was asked");
        let answer = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
        self.server_says(server, &answer);
    }

    fn refuses(&mut self, sqlstate: &[u8; 5]) {
        let id = self.io.opened.pop().expect("a server was ordered");
        let failure = ServerFailure { sqlstate: *sqlstate, message: "no".to_owned() };
        self.core.server_failed(id, failure, self.now, &mut self.io);
    }
}

#[test]
fn a_role_holds_from_the_next_transaction_on() {
    let (mut stage, _) = stage(&NAMED);
    let client = stage.client_in(HOME, Vec::new());
    let (first, pool) = stage.logs_in();
    assert_eq!(pool, PoolId(3), "its turn comes behind that of the first, which was last");
    assert!(stage.core.set_role(client, ServerRole::Primary));
    stage.asks(client);
    let (primary, pool) = stage.logs_in();
    assert_eq!(pool, PoolId(2));
    // Meanwhile it changes nothing.
    assert!(stage.core.set_role(client, ServerRole::Replica));
    stage.answers(primary);
    stage.asks(client);
    stage.answers(first);
    // One without a cluster has no choice.
    let other = stage.client();
    assert!(!stage.core.set_role(other, ServerRole::Primary));
}

#[test]
fn who_waits_for_a_replica_that_fails_goes_to_another_at_once() {
    let (mut stage, state) = stage(&[ConfiguredRole::Replica, ConfiguredRole::Replica]);
    let client = stage.client_in(HOME, Vec::new());
    stage.refuses(b"08006");
    assert_eq!(state.members.iter().filter(|it| it.report().ban.is_some()).count(), 1);
    let (server, _) = stage.logs_in();
    stage.asks(client);
    stage.answers(server);
    assert!(!stage.io.closed.contains(&Peer::Client(client)));
}

#[test]
fn writes_wait_for_a_primary_for_a_while() {
    let (mut stage, state) = stage(&[ConfiguredRole::Auto, ConfiguredRole::Auto]);
    let waits = stage.client_in(HOME, Vec::new());
    stage.logs_in();
    let gives_up = stage.client_in(HOME, Vec::new());
    for client in [waits, gives_up] {
        stage.core.set_role(client, ServerRole::Primary);
    }
    stage.asks(gives_up);
    stage.wait(4000);
    stage.asks(waits);
    assert!(stage.core.is_waiting(waits) && stage.io.opened.is_empty(), "nobody is the primary");
    stage.wait(1000);
    assert!(stage.io.closed.contains(&Peer::Client(gives_up)));
    let told = stage.client_gets(gives_up);
    let said = memchr::memmem::find(&told, b"no server of the database is fit");
    assert!(said.is_some(), "{}", told.escape_ascii());
    state.members[1].stands(Standing::Primary, false);
    stage.core.clusters_turned(stage.now, &mut stage.io);
    let (server, pool) = match stage.io.opened.is_empty() {
        // It was opened before, for a greeting.
        true => (stage.core.report(true, stage.now).servers[0].id, PoolId(3)),
        false => stage.logs_in(),
    };
    assert_eq!(pool, PoolId(3));
    stage.answers(server);
    assert!(!stage.client_gets(waits).is_empty());
}

#[test]
fn who_waits_for_a_server_that_answers_no_checks_is_told_after_a_while() {
    let (mut stage, state) = stage(&[ConfiguredRole::Primary]);
    let client = stage.client_in(HOME, Vec::new());
    let (server, _) = stage.logs_in();
    stage.client_gets(client);
    stage.client_says(client, &message(b'Q', b"insert into t values (1)\0"));
    let after = Some(Duration::from_secs(60));
    for millis in [0, 59_000, 1_000] {
        assert!(stage.io.closed.is_empty());
        stage.wait(millis);
        state.members[0].check_failed(stage.now, "it does not answer in time", after);
        stage.core.clusters_turned(stage.now, &mut stage.io);
    }
    assert!(stage.io.closed.contains(&Peer::Client(client)));
    assert!(stage.io.closed.contains(&Peer::Server(server)));
    let told = stage.client_gets(client);
    assert!(memchr::memmem::find(&told, b"C08006\0").is_some(), "{}", told.escape_ascii());
    // What it had asked for is not asked for again, and nothing is cancelled.
    assert!(stage.io.opened.is_empty() && stage.io.cancels.is_empty());
}

#[test]
fn nobody_goes_on_at_a_primary_that_was_replaced() {
    let (mut stage, state) = stage(&[ConfiguredRole::Auto]);
    state.members[0].stands(Standing::Primary, false);
    let client = stage.client_in(HOME, Vec::new());
    let (server, _) = stage.logs_in();
    stage.client_says(client, &message(b'Q', b"begin\0"));
    stage.server_says(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
    state.members[0].stands(Standing::Stale, false);
    stage.core.clusters_turned(stage.now, &mut stage.io);
    assert!(stage.io.closed.contains(&Peer::Client(client)));
    assert!(stage.io.closed.contains(&Peer::Server(server)));
    let told = stage.client_gets(client);
    assert!(memchr::memmem::find(&told, b"not the primary any more").is_some());
}

/// Three members of which the second has failed a check, its connection being as it was.
fn silent_second(stage: &mut Stage, state: &Arc<ClusterState>) {
    state.members[1].check_failed(stage.now, "it does not answer in time", None);
    stage.core.clusters_turned(stage.now, &mut stage.io);
}

/// A stage of a primary and two replicas, with a client that has its request at the second member.
fn at_the_second(request: &[u8]) -> (Stage, Arc<ClusterState>, ClientId, ServerId) {
    let (mut stage, state) =
        stage(&[ConfiguredRole::Primary, ConfiguredRole::Replica, ConfiguredRole::Replica]);
    let home = {
        let routing = Some(Arc::new(howdah_route::Settings::default()));
        let clusters = stage.core.pool(HOME).spec.clusters.clone();
        PoolSpec { routing, clusters, ..PoolSpec::new(1) }
    };
    stage.core.set_pool(HOME, Arc::new(home));
    let client = stage.client_in(HOME, Vec::new());
    let mut servers = Vec::new();
    servers.push(stage.logs_in());
    assert!(stage.core.set_role(client, ServerRole::Replica));
    for _ in 0..4 {
        stage.client_gets(client);
        stage.client_says(client, request);
        if !stage.io.opened.is_empty() {
            servers.push(stage.logs_in());
        }
        let at = servers.iter().find(|(id, _)| stage.io.sent.contains_key(&Peer::Server(*id)));
        let (server, pool) = *at.expect("one of them was asked");
        if pool == PoolId(3) {
            return (stage, state, client, server);
        }
        stage.answers(server);
    }
    panic!("it is never the second's turn");
}

/// The server that got a request in the place of one that hangs.
fn reroute_target(stage: &mut Stage, hung: ServerId) -> ServerId {
    if !stage.io.opened.is_empty() {
        stage.logs_in();
    }
    let report = stage.core.report(true, stage.now);
    let mut others = report.servers.iter().map(|it| it.id).filter(|id| *id != hung);
    others.find(|id| stage.io.sent.contains_key(&Peer::Server(*id))).expect("another server got it")
}

#[test]
fn read_without_an_answer_is_asked_of_another_member() {
    let read = message(b'Q', b"select 1\0");
    let (mut stage, state, client, hung) = at_the_second(&read);
    stage.server_gets(hung);
    silent_second(&mut stage, &state);
    assert_eq!(stage.io.cancels.len(), 1, "what runs there is cancelled");
    let other = reroute_target(&mut stage, hung);
    assert!(!stage.io.sent.contains_key(&Peer::Server(hung)));
    assert_eq!(stage.server_gets(other), read);
    // What the first says in the end is for nobody, and it is not used again.
    let late = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    stage.client_gets(client);
    stage.server_says(hung, &late);
    stage.core.cancel_finished(hung, stage.now, &mut stage.io);
    assert_eq!(stage.client_gets(client), b"");
    assert!(stage.io.closed.contains(&Peer::Server(hung)), "{:?}", stage.io.closed);
    stage.server_says(other, &late);
    assert_eq!(stage.client_gets(client), late);
}

#[test]
fn prepared_read_without_an_answer_is_prepared_and_asked_again() {
    let batch = [
        message(b'P', b"a\0select $1\0\0\0"),
        message(b'B', b"\0a\0\0\0\0\x01\0\0\0\x011\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat();
    let (mut stage, state, client, hung) = at_the_second_after(&batch);
    stage.server_gets(hung);
    silent_second(&mut stage, &state);
    let other = reroute_target(&mut stage, hung);
    assert!(!stage.io.sent.contains_key(&Peer::Server(hung)));
    let got = stage.server_gets(other);
    assert!(got.starts_with(b"P") && got.ends_with(&message(b'S', b"")), "{}", got.escape_ascii());
    stage.client_gets(client);
    let answer =
        [message(b'1', b""), message(b'2', b""), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")]
            .concat();
    stage.server_says(other, &answer);
    assert_eq!(stage.client_gets(client), answer);
}

/// A batch comes in as many pieces as its client and the network make of it.
#[test]
fn read_in_pieces_without_an_answer_is_asked_of_another_member() {
    let pieces = [
        message(b'P', b"\0select $1\0\0\0"),
        [message(b'B', b"\0\0\0\0\0\x01\0\0\0\x011\0\0"), vec![b'E', 0, 0]].concat(),
        vec![0, 9, 0, 0, 0, 0, 0],
        message(b'S', b""),
    ];
    for silent_after in 1..=pieces.len() {
        let (mut stage, state, client, hung) = at_the_second_after(&pieces[0]);
        for sent in 1..=pieces.len() {
            if sent > 1 {
                stage.client_says(client, &pieces[sent - 1]);
            }
            if sent == silent_after {
                stage.server_gets(hung);
                silent_second(&mut stage, &state);
            }
        }
        let other = reroute_target(&mut stage, hung);
        assert_eq!(stage.server_gets(other), pieces.concat(), "after {silent_after}");
        stage.client_gets(client);
        let answer = [
            message(b'1', b""),
            message(b'2', b""),
            message(b'C', b"SELECT 1\0"),
            message(b'Z', b"I"),
        ];
        stage.server_says(other, &answer.concat());
        assert_eq!(stage.client_gets(client), answer.concat());
    }
}

/// The meaning of a literal depends on settings that the pooler queries first; the hung server does not answer.
#[test]
fn batch_with_unanswered_settings_query_moves_to_another_member() {
    let batch = [
        message(b'P', b"\0insert into t values (timestamptz '2026-01-02 03:04')\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat();
    let (mut stage, state, _, hung) = at_the_second_after(&batch);
    let asked = stage.server_gets(hung);
    assert!(memchr::memmem::find(&asked, b"current_setting").is_some(), "{}", asked.escape_ascii());
    assert!(memchr::memmem::find(&asked, b"insert into").is_none());
    silent_second(&mut stage, &state);
    reroute_target(&mut stage, hung);
}

/// The same, but the batch is sent once only: before it the client has asked something else.
fn at_the_second_after(batch: &[u8]) -> (Stage, Arc<ClusterState>, ClientId, ServerId) {
    let (mut stage, state, client, server) = at_the_second(&message(b'Q', b"select 1\0"));
    stage.answers(server);
    for _ in 0..2 {
        // The third's turn, and the second's again.
        stage.client_says(client, &message(b'Q', b"select 1\0"));
        if !stage.io.opened.is_empty() {
            stage.logs_in();
        }
        if stage.io.sent.contains_key(&Peer::Server(server)) {
            stage.answers(server);
            continue;
        }
        let report = stage.core.report(true, stage.now);
        let asked =
            report.servers.iter().find(|it| stage.io.sent.contains_key(&Peer::Server(it.id)));
        let asked = asked.map(|it| it.id).unwrap();
        stage.answers(asked);
        stage.client_gets(client);
        stage.client_says(client, batch);
        if stage.io.sent.contains_key(&Peer::Server(server)) {
            return (stage, state, client, server);
        }
        panic!("it was the second's turn");
    }
    panic!("it was the third's turn");
}

#[test]
fn what_may_write_or_was_answered_in_part_is_not_asked_of_another() {
    let query = |sql: &str| message(b'Q', format!("{sql}\0").as_bytes());
    let cases = [
        query("insert into t values (1)"),
        query("select nextval('s')"),
        query("select 1; delete from t"),
        query("begin read only"),
        query("set work_mem = '1MB'"),
        query("this is not SQL"),
        // Two requests.
        [query("select 1"), query("select 2")].concat(),
        // A batch that is open.
        message(b'P', b"\0select 1\0\0\0"),
    ];
    for request in cases {
        let (mut stage, state, client, hung) = at_the_second(&query("select 1"));
        stage.answers(hung);
        // Its turn comes again.
        stage.client_says(client, &query("select 1"));
        if !stage.io.opened.is_empty() {
            stage.logs_in();
        }
        let report = stage.core.report(true, stage.now);
        let third =
            report.servers.iter().find(|it| stage.io.sent.contains_key(&Peer::Server(it.id)));
        let third = third.map(|it| it.id).unwrap();
        stage.answers(third);
        stage.client_says(client, &request);
        assert!(!stage.server_gets(hung).is_empty(), "{}", request.escape_ascii());
        silent_second(&mut stage, &state);
        assert!(!stage.io.sent.contains_key(&Peer::Server(third)), "{}", request.escape_ascii());
        assert!(stage.io.cancels.is_empty() && !stage.io.closed.contains(&Peer::Server(hung)));
    }
    // The first byte of an answer has come.
    let (mut stage, state, _, hung) = at_the_second(&query("select 1"));
    stage.server_gets(hung);
    stage.server_says(hung, b"C");
    silent_second(&mut stage, &state);
    assert!(stage.io.cancels.is_empty());
}
