//! Logs that are damaged, huge, foreign, or none.

use howdah_logs::{Format, ImportError, Options, OptionsError, Reason};

use crate::support::{fixture, import, import_with, log, show, shown, try_import};

fn refusal(text: impl AsRef<[u8]>, options: Options) -> ImportError {
    try_import(text.as_ref(), options, []).expect_err("no log")
}

#[test]
fn junk_between_records() {
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
    assert_eq!(shown(&events), ["connect", "execute [/] select $1 ('1')", "simple select 2"]);
    assert_eq!(events[1].outcome.duration_us, Some(5000));
    let problem = &summary.problems[0];
    assert_eq!(
        (problem.reason, problem.count, problem.samples[0].line),
        (Reason::NotARecord, 12, 2)
    );
    assert_eq!(problem.samples[0].excerpt, "TopMemoryContext: 97696 total in 5 blocks");
}

#[test]
fn csv_column_count_changes_mid_file() {
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
    let id =
        |sql: &str| events.iter().find(|event| show(event) == sql).and_then(|event| event.query_id);
    assert_eq!((id("simple select 1"), id("simple select 5")), (None, Some(77)));
    let (_, summary) =
        import(row(1, ",\"app\"") + "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",1,\"[local]\"\n");
    assert_eq!(summary.problems[0].reason, Reason::BadRow);
}

#[test]
fn log_cut_mid_record() {
    for format in ["log", "csv", "json"] {
        let whole = fixture("17", "prod", format);
        let (all, _) = import(&whole);
        let statement = b"select $1::int + $2::int, $3::text";
        let last = whole
            .windows(statement.len())
            .rposition(|window| window == statement)
            .expect("the statement");
        let (events, summary) = import(&whole[..last + 10]);
        // What stands before the cut is there, what was cut is not, and the cut is told.
        let before = events.len() - 1;
        assert_eq!(shown(&events[..before]), shown(&all[..before]), "{format}");
        assert!(shown(&events).iter().all(|text| !text.starts_with("execute")), "{format}");
        assert_eq!(summary.problems[0].reason, Reason::CutShort, "{format}");
        assert_eq!(summary.rejected(), 1, "{format}");
    }
}

#[test]
fn a_cut_detail_takes_its_statement_along() {
    let text = log(&[
        "LOG:  statement: select 1",
        "LOG:  execute S: select $1",
        "DETAIL:  parameters: $1 = 'abc'",
    ]);
    let (events, summary) = import(&text[..text.len() - 4]);
    assert_eq!(shown(&events), ["connect", "simple select 1"]);
    assert_eq!(summary.problems[0].reason, Reason::CutShort);
}

#[test]
fn a_csv_row_cut_inside_quotes_does_not_swallow_the_rest() {
    let row = |sql: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,LOG,00000,\"statement: {sql}\",,,,,,,,,\"app\",\"client backend\",,0\n"
        )
    };
    let cut = row("select 'abc'");
    let cut = &cut[..cut.find("abc").expect("it") + 2];
    // A client's text that looks like a row is told by its doubled quotes.
    let inner = row("select 1").replace('"', "\"\"");
    let text = row("select 1")
        + cut
        + "\n"
        + &row("select 2")
        + &row(&format!("select '\n{inner}'"))
        + &row("select 3");
    let (events, summary) = import(text);
    assert_eq!(events.len(), 5);
    assert_eq!(shown(&events)[4], "simple select 3");
    assert_eq!((summary.problems[0].reason, summary.rejected()), (Reason::CutShort, 1));
    assert_eq!(summary.problems[0].samples[0].line, 2);
}

#[test]
fn a_line_of_100_megabytes() {
    let long = format!("LOG:  statement: select '{}'", "x".repeat(100_000_000));
    let text = log(&["LOG:  statement: select 1", &long, "LOG:  statement: select 2"]);
    let (events, summary) = import(&text);
    assert_eq!(summary.rejected(), 0);
    assert_eq!(events[2].action.sql().map(howdah_traffic::Text::len), Some(100_000_009));
    let (events, summary) =
        import_with(&text, Options { max_record_bytes: 1 << 20, ..Options::default() });
    assert_eq!(shown(&events), ["connect", "simple select 1", "simple select 2"]);
    assert_eq!((summary.problems[0].reason, summary.rejected()), (Reason::TooLong, 1));
    assert_eq!(summary.problems[0].samples[0].line, 2);
}

