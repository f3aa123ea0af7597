//! Server logs in the three formats, format detection, and line prefixes.

use std::{
    iter::{repeat, repeat_with},
    mem::discriminant,
};

use howdah_logs::{
    Emit, ImportError, ImportOptions, ImportSummary, Importer, LogSeverity, ProblemReason,
    ServerLogFormat,
};
use howdah_traffic::{Event, Kind};

use super::{Seeds, Shape};
use crate::random::Random;

/// Fragments of records.
pub const WORDS: &[&[u8]] = &[
    b"\n",
    b"\n\t",
    b"\r\n",
    b"\"\"",
    b"\",\"",
    b"\\u0000",
    b"\\u001f",
    b"2026-11-20 12:00:00.000 UTC",
    b"2026-11-20 12:00:00.000 CEST",
    b"9999-12-31 23:59:60.999 +15",
    b"1795178602.248",
    b"6b004067.7",
    b"[unknown]",
    b"LOG:  ",
    b"LOG:  00000: ",
    b"ERROR:  ",
    b"FATAL:  ",
    b"DETAIL:  ",
    b"STATEMENT:  ",
    b"CONTEXT:  ",
    b"LOCATION:  ",
    b"statement: ",
    b"duration: 1.234 ms",
    b"  ",
    b"parse <unnamed>: ",
    b"bind s/p: ",
    b"execute s/p: ",
    b"execute fetch from s/p: ",
    b"fastpath function call: ",
    b"parameters: $1 = 'a', $2 = NULL",
    b"Parameters: $1 = 'a...'",
    b"connection received: host=[local]",
    b"connection authorized: user=al database=shop application_name=psql",
    b"disconnection: session time: 0:00:01.200 user=al database=shop host=[local]",
    b"canceling statement due to user request",
    b"\"message\":\"statement: select 1\"",
    b"\"error_severity\":\"LOG\"",
    b"\"timestamp\":",
    b"{\"",
    b"\"}",
    b"idle in transaction",
];

/// Fragments of prefixes.
pub const PREFIX_WORDS: &[&[u8]] = &[
    b"%a",
    b"%u",
    b"%d",
    b"%r",
    b"%h",
    b"%L",
    b"%b",
    b"%p",
    b"%P",
    b"%t",
    b"%m",
    b"%n",
    b"%i",
    b"%e",
    b"%c",
    b"%l",
    b"%s",
    b"%v",
    b"%x",
    b"%Q",
    b"%q",
    b"%%",
    b"%-10u",
    b"%12d",
    b"%5p",
    b" ",
    b"[",
    b"] ",
    b"|",
    b":",
    b"@",
    b"%m [%p] %q%u@%d ",
];

/// The importer has buffers of fixed size, and a table of prefix candidates.
pub const MEMORY: (usize, usize) = (4 << 20, 400);

/// Short enough that mutated records exceed it.
const RECORD_BYTES_MAX: usize = 1500;

/// Imports a stderr log with the prefix of the seeds.
pub fn stderr(log: &[u8]) -> Shape {
    let prefix = Some("%m [%p] %q%u@%d ".to_owned());
    holds(log, &ImportOptions { format: Some(ServerLogFormat::Stderr), prefix, ..limited() })
}

/// Imports a csvlog.
pub fn csv(log: &[u8]) -> Shape {
    holds(log, &ImportOptions { format: Some(ServerLogFormat::Csv), ..limited() })
}

/// Imports a jsonlog.
pub fn json(log: &[u8]) -> Shape {
    holds(log, &ImportOptions { format: Some(ServerLogFormat::Json), ..limited() })
}

/// Imports a log whose format and prefix are detected.
pub fn any(log: &[u8]) -> Shape {
    holds(log, &limited())
}

/// Bytes in front of the log that select format, prefix and chunk sizes.
const CUTS_BYTES: usize = 3;

/// Less than any record has, so that the fast framing of whole records never applies.
const UNFRAMED_BYTES: usize = 16;

