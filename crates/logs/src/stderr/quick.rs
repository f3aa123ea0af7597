//! Lines as nearly all of a log are: the second of the line before, a prefix that was read before, `LOG:`.
//!
//! What such a line says is found by comparing words at places that are known beforehand. A line that is
//! any other way is read by [`StderrFramer`], which finds the same.

use howdah_traffic::Timestamp;

use super::{
    PARTS,
    framer::{Line, Open, Read, StderrFramer},
};
use crate::{
    clock::Assumption,
    frame::{Frame, Frames},
    message::Said,
    pieces::{Span, is_same},
    record::{Label, Part, Severity},
};

const LABEL: &[u8] = b"LOG";
const DETAIL: &[u8] = b"DETAIL";

/// A line that was read so. It begins a message of the log.
pub(super) struct Quick {
    time: Timestamp,
    assumption: Option<Assumption>,
    /// The number of its owner.
    owner: u32,
    /// Where the label begins in the line.
    label_at: usize,
}

impl StderrFramer {
    /// Reads time, prefix and label of a line that begins a message of the log, if all is as it was before.
    #[inline]
    pub(super) fn read_quickly(
        &mut self,
        piece: &[u8],
        line: &Line,
        out: &mut Frames,
    ) -> Option<Quick> {
        let seen = self.seen.as_mut()?;
        let text = piece.get(line.start..line.colon?)?;
        let (before, label) = text.split_last_chunk::<{ LABEL.len() }>()?;
        // A longer word, which is no label that is known, would have another prefix before it.
        if label != LABEL || before.last().is_none_or(|byte| is_of_label(*byte)) {
            return None;
        }
        let (time, len) = self.clock.read_next(&piece[line.start..])?;
        let assumption = self.clock.take_assumption();
        let owner = seen.find(before.get(len..)?, line.start + len, out)?;
        Some(Quick { time, assumption, owner, label_at: before.len() })
    }
}

impl Open {
    /// A record that begins with this line. If it `is_simple`, its text is as it is in the line, and it is framed
    /// at once.
    #[inline]
    pub(super) fn begin_quickly(
        &mut self,
        piece: &[u8],
        line: &Line,
        quick: &Quick,
        is_simple: bool,
        out: &mut Frames,
    ) {
        let Quick { time, assumption, owner, label_at } = *quick;
        let text = label_at + LABEL.len() + 3;
        self.is_framed = is_simple;
        if !is_simple {
            let (label, time) = (Label::Main(Severity::Log), Some(time));
            let read = Read { time, assumption, owner, label, label_at, text, is_cold: false };
            return self.begin(line, &read, quick.time, Severity::Log);
        }
        (self.is_open, self.label_at) = (false, label_at);
        (self.start, self.newlines, self.mark) = (line.start as u32, line.newlines, line.mark);
        let message = Span::input(line.start + text, line.end - 1);
        out.frames.push(Frame {
            said: Said::by(Severity::Log, message.text(piece, &[])),
            start: line.start as u32,
            end: line.end as u32,
            newlines: line.newlines,
            owner,
            time,
            assumption,
            message,
            ..Frame::EMPTY
        });
    }

    /// Takes the record back that is the last frame, to go on with it in another way.
    pub(super) fn take_back(&mut self, out: &mut Frames) {
        if !std::mem::take(&mut self.is_framed) {
            return;
        }
        let Some(frame) = out.frames.pop() else { return };
        let Frame { start, newlines, owner, severity, time, assumption, .. } = frame;
        (self.start, self.newlines, self.owner) = (start, newlines, owner);
        (self.severity, self.time, self.assumption) = (severity, time, assumption);
        self.main = frame.message.with_line_end();
        self.parts = [Span::ABSENT; PARTS];
        self.parts[Part::Detail as usize] = frame.detail.with_line_end();
        self.parts[Part::Context as usize] = frame.context.with_line_end();
        self.parts[Part::Statement as usize] = frame.statement.with_line_end();
        (self.is_open, self.has_parts, self.is_folded, self.is_cold) = (true, true, false, false);
    }

    /// Takes a further line of the record, if there is one and the line begins with the same bytes as its first,
    /// up to the label.
    #[inline]
    pub(super) fn takes_repeated(&mut self, piece: &[u8], line: &Line, out: &mut Frames) -> bool {
        if !self.is_open && !self.is_framed {
            return false;
        }
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
        let text = at + len + 3;
        if self.is_framed && !line.is_folded {
            let field = out.frames.last_mut().and_then(|frame| field_of(frame, part));
            if let Some(field) = field {
                *field = Span::input(text, line.end - 1);
                return true;
            }
        }
        self.take_back(out);
        self.take(part, Span::input(text, line.end), line);
        true
    }
}

/// Where a frame has a further field of a message as it is in its line.
#[inline]
fn field_of(frame: &mut Frame, part: Part) -> Option<&mut Span> {
    match part {
        Part::Detail => Some(&mut frame.detail),
        Part::Context => Some(&mut frame.context),
        Part::Statement => Some(&mut frame.statement),
        Part::Hint | Part::Query | Part::Location | Part::Backtrace => None,
    }
}

/// Whether a byte may be part of a label, so that one before a label makes it another word.
#[inline]
pub(super) fn is_of_label(byte: u8) -> bool {
    byte.is_ascii_uppercase() || byte.is_ascii_digit()
}
