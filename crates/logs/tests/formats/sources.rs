//! A log in the envelope of any service gives the same events as the plain log.

use std::{convert::Infallible, io::Write as _, ops::ControlFlow, os::fd::AsRawFd, path::PathBuf};

use howdah_logs::{
    Compression, Emit, Envelope, FileOrder, GapKind, ImportOptions, ImportSummary, ProblemReason,
    read_files,
};
use howdah_traffic::{Action, Bound, Event, Parameter, Source};

use crate::{
    envelopes,
    support::{MAJORS, SETTINGS, descriptions, fixture, import},
};

/// A new folder for the files of a test.
pub(crate) fn folder(name: &str) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("sources").join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).expect("a writable directory");
    path
}

fn write(folder: &std::path::Path, name: &str, content: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::write(&path, content).expect("a writable directory");
    path
}

pub(crate) fn read_with(paths: &[PathBuf], options: ImportOptions) -> (Vec<Event>, ImportSummary) {
    let mut events = Vec::new();
    let sink = |event| {
        events.push(event);
        Ok::<(), Infallible>(())
    };
    let summary = read_files(paths, options, |_| ControlFlow::Continue(()), sink).expect("a log");
    (events, summary)
}

/// Reads one file, whose name gives no hint of its format.
fn read(name: &str, content: &[u8]) -> (Vec<Event>, ImportSummary) {
    let path = write(&folder(name), "input", content);
    read_with(&[path], ImportOptions::default())
}

/// Asserts that a log in envelopes gives the events of the plain one.
fn assert_same_events(
    name: &str,
    plain: &[u8],
    enveloped: &[u8],
    envelopes_found: &[Envelope],
) -> ImportSummary {
    let expected = import(plain).0;
    assert!(expected.len() > 80);
    let (events, summary) = read(name, enveloped);
    assert_eq!(summary.inputs.files[0].envelopes, envelopes_found, "{name}");
    assert_eq!(summary.rejected(), 0, "{name}: {:?}", summary.problems);
    for (number, (got, expected)) in events.iter().zip(&expected).enumerate() {
        assert_eq!(got, expected, "{name}, event {number}");
    }
    assert_eq!(events.len(), expected.len(), "{name}");
    summary
}

/// Every fixture in the stderr format, with its name.
fn stderr_fixtures() -> impl Iterator<Item = (String, Vec<u8>)> {
    MAJORS.into_iter().flat_map(|major| {
        SETTINGS.map(|setting| (format!("{major}-{setting}"), fixture(major, setting, "log")))
    })
}

#[test]
fn container_logs_are_read() {
    for (name, log) in stderr_fixtures() {
        for part in [9, 16_384] {
            let enveloped = envelopes::cri(&log, part);
            assert_same_events(&format!("cri-{part}-{name}"), &log, &enveloped, &[Envelope::Cri]);
        }
        assert_same_events(
            &format!("docker-{name}"),
            &log,
            &envelopes::docker(&log),
            &[Envelope::Json],
        );
        let enveloped = envelopes::timestamps(&log);
        assert_same_events(
            &format!("timestamps-{name}"),
            &log,
            &enveloped,
            &[Envelope::Timestamps],
        );
    }
    for format in ["csv", "json"] {
        let log = fixture("17", "prod", format);
        assert_same_events(
            &format!("cri-{format}"),
            &log,
            &envelopes::cri(&log, 500),
            &[Envelope::Cri],
        );
        assert_same_events(
            &format!("docker-{format}"),
            &log,
            &envelopes::docker(&log),
            &[Envelope::Json],
        );
    }
}

#[test]
fn cloud_logs_are_read() {
    for (name, log) in stderr_fixtures() {
        for (kind, enveloped) in [
            ("cloud-sql", envelopes::cloud_sql(&log)),
            ("cloud-sql-array", envelopes::cloud_sql_array(&log)),
            ("cloudwatch", envelopes::cloudwatch(&log)),
        ] {
            assert_same_events(&format!("{kind}-{name}"), &log, &enveloped, &[Envelope::Json]);
        }
    }
}

#[test]
fn cloud_native_pg_logs_are_read() {
    for major in MAJORS {
        for setting in SETTINGS {
            let csv = fixture(major, setting, "csv");
            let enveloped = envelopes::cloud_native_pg(&csv);
            let name = format!("cnpg-{major}-{setting}");
            let summary = assert_same_events(&name, &csv, &enveloped, &[Envelope::Json]);
            assert_eq!(summary.problem_count(ProblemReason::OtherProgram), 1);
            let nested = envelopes::cri(&enveloped, 16_384);
            assert_same_events(
                &format!("cri-{name}"),
                &csv,
                &nested,
                &[Envelope::Cri, Envelope::Json],
            );
        }
    }
}

