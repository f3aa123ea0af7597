//! The frames of a file: a marker, a length, a checksum, then a body.
//!
//! A reader that finds no frame where one should be looks for the next marker. So what a killed writer left
//! half written is passed over, and whoever appends behind it need not cut it off.

use xxhash_rust::xxh3::xxh3_64;

use super::{
    bytes::{Damage, In, Out},
    track::Frame,
};
use crate::waits::WaitSecond;

/// What a file begins with: a name, a version, room.
pub(super) const HEAD: [u8; 16] = *b"HOWDAHTR\x01\0\0\0\0\0\0\0";

/// What each frame begins with. It is no UTF-8 and rare in packed bytes.
const MARKER: [u8; 4] = [0xf7, b'H', b'T', 0xfe];

/// Bytes before a body: marker, length, checksum.
pub(super) const PREFIX: usize = 16;

/// Longest body.
pub(super) const BODY_MAX: usize = 80 << 20;

const SEGMENT: u8 = 1;
const NEXT: u8 = 2;
const WAITS: u8 = 3;

/// What tells the frames of one server from those of another: a hash of its name.
pub(super) fn stream_of(name: &str) -> u64 {
    xxh3_64(name.as_bytes())
}

/// What a body has in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Head {
    pub(super) kind: Kind,
    pub(super) stream: u64,
    pub(super) at_us: i64,
    /// Bytes of it: what is packed comes behind.
    pub(super) bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The first frame of a segment.
    Segment,
    /// A frame behind others, with its place in the segment.
    Next(u32),
    /// Seconds of waits.
    Waits,
}

/// A frame of a file, from its marker on. The first of a segment says which server it is of.
pub(super) fn frame(name: &str, frame: &Frame) -> Vec<u8> {
    let kind = if frame.number == 0 { SEGMENT } else { NEXT };
    let mut out = begun(kind, name, frame.at_us);
    match kind {
        SEGMENT => out.text(name),
        _ => out.number(frame.number.into()),
    }
    out.0.extend_from_slice(&frame.packed);
    finished(out)
}

/// Seconds of waits as a frame of a file.
pub(super) fn waits(name: &str, at_us: i64, seconds: &[WaitSecond]) -> Vec<u8> {
    let mut out = begun(WAITS, name, at_us);
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
    finished(out)
}

fn begun(kind: u8, name: &str, at_us: i64) -> Out {
    let mut out = Out(vec![0; PREFIX]);
    out.byte(kind);
    out.0.extend_from_slice(&stream_of(name).to_le_bytes());
    out.0.extend_from_slice(&at_us.to_le_bytes());
    out
}

fn finished(out: Out) -> Vec<u8> {
    let Out(mut bytes) = out;
    let length = u32::try_from(bytes.len() - PREFIX).unwrap_or(u32::MAX);
    let check = xxh3_64(&bytes[PREFIX..]);
    bytes[..4].copy_from_slice(&MARKER);
    bytes[4..8].copy_from_slice(&length.to_le_bytes());
    bytes[8..16].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// The length and the checksum of the body behind a prefix, if it is one.
pub(super) fn prefix(bytes: &[u8; PREFIX]) -> Option<(usize, u64)> {
    let [m0, m1, m2, m3, l0, l1, l2, l3, check @ ..] = *bytes;
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    ([m0, m1, m2, m3] == MARKER && length <= BODY_MAX).then(|| (length, u64::from_le_bytes(check)))
}

/// The place of the next marker behind the first byte.
pub(super) fn next_marker(bytes: &[u8]) -> Option<usize> {
    let first = MARKER[0];
    let mut from = 1;
    while let Some(at) = bytes.get(from..)?.iter().position(|byte| *byte == first) {
        let at = from + at;
        let rest = &bytes[at..];
        // At the end of what is there it may go on as one.
        if rest.len() < 4 || rest.starts_with(&MARKER) {
            return Some(at);
        }
        from = at + 1;
    }
    None
}

pub(super) fn is_whole(body: &[u8], check: u64) -> bool {
    xxh3_64(body) == check
}

/// What a body has in front, and the name of the server if it says so.
pub(super) fn head(body: &[u8]) -> Result<(Head, Option<&str>), Damage> {
    let mut input = In(body);
    let kind = input.byte()?;
    let mut eight =
        || -> Result<[u8; 8], Damage> { input.take(8)?.try_into().map_err(|_| Damage::Ended) };
    let stream = u64::from_le_bytes(eight()?);
    let at_us = i64::from_le_bytes(eight()?);
    let (kind, name) = match kind {
        SEGMENT => (Kind::Segment, Some(input.text()?)),
        NEXT => (Kind::Next(input.number()?.try_into().map_err(|_| Damage::Number)?), None),
        WAITS => (Kind::Waits, None),
        _ => return Err(Damage::Kind),
    };
    Ok((Head { kind, stream, at_us, bytes: body.len() - input.0.len() }, name))
}

/// The seconds of waits behind a head.
pub(super) fn seconds(bytes: &[u8]) -> Result<Vec<WaitSecond>, Damage> {
    use howdah_collect::Wait;
    let mut input = In(bytes);
    let mut seconds = Vec::new();
    for _ in 0..input.count(input.0.len())? {
        let mut second = WaitSecond {
            second: input.signed()?,
            samples: input.number()?.try_into().map_err(|_| Damage::Number)?,
            ..WaitSecond::default()
        };
        for _ in 0..input.count(input.0.len())? {
            let (class, event) = (input.line()?, input.line()?);
            let wait = (!class.is_empty()).then_some(Wait { class, event });
            let sum = input.number()?.try_into().map_err(|_| Damage::Number)?;
            second.sums.insert(wait, sum);
        }
        seconds.push(second);
    }
    Ok(seconds)
}
