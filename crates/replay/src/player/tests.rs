//! Tests a player with a scripted server and a fake clock.

use std::time::Duration;

use howdah_session::{Login, SessionEvent};
use howdah_traffic::{Bound, CapturedOutcome, CopyInData, Source, Timestamp, WireDetail};
use howdah_wire::{
    Frame,
    backend::{Severity, encode as say},
    frontend::{DescribeTarget, FrontendMessage},
};

use super::*;
use crate::pace::Rate;

fn settings() -> PlayerSettings {
    PlayerSettings {
        fetch_rows: 100,
        lag: LagPolicy::default(),
        think_time: None,
        order: StatementOrder::Session,
        types: Arc::default(),
        ids: None,
    }
}

fn schedule(start: Instant, rate: Rate) -> Schedule {
    Schedule::new(Timestamp::from_micros(0), start, rate)
}

/// A player with its client and the current time.
struct PlayerFixture {
    player: Player,
    client: ClientSession,
    start: Instant,
    now: Duration,
    clear_until: i64,
}

impl PlayerFixture {
    /// Creates a player that is logged in and idle.
    fn connected() -> Self {
        let start = Instant::now();
        let login = Login {
            user: "u".to_owned(),
            database: "d".to_owned(),
            password: None,
            parameters: Vec::new(),
            channel_binding: None,
        };
        let mut fixture = Self {
            player: Player::new("s".into(), start, &settings()),
            client: ClientSession::new(login, [7; 18]),
            start,
            now: Duration::ZERO,
            clear_until: 0,
        };
        fixture.sent();
        fixture.server(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I");
        assert!(matches!(fixture.player.link_state, LinkState::Connected));
        fixture
    }

    /// Queues an event due `millis` after the start.
    fn event(&mut self, millis: u64, action: Action) {
        self.event_of(None, millis, action);
    }

    /// Queues an event as part of a pipeline.
    fn event_of(&mut self, pipeline: Option<u32>, millis: u64, action: Action) {
        self.event_with(pipeline, millis, action, None);
    }

    /// Queues an event with details captured on the wire.
    fn event_with(
        &mut self,
        pipeline: Option<u32>,
        millis: u64,
        action: Action,
        wire: Option<WireDetail>,
    ) {
        let due = self.start + Duration::from_millis(millis);
        let event = Event {
            time: Timestamp::from_micros(i64::try_from(millis * 1000).unwrap()),
            session: "s".into(),
            user: "u".into(),
            database: "d".into(),
            application: "".into(),
            action,
            outcome: CapturedOutcome::default(),
            source: Source::Statement,
            vxid: None,
            query_id: None,
            pipeline,
            wire: wire.map(Box::new),
        };
        let item = ScheduledEvent::new(Box::new(event), due, due, 1);
        self.player.push(item);
    }

    fn at(&mut self, millis: u64) -> PlayerStep {
        self.now = Duration::from_millis(millis);
        self.player.step(
            self.start + self.now,
            &schedule(self.start, Rate::Times(1.0)),
            Timestamp::from_micros(self.clear_until),
            Some(&mut self.client),
        )
    }

    /// Takes the messages that the client has queued, one word per message.
    fn sent(&mut self) -> String {
        let bytes = self.client.transmit().to_vec();
        self.client.transmitted(bytes.len());
        let mut rest = &bytes[..];
        let mut words = Vec::new();
        while let Ok(Some((frame, after))) = Frame::split(rest, u32::MAX) {
            words.push(describe_message(frame));
            rest = after;
        }
        words.join(" ")
    }

    /// Passes bytes to the client as if the server had sent them.
    fn server(&mut self, bytes: &[u8]) -> Vec<FinishedEvent> {
        self.client.handle_input(bytes);
        let mut finished = Vec::new();
        let now = self.start + self.now;
        loop {
            let reply = match self.client.poll_event().unwrap() {
                None => return finished,
                Some(SessionEvent::LoggedIn) => Reply::LoggedIn,
                Some(SessionEvent::ParseComplete) => Reply::Parsed,
                Some(SessionEvent::BindComplete) => Reply::Bound,
                Some(SessionEvent::CommandComplete(tag)) => Reply::Rows(tag.rows().unwrap_or(0)),
                Some(SessionEvent::PortalSuspended) => Reply::Rows(0),
                Some(SessionEvent::CopyIn) => Reply::CopyIn,
                Some(SessionEvent::Ready(status)) => Reply::Ready(status),
                Some(SessionEvent::Error(error)) => Reply::Failed(ReplayFailure {
                    sqlstate: SqlState::new(error.sqlstate()),
                    message: Text::from(error.message()),
                }),
                Some(_) => continue,
            };
            self.player.handle_reply(reply, now, &mut self.client, &mut finished);
        }
    }
}

fn describe_message(frame: Frame<'_>) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match FrontendMessage::parse(frame).unwrap() {
        FrontendMessage::Query { sql } => format!("query({})", text(sql)),
        FrontendMessage::Parse(parse) => {
            format!("parse({}:{})", text(parse.statement), text(parse.sql))
        }
        FrontendMessage::Bind(bind) => {
            let values = bind.values.clone().map(|value| value.map_or("NULL".to_owned(), text));
            let values: Vec<_> = values.collect();
            let formats = format!("{}{}", codes(&bind.formats), codes(&bind.result_formats));
            let (statement, portal) = (text(bind.statement), text(bind.portal));
            format!("bind({statement}/{portal}:{}{formats})", values.join(","))
        }
        FrontendMessage::Execute { portal, max_rows } => {
            format!("execute({}:{max_rows})", text(portal))
        }
        FrontendMessage::Close(DescribeTarget::Statement(name)) => {
            format!("close-statement({})", text(name))
        }
        FrontendMessage::Close(DescribeTarget::Portal(name)) => {
            format!("close-portal({})", text(name))
        }
        FrontendMessage::CopyData(data) => format!("copy-data({})", text(data)),
        FrontendMessage::CopyFail { .. } => "copy-fail".to_owned(),
        FrontendMessage::Sync => "sync".to_owned(),
        FrontendMessage::Flush => "flush".to_owned(),
        FrontendMessage::Terminate => "terminate".to_owned(),
        other => format!("{:?}", other.kind()),
    }
}

