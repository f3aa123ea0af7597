//! Tests of clients of a cluster: which members' servers they get, and in which queue they wait.

use std::{sync::Arc, time::Duration};

use super::{CoreHarness, message};
use crate::{
    BalancingStrategy, ClientId, ClusterMember, ClusterMembership, ClusterSpec, ClusterState,
    ConnectionLimit, CoreEvent, PeerId, PoolId, PoolSpec, ServerFailure, ServerId, TargetRole,
    cluster::{AssignedRole, ServerStatus},
};

const OWNER: PoolId = PoolId(1);
const BAN: Duration = Duration::from_secs(60);

/// Creates a cluster of members with these roles. The members' pools follow the owner pool.
fn cluster_harness(roles: &[AssignedRole]) -> (CoreHarness, Arc<ClusterState>) {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let state = ClusterState::new(roles.iter().copied(), BAN);
    let member = |(number, state): (u32, &Arc<crate::MemberHealth>)| ClusterMember {
        pool: PoolId(OWNER.0 + 1 + number),
        state: Arc::clone(state),
        weight: 1,
    };
    let failover_timeout = Some(Duration::from_secs(5));
    let cluster = Arc::new(ClusterSpec {
        members: (0..).zip(&state.members).map(member).collect(),
        strategy: BalancingStrategy::RoundRobin,
        failover_timeout,
        slow_start: Duration::ZERO,
        state: Arc::clone(&state),
    });
    let spec = PoolSpec::new(1);
    for member in &cluster.members {
        let place = ClusterMembership {
            owner: OWNER,
            shard: 0,
            state: Arc::clone(&member.state),
            failover_timeout,
        };
        let server_limits = [ConnectionLimit::new(1)].into();
        let spec = PoolSpec { member: Some(place), server_limits, ..spec.clone() };
        harness.core.set_pool(member.pool, Arc::new(spec));
    }
    harness.core.set_pool(OWNER, Arc::new(PoolSpec { clusters: [cluster].into(), ..spec }));
    (harness, state)
}

const PRIMARY_AND_REPLICA: [AssignedRole; 2] = [AssignedRole::Primary, AssignedRole::Replica];

impl CoreHarness {
    /// Returns the pool that a server belongs to.
    fn pool_of(&mut self, server: ServerId) -> PoolId {
        let report = self.core.report(true, self.now);
        report.servers.iter().find(|it| it.id == server).expect("it is there").pool
    }

    fn send_query(&mut self, client: ClientId) {
        self.send_from_client(client, &message(b'Q', b"select 1\0"));
    }

    /// Completes the server login that the core requested last; returns the server and its pool.
    fn log_in_last(&mut self) -> (ServerId, PoolId) {
        let server = self.log_in_server();
        let pool = self.pool_of(server);
        (server, pool)
    }

    fn reply(&mut self, server: ServerId) {
        assert!(!self.sent_to_server(server).is_empty(), "the server was sent a request");
        let answer = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
        self.send_from_server(server, &answer);
    }

    fn fail_login(&mut self, sqlstate: &[u8; 5]) {
        let id = self.io.opened.pop().expect("a server was ordered");
        let failure = ServerFailure { sqlstate: *sqlstate, message: "no".to_owned() };
        self.core.handle(CoreEvent::ServerFailed(id, failure), self.now, &mut self.io);
    }
}

#[test]
fn role_change_applies_from_next_transaction() {
    let (mut harness, _) = cluster_harness(&PRIMARY_AND_REPLICA);
    let client = harness.client_in(OWNER, Vec::new());
    let (first, pool) = harness.log_in_last();
    assert_eq!(pool, PoolId(3), "round robin starts after the first member");
    assert!(harness.core.set_role(client, TargetRole::Primary));
    harness.send_query(client);
    let (primary, pool) = harness.log_in_last();
    assert_eq!(pool, PoolId(2));
    // A change during a transaction does not move the client.
    assert!(harness.core.set_role(client, TargetRole::Replica));
    harness.reply(primary);
    harness.send_query(client);
    harness.reply(first);
    // The role of a client without a cluster cannot be set.
    let other = harness.client();
    assert!(!harness.core.set_role(other, TargetRole::Primary));
}

#[test]
fn client_waiting_for_failed_replica_moves_at_once() {
    let (mut harness, state) = cluster_harness(&[AssignedRole::Replica, AssignedRole::Replica]);
    let client = harness.client_in(OWNER, Vec::new());
    harness.fail_login(b"08006");
    assert_eq!(state.members.iter().filter(|it| it.report().ban.is_some()).count(), 1);
    let (server, _) = harness.log_in_last();
    harness.send_query(client);
    harness.reply(server);
    assert!(!harness.io.closed.contains(&PeerId::Client(client)));
}

