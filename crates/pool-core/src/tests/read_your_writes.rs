//! Tests of read-your-writes: where a client's reads go until standbys have replayed its writes.

use std::{sync::Arc, time::Duration};

use howdah_route::{RolePreference, RouteSettings};

use super::{CoreHarness, message};
use crate::{
    BalancingStrategy, CheckFindings, ClientId, ClusterMember, ClusterMembership, ClusterSpec,
    ClusterState, ConnectionLimit, CoreEvent, PeerId, PoolId, PoolSpec, ServerId, Time,
    cluster::{AssignedRole, CheckSeq, ServerStatus},
};

const OWNER: PoolId = PoolId(1);
const PRIMARY: PoolId = PoolId(2);
const STANDBYS: [PoolId; 2] = [PoolId(3), PoolId(4)];

/// A primary with two standbys.
struct ReadYourWritesHarness {
    harness: CoreHarness,
    /// The transaction status that servers report in ReadyForQuery.
    status: u8,
    state: Arc<ClusterState>,
}

fn read_your_writes_harness(settings: RouteSettings) -> ReadYourWritesHarness {
    let mut harness = CoreHarness::new(PoolSpec::new(1));
    let state = ClusterState::new([AssignedRole::Auto; 3], Duration::from_secs(60));
    let failover_timeout = Some(Duration::from_secs(5));
    let member = |(number, state): (u32, &Arc<crate::MemberHealth>)| ClusterMember {
        pool: PoolId(PRIMARY.0 + number),
        state: Arc::clone(state),
        weight: 1,
    };
    let cluster = Arc::new(ClusterSpec {
        members: (0..).zip(&state.members).map(member).collect(),
        strategy: BalancingStrategy::RoundRobin,
        failover_timeout,
        slow_start: Duration::ZERO,
        state: Arc::clone(&state),
    });
    for member in &cluster.members {
        let state = Arc::clone(&member.state);
        let place = ClusterMembership { owner: OWNER, shard: 0, state, failover_timeout };
        let server_limits = [ConnectionLimit::new(1)].into();
        let spec = PoolSpec { member: Some(place), server_limits, ..PoolSpec::new(1) };
        harness.core.set_pool(member.pool, Arc::new(spec));
    }
    let (clusters, routing) = ([cluster].into(), Some(Arc::new(settings)));
    harness.core.set_pool(OWNER, Arc::new(PoolSpec { clusters, routing, ..PoolSpec::new(1) }));
    let cluster = ReadYourWritesHarness { harness, status: b'I', state };
    cluster.report_health(0, ServerStatus::Primary, CheckSeq::default());
    (1..3).for_each(|standby| {
        cluster.report_health(standby, ServerStatus::Replica, CheckSeq::default());
    });
    cluster
}

fn settings(role: RolePreference) -> RouteSettings {
    RouteSettings { role, read_your_writes: true, ..RouteSettings::default() }
}

impl ReadYourWritesHarness {
    /// Reports a server's role and replay position.
    fn report_health(&self, server: usize, standing: ServerStatus, replayed: CheckSeq) {
        let member = &self.state.members[server];
        let found = CheckFindings { replayed, ..CheckFindings::default() };
        assert!(member.check_succeeded(member.suspicions(), standing, found, Time(1)));
    }

    /// Marks a standby as having replayed all WAL that the primary has written so far.
    fn mark_replayed(&self, standby: usize) {
        self.report_health(standby, ServerStatus::Replica, CheckSeq::allocate());
    }

    fn client(&mut self) -> ClientId {
        let client = self.harness.client_in(OWNER, Vec::new());
        if !self.harness.io.opened.is_empty() {
            self.harness.log_in_server();
        }
        self.harness.sent_to_client(client);
        client
    }

