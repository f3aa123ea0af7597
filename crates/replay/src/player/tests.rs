//! Dialogues of a player with a server that is a list of bytes, on a clock that is a number.

use std::time::Duration;

use howdah_session::{Event as Said, Login};
use howdah_traffic::{Bound, CopyIn, Outcome, Source, Timestamp, Wire};
use howdah_wire::{
    Frame,
    backend::encode as say,
    frontend::{Message, Target},
};

use super::*;

/// A player, its client, and the time.
struct Scene {
    player: Player,
    client: Client,
    start: Instant,
    now: Duration,
}

impl Scene {
    /// Logged in and idle.
    fn connected() -> Self {
        let start = Instant::now();
        let login = Login {
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: None,
            parameters: Vec::new(),
            channel_binding: None,
        };
        let mut scene = Self {
            player: Player::new("s".into(), start, 100, Arc::default()),
            client: Client::new(login, [7; 18]),
            start,
            now: Duration::ZERO,
        };
        scene.sent();
        scene.server(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I");
        assert!(matches!(scene.player.presence, Presence::Here));
        scene
    }

    /// Gives the player an event due `millis` after the start.
    fn event(&mut self, millis: u64, action: Action) {
        self.event_of(None, millis, action);
    }

    /// The same, of a pipeline.
    fn event_of(&mut self, pipeline: Option<u32>, millis: u64, action: Action) {
        self.event_with(pipeline, millis, action, None);
    }

    /// The same, with what the wire told of it.
    fn event_with(
        &mut self,
        pipeline: Option<u32>,
        millis: u64,
        action: Action,
        wire: Option<Wire>,
    ) {
        let due = self.start + Duration::from_millis(millis);
        let event = Event {
            time: Timestamp::from_micros(i64::try_from(millis * 1000).unwrap()),
            session: "s".into(),
            user: "u".into(),
            database: "d".into(),
            application: "".into(),
            action,
            outcome: Outcome::default(),
            source: Source::Statement,
            vxid: None,
            query_id: None,
            pipeline,
            wire: wire.map(Box::new),
        };
        let item = Item::new(event, due, due, 1);
        self.player.push(item);
    }

    fn at(&mut self, millis: u64) -> Step {
        self.now = Duration::from_millis(millis);
        self.player.step(self.start + self.now, true, Some(&mut self.client))
    }

    /// What the client has to send, a word per message, and no longer has afterwards.
    fn sent(&mut self) -> String {
        let bytes = self.client.transmit().to_vec();
        self.client.transmitted(bytes.len());
        let mut rest = &bytes[..];
        let mut words = Vec::new();
        while let Ok(Some((frame, after))) = Frame::split(rest, u32::MAX) {
            words.push(word(frame));
            rest = after;
        }
        words.join(" ")
    }

    /// The server says these bytes.
    fn server(&mut self, bytes: &[u8]) -> Vec<Finished> {
        self.client.handle_input(bytes);
        let mut finished = Vec::new();
        let now = self.start + self.now;
        loop {
            let reply = match self.client.poll_event().unwrap() {
                None => return finished,
                Some(Said::LoggedIn) => Reply::LoggedIn,
                Some(Said::ParseComplete) => Reply::Parsed,
                Some(Said::BindComplete) => Reply::Bound,
                Some(Said::CommandComplete(tag)) => Reply::Rows(tag.rows().unwrap_or(0)),
                Some(Said::PortalSuspended) => Reply::Rows(0),
                Some(Said::CopyIn) => Reply::CopyIn,
                Some(Said::Ready(status)) => Reply::Ready(status),
                Some(Said::Error(error)) => Reply::Failed(Failure {
                    sqlstate: SqlState::new(error.sqlstate()),
                    message: Text::from(error.message()),
                }),
                Some(_) => continue,
            };
            finished.extend(self.player.heard(reply, now, &mut self.client));
        }
    }
}

fn word(frame: Frame<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match Message::parse(frame).unwrap() {
        Message::Query { sql } => format!("query({})", text(sql)),
        Message::Parse(parse) => format!("parse({}:{})", text(parse.statement), text(parse.sql)),
        Message::Bind(bind) => {
            let values = bind.values.clone().map(|value| value.map_or("NULL".to_owned(), text));
            let values: Vec<_> = values.collect();
            let formats = format!("{}{}", codes(&bind.formats), codes(&bind.result_formats));
            let (statement, portal) = (text(bind.statement), text(bind.portal));
            format!("bind({statement}/{portal}:{}{formats})", values.join(","))
        }
        Message::Execute { portal, max_rows } => format!("execute({}:{max_rows})", text(portal)),
        Message::Close(Target::Statement(name)) => format!("close-statement({})", text(name)),
        Message::Close(Target::Portal(name)) => format!("close-portal({})", text(name)),
        Message::CopyData(data) => format!("copy-data({})", text(data)),
        Message::CopyFail { .. } => "copy-fail".to_owned(),
        Message::Sync => "sync".to_owned(),
        Message::Flush => "flush".to_owned(),
        Message::Terminate => "terminate".to_owned(),
        other => format!("{:?}", other.kind()),
    }
}

/// Formats, as a word for each: nothing if there are none.
fn codes(formats: &howdah_wire::Formats<'_>) -> String {
    formats.clone().map(|format| format!("/{format:?}")).collect()
}

fn simple(sql: &str) -> Action {
    Action::Simple { sql: sql.into() }
}

fn bound(statement: &str, portal: &str, sql: &str, values: &[Option<&str>]) -> Bound {
    let value =
        |value: &Option<&str>| value.map_or(Parameter::Null, |v| Parameter::Value(v.into()));
    Bound {
        statement: statement.into(),
        portal: portal.into(),
        sql: sql.into(),
        parameters: Some(values.iter().map(value).collect()),
    }
}

fn ready(status: TransactionStatus) -> Vec<u8> {
    let mut bytes = Vec::new();
    say::ready_for_query(&mut bytes, status);
    bytes
}

fn done(tag: &[u8], status: TransactionStatus) -> Vec<u8> {
    let mut bytes = Vec::new();
    say::command_complete(&mut bytes, tag).unwrap();
    bytes.extend(ready(status));
    bytes
}

const PARSED: &[u8] = b"1\0\0\0\x04";
const BOUND: &[u8] = b"2\0\0\0\x04";
const CLOSED: &[u8] = b"3\0\0\0\x04";

#[test]
fn nothing_is_sent_before_it_is_due_or_while_the_session_is_busy() {
    let mut scene = Scene::connected();
    scene.event(5, simple("select 1"));
    scene.event(6, simple("select 2"));
    let due = scene.start + Duration::from_millis(5);
    assert!(matches!(scene.at(4), Step::WaitUntil(at) if at == due));
    assert!(matches!(scene.at(5), Step::Send));
    assert_eq!(scene.sent(), "query(select 1)");
    assert!(matches!(scene.at(7), Step::Wait));
    scene.now = Duration::from_millis(9);
    let finished = scene.server(&done(b"SELECT 1", TransactionStatus::Idle));
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].rows, Some(1));
    assert!(matches!(finished[0].end, End::Done));
    assert!(matches!(scene.at(9), Step::Send));
    assert_eq!(scene.sent(), "query(select 2)");
    let finished = scene.server(&done(b"SELECT 1", TransactionStatus::Idle));
    // Due at 6, free at 9: the session was busy, we were not late.
    assert_eq!(finished[0].free - scene.start, Duration::from_millis(9));
    assert_eq!(finished[0].sent, Some(scene.start + Duration::from_millis(9)));
}

