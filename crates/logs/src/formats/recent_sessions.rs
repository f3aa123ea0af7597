//! Caches session fields by the bytes that contain them, which all records of a session share.

use crate::record::{
    frame::ChunkFrames,
    spans::{FieldSpan, short_eq},
};

/// A cache of the session fields that were read recently in the chunk that is being framed.
#[derive(Clone, Debug)]
pub(crate) struct RecentSessions<const TAILS: usize> {
    slots: Vec<RecentSession<TAILS>>,
    /// Number of the chunk that is being framed, from 1.
    chunk: u64,
}

/// Session fields, with the bytes they were read from.
#[derive(Clone, Copy, Debug)]
struct RecentSession<const TAILS: usize> {
    /// The contiguous bytes that contain most of the fields.
    head: FieldSpan,
    /// Spans that contain application name, backend type and leader, which are not in `head`.
    tail: [FieldSpan; TAILS],
    chunk: u64,
    number: u32,
}

/// Number of slots, about the number of sessions with records near each other.
const SLOTS: usize = 512;

impl<const TAILS: usize> Default for RecentSessions<TAILS> {
    fn default() -> Self {
        let empty = RecentSession {
            head: FieldSpan::ABSENT,
            tail: [FieldSpan::ABSENT; TAILS],
            chunk: 0,
            number: 0,
        };
        Self { slots: vec![empty; SLOTS], chunk: 0 }
    }
}

impl<const TAILS: usize> RecentSessions<TAILS> {
    /// Starts another chunk, which invalidates all cached spans.
    pub(crate) fn start_chunk(&mut self) {
        self.chunk += 1;
    }

    /// Returns the index of a record's session fields. On a miss, `read` parses them. Without a
    /// `head` every lookup is a miss.
    #[inline]
    pub(crate) fn session_index(
        &mut self,
        head: Option<FieldSpan>,
        tail: [FieldSpan; TAILS],
        chunk: &[u8],
        out: &mut ChunkFrames,
        read: impl FnOnce(&mut ChunkFrames) -> u32,
    ) -> u32 {
        let Some(head) = head else { return read(out) };
        let text = |span: FieldSpan| span.text(chunk, &out.scratch);
        let last = text(head).last_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk));
        let slot = (last.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 55) as usize % SLOTS;
        let chunk_number = self.chunk;
        let is_hit = |entry: &RecentSession<TAILS>| {
            entry.chunk == chunk_number
                && short_eq(text(entry.head), text(head))
                && tail
                    .iter()
                    .zip(&entry.tail)
                    .all(|(one, other)| short_eq(text(*one), text(*other)))
        };
        for slot in [slot, slot ^ 1] {
            if is_hit(&self.slots[slot]) {
                return self.slots[slot].number;
            }
        }
        let number = read(out);
        // Two slots form a bucket, so that two sessions do not evict each other with every record.
        self.slots.swap(slot, slot ^ 1);
        self.slots[slot] = RecentSession { head, tail, chunk: self.chunk, number };
        number
    }
}