/// Writes a header in front of each fragment of each message.
fn syslog(log: &[u8], header: impl Fn(&[u8], usize) -> String, escape: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, message) in (1..).zip(envelopes::messages(log)) {
        for fragment in envelopes::fragments(&message, number) {
            out.extend(header(&message, number).bytes());
            out.extend(if escape { envelopes::escaped(&fragment) } else { fragment });
            out.push(b'\n');
        }
    }
    out
}

#[test]
fn syslog_with_complete_prefix_is_read() {
    for (name, log) in stderr_fixtures() {
        // A prefix that ends in white space would lose it, so `verbose` is cut elsewhere.
        for (kind, header) in [
            ("3164", "Nov 20 12:43:19 db postgres[18146]: "),
            ("priority", "<134>Nov 20 12:43:19 db postgres[18146]: "),
            ("iso", "2026-11-20T12:43:19.577123+01:00 db postgres[18146]: "),
            ("5424", "<134>1 2026-11-20T12:43:19.577Z db postgres 18146 - - "),
            ("full", "Fri 2026-11-20 12:43:19 UTC db postgres[18146]: "),
        ] {
            for escape in [false, true] {
                let enveloped = syslog(&log, |_, _| header.to_owned(), escape);
                let name = format!("syslog-{kind}-{escape}-{name}");
                assert_same_events(&name, &log, &enveloped, &[Envelope::Syslog]);
            }
        }
    }
}

/// Splits time and process from the prefix of `durationonly`: `%m [%p] `.
fn without_time(log: &[u8]) -> Vec<(String, String, Vec<u8>)> {
    let mut messages = Vec::new();
    for message in envelopes::messages(log) {
        let text = String::from_utf8(message).expect("text");
        let head = text.find("] ").expect("a process") + 2;
        let (time, pid) = text[..head].split_once(" [").expect("a process");
        let rest = text.replace(&text[..head], "");
        messages.push((time.to_owned(), pid[..pid.len() - 2].to_owned(), rest.into_bytes()));
    }
    messages
}

#[test]
fn syslog_with_timeless_prefix_is_read() {
    for major in MAJORS {
        let log = fixture(major, "durationonly", "log");
        let (mut iso, mut json, mut export) = (String::new(), String::new(), Vec::new());
        for (number, (time, pid, message)) in (1..).zip(without_time(&log)) {
            let iso_time = time.replacen(' ', "T", 1).replace(" UTC", "Z");
            let at: howdah_traffic::Timestamp = iso_time.parse().expect("a time");
            let micros = at.as_micros();
            for fragment in envelopes::fragments(&message, number) {
                let text = String::from_utf8(fragment).expect("text");
                iso += &format!("{iso_time} db postgres[{pid}]: {}\n", {
                    String::from_utf8(envelopes::escaped(text.as_bytes())).expect("text")
                });
                json += &format!(
                    "{{\"__REALTIME_TIMESTAMP\":\"{micros}\",\"_PID\":\"1\",\"SYSLOG_PID\":\"{pid}\",\
                     \"SYSLOG_IDENTIFIER\":\"postgres\",\"MESSAGE\":{}}}\n",
                    envelopes::json_text(&text)
                );
                export.extend(
                    format!(
                        "__REALTIME_TIMESTAMP={micros}\nSYSLOG_PID={pid}\n_COMM=postgres\nMESSAGE\n"
                    )
                    .bytes(),
                );
                export.extend((text.len() as u64).to_le_bytes());
                export.extend(text.bytes());
                export.extend(b"\n\n");
            }
        }
        for (kind, enveloped, envelope) in [
            ("iso", iso.into_bytes(), Envelope::Syslog),
            ("json", json.into_bytes(), Envelope::JournalJson),
            ("export", export, Envelope::JournalExport),
        ] {
            let name = format!("no-time-{kind}-{major}");
            let summary = assert_same_events(&name, &log, &enveloped, &[envelope]);
            let prefix = summary.prefix.expect("a prefix").text;
            assert_eq!(prefix, "%m [%p] %q%u@%d/%a ");
            // With the server's own prefix, which has no time.
            let path = folder(&format!("given-{name}")).join("input");
            std::fs::write(&path, enveloped).expect("a file");
            let given = Some("%q%u@%d/%a ".to_owned());
            let options = ImportOptions { prefix: given, ..ImportOptions::default() };
            assert_eq!(read_with(&[path], options).0, import(&log).0);
        }
    }
}

