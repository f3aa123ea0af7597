//! Lines as nearly all of a log are: the second of the line before, a prefix that was read before, `LOG:`.
//!
//! What such a line says is found by comparing words at places that are known beforehand. A line that is
//! any other way is read by [`StderrFramer`], which finds the same.

use super::framer::{Line, Open, Read, StderrFramer};
use crate::{
    frame::Frames,
    pieces::{Span, is_same},
    record::{Label, Part, Severity},
};

const LABEL: &[u8] = b"LOG";
const DETAIL: &[u8] = b"DETAIL";

impl StderrFramer {
    /// Reads time, prefix and label of a line that begins a message of the log, if all is as it was before.
    #[inline]
    pub(super) fn read_quickly(
        &mut self,
        piece: &[u8],
        line: &Line,
        out: &mut Frames,
    ) -> Option<Read> {
        let seen = self.seen.as_mut()?;
        let colon = line.colon?;
        let text = piece.get(line.start..colon)?;
        let (before, label) = text.split_last_chunk::<{ LABEL.len() }>()?;
        // A longer word, which is no label that is known, would have another prefix before it.
        if label != LABEL || before.last().is_none_or(|byte| is_of_label(*byte)) {
            return None;
        }
        let (time, len) = self.clock.read_next(text)?;
        let owner = seen.find(before.get(len..)?, line.start + len, out);
        let assumption = self.clock.take_assumption();
        Some(Read {
            time: Some(time),
            assumption,
            owner: owner?,
            label: Label::Main(Severity::Log),
            label_at: before.len(),
            text: text.len() + 3,
            is_cold: false,
        })
    }
}

impl Open {
    /// Takes a further line of the record, if it begins with the same bytes as the first, up to the label.
    #[inline]
    pub(super) fn takes_repeated(&mut self, piece: &[u8], line: &Line) -> bool {
        let at = line.start + self.label_at;
        // Length of the label, if the prefix is as long as that of the first line.
        let Some(len) = line.colon.and_then(|colon| colon.checked_sub(at)) else { return false };
        // No label of a field is as short as that of a message of the log.
        if len <= LABEL.len() || len > Label::LONGEST {
            return false;
        }
        let (first, further) = (self.start as usize, line.start);
        let prefixes = (piece.get(first..first + self.label_at), piece.get(further..at));
        let (Some(first), Some(further)) = prefixes else { return false };
        if !is_same(first, further) {
            return false;
        }
        let Some(label) = piece.get(at..line.end) else { return false };
        let part = match len == DETAIL.len() && label.starts_with(DETAIL) {
            true => Part::Detail,
            false => match Label::parse(label) {
                Some((Label::Field(part), _)) => part,
                _ => return false,
            },
        };
        self.take(part, Span::input(at + len + 3, line.end), line);
        true
    }
}

/// Whether a byte may be part of a label, so that one before a label makes it another word.
#[inline]
pub(super) fn is_of_label(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}