    /// Runs a query for a client; returns the pool of the server that answered.
    fn query(&mut self, client: ClientId, sql: &str, tag: &str) -> PoolId {
        self.harness.send_from_client(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        let (server, pool) = self.linked_server(client).expect("the client has a server");
        self.reply(server, tag);
        pool
    }

    fn reply(&mut self, server: ServerId, tag: &str) {
        let done = message(b'C', format!("{tag}\0").as_bytes());
        self.status = match tag {
            "BEGIN" => b'T',
            "COMMIT" => b'I',
            _ => self.status,
        };
        self.harness.send_from_server(server, &[done, message(b'Z', &[self.status])].concat());
    }

    fn linked_server(&mut self, client: ClientId) -> Option<(ServerId, PoolId)> {
        while !self.harness.io.opened.is_empty() {
            self.harness.log_in_server();
        }
        let report = self.harness.core.report(true, self.harness.now);
        let mut servers = report.servers.iter().map(|it| (it.id, it.pool));
        servers.find(|(id, _)| self.harness.core.linked_client(*id) == Some(client))
    }

    /// Returns the pools that serve a client's reads, sorted, without duplicates.
    fn read_pools(&mut self, client: ClientId) -> Vec<PoolId> {
        let mut pools: Vec<_> =
            (0..12).map(|_| self.query(client, "select 1", "SELECT 1")).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Returns the numbers of redirected reads and of reads that waited.
    fn read_counters(&mut self) -> (u64, u64) {
        let report = self.harness.core.report(false, self.harness.now);
        let sum =
            |of: fn(&crate::PoolStats) -> u64| report.pools.iter().map(|it| of(&it.stats)).sum();
        (sum(|it| it.reads_redirected), sum(|it| it.reads_waited))
    }
}

#[test]
fn reads_follow_own_writes() {
    let mut cluster = read_your_writes_harness(settings(RolePreference::Auto));
    let (writes, reads) = (cluster.client(), cluster.client());
    let all = vec![PRIMARY, STANDBYS[0], STANDBYS[1]];
    assert_eq!(cluster.read_pools(writes), all);
    assert_eq!(cluster.read_counters(), (0, 0));
    assert!(cluster.harness.io.primary_checks.is_empty(), "no write was recorded");
    assert_eq!(cluster.query(writes, "insert into a values (1)", "INSERT 0 1"), PRIMARY);
    assert_eq!(cluster.harness.io.primary_checks, [PRIMARY]);
    assert_eq!(cluster.read_pools(writes), [PRIMARY]);
    assert_eq!(cluster.read_counters(), (12, 0));
    assert_eq!(cluster.read_pools(reads), all, "other clients are not affected");
    cluster.mark_replayed(2);
    assert_eq!(cluster.read_pools(writes), [PRIMARY, STANDBYS[1]]);
    cluster.mark_replayed(1);
    assert_eq!(cluster.read_pools(writes), all);
    // Reads on the primary do not request another check; a write does.
    assert_eq!(cluster.harness.io.primary_checks.len(), 1);
    cluster.state.write_tracker.start_primary_check();
    assert_eq!(cluster.query(writes, "update a set b = 1", "UPDATE 1"), PRIMARY);
    assert_eq!(cluster.query(writes, "update a set b = 1", "UPDATE 1"), PRIMARY);
    assert_eq!(cluster.harness.io.primary_checks.len(), 2, "a check is pending already");
    assert_eq!(cluster.read_pools(writes), [PRIMARY]);
    assert_eq!(cluster.read_counters(), (24, 0));
}

#[test]
fn reads_are_not_redirected_without_the_setting() {
    let mut cluster = read_your_writes_harness(RouteSettings {
        role: RolePreference::Auto,
        ..RouteSettings::default()
    });
    let client = cluster.client();
    cluster.query(client, "insert into a values (1)", "INSERT 0 1");
    assert!(cluster.harness.io.primary_checks.is_empty());
    assert_eq!(cluster.read_pools(client).len(), 3);
    // A client can turn read-your-writes on for its session, and off again.
    let run_command = |cluster: &mut ReadYourWritesHarness, sql: &str| {
        cluster.harness.send_from_client(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        String::from_utf8_lossy(&cluster.harness.sent_to_client(client)).into_owned()
    };
    assert!(run_command(&mut cluster, "show read your writes").contains("off"));
    assert!(
        run_command(&mut cluster, "set read your writes to on").contains("SET READ YOUR WRITES")
    );
    assert!(run_command(&mut cluster, "show read your writes").contains("on"));
    cluster.query(client, "insert into a values (1)", "INSERT 0 1");
    assert_eq!(cluster.read_pools(client), [PRIMARY]);
    run_command(&mut cluster, "set read your writes to default");
    assert_eq!(cluster.read_pools(client).len(), 3);
}

#[test]
fn possible_writes_count_as_writes() {
    for (sql, tag, wrote) in [
        ("select * from a for update", "SELECT 1", true),
        ("select nextval('s')", "SELECT 1", true),
        ("call p()", "CALL", true),
        ("set application_name to 'x'", "SET", false),
        ("select 1", "SELECT 1", false),
    ] {
        let mut cluster = read_your_writes_harness(settings(RolePreference::Auto));
        let client = cluster.client();
        cluster.query(client, sql, tag);
        assert_eq!(cluster.harness.io.primary_checks.len(), usize::from(wrote), "{sql}");
    }
    // According to its command tags, the transaction only read; the client may use any server.
    let mut cluster = read_your_writes_harness(settings(RolePreference::Any));
    let client = cluster.client();
    for round in 0..6 {
        let wrote = cluster.harness.io.primary_checks.len();
        let pool = cluster.query(client, "begin", "BEGIN");
        cluster.query(client, "select f()", "SELECT 1");
        assert_eq!(cluster.query(client, "commit", "COMMIT"), pool);
        assert_eq!(cluster.harness.io.primary_checks.len(), wrote, "{round}");
    }
    // A procedure may have committed something before it failed.
    cluster.harness.send_from_client(client, &message(b'Q', b"call p()\0"));
    let (server, _) = cluster.linked_server(client).unwrap();
    let error = message(b'E', b"SERROR\0VERROR\0C22012\0Mno\0\0");
    cluster.harness.send_from_server(server, &[error, message(b'Z', b"I")].concat());
    assert_eq!(cluster.harness.io.primary_checks.len(), 1);
}

#[test]
fn replica_only_client_waits_for_standby() {
    let mut cluster = read_your_writes_harness(settings(RolePreference::Auto));
    let client = cluster.client();
    cluster.query(client, "insert into a values (1)", "INSERT 0 1");
    cluster.harness.send_from_client(client, &message(b'Q', b"set server role to 'replica'\0"));
    cluster.harness.send_from_client(client, &message(b'Q', b"select 1\0"));
    assert!(cluster.harness.core.is_waiting(client));
    assert!(cluster.state.write_tracker.take_replay_request());
    cluster.mark_replayed(1);
    cluster.harness.core.handle(
        CoreEvent::ClusterStateChanged,
        cluster.harness.now,
        &mut cluster.harness.io,
    );
    let (server, pool) = cluster.linked_server(client).expect("the client has a server");
    assert_eq!(pool, STANDBYS[0]);
    cluster.reply(server, "SELECT 1");
    assert_eq!(cluster.read_counters(), (0, 1));
    // After the failover timeout, the client is disconnected with the reason.
    cluster.query(client, "/* any */ select 1", "SELECT 1");
    cluster.harness.send_from_client(client, &message(b'Q', b"set server role to 'primary'\0"));
    cluster.query(client, "insert into a values (2)", "INSERT 0 1");
    cluster.harness.send_from_client(client, &message(b'Q', b"set server role to 'replica'\0"));
    cluster.harness.sent_to_client(client);
    cluster.harness.send_from_client(client, &message(b'Q', b"select 1\0"));
    cluster.harness.advance(4900);
    assert!(cluster.harness.core.is_waiting(client));
    cluster.harness.advance(200);
    assert!(cluster.harness.io.closed.contains(&PeerId::Client(client)));
    let received = cluster.harness.sent_to_client(client);
    let why = b"no standby replayed this session's writes in time";
    assert!(memchr::memmem::find(&received, why).is_some(), "{}", received.escape_ascii());
}

#[test]
fn reads_after_write_use_primary_despite_primary_reads_off() {
    for role in [RolePreference::Auto, RolePreference::PreferReplica] {
        let mut cluster =
            read_your_writes_harness(RouteSettings { primary_reads: false, ..settings(role) });
        let client = cluster.client();
        assert_eq!(cluster.read_pools(client), STANDBYS);
        cluster.harness.send_from_client(client, &message(b'Q', b"set server role to 'primary'\0"));
        cluster.query(client, "insert into a values (1)", "INSERT 0 1");
        cluster.harness.send_from_client(client, &message(b'Q', b"set server role to 'default'\0"));
        assert_eq!(cluster.read_pools(client), [PRIMARY], "{role:?}");
        cluster.mark_replayed(2);
        assert_eq!(cluster.read_pools(client), [STANDBYS[1]]);
        cluster.mark_replayed(1);
        assert_eq!(cluster.read_pools(client), STANDBYS);
    }
}

#[test]
fn promoted_standby_serves_all_reads() {
    let mut cluster = read_your_writes_harness(settings(RolePreference::Auto));
    let client = cluster.client();
    cluster.query(client, "insert into a values (1)", "INSERT 0 1");
    // The primary is down, and no standby is known to have replayed the write.
    cluster.state.members[0].suspect();
    cluster.harness.send_from_client(client, &message(b'Q', b"select 1\0"));
    assert!(cluster.harness.core.is_waiting(client));
    cluster.report_health(1, ServerStatus::Primary, CheckSeq::default());
    cluster.state.members[0].set_status(ServerStatus::Stale, false);
    cluster.harness.core.handle(
        CoreEvent::ClusterStateChanged,
        cluster.harness.now,
        &mut cluster.harness.io,
    );
    let (server, pool) = cluster.linked_server(client).expect("the client has a server");
    assert_eq!(pool, STANDBYS[0]);
    cluster.reply(server, "SELECT 1");
    // No read waits for writes that were lost with the old primary: the other standby follows the
    // new one.
    assert_eq!(cluster.read_pools(client), [STANDBYS[0]]);
    cluster.mark_replayed(2);
    assert_eq!(cluster.read_pools(client), STANDBYS);
    // A standby that was unreachable may have been restored from an older backup.
    cluster.state.members[2].suspect();
    assert_eq!(cluster.read_pools(client), [STANDBYS[0]]);
}

#[test]
fn handed_over_client_still_reads_own_writes() {
    let mut cluster = read_your_writes_harness(settings(RolePreference::Auto));
    let client = cluster.client();
    cluster.query(client, "insert into a values (1)", "INSERT 0 1");
    cluster.mark_replayed(1);
    cluster.mark_replayed(2);
    let CoreHarness { core, io, now, .. } = &mut cluster.harness;
    let (home, migrant) = core.takeover().hand_over(client, *now, io).unwrap();
    assert_eq!(migrant.written_shards, [0]);
    let client = cluster.harness.core.takeover().adopt(home, migrant, cluster.harness.now).unwrap();
    assert_eq!(
        cluster.read_pools(client),
        [PRIMARY],
        "replay positions of the old process are not known here"
    );
    cluster.mark_replayed(1);
    assert_eq!(cluster.read_pools(client), [PRIMARY, STANDBYS[0]]);
}
