use std::time::Instant;

use howdah_collect::{BackendActivity, BackendState, BackendType};

use super::*;
use crate::{ServerHealth, ServerSnapshot, sampler::tests::snapshot};

const SECOND_US: i64 = 1_000_000;

fn rule(text: &str) -> AlertRule {
    AlertRule::parse(text).unwrap()
}

#[test]
fn rules_are_parsed() {
    let read = rule("query>5m");
    assert_eq!(
        (read.subject, read.threshold, &*read.text),
        (RuleSubject::Query, 300.0, "query > 5m")
    );
    let read = rule("connections > 90%  until 70% for 1m");
    assert_eq!((read.clear_below, read.hold_for), (70.0, Duration::from_secs(60)));
    assert_eq!(rule("lag > 1GB").measure, Measure::Bytes);
    assert_eq!(rule("lag > 30s").measure, Measure::Seconds);
    assert_eq!(rule("wraparound > 1500M").threshold, 1.5e9);
    assert!((rule("connections > 90%").clear_below - 81.0).abs() < 1e-9);
}

#[test]
fn invalid_rules_are_explained() {
    let error = |text: &str| AlertRule::parse(text).unwrap_err().to_string();
    assert!(error("query 5m").starts_with("write SUBJECT > VALUE"));
    assert!(error("query > 5m for").starts_with("write SUBJECT > VALUE"));
    assert!(error("query > 5m when idle").starts_with("write SUBJECT > VALUE"));
    assert!(
        error("querry > 5m")
            .contains("unknown subject \"querry\"; the subjects of rules are query, idle-in-")
    );
    assert_eq!(
        error("connections > 5m"),
        "\"5m\" is not a valid value for connections: use a percentage such as 90%"
    );
    assert!(error("lag > 90%").contains("size such as 100MB or a time"));
    assert!(error("lag > 1GB until 5s").contains("the same kind as the threshold"));
    assert!(error("lag > 1GB until 2GB").contains("must not exceed it"));
}

/// An evaluator with a simulated clock.
struct EvaluatorHarness {
    evaluator: RuleEvaluator,
    started_at: Instant,
}

impl EvaluatorHarness {
    fn new(rules: &[&str]) -> Self {
        let rules = rules.iter().map(|text| rule(text)).collect();
        Self { evaluator: RuleEvaluator::new("db1", rules), started_at: Instant::now() }
    }

    /// Evaluates `health` this many seconds after the start.
    fn at(&mut self, seconds: u64, health: &ServerHealth) -> Vec<String> {
        let changes =
            self.evaluator.evaluate(self.started_at + Duration::from_secs(seconds), health);
        changes.iter().map(ToString::to_string).collect()
    }

    fn read(&mut self, seconds: u64, backends: Vec<BackendActivity>) -> Vec<String> {
        let taken_us = i64::try_from(seconds).unwrap() * SECOND_US;
        self.at(seconds, &ServerHealth::Read(Arc::new(snapshot(taken_us, backends))))
    }
}

fn session(pid: i32, state: BackendState, since: i64) -> BackendActivity {
    BackendActivity {
        pid,
        started_us: 1,
        user: Some("app".into()),
        database: Some("shop".into()),
        kind: Some(BackendType::Client),
        state: Some(state),
        query_started_us: Some(since * SECOND_US),
        state_changed_us: Some(since * SECOND_US),
        transaction_started_us: Some(since * SECOND_US),
        query: Some(howdah_collect::SqlText::new(b"select 1", None, None)),
        is_readable: true,
        ..BackendActivity::default()
    }
}

#[test]
fn long_query_fires_once_and_ends_with_its_statement() {
    let mut harness = EvaluatorHarness::new(&["query > 60s"]);
    assert_eq!(harness.read(1000, vec![session(7, BackendState::Active, 950)]), [""; 0]);
    assert_eq!(
        harness.read(1011, vec![session(7, BackendState::Active, 950)]),
        ["query > 60s: 1m01s, 7 app@shop select 1"]
    );
    assert_eq!(harness.read(1030, vec![session(7, BackendState::Active, 950)]), [""; 0]);
    assert_eq!(harness.evaluator.firing().count(), 1);
    let over = harness.read(1040, vec![session(7, BackendState::Active, 1035)]);
    assert_eq!(over, ["over after 30.0s: query > 60s: 1m20s, 7 app@shop select 1"]);
    assert_eq!(harness.evaluator.firing().count(), 0);
}

