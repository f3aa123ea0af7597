//! Logs that arrive in chunks, in several files, or while they are being written.

use std::collections::BTreeMap;

use howdah_logs::{Emit, ImportOptions, Importer};
use howdah_traffic::{Action, Event, Timestamp};
use proptest::{collection::vec, prelude::*, sample::Index};

use crate::support::{
    FORMATS, MAJORS, SETTINGS, descriptions, fixture, import, import_with, log, try_import,
};

#[test]
fn result_does_not_depend_on_chunks() {
    for setting in SETTINGS {
        for format in FORMATS {
            let log = fixture("17", setting, format);
            let whole = try_import(&log, ImportOptions::default(), []).expect("a log");
            let bytes = try_import(&log, ImportOptions::default(), 1..log.len()).expect("a log");
            assert_eq!(whole.0, bytes.0, "{setting}.{format}");
            assert_eq!(whole.1.facts, bytes.1.facts, "{setting}.{format}");
        }
    }
}

/// Ways to damage a log.
#[derive(Clone, Debug)]
enum LogDamage {
    Cut(Index),
    Remove(Index, usize),
    Insert(Index, Vec<u8>),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = LogDamage> {
    let junk = prop_oneof![
        vec(any::<u8>(), 1..40),
        vec(prop::sample::select(b"\n\t\"',{}:\\ []".to_vec()), 1..10),
    ];
    prop_oneof![
        any::<Index>().prop_map(LogDamage::Cut),
        (any::<Index>(), 1..500_usize).prop_map(|(at, len)| LogDamage::Remove(at, len)),
        (any::<Index>(), junk).prop_map(|(at, bytes)| LogDamage::Insert(at, bytes)),
        (any::<Index>(), 1..500_usize).prop_map(|(at, len)| LogDamage::Repeat(at, len)),
    ]
}

fn apply(log: &mut Vec<u8>, damage: &LogDamage) {
    if log.is_empty() {
        return;
    }
    match damage {
        LogDamage::Cut(at) => log.truncate(at.index(log.len())),
        LogDamage::Remove(at, len) => {
            let from = at.index(log.len());
            log.drain(from..(from + len).min(log.len()));
        }
        LogDamage::Insert(at, bytes) => {
            let at = at.index(log.len());
            log.splice(at..at, bytes.iter().copied());
        }
        LogDamage::Repeat(at, len) => {
            let from = at.index(log.len());
            let again = log[from..(from + len).min(log.len())].to_vec();
            log.splice(from..from, again);
        }
    }
}

fn any_fixture() -> impl Strategy<Value = Vec<u8>> {
    (
        prop::sample::select(&MAJORS[..]),
        prop::sample::select(&SETTINGS[..]),
        prop::sample::select(&FORMATS[..]),
    )
        .prop_map(|(major, setting, format)| fixture(major, setting, format))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// However a log is damaged and chunked: no panic, and the same events, facts and problems.
    #[test]
    fn damaged_log_does_not_depend_on_chunks(
        mut log in any_fixture(),
        damages in vec(damage(), 0..8),
        cuts in vec(any::<Index>(), 0..40),
    ) {
        for damage in &damages {
            apply(&mut log, damage);
        }
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(log.len() + 1)).collect();
        cuts.sort_unstable();
        let whole = try_import(&log, ImportOptions::default(), []);
        let chunks = try_import(&log, ImportOptions::default(), cuts);
        match (whole, chunks) {
            (Ok(whole), Ok(chunks)) => {
                prop_assert_eq!(whole.0, chunks.0);
                prop_assert_eq!(whole.1.facts, chunks.1.facts);
                prop_assert_eq!(whole.1.problems, chunks.1.problems);
            }
            (whole, chunks) => prop_assert_eq!(whole.map(|_| ()), chunks.map(|_| ())),
        }
    }

    /// Bytes that are not a log.
    #[test]
    fn arbitrary_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..4000), prefix in "(%-?[0-9]{0,3}[a-zA-Z%][^%]{0,3}){0,6}%m.{0,3}") {
        let _ = try_import(&bytes, ImportOptions::default(), []);
        if let Ok(mut importer) = Importer::new(ImportOptions { prefix: Some(prefix), ..ImportOptions::default() }) {
            let _ = importer.feed(&bytes);
            importer.idle();
            let _ = importer.finish();
        }
    }

    /// Damage to one record affects few others.
    #[test]
    fn damage_affects_few_records(
        setting in prop::sample::select(&SETTINGS[..]),
        format in prop::sample::select(&FORMATS[..]),
        damage in (any::<Index>(), 1..100_usize).prop_map(|(at, len)| LogDamage::Remove(at, len)),
    ) {
        let mut log = fixture("17", setting, format);
        let (before, before_summary) = import(&log);
        apply(&mut log, &damage);
        // A damaged record may match no prefix, so that none is guessed with certainty.
        let prefix = before_summary.prefix.map(|prefix| prefix.text);
        let (after, _) = import_with(&log, ImportOptions { prefix, ..ImportOptions::default() });
        prop_assert!(after.len() + 4 >= before.len(), "{} of {}", after.len(), before.len());
    }
}

