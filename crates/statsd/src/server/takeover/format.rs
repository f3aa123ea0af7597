//! The bodies of frames.
//!
//! ```text
//! SOCKET     := label: text, managed by the service manager: bool
//! BASE       := interval ms, phase ms, next flush ms, ms since the last key log,
//!               health if a command has set it: option bool, registry: bytes,
//!               list of (backend: BACKEND, state: bytes)
//! CONNECTION := label of the listener: text, rest of the line is discarded: bool, line: bytes
//! LAST       := intervals: bytes, counts of rules: bytes, running totals: bytes, last stamp,
//!               list of (label of a socket: text, packets, bytes, discarded, denied,
//!               failed handshakes), backlog drops before the start,
//!               sequences of forwarded batches: bytes
//! SPOOL      := backend: BACKEND, last one of this backend: bool,
//!               transaction in doubt: option text,
//!               list of starts of partitions: signed, content: byte, values, batch: bytes
//! SPOOL_END  := backend: BACKEND
//! BACKEND    := name: text, hash of its destination, number among those with both
//! ```
//!
//! The registry and the intervals are those of [`crate::flush::handover`].

use std::time::Duration;

use howdah_codec::ByteWriter as _;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    backends::{BackendSpool, BatchContent, ValueBatch},
    binary::{BinaryReader, BinaryWriter, HandoverFormatError},
    receiver::SocketTotals,
    server::clock::ClockState,
};

/// A backend among all of a server: its name, its destination, and its position among those that
/// have both in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::server) struct BackendId {
    pub(in crate::server) name: String,
    /// A hash, the same in all processes.
    destination: u64,
    number: usize,
}

impl BackendId {
    /// Returns the ids of backends in the order of the settings, from their names and destinations.
    pub(in crate::server) fn all<'n>(
        backends: impl Iterator<Item = (&'n str, &'n str)>,
    ) -> Vec<Self> {
        let mut ids: Vec<Self> = Vec::new();
        for (name, destination) in backends {
            let destination = xxh3_64(destination.as_bytes());
            let same = |id: &&Self| id.name == name && id.destination == destination;
            let number = ids.iter().filter(same).count();
            ids.push(Self { name: name.to_owned(), destination, number });
        }
        ids
    }

    /// Returns the body of SPOOL_END.
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let id = Self::read_from(&mut from)?;
        from.finish()?;
        Ok(id)
    }

    fn write_to(&self, out: &mut Vec<u8>) {
        out.write_text(&self.name);
        out.write_varint(self.destination);
        out.write_count(self.number);
    }

    fn read_from(from: &mut BinaryReader<'_>) -> Result<Self, HandoverFormatError> {
        let name = from.text()?.to_owned();
        Ok(Self { name, destination: from.number()?, number: from.number()? })
    }
}

/// SOCKET: how the new process recognizes a descriptor.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SocketBody {
    pub(super) label: String,
    pub(super) is_managed: bool,
}

impl SocketBody {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.write_text(&self.label);
        out.write_bool(self.is_managed);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let body = Self { label: from.text()?.to_owned(), is_managed: from.bool()? };
        from.finish()?;
        Ok(body)
    }
}

/// BASE: everything that was aggregated while the old process still reads.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct BaseBody {
    pub(super) clock: ClockState,
    pub(super) since_key_log: Duration,
    pub(super) health: Option<bool>,
    pub(super) registry: Vec<u8>,
    pub(super) backends: Vec<(BackendId, Vec<u8>)>,
}

impl BaseBody {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let ClockState { interval_ms, phase_ms, next_flush_ms } = self.clock;
        let since = u64::try_from(self.since_key_log.as_millis()).unwrap_or_default();
        [interval_ms, phase_ms, next_flush_ms, since]
            .into_iter()
            .for_each(|number| out.write_varint(number));
        out.write_option(self.health, BinaryWriter::write_bool);
        out.write_bytes(&self.registry);
        out.write_count(self.backends.len());
        for (id, state) in &self.backends {
            id.write_to(&mut out);
            out.write_bytes(state);
        }
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let clock = ClockState {
            interval_ms: from.total()?,
            phase_ms: from.total()?,
            next_flush_ms: from.total()?,
        };
        let since_key_log = Duration::from_millis(from.total()?);
        let health = from.option(BinaryReader::bool)?;
        let registry = from.bytes()?.to_vec();
        let backends =
            from.list(|from| Ok((BackendId::read_from(from)?, from.bytes()?.to_vec())))?;
        from.finish()?;
        Ok(Self { clock, since_key_log, health, registry, backends })
    }
}

