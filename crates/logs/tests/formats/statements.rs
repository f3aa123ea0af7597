//! Statements in all the forms that a log can show.

use howdah_logs::{GapKind, Language, ProblemReason};
use howdah_traffic::{Kind, Source, SqlState};

use crate::support::{descriptions, error, fixture, import, import_events, log};

#[test]
fn capitalized_parameters_of_postgresql_17_are_read() {
    for word in ["parameters", "Parameters"] {
        let detail = format!("DETAIL:  {word}: $1 = '2', $2 = 'o''brien, $3 = ''x''', $3 = NULL");
        let events = import_events(&["LOG:  execute <unnamed>: select $1, $2, $3", &detail]);
        assert_eq!(
            descriptions(&events),
            ["execute [/] select $1, $2, $3 ('2','o'brien, $3 = 'x'',NULL)"]
        );
    }
    let bound = |major: &str| {
        let (events, _) = import(fixture(major, "prod", "log"));
        events.iter().filter(|event| event.action.kind() == Kind::Execute).count()
    };
    assert_eq!((bound("15"), bound("17")), (16, 16));
}

#[test]
fn portal_names_and_fetches_are_read() {
    for setting in ["prod", "durationonly", "verbose"] {
        let (events, _) = import(fixture("17", setting, "log"));
        let portal: Vec<_> = descriptions(&events)
            .into_iter()
            .filter(|text| text.contains("C_3") && !text.starts_with("bind"))
            .collect();
        let rest = "[S_2/C_3] select * from generate_series(1,$1::int) ('7')";
        assert_eq!(
            portal,
            [format!("execute {rest}"), format!("fetch {rest}"), format!("fetch {rest}")]
        );
    }
}

#[test]
fn extended_begin_without_detail_has_no_parameters() {
    let events = import_events(&[
        "LOG:  execute <unnamed>: begin",
        "LOG:  execute S_1: select $1",
        "DETAIL:  parameters: $1 = '1'",
        "LOG:  execute S_3: COMMIT",
    ]);
    assert_eq!(
        descriptions(&events),
        ["execute [/] begin ()", "execute [S_1/] select $1 ('1')", "execute [S_3/] COMMIT ()"]
    );
}

#[test]
fn keywords_inside_literals_are_ignored() {
    let events = import_events(&[
        "LOG:  statement: select 'duration: 1.000 ms  statement: x', 'LOG:  statement: y'",
        "LOG:  duration: 0.074 ms",
    ]);
    assert_eq!(
        descriptions(&events),
        ["simple select 'duration: 1.000 ms  statement: x', 'LOG:  statement: y'"]
    );
    assert_eq!(events[0].outcome.duration_us, Some(74));
}

#[test]
fn names_with_colons_and_quotes_are_split() {
    for setting in ["prod", "durationonly", "verbose"] {
        let (events, _) = import(fixture("15", setting, "log"));
        let named: Vec<_> =
            descriptions(&events).into_iter().filter(|text| text.contains("einf")).collect();
        assert_eq!(
            named,
            [
                "parse [einf\"ug: x] select $1::text",
                "bind [einf\"ug: x/] select $1::text ('colon name')",
                "execute [einf\"ug: x/] select $1::text ('colon name')",
            ]
        );
    }
}

#[test]
fn name_containing_statement_is_known_from_its_parse() {
    let events = import_events(&[
        "LOG:  duration: 0.010 ms  parse x: select 1: vacuum",
        "LOG:  duration: 0.010 ms  parse y: x",
        "LOG:  execute y: x: select 2",
    ]);
    // Nothing shows how the first name was meant; the later ones are split by the names known
    // before.
    assert_eq!(descriptions(&events[1..]), ["parse [y] x", "execute [y: x/] select 2 ()"]);
}

#[test]
fn execute_and_its_duration_are_one_event() {
    let events = import_events(&[
        "LOG:  duration: 0.070 ms  parse <unnamed>: select $1",
        "LOG:  duration: 0.019 ms  bind <unnamed>: select $1",
        "DETAIL:  Parameters: $1 = '1'",
        "LOG:  execute <unnamed>: select $1",
        "DETAIL:  Parameters: $1 = '1'",
        "LOG:  duration: 0.041 ms",
    ]);
    assert_eq!(
        descriptions(&events),
        ["parse [] select $1", "bind [/] select $1 ('1')", "execute [/] select $1 ('1')"]
    );
    let durations: Vec<_> = events.iter().map(|event| event.outcome.duration_us).collect();
    assert_eq!(durations, [Some(70), Some(19), Some(41)]);
}

