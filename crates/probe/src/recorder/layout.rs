//! The layout of a recording's file.
//!
//! ```text
//! header, 4096 bytes │ 8 episode slots │ 24 ring slots
//! slot:  sequence 8, checksum 8 │ frame │ frame │ … │ remains of earlier frames
//! frame: length 4, checksum 8, body
//! ```
//!
//! A slot is filled from its start. When it is full, the ring's next slot gets a new sequence
//! number and is overwritten. The checksum of a frame is seeded with the sequence number, so what
//! remains of a slot's earlier frames is not valid, nor is a frame that was cut short when the
//! recorder was killed: the slot ends there. Nothing is moved or copied, and the file never grows
//! beyond its slots. Fixed-size numbers are little-endian; checksums are XXH3-64.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Size of the file header, in bytes.
pub(super) const HEADER_BYTES: u64 = 4096;
/// Number of slots for episodes, which come first.
pub(super) const EPISODE_SLOTS: u32 = 8;
/// Number of slots of the ring: when the last one is full, the first is overwritten.
pub(super) const RING_SLOTS: u32 = 24;
/// Size of a slot's header, in bytes.
pub(super) const SLOT_HEADER_BYTES: usize = 16;
/// Size of a frame's header, in bytes.
pub(super) const FRAME_HEADER_BYTES: usize = 12;
/// Lowest value allowed for the maximum size of a file, in bytes.
pub(super) const MAX_BYTES_MIN: u64 = 1 << 20;
/// Highest value allowed for the maximum size of a file, in bytes.
pub(super) const MAX_BYTES_MAX: u64 = 4 << 30;

const MAGIC: [u8; 8] = *b"HOWDAHFR";
const VERSION: u32 = 1;
const SLOT_UNIT: u64 = 512;
/// Seed for the checksum of a sequence number, so that it differs from that of a frame.
const SEQUENCE_SEED: u64 = 0x7365_7175_656e_6365;

/// The layout of a file, determined by the size of its slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slot_bytes: u32,
}

impl Layout {
    /// Returns the layout of a file of at most `max_bytes`, which is clamped to the allowed range.
    pub(super) fn for_max_bytes(max_bytes: u64) -> Self {
        let max_bytes = max_bytes.clamp(MAX_BYTES_MIN, MAX_BYTES_MAX);
        let slot = (max_bytes - HEADER_BYTES) / u64::from(EPISODE_SLOTS + RING_SLOTS);
        Self { slot_bytes: u32::try_from(slot / SLOT_UNIT * SLOT_UNIT).unwrap_or(u32::MAX) }
    }

    /// Encodes the header of a file, padded to [`HEADER_BYTES`].
    pub(super) fn head(self) -> Vec<u8> {
        let mut header = Vec::with_capacity(HEADER_BYTES as usize);
        header.extend(MAGIC);
        for number in [VERSION, self.slot_bytes, EPISODE_SLOTS, RING_SLOTS] {
            header.extend(number.to_le_bytes());
        }
        header.extend(xxh3_64(&header).to_le_bytes());
        header.resize(HEADER_BYTES as usize, 0);
        header
    }

    /// Parses the header of a file; `None` if it is not valid.
    pub(super) fn from_header(head: &[u8]) -> Option<Self> {
        let slot_bytes = u32::from_le_bytes(*head.get(12..)?.first_chunk()?);
        let layout = Self { slot_bytes };
        let is_valid = Self::for_max_bytes(layout.max_bytes()) == layout;
        (is_valid && head.get(..32)? == &layout.head()[..32]).then_some(layout)
    }

    /// Returns the maximum size of the file, in bytes.
    pub(super) fn max_bytes(self) -> u64 {
        self.offset(EPISODE_SLOTS + RING_SLOTS)
    }

    /// Returns the file offset of a slot.
    pub(super) fn offset(self, slot: u32) -> u64 {
        HEADER_BYTES + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Returns the length of the longest body that fits into a slot, in bytes.
    pub(super) fn body_max(self) -> usize {
        self.slot_bytes as usize - SLOT_HEADER_BYTES - FRAME_HEADER_BYTES
    }
}

/// Encodes a slot's header: its sequence number, and the checksum of that.
pub(super) fn slot_header(sequence: u64) -> [u8; SLOT_HEADER_BYTES] {
    let mut head = [0; SLOT_HEADER_BYTES];
    let sequence = sequence.to_le_bytes();
    head[..8].copy_from_slice(&sequence);
    head[8..].copy_from_slice(&xxh3_64_with_seed(&sequence, SEQUENCE_SEED).to_le_bytes());
    head
}

/// Returns the sequence number of a slot; `None` if its header is not valid.
pub(super) fn sequence(slot: &[u8]) -> Option<u64> {
    let head = slot.first_chunk::<SLOT_HEADER_BYTES>()?;
    let sequence = u64::from_le_bytes(*head.first_chunk()?);
    (slot_header(sequence) == *head).then_some(sequence)
}

/// Encodes a body as a frame of a slot.
pub(super) fn frame(sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEADER_BYTES + body.len());
    frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend(xxh3_64_with_seed(body, sequence).to_le_bytes());
    frame.extend(body);
    frame
}

/// Returns the bodies of a slot's frames, and the offset of the end of the last one.
pub(super) fn frames(slot: &[u8], sequence: u64) -> (Vec<&[u8]>, usize) {
    let (mut bodies, mut end) = (Vec::new(), SLOT_HEADER_BYTES);
    while let Some(body) = slot.get(end..).and_then(|rest| parse_frame(rest, sequence)) {
        bodies.push(body);
        end += FRAME_HEADER_BYTES + body.len();
    }
    (bodies, end)
}

fn parse_frame(rest: &[u8], sequence: u64) -> Option<&[u8]> {
    let (head, rest) = rest.split_first_chunk::<FRAME_HEADER_BYTES>()?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let checksum = u64::from_le_bytes(*head.last_chunk()?);
    // Empty bodies are never written, so zeros are not a frame.
    let body = rest.get(..length).filter(|body| !body.is_empty())?;
    (xxh3_64_with_seed(body, sequence) == checksum).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_never_exceeds_its_maximum_size() {
        for max_bytes in [0, MAX_BYTES_MIN, 64 << 20, 100_000_001, MAX_BYTES_MAX, u64::MAX] {
            let layout = Layout::for_max_bytes(max_bytes);
            assert!(layout.max_bytes() <= max_bytes.max(MAX_BYTES_MIN), "{max_bytes}");
            assert_eq!(Layout::from_header(&layout.head()), Some(layout));
        }
        let mut head = Layout::for_max_bytes(64 << 20).head();
        head[13] ^= 1;
        assert_eq!(Layout::from_header(&head), None);
        assert_eq!(Layout::from_header(&head[..20]), None);
    }

    #[test]
    fn frames_of_an_earlier_turn_are_ignored() {
        let mut slot = slot_header(7).to_vec();
        slot.extend(frame(7, b"one"));
        slot.extend(frame(7, b"two"));
        let whole = slot.len();
        slot.extend(frame(6, b"of an earlier turn"));
        assert_eq!(sequence(&slot), Some(7));
        let (bodies, end) = frames(&slot, 7);
        assert_eq!((bodies, end), (vec![&b"one"[..], &b"two"[..]], whole));
        for cut in whole - FRAME_HEADER_BYTES - 2..whole {
            assert_eq!(frames(&slot[..cut], 7).0, [b"one"], "cut at {cut}");
        }
        slot[3] ^= 1;
        assert_eq!(sequence(&slot), None);
    }
}