/// CONNECTION: how the new process continues a stream.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ConnectionBody {
    pub(super) listener: String,
    pub(super) is_skipping: bool,
    pub(super) tail: Vec<u8>,
}

impl ConnectionBody {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.write_text(&self.listener);
        out.write_bool(self.is_skipping);
        out.write_bytes(&self.tail);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let (listener, is_skipping) = (from.text()?.to_owned(), from.bool()?);
        let body = Self { listener, is_skipping, tail: from.bytes()?.to_vec() };
        from.finish()?;
        Ok(body)
    }
}

fn read_totals(
    from: &mut BinaryReader<'_>,
) -> Result<[u64; SocketTotals::COUNT], HandoverFormatError> {
    let mut totals = [0; SocketTotals::COUNT];
    for total in &mut totals {
        *total = from.total()?;
    }
    Ok(totals)
}

/// LAST: everything that changed since BASE.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LastBody {
    pub(super) intervals: Vec<u8>,
    pub(super) rules: Vec<u8>,
    pub(super) running_totals: Vec<u8>,
    pub(super) stamp: u64,
    pub(super) sockets: Vec<SocketTotals>,
    pub(super) backlog_before: u64,
    pub(super) sequences: Vec<u8>,
}

impl LastBody {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.write_bytes(&self.intervals);
        out.write_bytes(&self.rules);
        out.write_bytes(&self.running_totals);
        out.write_varint(self.stamp);
        out.write_count(self.sockets.len());
        for SocketTotals { label, totals } in &self.sockets {
            out.write_text(label);
            totals.iter().for_each(|total| out.write_varint(*total));
        }
        out.write_varint(self.backlog_before);
        out.write_bytes(&self.sequences);
        out
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self, HandoverFormatError> {
        let mut from = BinaryReader::new(bytes);
        let (intervals, rules) = (from.bytes()?.to_vec(), from.bytes()?.to_vec());
        let running_totals = from.bytes()?.to_vec();
        let stamp = from.stamp()?;
        let sockets = from.list(|from| {
            let label = from.text()?.to_owned();
            Ok(SocketTotals { label, totals: read_totals(from)? })
        })?;
        let (backlog_before, sequences) = (from.total()?, from.bytes()?.to_vec());
        from.finish()?;
        Ok(Self { intervals, rules, running_totals, stamp, sockets, backlog_before, sequences })
    }
}

/// The content of a batch, by its byte.
const CONTENTS: [BatchContent; 3] =
    [BatchContent::Values, BatchContent::Events, BatchContent::Checks];

/// Returns the bodies of the SPOOL frames of one backend.
pub(super) fn encode_spool(id: &BackendId, spool: BackendSpool) -> Vec<Vec<u8>> {
    let BackendSpool { mut in_doubt, mut partitions, .. } = spool;
    let count = spool.batches.len();
    let frames = (1..).zip(spool.batches).map(|(number, batch)| {
        let mut out = Vec::new();
        id.write_to(&mut out);
        out.write_bool(number == count);
        out.write_option(in_doubt.take(), |out, transaction| out.write_text(&transaction));
        let partitions = std::mem::take(&mut partitions);
        out.write_count(partitions.len());
        partitions.iter().for_each(|start| out.write_signed(*start));
        let content = CONTENTS.iter().position(|one| *one == batch.content).unwrap_or_default();
        out.push(content as u8);
        out.write_varint(batch.values);
        out.write_bytes(&batch.bytes);
        out
    });
    frames.collect()
}

/// A part of a backend's spool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SpoolPart {
    pub(super) id: BackendId,
    /// Whether this is the last part of the backend's spool.
    pub(super) is_last: bool,
    pub(super) spool: BackendSpool,
}