#[test]
fn bare_durations_before_execute_are_parse_and_bind() {
    let events = import_events(&[
        "LOG:  statement: begin",
        "LOG:  duration: 0.001 ms",
        "LOG:  duration: 0.070 ms",
        "LOG:  duration: 0.019 ms",
        "LOG:  execute S_1: select 1",
        "LOG:  duration: 0.041 ms",
        "LOG:  duration: 0.018 ms",
        "LOG:  execute S_1: select 1",
        "LOG:  duration: 0.040 ms",
    ]);
    let expected = [
        ("simple begin", 1),
        ("parse [S_1] select 1", 70),
        ("bind [S_1/] select 1 ()", 19),
        ("execute [S_1/] select 1 ()", 41),
        ("bind [S_1/] select 1 ()", 18),
        ("execute [S_1/] select 1 ()", 40),
    ];
    let got: Vec<_> = descriptions(&events).into_iter().zip(&events).collect();
    assert_eq!(got.len(), expected.len());
    for ((text, event), (expected, micros)) in got.iter().zip(expected) {
        assert_eq!((text.as_str(), event.outcome.duration_us), (expected, Some(micros)));
    }
}

#[test]
fn durations_of_unlogged_statements_are_ignored() {
    // log_statement = 'mod' with log_duration: selects leave only their duration.
    let events = import_events(&[
        "LOG:  statement: insert into t values (1)",
        "LOG:  duration: 0.500 ms",
        "LOG:  duration: 90.000 ms",
        "LOG:  duration: 80.000 ms",
        "LOG:  duration: 70.000 ms",
        "LOG:  execute <unnamed>: delete from t",
        "LOG:  duration: 0.041 ms",
    ]);
    assert_eq!(
        descriptions(&events),
        ["simple insert into t values (1)", "execute [/] delete from t ()"]
    );
    assert_eq!(events[0].outcome.duration_us, Some(500));
}

#[test]
fn start_is_end_minus_duration() {
    let events = import_events(&["LOG:  duration: 250.125 ms  statement: select 1"]);
    assert_eq!(events[0].time.to_string(), "2026-11-20T11:59:59.749875Z");
    assert_eq!(events[0].source, Source::Duration);
    // Times are truncated to milliseconds: a start before the previous end is moved there.
    let events = import_events(&[
        "LOG:  duration: 5.000 ms  statement: select 1",
        "LOG:  duration: 1.900 ms  statement: select 2",
    ]);
    assert_eq!(events[1].time.to_string(), "2026-11-20T12:00:00.000000Z");
}

#[test]
fn sql_level_execute_has_no_parameters() {
    let events = import_events(&[
        "LOG:  statement: execute p1(1)",
        "DETAIL:  prepare: prepare p1(int) as select v from t where id=$1",
    ]);
    assert_eq!(descriptions(&events), ["simple execute p1(1)"]);
}

#[test]
fn placeholders_without_values_are_unknown_not_empty() {
    let events = import_events(&["LOG:  execute S: select $1", "LOG:  execute S: select '$1'"]);
    assert_eq!(
        descriptions(&events),
        ["execute [S/] select $1 (?)", "execute [S/] select '$1' ()"]
    );
}

#[test]
fn broken_parameter_list_is_counted_and_event_emitted() {
    let (events, summary) =
        import(log(&["LOG:  execute S: select $1", "DETAIL:  parameters: $1 = 'x"]));
    assert_eq!(descriptions(&events[1..]), ["execute [S/] select $1 (?)"]);
    assert_eq!((summary.problems[0].reason, summary.rejected()), (ProblemReason::BadParameters, 0));
}