/// Formats the format codes, each after a slash; empty if there are none.
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
fn events_wait_for_due_time_and_free_session() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(5, simple("select 1"));
    fixture.event(6, simple("select 2"));
    let due = fixture.start + Duration::from_millis(5);
    assert!(matches!(fixture.at(4), PlayerStep::WaitUntil(at) if at == due));
    assert!(matches!(fixture.at(5), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(select 1)");
    assert!(matches!(fixture.at(7), PlayerStep::Wait));
    fixture.now = Duration::from_millis(9);
    let finished = fixture.server(&done(b"SELECT 1", TransactionStatus::Idle));
    assert_eq!(finished.len(), 1);
    assert_eq!(finished[0].rows, Some(1));
    assert!(matches!(finished[0].end, EventEnd::Done));
    assert!(matches!(fixture.at(9), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(select 2)");
    let finished = fixture.server(&done(b"SELECT 1", TransactionStatus::Idle));
    // Due at 6, free at 9: the session was busy, we were not late.
    assert_eq!(finished[0].free_since - fixture.start, Duration::from_millis(9));
    assert_eq!(finished[0].sent, Some(fixture.start + Duration::from_millis(9)));
}

#[test]
fn parse_bind_and_execute_are_sent_as_one_batch() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, Action::Parse { statement: "".into(), sql: "select $1".into() });
    fixture.event(0, Action::Bind(bound("", "", "select $1", &[Some("x")])));
    fixture.event(0, Action::Execute(bound("", "", "select $1", &[Some("x")])));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "parse(:select $1) bind(/:x) execute(:0) sync");
    let answer = [PARSED, BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    let finished = fixture.server(&answer);
    assert_eq!(finished.len(), 3);
    assert!(finished.iter().all(|one| matches!(one.end, EventEnd::Done)));
}

#[test]
fn early_parse_is_sent_at_its_own_time() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, Action::Parse { statement: "s1".into(), sql: "select 1".into() });
    fixture.event(50, Action::Execute(bound("s1", "", "select 1", &[])));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "close-statement(s1) parse(s1:select 1) sync");
    fixture.server(&[CLOSED, PARSED, &ready(TransactionStatus::Idle)].concat());
    assert!(matches!(fixture.at(50), PlayerStep::Send));
    assert_eq!(fixture.sent(), "bind(s1/:) execute(:0) sync");
}

#[test]
fn reused_statement_name_is_prepared_again() {
    let mut fixture = PlayerFixture::connected();
    for (millis, sql) in [(0, "select 1"), (1, "select 1"), (2, "select 2")] {
        fixture.event(millis, Action::Execute(bound("s1", "", sql, &[])));
    }
    let answer = [BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    let prepared = [CLOSED, PARSED, &answer].concat();
    let expected = [
        ("close-statement(s1) parse(s1:select 1) bind(s1/:) execute(:0) sync", &prepared),
        ("bind(s1/:) execute(:0) sync", &answer),
        ("close-statement(s1) parse(s1:select 2) bind(s1/:) execute(:0) sync", &prepared),
    ];
    for (messages, answer) in expected {
        assert!(matches!(fixture.at(9), PlayerStep::Send));
        assert_eq!(fixture.sent(), messages);
        assert_eq!(fixture.server(answer).len(), 1);
    }
}

#[test]
fn named_portal_is_opened_with_row_limit_and_fetched() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, simple("begin"));
    fixture.event(1, Action::Execute(bound("S_2", "C_3", "select 1", &[])));
    fixture.event(2, Action::Fetch(bound("S_2", "C_3", "select 1", &[])));
    fixture.event(3, Action::Fetch(bound("S_2", "C_9", "select 1", &[])));
    fixture.at(9);
    fixture.sent();
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    fixture.at(9);
    assert_eq!(
        fixture.sent(),
        "close-statement(S_2) parse(S_2:select 1) close-portal(C_3) bind(S_2/C_3:) \
         execute(C_3:100) sync"
    );
    let suspended = [CLOSED, PARSED, CLOSED, BOUND, b"s\0\0\0\x04"].concat();
    fixture.server(&[suspended, ready(TransactionStatus::InTransaction)].concat());
    fixture.at(9);
    assert_eq!(fixture.sent(), "execute(C_3:100) sync");
    fixture.server(&done(b"SELECT 5", TransactionStatus::InTransaction));
    let PlayerStep::Record(_, EventEnd::Skipped(skip)) = fixture.at(9) else {
        panic!("not skipped")
    };
    assert_eq!(skip, SkipCause::PortalNotOpen);
}

#[test]
fn error_fails_rest_of_batch_only() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, Action::Parse { statement: "".into(), sql: "select $1".into() });
    fixture.event(0, Action::Bind(bound("", "", "select $1", &[Some("x")])));
    fixture.event(0, Action::Execute(bound("", "", "select $1", &[Some("x")])));
    fixture.at(0);
    fixture.sent();
    let mut answer = [PARSED, BOUND].concat();
    let fields: [(u8, &[u8]); 3] =
        [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"division by zero")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = fixture.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, EventEnd::Done)).collect();
    assert_eq!(ends, [true, true, false]);
    let EventEnd::Failed(failure) = &finished[2].end else { panic!("not failed") };
    assert_eq!(failure.sqlstate, SqlState::new(b"22012"));
}

#[test]
fn event_is_held_until_transactions_have_ended() {
    let mut fixture = PlayerFixture::connected();
    fixture.player.order.is_enabled = true;
    let parse = Action::Parse { statement: "".into(), sql: "select 1".into() };
    fixture.event(0, parse);
    fixture.event(0, Action::Execute(bound("", "", "select 1", &[])));
    // The Parse is sent with the Execute, so it waits for what the Execute needs.
    fixture.player.queue[1].position.needs = Some(Timestamp::from_micros(2));
    assert!(matches!(fixture.at(1), PlayerStep::WaitForTransactions(_)));
    assert!(matches!(fixture.at(2), PlayerStep::Wait), "it waits already");
    fixture.clear_until = 2;
    assert!(matches!(fixture.at(5), PlayerStep::Send));
    let finished = fixture.server(
        &[b"1\0\0\0\x042\0\0\0\x04".to_vec(), done(b"SELECT 1", TransactionStatus::Idle)].concat(),
    );
    let held: Vec<_> = finished.iter().map(|one| one.item.held_until).collect();
    assert_eq!(held, [Some(fixture.start + Duration::from_millis(5)); 2]);

    fixture.event(6, simple("begin"));
    fixture.event(6, simple("select 2"));
    for queued in &mut fixture.player.queue {
        queued.position.needs = Some(Timestamp::from_micros(3));
    }
    assert!(matches!(fixture.at(6), PlayerStep::WaitForTransactions(_)));
    fixture.player.order.is_released = true;
    assert!(matches!(fixture.at(7), PlayerStep::Send));
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    assert!(matches!(fixture.at(8), PlayerStep::Send), "released to the end of its transaction");
    fixture.server(&done(b"SELECT 1", TransactionStatus::Idle));
    fixture.event(9, simple("select 3"));
    fixture.player.queue[0].position.needs = Some(Timestamp::from_micros(3));
    assert!(matches!(fixture.at(9), PlayerStep::WaitForTransactions(_)));
}

