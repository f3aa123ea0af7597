//! Damaged, huge and foreign logs, and inputs that are not logs.

use howdah_logs::{
    CsvObstacle, ImportError, ImportOptions, OptionsError, ProblemReason, ServerLogFormat,
};

use crate::support::{describe, descriptions, fixture, import, import_with, log, try_import};

fn import_error(text: impl AsRef<[u8]>, options: ImportOptions) -> ImportError {
    try_import(text.as_ref(), options, []).expect_err("no log")
}

#[test]
fn junk_between_records_is_counted() {
    let junk = "TopMemoryContext: 97696 total in 5 blocks\n  pgstat TabStatusArray: 8192 total\n\
                libfoo: it's \"bad\"\n";
    let lines = log(&[
        "LOG:  execute <unnamed>: select $1",
        "DETAIL:  parameters: $1 = '1'",
        "LOG:  duration: 5.000 ms",
        "LOG:  statement: select 2",
    ]);
    let mut text = String::new();
    for line in lines.split_inclusive('\n') {
        text += line;
        text += junk;
    }
    let (events, summary) = import(text);
    assert_eq!(
        descriptions(&events),
        ["connect", "execute [/] select $1 ('1')", "simple select 2"]
    );
    assert_eq!(events[1].outcome.duration_us, Some(5000));
    let problem = &summary.problems[0];
    assert_eq!(
        (problem.reason, problem.count, problem.samples[0].line),
        (ProblemReason::NotARecord, 12, 2)
    );
    assert_eq!(problem.samples[0].excerpt, "TopMemoryContext: 97696 total in 5 blocks");
}

#[test]
fn csv_column_count_may_change_mid_file() {
    let row = |session: u32, tail: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",{session},\"[local]\",6b004067.{session:x},4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: select {session}\",,,,,,,,{tail}\n"
        )
    };
    let versions = [
        "",
        ",\"app\"",
        ",\"app\",\"client backend\"",
        ",\"app\",\"client backend\",,77",
        ",\"app\",\"client backend\",,77,new",
    ];
    let text: String = (1..).zip(versions).map(|(session, tail)| row(session, tail)).collect();
    let (events, summary) = import(text);
    assert_eq!(summary.rejected(), 0);
    assert_eq!((summary.records, events.len()), (5, 10));
    let id = |sql: &str| {
        events.iter().find(|event| describe(event) == sql).and_then(|event| event.query_id)
    };
    assert_eq!((id("simple select 1"), id("simple select 5")), (None, Some(77)));
    let (_, summary) =
        import(row(1, ",\"app\"") + "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",1,\"[local]\"\n");
    assert_eq!(summary.problems[0].reason, ProblemReason::BadRow);
}

#[test]
fn record_before_the_time_of_its_prefix_has_a_bad_time() {
    let prefix = Some("%q%m %u ".to_owned());
    let text = "LOG:  checkpoint starting: time\n".repeat(100);
    let options =
        ImportOptions { format: Some(ServerLogFormat::Stderr), prefix, ..ImportOptions::default() };
    let (_, summary) = import_with(
        "2026-11-20 12:00:00.000 UTC al LOG:  statement: select 1\n".to_owned() + &text,
        options,
    );
    let problem = &summary.problems[0];
    assert_eq!((problem.reason, problem.count, summary.records), (ProblemReason::BadTime, 100, 1));
}

#[test]
fn csv_column_with_a_stray_quote_makes_a_bad_row() {
    let row = |tag: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,{tag},\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: select 1\",,,,,,,,,\"app\"\n"
        )
    };
    let bad = [row("x\"y\"z"), row("\"x\"y\"z\"")].concat();
    let (events, summary) = import([row("\"idle\""), bad, row("\"a\"\"b\"")].concat());
    assert_eq!(events.len(), 3);
    let problem = &summary.problems[0];
    let place = (problem.reason, problem.count, problem.samples[0].line);
    assert_eq!(place, (ProblemReason::BadRow, 2, 2));
}

#[test]
fn record_cut_at_the_end_is_reported() {
    for format in ["log", "csv", "json"] {
        let whole = fixture("17", "prod", format);
        let (all, _) = import(&whole);
        let statement = b"select $1::int + $2::int, $3::text";
        let last = whole
            .windows(statement.len())
            .rposition(|window| window == statement)
            .expect("the statement");
        let (events, summary) = import(&whole[..last + 10]);
        // Everything before the cut is read, the cut record is not, and the cut is reported.
        let before = events.len() - 1;
        assert_eq!(descriptions(&events[..before]), descriptions(&all[..before]), "{format}");
        assert!(descriptions(&events).iter().all(|text| !text.starts_with("execute")), "{format}");
        assert_eq!(summary.problems[0].reason, ProblemReason::CutShort, "{format}");
        assert_eq!(summary.rejected(), 1, "{format}");
    }
}