#[test]
fn values_cut_by_the_server_are_marked() {
    for format in ["log", "csv", "json"] {
        let (events, summary) = import(fixture("17", "durationonly", format));
        let cut: Vec<_> = descriptions(&events)
            .into_iter()
            .filter(|text| text.contains('…') && text.starts_with("execute"))
            .collect();
        assert_eq!(
            cut,
            [
                "execute [/] insert into t(id,v) values ($1,$2) ('2','o'brien\nnew line\ttab'…)",
                "execute [/] select length($1) ('xxxxxxxxxxxxxxxxxxxx'…)",
            ]
        );
        assert_eq!(summary.facts.parameter_limit_bytes, Some(20));
        assert_eq!(summary.facts.truncated_values, 4);
    }
}

#[test]
fn copies_are_recognized_by_their_text() {
    let events = import_events(&[
        "LOG:  statement: begin; COPY \"t\" (a) FROM /* x */ StdIn; commit",
        "LOG:  statement: copy t to stdout",
        "LOG:  statement: copy t to '/tmp/stdout'",
    ]);
    assert_eq!(
        descriptions(&events),
        [
            "copy In begin; COPY \"t\" (a) FROM /* x */ StdIn; commit",
            "copy Out copy t to stdout",
            "simple copy t to '/tmp/stdout'",
        ]
    );
}

#[test]
fn cancel_is_not_a_timeout() {
    let events = import_events(&[
        "LOG:  statement: select pg_sleep(1)",
        "ERROR:  canceling statement due to statement timeout",
        "STATEMENT:  select pg_sleep(1)",
        "LOG:  statement: select pg_sleep(2)",
        "ERROR:  canceling statement due to user request",
        "STATEMENT:  select pg_sleep(2)",
        "LOG:  statement: lock t",
        "ERROR:  canceling statement due to lock timeout",
    ]);
    assert_eq!(
        descriptions(&events),
        ["simple select pg_sleep(1)", "simple select pg_sleep(2)", "cancel", "simple lock t"]
    );
    assert_eq!(error(&events[1]), "canceling statement due to user request");
    assert_eq!(events[2].time.to_string(), "2026-11-20T12:00:00.004000Z");
}

#[test]
fn failed_statement_is_one_event() {
    let events = import_events(&[
        "LOG:  statement: select 1/0",
        "ERROR:  division by zero",
        "STATEMENT:  select 1/0",
        "ERROR:  syntax error at or near \"selec\" at character 1",
        "STATEMENT:  selec",
    ]);
    assert_eq!(descriptions(&events), ["simple select 1/0", "simple selec"]);
    assert_eq!(
        (events[0].source, error(&events[0])),
        (Source::Statement, "division by zero".to_owned())
    );
    let syntax = "syntax error at or near \"selec\"".to_owned();
    assert_eq!((events[1].source, error(&events[1])), (Source::Error, syntax));
}

#[test]
fn error_of_later_statement_is_not_attributed_to_open_one() {
    // Only log_statement: nothing shows that the first has ended.
    let events = import_events(&[
        "LOG:  statement: select 1",
        "ERROR:  syntax error at or near \"selec\" at character 1",
        "STATEMENT:  selec",
    ]);
    assert!(!events[0].outcome.failed());
    assert!(events[1].outcome.failed());
    let (events, summary) =
        import(log(&["LOG:  statement: select 1", "ERROR:  syntax error at end of input"]));
    assert!(!events[1].outcome.failed());
    assert_eq!(summary.facts.errors_without_statement, 1);
}

#[test]
fn portal_errors_show_step_and_values() {
    let events = import_events(
        &[
            "ERROR:  duplicate key",
            "DETAIL:  Key (id)=(10) already exists.",
            "CONTEXT:  PL/pgSQL function f() line 1",
            "\tunnamed portal with parameters: $1 = '10', $2 = NULL",
            "STATEMENT:  insert into t values ($1,$2)",
            "ERROR:  invalid input syntax",
            "CONTEXT:  portal \"C \"x\"\" parameter $1 = 'notint'",
            "STATEMENT:  select $1::int",
            "ERROR:  invalid input syntax",
            "CONTEXT:  unnamed portal parameter $2 = '...'",
            "STATEMENT:  select $1::int + $2::int",
            "ERROR:  out of range",
            "STATEMENT:  select $1::int",
        ]
        .map(|line| line),
    );
    assert_eq!(
        descriptions(&events),
        [
            "execute [/] insert into t values ($1,$2) (?)",
            "bind [/C \"x\"] select $1::int ('notint')",
            "bind [/] select $1::int + $2::int (?)",
            "execute [/] select $1::int (?)",
        ]
    );
}

