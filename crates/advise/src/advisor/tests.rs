use std::time::Duration;

use howdah_traffic::{Bound, CapturedOutcome, Event, Parameter, Source, SqlState, Text, Timestamp};

use super::*;
use crate::{ConcurrencyFigures, ModeReason, SuitableMode};

/// Time of an event in milliseconds, the session, and the text. The text of a session's start and
/// end is `+` and `-`; a text that ends with `!` fails. Every text takes a millisecond.
type Row<'a> = (i64, &'a str, &'a str);

fn event(row: Row<'_>, application: &str, source: Source) -> Event {
    let (ms, session, text) = row;
    let (sql, failed) = text.strip_suffix('!').map_or((text, false), |text| (text, true));
    let action = match sql {
        "+" => Action::Connect,
        "-" => Action::Disconnect,
        sql => Action::Simple { sql: sql.into() },
    };
    let sqlstate = failed.then(|| SqlState::new(b"22012")).flatten();
    let duration_us = matches!(action, Action::Simple { .. }).then_some(1_000);
    Event {
        time: Timestamp::from_micros(ms * 1_000),
        session: session.into(),
        user: "app".into(),
        database: "shop".into(),
        application: application.into(),
        action,
        outcome: CapturedOutcome { duration_us, sqlstate, error: None },
        source,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

fn advise(rows: &[Row<'_>]) -> PoolAdvice {
    advise_events(rows.iter().map(|row| event(*row, "web", Source::Wire)))
}

fn advise_events(events: impl IntoIterator<Item = Event>) -> PoolAdvice {
    let mut advisor = Advisor::new(vec!["app.total".to_owned()]).unwrap();
    events.into_iter().for_each(|event| advisor.observe(&event));
    advisor.finish()
}

/// The kinds of state left, with the number of sessions, the count and the milliseconds.
fn states(advice: &PoolAdvice) -> Vec<(StateKind, u64, u64, u128)> {
    let states = advice.clients.iter().flat_map(|group| &group.states);
    states.map(|it| (it.kind, it.sessions, it.count, it.time.as_millis())).collect()
}

#[test]
fn sessions_transactions_and_their_concurrency_are_counted() {
    let advice = advise(&[
        (0, "a", "+"),
        (0, "b", "+"),
        (10, "a", "begin"),
        (12, "b", "select 1"),
        (20, "a", "select 2"),
        (30, "a", "commit"),
        (40, "b", "select 3"),
        (50, "b", "-"),
        (60, "c", "+"),
        (100, "a", "-"),
        (100, "c", "-"),
    ]);
    let [group] = &advice.clients[..] else { unreachable!("{advice:?}") };
    assert_eq!((&*group.database, &*group.user, &*group.application), ("shop", "app", "web"));
    assert_eq!((group.sessions, group.sessions_max), (3, 2));
    assert_eq!((group.statements, group.transactions), (5, 3));
    assert_eq!(group.open_transactions, ConcurrencyFigures { p50: 1, p99: 2, max: 2 });
    // From BEGIN to the end of COMMIT, and two single statements.
    assert_eq!(group.transaction_time, Duration::from_millis(21 + 1 + 1));
    assert_eq!(group.session_time, Duration::from_millis(100 + 50 + 40));
    assert_eq!((group.mode, group.reason), (SuitableMode::Transaction, ModeReason::NoState));
    let [pool] = &advice.pools[..] else { unreachable!("{advice:?}") };
    assert_eq!((pool.size, pool.reserve, pool.session_mode_size), (2, 0, 2));
    assert_eq!(advice.servers(), (2, 2));
    assert_eq!(advice.facts.events, 11);
    assert_eq!((advice.facts.inferred_sessions, advice.facts.unended_sessions), (0, 0));
}

#[test]
fn temporary_table_pins_from_its_commit_to_its_drop() {
    let advice = advise(&[
        (0, "a", "+"),
        (10, "a", "begin"),
        (11, "a", "create temp table cart (id int)"),
        (19, "a", "commit"),
        (40, "a", "drop table cart"),
        (100, "a", "-"),
    ]);
    assert_eq!(states(&advice), [(StateKind::Temporary, 1, 1, 41 - 20)]);
    let group = &advice.clients[0];
    assert_eq!((group.pinned_sessions, group.pinned_time), (1, Duration::from_millis(21)));
    assert_eq!((group.mode, group.reason), (SuitableMode::Adaptive, ModeReason::PartlyPinned));
    let state = &group.states[0];
    assert_eq!(state.example.as_deref(), Some("create temp table cart(id int)"));
    assert_eq!(state.names, [("cart".into(), 1)]);
}

#[test]
fn state_within_a_transaction_leaves_nothing() {
    for rows in [
        &["begin", "create temp table t (x int)", "drop table t", "commit"][..],
        &["begin", "create temp table t (x int) on commit drop", "commit"],
        &["begin", "create temp table t (x int)", "rollback"],
        &["begin", "create temp table t (x int)", "select 1/0!", "commit"],
        &["begin", "savepoint s", "create temp table t (x int)", "rollback to s", "commit"],
        &["begin", "create temp table t (x int)", "commit!"],
        &["create temp table t (x int)!"],
        &["begin; create temp table t (x int); select 1/0!", "rollback"],
        &["select pg_advisory_lock(1); select pg_advisory_unlock(1)"],
        &["begin; set work_mem = 1; rollback"],
        &["begin", "create temp table t (x int)", "-"],
    ] {
        let events = (1..).zip(rows).map(|(ms, text)| (ms * 10, "a", *text));
        let advice = advise(&events.collect::<Vec<_>>());
        assert_eq!(states(&advice), [], "{rows:?}");
        assert_eq!(advice.clients[0].mode, SuitableMode::Transaction);
    }
}

#[test]
fn locks_and_prepared_statements_survive_a_rollback() {
    for sql in ["select pg_advisory_lock(1)", "prepare p as select 1", "select other()"] {
        let advice = advise(&[(10, "a", "begin"), (20, "a", sql), (30, "a", "rollback")]);
        assert_eq!(advice.clients[0].states.len(), 1, "{sql}");
    }
}

#[test]
fn locks_end_when_their_key_is_released_as_often_as_acquired() {
    let bound = |ms, sql: &str, key: &str| {
        let bound = Bound {
            statement: Text::default(),
            portal: Text::default(),
            sql: sql.into(),
            parameters: Some(vec![Parameter::Value(key.into())]),
        };
        let action = Action::Execute(bound);
        Event { action, ..event((ms, "a", "select"), "web", Source::Wire) }
    };
    let (acquire, release) = ("select pg_advisory_lock($1)", "select pg_advisory_unlock($1)");
    let advice = advise_events([
        bound(0, acquire, "7"),
        bound(10, acquire, "7"),
        bound(20, release, "7"),
        bound(30, release, "8"),
        bound(40, release, "7"),
        bound(99, "select 1", "7"),
    ]);
    assert_eq!(states(&advice), [(StateKind::AdvisoryLock, 1, 2, 41 - 1)]);
    assert!(advice.clients[0].states[0].names.is_empty(), "keys are values");
}

#[test]
fn settings_and_channels_do_not_pin() {
    let advice = advise(&[
        (0, "a", "set work_mem = '1GB'"),
        (10, "a", "listen jobs"),
        (50, "a", "reset all"),
        (100, "a", "-"),
    ]);
    assert_eq!(states(&advice), [(StateKind::Channel, 1, 1, 89), (StateKind::Setting, 1, 1, 50)]);
    let group = &advice.clients[0];
    assert_eq!((group.pinned_sessions, group.pinned_time), (0, Duration::ZERO));
    assert_eq!((group.mode, group.reason), (SuitableMode::Adaptive, ModeReason::StateFollows));
    let advice = advise(&[(0, "a", "listen jobs"), (100, "a", "-")]);
    assert_eq!(advice.clients[0].mode, SuitableMode::Transaction);
}

#[test]
fn undetectable_state_lasts_until_discard_all_or_the_end() {
    let advice = advise(&[
        (0, "a", "select app.total(), other()"),
        (50, "a", "discard all"),
        (99, "a", "select other()"),
        (100, "a", "-"),
        (0, "b", "load 'auto_explain'"),
        (50, "b", "discard all"),
        (100, "b", "-"),
    ]);
    let library = StateKind::Undetectable(howdah_sql::UndetectableState::Library);
    assert_eq!(states(&advice), [(library, 1, 1, 99), (StateKind::Function, 1, 2, 50)]);
    let functions: Vec<_> =
        advice.functions.iter().map(|it| (&*it.name, it.calls, it.sessions)).collect();
    assert_eq!(functions, [("other", 2, 1)], "app.total is listed as stateless");
}

#[test]
fn pinned_sessions_count_as_servers_in_use() {
    let mut rows = vec![(0, "a", "select pg_advisory_lock(1)"), (0, "b", "select 1")];
    rows.extend((1..100).map(|number| (number * 10, "b", "select 1")));
    rows.extend([(1_000, "a", "-"), (10_000, "b", "-")]);
    let advice = advise(&rows);
    let pool = &advice.pools[0];
    assert_eq!(pool.mode, SuitableMode::Adaptive);
    assert_eq!(pool.adaptive_servers, ConcurrencyFigures { p50: 2, p99: 2, max: 2 });
    assert_eq!(pool.open_transactions, ConcurrencyFigures { p50: 1, p99: 1, max: 2 });
    assert_eq!((pool.size, pool.reserve), (2, 0));
}

#[test]
fn mostly_pinned_clients_need_session_mode() {
    let advice =
        advise(&[(0, "a", "prepare p as select 1"), (50, "a", "execute p"), (100, "a", "-")]);
    let group = &advice.clients[0];
    assert_eq!((group.mode, group.reason), (SuitableMode::Session, ModeReason::MostlyPinned));
}

#[test]
fn sequence_reads_are_late_in_another_transaction_only() {
    for (rows, late) in [
        (&["begin", "insert into t default values", "select currval('s')", "commit"][..], 0),
        (&["insert into t default values; select lastval()"], 0),
        (&["select nextval('s'), currval('s')"], 0),
        (&["insert into t default values", "select currval('s')", "select lastval()"], 2),
        (&["begin", "insert into t default values", "commit", "begin", "select lastval()"], 1),
        (&["begin", "insert into t default values", "commit and chain", "select lastval()"], 1),
    ] {
        let events = (1..).zip(rows).map(|(ms, text)| (ms * 10, "a", *text));
        let advice = advise(&events.collect::<Vec<_>>());
        let found = advice.clients[0].sequence_reads.as_ref().map_or(0, |reads| reads.count);
        assert_eq!(found, late, "{rows:?}");
        let mode = if late > 0 { SuitableMode::Session } else { SuitableMode::Transaction };
        assert_eq!(advice.clients[0].mode, mode, "{rows:?}");
    }
}

#[test]
fn events_of_a_pipeline_share_a_transaction() {
    let execute = |ms, pipeline, sql: &str| Event {
        pipeline: Some(pipeline),
        ..event((ms, "a", sql), "web", Source::Wire)
    };
    let advice = advise_events([
        execute(0, 1, "select 1"),
        execute(0, 1, "create temp table t (x int)"),
        execute(0, 1, "select 1/0!"),
        execute(10, 2, "select 2"),
        execute(10, 2, "select 3"),
    ]);
    assert_eq!(advice.clients[0].transactions, 2);
    assert_eq!(states(&advice), []);
}

#[test]
fn sessions_of_a_log_get_their_application_with_their_first_statement() {
    let log = |row, application| event(row, application, Source::Session);
    let advice = advise_events([
        log((0, "a", "+"), ""),
        log((1, "b", "+"), ""),
        log((10, "a", "select 1"), "web"),
        log((20, "a", "set search_path = app"), "renamed"),
        log((30, "b", "-"), "psql"),
    ]);
    let groups: Vec<_> =
        advice.clients.iter().map(|it| (&*it.application, it.sessions, it.statements)).collect();
    assert_eq!(groups, [("web", 1, 2), ("psql", 1, 0)]);
    assert_eq!(advice.pools[0].session_mode_size, 2);
    assert_eq!((advice.facts.logged_executions, advice.facts.unended_sessions), (2, 1));
}

#[test]
fn groups_and_their_names_are_limited() {
    let names: Vec<_> = (0..3 * GROUPS_MAX).map(|number| format!("job {number}")).collect();
    let advice = advise_events(names.iter().zip(0..).flat_map(|(name, ms)| {
        [
            event((ms, name, "select 1"), name, Source::Wire),
            event((ms, name, "-"), name, Source::Wire),
        ]
    }));
    assert_eq!(advice.clients.len(), GROUPS_MAX + 1);
    assert_eq!(advice.clients.iter().map(|it| it.sessions).sum::<u64>(), names.len() as u64);
    let mut advisor = Advisor::new(Vec::new()).unwrap();
    for name in &names {
        let user =
            Event { user: name.as_str().into(), ..event((0, name, "select 1"), "", Source::Wire) };
        advisor.observe(&user);
    }
    assert_eq!(advisor.finish().pools.len(), GROUPS_MAX + 1);
}
