//! The schedule of statements, and waits between sessions.

use howdah_traffic::{Kind, Timestamp};

use crate::{
    logs::LogBuilder,
    support::{FinishedReplay, ReplayFixture, ended_us},
};

/// Four sessions with 25 statements each in two seconds.
fn log_of_two_seconds(database: &str) -> LogBuilder {
    let mut log = LogBuilder::new(database);
    for pid in 1..=4 {
        log.connect(u64::from(pid), pid);
    }
    for step in 0..25 {
        for pid in 1..=4 {
            let sql = format!("select {step}");
            log.query(80 + step * 80 + u64::from(pid) * 3, pid, &sql);
        }
    }
    log
}

#[test]
fn rate_0_5_doubles_the_duration() {
    check_rate("half_rate", 0.5);
}

#[test]
fn rate_1_preserves_captured_timing() {
    check_rate("rate_one", 1.0);
}

#[test]
fn rate_1_5_is_not_rounded() {
    check_rate("rate_and_a_half", 1.5);
}

#[test]
fn rate_3_divides_the_duration_by_three() {
    check_rate("triple_rate", 3.0);
}

#[test]
fn idle_time_is_left_out() {
    let Some(fixture) = ReplayFixture::new("idle_time") else { return };
    let mut log = LogBuilder::new("idle_time");
    log.connect(0, 1);
    // Twenty minutes without a statement, and twenty more.
    log.query(100, 1, "select 1").query(1_200_000, 1, "select 2").query(2_400_000, 1, "select 3");
    let replayed = fixture.replay(&log.text, &["--skip-idle", "200ms"]);
    replayed.assert_all_done();
    let due: Vec<_> = replayed.executions().iter().map(|outcome| outcome.due_us).collect();
    assert_eq!(due, [100_000, 300_000, 500_000]);
    assert_eq!(replayed.report["idle_skipped_s"], 2_399.5);
    assert_eq!(replayed.report["captured_s"], 2_400.0);
}

fn check_rate(database: &str, rate: f64) {
    let Some(fixture) = ReplayFixture::new(database) else { return };
    let replayed =
        fixture.replay(&log_of_two_seconds(database).text, &["--rate", &rate.to_string()]);
    replayed.assert_all_done();
    let executions = replayed.executions();
    assert_eq!(executions.len(), 100);

    let origin = replayed.outcomes.iter().map(|outcome| outcome.time).min().unwrap();
    let offset = |time: Timestamp| time.saturating_since(origin).as_micros() as f64;
    for outcome in &replayed.outcomes {
        let due = offset(outcome.time) / rate;
        assert!((outcome.due_us as f64 - due).abs() <= 1.0, "due at {due}: {outcome:?}");
    }
    for outcome in &executions {
        let late = outcome.sent_us.unwrap() - outcome.due_us;
        let ours = outcome.schedule_error_us.unwrap();
        let theirs = outcome.dependency_lag_us.unwrap();
        assert!(late >= 0, "sent before it was due: {outcome:?}");
        // Each value is rounded down to a microsecond.
        let explained = i64::try_from(ours + theirs + outcome.input_late_us.unwrap()).unwrap();
        assert!((late - explained).abs() <= 3, "{late} µs late: {outcome:?}");
    }

    let sends = || executions.iter().map(|outcome| outcome.sent_us.unwrap());
    let span = (sends().max().unwrap() - sends().min().unwrap()) as f64;
    let reported = replayed.report["first_to_last_send_s"].as_f64().unwrap() * 1e6;
    assert!((reported - span).abs() <= 2.0, "{reported} reported, {span} recorded");
    let captured = offset(executions[99].time) - offset(executions[0].time);
    let (first, last) = (executions[0], executions[99]);
    let late = |outcome: &howdah_dataset::ReplayOutcome| outcome.sent_us.unwrap() - outcome.due_us;
    let expected = captured / rate + (late(last) - late(first)) as f64;
    // The statement due last may have been sent before one that waited for its session.
    assert!(reported >= expected - 3.0, "{reported} µs instead of {expected}");
    assert!(sends().max().unwrap() - first.due_us >= (captured / rate) as i64 - 1);
}

