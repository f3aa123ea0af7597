use proptest::prelude::*;

use super::*;

const LOG: &str = "2026-11-20 12:43:19.577 UTC,,,70,,6b004067.46,1,,2026-11-20 12:43:19 UTC,,0,LOG,00000,\"starting PostgreSQL 17.2, compiled\",,,,,,,,,\"\",\"postmaster\",,0\n\
    2026-11-20 12:43:20.000 UTC,\"al\",\"shop\",7,\"10.0.0.1:5043\",6b004067.7,2,\"SELECT\",2026-11-20 12:43:19 UTC,3/7,0,LOG,00000,\"statement: select \"\"a\"\"\n, 'b,c'\",,,,,,,,,\"psql\",\"client backend\",,-91\n\
    2026-11-20 12:43:21.000 UTC,\"al\",\"shop\",7,\"10.0.0.1:5043\",6b004067.7,3,\"SELECT\",2026-11-20 12:43:19 UTC,3/7,0,LOG,00000,\"duration: 1.000 ms\",,,,,,,,,\"psql\",\"client backend\",,-91\n";

/// Writes the rows of [`LOG`] like another tool.
fn rewritten(delimiter: char, quotes_all: bool, end: &str) -> String {
    let mut out = String::new();
    each_row(LOG.as_bytes(), |row| {
        let dialect = Dialect::all().next().expect("commas");
        let (_, record) = dialect.record(dialect.split(row).expect("a row")).expect("a row");
        let column = |text: &[u8]| {
            let text = String::from_utf8(text.to_vec()).expect("text");
            let is_needed = text.contains(['"', '\n', '\r', delimiter]);
            if quotes_all || is_needed {
                format!("\"{}\"", text.replace('"', "\"\""))
            } else {
                text
            }
        };
        let columns: Vec<_> = record.texts().map(column).collect();
        out += &(columns.join(&delimiter.to_string()) + end);
    });
    out
}

fn unwrap(text: &str, chunk: usize) -> (String, Vec<InputProblem>) {
    let mut layer = CsvExport::new(10_000);
    let mut output = LayerOutput::default();
    text.as_bytes().chunks(chunk).for_each(|bytes| layer.feed(bytes, &mut output));
    layer.finish(&mut output);
    let reasons = output.problems.iter().map(|problem| problem.reason).collect();
    (String::from_utf8_lossy(&output.log).into_owned(), reasons)
}

/// The server's rows, without the empty strings that other tools do not distinguish from NULL.
fn expected() -> String {
    LOG.replace(",\"\",\"postmaster\"", ",,\"postmaster\"")
}

#[test]
fn rows_in_any_quoting_are_written_like_the_servers() {
    for delimiter in [',', ';', '\t'] {
        for quotes_all in [false, true] {
            for end in ["\n", "\r\n"] {
                let text = rewritten(delimiter, quotes_all, end);
                assert!(is_export(text.as_bytes()), "{text}");
                for chunk in [1, 7, 100, text.len()] {
                    assert_eq!(unwrap(&text, chunk), (expected(), vec![]), "{text}");
                }
                let cut = text.trim_end();
                assert_eq!(unwrap(cut, 50), (expected(), vec![]));
            }
        }
    }
    assert!(!is_export(LOG.as_bytes()));
    assert!(!is_export(LOG.replace(",-91\n", ",-91\r\n").as_bytes()));
    assert!(!is_export(b"2026-11-20 12:43:19.577 UTC [7] LOG:  a,b,c\n"));
}