#[test]
fn waiting_client_leaves_member_although_another_choice_has_seen_its_change() {
    let (mut harness, state) = cluster_harness(&[AssignedRole::Auto, AssignedRole::Auto]);
    state.members[0].set_status(ServerStatus::Primary, false);
    state.members[1].set_status(ServerStatus::Replica, false);
    let reader = harness.client_in(OWNER, Vec::new());
    let (replica, pool) = harness.log_in_last();
    assert_eq!(pool, PoolId(3));
    let writer = harness.client_in(OWNER, Vec::new());
    harness.core.set_role(writer, TargetRole::Primary);
    harness.send_query(writer);
    // The primary is replaced while its login is in progress, and the reader's choice of a member
    // copies the new states.
    state.members[0].set_status(ServerStatus::Stale, false);
    harness.send_query(reader);
    harness.reply(replica);
    let primary = harness.log_in_server();
    let sent = harness.sent_to_server(primary);
    assert!(memchr::memmem::find(&sent, b"select").is_none(), "{}", sent.escape_ascii());
    assert!(harness.core.is_waiting(writer));
}

#[test]
fn writes_wait_for_primary_until_failover_timeout() {
    let (mut harness, state) = cluster_harness(&[AssignedRole::Auto, AssignedRole::Auto]);
    let waits = harness.client_in(OWNER, Vec::new());
    harness.log_in_last();
    let gives_up = harness.client_in(OWNER, Vec::new());
    for client in [waits, gives_up] {
        harness.core.set_role(client, TargetRole::Primary);
    }
    harness.send_query(gives_up);
    harness.advance(4000);
    harness.send_query(waits);
    assert!(harness.core.is_waiting(waits) && harness.io.opened.is_empty(), "there is no primary");
    harness.advance(1000);
    assert!(harness.io.closed.contains(&PeerId::Client(gives_up)));
    let received = harness.sent_to_client(gives_up);
    let error = memchr::memmem::find(&received, b"no healthy server matches role");
    assert!(error.is_some(), "{}", received.escape_ascii());
    state.members[1].set_status(ServerStatus::Primary, false);
    harness.core.handle(CoreEvent::ClusterStateChanged, harness.now, &mut harness.io);
    let (server, pool) = if harness.io.opened.is_empty() {
        (harness.core.report(true, harness.now).servers[0].id, PoolId(3))
    } else {
        harness.log_in_last()
    };
    assert_eq!(pool, PoolId(3));
    harness.reply(server);
    assert!(!harness.sent_to_client(waits).is_empty());
}

#[test]
fn client_of_unresponsive_server_gets_error_after_timeout() {
    let (mut harness, state) = cluster_harness(&[AssignedRole::Primary]);
    let client = harness.client_in(OWNER, Vec::new());
    let (server, _) = harness.log_in_last();
    harness.sent_to_client(client);
    harness.send_from_client(client, &message(b'Q', b"insert into t values (1)\0"));
    let after = Some(Duration::from_secs(60));
    for millis in [0, 59_000, 1_000] {
        assert!(harness.io.closed.is_empty());
        harness.advance(millis);
        state.members[0].check_failed(harness.now, "it does not answer in time", after);
        harness.core.handle(CoreEvent::ClusterStateChanged, harness.now, &mut harness.io);
    }
    assert!(harness.io.closed.contains(&PeerId::Client(client)));
    assert!(harness.io.closed.contains(&PeerId::Server(server)));
    let received = harness.sent_to_client(client);
    assert!(memchr::memmem::find(&received, b"C08006\0").is_some(), "{}", received.escape_ascii());
    // The request is not sent again, and nothing is cancelled.
    assert!(harness.io.opened.is_empty() && harness.io.cancels.is_empty());
}

#[test]
fn clients_of_replaced_primary_are_disconnected() {
    let (mut harness, state) = cluster_harness(&[AssignedRole::Auto]);
    state.members[0].set_status(ServerStatus::Primary, false);
    let client = harness.client_in(OWNER, Vec::new());
    let (server, _) = harness.log_in_last();
    harness.send_from_client(client, &message(b'Q', b"begin\0"));
    harness.send_from_server(server, &[message(b'C', b"BEGIN\0"), message(b'Z', b"T")].concat());
    state.members[0].set_status(ServerStatus::Stale, false);
    harness.core.handle(CoreEvent::ClusterStateChanged, harness.now, &mut harness.io);
    assert!(harness.io.closed.contains(&PeerId::Client(client)));
    assert!(harness.io.closed.contains(&PeerId::Server(server)));
    let received = harness.sent_to_client(client);
    assert!(memchr::memmem::find(&received, b"no longer the primary").is_some());
}

