use std::time::Instant;

use howdah_collect::{Backend, Kind, State};

use super::*;
use crate::{Snapshot, Standing, sampler::tests::snapshot};

const SECOND_US: i64 = 1_000_000;

fn rule(text: &str) -> Rule {
    Rule::parse(text).unwrap()
}

#[test]
fn rules_are_read() {
    let read = rule("query>5m");
    assert_eq!((read.subject, read.threshold, &*read.text), (Subject::Query, 300.0, "query > 5m"));
    let read = rule("connections > 90%  until 70% for 1m");
    assert_eq!((read.clear, read.hold), (70.0, Duration::from_secs(60)));
    assert_eq!(rule("lag > 1GB").measure, Measure::Bytes);
    assert_eq!(rule("lag > 30s").measure, Measure::Seconds);
    assert_eq!(rule("wraparound > 1500M").threshold, 1.5e9);
    assert!((rule("connections > 90%").clear - 81.0).abs() < 1e-9);
}

#[test]
fn words_that_are_no_rule_are_explained() {
    let told = |text: &str| Rule::parse(text).unwrap_err().to_string();
    assert!(told("query 5m").starts_with("write SUBJECT > VALUE"));
    assert!(told("query > 5m for").starts_with("write SUBJECT > VALUE"));
    assert!(told("query > 5m when idle").starts_with("write SUBJECT > VALUE"));
    assert!(told("querry > 5m").contains("no \"querry\": a rule is about query, idle-in-"));
    assert_eq!(
        told("connections > 5m"),
        "\"5m\" is no percentage such as 90%, which connections is measured in"
    );
    assert!(told("lag > 90%").contains("size such as 100MB and no time"));
    assert!(told("lag > 1GB until 5s").contains("below the threshold, and in its unit"));
    assert!(told("lag > 1GB until 2GB").contains("below the threshold"));
}

/// A guard, and a clock that its readings follow.
struct Watch {
    guard: Guard,
    begun: Instant,
}

impl Watch {
    fn new(rules: &[&str]) -> Self {
        let rules = rules.iter().map(|text| rule(text)).collect();
        Self { guard: Guard::new("db1", rules), begun: Instant::now() }
    }

    /// Looks at `standing` so many seconds after the beginning.
    fn at(&mut self, seconds: u64, standing: &Standing) -> Vec<String> {
        let changes = self.guard.look(self.begun + Duration::from_secs(seconds), standing);
        changes.iter().map(ToString::to_string).collect()
    }

    fn read(&mut self, seconds: u64, backends: Vec<Backend>) -> Vec<String> {
        let taken_us = i64::try_from(seconds).unwrap() * SECOND_US;
        self.at(seconds, &Standing::Read(Arc::new(snapshot(taken_us, backends))))
    }
}

fn session(pid: i32, state: State, since: i64) -> Backend {
    Backend {
        pid,
        started_us: 1,
        user: Some("app".into()),
        database: Some("shop".into()),
        kind: Some(Kind::Client),
        state: Some(state),
        query_started_us: Some(since * SECOND_US),
        state_changed_us: Some(since * SECOND_US),
        transaction_started_us: Some(since * SECOND_US),
        query: Some(howdah_collect::SqlText::new(b"select 1", None, None)),
        is_readable: true,
        ..Backend::default()
    }
}

#[test]
fn a_long_query_begins_once_and_ends_with_its_statement() {
    let mut watch = Watch::new(&["query > 60s"]);
    assert_eq!(watch.read(1000, vec![session(7, State::Active, 950)]), [""; 0]);
    assert_eq!(
        watch.read(1011, vec![session(7, State::Active, 950)]),
        ["query > 60s: 1m01s, 7 app@shop select 1"]
    );
    assert_eq!(watch.read(1030, vec![session(7, State::Active, 950)]), [""; 0]);
    assert_eq!(watch.guard.holding().count(), 1);
    let over = watch.read(1040, vec![session(7, State::Active, 1035)]);
    assert_eq!(over, ["over after 30.0s: query > 60s: 1m20s, 7 app@shop select 1"]);
    assert_eq!(watch.guard.holding().count(), 0);
}

#[test]
fn what_was_long_before_the_first_reading_is_told_in_it() {
    let mut watch = Watch::new(&["query > 60s for 30s", "idle-in-transaction > 10m"]);
    let told = watch.read(
        5000,
        vec![session(1, State::Active, 4905), session(2, State::IdleInTransaction, 10)],
    );
    assert_eq!(told.len(), 2, "{told:?}");
    assert!(told[1].starts_with("idle-in-transaction > 10m: 1h23m, 2"), "{told:?}");
    // Above the threshold, and not for long enough.
    let mut watch = Watch::new(&["query > 60s for 30s"]);
    assert_eq!(watch.read(5000, vec![session(1, State::Active, 4925)]), [""; 0]);
    assert_eq!(watch.read(5015, vec![session(1, State::Active, 4925)]).len(), 1);
}

fn with_connections(count: usize) -> Vec<Backend> {
    (1..).map(|pid| session(pid, State::Idle, 0)).take(count).collect()
}

#[test]
fn a_level_that_trembles_is_one_alert() {
    // 100 connections may be.
    let mut watch = Watch::new(&["connections > 90% for 10s"]);
    assert_eq!(watch.read(0, with_connections(95)), [""; 0]);
    // Below for a moment: it does not count any more.
    assert_eq!(watch.read(5, with_connections(88)), [""; 0]);
    assert_eq!(watch.read(10, with_connections(95)), [""; 0]);
    assert_eq!(watch.read(20, with_connections(95)), ["connections > 90% for 10s: 95.0%"]);
    for (second, count) in [(30, 85), (40, 95), (50, 82)] {
        assert_eq!(watch.read(second, with_connections(count)), [""; 0]);
    }
    let over = watch.read(60, with_connections(80));
    assert_eq!(over, ["over after 50.0s: connections > 90% for 10s: 82.0%"]);
}