/// Checks that a log in chunks of any size gives the same events as in chunks too small for the
/// fast path.
///
/// The first byte selects what is known about the log; the next two seed the chunk sizes.
pub fn frames(input: &[u8]) -> Shape {
    let Some((&[known, a, b], log)) = input.split_first_chunk::<CUTS_BYTES>() else {
        return Shape::of("too short");
    };
    let (format, prefix) = match known % 16 {
        0..=5 => (Some(ServerLogFormat::Stderr), Some("%m [%p] %q%u@%d ".to_owned())),
        6..=10 => (Some(ServerLogFormat::Csv), None),
        11..=14 => (Some(ServerLogFormat::Json), None),
        // Rare, because detecting a prefix takes as long as all the rest.
        _ => (None, None),
    };
    let emit = if known & 16 == 0 { Emit::End } else { Emit::Start };
    let options = ImportOptions { format, prefix, emit, ..limited() };
    let read = import(log, repeat(UNFRAMED_BYTES), &options, |_| {});
    let pieces = import(log, cuts(u16::from_be_bytes([a, b])), &options, |_| {});
    same(&read, &pieces);
    shape(&read).and(known % 32)
}

/// An endless sequence of chunk sizes, from a few bytes to many records.
fn cuts(seed: u16) -> impl Iterator<Item = usize> {
    let mut random = Random::new(u64::from(seed));
    repeat_with(move || {
        let most = 1 << random.below(14);
        1 + random.below(most)
    })
}

/// Returns the logs of all formats, each with two ways to split it.
pub fn frames_seeds() -> Vec<Vec<u8>> {
    let of = |(known, name): (u8, &'static str)| {
        let logs = Seeds::Folder(name).inputs();
        let cut = move |log: Vec<u8>| {
            [[known, 0, 1], [known + 16, 1, 0]].map(|first| [&first[..], &log, &log].concat())
        };
        logs.into_iter().flat_map(cut)
    };
    [(0, "stderr"), (6, "csv"), (11, "json"), (15, "stderr")].into_iter().flat_map(of).collect()
}

/// Returns the logs of all formats.
pub fn all_seeds() -> Vec<Vec<u8>> {
    ["stderr", "csv", "json"].into_iter().flat_map(|name| Seeds::Folder(name).inputs()).collect()
}

fn limited() -> ImportOptions {
    ImportOptions { max_record_bytes: RECORD_BYTES_MAX, ..ImportOptions::default() }
}

type Imported = Result<(Vec<Event>, ImportSummary), ImportError>;

/// Imports a log in chunks of the given sizes, calling `after` after each.
fn import(
    log: &[u8],
    lengths: impl IntoIterator<Item = usize>,
    options: &ImportOptions,
    mut after: impl FnMut(&mut Importer),
) -> Imported {
    let mut importer = Importer::new(options.clone()).expect("options of ours");
    importer.start_file("fuzz.log");
    let mut events = Vec::new();
    let mut rest = log;
    for length in lengths {
        if rest.is_empty() {
            break;
        }
        let (piece, more) = rest.split_at(length.clamp(1, rest.len()));
        rest = more;
        importer.feed(piece)?;
        after(&mut importer);
        events.extend(std::iter::from_fn(|| importer.poll_event()));
    }
    importer.finish()?;
    events.extend(std::iter::from_fn(|| importer.poll_event()));
    Ok((events, importer.summary().clone()))
}

/// Checks the properties that hold for any log.
fn holds(log: &[u8], options: &ImportOptions) -> Shape {
    let whole = import(log, [log.len()], options, |_| {});
    same(&whole, &import(log, repeat(1 + log.len() % 89), options, |_| {}));
    closes(log, &whole);
    // `idle` may end a record early, which changes the events, but the counts must still add up.
    closes(log, &import(log, repeat(log.len() / 3 + 1), options, Importer::idle));
    let starts = ImportOptions { emit: Emit::Start, ..options.clone() };
    closes(log, &import(log, [log.len()], &starts, |_| {}));
    shape(&whole)
}

