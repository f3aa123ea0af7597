//! Clients that read what they wrote: where their reads go until standbys have replayed it.

use std::{sync::Arc, time::Duration};

use howdah_route::{RolePreference, Settings};

use super::{Stage, message};
use crate::{
    ClientId, Cluster, ClusterMember, ClusterState, Limit, MemberPlace, MemberState, Peer, PoolId,
    PoolSpec, ServerId, Strategy, Time,
    cluster::{Question, Standing},
    config::ConfiguredRole,
};

const HOME: PoolId = PoolId(1);
const PRIMARY: PoolId = PoolId(2);
const STANDBYS: [PoolId; 2] = [PoolId(3), PoolId(4)];

/// A stage with a primary and two standbys.
struct Own {
    stage: Stage,
    /// What ReadyForQuery says.
    status: u8,
    state: Arc<ClusterState>,
}

fn own(settings: Settings) -> Own {
    let mut stage = Stage::new(PoolSpec::new(1));
    let state = ClusterState::new([ConfiguredRole::Auto; 3], Duration::from_secs(60));
    let failover_timeout = Some(Duration::from_secs(5));
    let member = |(number, state): (u32, &Arc<crate::Member>)| ClusterMember {
        pool: PoolId(PRIMARY.0 + number),
        state: Arc::clone(state),
        weight: 1,
    };
    let cluster = Arc::new(Cluster {
        members: (0..).zip(&state.members).map(member).collect(),
        strategy: Strategy::RoundRobin,
        failover_timeout,
        slow_start: Duration::ZERO,
        state: Arc::clone(&state),
    });
    for member in &cluster.members {
        let state = Arc::clone(&member.state);
        let place = MemberPlace { home: HOME, shard: 0, state, failover_timeout };
        let server_limits = [Limit::new(1)].into();
        let spec = PoolSpec { member: Some(place), server_limits, ..PoolSpec::new(1) };
        stage.core.set_pool(member.pool, Arc::new(spec));
    }
    let (clusters, routing) = ([cluster].into(), Some(Arc::new(settings)));
    stage.core.set_pool(HOME, Arc::new(PoolSpec { clusters, routing, ..PoolSpec::new(1) }));
    let own = Own { stage, status: b'I', state };
    own.hears(0, Standing::Primary, Question::default());
    (1..3).for_each(|standby| own.hears(standby, Standing::Replica, Question::default()));
    own
}

fn settings(role: RolePreference) -> Settings {
    Settings { role, read_your_writes: true, ..Settings::default() }
}

impl Own {
    /// A server has said what it is, and how far.
    fn hears(&self, server: usize, standing: Standing, replayed: Question) {
        let member = &self.state.members[server];
        let found = MemberState { replayed, ..MemberState::default() };
        assert!(member.check_succeeded(member.doubts(), standing, found, Time(1)));
    }

    /// A standby has replayed what the primary has at this moment.
    fn replays(&self, standby: usize) {
        self.hears(standby, Standing::Replica, Question::ask());
    }

    fn client(&mut self) -> ClientId {
        let client = self.stage.client_in(HOME, Vec::new());
        if !self.stage.io.opened.is_empty() {
            self.stage.server();
        }
        self.stage.client_gets(client);
        client
    }

