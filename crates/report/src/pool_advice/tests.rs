use std::time::Duration;

use howdah_advise::{
    CaptureFacts, ClientAdvice, ConcurrencyFigures, FunctionCalls, LateSequenceReads, LeftState,
    ModeReason, PoolAdvice, PoolSizeAdvice, StateKind, SuitableMode,
};
use howdah_traffic::Timestamp;

use super::*;

fn figures(p50: u32, p99: u32, max: u32) -> ConcurrencyFigures {
    ConcurrencyFigures { p50, p99, max }
}

fn state(kind: StateKind, seconds: u64, names: &[&str], example: &str) -> LeftState {
    LeftState {
        kind,
        sessions: 2,
        count: 40,
        time: Duration::from_secs(seconds),
        names: names.iter().map(|name| ((*name).into(), 20)).collect(),
        example: Some(example.to_owned()),
    }
}

fn advice() -> PoolAdvice {
    let web = ClientAdvice {
        database: "shop".into(),
        user: "app".into(),
        application: "web".into(),
        sessions: 120,
        sessions_max: 80,
        statements: 90_000,
        transactions: 30_000,
        open_transactions: figures(2, 7, 9),
        session_time: Duration::from_secs(288_000),
        transaction_time: Duration::from_secs(9_216),
        pinned_sessions: 2,
        pinned_time: Duration::from_secs(600),
        states: vec![
            state(StateKind::Temporary, 600, &["cart", "basket"], "create temp table cart(id int)"),
            state(StateKind::Setting, 300, &["search_path"], "set search_path = app"),
        ],
        sequence_reads: None,
        mode: SuitableMode::Adaptive,
        reason: ModeReason::PartlyPinned,
    };
    let job = ClientAdvice {
        user: "job".into(),
        application: "".into(),
        sessions: 3,
        sessions_max: 3,
        transaction_time: Duration::from_secs(1),
        pinned_sessions: 0,
        pinned_time: Duration::ZERO,
        states: Vec::new(),
        sequence_reads: Some(LateSequenceReads {
            sessions: 1,
            count: 12,
            example: "select lastval()".to_owned(),
        }),
        mode: SuitableMode::Session,
        reason: ModeReason::SequenceReads,
        ..web.clone()
    };
    let pool = PoolSizeAdvice {
        database: "shop".into(),
        user: "app".into(),
        mode: SuitableMode::Adaptive,
        size: 8,
        reserve: 3,
        session_mode_size: 80,
        open_transactions: figures(2, 7, 9),
        adaptive_servers: figures(2, 8, 11),
    };
    let job_pool = PoolSizeAdvice {
        user: "job".into(),
        mode: SuitableMode::Session,
        size: 3,
        reserve: 0,
        session_mode_size: 3,
        ..pool.clone()
    };
    let function = |name: &str| FunctionCalls { name: name.into(), calls: 700, sessions: 80 };
    PoolAdvice {
        facts: CaptureFacts {
            first: Some(Timestamp::from_micros(1_700_000_000_000_000)),
            last_end: Timestamp::from_micros(1_700_003_600_000_000),
            events: 90_123,
            logged_executions: 90_000,
            untimed_executions: 5,
            inferred_sessions: 40,
            unended_sessions: 1,
            uncounted_sessions: 0,
            unreadable_texts: 2,
        },
        clients: vec![web, job],
        pools: vec![pool, job_pool],
        functions: vec![function("app.total"), function("do")],
    }
}

#[test]
fn text_matches_snapshot() {
    let text = table(&advice(), 20);
    insta::assert_snapshot!(text);
    for line in text.lines() {
        assert!(line.chars().count() <= 130, "{line}");
    }
}

#[test]
fn limit_omits_rows_and_says_so() {
    let text = table(&advice(), 1);
    assert!(text.contains("1 more: --limit 0 shows all"), "{text}");
    assert!(!text.contains("lastval()"), "{text}");
    let document = serde_json::to_value(document(&advice(), 1)).unwrap();
    assert_eq!(document["clients"].as_array().unwrap().len(), 1);
    assert_eq!(document["clients_total"], 2);
}

#[test]
fn document_has_all_figures() {
    let document = serde_json::to_value(document(&advice(), 20)).unwrap();
    assert_eq!(document["format"], "howdah-pool-advice");
    assert_eq!((&document["servers"], &document["session_mode_servers"]), (&14.into(), &83.into()));
    let state = &document["clients"][0]["states"][0];
    assert_eq!(state["kind"], "temporary_object");
    assert_eq!(state["names"]["cart"], 20);
    assert_eq!(state["state_us"], 600_000_000_u64);
    assert_eq!(document["clients"][1]["sequence_reads"]["count"], 12);
    assert_eq!(document["pools"][0]["adaptive_servers"]["max"], 11);
    assert_eq!(document["functions"][0]["name"], "app.total");
}

#[test]
fn capture_without_sessions_has_no_tables() {
    let advice = PoolAdvice {
        facts: CaptureFacts::default(),
        clients: Vec::new(),
        pools: Vec::new(),
        functions: Vec::new(),
    };
    assert_eq!(table(&advice, 20), "events    0\n\nThe capture has no sessions.\n");
}
