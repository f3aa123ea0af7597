//! Tests which events are kept, and the counts of excluded events.

use howdah_traffic::{Bound, CapturedOutcome, Source, Text, Timestamp};
use proptest::prelude::*;

use super::*;

fn event(seconds: i64, session: &str, action: Action) -> Event {
    Event {
        time: Timestamp::from_micros(seconds * 1_000_000),
        session: session.into(),
        user: "app".into(),
        database: "shop".into(),
        application: "web".into(),
        action,
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

fn simple(seconds: i64, session: &str, sql: &str) -> Event {
    event(seconds, session, Action::Simple { sql: sql.into() })
}

fn parse(seconds: i64, session: &str, name: &str, sql: &str) -> Event {
    event(seconds, session, Action::Parse { statement: name.into(), sql: sql.into() })
}

fn execute(seconds: i64, session: &str, name: &str, sql: &str) -> Event {
    let bound =
        Bound { statement: name.into(), portal: "".into(), sql: sql.into(), parameters: None };
    event(seconds, session, Action::Execute(bound))
}

/// Returns `second kind sql` of each kept event, and the counts.
fn run_filter(filter: Filter, events: Vec<Event>) -> (Vec<String>, ExcludedCounts) {
    let count = events.len() as u64;
    let mut filter_under_test = EventFilter::new(filter, None);
    let mut kept = Vec::new();
    for event in events {
        filter_under_test.push(event);
        while let Some(event) = filter_under_test.poll() {
            let sql = event.action.sql().map(Text::to_string).unwrap_or_default();
            let inferred = if event.source == Source::Inferred { "+" } else { "" };
            let second = event.time.as_micros() / 1_000_000;
            kept.push(
                format!("{second} {inferred}{} {sql}", event.action.kind()).trim().to_owned(),
            );
        }
    }
    assert_eq!(filter_under_test.kept_count(), kept.len() as u64);
    assert_eq!(
        filter_under_test.kept_count() + filter_under_test.excluded().values().sum::<u64>(),
        count,
        "{:?}",
        filter_under_test.excluded()
    );
    let excluded = filter_under_test.excluded().iter().filter(|(_, count)| **count > 0);
    (kept, excluded.map(|(reason, count)| (*reason, *count)).collect())
}

fn at(seconds: i64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(seconds * 1_000_000))
}

#[test]
fn preamble_precedes_first_matching_event() {
    let filter = Filter { from: at(10), until: at(20), ..Filter::default() };
    let (kept, excluded) = run_filter(
        filter,
        vec![
            event(1, "a", Action::Connect),
            event(1, "b", Action::Connect),
            simple(2, "a", "set search_path = x"),
            simple(2, "a", "set local work_mem = '1GB'"),
            parse(3, "a", "S_1", "select 1"),
            parse(3, "a", "S_1", "select 2"),
            parse(3, "a", "", "select 3"),
            execute(4, "a", "S_1", "select 2"),
            event(5, "c", Action::Connect),
            event(6, "c", Action::Disconnect),
            event(11, "d", Action::Connect),
            execute(12, "a", "S_1", "select 2"),
            simple(19, "d", "select 4"),
            simple(20, "d", "select 5"),
            event(21, "a", Action::Disconnect),
        ],
    );
    assert_eq!(
        kept,
        [
            "11 connect",
            "12 +connect",
            "12 +simple set search_path = x",
            "12 +parse select 2",
            "12 execute select 2",
            "19 simple select 4",
        ]
    );
    assert_eq!(
        excluded,
        ExcludedCounts::from([(ExclusionReason::Before, 7), (ExclusionReason::After, 2)])
    );
}

#[test]
fn names_select_sessions() {
    let mut other = vec![event(1, "b", Action::Connect), simple(2, "b", "select 2")];
    other.iter_mut().for_each(|event| event.user = "bob".into());
    let all = || {
        let mut events = vec![event(1, "a", Action::Connect), simple(2, "a", "select 1")];
        events.extend(other.clone());
        events
    };
    let users = Filter { users: vec!["bob".to_owned()], ..Filter::default() };
    let (kept, excluded) = run_filter(users, all());
    assert_eq!(kept, ["1 connect", "2 simple select 2"]);
    assert_eq!(excluded, ExcludedCounts::from([(ExclusionReason::User, 2)]));
    let sessions = Filter { sessions: vec!["a".to_owned()], ..Filter::default() };
    assert_eq!(run_filter(sessions, all()).0, ["1 connect", "2 simple select 1"]);
    let databases = Filter { databases: vec!["crm".to_owned()], ..Filter::default() };
    assert_eq!(
        run_filter(databases, all()).1,
        ExcludedCounts::from([(ExclusionReason::Database, 4)])
    );
    assert_eq!(run_filter(Filter::default(), all()).0.len(), 4);
}

#[test]
fn late_application_name_keeps_login_and_disconnect() {
    let filter = Filter { applications: vec!["job".to_owned()], ..Filter::default() };
    let job = |mut event: Event| {
        event.application = "job".into();
        event
    };
    let (kept, excluded) = run_filter(
        filter,
        vec![
            event(1, "a", Action::Connect),
            simple(2, "a", "select 1"),
            simple(3, "a", "set application_name = job"),
            job(simple(4, "a", "select 2")),
            simple(5, "a", "select 3"),
            event(6, "a", Action::Disconnect),
            event(7, "b", Action::Connect),
        ],
    );
    let expected =
        ["4 +connect", "4 +simple set application_name = job", "4 simple select 2", "6 disconnect"];
    assert_eq!(kept, expected);
    assert_eq!(excluded, ExcludedCounts::from([(ExclusionReason::Application, 3)]));
}

#[test]
fn read_only_filter_keeps_known_reads() {
    let filter = Filter { read_only: true, ..Filter::default() };
    let (kept, excluded) = run_filter(
        filter,
        vec![
            event(1, "a", Action::Connect),
            simple(2, "a", "begin"),
            parse(3, "a", "r", "select 1"),
            parse(3, "a", "w", "delete from t"),
            execute(4, "a", "r", "select 1"),
            execute(4, "a", "w", "delete from t"),
            simple(5, "a", "select * from t for update"),
            simple(6, "a", "select nextval('s')"),
            simple(7, "a", "execute r"),
            simple(7, "a", "execute w"),
            simple(7, "b", "execute r"),
            simple(8, "a", "prepare p as select 1; execute p"),
            simple(8, "a", "deallocate p"),
            simple(9, "a", "execute p"),
            simple(9, "a", "fetch c"),
            simple(9, "a", "declare c cursor for select 1"),
            simple(9, "a", "fetch c"),
            simple(9, "a", "selekt"),
            event(9, "a", Action::Call { function: "lower".into() }),
            event(9, "a", Action::Call { function: "f".into() }),
            simple(10, "a", "commit"),
            event(11, "a", Action::Disconnect),
        ],
    );
    let expected = [
        "1 connect",
        "2 simple begin",
        "3 parse select 1",
        "4 execute select 1",
        "7 simple execute r",
        "8 simple prepare p as select 1; execute p",
        "8 simple deallocate p",
        "9 simple declare c cursor for select 1",
        "9 simple fetch c",
        "9 call",
        "10 simple commit",
        "11 disconnect",
    ];
    assert_eq!(kept, expected);
    let expected = [
        (ExclusionReason::Writes, 2),
        (ExclusionReason::Locks, 1),
        (ExclusionReason::UnknownFunction, 2),
        (ExclusionReason::UnknownName, 4),
        (ExclusionReason::Unreadable, 1),
    ];
    assert_eq!(excluded, ExcludedCounts::from(expected));
}

fn any_event() -> impl Strategy<Value = Event> {
    let action = prop_oneof![
        Just(Action::Connect),
        Just(Action::Disconnect),
        prop::sample::select(vec!["select 1", "set a = 1", "delete from t", "begin"])
            .prop_map(|sql| Action::Simple { sql: sql.into() }),
        ("[ab]?", "select [12]").prop_map(|(statement, sql)| Action::Parse {
            statement: statement.into(),
            sql: sql.into()
        }),
    ];
    let names = ("[st]", "[uv]", "[de]", "[xy]?");
    (0..30_i64, names, action).prop_map(
        |(seconds, (session, user, database, application), action)| Event {
            user: user.as_str().into(),
            database: database.as_str().into(),
            application: application.as_str().into(),
            ..event(seconds, &session, action)
        },
    )
}

proptest! {
    #[test]
    fn counts_add_up_and_time_is_monotonic(
        mut events in prop::collection::vec(any_event(), 0..60),
        from in prop::option::of(0..30_i64),
        until in prop::option::of(0..30_i64),
        user in "[uv]?",
        application in "[xy]?",
    ) {
        events.sort_by_key(|event| event.time);
        let some = |name: String| if name.is_empty() { vec![] } else { vec![name] };
        let filter = Filter {
            from: from.and_then(at),
            until: until.and_then(at),
            users: some(user),
            applications: some(application),
            ..Filter::default()
        };
        let count = events.len() as u64;
        let mut filter_under_test = EventFilter::new(filter.clone(), None);
        let mut last = Timestamp::from_micros(i64::MIN);
        for event in events {
            filter_under_test.push(event);
            while let Some(event) = filter_under_test.poll() {
                prop_assert!(event.time >= last);
                prop_assert!(filter.from.is_none_or(|from| event.time >= from));
                prop_assert!(filter.until.is_none_or(|until| event.time < until));
                last = event.time;
            }
        }
        prop_assert_eq!(filter_under_test.kept_count() + filter_under_test.excluded().values().sum::<u64>(), count);
    }
}