#[test]
fn cloud_entries_without_time_in_their_text_are_read() {
    for major in MAJORS {
        let log = fixture(major, "durationonly", "log");
        let mut entries = String::new();
        for (time, _, message) in without_time_only(&log) {
            let time = time.replacen(' ', "T", 1).replace(" UTC", "Z");
            let name =
                if entries.len().is_multiple_of(2) { "timestamp" } else { "receiveTimestamp" };
            entries += &format!(
                "{{\"insertId\":\"x\",\"logName\":\"projects/p/logs/cloudsql.googleapis.com%2Fpostgres.log\",\
                 \"severity\":\"INFO\",\"textPayload\":{},\"{name}\":\"{time}\"}}\n",
                envelopes::json_text(&message)
            );
        }
        let name = format!("cloud-no-time-{major}");
        let summary = assert_same_events(&name, &log, entries.as_bytes(), &[Envelope::Json]);
        assert_eq!(summary.prefix.expect("a prefix").text, "%m [%p] %q%u@%d/%a ");
        // The server's own prefix, as SHOW prints it, and without the time.
        for given in ["%m [%p] %q%u@%d/%a ", "[%p] %q%u@%d/%a "] {
            let path = write(&folder(&format!("given-{name}")), "input", entries.as_bytes());
            let options =
                ImportOptions { prefix: Some(given.to_owned()), ..ImportOptions::default() };
            assert_eq!(read_with(&[path], options).0, import(&log).0, "{given}");
        }
    }
}

/// Splits the time from each line, and returns it with the rest of the line and its continuation.
fn without_time_only(log: &[u8]) -> Vec<(String, String, String)> {
    let text = String::from_utf8(log.to_vec()).expect("text");
    let mut lines: Vec<(String, String, String)> = Vec::new();
    for line in text.lines() {
        if line.starts_with('\t') {
            lines.last_mut().expect("a line").2 += &format!("\n{line}");
            continue;
        }
        let (time, rest) = line.split_once(" [").expect("a process");
        let (pid, after) = rest.split_once("] ").expect("a process");
        lines.push((time.to_owned(), pid.to_owned(), format!("[{pid}] {after}")));
    }
    lines
}

/// Removes the names of sessions, which Heroku's prefix lacks, and puts its prefix in their place.
fn with_error_code(message: &[u8]) -> String {
    let text = String::from_utf8(message.to_vec()).expect("text");
    let mut out = String::new();
    for line in text.lines() {
        let is_label = |colon: &usize| {
            let word = line[..*colon].rsplit(' ').next().unwrap_or_default();
            !word.is_empty() && word.chars().all(|c| c.is_ascii_uppercase())
        };
        let colon = line.match_indices(":  ").map(|(at, _)| at).find(is_label);
        match colon.filter(|_| !line.starts_with('\t')) {
            Some(colon) => {
                let label = line[..colon].rfind(' ').map_or(0, |at| at + 1);
                out += &format!(" sql_error_code = 00000 {}\n", &line[label..]);
            }
            None => out += &format!("{line}\n"),
        }
    }
    out
}

#[test]
fn heroku_logs_are_read() {
    for major in MAJORS {
        let log = fixture(major, "durationonly", "log");
        let (mut plain, mut lines, mut drain, mut others) =
            (String::new(), String::new(), String::new(), 0);
        for (number, (time, pid, message)) in (1..).zip(without_time(&log)) {
            let message = with_error_code(&message);
            for line in message.lines() {
                if line.starts_with('\t') {
                    plain += &format!("{line}\n");
                } else {
                    plain += &format!("{time} [{pid}] {line}\n");
                }
            }
            let time = time.replacen(' ', "T", 1).replace(" UTC", "000+00:00");
            for fragment in envelopes::fragments(message.as_bytes(), number) {
                let text = String::from_utf8(envelopes::escaped(&fragment)).expect("text");
                lines += &format!("{time} app[postgres.{pid}]: [DATABASE] {text}\n");
                let line = format!("<134>1 {time} host app postgres.{pid} - [DATABASE] {text}\n");
                drain += &format!("{} {line}", line.len());
            }
            if number % 9 == 0 {
                others += 3;
                lines += &format!(
                    "{time} app[web.1]: PG::SyntaxError: ERROR:  syntax error at end of input\n\
                     {time} heroku[router]: at=info method=GET path=\"/\" status=200\n\
                     {time} app[heroku-postgres]: source=DATABASE sample#db_size=8MB\n"
                );
                drain += &format!(
                    "99 <45>1 {time} host app web.1 - ERROR:  syntax error at end of input\n\
                     99 <158>1 {time} host heroku router - at=info method=GET status=200\n\
                     99 <134>1 {time} host app heroku-postgres - source=DATABASE sample#x=1\n"
                );
            }
        }
        for (kind, text) in [("lines", lines), ("drain", drain)] {
            let name = format!("heroku-{kind}-{major}");
            let summary =
                assert_same_events(&name, plain.as_bytes(), text.as_bytes(), &[Envelope::Syslog]);
            assert_eq!(summary.prefix.expect("a prefix").text, "%m [%p]  sql_error_code = %e ");
            assert_eq!(summary.problems.iter().map(|problem| problem.count).sum::<u64>(), others);
        }
    }
}