#[test]
fn parse_bind_and_execute_captured_together_go_out_together() {
    let mut scene = Scene::connected();
    scene.event(0, Action::Parse { statement: "".into(), sql: "select $1".into() });
    scene.event(0, Action::Bind(bound("", "", "select $1", &[Some("x")])));
    scene.event(0, Action::Execute(bound("", "", "select $1", &[Some("x")])));
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "parse(:select $1) bind(/:x) execute(:0) sync");
    let answer = [PARSED, BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    let finished = scene.server(&answer);
    assert_eq!(finished.len(), 3);
    assert!(finished.iter().all(|one| matches!(one.end, End::Done)));
}

#[test]
fn a_statement_prepared_long_before_its_use_is_prepared_when_it_was() {
    let mut scene = Scene::connected();
    scene.event(0, Action::Parse { statement: "s1".into(), sql: "select 1".into() });
    scene.event(50, Action::Execute(bound("s1", "", "select 1", &[])));
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "close-statement(s1) parse(s1:select 1) sync");
    scene.server(&[CLOSED, PARSED, &ready(TransactionStatus::Idle)].concat());
    assert!(matches!(scene.at(50), Step::Send));
    assert_eq!(scene.sent(), "bind(s1/:) execute(:0) sync");
}

#[test]
fn a_name_used_again_for_another_text_is_prepared_anew() {
    let mut scene = Scene::connected();
    for (millis, sql) in [(0, "select 1"), (1, "select 1"), (2, "select 2")] {
        scene.event(millis, Action::Execute(bound("s1", "", sql, &[])));
    }
    let answer = [BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    let prepared = [CLOSED, PARSED, &answer].concat();
    let expected = [
        ("close-statement(s1) parse(s1:select 1) bind(s1/:) execute(:0) sync", &prepared),
        ("bind(s1/:) execute(:0) sync", &answer),
        ("close-statement(s1) parse(s1:select 2) bind(s1/:) execute(:0) sync", &prepared),
    ];
    for (messages, answer) in expected {
        assert!(matches!(scene.at(9), Step::Send));
        assert_eq!(scene.sent(), messages);
        assert_eq!(scene.server(answer).len(), 1);
    }
}

#[test]
fn portals_are_opened_with_a_row_limit_and_fetched_from_by_name() {
    let mut scene = Scene::connected();
    scene.event(0, simple("begin"));
    scene.event(1, Action::Execute(bound("S_2", "C_3", "select 1", &[])));
    scene.event(2, Action::Fetch(bound("S_2", "C_3", "select 1", &[])));
    scene.event(3, Action::Fetch(bound("S_2", "C_9", "select 1", &[])));
    scene.at(9);
    scene.sent();
    scene.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    scene.at(9);
    assert_eq!(
        scene.sent(),
        "close-statement(S_2) parse(S_2:select 1) close-portal(C_3) bind(S_2/C_3:) \
         execute(C_3:100) sync"
    );
    let suspended = [CLOSED, PARSED, CLOSED, BOUND, b"s\0\0\0\x04"].concat();
    scene.server(&[suspended, ready(TransactionStatus::InTransaction)].concat());
    scene.at(9);
    assert_eq!(scene.sent(), "execute(C_3:100) sync");
    scene.server(&done(b"SELECT 5", TransactionStatus::InTransaction));
    let Step::Record(_, End::Skipped(skip)) = scene.at(9) else { panic!("not skipped") };
    assert_eq!(skip, Skip::PortalNotOpen);
}

#[test]
fn an_error_in_a_batch_fails_what_it_stopped_and_nothing_before() {
    let mut scene = Scene::connected();
    scene.event(0, Action::Parse { statement: "".into(), sql: "select $1".into() });
    scene.event(0, Action::Bind(bound("", "", "select $1", &[Some("x")])));
    scene.event(0, Action::Execute(bound("", "", "select $1", &[Some("x")])));
    scene.at(0);
    scene.sent();
    let mut answer = [PARSED, BOUND].concat();
    let fields: [(u8, &[u8]); 3] =
        [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"division by zero")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = scene.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, End::Done)).collect();
    assert_eq!(ends, [true, true, false]);
    let End::Failed(failure) = &finished[2].end else { panic!("not failed") };
    assert_eq!(failure.sqlstate, SqlState::new(b"22012"));
}

