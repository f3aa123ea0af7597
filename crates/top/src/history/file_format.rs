//! Frames of a file: a marker, a length, a checksum, then a body.
//!
//! A reader that finds no valid frame searches for the next marker. A frame that a killed writer
//! left half written is thus skipped, and the next writer may append after it without truncating
//! the file.

use howdah_codec::{ByteReader, ByteWriter as _};
use xxhash_rust::xxh3::xxh3_64;

use super::{error::CorruptFrame, server_history::PackedFrame, texts::read_line};
use crate::waits::WaitSecond;

/// File header: a name, a version, and reserved bytes.
pub(super) const FILE_HEADER: [u8; 16] = *b"HOWDAHTR\x01\0\0\0\0\0\0\0";

/// Start of each frame. It is invalid UTF-8 and rare in compressed data.
const MARKER: [u8; 4] = [0xf7, b'H', b'T', 0xfe];

/// Number of bytes before a body: marker, length and checksum.
pub(super) const PREFIX_BYTES: usize = 16;

/// Maximum size of a body in bytes. A longer one is treated as corrupt.
pub(super) const BODY_BYTES_MAX: usize = 80 << 20;

const SEGMENT: u8 = 1;
const NEXT: u8 = 2;
const WAITS: u8 = 3;

/// Returns the number that identifies the frames of one server: a hash of the server's name.
pub(super) fn stream_id(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// Header of a frame's body: server, time and kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameHeader {
    pub(super) kind: FrameKind,
    pub(super) stream: u64,
    pub(super) at_us: i64,
    /// Length of the header in bytes; the frame's data follows.
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FrameKind {
    /// The first frame of a segment.
    Segment,
    /// A later frame, with its position in the segment.
    Next(u32),
    /// Wait events of one or more seconds, independent of any segment.
    Waits,
}

/// Encodes a frame including its marker. The first frame of a segment contains the server's name.
pub(super) fn encode_frame(name: &str, frame: &PackedFrame) -> Vec<u8> {
    let kind = if frame.number == 0 { SEGMENT } else { NEXT };
    let mut out = start_frame(kind, name, frame.at_us);
    match kind {
        SEGMENT => out.write_text(name),
        _ => out.write_varint(frame.number.into()),
    }
    out.extend_from_slice(&frame.packed);
    finish_frame(out)
}

/// Encodes wait events as a frame.
pub(super) fn encode_waits(name: &str, at_us: i64, seconds: &[WaitSecond]) -> Vec<u8> {
    let mut out = start_frame(WAITS, name, at_us);
    out.write_count(seconds.len());
    for second in seconds {
        out.write_signed(second.second);
        out.write_varint(second.samples.into());
        out.write_count(second.sums.len());
        for (wait, sum) in &second.sums {
            out.write_text(wait.as_ref().map_or("", |wait| &wait.class));
            out.write_text(wait.as_ref().map_or("", |wait| &wait.event));
            out.write_varint((*sum).into());
        }
    }
    finish_frame(out)
}

fn start_frame(kind: u8, name: &str, at_us: i64) -> Vec<u8> {
    let mut out = vec![0; PREFIX_BYTES];
    out.push(kind);
    out.extend_from_slice(&stream_id(name).to_le_bytes());
    out.extend_from_slice(&at_us.to_le_bytes());
    out
}

fn finish_frame(mut bytes: Vec<u8>) -> Vec<u8> {
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

/// Returns the position of the next marker in `bytes`, not counting one at the first byte. The end
/// of `bytes` may cut it off, so it may not be a marker after all.
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
    let mut input = ByteReader::new(body);
    let kind = input.byte()?;
    let stream = u64::from_le_bytes(input.array()?);
    let at_us = i64::from_le_bytes(input.array()?);
    let (kind, name) = match kind {
        SEGMENT => (FrameKind::Segment, Some(input.text()?)),
        NEXT => (FrameKind::Next(input.narrow()?), None),
        WAITS => (FrameKind::Waits, None),
        _ => return Err(CorruptFrame::Kind),
    };
    Ok((FrameHeader { kind, stream, at_us, bytes: body.len() - input.remaining() }, name))
}

/// Parses the wait events after a header.
pub(super) fn parse_waits(bytes: &[u8]) -> Result<Vec<WaitSecond>, CorruptFrame> {
    use howdah_collect::BackendWait;
    let mut input = ByteReader::new(bytes);
    let mut seconds = Vec::new();
    for _ in 0..input.count()? {
        let mut second = WaitSecond {
            second: input.signed()?,
            samples: input.narrow()?,
            ..WaitSecond::default()
        };
        for _ in 0..input.count()? {
            let (class, event) = (read_line(&mut input)?, read_line(&mut input)?);
            let wait = (!class.is_empty()).then_some(BackendWait { class, event });
            let sum = input.narrow()?;
            second.sums.insert(wait, sum);
        }
        seconds.push(second);
    }
    Ok(seconds)
}