#[test]
fn header_names_the_columns() {
    let text = "Message,Error_Severity,log_time,process_id,database_name\n\
                \"statement: select 1\n, 2\",LOG,2026-11-20 12:43:20.5+00,7.0,shop\n\
                Message,Error_Severity,log_time,process_id,database_name\n\
                duration: 1.000 ms,LOG,2026-11-20T12:43:21Z,7.0,NULL\n";
    assert!(is_export(text.as_bytes()));
    let row = |time: &str, database: &str, message: &str| {
        format!("{time},,{database},7,,,,,,,,LOG,,\"{message}\",,,,,,,,,,,,\n")
    };
    let expected = row("2026-11-20 12:43:20.500 +0000", "\"shop\"", "statement: select 1\n, 2")
        + &row("2026-11-20 12:43:21.000 UTC", "", "duration: 1.000 ms");
    for chunk in [1, 20, text.len()] {
        assert_eq!(unwrap(text, chunk), (expected.clone(), vec![]));
    }
}

#[test]
fn broken_rows_are_reported_and_skipped() {
    let text = rewritten(',', true, "\n");
    let rows: Vec<_> = text.split_inclusive("\n\"2026").collect();
    // The first row ends inside quotes.
    let broken = format!("{}\n{text}", &rows[0][..rows[0].find("compiled").expect("a message")]);
    let (log, problems) = unwrap(&broken, 30);
    assert_eq!((log, problems), (expected(), vec![InputProblem::CutShort]));
    let short = format!("{text}\"2026-11-20 12:43:19.577 UTC\",\"al\",\"shop\"\n{text}");
    let (log, problems) = unwrap(&short, 30);
    assert_eq!((log, problems), (expected().repeat(2), vec![InputProblem::BadEnvelope]));
    let long = text.replace("starting", &"x".repeat(20_000));
    let (log, problems) = unwrap(&long, 30);
    assert_eq!(problems, [InputProblem::TooLong]);
    assert!(expected().ends_with(&log) && log.contains("duration"), "{log}");
}

#[test]
fn ambiguous_exports_have_an_obstacle() {
    let text = rewritten(';', false, "\n");
    let dates = text.replace("2026-11-20 12:43:20.000 UTC;", "11/12/2026 12:43;");
    assert_eq!(
        csv_obstacle(dates.lines().nth(1).unwrap_or_default().as_bytes()),
        None,
        "a part of a row"
    );
    let dated = dates.replace("2026-11-20 12:43:19.577 UTC;", "11/12/2026 12:43;");
    assert_eq!(
        csv_obstacle(dated.as_bytes()),
        Some(CsvObstacle::Time("11/12/2026 12:43".to_owned()))
    );
    assert!(!is_export(dated.replace("2026-11-20 12:43:21.000 UTC;", "x;").as_bytes()));
    let fewer = text.replace(";postmaster;;0\n", ";postmaster;\n");
    assert_eq!(csv_obstacle(fewer.as_bytes()), Some(CsvObstacle::Columns(25)));
    assert_eq!(csv_obstacle(LOG.as_bytes()), None);
    assert_eq!(csv_obstacle(b"2026-11-20 12:43:19.577 UTC [7] LOG:  a,b,c\n"), None);
}

proptest! {
    #[test]
    fn rows_do_not_depend_on_chunks(
        parts in prop::collection::vec(
            "[ab,\"\n]|\"\"|\r\n|2026-11-20 12:43:19[.]577 UTC,al,shop,7,|\"2026-11-20 12:43:19\",,,\"7\",|a{30}",
            0..40,
        ),
        chunk in 1_usize..50,
    ) {
        let text = parts.concat();
        let split = |chunk: usize| {
            let (mut rows, mut found) = (RowSplitter::new(100), Vec::new());
            let mut take = |row: CsvRow<'_>, line| match row {
                CsvRow::Whole(row) => found.push((line, 'w', row.to_vec())),
                CsvRow::Broken(row) => found.push((line, 'b', row.to_vec())),
                CsvRow::TooLong(_) => found.push((line, 'l', Vec::new())),
            };
            text.as_bytes().chunks(chunk).for_each(|bytes| rows.feed(bytes, &mut take));
            rows.finish(&mut take);
            found
        };
        prop_assert_eq!(split(chunk), split(text.len().max(1)));
    }
}
