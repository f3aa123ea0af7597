//! Where things are in a file of a recording.
//!
//! ```text
//! head, 4096 bytes │ 8 slots for episodes │ 24 slots of the ring
//! slot:  sequence 8, check 8 │ frame │ frame │ … │ what is left of an earlier turn
//! frame: length 4, check 8, body
//! ```
//!
//! A slot is written from its front; when it is full, the ring's next one gets a new sequence number and is
//! written over. The check of a frame is seeded with the sequence, so what is left of an earlier turn is no
//! frame, and neither is one that was cut short by a kill: there a slot ends. Nothing is moved or copied, and
//! the file never grows beyond its slots. Fixed numbers are little-endian; checks are XXH3-64.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// Bytes before the first slot.
pub(super) const HEAD_BYTES: u64 = 4096;
/// Slots for episodes. The first of all.
pub(super) const EPISODE_SLOTS: u32 = 8;
/// Slots of the ring.
pub(super) const RING_SLOTS: u32 = 24;
/// Bytes before a slot's first frame.
pub(super) const SLOT_HEAD: usize = 16;
/// Bytes before a body.
pub(super) const FRAME_HEAD: usize = 12;
/// The smallest file that is of use.
pub(super) const MAX_BYTES_MIN: u64 = 1 << 20;
/// The largest.
pub(super) const MAX_BYTES_MAX: u64 = 4 << 30;

const MAGIC: [u8; 8] = *b"HOWDAHFR";
const VERSION: u32 = 1;
const SLOT_UNIT: u64 = 512;
/// So that the check of a sequence number is not that of a frame.
const SEQUENCE_SEED: u64 = 0x7365_7175_656e_6365;

/// How large slots are; all else follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) slot_bytes: u32,
}

impl Layout {
    /// The layout of a file that is never larger than `max_bytes`.
    pub(super) fn within(max_bytes: u64) -> Self {
        let max_bytes = max_bytes.clamp(MAX_BYTES_MIN, MAX_BYTES_MAX);
        let slot = (max_bytes - HEAD_BYTES) / u64::from(EPISODE_SLOTS + RING_SLOTS);
        Self { slot_bytes: u32::try_from(slot / SLOT_UNIT * SLOT_UNIT).unwrap_or(u32::MAX) }
    }

    /// The whole head of a file.
    pub(super) fn head(self) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_BYTES as usize);
        head.extend(MAGIC);
        for number in [VERSION, self.slot_bytes, EPISODE_SLOTS, RING_SLOTS] {
            head.extend(number.to_le_bytes());
        }
        head.extend(xxh3_64(&head).to_le_bytes());
        head.resize(HEAD_BYTES as usize, 0);
        head
    }

    /// What the head of a file says, if it is one.
    pub(super) fn of_head(head: &[u8]) -> Option<Self> {
        let slot_bytes = u32::from_le_bytes(*head.get(12..)?.first_chunk()?);
        let layout = Self { slot_bytes };
        let is_sound = Self::within(layout.max_bytes()) == layout;
        (is_sound && head.get(..32)? == &layout.head()[..32]).then_some(layout)
    }

    /// How large the file may become.
    pub(super) fn max_bytes(self) -> u64 {
        self.offset(EPISODE_SLOTS + RING_SLOTS)
    }

    /// Where a slot begins.
    pub(super) fn offset(self, slot: u32) -> u64 {
        HEAD_BYTES + u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// The longest body that a slot holds.
    pub(super) fn body_max(self) -> usize {
        self.slot_bytes as usize - SLOT_HEAD - FRAME_HEAD
    }
}

/// What a slot begins with.
pub(super) fn slot_head(sequence: u64) -> [u8; SLOT_HEAD] {
    let mut head = [0; SLOT_HEAD];
    let sequence = sequence.to_le_bytes();
    head[..8].copy_from_slice(&sequence);
    head[8..].copy_from_slice(&xxh3_64_with_seed(&sequence, SEQUENCE_SEED).to_le_bytes());
    head
}

/// The sequence number of a slot, if it has one.
pub(super) fn sequence(slot: &[u8]) -> Option<u64> {
    let head = slot.first_chunk::<SLOT_HEAD>()?;
    let sequence = u64::from_le_bytes(*head.first_chunk()?);
    (slot_head(sequence) == *head).then_some(sequence)
}

/// A body as a frame of a slot.
pub(super) fn frame(sequence: u64, body: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(FRAME_HEAD + body.len());
    frame.extend(u32::try_from(body.len()).unwrap_or(u32::MAX).to_le_bytes());
    frame.extend(xxh3_64_with_seed(body, sequence).to_le_bytes());
    frame.extend(body);
    frame
}

/// The bodies of a slot's frames, and where the last one ends.
pub(super) fn frames(slot: &[u8], sequence: u64) -> (Vec<&[u8]>, usize) {
    let (mut bodies, mut end) = (Vec::new(), SLOT_HEAD);
    while let Some(body) = slot.get(end..).and_then(|rest| body(rest, sequence)) {
        bodies.push(body);
        end += FRAME_HEAD + body.len();
    }
    (bodies, end)
}

fn body(rest: &[u8], sequence: u64) -> Option<&[u8]> {
    let (head, rest) = rest.split_first_chunk::<FRAME_HEAD>()?;
    let length = u32::from_le_bytes(*head.first_chunk()?) as usize;
    let check = u64::from_le_bytes(*head.last_chunk()?);
    // Empty bodies are not written; zeros are no frame.
    let body = rest.get(..length).filter(|body| !body.is_empty())?;
    (xxh3_64_with_seed(body, sequence) == check).then_some(body)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_never_larger_than_it_may_be() {
        for max_bytes in [0, MAX_BYTES_MIN, 64 << 20, 100_000_001, MAX_BYTES_MAX, u64::MAX] {
            let layout = Layout::within(max_bytes);
            assert!(layout.max_bytes() <= max_bytes.max(MAX_BYTES_MIN), "{max_bytes}");
            assert_eq!(Layout::of_head(&layout.head()), Some(layout));
        }
        let mut head = Layout::within(64 << 20).head();
        head[13] ^= 1;
        assert_eq!(Layout::of_head(&head), None);
        assert_eq!(Layout::of_head(&head[..20]), None);
    }

    #[test]
    fn a_slot_ends_where_its_turn_does() {
        let mut slot = slot_head(7).to_vec();
        slot.extend(frame(7, b"one"));
        slot.extend(frame(7, b"two"));
        let whole = slot.len();
        slot.extend(frame(6, b"of an earlier turn"));
        assert_eq!(sequence(&slot), Some(7));
        let (bodies, end) = frames(&slot, 7);
        assert_eq!((bodies, end), (vec![&b"one"[..], &b"two"[..]], whole));
        for cut in whole - FRAME_HEAD - 2..whole {
            assert_eq!(frames(&slot[..cut], 7).0, [b"one"], "cut at {cut}");
        }
        slot[3] ^= 1;
        assert_eq!(sequence(&slot), None);
    }
}
