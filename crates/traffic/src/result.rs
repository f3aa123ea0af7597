//! Results of statements: a checksum of the rows, and the first row.

use xxhash_rust::xxh3::xxh3_64;

use crate::Text;

/// The captured result of a statement; of a simple query, those of all its statements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CapturedResult {
    /// See [`ResultDigest::checksum`].
    pub checksum: u64,
    /// The values of the first row, in the formats that the client requested. Only captured if the
    /// statement may have generated them, as `INSERT … RETURNING` and `nextval` do.
    pub first_row: Option<Vec<Option<Text>>>,
}

impl CapturedResult {
    /// Adds the result of the next statement of the same query, by the sum over its rows; 0 for
    /// none.
    pub fn append(&mut self, sum: u64) {
        self.checksum = combined(self.checksum, sum);
    }
}

/// Returns the checksum of several results, of which `sum` is that of the last.
fn combined(before: u64, sum: u64) -> u64 {
    before.rotate_left(1).wrapping_add(sum)
}

/// Maximum size of a first row that is stored.
const FIRST_ROW_BYTES_MAX: usize = 1 << 10;

/// Computes the checksum of results while their rows arrive.
///
/// The checksum of one result is the sum of the XXH3-64 of its DataRow bodies, modulo 2⁶⁴, so the
/// order of the rows does not matter. That of several results is computed from left to right:
/// rotate the checksum so far by one bit to the left, and add the next one.
///
/// ```
/// use howdah_traffic::ResultDigest;
///
/// let checksum = |rows: &[&[u8]]| {
///     let mut digest = ResultDigest::default();
///     rows.iter().for_each(|row| digest.add_row(row));
///     digest.end_result();
///     digest.checksum()
/// };
/// assert_eq!(checksum(&[b"\0\0a", b"\0\0b"]), checksum(&[b"\0\0b", b"\0\0a"]));
/// assert_ne!(checksum(&[b"\0\0a", b"\0\0b"]), checksum(&[b"\0\0a"]));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResultDigest {
    /// The checksum of the results that have ended.
    ended: u64,
    /// The sum over the rows of the current result.
    sum: u64,
    first_row: Vec<u8>,
    has_rows: bool,
    is_incomplete: bool,
}

impl ResultDigest {
    /// Adds a row by the body of its DataRow message.
    pub fn add_row(&mut self, body: &[u8]) {
        self.sum = self.sum.wrapping_add(xxh3_64(body));
        if !self.has_rows && body.len() <= FIRST_ROW_BYTES_MAX {
            self.first_row.extend_from_slice(body);
        }
        self.has_rows = true;
    }

    /// Records that a row could not be read, so that the result has no checksum.
    pub fn skip_row(&mut self) {
        self.has_rows = true;
        self.is_incomplete = true;
    }

    /// Adds the current result of another digest as the next result.
    pub fn append(&mut self, other: &Self) {
        self.sum = other.sum;
        self.is_incomplete |= other.is_incomplete;
        if !self.has_rows {
            self.first_row.clone_from(&other.first_row);
        }
        self.has_rows |= other.has_rows;
        self.end_result();
    }

    /// Ends the current result.
    pub fn end_result(&mut self) {
        self.ended = combined(self.ended, std::mem::take(&mut self.sum));
    }

    /// Returns the checksum of the results that have ended.
    pub fn checksum(&self) -> u64 {
        self.ended
    }

    /// Returns the body of the first row of all results; empty if there is none, or it is too long.
    pub fn first_row(&self) -> &[u8] {
        &self.first_row
    }

    /// Whether any row was added.
    pub fn has_rows(&self) -> bool {
        self.has_rows
    }

    /// Whether a row could not be read.
    pub fn is_incomplete(&self) -> bool {
        self.is_incomplete
    }
}