/// One session that sleeps, and three that do not.
fn log_with_sleeping_session(database: &str) -> LogBuilder {
    let mut log = LogBuilder::new(database);
    for pid in 1..=4 {
        log.connect(0, pid);
    }
    log.query(50, 1, "select pg_sleep(1.5)");
    log.query(60, 1, "select 'after the sleep'");
    for step in 0..20 {
        for pid in 2..=4 {
            log.query(60 + step * 20, pid, "select 1");
        }
    }
    log
}

/// Checks that all statements of other sessions ended before the sleep did.
fn assert_only_sleeping_session_waits(replayed: &FinishedReplay) {
    replayed.assert_all_done();
    let executions = replayed.executions();
    let sleep = executions.iter().max_by_key(|outcome| outcome.service_us).unwrap();
    assert!(sleep.service_us.unwrap() >= 1_500_000, "{sleep:?}");
    let (own, others): (Vec<_>, Vec<_>) =
        executions.iter().partition(|outcome| outcome.session == sleep.session);
    assert_eq!((own.len(), others.len()), (2, 60));
    for outcome in others {
        assert!(ended_us(outcome) < ended_us(sleep), "waited for the sleeper: {outcome:?}");
    }
    let next = own.iter().max_by_key(|outcome| outcome.sent_us).unwrap();
    assert!(next.sent_us.unwrap() >= ended_us(sleep) - 1, "{next:?}");
}

#[test]
fn sleeping_session_delays_only_itself() {
    let Some(fixture) = ReplayFixture::new("sleeper") else { return };
    let replayed = fixture.replay(&log_with_sleeping_session("sleeper").text, &[]);
    assert_only_sleeping_session_waits(&replayed);
    let lag = |outcome: &&howdah_dataset::ReplayOutcome| outcome.dependency_lag_us.unwrap();
    let executions = replayed.executions();
    let most = executions.iter().max_by_key(|outcome| lag(outcome)).unwrap();
    // The dependency lag includes the server's delay, only in the same session.
    assert!(lag(most) >= 1_400_000, "{most:?}");
    let others = executions.iter().filter(|outcome| outcome.session != most.session);
    assert!(others.map(lag).max().unwrap() < 1_400_000);
}

#[test]
fn sleeping_session_delays_only_itself_at_max_rate() {
    let Some(fixture) = ReplayFixture::new("sleeper_at_max") else { return };
    let log = log_with_sleeping_session("sleeper_at_max").text;
    let replayed = fixture.replay(&log, &["--rate", "max"]);
    assert_only_sleeping_session_waits(&replayed);
    assert_eq!(replayed.report["dependency_lag_us"], serde_json::Value::Null);
}

#[test]
fn large_result_does_not_delay_other_sessions() {
    let Some(fixture) = ReplayFixture::new("large_result") else { return };
    let mut log = LogBuilder::new("large_result");
    log.connect(0, 1).connect(0, 2);
    let large = "select repeat('x', 100000) from generate_series(1, 6000)";
    log.query(50, 1, large);
    for step in 0..10 {
        log.query(52 + step * 2, 2, "select 1");
    }
    let replayed = fixture.replay(&log.text, &[]);
    replayed.assert_all_done();
    let executions = replayed.executions();
    let large = executions.iter().find(|outcome| outcome.rows == Some(6000)).unwrap();
    let small: Vec<_> =
        executions.iter().filter(|outcome| outcome.session != large.session).collect();
    assert_eq!(small.len(), 10);
    for outcome in small {
        assert!(ended_us(outcome) < ended_us(large), "waited for the large one: {outcome:?}");
    }
}