#[test]
fn heroku_prefix_with_session_is_read() {
    let line = |text: &str, database: &str| {
        format!(
            "2026-11-20T12:43:20.000000+00:00 app[postgres.3155]: [DATABASE] {text}\n"
        )
        .replace(
            "@",
            &format!(
                " sql_error_code = 00000 time_ms = \"2026-11-20 12:43:19.577 UTC\" pid=\"3155\" \
                 proc_start_time=\"2026-11-20 12:40:00 UTC\" session_id=\"6b004067.c53\" vtid=\"5/7\" \
                 tid=\"0\" log_line=\"4\" {database}"
            ),
        )
    };
    let session = "database=\"d7\" connection_source=\"10.0.0.1(5043)\" user=\"u7\" \
                   application_name=\"puma: cluster worker 0\" ";
    let log = [
        line("[5-1] @LOG:  duration: 12.500 ms  statement: select *", session),
        line("[5-2] #011from t", session),
        line("[6-1] @LOG:  checkpoint starting: time", ""),
        line("[7-1] @LOG:  duration: 1.000 ms  statement: select 2", session),
    ]
    .concat();
    let (events, summary) = read("heroku-session", log.as_bytes());
    assert_eq!(summary.problems, []);
    let statements: Vec<_> =
        events.iter().filter(|event| event.action.kind().is_execution()).collect();
    let texts: Vec<_> = statements.iter().map(|event| crate::support::describe(event)).collect();
    assert_eq!(texts, ["simple select *\nfrom t", "simple select 2"]);
    let first = statements[0];
    assert_eq!((&*first.user, &*first.database), ("u7", "d7"));
    assert_eq!((&*first.session, &*first.application), ("6b004067.c53", "puma: cluster worker 0"));
    assert_eq!(first.outcome.duration_us, Some(12_500));
}

#[test]
fn csvlogs_rewritten_by_other_tools_are_read() {
    const HEADER: &str = "log_time,user_name,database_name,process_id,connection_from,session_id,\
        session_line_num,command_tag,session_start_time,virtual_transaction_id,transaction_id,\
        error_severity,sql_state_code,message,detail,hint,internal_query,internal_query_pos,context,\
        query,query_pos,location,application_name,backend_type,leader_pid,query_id\n";
    const MARKED: &str = "\u{feff}";
    let style = envelopes::CsvStyle {
        delimiter: ',',
        quotes_all: true,
        line_end: "\n",
        head: "",
        zone: " UTC",
    };
    let styles = [
        style,
        envelopes::CsvStyle { quotes_all: false, line_end: "\r\n", ..style },
        envelopes::CsvStyle { line_end: "\r\n", head: MARKED, ..style },
        envelopes::CsvStyle { quotes_all: false, head: HEADER, zone: "+00", ..style },
        envelopes::CsvStyle { delimiter: ';', quotes_all: false, zone: "+00:00", ..style },
        envelopes::CsvStyle { delimiter: '\t', ..style },
    ];
    for major in MAJORS {
        for setting in SETTINGS {
            let csv = fixture(major, setting, "csv");
            for (number, style) in styles.into_iter().enumerate() {
                let export = envelopes::csv_export(&csv, style);
                let name = format!("csv-export-{number}-{major}-{setting}");
                assert_same_events(&name, &csv, &export, &[Envelope::CsvExport]);
            }
            // A mark, other line ends and a header alone are no obstacle, either.
            for (number, head) in [MARKED, HEADER].into_iter().enumerate() {
                let text = [head.as_bytes(), &csv].concat();
                let name = format!("csv-head-{number}-{major}-{setting}");
                let found: &[Envelope] = if head == HEADER { &[Envelope::CsvExport] } else { &[] };
                assert_same_events(&name, &csv, &text, found);
            }
        }
    }
}