#[test]
fn deadlock_victim_fails_in_the_same_place() {
    let mut fixture = PlayerFixture::connected();
    fixture.player.order.is_enabled = true;
    fixture.event(0, simple("begin"));
    for sql in ["update t set v = 1", "update t set v = 2", "rollback"] {
        fixture.event(0, simple(sql));
    }
    fixture.player.queue[2].event.outcome.sqlstate = SqlState::new(b"40P01");
    for sent in ["begin", "update t set v = 1"] {
        assert!(matches!(fixture.at(1), PlayerStep::Send));
        assert!(fixture.sent().contains(sent));
        fixture.server(&done(b"OK", TransactionStatus::InTransaction));
    }
    assert!(matches!(fixture.at(2), PlayerStep::Send));
    assert!(fixture.sent().contains("failed in the capture by a conflict"));
    let mut failed = Vec::new();
    let fields = say::essentials(Severity::Error, b"22P02", b"invalid");
    say::error_response(&mut failed, fields).unwrap();
    failed.extend(ready(TransactionStatus::Failed));
    assert!(fixture.server(&failed).is_empty());
    let PlayerStep::Record(item, EventEnd::Skipped(SkipCause::Conflict)) = fixture.at(3) else {
        panic!("the victim is not sent")
    };
    assert_eq!(item.event.action.sql().unwrap().as_bytes(), b"update t set v = 2");
    assert!(matches!(fixture.at(4), PlayerStep::Send));
    assert!(fixture.sent().contains("rollback"));
    fixture.server(&done(b"SELECT 1", TransactionStatus::Idle));

    // Outside of a transaction, nothing needs to fail.
    fixture.event(5, simple("update t set v = 3"));
    fixture.player.queue[0].event.outcome.sqlstate = SqlState::new(b"40001");
    let step = fixture.at(6);
    assert!(matches!(step, PlayerStep::Record(_, EventEnd::Skipped(SkipCause::Conflict))));
}

#[test]
fn events_with_missing_data_are_skipped_with_reason() {
    let mut fixture = PlayerFixture::connected();
    let unknown = Bound { parameters: None, ..bound("", "", "select $1", &[]) };
    let cut = Bound {
        parameters: Some(vec![Parameter::Truncated("xxx".into())]),
        ..bound("", "", "select $1", &[])
    };
    let rows = Action::Copy { sql: "copy t from stdin".into(), direction: CopyDirection::In };
    let password = "alter role ann PASSWORD  'redacted' valid until 'infinity'";
    let nested = "do $$ begin execute 'create role b password ''redacted'''; end $$";
    let expected = [
        (Action::Simple { sql: password.into() }, SkipCause::RemovedPassword),
        (Action::Execute(bound("", "", password, &[])), SkipCause::RemovedPassword),
        (Action::Simple { sql: nested.into() }, SkipCause::RemovedPassword),
        (Action::Execute(unknown), SkipCause::UnknownParameters),
        (Action::Execute(cut), SkipCause::TruncatedParameter),
        (rows, SkipCause::CopyData),
        (Action::Execute(bound("s", "", "copy t from stdin binary", &[])), SkipCause::CopyData),
        (Action::Call { function: "random".into() }, SkipCause::CallArguments),
        (Action::Cancel, SkipCause::NothingToCancel),
    ];
    for (action, reason) in expected {
        fixture.event(0, action);
        let PlayerStep::Record(_, EventEnd::Skipped(skip)) = fixture.at(0) else {
            panic!("not skipped")
        };
        assert_eq!(skip, reason);
    }
    assert_eq!(fixture.sent(), "");
}

#[test]
fn unexpected_copy_is_failed() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, simple("select 1; copy t from stdin"));
    fixture.at(0);
    fixture.sent();
    let mut answer = Vec::new();
    answer.extend_from_slice(b"G\0\0\0\x07\0\0\0");
    fixture.server(&answer);
    assert_eq!(fixture.sent(), "copy-fail");
}

#[test]
fn cancel_is_sent_while_its_statement_runs() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, simple("select pg_sleep(9)"));
    fixture.event(400, Action::Cancel);
    fixture.event(401, simple("select 1"));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert!(matches!(fixture.at(399), PlayerStep::WaitUntil(_)));
    assert!(matches!(fixture.at(400), PlayerStep::Cancel(_)));
    assert!(matches!(fixture.at(401), PlayerStep::Wait));
}

#[test]
fn late_statement_keeps_its_time_before_cancel() {
    for paced in [true, false] {
        let mut fixture = PlayerFixture::connected();
        fixture.event(0, simple("select pg_sleep(9)"));
        fixture.event(400, Action::Cancel);
        assert!(matches!(fixture.at(300), PlayerStep::Send));
        for (millis, waits) in [(400, true), (699, true), (700, false)] {
            let step = fixture.player.step(
                fixture.start + Duration::from_millis(millis),
                &schedule(fixture.start, if paced { Rate::Times(1.0) } else { Rate::Max }),
                Timestamp::default(),
                None,
            );
            assert_eq!(
                matches!(step, PlayerStep::WaitUntil(_)),
                waits,
                "{millis} {paced} {step:?}"
            );
        }
    }
}

#[test]
fn cancel_waits_for_minimum_gap_after_statement() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, simple("select pg_sleep(9)"));
    fixture.event(0, Action::Cancel);
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert!(matches!(fixture.at(49), PlayerStep::WaitUntil(_)));
    assert!(matches!(fixture.at(50), PlayerStep::Cancel(_)));
}