/// Checks that two ways of feeding a log give the same result.
fn same(one: &Imported, other: &Imported) {
    match (one, other) {
        (Ok((events, summary)), Ok((events_again, summary_again))) => {
            let differing = events.iter().zip(events_again).find(|(one, other)| one != other);
            assert_eq!(differing, None, "in pieces");
            assert_eq!(events.len(), events_again.len(), "events, in pieces");
            assert_eq!(summary.problems, summary_again.problems, "problems, in pieces");
            assert_eq!(summary.facts, summary_again.facts, "facts, in pieces");
        }
        (one, other) => assert_eq!(one.as_ref().err(), other.as_ref().err(), "in pieces"),
    }
}

/// Checks that an import's counts add up, and that its positions are in the log.
fn closes(log: &[u8], imported: &Imported) {
    let lines = 1 + log.iter().filter(|byte| **byte == b'\n').count() as u64;
    let Ok((events, summary)) = imported else { return };
    assert_eq!(summary.bytes, log.len() as u64);
    assert_eq!(summary.events_total(), events.len() as u64);
    for kind in Kind::ALL {
        let count = events.iter().filter(|event| event.action.kind() == *kind).count();
        assert_eq!(summary.events(*kind), count as u64, "{kind}");
    }
    let records: u64 =
        LogSeverity::ALL.iter().map(|severity| summary.records_with(*severity)).sum();
    assert_eq!(summary.records, records);
    assert!(summary.records <= lines, "{} records of {lines} lines", summary.records);
    for problem in &summary.problems {
        assert!((1..=problem.count).contains(&(problem.samples.len() as u64)));
        for sample in &problem.samples {
            assert_eq!(sample.file, "fuzz.log");
            assert!((1..=lines).contains(&sample.line), "line {} of {lines}", sample.line);
        }
    }
    for event in events {
        assert!(event.action.sql().is_none_or(|sql| sql.len() <= log.len()));
        assert!(!event.session.is_empty(), "{event:?}");
    }
}

fn shape(imported: &Imported) -> Shape {
    let (events, summary) = match imported {
        Err(error) => return Shape::of(discriminant(error)),
        Ok(imported) => imported,
    };
    let few = |count: u64| count.min(2);
    let reasons =
        ProblemReason::ALL.iter().map(|reason| (*reason, few(summary.problem_count(*reason))));
    let neighbours = events.windows(2).map(|pair| {
        let told = |event: &Event| {
            let timed = event.outcome.duration_us.is_some();
            (event.action.kind(), event.source, event.outcome.failed(), timed)
        };
        (told(&pair[0]), told(&pair[1]), pair[0].session == pair[1].session)
    });
    let facts = &summary.facts;
    Shape::each(reasons.map(Ok).chain(neighbours.map(Err)))
        .and((few(facts.truncated_values), few(facts.lost_lines), few(facts.joined_in_transaction)))
        .and((few(facts.errors_without_statement), few(facts.bare_durations)))
}

/// Checks that a valid prefix parses the line that a server prints with it.
pub fn prefix(prefix: &[u8]) -> Shape {
    let Ok(text) = std::str::from_utf8(prefix) else { return Shape::of("not text") };
    let options = ImportOptions {
        prefix: Some(text.to_owned()),
        format: Some(ServerLogFormat::Stderr),
        ..ImportOptions::default()
    };
    if let Err(error) = Importer::new(options.clone()) {
        return Shape::of(discriminant(&error));
    }
    let printed = printed(prefix);
    let mut log = printed.bytes.clone();
    log.extend_from_slice(b"LOG:  statement: select 1\n");
    let imported = import(&log, [log.len()], &options, |_| {});
    closes(&log, &imported);
    if printed.is_readable {
        let events = imported.map(|(events, _)| events).expect("a line of that prefix");
        let sql: Vec<_> = events.iter().filter_map(|event| event.action.sql()).collect();
        assert_eq!(sql.len(), 1, "{events:?}");
        assert_eq!(sql[0].as_bytes(), b"select 1");
    }
    let mut letters: Vec<_> =
        prefix.windows(2).filter(|pair| pair[0] == b'%').map(|pair| pair[1]).collect();
    letters.truncate(3);
    Shape::of((letters, printed.is_readable))
}

