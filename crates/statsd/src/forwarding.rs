//! The protocol by which servers forward mergeable aggregates to another one over TCP.
//!
//! ```text
//!  sender                         parent
//!    │ HELLO ──────────────────────► │ checks the version
//!    │ BATCH ──────────────────────► │ merges it, unless it has merged it before
//!    │ ◄───────────────────── ACK ── │
//!    │ BATCH ──────────────────────► │ …
//!
//!  frame := kind: byte, length: u32, checksum: u64, body; numbers are little-endian
//!  hello := "howdah statsd forward", version: u16
//!  batch := sender: text, incarnation: varint, sequence: varint, part: the rest
//!  ack   := sequence: varint
//!  no    := the batch can never be merged: bool, reason: text
//! ```
//!
//! A listener with TLS expects it on the whole connection, and one with tokens expects the line
//! `auth TOKEN` before HELLO. HELLO must arrive by the listener's `handshake-timeout`.
//!
//! The checksum is XXH3 of kind, length and body. A part is a
//! [`MergeablePart`](crate::flush::MergeablePart).
//!
//! A batch is identified by its sender, the sender's incarnation and its sequence number. The
//! incarnation is a number of each process: the time of its start, then random bits, so a later
//! process has a higher one ([`GaugeOrder`]). A sender repeats a batch until it is acknowledged, in
//! order. The parent acknowledges a batch after it has merged it, and remembers the last sequence
//! number of each incarnation ([`SequenceTable`]), so a repeated batch is acknowledged and not
//! merged again. If a batch can never be merged, the sender counts its values as lost.

mod gauge_order;
mod isolated;

use std::{
    collections::HashMap,
    io::{self, Read, Write},
    time::{Duration, SystemTime},
};

use howdah_codec::ByteWriter as _;
use xxhash_rust::xxh3::Xxh3;

use self::gauge_order::GaugeOrder;
pub use self::isolated::{BatchError, batches_of_packet, merge_alone};
use crate::binary::{BinaryReader, HandoverFormatError};

/// The version of the protocol. Other versions are refused.
pub(crate) const VERSION: u16 = 1;

/// The start of HELLO.
const MAGIC: &[u8] = b"howdah statsd forward";

pub(crate) const HELLO: u8 = 1;
pub(crate) const BATCH: u8 = 2;
pub(crate) const ACK: u8 = 3;
pub(crate) const NO: u8 = 4;

/// Maximum length of a body: that of the largest timer or set, which is not divided.
pub(crate) const BODY_BYTES_MAX: usize = 64 << 20;

/// Maximum length of the body of HELLO, also in later versions.
pub(crate) const HELLO_BYTES_MAX: usize = 64;

/// Number of bytes before a body.
const HEADER_BYTES: usize = 13;

/// Maximum length of a sender's name in bytes.
pub(crate) const SENDER_BYTES_MAX: usize = 256;

/// A frame that was received.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ForwardFrame {
    pub(crate) kind: u8,
    pub(crate) body: Vec<u8>,
}

/// Returns a frame as sent.
pub(crate) fn encode_frame(kind: u8, body: &[u8]) -> Vec<u8> {
    let length = (body.len() as u32).to_le_bytes();
    let mut out = Vec::with_capacity(HEADER_BYTES + body.len());
    out.push(kind);
    out.extend_from_slice(&length);
    out.extend_from_slice(&checksum(kind, length, body).to_le_bytes());
    out.extend_from_slice(body);
    out
}

pub(crate) fn send_frame(to: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    to.write_all(&encode_frame(kind, body))
}

/// Reads a frame of at most `bytes_max` bytes; `None` if the connection was closed between two
/// frames. Memory grows only with the bytes that have arrived.
pub(crate) fn receive_frame(
    from: &mut impl Read,
    bytes_max: usize,
) -> io::Result<Option<ForwardFrame>> {
    let Some(header) = ForwardFrameHeader::receive(from)? else { return Ok(None) };
    Ok(Some(ForwardFrame { kind: header.kind, body: header.receive_body(from, bytes_max)? }))
}

/// The part of a frame before its body.
#[derive(Debug)]
pub(crate) struct ForwardFrameHeader {
    pub(crate) kind: u8,
    length: [u8; 4],
    checksum: u64,
}