#[test]
fn rest_of_lost_transaction_is_skipped() {
    let mut fixture = PlayerFixture::connected();
    let statements =
        ["begin", "update t set a = 1", "rollback to s", "insert into t", "commit", "select 1"];
    for (millis, sql) in (0..).zip(statements) {
        fixture.event(millis, simple(sql));
    }
    fixture.at(9);
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    fixture.at(9);
    let now = fixture.start + fixture.now;
    let failure = ReplayFailure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
    let outage = Outage { failure, retry: now, waits_for_slot: false, is_long: false };
    let finished = fixture.player.on_connection_lost(outage, now);
    assert!(matches!(&finished[..], [one] if matches!(one.end, EventEnd::Failed(_))));
    for sql in &statements[2..5] {
        let PlayerStep::Record(item, EventEnd::Skipped(skip)) = fixture.at(9) else {
            panic!("{sql} played")
        };
        assert_eq!(item.event.action, simple(sql));
        assert_eq!(skip, SkipCause::TransactionLost);
    }
    // Then it connects again for the next statement.
    assert!(matches!(fixture.at(9), PlayerStep::Connect(None)));
}

#[test]
fn events_fail_when_due_during_outage() {
    let mut fixture = PlayerFixture::connected();
    let now = fixture.start;
    let failure = ReplayFailure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = now + Duration::from_millis(100);
    fixture
        .player
        .on_connection_lost(Outage { failure, retry, waits_for_slot: false, is_long: false }, now);
    fixture.event(10, simple("select 1"));
    fixture.event(200, simple("select 2"));
    assert!(matches!(fixture.at(10), PlayerStep::Record(_, EventEnd::Failed(_))));
    assert!(matches!(fixture.at(150), PlayerStep::WaitUntil(_)));
    assert!(matches!(fixture.at(200), PlayerStep::Connect(None)));
}

#[test]
fn batch_that_cannot_be_encoded_ends_with_sync() {
    let mut fixture = PlayerFixture::connected();
    let values = vec![Parameter::Null; 65_536];
    let wide = Bound { parameters: Some(values), ..bound("s1", "", "select 1", &[]) };
    fixture.event(0, Action::Parse { statement: "s1".into(), sql: "select 1".into() });
    fixture.event(0, Action::Execute(wide));
    fixture.event(0, simple("select '\0'"));
    fixture.event(0, simple("select 2"));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "close-statement(s1) parse(s1:select 1) sync");
    let answer = [CLOSED, PARSED, &ready(TransactionStatus::Idle)].concat();
    let finished = fixture.server(&answer);
    let [parse, execute] = &finished[..] else { panic!("{finished:?}") };
    assert!(matches!(parse.end, EventEnd::Done));
    let EventEnd::Failed(failure) = &execute.end else { panic!("not failed") };
    assert!(failure.message.to_str_lossy().contains("65536"), "{failure:?}");
    assert_eq!(failure.sqlstate, None);

    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "sync");
    let finished = fixture.server(&ready(TransactionStatus::Idle));
    assert!(matches!(&finished[..], [one] if matches!(one.end, EventEnd::Failed(_))));

    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(select 2)");
}

#[test]
fn deallocated_statements_are_prepared_again() {
    let statements = [
        simple("deallocate all"),
        simple("select ';'; discard all"),
        simple("/* pooler */ DISCARD ALL;"),
        Action::Execute(bound("", "", "deallocate s1", &[])),
    ];
    for statement in statements {
        let mut fixture = PlayerFixture::connected();
        fixture.event(0, Action::Execute(bound("s1", "", "select 1", &[])));
        fixture.event(1, statement.clone());
        fixture.event(2, Action::Execute(bound("s1", "", "select 1", &[])));
        fixture.at(9);
        fixture.sent();
        let answer = [BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
        fixture.server(&[CLOSED, PARSED, &answer].concat());
        fixture.at(9);
        fixture.sent();
        let extended = [PARSED, BOUND].concat();
        let is_simple = matches!(statement, Action::Simple { .. });
        let before = if is_simple { &[][..] } else { &extended };
        let finished = fixture.server(&[before, &done(b"X", TransactionStatus::Idle)].concat());
        assert_eq!(finished.len(), 1, "{statement:?}");
        fixture.at(9);
        assert_eq!(
            fixture.sent(),
            "close-statement(s1) parse(s1:select 1) bind(s1/:) execute(:0) sync",
            "{statement:?}"
        );
    }
}

/// pgx prepares such a statement again under its old name, which a stderr log does not show.
#[test]
fn stale_statement_is_prepared_again() {
    let mut fixture = PlayerFixture::connected();
    for at in 0..3 {
        fixture.event(at, Action::Execute(bound("s", "", "select 1", &[])));
    }
    fixture.at(9);
    let answer = [CLOSED, PARSED, BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    fixture.server(&answer);
    fixture.at(9);
    let mut failed = Vec::new();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"0A000"), (b'M', b"stale plan")];
    say::error_response(&mut failed, fields).unwrap();
    failed.extend(ready(TransactionStatus::Idle));
    fixture.server(&failed);
    fixture.sent();
    fixture.at(9);
    let prepared = "close-statement(s) parse(s:select 1)";
    assert_eq!(fixture.sent(), format!("{prepared} bind(s/:) execute(:0) sync"));
}

#[test]
fn deallocate_of_name_leaves_others() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, Action::Execute(bound("s1", "", "select 1", &[])));
    fixture.event(1, Action::Execute(bound("s2", "", "select 2", &[])));
    fixture.event(2, simple("DEALLOCATE s2;"));
    fixture.event(3, Action::Execute(bound("s1", "", "select 1", &[])));
    let answer = [BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    for _ in 0..2 {
        fixture.at(9);
        fixture.server(&[CLOSED, PARSED, &answer].concat());
    }
    fixture.at(9);
    fixture.server(&done(b"DEALLOCATE", TransactionStatus::Idle));
    fixture.sent();
    fixture.at(9);
    assert_eq!(fixture.sent(), "bind(s1/:) execute(:0) sync");
}

