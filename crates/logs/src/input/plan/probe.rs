//! A look at the beginning of a file: is it a log, in which format, and from when?

use std::{io, path::Path};

use howdah_traffic::Timestamp;

use crate::{
    clock::{Clock, read_epoch, stamp_len},
    csv::row_begins,
    input::{Got, Input, stamp::epoch_len},
    options::{Format, Options},
    record::Label,
};

/// What the beginning of a file shows.
#[derive(Debug, Default)]
pub(super) struct Probe {
    pub(super) format: Option<Format>,
    /// The first time in it.
    pub(super) first: Option<Timestamp>,
    pub(super) is_log: bool,
    pub(super) is_empty: bool,
    pub(super) is_packed: bool,
}

/// Unpacked bytes that are looked at.
const SAMPLE_BYTES: usize = 64 << 10;

/// Farthest that a time stands from the front of a line: behind a name and an address, say.
const TIME_WINDOW_BYTES: usize = 200;

impl Probe {
    /// Looks at a file.
    pub(super) fn of(path: &Path, options: &Options) -> io::Result<Self> {
        let mut input = Input::open(path, options.max_record_bytes)?;
        let mut sample = Vec::new();
        while sample.len() < SAMPLE_BYTES {
            match input.read()? {
                Got::Bytes => sample.extend_from_slice(input.bytes()),
                Got::Silence => {}
                Got::End => break,
            }
        }
        sample.truncate(SAMPLE_BYTES);
        let is_packed = input.compression().is_some();
        Ok(Self { is_packed, ..Self::of_text(&sample, options) })
    }

    fn of_text(sample: &[u8], options: &Options) -> Self {
        let mut probe = Self { is_empty: sample.trim_ascii().is_empty(), ..Self::default() };
        let Ok(mut clock) = Clock::new(options.timezone.as_deref()) else { return probe };
        for line in sample.split(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"\t")) {
            probe.first = probe.first.or_else(|| first_time(line, &mut clock));
            probe.format = probe.format.or_else(|| format(line));
            if probe.first.is_some() && probe.format.is_some() {
                probe.is_log = true;
                break;
            }
        }
        probe
    }
}

/// What the format of a line is, if it is a record.
fn format(line: &[u8]) -> Option<Format> {
    if row_begins(line, true) == Some(true) {
        return Some(Format::Csv);
    }
    if line.starts_with(b"{") && memchr::memmem::find(line, b"\"error_severity\"").is_some() {
        return Some(Format::Json);
    }
    let head = &line[..line.len().min(512)];
    let is_label = |colon: usize| {
        let is_letter = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let start = head[..colon].iter().rposition(|byte| !is_letter(byte)).map_or(0, |at| at + 1);
        Label::parse(&head[start..]).is_some()
    };
    memchr::memmem::find_iter(head, b":  ").any(is_label).then_some(Format::Stderr)
}

fn first_time(line: &[u8], clock: &mut Clock) -> Option<Timestamp> {
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
fn times_and_formats_of_lines() {
    let time = Timestamp::from_micros(1_795_178_599_577_000);
    for (text, format) in [
        ("junk\n2026-11-20 12:43:19.577 UTC [7] LOG:  x\n", Some(Format::Stderr)),
        ("al 1795178599.577 LOG:  x\n", Some(Format::Stderr)),
        ("2026-11-20 12:43:19.577 UTC,\"al\",\"shop\",7,\n", Some(Format::Csv)),
        (
            "{\"timestamp\":\"2026-11-20 12:43:19.577 UTC\",\"error_severity\":\"LOG\"}",
            Some(Format::Json),
        ),
        ("2026-11-20 12:43:19.577 UTC hello\n", None),
    ] {
        let probe = Probe::of_text(text.as_bytes(), &Options::default());
        assert_eq!((probe.first, probe.format), (Some(time), format), "{text}");
        assert_eq!(probe.is_log, format.is_some());
    }
    assert!(Probe::of_text(b" \n", &Options::default()).is_empty);
}
