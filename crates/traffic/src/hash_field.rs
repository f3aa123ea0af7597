//! The fields of an event in an [`EventHash`](crate::EventHash): their tags, and the sum over them.

use xxhash_rust::{
    const_xxh3,
    xxh3::{xxh3_64, xxh3_128},
};

/// The field tags, in the order of the fields of an event. Numbers are never reused.
/// `docs/src/reference/event-hash.md` documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HashField {
    /// Number: microseconds since 1970-01-01 00:00 UTC.
    Time = 1,
    /// Text.
    Session = 2,
    /// Text: [`Kind::as_str`](crate::Kind::as_str).
    Kind = 3,
    /// Text, omitted if empty, like the next two.
    User = 4,
    /// Text.
    Database = 5,
    /// Text.
    Application = 6,
    /// Text: name of the prepared statement.
    Statement = 7,
    /// Text.
    Portal = 8,
    /// Text.
    Sql = 9,
    /// List.
    Parameters = 10,
    /// Text: `in` or `out`.
    CopyDirection = 11,
    /// Text: name of the called function.
    Function = 12,
    /// Number, microseconds.
    Duration = 13,
    /// Text: five characters.
    SqlState = 14,
    /// Text: the error message.
    Error = 15,
    /// Text: [`crate::Source::as_str`].
    Source = 16,
    /// Text.
    Vxid = 17,
    /// Number.
    QueryId = 18,
    /// Number.
    Pipeline = 19,
    /// Number.
    Rows = 20,
    /// Numbers, omitted if there are none, like the next two.
    Types = 21,
    /// Numbers.
    Formats = 22,
    /// Numbers.
    ResultFormats = 23,
    /// Number, omitted if it is 0.
    RowsMax = 24,
    /// List, omitted if empty: name and value in turn.
    Settings = 25,
    /// Number.
    CopyBytes = 26,
    /// List.
    CopyData = 27,
    /// Number 1, omitted unless the client ended the COPY by CopyFail.
    CopyFailed = 28,
    /// Text: [`crate::WireDetail::messages`].
    Messages = 29,
    /// List: arguments of a function call.
    Arguments = 30,
}

/// The sum over some of an event's fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FieldSum(u128);

impl FieldSum {
    /// Adds a field by its word.
    #[inline]
    pub(crate) fn number(&mut self, field: HashField, word: u64) {
        let multiplier = u128::from(MULTIPLIERS[field as usize]);
        // (word + 1) · multiplier; the processor multiplies 64 by 64 bits.
        self.0 = self.0.wrapping_add(u128::from(word) * multiplier + multiplier);
    }

    /// Adds a field by its text.
    #[inline]
    pub(crate) fn text(&mut self, field: HashField, text: &[u8]) {
        let word = if text.is_empty() { EMPTY } else { xxh3_64(text) };
        self.number(field, word);
    }

    /// Returns the hash of the event that has these fields.
    #[inline]
    pub(crate) fn hash(self) -> u128 {
        xxh3_128(&self.0.to_le_bytes())
    }
}

/// The word of an empty text: most statements and portals are unnamed.
pub(crate) const EMPTY: u64 = const_xxh3::xxh3_64(b"");

/// Multipliers by tag.
const MULTIPLIERS: [u64; HashField::Arguments as usize + 1] = {
    let mut multipliers = [0; HashField::Arguments as usize + 1];
    let mut tag = 0;
    while tag < multipliers.len() {
        multipliers[tag] = const_xxh3::xxh3_64(&[tag as u8]) | 1;
        tag += 1;
    }
    multipliers
};
