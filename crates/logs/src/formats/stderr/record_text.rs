//! The texts of a record: the message, and further fields such as `DETAIL`, each on its own line.

use howdah_log_input::MessageField;
use howdah_traffic::SqlState;

use crate::record::{
    frame::RecordFrame,
    message_fields::MessageFields,
    spans::{FieldSpan, function_name},
};

/// The lines of a record, without their prefixes and labels, but with their line ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct RecordText {
    pub(super) message: FieldSpan,
    pub(super) fields: [FieldSpan; FIELDS],
    /// Whether a further field, such as DETAIL, is present.
    pub(super) has_fields: bool,
    /// Whether tabs may continue a line over several lines of the file.
    pub(super) is_folded: bool,
}

const FIELDS: usize = MessageField::Statement as usize + 1;

impl RecordText {
    pub(super) const EMPTY: Self = Self {
        message: FieldSpan::ABSENT,
        fields: [FieldSpan::ABSENT; FIELDS],
        has_fields: false,
        is_folded: false,
    };

    /// Replaces the texts by a message.
    #[inline]
    pub(super) fn start(&mut self, message: FieldSpan, is_folded: bool) {
        self.message = message;
        if self.has_fields {
            self.fields = [FieldSpan::ABSENT; FIELDS];
            self.has_fields = false;
        }
        self.is_folded = is_folded;
    }

    /// Adds the text of a further field.
    #[inline]
    pub(super) fn add_field(&mut self, field: MessageField, text: FieldSpan, is_folded: bool) {
        self.fields[field as usize] = text;
        self.has_fields = true;
        self.is_folded |= is_folded;
    }

    /// Sets the texts of a frame with a severity. `newlines` returns the offsets of newlines from
    /// an offset on.
    #[inline]
    pub(super) fn decode<I: Iterator<Item = usize>>(
        &self,
        frame: &mut RecordFrame,
        input: &[u8],
        has_carriage_returns: bool,
        scratch: &mut Vec<u8>,
        newlines: impl Fn(usize) -> I,
    ) {
        let mut unfolded = |text: FieldSpan| match text {
            FieldSpan::ABSENT => text,
            _ if !self.is_folded => trim_line_end(input, text, has_carriage_returns),
            _ => {
                let newlines = newlines(text.range().start);
                unfold(input, text, has_carriage_returns, newlines, scratch)
            }
        };
        frame.message = unfolded(self.message);
        if self.has_fields {
            let mut field = |field: MessageField| unfolded(self.fields[field as usize]);
            frame.detail = field(MessageField::Detail);
            frame.context = field(MessageField::Context);
            frame.statement = field(MessageField::Statement);
            let location = field(MessageField::Location);
            if location != FieldSpan::ABSENT {
                set_location(frame, location, input, scratch);
            }
        }
        frame.message_fields =
            MessageFields::parse(frame.severity, frame.message.text(input, scratch));
    }
}

/// Sets the function of a verbose record, whose message begins with its SQLSTATE.
fn set_location(frame: &mut RecordFrame, location: FieldSpan, input: &[u8], scratch: &[u8]) {
    frame.function = location.truncated(function_name(location.text(input, scratch)).len());
    if let Some((code, rest)) = frame.message.text(input, scratch).split_at_checked(5)
        && let (Some(code), true) = (SqlState::new(code), rest.starts_with(b": "))
    {
        frame.sqlstate = Some(code);
        frame.message = frame.message.skip_first(7);
    }
}

/// Removes a newline from the end of a text and then, with `has_carriage_returns`, a carriage
/// return.
#[inline]
fn trim_line_end(input: &[u8], text: FieldSpan, has_carriage_returns: bool) -> FieldSpan {
    let whole = text.text(input, &[]);
    let inside = whole.strip_suffix(b"\n").unwrap_or(whole);
    text.truncated(if has_carriage_returns { strip_return(inside).len() } else { inside.len() })
}

/// Trims a text like [`trim_line_end`], and removes the tab after each of its newlines, whose
/// offsets are the first of `newlines`.
fn unfold(
    input: &[u8],
    text: FieldSpan,
    has_carriage_returns: bool,
    newlines: impl Iterator<Item = usize>,
    scratch: &mut Vec<u8>,
) -> FieldSpan {
    let text = trim_line_end(input, text, has_carriage_returns);
    let range = text.range();
    let (from, mut copied) = (scratch.len(), range.start);
    for newline in newlines.take_while(|at| *at < range.end) {
        if has_carriage_returns {
            scratch.extend_from_slice(strip_return(&input[copied..newline]));
            scratch.push(b'\n');
        } else {
            scratch.extend_from_slice(&input[copied..=newline]);
        }
        // A tab follows the newline, or the text would end here.
        copied = newline + 2;
    }
    if copied == range.start {
        return text;
    }
    scratch.extend_from_slice(input.get(copied..range.end).unwrap_or_default());
    FieldSpan::scratch(from, scratch.len())
}

fn strip_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
