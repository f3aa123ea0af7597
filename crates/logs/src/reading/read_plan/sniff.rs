//! Examines the beginning of a file: whether it is a log, in which format, and its first time.

use std::{io, path::Path};

use howdah_log_input::{LineLabel, LogInput, ReadResult, epoch_len, stamp_len};
use howdah_traffic::Timestamp;

use crate::{
    clock::{LogClock, read_epoch},
    formats::csv::is_row_start,
    options::ImportOptions,
    server_log_format::ServerLogFormat,
};

/// The result of examining the beginning of a file.
#[derive(Debug, Default)]
pub(super) struct FileSniff {
    pub(super) format: Option<ServerLogFormat>,
    /// The first time in the log; `None` if there is none at its beginning.
    pub(super) first: Option<Timestamp>,
    pub(super) is_log: bool,
    pub(super) is_empty: bool,
    pub(super) is_packed: bool,
}

/// Number of unpacked bytes that are examined.
const SAMPLE_BYTES: usize = 64 << 10;

/// Number of bytes at the front of a line that are searched for a time, which a name and an address
/// may precede.
const TIME_WINDOW_BYTES: usize = 200;

impl FileSniff {
    /// Examines the beginning of a file, without its compression and envelopes.
    pub(super) fn from_path(path: &Path, options: &ImportOptions) -> io::Result<Self> {
        let mut input = LogInput::open(path, options.max_record_bytes)?;
        let mut sample = Vec::new();
        while sample.len() < SAMPLE_BYTES {
            match input.read()? {
                ReadResult::Bytes => sample.extend_from_slice(input.bytes()),
                ReadResult::Idle => {}
                ReadResult::End => break,
            }
        }
        sample.truncate(SAMPLE_BYTES);
        let is_packed = input.compression().is_some();
        Ok(Self { is_packed, ..Self::from_sample(&sample, options) })
    }

    fn from_sample(sample: &[u8], options: &ImportOptions) -> Self {
        let mut sniff = Self { is_empty: sample.trim_ascii().is_empty(), ..Self::default() };
        let Ok(mut clock) = LogClock::new(options.timezone.as_deref()) else { return sniff };
        for line in sample.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"\t")) {
            sniff.first = sniff.first.or_else(|| first_time(line, &mut clock));
            sniff.format = sniff.format.or_else(|| format_from_line(line));
            if sniff.first.is_some() && sniff.format.is_some() {
                sniff.is_log = true;
                break;
            }
        }
        sniff
    }
}

/// Returns the format of a line, if it looks like a record.
fn format_from_line(line: &[u8]) -> Option<ServerLogFormat> {
    if is_row_start(line, true) == Some(true) {
        return Some(ServerLogFormat::Csv);
    }
    if line.starts_with(b"{") && memchr::memmem::find(line, b"\"error_severity\"").is_some() {
        return Some(ServerLogFormat::Json);
    }
    let head = &line[..line.len().min(512)];
    let is_label = |colon: usize| {
        let is_letter = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let start = head[..colon].iter().rposition(|byte| !is_letter(byte)).map_or(0, |at| at + 1);
        LineLabel::parse(&head[start..]).is_some()
    };
    memchr::memmem::find_iter(head, b":  ").any(is_label).then_some(ServerLogFormat::Stderr)
}

fn first_time(line: &[u8], clock: &mut LogClock) -> Option<Timestamp> {
    (0..line.len().min(TIME_WINDOW_BYTES)).filter(|at| line[*at].is_ascii_digit()).find_map(|at| {
        let rest = &line[at..];
        let stamp = stamp_len(rest, true).or_else(|| stamp_len(rest, false));
        match (stamp, epoch_len(rest)) {
            (Some(len), _) => clock.read(&rest[..len]),
            (None, Some(len)) => read_epoch(&rest[..len]),
            (None, None) => None,
        }
    })
}

#[test]
fn times_and_formats_of_lines_are_detected() {
    let time = Timestamp::from_micros(1_795_178_599_577_000);
    for (text, format) in [
        ("junk\n2026-11-20 12:43:19.577 UTC [7] LOG:  x\n", Some(ServerLogFormat::Stderr)),
        ("al 1795178599.577 LOG:  x\n", Some(ServerLogFormat::Stderr)),
        ("2026-11-20 12:43:19.577 UTC,\"al\",\"shop\",7,\n", Some(ServerLogFormat::Csv)),
        (
            "{\"timestamp\":\"2026-11-20 12:43:19.577 UTC\",\"error_severity\":\"LOG\"}",
            Some(ServerLogFormat::Json),
        ),
        ("2026-11-20 12:43:19.577 UTC hello\n", None),
    ] {
        let sniff = FileSniff::from_sample(text.as_bytes(), &ImportOptions::default());
        assert_eq!((sniff.first, sniff.format), (Some(time), format), "{text}");
        assert_eq!(sniff.is_log, format.is_some());
    }
    assert!(FileSniff::from_sample(b" \n", &ImportOptions::default()).is_empty);
}