#[test]
fn what_the_capture_does_not_hold_is_skipped_with_its_reason() {
    let mut scene = Scene::connected();
    let unknown = Bound { parameters: None, ..bound("", "", "select $1", &[]) };
    let cut = Bound {
        parameters: Some(vec![Parameter::Truncated("xxx".into())]),
        ..bound("", "", "select $1", &[])
    };
    let rows = Action::Copy { sql: "copy t from stdin".into(), direction: CopyDirection::In };
    let expected = [
        (Action::Execute(unknown), Skip::UnknownParameters),
        (Action::Execute(cut), Skip::TruncatedParameter),
        (rows, Skip::CopyData),
        (Action::Call { function: "random".into() }, Skip::CallArguments),
        (Action::Cancel, Skip::NothingToCancel),
    ];
    for (action, reason) in expected {
        scene.event(0, action);
        let Step::Record(_, End::Skipped(skip)) = scene.at(0) else { panic!("not skipped") };
        assert_eq!(skip, reason);
    }
    assert_eq!(scene.sent(), "");
}

#[test]
fn a_copy_that_turns_up_unannounced_is_refused_and_the_session_goes_on() {
    let mut scene = Scene::connected();
    scene.event(0, simple("select 1; copy t from stdin"));
    scene.at(0);
    scene.sent();
    let mut answer = Vec::new();
    answer.extend_from_slice(b"G\0\0\0\x07\0\0\0");
    scene.server(&answer);
    assert_eq!(scene.sent(), "copy-fail");
}

