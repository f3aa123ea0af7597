//! The fields of an event in an [`EventHash`](crate::EventHash): their tags, and the sum over them.

use xxhash_rust::{
    const_xxh3,
    xxh3::{xxh3_64, xxh3_128},
};

/// The tag of a field in an [`EventHash`](crate::EventHash). Numbers are never reused.
/// `docs/src/reference/event-hash.md` documents the tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HashField {
    /// Number: microseconds since 1970-01-01 00:00 UTC.
    Time = 1,
    /// Text: name of the session.
    Session = 2,
    /// Text: [`Kind::as_str`](crate::Kind::as_str).
    Kind = 3,
    /// Text: the session's role, omitted if unknown.
    User = 4,
    /// Text: the session's database, omitted if unknown.
    Database = 5,
    /// Text: the session's `application_name`, omitted if unknown.
    Application = 6,
    /// Text: name of the prepared statement, empty for the unnamed one.
    Statement = 7,
    /// Text: name of the portal, empty for the unnamed one.
    Portal = 8,
    /// Text: the SQL of the action.
    Sql = 9,
    /// List, omitted if unknown: values of the parameters.
    Parameters = 10,
    /// Text: `in` or `out`.
    CopyDirection = 11,
    /// Text: the called function, as in [`crate::Action::Call`].
    Function = 12,
    /// Number: the duration in microseconds, as in [`crate::CapturedOutcome`].
    Duration = 13,
    /// Text: the SQLSTATE, five characters.
    SqlState = 14,
    /// Text: the error message.
    Error = 15,
    /// Text: [`crate::Source::as_str`].
    Source = 16,
    /// Text: the virtual transaction id.
    Vxid = 17,
    /// Number: PostgreSQL's query identifier.
    QueryId = 18,
    /// Number of the pipeline in its session.
    Pipeline = 19,
    /// Number of rows: [`crate::WireDetail::rows`].
    Rows = 20,
    /// Numbers: OIDs of the parameter types, omitted if there are none.
    Types = 21,
    /// Numbers: format codes of the bound values, omitted if there are none.
    Formats = 22,
    /// Numbers: format codes of the results, omitted if there are none.
    ResultFormats = 23,
    /// Number: the row limit of an Execute, omitted if there is none.
    RowsMax = 24,
    /// List, omitted if empty: name and value in turn.
    Settings = 25,
    /// Number of bytes of COPY data.
    CopyBytes = 26,
    /// List, omitted if empty: the rows of each COPY, as sent.
    CopyData = 27,
    /// Number 1, omitted unless the client ended the last COPY with CopyFail.
    CopyFailed = 28,
    /// Text: [`crate::WireDetail::messages`].
    Messages = 29,
    /// List: arguments of a function call.
    Arguments = 30,
    /// Number: checksum of the result.
    ResultChecksum = 31,
    /// List: the first row of the result.
    FirstRow = 32,
}

/// The sum over some or all of an event's fields, from which its hash is computed.
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

/// The word of an empty text, computed in advance because most statements and portals are unnamed.
pub(crate) const EMPTY: u64 = const_xxh3::xxh3_64(b"");

/// The multipliers of the fields, indexed by tag.
const MULTIPLIERS: [u64; HashField::FirstRow as usize + 1] = {
    let mut multipliers = [0; HashField::FirstRow as usize + 1];
    let mut tag = 0;
    while tag < multipliers.len() {
        multipliers[tag] = const_xxh3::xxh3_64(&[tag as u8]) | 1;
        tag += 1;
    }
    multipliers
};