#[test]
fn query_long_before_first_sample_fires_in_it() {
    let mut harness = EvaluatorHarness::new(&["query > 60s for 30s", "idle-in-transaction > 10m"]);
    let changes = harness.read(
        5000,
        vec![
            session(1, BackendState::Active, 4905),
            session(2, BackendState::IdleInTransaction, 10),
        ],
    );
    assert_eq!(changes.len(), 2, "{changes:?}");
    assert!(changes[1].starts_with("idle-in-transaction > 10m: 1h23m, 2"), "{changes:?}");
    // The value is above the threshold, but not for long enough.
    let mut harness = EvaluatorHarness::new(&["query > 60s for 30s"]);
    assert_eq!(harness.read(5000, vec![session(1, BackendState::Active, 4925)]), [""; 0]);
    assert_eq!(harness.read(5015, vec![session(1, BackendState::Active, 4925)]).len(), 1);
}

fn with_connections(count: usize) -> Vec<BackendActivity> {
    (1..).map(|pid| session(pid, BackendState::Idle, 0)).take(count).collect()
}

#[test]
fn fluctuating_level_is_one_alert() {
    // max_connections is 100.
    let mut harness = EvaluatorHarness::new(&["connections > 90% for 10s"]);
    assert_eq!(harness.read(0, with_connections(95)), [""; 0]);
    // The value is briefly below the threshold, which restarts the hold time.
    assert_eq!(harness.read(5, with_connections(88)), [""; 0]);
    assert_eq!(harness.read(10, with_connections(95)), [""; 0]);
    assert_eq!(harness.read(20, with_connections(95)), ["connections > 90% for 10s: 95.0%"]);
    for (second, count) in [(30, 85), (40, 95), (50, 82)] {
        assert_eq!(harness.read(second, with_connections(count)), [""; 0]);
    }
    let over = harness.read(60, with_connections(80));
    assert_eq!(over, ["over after 50.0s: connections > 90% for 10s: 82.0%"]);
}

fn with_lag(change: impl Fn(&mut ServerSnapshot)) -> ServerHealth {
    let mut snapshot = snapshot(0, Vec::new());
    change(&mut snapshot);
    ServerHealth::Read(Arc::new(snapshot))
}

#[test]
fn lag_and_wraparound_use_worst_known_value() {
    let mut harness = EvaluatorHarness::new(&["lag > 1MB", "lag > 10s", "wraparound > 50%"]);
    assert_eq!(harness.at(0, &with_lag(|_| ())), [""; 0]);
    let changes = harness.at(
        1,
        &with_lag(|snapshot| {
            snapshot.overview.followers_lag_bytes = Some(5 << 20);
            snapshot.overview.replay_lag_seconds = Some(12.0);
            snapshot.overview.followers_lag_seconds = Some(1.0);
            snapshot.overview.frozen_age = Some(1_500_000_000);
        }),
    );
    assert_eq!(changes, ["lag > 1MB: 5.0MB", "lag > 10s: 12.0s", "wraparound > 50%: 69.8%"]);
}

#[test]
fn unreachable_server_fires_and_ends_no_other_alert() {
    let mut harness = EvaluatorHarness::new(&["query > 60s", "unreachable > 30s"]);
    assert_eq!(harness.read(1000, vec![session(7, BackendState::Active, 1)]).len(), 1);
    let unreachable = ServerHealth::Unreachable {
        reason: "gone".to_owned(),
        since: harness.started_at + Duration::from_secs(1010),
        retry_at: harness.started_at,
        last: None,
    };
    assert_eq!(harness.at(1020, &unreachable), [""; 0]);
    assert_eq!(harness.at(1041, &unreachable), ["unreachable > 30s: 31.0s"]);
    assert_eq!(harness.evaluator.firing().count(), 2);
    let back = harness.read(1050, vec![session(7, BackendState::Active, 1)]);
    assert_eq!(back, ["over after 10.0s: unreachable > 30s: 31.0s"]);
}