/// Actions by session, in order.
fn by_session(events: &[Event]) -> BTreeMap<String, Vec<(Timestamp, Action)>> {
    let mut sessions: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for event in events {
        sessions
            .entry(event.session.to_string())
            .or_default()
            .push((event.time, event.action.clone()));
    }
    sessions
}

#[test]
fn both_emit_modes_give_the_same_actions() {
    for major in MAJORS {
        for setting in SETTINGS {
            for format in FORMATS {
                let log = fixture(major, setting, format);
                let start = ImportOptions { emit: Emit::Start, ..ImportOptions::default() };
                let (started, start_summary) = import_with(&log, start);
                let (ended, end_summary) = import(&log);
                assert_eq!(by_session(&started), by_session(&ended), "{major} {setting} {format}");
                assert_eq!(start_summary.facts, end_summary.facts);
                assert_eq!(start_summary.events_total(), end_summary.events_total());
                assert_eq!(ended.len() as u64, end_summary.events_total());
            }
        }
    }
}

fn poll_all(importer: &mut Importer) -> Vec<String> {
    let events: Vec<_> = std::iter::from_fn(|| importer.poll_event()).collect();
    descriptions(&events)
}

#[test]
fn statement_is_emitted_before_its_end_is_logged() {
    let options = ImportOptions { emit: Emit::Start, ..ImportOptions::default() };
    let mut importer = Importer::new(options).expect("options");
    let lines = log(&[
        "LOG:  execute <unnamed>: select $1",
        "DETAIL:  Parameters: $1 = '1'",
        "LOG:  duration: 5.000 ms",
    ]);
    let mut lines = lines.split_inclusive('\n');
    let mut next = || lines.next().expect("a line").as_bytes();
    importer.start_file("pipe");
    importer.feed(next()).expect("a log");
    importer.feed(next()).expect("a log");
    assert_eq!(poll_all(&mut importer), [""; 0]);
    importer.idle();
    assert_eq!(poll_all(&mut importer), ["connect", "execute [/] select $1 ('1')"]);
    assert_eq!(
        importer.watermark().map(|time| time.to_string()),
        Some("2026-11-20T12:00:00.000000Z".to_owned())
    );
    importer.feed(next()).expect("a log");
    importer.finish().expect("a log");
    assert_eq!(poll_all(&mut importer), [""; 0]);
}

#[test]
fn idle_does_not_release_incomplete_line() {
    let prefix = Some("%m [%p] %u@%d ".to_owned());
    let options = ImportOptions { emit: Emit::Start, prefix, ..ImportOptions::default() };
    let mut importer = Importer::new(options).expect("options");
    let text = log(&["LOG:  statement: select 1", "LOG:  statement: select 2"]);
    let (first, second) = text.split_at(text.len() - 5);
    importer.start_file("pipe");
    importer.feed(first.as_bytes()).expect("a log");
    importer.idle();
    // The incomplete line may be a DETAIL of the previous statement.
    assert_eq!(poll_all(&mut importer), [""; 0]);
    importer.feed(second.as_bytes()).expect("a log");
    importer.idle();
    assert_eq!(poll_all(&mut importer), ["connect", "simple select 1", "simple select 2"]);
}

#[test]
fn guessed_prefix_is_widened_by_later_lines() {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    importer.start_file("pipe");
    importer
        .feed(b"2026-11-20 12:00:00.000 UTC [1] LOG:  starting PostgreSQL 17.1\n")
        .expect("a log");
    importer.idle();
    assert_eq!(
        importer.summary().prefix.as_ref().map(|prefix| prefix.text.as_str()),
        Some("%m [%p] ")
    );
    importer
        .feed(
            b"2026-11-20 12:00:01.000 UTC [7] al@shop/my app LOG:  statement: select 1\n\
              2026-11-20 12:00:01.500 UTC [7] al@shop/my app LOG:  duration: 500.000 ms\n",
        )
        .expect("a log");
    importer.finish().expect("a log");
    assert_eq!(poll_all(&mut importer), ["connect", "simple select 1"]);
    assert_eq!(importer.summary().rejected(), 0);
    let prefix = importer.summary().prefix.as_ref().map(|prefix| prefix.text.as_str());
    assert_eq!(prefix, Some("%m [%p] %q%u@%d/%a "));
}