fn with_lag(change: impl Fn(&mut Snapshot)) -> Standing {
    let mut snapshot = snapshot(0, Vec::new());
    change(&mut snapshot);
    Standing::Read(Arc::new(snapshot))
}

#[test]
fn lag_and_wraparound_are_of_the_worst_that_is_known() {
    let mut watch = Watch::new(&["lag > 1MB", "lag > 10s", "wraparound > 50%"]);
    assert_eq!(watch.at(0, &with_lag(|_| ())), [""; 0]);
    let told = watch.at(
        1,
        &with_lag(|snapshot| {
            snapshot.overview.followers_lag_bytes = Some(5 << 20);
            snapshot.overview.replay_lag_seconds = Some(12.0);
            snapshot.overview.followers_lag_seconds = Some(1.0);
            snapshot.overview.frozen_age = Some(1_500_000_000);
        }),
    );
    assert_eq!(told, ["lag > 1MB: 5.0MB", "lag > 10s: 12.0s", "wraparound > 50%: 69.8%"]);
}

#[test]
fn a_server_that_is_away_is_told_and_ends_nothing_else() {
    let mut watch = Watch::new(&["query > 60s", "away > 30s"]);
    assert_eq!(watch.read(1000, vec![session(7, State::Active, 1)]).len(), 1);
    let away = Standing::Away {
        reason: "gone".to_owned(),
        since: watch.begun + Duration::from_secs(1010),
        retry: watch.begun,
        last: None,
    };
    assert_eq!(watch.at(1020, &away), [""; 0]);
    assert_eq!(watch.at(1041, &away), ["away > 30s: 31.0s"]);
    assert_eq!(watch.guard.holding().count(), 2);
    let back = watch.read(1050, vec![session(7, State::Active, 1)]);
    assert_eq!(back, ["over after 10.0s: away > 30s: 31.0s"]);
}

#[test]
fn a_blocked_session_is_one_alert_though_its_start_is_told_late() {
    let mut watch = Watch::new(&["blocked > 5s"]);
    let blocked = |since: Option<i64>| Backend {
        blockers: vec![howdah_collect::Blocker::Process(1)],
        blocked_since_us: since,
        ..session(7, State::Active, 100)
    };
    assert_eq!(watch.read(110, vec![blocked(None)]).len(), 1);
    assert_eq!(watch.read(111, vec![blocked(Some(101 * SECOND_US))]), [""; 0]);
    assert_eq!(watch.read(112, vec![session(7, State::Active, 100)]).len(), 1);
}

/// A session of another role, as a role without grants sees it.
fn hidden(pid: i32) -> Backend {
    Backend { pid, user: Some("app".into()), database: Some("shop".into()), ..Backend::default() }
}

fn unchecked(rule: &str, standing: &Standing) -> Vec<String> {
    let mut watch = Watch::new(&[rule]);
    watch.at(1000, standing);
    watch.guard.unchecked(standing).iter().map(ToString::to_string).collect()
}

#[test]
fn rules_about_hidden_sessions_are_unchecked_and_name_the_grant() {
    let read = |backends| {
        let missing = [howdah_collect::Missing {
            what: howdah_collect::Missing::SESSIONS.into(),
            remedy: "GRANT pg_monitor TO \"plain\"".to_owned(),
        }];
        Standing::Read(Arc::new(Snapshot {
            missing: Arc::new(missing),
            ..snapshot(1000 * SECOND_US, backends)
        }))
    };
    let some_hidden = read(vec![hidden(1), hidden(2), session(3, State::Active, 950)]);
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
    // Visible to every role; and one that holds is answered.
    for rule in
        ["blocked > 1s", "connections > 90%", "wraparound > 50%", "lag > 1GB", "query > 10s"]
    {
        assert_eq!(unchecked(rule, &some_hidden), [""; 0], "{rule}");
    }
    // The server's own processes have no database.
    let own = read(vec![Backend { database: None, ..hidden(1) }]);
    assert_eq!(unchecked("query > 60s", &own), [""; 0]);
    assert_eq!(unchecked("query > 60s", &read(vec![session(3, State::Idle, 1)])), [""; 0]);
}

#[test]
fn hidden_waits_without_a_start_and_hidden_standbys_are_unchecked() {
    let blocked = Backend { blockers: vec![howdah_collect::Blocker::Process(1)], ..hidden(2) };
    let of_major = |major| {
        let mut read = snapshot(1000 * SECOND_US, vec![blocked.clone()]);
        let identity = howdah_collect::Identity {
            version: howdah_collect::Version::of_major(major),
            ..(*read.identity).clone()
        };
        read.identity = Arc::new(identity);
        Standing::Read(Arc::new(read))
    };
    assert_eq!(unchecked("blocked > 1s", &of_major(13)).len(), 1);
    assert_eq!(unchecked("blocked > 1s", &of_major(14)), [""; 0]);
    let standbys = with_lag(|snapshot| snapshot.overview.followers_hidden = 2);
    assert_eq!(
        unchecked("lag > 1GB", &standbys),
        ["alert 'lag > 1GB' cannot be checked: the lag of 2 standbys is not visible"]
    );
}