pub(super) fn decode_spool(bytes: &[u8]) -> Result<SpoolPart, HandoverFormatError> {
    let mut from = BinaryReader::new(bytes);
    let (id, is_last) = (BackendId::read_from(&mut from)?, from.bool()?);
    let in_doubt = from.option(|from| from.text().map(str::to_owned))?;
    let partitions = from.list(BinaryReader::signed)?;
    let content = CONTENTS.get(usize::from(from.byte()?)).copied();
    let content = content.ok_or(HandoverFormatError::Invalid("a batch has unknown contents"))?;
    let values = from.total()?;
    let batch = ValueBatch { bytes: from.bytes()?.to_vec(), values, content };
    from.finish()?;
    let spool = BackendSpool { batches: vec![batch], in_doubt, partitions };
    Ok(SpoolPart { id, is_last, spool })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that a body survives, and that no part of it is accepted.
    fn assert_round_trip<T: PartialEq + std::fmt::Debug>(
        body: &T,
        bytes: &[u8],
        decode: impl Fn(&[u8]) -> Result<T, HandoverFormatError>,
    ) {
        assert_eq!(decode(bytes).as_ref(), Ok(body));
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{end}");
        }
    }

    #[test]
    fn bodies_round_trip() {
        let body = SocketBody { label: "udp 127.0.0.1:8125".to_owned(), is_managed: true };
        assert_round_trip(&body, &body.encode(), SocketBody::decode);
        let backends = [("file", ""), ("graphite", "a"), ("graphite", "b"), ("graphite", "a")];
        let ids = BackendId::all(backends.into_iter());
        let numbers: Vec<usize> = ids.iter().map(|id| id.number).collect();
        assert_eq!(numbers, [0, 0, 0, 1], "{ids:?}");
        assert_round_trip(&ids[3], &ids[3].encode(), BackendId::decode);
        // The position among others does not matter.
        assert_eq!(BackendId::all([("graphite", "b")].into_iter())[0], ids[2]);
        let body = BaseBody {
            clock: ClockState { interval_ms: 10_000, phase_ms: 3_000, next_flush_ms: 13_000 },
            since_key_log: Duration::from_millis(7),
            health: Some(false),
            registry: b"registry".to_vec(),
            backends: vec![(ids[2].clone(), b"state".to_vec())],
        };
        assert_round_trip(&body, &body.encode(), BaseBody::decode);
        let body = ConnectionBody {
            listener: "unix /run/statsd.sock".to_owned(),
            is_skipping: false,
            tail: b"a.b:1".to_vec(),
        };
        assert_round_trip(&body, &body.encode(), ConnectionBody::decode);
        let totals =
            SocketTotals { label: "udp 0.0.0.0:8125".to_owned(), totals: [1, 300, 2, 4, 5] };
        let body = LastBody {
            intervals: b"intervals".to_vec(),
            rules: b"rules".to_vec(),
            running_totals: b"totals".to_vec(),
            stamp: 1 << 60,
            sockets: vec![totals],
            backlog_before: 9,
            sequences: b"sequences".to_vec(),
        };
        assert_round_trip(&body, &body.encode(), LastBody::decode);
        let batch = |bytes: &[u8]| ValueBatch {
            bytes: bytes.to_vec(),
            values: 3,
            content: BatchContent::Events,
        };
        let in_doubt = Some("77".to_owned());
        let batches = vec![batch(b"one"), batch(b"two")];
        let spool = BackendSpool { batches, in_doubt, partitions: vec![-5, 7] };
        let frames = encode_spool(&ids[1], spool);
        let first = BackendSpool {
            batches: vec![batch(b"one")],
            in_doubt: Some("77".to_owned()),
            partitions: vec![-5, 7],
        };
        let first = SpoolPart { id: ids[1].clone(), is_last: false, spool: first };
        assert_eq!(decode_spool(&frames[0]), Ok(first));
        let second = BackendSpool { batches: vec![batch(b"two")], ..BackendSpool::default() };
        let second = SpoolPart { id: ids[1].clone(), is_last: true, spool: second };
        assert_eq!(decode_spool(&frames[1]), Ok(second));
    }
}