#[test]
fn late_wait_start_does_not_split_blocked_alert() {
    let mut harness = EvaluatorHarness::new(&["blocked > 5s"]);
    let blocked = |since: Option<i64>| BackendActivity {
        blockers: vec![howdah_collect::Blocker::Process(1)],
        blocked_since_us: since,
        ..session(7, BackendState::Active, 100)
    };
    assert_eq!(harness.read(110, vec![blocked(None)]).len(), 1);
    assert_eq!(harness.read(111, vec![blocked(Some(101 * SECOND_US))]), [""; 0]);
    assert_eq!(harness.read(112, vec![session(7, BackendState::Active, 100)]).len(), 1);
}

/// Returns a session of another role, as an unprivileged role sees it.
fn hidden(pid: i32) -> BackendActivity {
    BackendActivity {
        pid,
        user: Some("app".into()),
        database: Some("shop".into()),
        ..BackendActivity::default()
    }
}

fn unchecked(rule: &str, health: &ServerHealth) -> Vec<String> {
    let mut harness = EvaluatorHarness::new(&[rule]);
    harness.at(1000, health);
    harness.evaluator.unchecked(health).iter().map(ToString::to_string).collect()
}

#[test]
fn rules_about_hidden_sessions_are_unchecked_and_name_the_grant() {
    let read = |backends| {
        let missing = [howdah_collect::MissingPrivilege {
            what: howdah_collect::MissingPrivilege::SESSIONS.into(),
            remedy: "GRANT pg_monitor TO \"plain\"".to_owned(),
        }];
        ServerHealth::Read(Arc::new(ServerSnapshot {
            missing: Arc::new(missing),
            ..snapshot(1000 * SECOND_US, backends)
        }))
    };
    let some_hidden = read(vec![hidden(1), hidden(2), session(3, BackendState::Active, 950)]);
    assert_eq!(
        unchecked("query > 60s", &some_hidden),
        [
            "alert 'query > 60s' cannot be checked: what 2 sessions of other roles do is not visible; \
          GRANT pg_monitor TO \"plain\""
        ]
    );
    for rule in ["transaction > 1h", "idle-in-transaction > 1m"] {
        assert_eq!(unchecked(rule, &some_hidden).len(), 1, "{rule}");
    }
    // Every role can see the input of the first four rules. The last one already fires, so it
    // counts as evaluated.
    for rule in
        ["blocked > 1s", "connections > 90%", "wraparound > 50%", "lag > 1GB", "query > 10s"]
    {
        assert_eq!(unchecked(rule, &some_hidden), [""; 0], "{rule}");
    }
    // The server's own processes have no database.
    let own = read(vec![BackendActivity { database: None, ..hidden(1) }]);
    assert_eq!(unchecked("query > 60s", &own), [""; 0]);
    assert_eq!(unchecked("query > 60s", &read(vec![session(3, BackendState::Idle, 1)])), [""; 0]);
}

#[test]
fn hidden_waits_without_a_start_and_hidden_standbys_are_unchecked() {
    let blocked =
        BackendActivity { blockers: vec![howdah_collect::Blocker::Process(1)], ..hidden(2) };
    let of_major = |major| {
        let mut read = snapshot(1000 * SECOND_US, vec![blocked.clone()]);
        let identity = howdah_collect::ServerInfo {
            version: howdah_collect::ServerVersion::from_major(major),
            ..(*read.server).clone()
        };
        read.server = Arc::new(identity);
        ServerHealth::Read(Arc::new(read))
    };
    assert_eq!(unchecked("blocked > 1s", &of_major(13)).len(), 1);
    assert_eq!(unchecked("blocked > 1s", &of_major(14)), [""; 0]);
    let standbys = with_lag(|snapshot| snapshot.overview.followers_hidden = 2);
    assert_eq!(
        unchecked("lag > 1GB", &standbys),
        ["alert 'lag > 1GB' cannot be checked: the lag of 2 standbys is not visible"]
    );
}