#[test]
fn cut_detail_drops_its_statement() {
    let text = log(&[
        "LOG:  statement: select 1",
        "LOG:  execute S: select $1",
        "DETAIL:  parameters: $1 = 'abc'",
    ]);
    let (events, summary) = import(&text[..text.len() - 4]);
    assert_eq!(descriptions(&events), ["connect", "simple select 1"]);
    assert_eq!(summary.problems[0].reason, ProblemReason::CutShort);
}

#[test]
fn csv_row_cut_inside_quotes_does_not_swallow_the_rest() {
    let row = |sql: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: {sql}\",,,,,,,,,\"app\",\"client backend\",,0\n"
        )
    };
    let cut = row("select 'abc'");
    let cut = &cut[..cut.find("abc").expect("it") + 2];
    // A client's text that looks like a row is recognized by its doubled quotes.
    let inner = row("select 1").replace('"', "\"\"");
    let text = row("select 1")
        + cut
        + "\n"
        + &row("select 2")
        + &row(&format!("select '\n{inner}'"))
        + &row("select 3");
    let (events, summary) = import(text);
    assert_eq!(events.len(), 5);
    assert_eq!(descriptions(&events)[4], "simple select 3");
    assert_eq!((summary.problems[0].reason, summary.rejected()), (ProblemReason::CutShort, 1));
    assert_eq!(summary.problems[0].samples[0].line, 2);
}

#[test]
fn line_of_100_megabytes_is_read() {
    let long = format!("LOG:  statement: select '{}'", "x".repeat(100_000_000));
    let text = log(&["LOG:  statement: select 1", &long, "LOG:  statement: select 2"]);
    let (events, summary) = import(&text);
    assert_eq!(summary.rejected(), 0);
    assert_eq!(events[2].action.sql().map(howdah_traffic::Text::len), Some(100_000_009));
    let (events, summary) =
        import_with(&text, ImportOptions { max_record_bytes: 1 << 20, ..ImportOptions::default() });
    assert_eq!(descriptions(&events), ["connect", "simple select 1", "simple select 2"]);
    assert_eq!((summary.problems[0].reason, summary.rejected()), (ProblemReason::TooLong, 1));
    assert_eq!(summary.problems[0].samples[0].line, 2);
}

#[test]
fn record_over_the_limit_is_rejected_in_every_format() {
    let options = || ImportOptions { max_record_bytes: 40_000, ..ImportOptions::default() };
    let big = "y\n".repeat(300_000);
    let csv = |sql: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: {sql}\",,,,,,,,,\"app\",\"client backend\",,0\n"
        )
    };
    let json = |sql: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-20 12:00:00.000 UTC\",\"pid\":8,\"error_severity\":\"LOG\",\
             \"message\":\"statement: {}\"}}\n",
            sql.replace('\n', "\\n")
        )
    };
    let stderr = |sql: &str| log(&[&format!("LOG:  statement: {}", sql.replace('\n', "\n\t"))]);
    for render in [&csv as &dyn Fn(&str) -> String, &json, &stderr] {
        let (events, summary) = import_with(render("a") + &render(&big) + &render("b"), options());
        assert_eq!(descriptions(&events), ["connect", "simple a", "simple b"]);
        assert_eq!((summary.problems[0].reason, summary.rejected()), (ProblemReason::TooLong, 1));
    }
}

/// Regression: a record over the limit was read if it arrived in one chunk, and in a csvlog it
/// could swallow the next one if its last newline was at the end of a chunk.
#[test]
fn record_limit_does_not_depend_on_chunks() {
    let options = || ImportOptions { max_record_bytes: 400, ..ImportOptions::default() };
    let csv = |sql: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: {sql}\",,,,,,,,,\"app\",\"client backend\",,0\n"
        )
    };
    let json = |sql: &str| {
        format!(
            "{{\"timestamp\":\"2026-11-20 12:00:00.000 UTC\",\"pid\":8,\"error_severity\":\"LOG\",\
             \"message\":\"statement: {sql}\"}}\n"
        )
    };
    let stderr = |sql: &str| log(&[&format!("LOG:  statement: {sql}")]);
    for render in [&csv as &dyn Fn(&str) -> String, &json, &stderr] {
        let text = render("a") + &render(&"y".repeat(500)) + &render("b");
        for cut in 0..=text.len() {
            let (events, summary) = try_import(text.as_bytes(), options(), [cut]).expect("a log");
            assert_eq!(descriptions(&events), ["connect", "simple a", "simple b"], "cut at {cut}");
            assert_eq!(
                (summary.problems[0].reason, summary.rejected()),
                (ProblemReason::TooLong, 1)
            );
        }
    }
}