#[test]
fn failed_bind_gets_its_text_from_its_parse() {
    let (events, _) = import(fixture("17", "prod", "log"));
    let failed: Vec<_> =
        events.iter().filter(|e| e.action.kind() == Kind::Bind && e.outcome.failed()).collect();
    let texts: Vec<_> =
        failed.iter().map(|event| event.action.sql().map(ToString::to_string)).collect();
    assert_eq!(texts, [Some("select $1::int".to_owned()), Some("select 1/$1::int".to_owned())]);
    assert!(failed.iter().all(|event| event.source == Source::Error));
}

#[test]
fn sqlstates_are_read_where_logged() {
    let divided = |setting: &str, format: &str| {
        let (events, _) = import(fixture("17", setting, format));
        let event = events.into_iter().find(|event| error(event) == "division by zero");
        event.expect("a division").outcome.sqlstate
    };
    let code = SqlState::new(b"22012");
    assert_eq!(divided("prod", "csv"), code);
    assert_eq!(divided("durationonly", "json"), code);
    assert_eq!(divided("verbose", "log"), code);
    assert_eq!(divided("prod", "log"), None);
}

#[test]
fn sqlstate_is_removed_from_verbose_messages() {
    let events = import_events(&[
        "LOG:  00000: statement: select 1",
        "LOCATION:  exec_simple_query, postgres.c:1079",
        "ERROR:  22012: division by zero",
        "LOCATION:  int4div, int.c:872",
        "LOG:  00000: this is no code",
    ]);
    assert_eq!(descriptions(&events), ["simple select 1"]);
    assert_eq!(events[0].outcome.sqlstate, SqlState::new(b"22012"));
}

#[test]
fn similar_messages_are_not_statements() {
    let (events, summary) = import(log(&[
        "LOG:  statement: select 1",
        "LOG:  duration: 9.000 ms  plan:",
        "LOG:  AUDIT: SESSION,1,1,READ,SELECT,,,\"select 1\",<none>",
        "LOG:  duration: 9.100 ms",
        "LOG:  PARSER STATISTICS",
        "DETAIL:  ! system usage stats:",
        "LOG:  process 7 still waiting for ShareLock on transaction 733 after 1000.100 ms",
        "STATEMENT:  update t set v = 1",
    ]));
    assert_eq!(descriptions(&events), ["connect", "simple select 1"]);
    assert_eq!(events[1].outcome.duration_us, Some(9100));
    assert_eq!(summary.rejected(), 0);
}

#[test]
fn function_calls_have_their_name() {
    let events = import_events(&[
        "LOG:  fastpath function call: \"random\" (OID 1598)",
        "LOG:  duration: 0.116 ms",
        "LOG:  duration: 0.075 ms  fastpath function call: \"lo\"read\" (OID 954)",
    ]);
    assert_eq!(descriptions(&events), ["call random", "call lo\"read"]);
    assert_eq!(events[0].outcome.duration_us, Some(116));
}

#[test]
fn step_without_name_is_counted() {
    let (events, summary) = import(log(&["LOG:  execute nothing", "LOG:  statement: select 1"]));
    assert_eq!(descriptions(&events), ["connect", "simple select 1"]);
    assert_eq!(summary.problems[0].reason, ProblemReason::BadStep);
    assert_eq!(summary.problems[0].samples[0].line, 1);
}

#[test]
fn statements_of_open_transaction_share_vxid() {
    let (events, _) = import(fixture("17", "verbose", "csv"));
    let of = |sql: &str| {
        let event = events
            .iter()
            .find(|e| e.action.sql().is_some_and(|text| text.as_bytes() == sql.as_bytes()));
        event.expect("the statement").vxid.clone()
    };
    assert_eq!(of("begin"), of("commit"));
    assert!(of("begin").is_some());
    let (events, _) = import(fixture("17", "durationonly", "csv"));
    let finished = events
        .iter()
        .find(|e| e.action.sql().is_some_and(|text| text.as_bytes() == b"reset statement_timeout"));
    assert_eq!(finished.expect("the statement").vxid, None);
}

