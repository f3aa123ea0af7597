//! Clients of a cluster: whose servers they get, and where they wait.

use std::{sync::Arc, time::Duration};

use super::{Stage, message};
use crate::{
    ClientId, Cluster, ClusterMember, ClusterState, Limit, MemberPlace, Peer, PoolId, PoolSpec,
    ServerFailure, ServerId, ServerRole, Strategy, cluster::Standing, config::EntryRole,
};

const HOME: PoolId = PoolId(1);
const BAN: Duration = Duration::from_secs(60);

/// A stage with a cluster of these servers, whose pools follow that of their home.
fn stage(roles: &[EntryRole]) -> (Stage, Arc<ClusterState>) {
    let mut stage = Stage::new(PoolSpec::new(1));
    let state = ClusterState::new(roles.iter().copied(), BAN);
    let member = |(number, state): (u32, &Arc<crate::Member>)| ClusterMember {
        pool: PoolId(HOME.0 + 1 + number),
        state: Arc::clone(state),
        weight: 1,
    };
    let failover_wait = Some(Duration::from_secs(5));
    let cluster = Arc::new(Cluster {
        members: (0..).zip(&state.members).map(member).collect(),
        strategy: Strategy::RoundRobin,
        failover_wait,
        slow_start: Duration::ZERO,
        state: Arc::clone(&state),
    });
    let spec = PoolSpec::new(1);
    for member in &cluster.members {
        let place =
            MemberPlace { home: HOME, shard: 0, state: Arc::clone(&member.state), failover_wait };
        let server_limits = [Limit::new(1)].into();
        let spec = PoolSpec { member: Some(place), server_limits, ..spec.clone() };
        stage.core.set_pool(member.pool, Arc::new(spec));
    }
    stage.core.set_pool(HOME, Arc::new(PoolSpec { clusters: [cluster].into(), ..spec }));
    (stage, state)
}

const NAMED: [EntryRole; 2] = [EntryRole::Primary, EntryRole::Replica];

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
    let (mut stage, state) = stage(&[EntryRole::Replica, EntryRole::Replica]);
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
    let (mut stage, state) = stage(&[EntryRole::Auto, EntryRole::Auto]);
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
    let (mut stage, state) = stage(&[EntryRole::Primary]);
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
    let (mut stage, state) = stage(&[EntryRole::Auto]);
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