#[test]
fn mixed_encodings_are_read() {
    let mut text = log(&["LOG:  statement: select 'ünïcode €'"]).into_bytes();
    text.extend_from_slice(
        b"2026-11-20 12:00:01.000 UTC [8] al@caf\xe9 LOG:  statement: select 'caf\xe9'\n",
    );
    let (events, summary) = import(&text);
    assert_eq!(summary.rejected(), 0);
    assert_eq!(&*events[1].database, r"caf\xe9");
    assert_eq!(
        events[3].action.sql().map(howdah_traffic::Text::as_bytes),
        Some(&b"select 'caf\xe9'"[..])
    );
    let json =
        b"{\"timestamp\":\"2026-11-20 12:00:00.000 UTC\",\"pid\":8,\"error_severity\":\"LOG\",\
                 \"message\":\"statement: select 'caf\xe9'\"}\n";
    let (events, _) = import(json);
    assert_eq!(
        events[1].action.sql().map(howdah_traffic::Text::as_bytes),
        Some(&b"select 'caf\xe9'"[..])
    );
}

#[test]
fn windows_line_ends_are_removed() {
    let text = log(&["LOG:  statement: select 1\n\t, 2", "LOG:  duration: 5.000 ms"])
        .replace('\n', "\r\n");
    let (events, _) = import(text);
    assert_eq!(descriptions(&events), ["connect", "simple select 1\n, 2"]);
    assert_eq!(events[1].outcome.duration_us, Some(5000));
    // On other systems a carriage return belongs to the client's text.
    let (events, _) = import(log(&["LOG:  duration: 5.000 ms", "LOG:  statement: select 1\r"]));
    assert_eq!(descriptions(&events), ["connect", "simple select 1\r"]);
}

#[test]
fn byte_order_mark_is_skipped() {
    let text = format!("\u{feff}{}", log(&["LOG:  statement: select 1"]));
    let (events, summary) = import(text);
    assert_eq!((events.len(), summary.rejected()), (2, 0));
}

#[test]
fn blank_lines_and_empty_statements_are_read() {
    let (events, summary) =
        import(log(&["LOG:  statement: ", "LOG:  statement: select 1\n\t\n\t\t, 2"]) + "\n");
    assert_eq!(descriptions(&events), ["connect", "simple ", "simple select 1\n\n\t, 2"]);
    assert_eq!(summary.rejected(), 0);
}

#[test]
fn empty_input_has_no_events() {
    for text in ["", "\n", "\n\n \n"] {
        let (events, summary) = import(text);
        assert_eq!((events.len(), summary.format), (0, None));
    }
}

#[test]
fn unknown_format_is_rejected_with_position() {
    let error = import_error("\n\nhello world\nagain\n", ImportOptions::default());
    let expected = ImportError::UnknownFormat {
        file: "test.log".to_owned(),
        line: 3,
        excerpt: "hello world".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("log_line_prefix"));
    let error = import_error(b"\x7fELF\x02\x01\x00\x00\n\x00junk", ImportOptions::default());
    assert!(matches!(error, ImportError::Binary { compressed: false, .. }));
    let error = import_error(b"\x1f\x8b\x08\x00\x00\x00\n\x00junk", ImportOptions::default());
    assert!(matches!(error, ImportError::Binary { compressed: true, .. }));
}

#[test]
fn wrong_prefix_is_rejected_with_a_better_guess() {
    let options =
        ImportOptions { prefix: Some("%t [%p]: user=%u ".to_owned()), ..ImportOptions::default() };
    let error = import_error(fixture("17", "prod", "log"), options);
    let ImportError::WrongPrefix { guess, line, .. } = &error else { panic!("{error}") };
    assert_eq!((guess.as_deref(), *line), (Some("%m|%u|%d|%c|"), 1));
    assert!(error.to_string().contains("\"%m|%u|%d|%c|\" would"));
}

#[test]
fn given_prefix_is_used() {
    let options =
        ImportOptions { prefix: Some("%m|%u|%d|%c|".to_owned()), ..ImportOptions::default() };
    let (events, summary) = import_with(fixture("17", "prod", "log"), options);
    assert_eq!(events, import(fixture("17", "prod", "log")).0);
    assert_eq!(summary.prefix.map(|prefix| prefix.origin), Some(howdah_logs::PrefixOrigin::Given));
}