/// A line prefix as printed by a server.
struct Printed {
    bytes: Vec<u8>,
    /// Whether the prefix is unambiguous: no line breaks or labels, no field that runs into the
    /// next one, no padding beyond the widths tried, and few names.
    is_readable: bool,
}

/// Prints a prefix like `log_status_format` in `elog.c`.
fn printed(prefix: &[u8]) -> Printed {
    let mut out = Vec::new();
    let mut bytes = prefix.iter().copied().peekable();
    let (mut widest, mut names, mut times) = (0, 0, 0);
    let (mut runs_on, mut last) = (false, None);
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            runs_on |= is_more_of(last.take(), byte);
            out.push(byte);
            continue;
        }
        if bytes.next_if_eq(&b'%').is_some() {
            out.push(b'%');
            continue;
        }
        let left = bytes.next_if_eq(&b'-').is_some();
        let mut width = 0_usize;
        while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
            width = (width * 10 + usize::from(digit - b'0')).min(10_000);
        }
        widest = widest.max(width);
        let Some(letter) = bytes.next() else { break };
        let Some(value) = value(letter) else { continue };
        names += usize::from(b"audrhLbi".contains(&letter));
        // `%b` may contain a space, so no other name may follow; it counts twice.
        names += usize::from(letter == b'b');
        times += usize::from(b"tmns".contains(&letter));
        let padding = vec![b' '; width.saturating_sub(value.len())];
        let (before, after) = if left { (vec![], padding) } else { (padding, vec![]) };
        let text = [before, value.to_vec(), after].concat();
        if let Some(first) = text.first() {
            runs_on |= is_more_of(last, *first);
            last = text.last().filter(|byte| **byte != b' ').map(|_| letter);
        }
        out.extend(text);
    }
    let has_label = out.windows(3).any(|part| part == b":  ");
    // A line that begins with a tab continues the previous record.
    let has_break =
        out.starts_with(b"\t") || out.iter().any(|byte| matches!(byte, b'\n' | b'\r' | 0));
    // The severity label follows immediately.
    runs_on |= last.is_some();
    let is_plain = !has_label && !has_break && !runs_on;
    Printed { bytes: out, is_readable: is_plain && widest < 100 && names <= 2 && times <= 2 }
}

/// Whether a byte could belong to the preceding field.
fn is_more_of(field: Option<u8>, byte: u8) -> bool {
    let more: &[u8] = match field {
        None => return false,
        // Characters of time zones and addresses that are not alphanumeric.
        Some(b't' | b'm' | b's') => b"+-:",
        Some(b'h' | b'r' | b'L') => b".:-_%(",
        Some(_) => b"",
    };
    byte.is_ascii_alphanumeric() || more.contains(&byte)
}

fn value(letter: u8) -> Option<&'static [u8]> {
    Some(match letter {
        b'a' => b"psql",
        b'u' => b"al",
        b'd' => b"shop",
        b'r' => b"10.0.0.7(50412)",
        b'h' => b"10.0.0.7",
        b'L' => b"10.0.0.1",
        b'b' => b"client backend",
        b'p' => b"4711",
        // A parallel worker prints its leader here, and its records are not client actions.
        b'P' => b"",
        b't' | b's' => b"2026-11-20 12:43:19 UTC",
        b'm' => b"2026-11-20 12:43:19.577 UTC",
        b'n' => b"1795178602.248",
        b'i' => b"SELECT",
        b'e' => b"00000",
        b'c' => b"6b004067.1267",
        b'l' => b"3",
        b'v' => b"3/4",
        b'x' => b"0",
        b'Q' => b"-77",
        _ => return None,
    })
}