#[test]
fn timeless_prefix_of_plain_log_is_rejected() {
    let path = write(&folder("timeless"), "input", &fixture("17", "prod", "log"));
    let options = ImportOptions { prefix: Some("%u|%d|".to_owned()), ..ImportOptions::default() };
    let sink = |_| Ok::<(), Infallible>(());
    let error = read_files(&[path], options, |_| ControlFlow::Continue(()), sink);
    assert!(error.expect_err("no time").to_string().contains("has no time"));
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory")
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    // With a checksum, as the command writes it.
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).expect("memory");
    encoder.include_checksum(true).expect("a setting");
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory")
}

fn bzip2(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = bzip2::write::BzEncoder::new(Vec::new(), bzip2::Compression::fast());
    encoder.write_all(bytes).and_then(|()| encoder.finish()).expect("memory")
}

type CompressFn = fn(&[u8]) -> Vec<u8>;

const PACKERS: [(Compression, CompressFn); 3] =
    [(Compression::Gzip, gzip), (Compression::Zstd, zstd), (Compression::Bzip2, bzip2)];

#[test]
fn archives_of_several_members_are_read() {
    let log = fixture("17", "prod", "csv");
    let expected = import(&log).0;
    for (compression, pack) in PACKERS {
        let (one, other) = log.split_at(log.len() / 3);
        let packed = [pack(one), pack(other)].concat();
        let (events, summary) = read(&format!("packed-{}", compression.as_str()), &packed);
        assert_eq!(events, expected);
        assert_eq!(summary.inputs.files[0].compression, Some(compression));
        assert_eq!((summary.bytes, summary.rejected()), (log.len() as u64, 0));
    }
}

#[test]
fn archives_around_envelopes_are_read() {
    let log = fixture("17", "prod", "log");
    let packed = zstd(&envelopes::docker(&log));
    let (events, summary) = read("packed-docker", &packed);
    assert_eq!(events, import(&log).0);
    assert_eq!(summary.inputs.files[0].envelopes, [Envelope::Json]);
}

/// A log of many records, which compresses badly.
fn long_log() -> Vec<u8> {
    let mut random = 1_u64;
    let mut log = String::new();
    for number in 0..20_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let (second, milli) = (number / 1000, number % 1000);
        log += &format!(
            "2026-11-20 12:00:{second:02}.{milli:03} UTC [7] al@shop LOG:  statement: select {random}\n"
        );
    }
    log.into_bytes()
}

#[test]
fn truncated_archive_is_read_up_to_the_cut() {
    let log = long_log();
    let all = import(&log).0;
    for (compression, pack) in PACKERS {
        let packed = pack(&log);
        for (kept_bytes, least) in [(packed.len() - 3, 15_000), (packed.len() * 2 / 3, 5000)] {
            let name = format!("cut-{}-{kept_bytes}", compression.as_str());
            let (events, summary) = read(&name, &packed[..kept_bytes]);
            assert_eq!(summary.problem_count(ProblemReason::Damaged), 1, "{name}");
            assert!(events.len() >= least, "{name}: {}", events.len());
            assert_eq!(descriptions(&events), descriptions(&all[..events.len()]), "{name}");
        }
    }
}

#[test]
fn damaged_archive_is_reported() {
    let log = long_log();
    for (compression, pack) in PACKERS {
        let mut packed = pack(&log);
        let middle = packed.len() / 2;
        packed[middle..middle + 8].fill(0x55);
        let (events, summary) = read(&format!("damaged-{}", compression.as_str()), &packed);
        assert_eq!(summary.problem_count(ProblemReason::Damaged), 1, "{compression:?}");
        assert!(events.len() > 5000, "{compression:?}: {}", events.len());
        // An archive without any readable part is an error.
        let path = write(&folder("hopeless"), "input", &packed[..11]);
        let sink = |_| Ok::<(), Infallible>(());
        let error =
            read_files(&[path], ImportOptions::default(), |_| ControlFlow::Continue(()), sink);
        assert!(error.expect_err("nothing").to_string().contains("cannot read"));
    }
}