#[test]
fn prefix_without_time_is_rejected() {
    let options = ImportOptions { prefix: Some("[%p] ".to_owned()), ..ImportOptions::default() };
    let error = howdah_logs::Importer::new(options).map(|_| ()).expect_err("no time");
    assert!(matches!(error, OptionsError::PrefixWithoutTime { .. }));
}

#[test]
fn wrong_format_is_rejected() {
    for format in [ServerLogFormat::Csv, ServerLogFormat::Json] {
        let options = ImportOptions { format: Some(format), ..ImportOptions::default() };
        let error = import_error(fixture("17", "prod", "log"), options);
        assert!(
            matches!(error, ImportError::WrongFormat { format: f, line: 1, .. } if f == format),
            "{error}"
        );
    }
}

#[test]
fn translated_log_is_rejected_by_label_or_duration() {
    let line = "2026-11-20 12:00:00.000 CET [7] al@shop FEHLER:  Division durch Null\n";
    let error = import_error(line, ImportOptions::default());
    assert!(matches!(error, ImportError::Translated { .. }), "{error}");
    assert!(error.to_string().contains("lc_messages"));
    let options =
        ImportOptions { prefix: Some("%m [%p] %u@%d ".to_owned()), ..ImportOptions::default() };
    assert!(matches!(import_error(line, options), ImportError::Translated { .. }));
    // The label LOG is the same in German, but the message is not.
    let line =
        "2026-11-20 12:00:00.000 CET [7] al@shop LOG:  Dauer: 0.562 ms  Anweisung: select 1\n";
    assert!(matches!(
        import_error(line, ImportOptions::default()),
        ImportError::Translated { line: 1, .. }
    ));
    let many = line.repeat(2000);
    let mut importer = howdah_logs::Importer::new(ImportOptions::default()).expect("options");
    assert!(matches!(
        importer.feed(many.repeat(10).as_bytes()),
        Err(ImportError::Translated { .. })
    ));
    let line = "2026-11-20 12:00:00.000 CET [7] al@shop LOG:  Anweisung: select 1\n";
    assert!(matches!(import_error(line, ImportOptions::default()), ImportError::Translated { .. }));
    let row = "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",2026-11-20 \
               12:00:00 UTC,3/4,0,FEHLER,00000,\"Division durch Null\",,,,,,,,\n";
    assert!(matches!(import_error(row, ImportOptions::default()), ImportError::Translated { .. }));
    // One unknown message among recognized ones is accepted.
    let (events, _) = import(log(&["LOG:  progress: 1.000 s", "LOG:  statement: select 1"]));
    assert_eq!(events.len(), 2);
}

#[test]
fn broken_json_lines_are_counted() {
    let good = "{\"timestamp\":\"2026-11-20 12:00:00.000 UTC\",\"pid\":8,\"error_severity\":\"LOG\",\"message\":\"statement: a\"}\n";
    let bad = "{\"timestamp\":\"2026-11-20 12:00:00.000 UTC\",\"pid\":8,\"error_sev\n";
    let foreign = "{\"level\":\"info\",\"msg\":\"hello\"}\n";
    let text = format!("{good}{bad}not json\n{foreign}{good}");
    let (events, summary) = import(text);
    assert_eq!(descriptions(&events), ["connect", "simple a", "simple a"]);
    let counts: Vec<_> = summary.problems.iter().map(|p| (p.reason, p.count)).collect();
    assert_eq!(counts, [(ProblemReason::NotARecord, 1), (ProblemReason::BadObject, 2)]);
}

#[test]
fn invalid_times_and_severities_are_counted() {
    let text = log(&["LOG:  statement: select 1"])
        + "2026-13-40 12:00:00.000 UTC [7] al@shop LOG:  statement: select 2\n";
    let (events, summary) = import(text);
    assert_eq!(events.len(), 2);
    assert_eq!(summary.problems[0].reason, ProblemReason::BadTime);
    let row = |severity: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,{severity},00000,\"statement: select 1\",,,,,,,,\n"
        )
    };
    let (events, summary) = import(row("LOG") + &row("FEHLER"));
    assert_eq!((events.len(), summary.problems[0].reason), (2, ProblemReason::BadSeverity));
}

#[test]
fn detail_without_message_is_counted() {
    let (events, summary) =
        import(log(&["DETAIL:  parameters: $1 = '1'", "LOG:  statement: select 1"]));
    assert_eq!(events.len(), 2);
    assert_eq!(summary.problems[0].reason, ProblemReason::Orphan);
}