#[test]
fn a_record_over_the_limit_is_left_out_of_every_format() {
    let options = || Options { max_record_bytes: 40_000, ..Options::default() };
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
        assert_eq!(shown(&events), ["connect", "simple a", "simple b"]);
        assert_eq!((summary.problems[0].reason, summary.rejected()), (Reason::TooLong, 1));
    }
}

/// A record over the limit was kept when all of it came at once, and in a csvlog it could take the next
/// one along when its last newline came at the end of a piece.
#[test]
fn what_is_too_long_does_not_depend_on_pieces() {
    let options = || Options { max_record_bytes: 400, ..Options::default() };
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
            assert_eq!(shown(&events), ["connect", "simple a", "simple b"], "cut at {cut}");
            assert_eq!((summary.problems[0].reason, summary.rejected()), (Reason::TooLong, 1));
        }
    }
}

#[test]
fn mixed_encodings() {
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
fn windows_line_ends() {
    let text = log(&["LOG:  statement: select 1\n\t, 2", "LOG:  duration: 5.000 ms"])
        .replace('\n', "\r\n");
    let (events, _) = import(text);
    assert_eq!(shown(&events), ["connect", "simple select 1\n, 2"]);
    assert_eq!(events[1].outcome.duration_us, Some(5000));
    // On other systems a carriage return is the client's own.
    let (events, _) = import(log(&["LOG:  duration: 5.000 ms", "LOG:  statement: select 1\r"]));
    assert_eq!(shown(&events), ["connect", "simple select 1\r"]);
}

#[test]
fn a_byte_order_mark_is_passed_over() {
    let text = format!("\u{feff}{}", log(&["LOG:  statement: select 1"]));
    let (events, summary) = import(text);
    assert_eq!((events.len(), summary.rejected()), (2, 0));
}

#[test]
fn blank_lines_and_empty_statements_survive() {
    let (events, summary) =
        import(log(&["LOG:  statement: ", "LOG:  statement: select 1\n\t\n\t\t, 2"]) + "\n");
    assert_eq!(shown(&events), ["connect", "simple ", "simple select 1\n\n\t, 2"]);
    assert_eq!(summary.rejected(), 0);
}

#[test]
fn nothing_gives_nothing() {
    for text in ["", "\n", "\n\n \n"] {
        let (events, summary) = import(text);
        assert_eq!((events.len(), summary.format), (0, None));
    }
}

#[test]
fn what_is_no_log_is_refused_with_its_place() {
    let error = refusal("\n\nhello world\nagain\n", Options::default());
    let expected = ImportError::UnknownFormat {
        file: "test.log".to_owned(),
        line: 3,
        excerpt: "hello world".to_owned(),
    };
    assert_eq!(error, expected);
    assert!(error.to_string().contains("log_line_prefix"));
    let error = refusal(b"\x7fELF\x02\x01\x00\x00\n\x00junk", Options::default());
    assert!(matches!(error, ImportError::Binary { compressed: false, .. }));
    let error = refusal(b"\x1f\x8b\x08\x00\x00\x00\n\x00junk", Options::default());
    assert!(matches!(error, ImportError::Binary { compressed: true, .. }));
}

#[test]
fn a_wrong_prefix_is_refused_and_the_right_one_named() {
    let options = Options { prefix: Some("%t [%p]: user=%u ".to_owned()), ..Options::default() };
    let error = refusal(fixture("17", "prod", "log"), options);
    let ImportError::WrongPrefix { guess, line, .. } = &error else { panic!("{error}") };
    assert_eq!((guess.as_deref(), *line), (Some("%m|%u|%d|%c|"), 1));
    assert!(error.to_string().contains("\"%m|%u|%d|%c|\" would"));
}

#[test]
fn a_given_prefix_is_used_as_given() {
    let options = Options { prefix: Some("%m|%u|%d|%c|".to_owned()), ..Options::default() };
    let (events, summary) = import_with(fixture("17", "prod", "log"), options);
    assert_eq!(events, import(fixture("17", "prod", "log")).0);
    assert_eq!(summary.prefix.map(|prefix| prefix.origin), Some(howdah_logs::Origin::Given));
}

#[test]
fn a_prefix_without_a_time_is_refused_at_once() {
    let options = Options { prefix: Some("[%p] ".to_owned()), ..Options::default() };
    let error = howdah_logs::Importer::new(options).map(|_| ()).expect_err("no time");
    assert!(matches!(error, OptionsError::PrefixWithoutTime { .. }));
}

#[test]
fn a_format_that_is_not_there_is_refused() {
    for format in [Format::Csv, Format::Json] {
        let options = Options { format: Some(format), ..Options::default() };
        let error = refusal(fixture("17", "prod", "log"), options);
        assert!(
            matches!(error, ImportError::WrongFormat { format: f, line: 1, .. } if f == format),
            "{error}"
        );
    }
}

#[test]
fn translated_logs_are_refused_by_label_or_by_duration() {
    let line = "2026-11-20 12:00:00.000 CET [7] al@shop FEHLER:  Division durch Null\n";
    let error = refusal(line, Options::default());
    assert!(matches!(error, ImportError::Translated { .. }), "{error}");
    assert!(error.to_string().contains("lc_messages"));
    let options = Options { prefix: Some("%m [%p] %u@%d ".to_owned()), ..Options::default() };
    assert!(matches!(refusal(line, options), ImportError::Translated { .. }));
    // The label LOG is the same in German, the message is not.
    let line =
        "2026-11-20 12:00:00.000 CET [7] al@shop LOG:  Dauer: 0.562 ms  Anweisung: select 1\n";
    assert!(matches!(refusal(line, Options::default()), ImportError::Translated { line: 1, .. }));
    let many = line.repeat(2000);
    let mut importer = howdah_logs::Importer::new(Options::default()).expect("options");
    assert!(matches!(
        importer.feed(many.repeat(10).as_bytes()),
        Err(ImportError::Translated { .. })
    ));
    let line = "2026-11-20 12:00:00.000 CET [7] al@shop LOG:  Anweisung: select 1\n";
    assert!(matches!(refusal(line, Options::default()), ImportError::Translated { .. }));
    let row = "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",2026-11-20 \
               12:00:00 UTC,3/4,0,FEHLER,00000,\"Division durch Null\",,,,,,,,\n";
    assert!(matches!(refusal(row, Options::default()), ImportError::Translated { .. }));
    // One odd message among known ones is nothing.
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
    assert_eq!(shown(&events), ["connect", "simple a", "simple a"]);
    let counts: Vec<_> = summary.problems.iter().map(|p| (p.reason, p.count)).collect();
    assert_eq!(counts, [(Reason::NotARecord, 1), (Reason::BadObject, 2)]);
}

#[test]
fn unreadable_times_and_severities_are_counted() {
    let text = log(&["LOG:  statement: select 1"])
        + "2026-13-40 12:00:00.000 UTC [7] al@shop LOG:  statement: select 2\n";
    let (events, summary) = import(text);
    assert_eq!(events.len(), 2);
    assert_eq!(summary.problems[0].reason, Reason::BadTime);
    let row = |severity: &str| {
        format!(
            "2026-11-20 12:00:00.000 UTC,\"al\",\"shop\",8,\"[local]\",6b004067.8,4,\"idle\",\
             2026-11-20 12:00:00 UTC,3/4,0,{severity},00000,\"statement: select 1\",,,,,,,,\n"
        )
    };
    let (events, summary) = import(row("LOG") + &row("FEHLER"));
    assert_eq!((events.len(), summary.problems[0].reason), (2, Reason::BadSeverity));
}

#[test]
fn a_detail_without_its_message_is_counted() {
    let (events, summary) =
        import(log(&["DETAIL:  parameters: $1 = '1'", "LOG:  statement: select 1"]));
    assert_eq!(events.len(), 2);
    assert_eq!(summary.problems[0].reason, Reason::Orphan);
}

#[test]
fn a_last_line_without_its_newline_is_kept_where_it_proves_to_be_whole() {
    for (format, kept) in [("csv", true), ("json", true), ("log", false)] {
        let log = fixture("17", "prod", format);
        let (all, _) = import(&log);
        let (events, summary) = import(&log[..log.len() - 1]);
        assert_eq!(events, all, "{format}");
        assert_eq!(summary.rejected(), u64::from(!kept), "{format}");
    }
}

#[test]
fn rows_wrapped_by_an_operator_are_read() {
    let line = "{\"level\":\"info\",\"ts\":\"2026-11-20T12:00:00Z\",\"msg\":\"record\",\"record\":{\"log_time\":\
                \"2026-11-20 12:00:00.000 UTC\",\"user_name\":\"al\",\"database_name\":\"shop\",\"process_id\":\"8\",\
                \"session_id\":\"6b004067.8\",\"error_severity\":\"LOG\",\"message\":\"statement: select 1\",\
                \"query\":\"\",\"leader_pid\":\"\",\"backend_type\":\"client backend\"}}\n";
    let (events, summary) = import(line);
    assert_eq!(shown(&events), ["connect", "simple select 1"]);
    assert_eq!(
        (&*events[1].user, &*events[1].session, summary.rejected()),
        ("al", "6b004067.8", 0)
    );
}

#[test]
fn guess_that_does_not_fit_all_records_is_refused_with_those_it_does_not_fit() {
    let line = |millis: u32, who: &str| {
        format!("2026-11-20 12:43:20.{millis:03} UTC [7] {who}LOG:  statement: select {millis}\n")
    };
    let mut log: String = (0..20).map(|millis| line(millis, "al@shop ")).collect();
    log.push_str("Segmentation fault\n");
    log.push_str(&line(20, "<bo/stock> "));
    log.push_str("\tgoes on with LOG:  in it\n");
    log.push_str(&line(21, "al@shop "));
    let error = refusal(&log, Options::default());
    let ImportError::UncertainPrefix { guess, fits, records, misfits, .. } = &error else {
        panic!("{error}");
    };
    assert_eq!((guess.as_str(), *fits, *records), ("%m [%p] %q%u@%d ", 21, 22));
    assert_eq!(misfits.iter().map(|(line, _)| *line).collect::<Vec<_>>(), [22]);
    assert!(error.to_string().contains("--prefix") && error.to_string().contains("<bo/stock>"));
    // With the prefix given, the line is counted.
    let options = Options { prefix: Some(guess.clone()), ..Options::default() };
    let (events, summary) = import_with(&log, options);
    assert_eq!((events.len(), summary.count_of(Reason::NotARecord)), (22, 2));
    // The rest of a record that rotation cut is no record.
    let (_, summary) = import(&log[20..log.find("Seg").expect("it is there")]);
    assert_eq!(summary.rejected(), 1);
}

#[test]
fn csvlog_that_another_tool_has_written_anew_says_so() {
    let columns = |count: usize| {
        let row = "2026-11-20 12:43:20.100 UTC,\"al\",\"shop\",7,\"[local]\",6b004067.7,1,\"idle\",\
                   2026-11-20 12:43:19 UTC,3/4,0,LOG,00000,\"statement: select 1\",,,,,,,,,\"psql\"";
        format!("{row}{}\n", ",".repeat(count - 23))
    };
    for (count, rejected) in [(23, 0), (24, 0), (25, 1), (26, 0)] {
        let (events, summary) = import(columns(count));
        assert_eq!(summary.count_of(Reason::BadRow), rejected, "{count} columns");
        assert_eq!(events.is_empty(), rejected > 0, "{count} columns");
    }
    let quoted =
        columns(26).replacen("2026-11-20 12:43:20.100 UTC", "\"2026-11-20 12:43:20.100 UTC\"", 1);
    for format in [None, Some(Format::Csv)] {
        let error = refusal(&quoted, Options { format, ..Options::default() });
        assert!(matches!(error, ImportError::RewrittenCsv { line: 1, .. }), "{error}");
    }
}