/// PDO deallocates every statement that it prepared, also one that failed in Bind and has no name
/// in the log.
#[test]
fn deallocated_name_exists() {
    let mut fixture = PlayerFixture::connected();
    fixture.event(0, Action::Execute(bound("s1", "", "select 1", &[])));
    fixture.event(1, simple("deallocate s1"));
    fixture.event(2, simple("DEALLOCATE pdo_stmt_2"));
    fixture.at(9);
    fixture.sent();
    let answer = [CLOSED, PARSED, BOUND, &done(b"SELECT 1", TransactionStatus::Idle)].concat();
    fixture.server(&answer);
    fixture.at(9);
    assert_eq!(fixture.sent(), "query(deallocate s1)");
    fixture.server(&done(b"DEALLOCATE", TransactionStatus::Idle));
    fixture.at(9);
    let prepared = "close-statement(pdo_stmt_2) parse(pdo_stmt_2:)";
    assert_eq!(fixture.sent(), format!("{prepared} query(DEALLOCATE pdo_stmt_2)"));
    let answer = [CLOSED, PARSED, &done(b"DEALLOCATE", TransactionStatus::Idle)].concat();
    let finished = fixture.server(&answer);
    assert!(matches!(&finished[..], [one] if matches!(one.end, EventEnd::Done)));
}

#[test]
fn lost_transaction_ends_where_captured_one_did() {
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
        let mut fixture = PlayerFixture::connected();
        for (millis, sql) in (0..).zip(["begin", sql, "insert into t default values"]) {
            fixture.event(millis, simple(sql));
        }
        fixture.at(9);
        fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
        let failure =
            ReplayFailure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
        let now = fixture.start;
        fixture.player.on_connection_lost(
            Outage { failure, retry: now, waits_for_slot: false, is_long: false },
            now,
        );
        assert!(matches!(
            fixture.at(9),
            PlayerStep::Record(_, EventEnd::Skipped(SkipCause::TransactionLost))
        ));
        assert_eq!(matches!(fixture.at(9), PlayerStep::Connect(None)), ended, "{sql}");
    }
}