/// Makes the second of three members fail a health check; its connections stay open.
fn make_second_unresponsive(harness: &mut CoreHarness, state: &Arc<ClusterState>) {
    state.members[1].check_failed(harness.now, "it does not answer in time", None);
    harness.core.handle(CoreEvent::ClusterStateChanged, harness.now, &mut harness.io);
}

/// Creates a primary and two replicas, and a client whose request runs on the second member.
fn request_at_second(request: &[u8]) -> (CoreHarness, Arc<ClusterState>, ClientId, ServerId) {
    let (mut harness, state) =
        cluster_harness(&[AssignedRole::Primary, AssignedRole::Replica, AssignedRole::Replica]);
    let home = {
        let routing = Some(Arc::new(howdah_route::RouteSettings::default()));
        let clusters = harness.core.engines().pools.pool(OWNER).spec.clusters.clone();
        PoolSpec { routing, clusters, ..PoolSpec::new(1) }
    };
    harness.core.set_pool(OWNER, Arc::new(home));
    let client = harness.client_in(OWNER, Vec::new());
    let mut servers = Vec::new();
    servers.push(harness.log_in_last());
    assert!(harness.core.set_role(client, TargetRole::Replica));
    for _ in 0..4 {
        harness.sent_to_client(client);
        harness.send_from_client(client, request);
        if !harness.io.opened.is_empty() {
            servers.push(harness.log_in_last());
        }
        let at = servers.iter().find(|(id, _)| harness.io.sent.contains_key(&PeerId::Server(*id)));
        let (server, pool) = *at.expect("a server has received the request");
        if pool == PoolId(3) {
            return (harness, state, client, server);
        }
        harness.reply(server);
    }
    panic!("the second member never gets a request");
}

/// Returns the server that a request was rerouted to.
fn reroute_target(harness: &mut CoreHarness, hung: ServerId) -> ServerId {
    if !harness.io.opened.is_empty() {
        harness.log_in_last();
    }
    let report = harness.core.report(true, harness.now);
    let mut others = report.servers.iter().map(|it| it.id).filter(|id| *id != hung);
    others
        .find(|id| harness.io.sent.contains_key(&PeerId::Server(*id)))
        .expect("another server has the request")
}

#[test]
fn unanswered_read_is_rerouted_to_another_member() {
    let read = message(b'Q', b"select 1\0");
    let (mut harness, state, client, hung) = request_at_second(&read);
    harness.sent_to_server(hung);
    make_second_unresponsive(&mut harness, &state);
    assert_eq!(harness.io.cancels.len(), 1, "the original request is cancelled");
    let other = reroute_target(&mut harness, hung);
    assert!(!harness.io.sent.contains_key(&PeerId::Server(hung)));
    assert_eq!(harness.sent_to_server(other), read);
    // A late reply of the first server is discarded, and the server is not used again.
    let late = [message(b'C', b"SELECT 1\0"), message(b'Z', b"I")].concat();
    harness.sent_to_client(client);
    harness.send_from_server(hung, &late);
    harness.core.handle(CoreEvent::CancelFinished(hung), harness.now, &mut harness.io);
    assert_eq!(harness.sent_to_client(client), b"");
    assert!(harness.io.closed.contains(&PeerId::Server(hung)), "{:?}", harness.io.closed);
    harness.send_from_server(other, &late);
    assert_eq!(harness.sent_to_client(client), late);
}