#[test]
fn a_cancel_overtakes_the_statement_it_is_for() {
    let mut scene = Scene::connected();
    scene.event(0, simple("select pg_sleep(9)"));
    scene.event(400, Action::Cancel);
    scene.event(401, simple("select 1"));
    assert!(matches!(scene.at(0), Step::Send));
    assert!(matches!(scene.at(399), Step::WaitUntil(_)));
    assert!(matches!(scene.at(400), Step::Cancel(_)));
    assert!(matches!(scene.at(401), Step::Wait));
}

#[test]
fn a_statement_that_is_late_is_not_cancelled_any_earlier() {
    for paced in [true, false] {
        let mut scene = Scene::connected();
        scene.event(0, simple("select pg_sleep(9)"));
        scene.event(400, Action::Cancel);
        assert!(matches!(scene.at(300), Step::Send));
        for (millis, waits) in [(400, true), (699, true), (700, false)] {
            let step = scene.player.step(scene.start + Duration::from_millis(millis), paced, None);
            assert_eq!(matches!(step, Step::WaitUntil(_)), waits, "{millis} {paced} {step:?}");
        }
    }
}

#[test]
fn a_statement_gets_some_time_before_its_cancel_though_the_log_has_none_between() {
    let mut scene = Scene::connected();
    scene.event(0, simple("select pg_sleep(9)"));
    scene.event(0, Action::Cancel);
    assert!(matches!(scene.at(0), Step::Send));
    assert!(matches!(scene.at(49), Step::WaitUntil(_)));
    assert!(matches!(scene.at(50), Step::Cancel(_)));
}

#[test]
fn the_rest_of_a_transaction_lost_with_its_connection_is_not_played() {
    let mut scene = Scene::connected();
    let statements =
        ["begin", "update t set a = 1", "rollback to s", "insert into t", "commit", "select 1"];
    for (millis, sql) in (0..).zip(statements) {
        scene.event(millis, simple(sql));
    }
    scene.at(9);
    scene.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    scene.at(9);
    let now = scene.start + scene.now;
    let failure = Failure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
    let outage = Outage { failure, retry: now, is_long: false };
    let finished = scene.player.lost(outage, now);
    assert!(matches!(&finished[..], [one] if matches!(one.end, End::Failed(_))));
    for sql in &statements[2..5] {
        let Step::Record(item, End::Skipped(skip)) = scene.at(9) else { panic!("{sql} played") };
        assert_eq!(item.event.action, simple(sql));
        assert_eq!(skip, Skip::TransactionLost);
    }
    // Then it connects again, for what comes after.
    assert!(matches!(scene.at(9), Step::Connect(None)));
}

#[test]
fn while_the_server_is_away_events_fail_at_their_time() {
    let mut scene = Scene::connected();
    let now = scene.start;
    let failure = Failure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = now + Duration::from_millis(100);
    scene.player.lost(Outage { failure, retry, is_long: false }, now);
    scene.event(10, simple("select 1"));
    scene.event(200, simple("select 2"));
    assert!(matches!(scene.at(10), Step::Record(_, End::Failed(_))));
    assert!(matches!(scene.at(150), Step::WaitUntil(_)));
    assert!(matches!(scene.at(200), Step::Connect(None)));
}

