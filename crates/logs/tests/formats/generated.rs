//! Random logs, written like the server writes them, give the events that they were made from.
//!
//! A fixed set of logs is tried in every run; `HOWDAH_GENERATED_LOGS=100000` tries that many
//! different ones each time.

mod expected;
mod plan;
mod script;
mod writer;

use std::{collections::HashMap, sync::Arc};

use howdah_logs::{ImportOptions, ImportSummary, ServerLogFormat};
use howdah_traffic::Event;
use proptest::{
    prelude::*,
    strategy::ValueTree as _,
    test_runner::{Config, RngSeed, TestRunner},
};

use self::{
    expected::{ExpectedSession, ShownFields},
    plan::{LogPlan, PlannedFormat, any_plan, source},
    script::SessionScript,
    writer::{RecordWriter, ServerRecord},
};
use crate::support::{import_with, try_import};

/// Logs tried in every run.
const CASES: u32 = 256;

/// 2026-11-20 12:00:00 UTC, in milliseconds.
const FIRST_MILLIS: i64 = 1_795_176_000_000;

/// A log with its expected events.
struct GeneratedLog {
    log: Vec<u8>,
    records: u64,
    /// For each session, in order.
    events: Vec<Vec<Event>>,
}

impl GeneratedLog {
    fn from_plan(plan: &LogPlan) -> Self {
        let mut queues: Vec<_> = plan
            .sessions
            .iter()
            .map(|session| SessionScript::new(plan, session).write().into_iter().peekable())
            .collect();
        let shows = ShownFields::from_plan(plan);
        let mut expected: Vec<_> =
            plan.sessions.iter().map(|session| ExpectedSession::new(shows, session)).collect();
        // A session that existed before the log wrote lines to the previous one.
        let line = |connected: bool| if connected { 0 } else { 17 };
        let mut lines: Vec<u64> =
            plan.sessions.iter().map(|session| line(session.is_connected)).collect();
        let mut made = Self { log: Vec::new(), records: 0, events: Vec::new() };
        let mut background = 0;
        let mut millis = FIRST_MILLIS;
        let mut every_statement = false;
        let boot =
            ServerRecord { millis, tag: "", ..ServerRecord::log("checkpoint starting: time") };
        made.write(plan, &boot, &mut RecordWriter { session: None, lines: &mut background });
        for round in 0.. {
            let mut waiting = Vec::new();
            for (number, queue) in queues.iter_mut().enumerate() {
                waiting.extend(queue.peek().is_some().then_some(number));
            }
            if waiting.is_empty() {
                break;
            }
            let (pick, step) = plan
                .order
                .get(round)
                .map_or((0, 1), |(index, step)| (index.index(waiting.len()), i64::from(*step)));
            let number = waiting[pick];
            let (record, meaning) = queues[number].next().expect("it waits");
            millis += step;
            let record = ServerRecord { millis, ..record };
            let session = Some(&plan.sessions[number]);
            made.write(plan, &record, &mut RecordWriter { session, lines: &mut lines[number] });
            expected[number].update_names(&record, &meaning);
            expected[number].handle_record(&record, &meaning, &mut every_statement);
        }
        made.events = expected
            .into_iter()
            .map(|one| one.events)
            .filter(|events| !events.is_empty())
            .collect();
        made
    }

    fn write(&mut self, plan: &LogPlan, record: &ServerRecord, writer: &mut RecordWriter<'_>) {
        self.records += 1;
        match &plan.form {
            PlannedFormat::Stderr(prefix) => {
                writer.stderr(prefix, plan.is_verbose, record, &mut self.log);
            }
            PlannedFormat::Csv => writer.csv(plan.is_verbose, record, &mut self.log),
            PlannedFormat::Json => writer.json(plan.is_verbose, record, &mut self.log),
        }
    }
}

fn options(plan: &LogPlan) -> ImportOptions {
    let (format, prefix) = match &plan.form {
        PlannedFormat::Stderr(prefix) => (ServerLogFormat::Stderr, Some(source(prefix))),
        PlannedFormat::Csv => (ServerLogFormat::Csv, None),
        PlannedFormat::Json => (ServerLogFormat::Json, None),
    };
    ImportOptions { format: Some(format), prefix, ..ImportOptions::default() }
}

/// Events by session, in order.
fn by_session(events: Vec<Event>) -> HashMap<Arc<str>, Vec<Event>> {
    let mut sessions: HashMap<_, Vec<Event>> = HashMap::new();
    for event in events {
        sessions.entry(event.session.clone()).or_default().push(event);
    }
    sessions
}

fn check(plan: &LogPlan) -> Result<(), TestCaseError> {
    let generated = GeneratedLog::from_plan(plan);
    let text = || String::from_utf8_lossy(&generated.log).into_owned();
    let (events, summary): (_, ImportSummary) = import_with(&generated.log, options(plan));
    let mut sessions = by_session(events.clone());
    for expected in &generated.events {
        let got = sessions.remove(&expected[0].session).unwrap_or_default();
        for (number, (got, expected)) in got.iter().zip(expected).enumerate() {
            prop_assert_eq!(got, expected, "event {} of\n{}", number, text());
        }
        prop_assert_eq!(got.len(), expected.len(), "{:#?}\n{}", got.last(), text());
    }
    prop_assert!(sessions.is_empty(), "{:#?}\n{}", sessions, text());
    prop_assert_eq!(&summary.problems, &[], "{}", text());
    prop_assert_eq!(summary.records, generated.records, "{}", text());
    prop_assert_eq!(summary.facts.lost_lines, 0, "{}", text());
    // The result must not depend on the chunks.
    let cuts = (1..generated.log.len()).step_by(generated.log.len().div_ceil(7));
    let chunks = try_import(&generated.log, options(plan), cuts).expect("a log");
    prop_assert_eq!(chunks.0, events, "{}", text());
    Ok(())
}

#[test]
fn generated_log_gives_its_events() {
    let requested = std::env::var("HOWDAH_GENERATED_LOGS").ok();
    let more = requested.map(|count| count.parse().expect("a number of logs"));
    let config = Config {
        cases: more.unwrap_or(CASES),
        rng_seed: if more.is_some() { RngSeed::Random } else { RngSeed::Fixed(2026) },
        failure_persistence: None,
        max_shrink_iters: 20_000,
        ..Config::default()
    };
    let mut runner = TestRunner::new(config);
    if let Err(error) = runner.run(&any_plan(), |plan| check(&plan)) {
        panic!("{error}");
    }
}

#[test]
fn generated_logs_are_varied() {
    let mut runner = TestRunner::new(Config {
        rng_seed: RngSeed::Fixed(2026),
        failure_persistence: None,
        ..Config::default()
    });
    let mut kinds: HashMap<&str, usize> = HashMap::new();
    let mut pipelined = 0;
    for _ in 0..CASES {
        let plan = any_plan().new_tree(&mut runner).expect("a plan").current();
        let generated = GeneratedLog::from_plan(&plan);
        for event in generated.events.iter().flatten() {
            *kinds.entry(event.action.kind().as_str()).or_default() += 1;
            *kinds.entry(event.source.as_str()).or_default() += 1;
            pipelined += usize::from(event.pipeline.is_some());
        }
    }
    let seen = |word: &str| kinds.get(word).copied().unwrap_or(0) > 20;
    let requested =
        ["connect", "disconnect", "simple", "parse", "bind", "execute", "fetch", "call"];
    let sources = ["cancel", "statement", "duration", "error", "session", "inferred"];
    assert!(requested.into_iter().chain(sources).all(seen), "{kinds:?}");
    assert!(pipelined > 100, "{pipelined}");
}