#[test]
fn unanswered_prepared_read_is_prepared_and_rerouted() {
    let batch = [
        message(b'P', b"a\0select $1\0\0\0"),
        message(b'B', b"\0a\0\0\0\0\x01\0\0\0\x011\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat();
    let (mut harness, state, client, hung) = batch_at_second(&batch);
    harness.sent_to_server(hung);
    make_second_unresponsive(&mut harness, &state);
    let other = reroute_target(&mut harness, hung);
    assert!(!harness.io.sent.contains_key(&PeerId::Server(hung)));
    let got = harness.sent_to_server(other);
    assert!(got.starts_with(b"P") && got.ends_with(&message(b'S', b"")), "{}", got.escape_ascii());
    harness.sent_to_client(client);
    let answer =
        [message(b'1', b""), message(b'2', b""), message(b'C', b"SELECT 1\0"), message(b'Z', b"I")]
            .concat();
    harness.send_from_server(other, &answer);
    assert_eq!(harness.sent_to_client(client), answer);
}

/// A batch that arrives in pieces, even within a message, is rerouted.
#[test]
fn unanswered_read_in_pieces_is_rerouted() {
    let pieces = [
        message(b'P', b"\0select $1\0\0\0"),
        [message(b'B', b"\0\0\0\0\0\x01\0\0\0\x011\0\0"), vec![b'E', 0, 0]].concat(),
        vec![0, 9, 0, 0, 0, 0, 0],
        message(b'S', b""),
    ];
    for silent_after in 1..=pieces.len() {
        let (mut harness, state, client, hung) = batch_at_second(&pieces[0]);
        for sent in 1..=pieces.len() {
            if sent > 1 {
                harness.send_from_client(client, &pieces[sent - 1]);
            }
            if sent == silent_after {
                harness.sent_to_server(hung);
                make_second_unresponsive(&mut harness, &state);
            }
        }
        let other = reroute_target(&mut harness, hung);
        assert_eq!(harness.sent_to_server(other), pieces.concat(), "after {silent_after}");
        harness.sent_to_client(client);
        let answer = [
            message(b'1', b""),
            message(b'2', b""),
            message(b'C', b"SELECT 1\0"),
            message(b'Z', b"I"),
        ];
        harness.send_from_server(other, &answer.concat());
        assert_eq!(harness.sent_to_client(client), answer.concat());
    }
}

/// A batch that waits for the pooler's query of parse settings is rerouted, because the hung server
/// has not received it.
#[test]
fn batch_with_unanswered_settings_query_is_rerouted() {
    let batch = [
        message(b'P', b"\0insert into t values (timestamptz '2026-01-02 03:04')\0\0\0"),
        message(b'B', b"\0\0\0\0\0\0\0\0"),
        message(b'E', b"\0\0\0\0\0"),
        message(b'S', b""),
    ]
    .concat();
    let (mut harness, state, _, hung) = batch_at_second(&batch);
    let asked = harness.sent_to_server(hung);
    assert!(memchr::memmem::find(&asked, b"current_setting").is_some(), "{}", asked.escape_ascii());
    assert!(memchr::memmem::find(&asked, b"insert into").is_none());
    make_second_unresponsive(&mut harness, &state);
    reroute_target(&mut harness, hung);
}

/// Like [`request_at_second`], but with a batch, sent after another request.
fn batch_at_second(batch: &[u8]) -> (CoreHarness, Arc<ClusterState>, ClientId, ServerId) {
    let (mut harness, state, client, server) = request_at_second(&message(b'Q', b"select 1\0"));
    harness.reply(server);
    for _ in 0..2 {
        // The third member is next, then the second again.
        harness.send_from_client(client, &message(b'Q', b"select 1\0"));
        if !harness.io.opened.is_empty() {
            harness.log_in_last();
        }
        if harness.io.sent.contains_key(&PeerId::Server(server)) {
            harness.reply(server);
            continue;
        }
        let report = harness.core.report(true, harness.now);
        let asked =
            report.servers.iter().find(|it| harness.io.sent.contains_key(&PeerId::Server(it.id)));
        let asked = asked.map(|it| it.id).unwrap();
        harness.reply(asked);
        harness.sent_to_client(client);
        harness.send_from_client(client, batch);
        if harness.io.sent.contains_key(&PeerId::Server(server)) {
            return (harness, state, client, server);
        }
        panic!("the second member was next");
    }
    panic!("the third member was next");
}

#[test]
fn possible_write_or_partly_answered_request_is_not_rerouted() {
    let query = |sql: &str| message(b'Q', format!("{sql}\0").as_bytes());
    let cases = [
        query("insert into t values (1)"),
        query("select nextval('s')"),
        query("select 1; delete from t"),
        query("begin read only"),
        query("set work_mem = '1MB'"),
        query("this is not SQL"),
        // Two requests are not rerouted.
        [query("select 1"), query("select 2")].concat(),
        // An open batch is not rerouted.
        message(b'P', b"\0select 1\0\0\0"),
    ];
    for request in cases {
        let (mut harness, state, client, hung) = request_at_second(&query("select 1"));
        harness.reply(hung);
        // The second member is next again.
        harness.send_from_client(client, &query("select 1"));
        if !harness.io.opened.is_empty() {
            harness.log_in_last();
        }
        let report = harness.core.report(true, harness.now);
        let third =
            report.servers.iter().find(|it| harness.io.sent.contains_key(&PeerId::Server(it.id)));
        let third = third.map(|it| it.id).unwrap();
        harness.reply(third);
        harness.send_from_client(client, &request);
        assert!(!harness.sent_to_server(hung).is_empty(), "{}", request.escape_ascii());
        make_second_unresponsive(&mut harness, &state);
        assert!(
            !harness.io.sent.contains_key(&PeerId::Server(third)),
            "{}",
            request.escape_ascii()
        );
        assert!(
            harness.io.cancels.is_empty() && !harness.io.closed.contains(&PeerId::Server(hung))
        );
    }
    // The first byte of a reply has arrived, so the request is not rerouted.
    let (mut harness, state, _, hung) = request_at_second(&query("select 1"));
    harness.sent_to_server(hung);
    harness.send_from_server(hung, b"C");
    make_second_unresponsive(&mut harness, &state);
    assert!(harness.io.cancels.is_empty());
}