#[test]
fn archive_of_one_endless_line_is_read_in_chunks() {
    let mut log = fixture("17", "prod", "log");
    log.extend(std::iter::repeat_n(b'x', 64 << 20));
    log.push(b'\n');
    let path = write(&folder("bomb"), "input", &gzip(&log));
    let options = ImportOptions { max_record_bytes: 1 << 20, ..ImportOptions::default() };
    let (events, summary) = read_with(&[path], options);
    assert_eq!(events.len(), import(fixture("17", "prod", "log")).0.len());
    assert_eq!(summary.bytes, log.len() as u64);
    assert!(summary.rejected() > 0);
}

#[test]
fn rotated_files_are_ordered_by_time() {
    let log = fixture("17", "prod", "log");
    let messages = envelopes::messages(&log);
    let parts: Vec<Vec<u8>> = messages.chunks(40).map(<[Vec<u8>]>::concat).collect();
    let folder = folder("rotated");
    // Named as by logrotate: the newest has no number.
    let last = parts.len() - 1;
    for (number, part) in parts.iter().enumerate() {
        match last - number {
            0 => write(&folder, "postgresql.log", part),
            1 => write(&folder, "postgresql.log.1", part),
            age => write(&folder, &format!("postgresql.log.{age}.gz"), &gzip(part)),
        };
    }
    let expected = import(&log).0;
    for paths in [vec![folder.clone()], vec![folder.join("postgresql.log*")]] {
        let (events, summary) = read_with(&paths, ImportOptions::default());
        assert_eq!(events, expected, "{paths:?}");
        assert_eq!(summary.inputs.order, FileOrder::ByFirstTime);
        assert_eq!(summary.inputs.files.len(), parts.len());
        assert!(summary.inputs.files[last].name.ends_with("postgresql.log"));
    }
    // Named twice, read once.
    let paths = vec![folder.join("postgresql.log*"), folder.join("postgresql.log")];
    let (events, summary) = read_with(&paths, ImportOptions::default());
    assert_eq!((events, summary.inputs.left_out.len()), (expected, 1));
}

#[test]
fn log_in_several_formats_is_read_once() {
    let folder = folder("twins");
    for format in ["log", "csv", "json"] {
        write(&folder, &format!("postgresql-Fri.{format}"), &fixture("17", "prod", format));
    }
    let (events, summary) = read_with(std::slice::from_ref(&folder), ImportOptions::default());
    assert_eq!(events, import(fixture("17", "prod", "json")).0);
    let left_out: Vec<_> = summary.inputs.left_out.iter().map(|left| &left.instead).collect();
    assert_eq!(left_out.len(), 2);
    assert!(left_out.iter().all(|name| name.ends_with("postgresql-Fri.json")));
    // The requested format is the one that is read.
    let options = ImportOptions {
        format: Some(howdah_logs::ServerLogFormat::Csv),
        ..ImportOptions::default()
    };
    let (_, summary) = read_with(std::slice::from_ref(&folder), options);
    assert!(summary.inputs.files[0].name.ends_with("postgresql-Fri.csv"));
    assert_eq!(summary.inputs.files.len(), 1);
}

#[test]
fn logs_of_two_servers_are_not_duplicates() {
    let folder = folder("no-twins");
    write(&folder, "a.log", &fixture("17", "prod", "log"));
    write(&folder, "b.csv", &fixture("15", "prod", "csv"));
    let (events, summary) = read_with(std::slice::from_ref(&folder), ImportOptions::default());
    assert_eq!((summary.inputs.files.len(), summary.inputs.left_out.len()), (2, 0));
    let both =
        import(fixture("17", "prod", "log")).0.len() + import(fixture("15", "prod", "csv")).0.len();
    assert_eq!(events.len(), both);
}

/// Asserts that a pipe returns each chunk while its other end is open.
fn assert_live(name: &str, chunks: &[Vec<u8>]) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    let path = PathBuf::from(format!("/proc/self/fd/{}", reader.as_raw_fd()));
    let (sender, events) = std::sync::mpsc::channel();
    let reading = std::thread::spawn(move || {
        let options = ImportOptions { emit: Emit::Start, ..ImportOptions::default() };
        let sink = |event: Event| sender.send(event).map_err(|_| "gone");
        read_files(&[path], options, |_| ControlFlow::Continue(()), sink).map(|s| s.records)
    });
    for (number, chunk) in chunks.iter().enumerate() {
        writer.write_all(chunk).expect("an open pipe");
        // Nothing more is written until the statement was emitted.
        let sql = format!("select {number}");
        let is_it = |event: &Event| event.action.sql().is_some_and(|text| text.to_string() == sql);
        assert!(events.iter().any(|event| is_it(&event)), "{name} {number}");
    }
    drop((writer, reader));
    assert_eq!(reading.join().expect("no panic").expect("a log"), chunks.len() as u64);
}