#[test]
fn sessions_continue_across_rotated_files() {
    let text = log(&[
        "LOG:  statement: select 1",
        "LOG:  duration: 5.000 ms",
        "LOG:  statement: select 2",
    ]);
    let cut = text.find('\n').expect("a line") + 1;
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    for (name, part) in [("a.log", &text[..cut]), ("b.log", &text[cut..])] {
        importer.start_file(name);
        importer.feed(part.as_bytes()).expect("a log");
        importer.finish_file().expect("a log");
    }
    importer.finish().expect("a log");
    let events: Vec<_> = std::iter::from_fn(|| importer.poll_event()).collect();
    assert_eq!(descriptions(&events), ["connect", "simple select 1", "simple select 2"]);
    assert_eq!(events[1].outcome.duration_us, Some(5000));
    assert_eq!((importer.summary().files, importer.summary().facts.sessions), (2, 1));
}

#[test]
fn format_may_change_between_files() {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    for format in FORMATS {
        importer.start_file(format);
        importer.feed(&fixture("17", "prod", format)).expect("a log");
        importer.finish_file().expect("a log");
    }
    importer.finish().expect("a log");
    let (one, _) = import(fixture("17", "prod", "csv"));
    assert_eq!(importer.summary().events_total(), 3 * one.len() as u64);
}

#[test]
fn short_second_file_is_read_like_the_first() {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    importer.start_file("a.log");
    importer.feed(log(&["LOG:  statement: select 1"]).as_bytes()).expect("a log");
    importer.start_file("b.log");
    importer.feed(b"something else altogether\n").expect("a log");
    importer.finish().expect("the first file's prefix goes on");
    assert_eq!(importer.summary().rejected(), 1);
    assert_eq!(importer.summary().problems[0].samples[0].file, "b.log");
}

#[test]
fn error_of_previous_file_survives_an_idle_time() {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    importer.start_file("a.log");
    importer.feed(b"something else altogether\n").expect("too little to detect a format");
    importer.start_file("b.log");
    importer.idle();
    let line = log(&["LOG:  statement: select 1"]);
    let error = importer.feed(line.as_bytes()).expect_err("the first file is no log");
    assert!(error.to_string().contains("a.log"), "{error}");
}

/// Regression: a chunk that ended with a record left its lines uncounted.
#[test]
fn junk_after_any_chunk_has_its_own_line_number() {
    for format in FORMATS {
        let mut log = fixture("17", "prod", format);
        log.extend_from_slice(b"what is this\n");
        let lines = log.iter().filter(|byte| **byte == b'\n').count() as u64;
        let newlines: Vec<_> = (1..log.len()).filter(|at| log[at - 1] == b'\n').collect();
        for cuts in newlines.chunks(2).skip(40) {
            let (_, summary) =
                try_import(&log, ImportOptions::default(), cuts.iter().copied()).expect("a log");
            let line = summary.problems.first().map(|problem| problem.samples[0].line);
            assert_eq!(line, Some(lines), "{format}, cut at {cuts:?}");
        }
    }
}

#[test]
fn last_row_after_overlong_row_does_not_depend_on_chunks() {
    let row = |second: u32, more: &str| {
        format!(
            "2026-11-20 12:43:{second:02}.100 UTC,\"al\",\"shop\",7,\"[local]\",6b004067.7,{second},\
             \"idle\",2026-11-20 12:43:19 UTC,3/4,0,LOG,00000,\"statement: select {second}\",,,,,,,,,\
             \"psql\",\"client backend\",,0{more}\n"
        )
    };
    // Part of the second row is duplicated.
    let log = [row(20, ""), row(21, ",,,"), row(22, ""), row(23, "")].concat();
    let log = log.trim_end();
    let first_row = log.find('\n').expect("a row") + 10;
    let (whole, _) = try_import(log.as_bytes(), ImportOptions::default(), []).expect("a log");
    let (chunks, _) =
        try_import(log.as_bytes(), ImportOptions::default(), [first_row]).expect("a log");
    assert_eq!(descriptions(&whole), descriptions(&chunks));
    assert!(
        descriptions(&whole).contains(&"simple select 23".to_owned()),
        "{:?}",
        descriptions(&whole)
    );
}