#[test]
fn skipped_event_is_written_with_its_due_time() {
    let Some(fixture) = ReplayFixture::new("skipped_ones") else { return };
    let mut log = LogBuilder::new("skipped_ones");
    log.session(1, &["create table t (a int)", "copy t from stdin", "select 1"]);
    let replayed = fixture.replay(&log.text, &[]);
    let skipped: Vec<_> = replayed.with_disposition("skipped").collect();
    let [copy] = &skipped[..] else { panic!("{skipped:?}") };
    assert_eq!((copy.kind, copy.due_us, copy.sent_us), (Kind::Copy, 2_000, None));
    assert_eq!(replayed.report["skipped"]["rows of COPY FROM STDIN not captured"], 1);
    assert_eq!(replayed.report["executions"]["done"], 2);
}

#[test]
fn session_over_backlog_limit_drops_only_its_statements() {
    let Some(fixture) = ReplayFixture::new("far_behind") else { return };
    let mut log = LogBuilder::new("far_behind");
    log.connect(0, 1).connect(0, 2).query(10, 1, "select pg_sleep(1.5)");
    let long = format!("select '{}'", "x".repeat(10_000));
    for step in 0..300 {
        log.query(20 + step, 1, &long);
        if step % 30 == 0 {
            log.query(20 + step, 2, "select 1");
        }
    }
    let replayed = fixture.replay(&log.text, &["--backlog", "1"]);
    let dropped = replayed.report["dropped"]["session too far behind, queue limit reached"].clone();
    // About a hundred of these statements fit into the backlog of 1 MB.
    assert!((150..250).contains(&dropped.as_u64().unwrap()), "{dropped}");
    assert_eq!(replayed.report["executions"]["dropped"], dropped);
    assert_eq!(replayed.report["executions"]["failed"], 0);
    assert!(replayed.complete);
    let executions = replayed.executions();
    let sleeper = &executions.iter().max_by_key(|outcome| outcome.service_us).unwrap().session;
    assert!(replayed.with_disposition("dropped").all(|outcome| outcome.session == *sleeper));
}

/// Session 1 updates a row and commits much later. Session 2 waits for the row, with so many
/// statements after it that the COMMIT is beyond the backlog limit.
#[test]
fn commit_beyond_backlog_limit_releases_waiting_session() {
    let Some(fixture) = ReplayFixture::new("far_commit") else { return };
    fixture.client().query("create table t as select 0 as a").unwrap();
    let mut log = LogBuilder::new("far_commit");
    log.connect(0, 1).connect(0, 2);
    log.query(1, 1, "begin").query(2, 1, "update t set a = a + 1");
    // At maximum rate, sessions are not ordered, so the second one waits explicitly for the first.
    let first_has_the_row = "do $$ begin while not exists (select from pg_locks where \
        relation = 't'::regclass and mode = 'RowExclusiveLock' and pid <> pg_backend_pid()) \
        loop perform pg_sleep(0.01); end loop; end $$";
    log.query(3, 2, first_has_the_row).query(4, 2, "update t set a = a + 10");
    // More than the backlog of 1 MB and the 4 MB of buffers before it.
    let long = format!("select '{}'", "x".repeat(10_000));
    for _ in 0..800 {
        log.query(5, 2, &long);
    }
    log.query(6, 1, "commit").disconnect(7, 1).disconnect(7, 2);
    for workers in ["1", "2"] {
        fixture.client().query("update t set a = 0").unwrap();
        let words = ["--rate", "max", "--backlog", "1", "--workers", workers];
        let replayed = fixture.replay(&log.text, &words);
        assert!(replayed.complete);
        assert_eq!(fixture.value("select a from t"), "11");
        let report = &replayed.report;
        let dropped = &report["dropped"]["session too far behind, queue limit reached"];
        assert_eq!(report["events"]["dropped"], *dropped);
        assert!(dropped.as_u64().unwrap() > 100, "{report}");
        assert_eq!(report["executions"]["failed"], 0);
        assert_eq!(report["by_kind"]["disconnect"]["done"], 2);
    }
}