#[test]
fn a_batch_that_cannot_be_written_to_its_end_is_ended_all_the_same() {
    let mut scene = Scene::connected();
    let values = vec![Parameter::Null; 65_536];
    let wide = Bound { parameters: Some(values), ..bound("s1", "", "select 1", &[]) };
    scene.event(0, Action::Parse { statement: "s1".into(), sql: "select 1".into() });
    scene.event(0, Action::Execute(wide));
    scene.event(0, simple("select '\0'"));
    scene.event(0, simple("select 2"));
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "close-statement(s1) parse(s1:select 1) sync");
    let answer = [CLOSED, PARSED, &ready(TransactionStatus::Idle)].concat();
    let finished = scene.server(&answer);
    let [parse, execute] = &finished[..] else { panic!("{finished:?}") };
    assert!(matches!(parse.end, End::Done));
    let End::Failed(failure) = &execute.end else { panic!("not failed") };
    assert!(failure.message.to_str_lossy().contains("65536"), "{failure:?}");
    assert_eq!(failure.sqlstate, None);

    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "sync");
    let finished = scene.server(&ready(TransactionStatus::Idle));
    assert!(matches!(&finished[..], [one] if matches!(one.end, End::Failed(_))));

    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "query(select 2)");
}

#[test]
fn what_was_deallocated_is_prepared_again() {
    let ways = [
        simple("deallocate all"),
        simple("select ';'; discard all"),
        simple("/* pooler */ DISCARD ALL;"),
        Action::Execute(bound("", "", "deallocate s1", &[])),
    ];
    for way in ways {
        let mut scene = Scene::connected();
        scene.event(0, Action::Execute(bound("s1", "", "select 1", &[])));
        scene.event(1, way.clone());
        scene.event(2, Action::Execute(bound("s1", "", "select 1", &[])));
        scene.at(9);
        scene.sent();
        let answer = [BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
        scene.server(&[CLOSED, PARSED, &answer].concat());
        scene.at(9);
        scene.sent();
        let extended = [PARSED, BOUND].concat();
        let is_simple = matches!(way, Action::Simple { .. });
        let before = if is_simple { &[][..] } else { &extended };
        let finished = scene.server(&[before, &done(b"X", TransactionStatus::Idle)].concat());
        assert_eq!(finished.len(), 1, "{way:?}");
        scene.at(9);
        assert_eq!(
            scene.sent(),
            "close-statement(s1) parse(s1:select 1) bind(s1/:) execute(:0) sync",
            "{way:?}"
        );
    }
}

#[test]
fn a_lost_transaction_ends_where_the_captured_one_did() {
    let ends: [(&str, bool); 9] = [
        ("commit", true),
        ("end;", true),
        ("abort", true),
        ("update t set a = 1; commit", true),
        ("rollback to savepoint s", false),
        ("commit and chain", false),
        ("commit and no chain", true),
        ("commit; begin", false),
        ("select 'commit'", false),
    ];
    for (sql, ended) in ends {
        let mut scene = Scene::connected();
        for (millis, sql) in (0..).zip(["begin", sql, "insert into t default values"]) {
            scene.event(millis, simple(sql));
        }
        scene.at(9);
        scene.server(&done(b"BEGIN", TransactionStatus::InTransaction));
        let failure = Failure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
        let now = scene.start;
        scene.player.lost(Outage { failure, retry: now, is_long: false }, now);
        assert!(matches!(scene.at(9), Step::Record(_, End::Skipped(Skip::TransactionLost))));
        assert_eq!(matches!(scene.at(9), Step::Connect(None)), ended, "{sql}");
    }
}

#[test]
fn the_next_transaction_is_played_although_the_lost_one_has_no_end() {
    let mut scene = Scene::connected();
    for (millis, sql) in (0..).zip(["begin", "update t set a = 1", "begin", "insert into t"]) {
        scene.event(millis, simple(sql));
    }
    scene.at(9);
    scene.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    let failure = Failure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
    let now = scene.start;
    scene.player.lost(Outage { failure, retry: now, is_long: false }, now);
    assert!(matches!(scene.at(9), Step::Record(_, End::Skipped(Skip::TransactionLost))));
    assert!(matches!(scene.at(9), Step::Connect(None)));
    scene.player.presence = Presence::Here;
    scene.sent();
    assert!(matches!(scene.at(9), Step::Send));
    assert_eq!(scene.sent(), "query(begin)");
    scene.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    assert!(matches!(scene.at(9), Step::Send));
    assert_eq!(scene.sent(), "query(insert into t)");
}

#[test]
fn a_session_that_leaves_while_the_server_is_away_has_left() {
    let mut scene = Scene::connected();
    let failure = Failure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = scene.start + Duration::from_secs(9);
    scene.player.lost(Outage { failure, retry, is_long: false }, scene.start);
    scene.event(1, Action::Disconnect);
    assert!(!scene.player.is_done());
    assert!(matches!(scene.at(1), Step::Record(_, End::Done)));
    assert!(scene.player.is_done());
}

#[test]
fn without_due_times_events_wait_for_the_server_but_not_for_ever() {
    let mut scene = Scene::connected();
    let failure = Failure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = scene.start + Duration::from_secs(9);
    let outage = Outage { failure, retry, is_long: false };
    scene.event(0, simple("select 1"));
    for (is_long, waits) in [(false, true), (true, false)] {
        scene.player.lost(Outage { is_long, ..outage.clone() }, scene.start);
        match scene.player.step(scene.start, false, None) {
            Step::WaitUntil(at) => assert!(waits && at == retry),
            Step::Record(_, End::Failed(_)) => assert!(!waits),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_pipeline_goes_out_under_one_sync_and_each_statement_has_its_own_time() {
    let mut scene = Scene::connected();
    for (millis, sql) in [(0, "insert 1"), (1, "insert 2"), (2, "insert 3")] {
        scene.event_of(Some(7), millis, Action::Bind(bound("s1", "", sql, &[])));
        scene.event_of(Some(7), millis, Action::Execute(bound("s1", "", sql, &[])));
    }
    scene.event_of(Some(8), 3, Action::Execute(bound("s1", "", "insert 3", &[])));
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(
        scene.sent(),
        "close-statement(s1) parse(s1:insert 1) bind(s1/:) execute(:0) flush \
         close-statement(s1) parse(s1:insert 2) bind(s1/:) execute(:0) flush \
         close-statement(s1) parse(s1:insert 3) bind(s1/:) execute(:0) sync"
    );
    let answer = |scene: &mut Scene, millis, rows: &[u8], ready: &[u8]| {
        scene.now = Duration::from_millis(millis);
        let mut complete = Vec::new();
        say::command_complete(&mut complete, rows).unwrap();
        scene.server(&[CLOSED, PARSED, BOUND, &complete, ready].concat())
    };
    assert!(answer(&mut scene, 10, b"INSERT 0 1", b"").is_empty());
    assert!(answer(&mut scene, 30, b"INSERT 0 2", b"").is_empty());
    let finished = answer(&mut scene, 60, b"INSERT 0 3", &ready(TransactionStatus::Idle));
    assert_eq!(finished.len(), 6);
    let took = |one: &Finished| one.ended - one.begun.expect("it was sent");
    let executed = finished.iter().filter(|one| one.rows.is_some());
    let told: Vec<_> = executed.map(|one| (one.rows, took(one).as_millis())).collect();
    assert_eq!(told, [(Some(1), 10), (Some(2), 20), (Some(3), 30)]);
    assert!(matches!(scene.at(60), Step::Send));
    assert_eq!(scene.sent(), "bind(s1/:) execute(:0) sync");
}

#[test]
fn an_error_in_a_pipeline_fails_the_statements_behind_it() {
    let mut scene = Scene::connected();
    for sql in ["select 1", "select 1/0", "select 3"] {
        scene.event_of(Some(1), 0, Action::Execute(bound("", "", sql, &[])));
    }
    scene.at(0);
    scene.sent();
    let mut answer = [PARSED, BOUND].concat();
    say::command_complete(&mut answer, b"SELECT 1").unwrap();
    answer.extend([PARSED, BOUND].concat());
    let fields: [(u8, &[u8]); 3] =
        [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"division by zero")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = scene.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, End::Done)).collect();
    assert_eq!(ends, [true, false, false]);
    assert_eq!(finished[0].rows, Some(1));
}

#[test]
fn a_portal_fetched_from_in_its_own_pipeline_is_opened_with_a_row_limit() {
    let mut scene = Scene::connected();
    scene.event_of(Some(1), 0, Action::Execute(bound("", "", "select 1", &[])));
    scene.event_of(Some(1), 0, Action::Fetch(bound("", "", "select 1", &[])));
    scene.at(0);
    assert_eq!(scene.sent(), "parse(:select 1) bind(/:) execute(:100) flush execute(:100) sync");
    let suspended = [PARSED, BOUND, b"s\0\0\0\x04"].concat();
    let finished = scene.server(&[suspended, done(b"SELECT 5", TransactionStatus::Idle)].concat());
    let rows: Vec<_> = finished.iter().map(|one| one.rows).collect();
    assert_eq!(rows, [Some(0), Some(5)]);
}

#[test]
fn a_copy_is_never_pipelined_with_others() {
    let mut scene = Scene::connected();
    for sql in ["select 1", "copy t from stdin", "select 3"] {
        scene.event_of(Some(1), 0, Action::Execute(bound("", "", sql, &[])));
    }
    scene.at(0);
    assert_eq!(scene.sent(), "parse(:select 1) bind(/:) execute(:0) sync");
}

#[test]
fn a_session_goes_on_to_speak_the_encoding_of_what_was_captured() {
    let mut scene = Scene::connected();
    scene.server(b"S\0\0\0\x19client_encoding\0UTF8\0");
    let ready = b"Z\0\0\0\x05I";
    scene.event(0, simple("set client_encoding = 'LATIN1'"));
    scene.event(1, Action::Execute(bound("", "", "set names 'win1252'", &[])));
    scene.at(0);
    assert_eq!(scene.sent(), "query(set client_encoding = 'UTF8')");
    let finished = scene.server(ready);
    let sql = finished[0].item.event.action.sql().map(Text::to_string);
    assert_eq!(sql.as_deref(), Some("set client_encoding = 'LATIN1'"), "as captured");
    scene.at(1);
    assert_eq!(scene.sent(), "parse(:set names 'UTF8') bind(/:) execute(:0) sync");
}

#[test]
fn what_the_wire_told_is_sent_again() {
    let mut scene = Scene::connected();
    let wire = Wire {
        types: vec![23],
        formats: vec![1],
        result_formats: vec![1],
        rows_max: 7,
        ..Wire::default()
    };
    let action = || bound("", "p", "select $1", &[Some("\0\0\0\u{5}")]);
    scene.event_with(Some(1), 0, Action::Execute(action()), Some(wire.clone()));
    scene.event_with(Some(2), 1, Action::Fetch(action()), Some(Wire { rows_max: 9, ..wire }));
    assert!(matches!(scene.at(1), Step::Send));
    let bind = "bind(/p:\0\0\0\u{5}/Binary/Binary)";
    let parse = "parse(:select $1)";
    assert_eq!(scene.sent(), format!("{parse} close-portal(p) {bind} execute(p:7) sync"));
    scene.server(
        &[PARSED, CLOSED, BOUND, b"s\0\0\0\x04", &ready(TransactionStatus::InTransaction)].concat(),
    );
    assert!(matches!(scene.at(1), Step::Send));
    assert_eq!(scene.sent(), "execute(p:9) sync");
}

/// A Parse with a Flush, a Query before any Sync, then a pipeline of its own.
fn unsynced() -> Scene {
    let mut scene = Scene::connected();
    let with = |messages: &str| Wire { messages: Some(messages.into()), ..Wire::default() };
    let parse = Action::Parse { statement: "s".into(), sql: "select 1".into() };
    scene.event_with(Some(1), 0, parse, Some(with("P")));
    scene.event_with(None, 0, simple("select 2; select 3"), Some(with("DSs\0HQ")));
    let execute = Action::Execute(bound("s", "", "select 1", &[]));
    scene.event_with(Some(2), 0, execute, Some(with("B\0ES")));
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "parse(s:select 1) Describe flush query(select 2; select 3)");
    scene
}

#[test]
fn a_query_ends_a_pipeline_without_a_sync_as_it_did() {
    let mut scene = unsynced();
    let two = [PARSED, b"t\0\0\0\x06\0\0n\0\0\0\x04", b"C\0\0\0\x0dSELECT 1\0"].concat();
    assert!(scene.server(&two).is_empty());
    let finished = scene.server(&done(b"SELECT 1", TransactionStatus::Idle));
    let ends: Vec<_> =
        finished.iter().map(|one| (one.rows, matches!(one.end, End::Done))).collect();
    assert_eq!(ends, [(None, true), (Some(2), true)]);
    assert!(matches!(scene.at(0), Step::Send));
    assert_eq!(scene.sent(), "bind(s/:) execute(:0) sync");
}

#[test]
fn a_query_that_is_passed_over_because_of_a_failure_before_it_is_not_waited_for() {
    let mut scene = unsynced();
    let mut failed = Vec::new();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"42P01"), (b'M', b"no such table")];
    say::error_response(&mut failed, fields).unwrap();
    assert!(scene.server(&failed).is_empty());
    assert_eq!(scene.sent(), "sync");
    let finished = scene.server(&ready(TransactionStatus::Idle));
    assert!(finished.iter().all(|one| matches!(one.end, End::Failed(_))), "{finished:?}");
    assert!(matches!(scene.at(0), Step::Send));
    let prepared = "close-statement(s) parse(s:select 1)";
    assert_eq!(scene.sent(), format!("{prepared} bind(s/:) execute(:0) sync"));
}