#[test]
fn pipelined_statements_share_a_pipeline() {
    let (events, _) = import(fixture("17", "verbose", "csv"));
    let pipelined: Vec<_> = events
        .iter()
        .filter(|e| e.action.kind() == Kind::Execute && e.vxid.is_some())
        .map(|e| (e.vxid.clone(), e.pipeline, &e.session))
        .collect();
    let shared = |one: &(_, Option<u32>, _)| {
        pipelined.iter().filter(|other| *other == one && one.1.is_some()).count()
    };
    let most = pipelined.iter().map(shared).max();
    assert_eq!(most, Some(3), "three inserts were sent under one Sync: {pipelined:?}");
    // A pipeline never spans two transactions.
    for (vxid, pipeline, session) in &pipelined {
        let same = pipelined.iter().filter(|(_, p, s)| (p, s) == (pipeline, session));
        assert!(pipeline.is_none() || same.clone().all(|(v, ..)| v == vxid), "{same:?}");
    }
    // The stderr log of the same run has the same pipelines, by %v.
    let pipelines = |format: &str| {
        let (events, _) = import(fixture("17", "verbose", format));
        events.iter().map(|event| event.pipeline).collect::<Vec<_>>()
    };
    assert_eq!(pipelines("log"), pipelines("csv"));
}

#[test]
fn termination_causes_are_distinguished() {
    let (events, summary) = import(log(&[
        "LOG:  statement: select pg_sleep(1)",
        "ERROR:  canceling statement due to statement timeout",
        "LOG:  statement: lock t",
        "ERROR:  canceling statement due to lock timeout",
        "LOG:  statement: select pg_sleep(2)",
        "ERROR:  canceling statement due to user request",
        "LOG:  statement: select * from big",
        "ERROR:  canceling statement due to conflict with recovery",
        "FATAL:  terminating connection due to idle-in-transaction timeout",
    ]));
    assert_eq!(events.last().map(|event| event.action.kind()), Some(Kind::Disconnect));
    let facts = summary.facts;
    assert_eq!((facts.cancels, facts.statement_timeouts, facts.lock_timeouts), (1, 1, 1));
    assert_eq!((facts.session_timeouts, facts.recovery_conflicts), (1, 1));
    let cancels = events.iter().filter(|event| event.action.kind() == Kind::Cancel);
    assert_eq!(cancels.count(), 1);
}

#[test]
fn gaps_of_a_log_are_counted() {
    let (_, summary) = import(fixture("17", "durationonly", "csv"));
    let count = |kind: GapKind| {
        let gaps = summary.completeness().gaps;
        gaps.iter().find(|gap| gap.kind == kind).map_or(0, |gap| gap.count)
    };
    assert_eq!(count(GapKind::LostLines), 0);
    assert_eq!(count(GapKind::CopyRows), 1);
    assert_eq!(count(GapKind::CallArguments), 1);
    assert_eq!(count(GapKind::FetchCounts), 2);
    assert_eq!(count(GapKind::ValuesCut), 4, "two executions, each with its bind");
    assert!(count(GapKind::StartUnknown) > 0, "failed statements leave only their error");
    assert_eq!(count(GapKind::OnlySlow) + count(GapKind::Sampled) + count(GapKind::Translated), 0);
}

#[test]
fn threshold_and_sampling_are_detected() {
    let gap_kinds = |lines: &[&str]| {
        let (_, summary) = import(log(lines));
        summary.completeness().gaps.iter().map(|gap| gap.kind).collect::<Vec<_>>()
    };
    let slow = gap_kinds(&[
        "LOG:  duration: 250.125 ms  statement: select 1",
        "LOG:  duration: 1000.000 ms  execute <unnamed>: select 2",
    ]);
    assert!(slow.contains(&GapKind::OnlySlow) && !slow.contains(&GapKind::Sampled), "{slow:?}");
    let sampled = gap_kinds(&[
        "LOG:  duration: 0.125 ms  statement: select 1",
        "LOG:  duration: 0.010 ms  bind S_1: select 2",
        "LOG:  duration: 0.100 ms  execute S_1: select 2",
        "LOG:  duration: 0.100 ms  execute S_1: select 2",
    ]);
    assert!(
        sampled.contains(&GapKind::Sampled) && !sampled.contains(&GapKind::OnlySlow),
        "{sampled:?}"
    );
    let whole = gap_kinds(&[
        "LOG:  duration: 0.010 ms  bind S_1: select 2",
        "LOG:  duration: 0.100 ms  execute S_1: select 2",
        "LOG:  duration: 0.010 ms  bind S_1/C_1: select 2",
        "LOG:  duration: 0.100 ms  execute S_1/C_1: select 2",
        "LOG:  duration: 0.100 ms  execute fetch from S_1/C_1: select 2",
    ]);
    assert!(!whole.contains(&GapKind::Sampled) && !whole.contains(&GapKind::OnlySlow), "{whole:?}");
}