#[test]
fn begin_after_unended_lost_transaction_is_played() {
    let mut fixture = PlayerFixture::connected();
    for (millis, sql) in (0..).zip(["begin", "update t set a = 1", "begin", "insert into t"]) {
        fixture.event(millis, simple(sql));
    }
    fixture.at(9);
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    let failure = ReplayFailure { sqlstate: SqlState::new(b"57P01"), message: "terminated".into() };
    let now = fixture.start;
    fixture.player.on_connection_lost(
        Outage { failure, retry: now, waits_for_slot: false, is_long: false },
        now,
    );
    assert!(matches!(
        fixture.at(9),
        PlayerStep::Record(_, EventEnd::Skipped(SkipCause::TransactionLost))
    ));
    assert!(matches!(fixture.at(9), PlayerStep::Connect(None)));
    fixture.player.link_state = LinkState::Connected;
    fixture.sent();
    assert!(matches!(fixture.at(9), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(begin)");
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    assert!(matches!(fixture.at(9), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(insert into t)");
}

#[test]
fn disconnect_during_outage_completes_session() {
    let mut fixture = PlayerFixture::connected();
    let failure = ReplayFailure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = fixture.start + Duration::from_secs(9);
    fixture.player.on_connection_lost(
        Outage { failure, retry, waits_for_slot: false, is_long: false },
        fixture.start,
    );
    fixture.event(1, Action::Disconnect);
    assert!(!fixture.player.is_done());
    assert!(matches!(fixture.at(1), PlayerStep::Record(_, EventEnd::Done)));
    assert!(fixture.player.is_done());
}

#[test]
fn unpaced_events_wait_for_short_outage_only() {
    let mut fixture = PlayerFixture::connected();
    let failure = ReplayFailure { sqlstate: SqlState::new(b"08006"), message: "refused".into() };
    let retry = fixture.start + Duration::from_secs(9);
    let outage = Outage { failure, retry, waits_for_slot: false, is_long: false };
    fixture.event(0, simple("select 1"));
    for (is_long, waits) in [(false, true), (true, false)] {
        fixture.player.on_connection_lost(Outage { is_long, ..outage.clone() }, fixture.start);
        match fixture.player.step(
            fixture.start,
            &schedule(fixture.start, Rate::Max),
            Timestamp::default(),
            None,
        ) {
            PlayerStep::WaitUntil(at) => assert!(waits && at == retry),
            PlayerStep::Record(_, EventEnd::Failed(_)) => assert!(!waits),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn pipeline_uses_one_sync_and_times_each_statement() {
    let mut fixture = PlayerFixture::connected();
    for (millis, sql) in [(0, "insert 1"), (1, "insert 2"), (2, "insert 3")] {
        fixture.event_of(Some(7), millis, Action::Bind(bound("s1", "", sql, &[])));
        fixture.event_of(Some(7), millis, Action::Execute(bound("s1", "", sql, &[])));
    }
    fixture.event_of(Some(8), 3, Action::Execute(bound("s1", "", "insert 3", &[])));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(
        fixture.sent(),
        "close-statement(s1) parse(s1:insert 1) bind(s1/:) execute(:0) flush \
         close-statement(s1) parse(s1:insert 2) bind(s1/:) execute(:0) flush \
         close-statement(s1) parse(s1:insert 3) bind(s1/:) execute(:0) sync"
    );
    let answer = |fixture: &mut PlayerFixture, millis, rows: &[u8], ready: &[u8]| {
        fixture.now = Duration::from_millis(millis);
        let mut complete = Vec::new();
        say::command_complete(&mut complete, rows).unwrap();
        fixture.server(&[CLOSED, PARSED, BOUND, &complete, ready].concat())
    };
    assert!(answer(&mut fixture, 10, b"INSERT 0 1", b"").is_empty());
    assert!(answer(&mut fixture, 30, b"INSERT 0 2", b"").is_empty());
    let finished = answer(&mut fixture, 60, b"INSERT 0 3", &ready(TransactionStatus::Idle));
    assert_eq!(finished.len(), 6);
    let took = |one: &FinishedEvent| one.ended - one.started.expect("it was sent");
    let executed = finished.iter().filter(|one| one.rows.is_some());
    let row_counts: Vec<_> = executed.map(|one| (one.rows, took(one).as_millis())).collect();
    assert_eq!(row_counts, [(Some(1), 10), (Some(2), 20), (Some(3), 30)]);
    assert!(matches!(fixture.at(60), PlayerStep::Send));
    assert_eq!(fixture.sent(), "bind(s1/:) execute(:0) sync");
}

#[test]
fn error_in_pipeline_fails_later_statements() {
    let mut fixture = PlayerFixture::connected();
    for sql in ["select 1", "select 1/0", "select 3"] {
        fixture.event_of(Some(1), 0, Action::Execute(bound("", "", sql, &[])));
    }
    fixture.at(0);
    fixture.sent();
    let mut answer = [PARSED, BOUND].concat();
    say::command_complete(&mut answer, b"SELECT 1").unwrap();
    answer.extend([PARSED, BOUND].concat());
    let fields: [(u8, &[u8]); 3] =
        [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"division by zero")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = fixture.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, EventEnd::Done)).collect();
    assert_eq!(ends, [true, false, false]);
    assert_eq!(finished[0].rows, Some(1));
}

#[test]
fn portal_fetched_in_same_pipeline_gets_row_limit() {
    let mut fixture = PlayerFixture::connected();
    fixture.event_of(Some(1), 0, Action::Execute(bound("", "", "select 1", &[])));
    fixture.event_of(Some(1), 0, Action::Fetch(bound("", "", "select 1", &[])));
    fixture.at(0);
    assert_eq!(fixture.sent(), "parse(:select 1) bind(/:) execute(:100) flush execute(:100) sync");
    let suspended = [PARSED, BOUND, b"s\0\0\0\x04"].concat();
    let finished =
        fixture.server(&[suspended, done(b"SELECT 5", TransactionStatus::Idle)].concat());
    let rows: Vec<_> = finished.iter().map(|one| one.rows).collect();
    assert_eq!(rows, [Some(0), Some(5)]);
}

#[test]
fn copy_is_never_pipelined() {
    let mut fixture = PlayerFixture::connected();
    for sql in ["select 1", "copy t from stdin", "select 3"] {
        fixture.event_of(Some(1), 0, Action::Execute(bound("", "", sql, &[])));
    }
    fixture.at(0);
    assert_eq!(fixture.sent(), "parse(:select 1) bind(/:) execute(:0) sync");
}

#[test]
fn session_keeps_encoding_of_capture() {
    let mut fixture = PlayerFixture::connected();
    fixture.server(b"S\0\0\0\x19client_encoding\0UTF8\0");
    let ready = b"Z\0\0\0\x05I";
    fixture.event(0, simple("set client_encoding = 'LATIN1'"));
    fixture.event(1, Action::Execute(bound("", "", "set names 'win1252'", &[])));
    fixture.at(0);
    assert_eq!(fixture.sent(), "query(set client_encoding = 'UTF8')");
    let finished = fixture.server(ready);
    let sql = finished[0].item.event.action.sql().map(Text::to_string);
    assert_eq!(sql.as_deref(), Some("set client_encoding = 'LATIN1'"), "as captured");
    fixture.at(1);
    assert_eq!(fixture.sent(), "parse(:set names 'UTF8') bind(/:) execute(:0) sync");
}

#[test]
fn wire_details_are_replayed() {
    let mut fixture = PlayerFixture::connected();
    let wire = WireDetail {
        types: vec![23],
        formats: vec![1],
        result_formats: vec![1],
        rows_max: 7,
        ..WireDetail::default()
    };
    let action = || bound("", "p", "select $1", &[Some("\0\0\0\u{5}")]);
    fixture.event_with(Some(1), 0, Action::Execute(action()), Some(wire.clone()));
    fixture.event_with(
        Some(2),
        1,
        Action::Fetch(action()),
        Some(WireDetail { rows_max: 9, ..wire }),
    );
    assert!(matches!(fixture.at(1), PlayerStep::Send));
    let bind = "bind(/p:\0\0\0\u{5}/Binary/Binary)";
    let parse = "parse(:select $1)";
    assert_eq!(fixture.sent(), format!("{parse} close-portal(p) {bind} execute(p:7) sync"));
    fixture.server(
        &[PARSED, CLOSED, BOUND, b"s\0\0\0\x04", &ready(TransactionStatus::InTransaction)].concat(),
    );
    assert!(matches!(fixture.at(1), PlayerStep::Send));
    assert_eq!(fixture.sent(), "execute(p:9) sync");
}

/// A Parse with a Flush, a Query before any Sync, then a separate pipeline.
fn unsynced() -> PlayerFixture {
    let mut fixture = PlayerFixture::connected();
    let with =
        |messages: &str| WireDetail { messages: Some(messages.into()), ..WireDetail::default() };
    let parse = Action::Parse { statement: "s".into(), sql: "select 1".into() };
    fixture.event_with(Some(1), 0, parse, Some(with("P")));
    fixture.event_with(None, 0, simple("select 2; select 3"), Some(with("DSs\0HQ")));
    let execute = Action::Execute(bound("s", "", "select 1", &[]));
    fixture.event_with(Some(2), 0, execute, Some(with("B\0ES")));
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "parse(s:select 1) Describe flush query(select 2; select 3)");
    fixture
}

#[test]
fn query_ends_pipeline_without_sync() {
    let mut fixture = unsynced();
    let two = [PARSED, b"t\0\0\0\x06\0\0n\0\0\0\x04", b"C\0\0\0\x0dSELECT 1\0"].concat();
    assert!(fixture.server(&two).is_empty());
    let finished = fixture.server(&done(b"SELECT 1", TransactionStatus::Idle));
    let ends: Vec<_> =
        finished.iter().map(|one| (one.rows, matches!(one.end, EventEnd::Done))).collect();
    assert_eq!(ends, [(None, true), (Some(2), true)]);
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    assert_eq!(fixture.sent(), "bind(s/:) execute(:0) sync");
}

#[test]
fn query_skipped_after_error_is_not_awaited() {
    let mut fixture = unsynced();
    let mut failed = Vec::new();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"42P01"), (b'M', b"no such table")];
    say::error_response(&mut failed, fields).unwrap();
    assert!(fixture.server(&failed).is_empty());
    assert_eq!(fixture.sent(), "sync");
    let finished = fixture.server(&ready(TransactionStatus::Idle));
    assert!(finished.iter().all(|one| matches!(one.end, EventEnd::Failed(_))), "{finished:?}");
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    let prepared = "close-statement(s) parse(s:select 1)";
    assert_eq!(fixture.sent(), format!("{prepared} bind(s/:) execute(:0) sync"));
}

#[test]
fn failing_query_after_pipeline_fails_alone() {
    let mut fixture = unsynced();
    let mut answer = [PARSED, b"t\0\0\0\x06\0\0n\0\0\0\x04", b"C\0\0\0\x0dSELECT 1\0"].concat();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"no")];
    say::error_response(&mut answer, fields).unwrap();
    answer.extend(ready(TransactionStatus::Idle));
    let finished = fixture.server(&answer);
    let ends: Vec<_> = finished.iter().map(|one| matches!(one.end, EventEnd::Done)).collect();
    assert_eq!(ends, [true, false]);
    assert_eq!(fixture.sent(), "");
}