#[test]
fn a_query_that_fails_behind_a_pipeline_fails_alone() {
    let mut scene = unsynced();
    let mut answer = [PARSED, b"t\0\0\0\x06\0\0n\0\0\0\x04", b"C\0\0\0\x0dSELECT 1\0"].concat();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"no")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = scene.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, End::Done)).collect();
    assert_eq!(ends, [true, false]);
    assert_eq!(scene.sent(), "");
}

/// pgx and asyncpg go on to use a statement that was executed in vain.
#[test]
fn a_statement_stays_prepared_though_its_execution_fails() {
    let mut scene = Scene::connected();
    let with = |messages: &str| Wire { messages: Some(messages.into()), ..Wire::default() };
    let parse = Action::Parse { statement: "s".into(), sql: "select 1/$1".into() };
    let execute = || Action::Execute(bound("s", "", "select 1/$1", &[Some("0")]));
    scene.event_with(Some(1), 0, parse, Some(with("PS")));
    scene.event_with(Some(2), 0, execute(), Some(with("B\0ES")));
    scene.event_with(Some(3), 0, execute(), Some(with("B\0ES")));
    scene.at(0);
    scene.server(&[PARSED, &ready(TransactionStatus::Idle)].concat());
    let mut failed = BOUND.to_vec();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"no")];
    say::error_response(&mut failed, fields).unwrap();
    failed.extend(ready(TransactionStatus::Idle));
    scene.sent();
    for _ in 0..2 {
        assert!(matches!(scene.at(0), Step::Send));
        assert_eq!(scene.sent(), "bind(s/:0) execute(:0) sync");
        assert!(matches!(scene.server(&failed)[0].end, End::Failed(_)));
    }
}