impl ForwardFrameHeader {
    /// Reads a header; `None` if the connection was closed before it.
    pub(crate) fn receive(from: &mut impl Read) -> io::Result<Option<Self>> {
        let mut header = [0; HEADER_BYTES];
        let first = loop {
            match from.read(&mut header[..1]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        if first == 0 {
            return Ok(None);
        }
        from.read_exact(&mut header[1..])?;
        let [kind, a, b, c, d, sum @ ..] = header;
        Ok(Some(Self { kind, length: [a, b, c, d], checksum: u64::from_le_bytes(sum) }))
    }

    /// Returns the length of the body.
    pub(crate) fn body_bytes(&self) -> usize {
        u32::from_le_bytes(self.length) as usize
    }

    /// Reads a body of at most `bytes_max` bytes, and checks it.
    pub(crate) fn receive_body(
        &self,
        from: &mut impl Read,
        bytes_max: usize,
    ) -> io::Result<Vec<u8>> {
        let bytes = self.body_bytes();
        if bytes > bytes_max {
            return Err(invalid("the other server sent a frame that is too long"));
        }
        let mut body = Vec::new();
        if from.take(bytes as u64).read_to_end(&mut body)? < bytes {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if checksum(self.kind, self.length, &body) != self.checksum {
            return Err(invalid("the other server sent a frame with a wrong checksum"));
        }
        Ok(body)
    }
}

fn checksum(kind: u8, length: [u8; 4], body: &[u8]) -> u64 {
    let mut hash = Xxh3::new();
    hash.update(&[kind]);
    hash.update(&length);
    hash.update(body);
    hash.digest()
}

fn invalid(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Returns the body of HELLO.
pub(crate) fn hello() -> Vec<u8> {
    [MAGIC, &VERSION.to_le_bytes()].concat()
}

/// The identity of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct BatchId {
    pub(crate) sender: String,
    pub(crate) incarnation: u64,
    pub(crate) sequence: u64,
}

/// Returns the body of BATCH.
pub(crate) fn encode_batch(id: &BatchId, part: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(part.len() + id.sender.len() + 24);
    out.write_text(&id.sender);
    out.write_varint(id.incarnation);
    out.write_varint(id.sequence);
    out.extend_from_slice(part);
    out
}

/// Reads the body of BATCH: the identity and the part.
pub(crate) fn decode_batch(body: &[u8]) -> Result<(BatchId, &[u8]), HandoverFormatError> {
    let mut from = BinaryReader::new(body);
    let sender = from.text()?;
    if sender.len() > SENDER_BYTES_MAX {
        return Err(HandoverFormatError::Invalid("the name of the sender is too long"));
    }
    let (incarnation, sequence) = (from.number()?, from.number()?);
    Ok((BatchId { sender: sender.to_owned(), incarnation, sequence }, from.rest()))
}

/// Returns the sequence number in a body of BATCH.
pub(crate) fn sequence(body: &[u8]) -> Result<u64, HandoverFormatError> {
    decode_batch(body).map(|(id, _)| id.sequence)
}

/// The last merged sequence number of each incarnation of a sender.
///
/// Its size is bounded: incarnations expire, and beyond a limit the one that was silent longest is
/// dropped. A batch that is repeated after that would be merged again. A sender that restarts again
/// and again replaces only its own incarnations.
#[derive(Debug, Default)]
pub(crate) struct SequenceTable {
    last: HashMap<(String, u64), (u64, SystemTime)>,
    /// Not handed over to another process.
    pub(crate) gauges: GaugeOrder,
}

impl SequenceTable {
    /// Maximum number of incarnations.
    const INCARNATIONS_MAX: usize = 10_000;
    /// Maximum number of incarnations of one sender.
    const OF_SENDER_MAX: usize = 64;
    /// Time after the last batch for which an incarnation is remembered; far longer than a sender
    /// spools.
    const EXPIRY: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Records a batch as merged; returns false if it was merged before.
    pub(crate) fn record(&mut self, id: &BatchId, now: SystemTime) -> bool {
        let key = (id.sender.clone(), id.incarnation);
        if let Some((last, seen)) = self.last.get_mut(&key) {
            *seen = now;
            let is_new = id.sequence > *last;
            *last = id.sequence.max(*last);
            return is_new;
        }
        let own = self.last.iter().filter(|((sender, _), _)| *sender == id.sender);
        if own.clone().count() >= Self::OF_SENDER_MAX {
            let oldest = own.min_by_key(|(_, (_, seen))| *seen);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.last.remove(&key);
            }
        } else if self.last.len() >= Self::INCARNATIONS_MAX {
            self.evict(now);
        }
        self.last.insert(key, (id.sequence, now));
        true
    }

    /// Whether a batch was merged before.
    #[cfg(test)]
    pub(crate) fn contains(&self, id: &BatchId) -> bool {
        let last = self.last.get(&(id.sender.clone(), id.incarnation));
        last.is_some_and(|(last, _)| id.sequence <= *last)
    }

    /// Removes expired incarnations or, if there are none, the one that was silent longest.
    fn evict(&mut self, now: SystemTime) {
        let is_expired =
            |seen: SystemTime| now.duration_since(seen).unwrap_or_default() >= Self::EXPIRY;
        self.last.retain(|_, (_, seen)| !is_expired(*seen));
        if self.last.len() >= Self::INCARNATIONS_MAX {
            let oldest = self.last.iter().min_by_key(|(_, (_, seen))| *seen);
            if let Some(key) = oldest.map(|(key, _)| key.clone()) {
                self.last.remove(&key);
            }
        }
    }

    /// Returns the table, for another process.
    pub(crate) fn export(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.write_count(self.last.len());
        for ((sender, incarnation), (last, seen)) in &self.last {
            out.write_text(sender);
            out.write_varint(*incarnation);
            out.write_varint(*last);
            let seen = seen.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
            out.write_varint(seen.as_secs());
        }
        out
    }

    /// Reads a table that [`export`](Self::export) has written.
    pub(crate) fn import(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let last = from.list(|from| {
            let key = (from.text()?.to_owned(), from.number()?);
            let (last, seen) = (from.number()?, Duration::from_secs(from.total()?));
            Ok((key, (last, SystemTime::UNIX_EPOCH + seen)))
        })?;
        from.finish()?;
        Ok(Self { last: last.into_iter().collect(), gauges: GaugeOrder::default() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(sender: &str, incarnation: u64, sequence: u64) -> BatchId {
        BatchId { sender: sender.to_owned(), incarnation, sequence }
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn frames_are_checked_and_bounded() {
        let body = encode_batch(&id("web1", 7, 300), b"intervals");
        let sent = encode_frame(BATCH, &body);
        let frame = receive_frame(&mut &sent[..], 100).unwrap().unwrap();
        assert_eq!(frame, ForwardFrame { kind: BATCH, body });
        assert_eq!(decode_batch(&frame.body).unwrap(), (id("web1", 7, 300), &b"intervals"[..]));
        assert_eq!(sequence(&frame.body), Ok(300));
        assert!(receive_frame(&mut &sent[..], 10).is_err(), "too long");
        assert_eq!(receive_frame(&mut &b""[..], 10).unwrap(), None);
        for end in 1..sent.len() {
            assert!(receive_frame(&mut &sent[..end], 100).is_err(), "{end}");
        }
        for at in 0..sent.len() {
            let mut changed = sent.clone();
            changed[at] ^= 4;
            assert!(receive_frame(&mut &changed[..], 100).is_err(), "{at}");
        }
    }

    #[test]
    fn repeated_batch_is_known_also_in_another_process() {
        let mut table = SequenceTable::default();
        assert!(table.record(&id("web1", 1, 1), at(10)));
        assert!(table.record(&id("web1", 1, 3), at(10)));
        assert!(!table.record(&id("web1", 1, 3), at(11)));
        assert!(!table.record(&id("web1", 1, 2), at(11)));
        assert!(table.record(&id("web1", 2, 1), at(11)), "another incarnation");
        assert!(table.record(&id("web2", 1, 1), at(11)));
        let mut table = SequenceTable::import(&table.export()).unwrap();
        assert!(table.contains(&id("web1", 1, 3)) && !table.contains(&id("web1", 1, 4)));
        assert!(table.record(&id("web1", 1, 4), at(12)));
    }

    #[test]
    fn table_is_bounded() {
        let mut table = SequenceTable::default();
        let max = SequenceTable::INCARNATIONS_MAX as u64;
        let name = |number: u64| format!("x{number}");
        for number in 0..=max {
            assert!(table.record(&id(&name(number), 1, 1), at(number)));
        }
        assert_eq!(table.last.len() as u64, max);
        assert!(!table.contains(&id("x0", 1, 1)) && table.contains(&id("x1", 1, 1)));
        let week = SequenceTable::EXPIRY.as_secs();
        assert!(table.record(&id("late", 1, 1), at(week + 100)));
        assert!(!table.contains(&id("x100", 1, 1)) && table.contains(&id("x101", 1, 1)));
        for incarnation in 0..1000 {
            assert!(table.record(&id("restarted", incarnation, 1), at(week + 100 + incarnation)));
        }
        assert!(!table.contains(&id("restarted", 935, 1)));
        assert!(table.contains(&id("restarted", 936, 1)) && table.contains(&id("x101", 1, 1)));
    }
}
