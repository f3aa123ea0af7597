//! Frames of a file: a marker, a length, a checksum, then a body.
//!
//! A reader that finds no valid frame searches for the next marker. A half-written frame of a
//! killed writer is thus skipped, and the next writer may append without truncating it.

use xxhash_rust::xxh3::xxh3_64;

use super::{
    bytes::{ByteReader, ByteWriter, CorruptFrame},
    server_history::PackedFrame,
};
use crate::waits::WaitSecond;

/// File header: a name, a version, and reserved bytes.
pub(super) const FILE_HEADER: [u8; 16] = *b"HOWDAHTR\x01\0\0\0\0\0\0\0";

/// Start of each frame. It is invalid UTF-8 and rare in compressed data.
const MARKER: [u8; 4] = [0xf7, b'H', b'T', 0xfe];

/// Length of marker, length and checksum before a body.
pub(super) const PREFIX_BYTES: usize = 16;

/// Maximum body size.
pub(super) const BODY_BYTES_MAX: usize = 80 << 20;

const SEGMENT: u8 = 1;
const NEXT: u8 = 2;
const WAITS: u8 = 3;

/// Identifies the frames of one server: a hash of its name.
pub(super) fn stream_id(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// Header of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) stream: u64,
    pub(super) at_us: i64,
    /// Length of the header in bytes; the compressed data follows.
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The first frame of a segment.
    Segment,
    /// A later frame, with its position in the segment.
    Next(u32),
    /// Wait events by second.
    Waits,
}

/// Encodes a frame including its marker. The first of a segment has the server's name.
pub(super) fn encode_frame(name: &str, frame: &PackedFrame) -> Vec<u8> {
    let kind = if frame.number == 0 { SEGMENT } else { NEXT };
    let mut out = start_frame(kind, name, frame.at_us);
    match kind {
        SEGMENT => out.text(name),
        _ => out.number(frame.number.into()),
    }
    out.0.extend_from_slice(&frame.packed);
    finish_frame(out)
}

/// Encodes wait events as a frame.
pub(super) fn encode_waits(name: &str, at_us: i64, seconds: &[WaitSecond]) -> Vec<u8> {
    let mut out = start_frame(WAITS, name, at_us);
    out.count(seconds.len());
    for second in seconds {
        out.signed(second.second);
        out.number(second.samples.into());
        out.count(second.sums.len());
        for (wait, sum) in &second.sums {
            out.text(wait.as_ref().map_or("", |wait| &wait.class));
            out.text(wait.as_ref().map_or("", |wait| &wait.event));
            out.number((*sum).into());
        }
    }
    finish_frame(out)
}

fn start_frame(kind: u8, name: &str, at_us: i64) -> ByteWriter {
    let mut out = ByteWriter(vec![0; PREFIX_BYTES]);
    out.byte(kind);
    out.0.extend_from_slice(&stream_id(name).to_le_bytes());
    out.0.extend_from_slice(&at_us.to_le_bytes());
    out
}

fn finish_frame(out: ByteWriter) -> Vec<u8> {
    let ByteWriter(mut bytes) = out;
    let length = u32::try_from(bytes.len() - PREFIX_BYTES).unwrap_or(u32::MAX);
    let check = xxh3_64(&bytes[PREFIX_BYTES..]);
    bytes[..4].copy_from_slice(&MARKER);
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Parses a prefix into the length and checksum of the body.
pub(super) fn parse_prefix(bytes: &[u8; PREFIX_BYTES]) -> Option<(usize, u64)> {
    let [m0, m1, m2, m3, l0, l1, l2, l3, check @ ..] = *bytes;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    ([m0, m1, m2, m3] == MARKER && length <= BODY_BYTES_MAX)
        .then(|| (length, u64::from_le_bytes(check)))
}

/// Position of the next marker after the first byte.
pub(super) fn next_marker(bytes: &[u8]) -> Option<usize> {
    let first = MARKER[0];
    let mut from = 1;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + at;
        let rest = &bytes[at..];
        // At the end of the buffer a marker may be cut off.
        if rest.len() < 4 || rest.starts_with(&MARKER) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

pub(super) fn checksum_matches(body: &[u8], check: u64) -> bool {
    xxh3_64(body) == check
}

/// Parses the header of a body, and the server's name if present.
pub(super) fn parse_header(body: &[u8]) -> Result<(FrameHeader, Option<&str>), CorruptFrame> {
    let mut input = ByteReader(body);
    let kind = input.byte()?;
    let mut eight = || -> Result<[u8; 8], CorruptFrame> {
        input.take(8)?.try_into().map_err(|_| CorruptFrame::Truncated)
    };
    let stream = u64::from_le_bytes(eight()?);
    let at_us = i64::from_le_bytes(eight()?);
    let (kind, name) = match kind {
        SEGMENT => (FrameKind::Segment, Some(input.text()?)),
        NEXT => {
            (FrameKind::Next(input.number()?.try_into().map_err(|_| CorruptFrame::Number)?), None)
        }
        WAITS => (FrameKind::Waits, None),
        _ => return Err(CorruptFrame::Kind),
    };
    Ok((FrameHeader { kind, stream, at_us, bytes: body.len() - input.0.len() }, name))
}

/// Parses the wait events after a header.
pub(super) fn parse_waits(bytes: &[u8]) -> Result<Vec<WaitSecond>, CorruptFrame> {
    use howdah_collect::BackendWait;
    let mut input = ByteReader(bytes);
    let mut seconds = Vec::new();
    for _ in 0..input.count(input.0.len())? {
        let mut second = WaitSecond {
            second: input.signed()?,
            samples: input.number()?.try_into().map_err(|_| CorruptFrame::Number)?,
            ..WaitSecond::default()
        };
        for _ in 0..input.count(input.0.len())? {
            let (class, event) = (input.line()?, input.line()?);
            let wait = (!class.is_empty()).then_some(BackendWait { class, event });
            let sum = input.number()?.try_into().map_err(|_| CorruptFrame::Number)?;
            second.sums.insert(wait, sum);
        }
        seconds.push(second);
    }
    Ok(seconds)
}