#[test]
fn captured_rows_are_copied_again() {
    let copy = |data: &[Option<&str>], failed| Wire {
        copy_in: Some(CopyIn {
            bytes: 9,
            data: data.iter().map(|rows| rows.map(Text::from)).collect(),
            failed,
        }),
        ..Wire::default()
    };
    let text = "copy t from stdin; copy u from stdin";
    let sql = || Action::Copy { sql: text.into(), direction: CopyDirection::In };
    let mut scene = Scene::connected();
    scene.event_with(None, 0, sql(), Some(copy(&[Some("1\n"), Some("2\n")], true)));
    scene.event_with(None, 1, sql(), Some(copy(&[None], false)));
    assert!(matches!(scene.at(1), Step::Send));
    assert_eq!(scene.sent(), format!("query({text})"));
    scene.server(b"G\0\0\0\x07\0\0\0");
    assert_eq!(scene.sent(), "copy-data(1\n) CopyDone");
    scene.server(b"C\0\0\0\x0bCOPY 1\0G\0\0\0\x07\0\0\0");
    assert_eq!(scene.sent(), "copy-data(2\n) copy-fail");
    scene.server(&ready(TransactionStatus::Idle));
    // Rows that were not kept cannot be copied.
    assert!(matches!(scene.at(1), Step::Record(_, End::Skipped(Skip::CopyData))));
}