#[test]
fn partly_translated_log_is_reported() {
    let (_, summary) = import(log(&[
        "LOG:  statement: set lc_messages = 'de_DE.utf8'",
        "LOG:  Anweisung: select 1",
        "LOG:  Dauer: 0.562 ms",
        "LOG:  statement: select 2",
    ]));
    assert_eq!(summary.facts.translated_messages, 2);
    assert_eq!(summary.facts.language, Some(Language::German));
    assert_eq!(summary.completeness().gaps[0].kind, GapKind::Translated);
}

#[test]
fn pipeline_is_distinguished_from_transaction_block() {
    // Three inserts under one Sync, one select under its own, then two inserts in a block, each
    // under its own.
    let (events, summary) = import(fixture("17", "pipelines", "csv"));
    let executions = events.iter().filter(|event| event.action.kind() == Kind::Execute);
    let pipelines: Vec<_> = executions.map(|event| event.pipeline).collect();
    assert_eq!(pipelines, [Some(1), Some(1), Some(1), Some(2), None, None]);
    // Their prepares and binds belong to the same pipeline.
    let all = events.iter().filter(|event| event.pipeline == Some(1));
    assert_eq!(all.count(), 9);
    assert_eq!(summary.facts.executions_of_unknown_pipeline, 0);
}

#[test]
fn bare_duration_before_failed_bind_is_its_parse() {
    let (events, summary) = import(log(&[
        "LOG:  statement: select 1",
        "LOG:  duration: 0.100 ms",
        "LOG:  duration: 0.200 ms",
        "ERROR:  invalid input syntax for type integer: \"x\"",
        "CONTEXT:  unnamed portal parameter $1 = 'x'",
        "STATEMENT:  select $1::int",
    ]));
    assert_eq!(
        descriptions(&events),
        ["connect", "simple select 1", "parse [] select $1::int", "bind [/] select $1::int ('x')"]
    );
    assert_eq!(summary.facts.executions_without_values, 0);
}

/// Prepared again under another name, the statement would not fail.
#[test]
fn stale_plan_is_that_of_named_statement() {
    let events = import_events(&[
        "LOG:  execute S_1: select * from t where a = $1",
        "DETAIL:  parameters: $1 = '1'",
        "LOG:  statement: alter table t add b int",
        "ERROR:  cached plan must not change result type",
        "CONTEXT:  unnamed portal with parameters: $1 = '2'",
        "STATEMENT:  select * from t where a = $1",
        "ERROR:  division by zero",
        "CONTEXT:  unnamed portal with parameters: $1 = '0'",
        "STATEMENT:  select * from t where a = $1",
    ]);
    assert_eq!(
        descriptions(&events),
        [
            "execute [S_1/] select * from t where a = $1 ('1')",
            "simple alter table t add b int",
            "execute [S_1/] select * from t where a = $1 ('2')",
            "execute [/] select * from t where a = $1 ('0')",
        ]
    );
}

/// Without parameters, it looks like a simple query.
#[test]
fn stale_plan_without_parameters_is_no_simple_query() {
    let events = import_events(&[
        "LOG:  execute S_1: select * from t",
        "LOG:  statement: alter table t add b int",
        "ERROR:  cached plan must not change result type",
        "STATEMENT:  select * from t",
    ]);
    assert_eq!(descriptions(&events)[2], "execute [S_1/] select * from t ()");
}

#[test]
fn copy_of_prepared_statement_is_counted() {
    let (_, summary) = import(log(&[
        "LOG:  execute s1: copy t (a) from stdin binary",
        "LOG:  execute s2: copy t (a) to stdout binary",
    ]));
    assert_eq!(summary.facts.copies_in, 1);
}