#[test]
fn pipes_are_read_while_open() {
    let line = |number| {
        format!("2026-11-20 12:00:00.000 UTC [7] al@shop LOG:  statement: select {number}\n")
            .into_bytes()
    };
    assert_live("plain", &[line(0), line(1)]);
    assert_live("cri", &[envelopes::cri(&line(0), 500), envelopes::cri(&line(1), 500)]);
    assert_live("docker", &[envelopes::docker(&line(0)), envelopes::docker(&line(1))]);
    let header = |_: &[u8], _| "Nov 20 12:00:00 db postgres[7]: ".to_owned();
    assert_live("syslog", &[syslog(&line(0), header, true), syslog(&line(1), header, true)]);
    assert_live("gzip", &[gzip(&line(0)), gzip(&line(1))]);
    assert_live("zstd", &[zstd(&line(0)), zstd(&line(1))]);
}

/// The events that other tools keep of a run.
fn kept_events(events: &[Event]) -> Vec<&Event> {
    let is_kept = |event: &&Event| {
        let is_bound = match &event.action {
            Action::Execute(bound) => {
                let values = bound.parameters.as_deref().unwrap_or_default();
                !values.iter().any(|value| matches!(value, Parameter::Truncated(_)))
            }
            Action::Connect | Action::Disconnect | Action::Simple { .. } => true,
            _ => false,
        };
        is_bound && event.source != Source::Inferred
    };
    events.iter().filter(is_kept).collect()
}

fn values(bound: &Bound) -> Vec<Option<String>> {
    let value = |value: &Parameter| match value {
        Parameter::Null => None,
        Parameter::Value(text) | Parameter::Truncated(text) => Some(text.to_string()),
    };
    bound.parameters.iter().flatten().map(value).collect()
}

/// Session, time, names and action, without the names of statements and portals.
fn essence(event: &Event) -> String {
    let action = match &event.action {
        Action::Execute(bound) => format!("execute {} {:?}", bound.sql, values(bound)),
        _ => crate::support::describe(event),
    };
    format!("{} {} {}@{} {action}", event.time, event.session, event.user, event.database)
}

fn assert_same_essence(name: &str, expected: &[&Event], made: &[u8], envelope: Envelope) {
    let path = write(&folder(name), "input", made);
    let options = ImportOptions { timezone: Some("UTC".to_owned()), ..ImportOptions::default() };
    let (events, summary) = read_with(&[path], options);
    assert_eq!(summary.inputs.files[0].envelopes, [envelope]);
    assert_eq!(summary.problems, []);
    // Without durations actions end with the next of their session, so only the order within a
    // session is kept.
    let mut got = kept_events(&events);
    got.sort_by_key(|event| &event.session);
    let mut expected = expected.to_vec();
    expected.sort_by_key(|event| &event.session);
    for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
        assert_eq!(essence(got), essence(expected), "{name}, event {number}");
    }
    assert_eq!(got.len(), expected.len(), "{name}");
    assert!(events.iter().all(|event| event.outcome.duration_us.is_none()));
    let gaps = summary.completeness().gaps;
    assert!(gaps.iter().any(|gap| gap.kind == GapKind::OtherCapture && gap.count == 1));
}

#[test]
fn pgreplay_go_items_are_read() {
    let (events, _) = import(fixture("17", "prod", "csv"));
    let expected = kept_events(&events);
    let mut made = String::new();
    for event in &expected {
        let (kind, more) = match &event.action {
            Action::Connect => ("Connect", String::new()),
            Action::Disconnect => ("Disconnect", String::new()),
            Action::Execute(bound) => {
                let value = |value: Option<String>| {
                    value.map_or("null".to_owned(), |v| envelopes::json_text(&v))
                };
                let list: Vec<_> = values(bound).into_iter().map(value).collect();
                let sql = envelopes::json_text(&bound.sql.to_string());
                ("BoundExecute", format!(",\"query\":{sql},\"parameters\":[{}]", list.join(",")))
            }
            action => {
                let sql = action.sql().map(ToString::to_string).unwrap_or_default();
                ("Statement", format!(",\"query\":{}", envelopes::json_text(&sql)))
            }
        };
        made += &format!(
            "{{\"type\":\"{kind}\",\"item\":{{\"timestamp\":\"{}\",\"session_id\":\"{}\",\"user\":{},\"database\":{}{more}}}}}\n",
            event.time,
            event.session,
            envelopes::json_text(&event.user),
            envelopes::json_text(&event.database),
        );
    }
    assert_same_essence("pgreplay-go", &expected, made.as_bytes(), Envelope::PgreplayGo);
}