    /// Has a client ask something, and be answered; gives the pool of the server that did.
    fn asks(&mut self, client: ClientId, sql: &str, tag: &str) -> PoolId {
        self.stage.client_says(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        let (server, pool) = self.serving(client).expect("it has a server");
        self.answers(server, tag);
        pool
    }

    fn answers(&mut self, server: ServerId, tag: &str) {
        let done = message(b'C', format!("{tag}\0").as_bytes());
        self.status = match tag {
            "BEGIN" => b'T',
            "COMMIT" => b'I',
            _ => self.status,
        };
        self.stage.server_says(server, &[done, message(b'Z', &[self.status])].concat());
    }

    fn serving(&mut self, client: ClientId) -> Option<(ServerId, PoolId)> {
        while !self.stage.io.opened.is_empty() {
            self.stage.server();
        }
        let report = self.stage.core.report(true, self.stage.now);
        let mut servers = report.servers.iter().map(|it| (it.id, it.pool));
        servers.find(|(id, _)| self.stage.core.linked_client(*id) == Some(client))
    }

    /// The pools that serve reads of a client, in order, each once.
    fn reads(&mut self, client: ClientId) -> Vec<PoolId> {
        let mut pools: Vec<_> =
            (0..12).map(|_| self.asks(client, "select 1", "SELECT 1")).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Reads that were kept, and clients that waited.
    fn counted(&mut self) -> (u64, u64) {
        let report = self.stage.core.report(false, self.stage.now);
        let sum = |of: fn(&crate::Tally) -> u64| report.pools.iter().map(|it| of(&it.tally)).sum();
        (sum(|it| it.reads_kept), sum(|it| it.reads_awaited))
    }
}

#[test]
fn who_wrote_reads_where_that_is() {
    let mut own = own(settings(RolePreference::Auto));
    let (writes, reads) = (own.client(), own.client());
    let all = vec![PRIMARY, STANDBYS[0], STANDBYS[1]];
    assert_eq!(own.reads(writes), all);
    assert_eq!(own.counted(), (0, 0));
    assert!(own.stage.io.wrote.is_empty(), "nobody wants to know");
    assert_eq!(own.asks(writes, "insert into a values (1)", "INSERT 0 1"), PRIMARY);
    assert_eq!(own.stage.io.wrote, [PRIMARY]);
    assert_eq!(own.reads(writes), [PRIMARY]);
    assert_eq!(own.counted(), (12, 0));
    assert_eq!(own.reads(reads), all, "others read as before");
    own.replays(2);
    assert_eq!(own.reads(writes), [PRIMARY, STANDBYS[1]]);
    own.replays(1);
    assert_eq!(own.reads(writes), all);
    // Reads at the primary do not begin it again, and a write does.
    assert_eq!(own.stage.io.wrote.len(), 1);
    own.state.tide.asks_primary();
    assert_eq!(own.asks(writes, "update a set b = 1", "UPDATE 1"), PRIMARY);
    assert_eq!(own.asks(writes, "update a set b = 1", "UPDATE 1"), PRIMARY);
    assert_eq!(own.stage.io.wrote.len(), 2, "it is to be asked already");
    assert_eq!(own.reads(writes), [PRIMARY]);
    assert_eq!(own.counted(), (24, 0));
}

#[test]
fn without_the_setting_nothing_is_followed() {
    let mut own = own(Settings { role: RolePreference::Auto, ..Settings::default() });
    let client = own.client();
    own.asks(client, "insert into a values (1)", "INSERT 0 1");
    assert!(own.stage.io.wrote.is_empty());
    assert_eq!(own.reads(client).len(), 3);
    // It may say so for itself, and take it back.
    let says = |own: &mut Own, sql: &str| {
        own.stage.client_says(client, &message(b'Q', format!("{sql}\0").as_bytes()));
        String::from_utf8_lossy(&own.stage.client_gets(client)).into_owned()
    };
    assert!(says(&mut own, "show read your writes").contains("off"));
    assert!(says(&mut own, "set read your writes to on").contains("SET READ YOUR WRITES"));
    assert!(says(&mut own, "show read your writes").contains("on"));
    own.asks(client, "insert into a values (1)", "INSERT 0 1");
    assert_eq!(own.reads(client), [PRIMARY]);
    says(&mut own, "set read your writes to default");
    assert_eq!(own.reads(client).len(), 3);
}

#[test]
fn what_may_have_written_did() {
    for (sql, tag, wrote) in [
        ("select * from a for update", "SELECT 1", true),
        ("select nextval('s')", "SELECT 1", true),
        ("call p()", "CALL", true),
        ("set application_name to 'x'", "SET", false),
        ("select 1", "SELECT 1", false),
    ] {
        let mut own = own(settings(RolePreference::Auto));
        let client = own.client();
        own.asks(client, sql, tag);
        assert_eq!(own.stage.io.wrote.len(), usize::from(wrote), "{sql}");
    }
    // A transaction that only read, by its tags, at a server that any would have done for.
    let mut own = own(settings(RolePreference::Any));
    let client = own.client();
    for round in 0..6 {
        let wrote = own.stage.io.wrote.len();
        let pool = own.asks(client, "begin", "BEGIN");
        own.asks(client, "select f()", "SELECT 1");
        assert_eq!(own.asks(client, "commit", "COMMIT"), pool);
        assert_eq!(own.stage.io.wrote.len(), wrote, "{round}");
    }
    // One that failed may have committed before, as procedures do.
    own.stage.client_says(client, &message(b'Q', b"call p()\0"));
    let (server, _) = own.serving(client).unwrap();
    let error = message(b'E', b"SERROR\0VERROR\0C22012\0Mno\0\0");
    own.stage.server_says(server, &[error, message(b'Z', b"I")].concat());
    assert_eq!(own.stage.io.wrote.len(), 1);
}

#[test]
fn who_may_only_read_at_standbys_waits_for_one() {
    let mut own = own(settings(RolePreference::Auto));
    let client = own.client();
    own.asks(client, "insert into a values (1)", "INSERT 0 1");
    own.stage.client_says(client, &message(b'Q', b"set server role to 'replica'\0"));
    own.stage.client_says(client, &message(b'Q', b"select 1\0"));
    assert!(own.stage.core.is_waiting(client));
    assert!(own.state.tide.take_awaited());
    own.replays(1);
    own.stage.core.clusters_turned(own.stage.now, &mut own.stage.io);
    let (server, pool) = own.serving(client).expect("it has one");
    assert_eq!(pool, STANDBYS[0]);
    own.answers(server, "SELECT 1");
    assert_eq!(own.counted(), (0, 1));
    // It is not said for how long: then it is refused, and told why.
    own.asks(client, "/* any */ select 1", "SELECT 1");
    own.stage.client_says(client, &message(b'Q', b"set server role to 'primary'\0"));
    own.asks(client, "insert into a values (2)", "INSERT 0 1");
    own.stage.client_says(client, &message(b'Q', b"set server role to 'replica'\0"));
    own.stage.client_gets(client);
    own.stage.client_says(client, &message(b'Q', b"select 1\0"));
    own.stage.wait(4900);
    assert!(own.stage.core.is_waiting(client));
    own.stage.wait(200);
    assert!(own.stage.io.closed.contains(&Peer::Client(client)));
    let told = own.stage.client_gets(client);
    let why = b"no standby has replayed in time what this session wrote";
    assert!(memchr::memmem::find(&told, why).is_some(), "{}", told.escape_ascii());
}

#[test]
fn reads_that_were_to_spare_the_primary_go_there_all_the_same() {
    for role in [RolePreference::Auto, RolePreference::PreferReplica] {
        let mut own = own(Settings { primary_reads: false, ..settings(role) });
        let client = own.client();
        assert_eq!(own.reads(client), STANDBYS);
        own.stage.client_says(client, &message(b'Q', b"set server role to 'primary'\0"));
        own.asks(client, "insert into a values (1)", "INSERT 0 1");
        own.stage.client_says(client, &message(b'Q', b"set server role to 'default'\0"));
        assert_eq!(own.reads(client), [PRIMARY], "{role:?}");
        own.replays(2);
        assert_eq!(own.reads(client), [STANDBYS[1]]);
        own.replays(1);
        assert_eq!(own.reads(client), STANDBYS);
    }
}

#[test]
fn a_promoted_standby_has_all_there_is() {
    let mut own = own(settings(RolePreference::Auto));
    let client = own.client();
    own.asks(client, "insert into a values (1)", "INSERT 0 1");
    // The primary is gone, and nobody knows who has what was written.
    own.state.members[0].doubt();
    own.stage.client_says(client, &message(b'Q', b"select 1\0"));
    assert!(own.stage.core.is_waiting(client));
    own.hears(1, Standing::Primary, Question::default());
    own.state.members[0].stands(Standing::Stale, false);
    own.stage.core.clusters_turned(own.stage.now, &mut own.stage.io);
    let (server, pool) = own.serving(client).expect("it has one");
    assert_eq!(pool, STANDBYS[0]);
    own.answers(server, "SELECT 1");
    // What was lost with the old one is waited for nowhere: the other follows the new one.
    assert_eq!(own.reads(client), [STANDBYS[0]]);
    own.replays(2);
    assert_eq!(own.reads(client), STANDBYS);
    // One that was away may be an older copy of itself.
    own.state.members[2].doubt();
    assert_eq!(own.reads(client), [STANDBYS[0]]);
}

#[test]
fn a_client_that_moves_knows_that_it_wrote() {
    let mut own = own(settings(RolePreference::Auto));
    let client = own.client();
    own.asks(client, "insert into a values (1)", "INSERT 0 1");
    own.replays(1);
    own.replays(2);
    let (home, migrant) = own.stage.core.emigrate(client, own.stage.now).unwrap();
    assert_eq!(migrant.wrote, [0]);
    let client = own.stage.core.immigrate(home, migrant, own.stage.now).unwrap();
    assert_eq!(own.reads(client), [PRIMARY], "where it comes from says nothing here");
    own.replays(1);
    assert_eq!(own.reads(client), [PRIMARY, STANDBYS[0]]);
}