/// pgx and asyncpg reuse a statement after its execution has failed.
#[test]
fn statement_stays_prepared_after_failed_execution() {
    let mut fixture = PlayerFixture::connected();
    let with =
        |messages: &str| WireDetail { messages: Some(messages.into()), ..WireDetail::default() };
    let parse = Action::Parse { statement: "s".into(), sql: "select 1/$1".into() };
    let execute = || Action::Execute(bound("s", "", "select 1/$1", &[Some("0")]));
    fixture.event_with(Some(1), 0, parse, Some(with("PS")));
    fixture.event_with(Some(2), 0, execute(), Some(with("B\0ES")));
    fixture.event_with(Some(3), 0, execute(), Some(with("B\0ES")));
    fixture.at(0);
    fixture.server(&[PARSED, &ready(TransactionStatus::Idle)].concat());
    let mut failed = BOUND.to_vec();
    let fields: [(u8, &[u8]); 3] = [(b'S', b"ERROR"), (b'C', b"22012"), (b'M', b"no")];
    say::error_response(&mut failed, fields).unwrap();
    failed.extend(ready(TransactionStatus::Idle));
    fixture.sent();
    for _ in 0..2 {
        assert!(matches!(fixture.at(0), PlayerStep::Send));
        assert_eq!(fixture.sent(), "bind(s/:0) execute(:0) sync");
        assert!(matches!(fixture.server(&failed)[0].end, EventEnd::Failed(_)));
    }
}

#[test]
fn captured_copy_rows_are_replayed() {
    let copy = |data: &[Option<&str>], failed| WireDetail {
        copy_in: Some(CopyInData {
            bytes: 9,
            data: data.iter().map(|rows| rows.map(Text::from)).collect(),
            failed,
        }),
        ..WireDetail::default()
    };
    let text = "copy t from stdin; copy u from stdin";
    let sql = || Action::Copy { sql: text.into(), direction: CopyDirection::In };
    let mut fixture = PlayerFixture::connected();
    fixture.event_with(None, 0, sql(), Some(copy(&[Some("1\n"), Some("2\n")], true)));
    fixture.event_with(None, 1, sql(), Some(copy(&[None], false)));
    assert!(matches!(fixture.at(1), PlayerStep::Send));
    assert_eq!(fixture.sent(), format!("query({text})"));
    fixture.server(b"G\0\0\0\x07\0\0\0");
    assert_eq!(fixture.sent(), "copy-data(1\n) CopyDone");
    fixture.server(b"C\0\0\0\x0bCOPY 1\0G\0\0\0\x07\0\0\0");
    assert_eq!(fixture.sent(), "copy-data(2\n) copy-fail");
    fixture.server(&ready(TransactionStatus::Idle));
    // Rows that were not captured cannot be copied.
    assert!(matches!(fixture.at(1), PlayerStep::Record(_, EventEnd::Skipped(SkipCause::CopyData))));
}

impl PlayerFixture {
    /// Like [`Self::connected`], with other settings.
    fn with_settings(change: impl FnOnce(&mut PlayerSettings)) -> Self {
        let mut fixture = Self::connected();
        let mut changed = settings();
        change(&mut changed);
        let player = Player::new("s".into(), fixture.start, &changed);
        fixture.player = Player { link_state: LinkState::Connected, ..player };
        fixture
    }

    /// Queues a query, captured at `millis` with a duration.
    fn query(&mut self, millis: u64, duration: u64, sql: &str) {
        self.event(millis, simple(sql));
        let item = self.player.queue.back_mut().unwrap();
        item.event.outcome.duration_us = Some(duration * 1000);
    }

    fn complete(&mut self, tag: &[u8]) -> Vec<FinishedEvent> {
        self.server(&done(tag, TransactionStatus::Idle))
    }

    /// Returns the milliseconds until which the player waits.
    fn waits_until(&mut self, millis: u64) -> u128 {
        match self.at(millis) {
            PlayerStep::WaitUntil(due) => (due - self.start).as_millis(),
            step => panic!("{step:?} at {millis}"),
        }
    }
}

#[test]
fn session_that_stays_late_keeps_its_think_times() {
    let mut fixture = PlayerFixture::with_settings(|settings| settings.lag = LagPolicy::Keep);
    fixture.query(0, 10, "select 1");
    fixture.query(100, 10, "select 2");
    fixture.query(500, 10, "select 3");
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    // It takes 200 ms instead of 10 ms. The captured client then waited for 90 ms.
    assert!(matches!(fixture.at(100), PlayerStep::Wait));
    fixture.now = Duration::from_millis(200);
    fixture.complete(b"SELECT 1");
    assert_eq!(fixture.waits_until(200), 290);
    assert!(matches!(fixture.at(290), PlayerStep::Send));
    // A faster statement does not make the session catch up.
    let [second] = &fixture.complete(b"SELECT 1")[..] else { panic!() };
    assert_eq!(second.item.due - second.item.scheduled, Duration::from_millis(190));
    assert_eq!(second.item.available, second.item.due);
    assert_eq!(fixture.waits_until(290), 690);
}

#[test]
fn think_times_replace_the_schedule() {
    let mut fixture = PlayerFixture::with_settings(|settings| settings.think_time = Some(0.5));
    fixture.query(0, 50, "select 1");
    fixture.query(150, 0, "select 2");
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    fixture.now = Duration::from_millis(10);
    fixture.complete(b"SELECT 1");
    // Half of the 100 ms between the captured end and the next statement.
    assert_eq!(fixture.waits_until(10), 60);
    assert!(matches!(fixture.at(60), PlayerStep::Send));
}