#[test]
fn pgreplay_replay_file_is_read() {
    let (events, _) = import(fixture("17", "prod", "csv"));
    let expected = kept_events(&events);
    let mut made = Vec::new();
    let string = |text: Option<&str>, made: &mut Vec<u8>| match text {
        None => made.extend(0x8000_0000_u32.to_be_bytes()),
        Some(text) => {
            made.extend(u32::try_from(text.len()).expect("short").to_be_bytes());
            made.extend(text.bytes());
        }
    };
    for (number, event) in expected.iter().enumerate() {
        let micros = event.time.as_micros() - 946_684_800_000_000;
        let (start, pid) = event.session.split_once('.').expect("an id");
        let [start, pid] = [start, pid].map(|part| u64::from_str_radix(part, 16).expect("hex"));
        let item = |kind: u8, made: &mut Vec<u8>| {
            made.extend(u32::try_from(micros / 1_000_000).expect("seconds").to_be_bytes());
            made.extend(u32::try_from(micros % 1_000_000).expect("micros").to_be_bytes());
            made.extend((start << 32 | pid).to_be_bytes());
            made.push(kind);
        };
        match &event.action {
            Action::Connect => {
                item(0, &mut made);
                string(Some(&event.user), &mut made);
                string(Some(&event.database), &mut made);
            }
            Action::Disconnect => item(1, &mut made),
            Action::Execute(bound) => {
                let name = format!("s{number}");
                item(3, &mut made);
                string(Some(&bound.sql.to_string()), &mut made);
                string(Some(&name), &mut made);
                made.push(b'\n');
                item(4, &mut made);
                string(Some(&name), &mut made);
                let values = values(bound);
                made.extend(u16::try_from(values.len()).expect("few").to_be_bytes());
                values.iter().for_each(|value| string(value.as_deref(), &mut made));
            }
            action => {
                item(2, &mut made);
                string(Some(&action.sql().map(ToString::to_string).unwrap_or_default()), &mut made);
            }
        }
        made.push(b'\n');
    }
    assert_same_essence("pgreplay", &expected, &made, Envelope::Pgreplay);
}

#[test]
fn log_beside_its_copy_is_read_once() {
    let log = fixture("17", "prod", "csv");
    let packed = gzip(&log);
    let rows = log.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let half: usize = rows.take(40).last().expect("a row");
    type NamedContent<'a> = (&'a str, &'a [u8]);
    let cases: [(&str, [NamedContent<'_>; 2], &str); 4] = [
        ("packed", [("a.csv", &log), ("a.csv.gz", &packed)], "a.csv"),
        ("packed-first", [("a.csv", &packed), ("b.csv", &log)], "b.csv"),
        ("packed-in-part", [("a.csv", &log), ("a.csv.gz", &packed[..packed.len() / 2])], "a.csv"),
        ("copied-in-part", [("a.csv", &log[..half + 10]), ("b.csv", &log)], "b.csv"),
    ];
    let expected = import(&log).0;
    for (name, files, kept_name) in cases {
        let folder = folder(&format!("copies-{name}"));
        let paths = files.map(|(file, content)| write(&folder, file, content));
        for paths in [vec![folder.clone()], paths.to_vec()] {
            let (events, summary) = read_with(&paths, ImportOptions::default());
            assert_eq!(events.len(), expected.len(), "{name}");
            assert_eq!(events, expected, "{name}");
            let names: Vec<_> = summary.inputs.files.iter().map(|file| &file.name).collect();
            assert!(names.len() == 1 && names[0].ends_with(kept_name), "{name}: {names:?}");
            assert!(summary.inputs.left_out[0].instead.ends_with(kept_name), "{name}");
        }
    }
    // Logs that differ after the same beginning are separate.
    let folder = folder("copies-no");
    write(&folder, "a.csv", &log);
    write(&folder, "b.csv", &[&log[..half], &log[half..].to_ascii_uppercase()].concat());
    let (_, summary) = read_with(std::slice::from_ref(&folder), ImportOptions::default());
    assert_eq!((summary.inputs.files.len(), summary.inputs.left_out.len()), (2, 0));
}
