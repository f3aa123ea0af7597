//! Envelopes of log services, and the way syslog splits messages.

use std::{collections::BTreeMap, time::UNIX_EPOCH};

use howdah_log_input::{Envelope, EnvelopeReader, InputProblem};

use super::Shape;

/// Fragments of envelopes.
pub const WORDS: &[&[u8]] = &[
    b"\n",
    b"\n\t",
    b"2026-11-20T12:43:19.577Z ",
    b"stderr F ",
    b"stdout P ",
    b"{\"log\":\"",
    b"\\n\",\"stream\":\"stderr\"}\n",
    b"{\"textPayload\":\"",
    b"{\"events\":[",
    b"\"ingestionTime\":1",
    b"{\"logger\":\"postgres\",\"record\":{",
    b"{\"type\":\"Statement\",\"item\":{\"timestamp\":\"2026-11-20T12:43:19Z\",",
    b"\"MESSAGE\":[1,2]",
    b"\"__REALTIME_TIMESTAMP\":\"1795178599577123\"",
    b"MESSAGE\n\x05\0\0\0\0\0\0\0",
    b"Nov 20 12:43:19 db postgres[7]: ",
    b"<134>1 2026-11-20T12:43:19Z db postgres 7 - - ",
    b"[3-1] ",
    b"[3-2] #011",
    b"LOG:  statement: ",
    b"\x80\0\0\0",
    b"\0\0\0\x01",
    b"\\u0000",
    b"\\ud800",
    b"}",
    b"]",
];

/// The reader has buffers of fixed size, and copies the input.
pub const MEMORY: (usize, usize) = (1 << 20, 400);

/// Short enough that mutated records exceed it.
const RECORD_BYTES_MAX: usize = 500;

/// Opens an envelope. The first byte selects the expected one; out of range, it is detected.
pub fn unwrap(input: &[u8]) -> Shape {
    let Some((first, text)) = input.split_first() else { return Shape::of(0) };
    let wrapping = Envelope::ALL.get(usize::from(*first)).copied();
    let whole = through(wrapping, text, text.len());
    let pieces = through(wrapping, text, 1 + text.len() % 13);
    assert_eq!(whole.problems, pieces.problems, "in pieces");
    let differing = whole.inside.iter().zip(&pieces.inside).position(|(one, other)| one != other);
    assert_eq!(differing, None, "in pieces");
    assert_eq!(whole.inside.len(), pieces.inside.len(), "in pieces");
    // Only escapes and the added line prefix make the output longer than the input.
    assert!(whole.inside.len() <= 1024 + 200 * text.len());
    let lines = 1 + text.iter().filter(|byte| **byte == b'\n').count() as u64;
    assert!(whole.last_line <= lines.max(text.len() as u64), "line {}", whole.last_line);
    let kinds =
        whole.problems.iter().map(|(reason, count)| (format!("{reason:?}"), (*count).min(3)));
    Shape::each(kinds).and((wrapping.map(|w| w as u8), whole.inside.len().min(20) / 4))
}

/// The output of an [`EnvelopeReader`].
struct Through {
    inside: Vec<u8>,
    /// Occurrences of each problem.
    problems: BTreeMap<InputProblem, u64>,
    last_line: u64,
}

fn through(wrapping: Option<Envelope>, text: &[u8], piece_bytes: usize) -> Through {
    let mut unwrapper = match wrapping {
        Some(wrapping) => EnvelopeReader::expecting(wrapping, RECORD_BYTES_MAX, UNIX_EPOCH),
        None => EnvelopeReader::new(RECORD_BYTES_MAX, UNIX_EPOCH),
    };
    let mut through = Through { inside: Vec::new(), problems: BTreeMap::new(), last_line: 0 };
    let mut take = |unwrapper: &mut EnvelopeReader| {
        through.inside.append(&mut unwrapper.take_log());
        for (reason, count, line) in unwrapper.take_problems() {
            *through.problems.entry(reason).or_default() += count;
            through.last_line = through.last_line.max(line);
        }
    };
    for piece in text.chunks(piece_bytes.max(1)) {
        unwrapper.feed(piece);
        take(&mut unwrapper);
    }
    unwrapper.finish();
    take(&mut unwrapper);
    through
}