#[test]
fn late_transactions_are_dropped_as_a_whole() {
    let limit = Duration::from_secs(1);
    let mut fixture =
        PlayerFixture::with_settings(|settings| settings.lag = LagPolicy::DropLate(limit));
    for (at, sql) in [
        (0, "select 1"),
        (10, "begin"),
        (11, "update t set v = 1"),
        (12, "commit"),
        (20, "set work_mem = '1MB'"),
        (1_900, "begin"),
        (1_901, "insert into t values (1)"),
    ] {
        fixture.query(at, 0, sql);
    }
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    fixture.sent();
    fixture.now = Duration::from_millis(2_000);
    fixture.complete(b"SELECT 1");
    for dropped in ["begin", "update t set v = 1", "commit"] {
        let PlayerStep::Record(item, EventEnd::Dropped(DropCause::Late)) = fixture.at(2_000) else {
            panic!("{dropped}");
        };
        assert_eq!(item.event.action.sql(), Some(&Text::from(dropped)));
    }
    // Later statements depend on a setting.
    assert!(matches!(fixture.at(2_000), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(set work_mem = '1MB')");
    fixture.complete(b"SET");
    // A transaction that was in time when it began is not torn apart.
    assert!(matches!(fixture.at(2_000), PlayerStep::Send));
    fixture.server(&done(b"BEGIN", TransactionStatus::InTransaction));
    assert!(matches!(fixture.at(9_000), PlayerStep::Send));
}

#[test]
fn transaction_need_not_wait_for_the_previous_one() {
    let none = |settings: &mut PlayerSettings| settings.order = StatementOrder::None;
    let mut fixture = PlayerFixture::with_settings(none);
    fixture.query(0, 0, "set work_mem = '1MB'");
    fixture.query(1, 0, "begin");
    fixture.query(2, 0, "select 1");
    fixture.query(3, 0, "commit");
    fixture.query(4, 0, "select 2");
    assert!(matches!(fixture.at(0), PlayerStep::Send));
    // The next transaction needs the setting.
    assert!(matches!(fixture.at(1), PlayerStep::Wait));
    fixture.complete(b"SET");
    for (at, tag) in [(1, "BEGIN"), (2, "SELECT 1")] {
        assert!(matches!(fixture.at(at), PlayerStep::Send));
        assert!(matches!(fixture.at(at), PlayerStep::Wait), "{tag}");
        fixture.server(&done(tag.as_bytes(), TransactionStatus::InTransaction));
    }
    assert!(matches!(fixture.at(3), PlayerStep::Send));
    assert_eq!(fixture.waits_until(3), 4);
    assert!(matches!(fixture.at(4), PlayerStep::Spread));

    let mut other = PlayerFixture::with_settings(none);
    other.player.take_over(fixture.player.pass_on());
    assert!(matches!(other.at(4), PlayerStep::Send));
    let sent = other.sent();
    assert!(sent.starts_with("query(reset session authorization) query(reset role)"), "{sent}");
    assert!(sent.ends_with("query(deallocate all) query(set work_mem = '1MB')"), "{sent}");
    for tag in [&b"RESET"[..], b"RESET", b"RESET", b"UNLISTEN", b"DEALLOCATE", b"SET"] {
        other.complete(tag);
    }
    assert!(matches!(other.at(4), PlayerStep::Send));
    assert_eq!(other.sent(), "query(select 2)");
    assert!(!fixture.player.has_queued());
}

#[test]
fn settings_are_restored_after_a_lost_connection() {
    let mut fixture = PlayerFixture::connected();
    fixture.query(0, 0, "set search_path = app");
    fixture.query(1, 0, "prepare p as select 1");
    fixture.query(2, 0, "select * from t");
    for tag in [&b"SET"[..], b"PREPARE"] {
        assert!(matches!(fixture.at(1), PlayerStep::Send));
        fixture.complete(tag);
    }
    let failure = ReplayFailure { sqlstate: None, message: "gone".into() };
    let now = fixture.start;
    let outage = Outage { failure, retry: now, waits_for_slot: false, is_long: false };
    fixture.player.on_connection_lost(outage, now);
    assert!(matches!(fixture.at(2), PlayerStep::Connect(None)));
    let mut again = PlayerFixture::connected();
    std::mem::swap(&mut fixture.client, &mut again.client);
    fixture.player.handle_reply(Reply::LoggedIn, now, &mut fixture.client, &mut Vec::new());
    assert!(matches!(fixture.at(2), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(set search_path = app) query(prepare p as select 1)");
    // One that fails does not prevent the others, nor the session from going on.
    let mut failed = Vec::new();
    say::error_response(&mut failed, say::essentials(Severity::Error, b"42704", b"unknown"))
        .unwrap();
    failed.extend(ready(TransactionStatus::Idle));
    fixture.server(&failed);
    fixture.complete(b"PREPARE");
    assert!(matches!(fixture.at(2), PlayerStep::Send));
    assert_eq!(fixture.sent(), "query(select * from t)");
}

#[test]
fn wait_for_a_slot_is_not_the_servers() {
    let mut fixture = PlayerFixture::connected();
    fixture.query(0, 0, "select 1");
    let failure = ReplayFailure { sqlstate: SqlState::new(b"53300"), message: "too many".into() };
    let (start, millis) = (fixture.start, Duration::from_millis);
    fixture.player.link_state = LinkState::Connecting;
    let outage =
        Outage { failure, retry: start + millis(100), waits_for_slot: true, is_long: false };
    fixture.player.on_connection_lost(outage, start + millis(5));
    // The event waits although it is due.
    assert_eq!(fixture.waits_until(5), 100);
    assert!(matches!(fixture.at(100), PlayerStep::Connect(None)));
    let at = start + millis(120);
    fixture.player.handle_reply(Reply::LoggedIn, at, &mut fixture.client, &mut Vec::new());
    assert_eq!(fixture.player.free_since, start + millis(5));
}

#[test]
fn restored_setting_is_the_one_that_was_sent() {
    let sql = "set client_encoding = 'LATIN1'";
    for (wire, restored) in [
        // Texts of a log are in the encoding of the session, texts of the pooler in the chosen one.
        (None, "query(set client_encoding = 'UTF8')"),
        (Some(WireDetail::default()), "query(set client_encoding = 'LATIN1')"),
    ] {
        let mut fixture = PlayerFixture::connected();
        fixture.server(&{
            let mut bytes = Vec::new();
            say::parameter_status(&mut bytes, b"client_encoding", b"UTF8").unwrap();
            bytes
        });
        fixture.event_with(None, 0, simple(sql), wire);
        fixture.query(1, 0, "select 1");
        assert!(matches!(fixture.at(1), PlayerStep::Send));
        fixture.sent();
        fixture.complete(b"SET");
        fixture.player.link_settings = LinkSettings::OfLogin;
        assert!(matches!(fixture.at(1), PlayerStep::Send));
        assert_eq!(fixture.sent(), restored);
    }
}