#[test]
fn last_line_without_newline_is_read_if_complete() {
    for (format, kept) in [("csv", true), ("json", true), ("log", false)] {
        let log = fixture("17", "prod", format);
        let (all, _) = import(&log);
        let (events, summary) = import(&log[..log.len() - 1]);
        assert_eq!(events, all, "{format}");
        assert_eq!(summary.rejected(), u64::from(!kept), "{format}");
    }
}

#[test]
fn operator_records_are_read() {
    let line = "{\"level\":\"info\",\"ts\":\"2026-11-20T12:00:00Z\",\"msg\":\"record\",\"record\":{\"log_time\":\
                \"2026-11-20 12:00:00.000 UTC\",\"user_name\":\"al\",\"database_name\":\"shop\",\"process_id\":\"8\",\
                \"session_id\":\"6b004067.8\",\"error_severity\":\"LOG\",\"message\":\"statement: select 1\",\
                \"query\":\"\",\"leader_pid\":\"\",\"backend_type\":\"client backend\"}}\n";
    let (events, summary) = import(line);
    assert_eq!(descriptions(&events), ["connect", "simple select 1"]);
    assert_eq!(
        (&*events[1].user, &*events[1].session, summary.rejected()),
        ("al", "6b004067.8", 0)
    );
}

#[test]
fn uncertain_prefix_is_rejected_with_misfits() {
    let line = |millis: u32, who: &str| {
        format!("2026-11-20 12:43:20.{millis:03} UTC [7] {who}LOG:  statement: select {millis}\n")
    };
    let mut log: String = (0..20).map(|millis| line(millis, "al@shop ")).collect();
    log.push_str("Segmentation fault\n");
    log.push_str(&line(20, "<bo/stock> "));
    log.push_str("\tgoes on with LOG:  in it\n");
    log.push_str(&line(21, "al@shop "));
    let error = import_error(&log, ImportOptions::default());
    let ImportError::UncertainPrefix { guess, fits, records, misfits, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((guess.as_str(), *fits, *records), ("%m [%p] %q%u@%d ", 21, 22));
    assert_eq!(misfits.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [22]);
    assert!(error.to_string().contains("--prefix") && error.to_string().contains("<bo/stock>"));
    // With the prefix given, the line is counted.
    let options = ImportOptions { prefix: Some(guess.clone()), ..ImportOptions::default() };
    let (events, summary) = import_with(&log, options);
    assert_eq!((events.len(), summary.problem_count(ProblemReason::NotARecord)), (22, 2));
    // The rest of a record cut by rotation is not a record.
    let (_, summary) = import(&log[20..log.find("Seg").expect("it is there")]);
    assert_eq!(summary.rejected(), 1);
}

#[test]
fn rewritten_csvlog_is_rejected() {
    let columns = |count: usize| {
        let row = "2026-11-20 12:43:20.100 UTC,\"al\",\"shop\",7,\"[local]\",6b004067.7,1,\"idle\",\
                   2026-11-20 12:43:19 UTC,3/4,0,LOG,00000,\"statement: select 1\",,,,,,,,,\"psql\"";
        format!("{row}{}\n", ",".repeat(count - 23))
    };
    for (count, rejected) in [(23, 0), (24, 0), (25, 1), (26, 0)] {
        let (events, summary) = import(columns(count));
        assert_eq!(summary.problem_count(ProblemReason::BadRow), rejected, "{count} columns");
        assert_eq!(events.is_empty(), rejected > 0, "{count} columns");
    }
    let dated = columns(26).replacen("2026-11-20 12:43:20.100 UTC", "11/12/2026 12:43", 1);
    let fewer =
        columns(25).replacen("2026-11-20 12:43:20.100 UTC", "\"2026-11-20 12:43:20+00\"", 1);
    for (log, obstacle) in [
        (dated, CsvObstacle::Time("11/12/2026 12:43".to_owned())),
        (fewer, CsvObstacle::Columns(25)),
    ] {
        for format in [None, Some(ServerLogFormat::Csv)] {
            let error = import_error(&log, ImportOptions { format, ..ImportOptions::default() });
            let ImportError::RewrittenCsv { line: 1, obstacle: found, .. } = &error else {
                panic!("{error}");
            };
            assert_eq!(found, &obstacle);
        }
    }
}

#[test]
fn log_without_times_is_rejected() {
    let log = "[7] al@shop LOG:  statement: select 1\n[7] al@shop LOG:  duration: 1.000 ms\n";
    let error = import_error(log, ImportOptions::default());
    assert!(matches!(error, ImportError::WithoutTimes { line: 1, .. }), "{error}");
    let error = import_error("al: hello\n", ImportOptions::default());
    assert!(matches!(error, ImportError::UnknownFormat { .. }), "{error}");
}