/// Returns a line or two of each envelope.
pub fn unwrap_seeds() -> Vec<Vec<u8>> {
    let texts: [(u8, &[u8]); 12] = [
        (0, b"2026-11-20T12:43:19.577Z stderr P 2026-11-20 12:43:19.577 \n2026-11-20T12:43:19.577Z stderr F UTC [7] LOG:  x\n"),
        (1, b"2026-11-20T12:43:19.577Z 2026-11-20 12:43:19.577 UTC [7] LOG:  x\n\ty\n"),
        (2, b"{\"log\":\"LOG:  x\\n\",\"stream\":\"stderr\",\"time\":\"x\"}\n"),
        (2, b"[\n{\"textPayload\":\"LOG:  x\\n\\ty\",\"timestamp\":\"1\"},\n{\"jsonPayload\":{\"message\":\"x\"}}]"),
        (2, b"{\"events\":[{\"message\":\"x\",\"ingestionTime\":1}]}"),
        (2, b"{\"logger\":\"postgres\",\"msg\":\"record\",\"record\":{\"log_time\":\"x\"}}\n"),
        (3, b"Nov 20 12:43:19 db postgres[7]: [3-1] LOG:  x\nNov 20 12:43:19 db postgres[7]: [3-2] #011y\n"),
        (4, b"{\"__REALTIME_TIMESTAMP\":\"1795178599577123\",\"_PID\":\"7\",\"MESSAGE\":\"[1] LOG:  x\",\"_COMM\":\"postgres\"}\n"),
        (5, b"__REALTIME_TIMESTAMP=1795178599577123\n_COMM=postgres\nMESSAGE\n\x0a\0\0\0\0\0\0\0[1] LOG:  x\n\n"),
        (6, b"{\"type\":\"BoundExecute\",\"item\":{\"timestamp\":\"2026-11-20T12:43:19Z\",\"session_id\":\"5.7\",\"user\":\"al\",\"database\":\"shop\",\"query\":\"x\",\"parameters\":[\"a\",null]}}\n"),
        (7, b"\x32\x90\0\0\0\0\0\x01\0\0\0\x05\0\0\0\x07\x02\0\0\0\x08select 1\n"),
        (255, b"2026-11-20T12:43:19.577Z stderr F {\"logger\":\"postgres\",\"record\":{\"a\":\"b\"}}\n"),
    ];
    texts.into_iter().map(|(first, text)| [&[first], text].concat()).collect()
}

/// Fragments of messages that syslog splits.
pub const SYSLOG_WORDS: &[&[u8]] =
    &[b" ", b"\n", b"\n\n", b"\r", b"\xc3\xa9", b"LOG:  ", b"DETAIL:  ", b"[3-2] ", b": ", b"x"];

/// Splits a statement as the server does for syslog, and checks that it is reassembled.
pub fn syslog(input: &[u8]) -> Shape {
    // Tabs, and `#` followed by digits, are ambiguous in rsyslog's files.
    let text: Vec<u8> = input.iter().copied().filter(|byte| !b"\t#\0".contains(byte)).collect();
    let text = text.repeat(1 + 4000 / (text.len() + 1));
    let mut message = b"LOG:  statement: begin ".to_vec();
    for byte in text.trim_ascii_end() {
        message.push(*byte);
        message.extend((*byte == b'\n').then_some(b'\t'));
    }
    message.extend_from_slice(b" end");
    let mut log = Vec::new();
    let pieces = pieces(&message);
    for (number, piece) in (1..).zip(&pieces) {
        log.extend(format!("2026-11-20T12:43:19.577Z db postgres[7]: [3-{number}] ").bytes());
        for byte in *piece {
            match byte {
                0..0x20 | 0x7f => log.extend(format!("#{byte:03o}").bytes()),
                _ => log.push(*byte),
            }
        }
        log.push(b'\n');
    }
    let mut unwrapper = EnvelopeReader::expecting(Envelope::Syslog, 1 << 20, UNIX_EPOCH);
    unwrapper.feed(&log);
    unwrapper.finish();
    let got = unwrapper.take_log();
    let expected = [b"2026-11-20 12:43:19.577 UTC [7] ", message.as_slice(), b"\n"].concat();
    let at = got.iter().zip(&expected).position(|(one, other)| one != other);
    assert_eq!(at, None, "piece of {} bytes", pieces[0].len());
    assert_eq!(got.len(), expected.len());
    assert_eq!(unwrapper.take_problems().count(), 0);
    Shape::each([pieces.len(), pieces[0].len() / 100])
}

/// Splits a message like `write_syslog` in `elog.c`.
fn pieces(message: &[u8]) -> Vec<&[u8]> {
    const LIMIT: usize = 900;
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let mut pieces = Vec::new();
    let mut line = message;
    while let Some(first) = line.first() {
        if *first == b'\n' {
            line = &line[1..];
            continue;
        }
        let newline = line.iter().position(|byte| *byte == b'\n').unwrap_or(line.len());
        let mut len = newline.min(LIMIT);
        if line.get(len).is_some_and(|byte| !is_space(byte)) {
            len = line[..len].iter().rposition(is_space).filter(|at| *at > 0).unwrap_or(len);
        }
        let (piece, rest) = line.split_at(len);
        pieces.push(piece);
        line = rest;
    }
    pieces
}
