//! Variable-length numbers, and texts after their length: the encoding that Howdah's own files,
//! protocol buffers and Parquet share.
//!
//! ```text
//! varint = a number of up to 64 bits in groups of seven bits, lowest first; the high bit of a byte
//!          says that another one follows (unsigned LEB128)
//! signed = varint of the zigzag encoding: 0, -1, 1, -2, … become 0, 1, 2, 3, …
//! text   = varint: its length in bytes, then UTF-8
//! ```
//!
//! [`ByteWriter`] appends these to a buffer, [`ByteReader`] reads them back. The reader's input is
//! not trusted: it allocates nothing, and a count or a length is checked before it is returned.
//!
//! Formats of fixed-width numbers do without this crate: the standard library has what they need.
//! The messages of PostgreSQL's protocol, whose errors name their fields, are read by `wire`.
//!
//! ```
//! use howdah_codec::{ByteReader, ByteWriter as _};
//!
//! let mut out = Vec::new();
//! out.write_varint(300);
//! out.write_signed(-2);
//! out.write_text("accounts");
//! assert_eq!(out, b"\xac\x02\x03\x08accounts");
//!
//! let mut reader = ByteReader::new(&out);
//! assert_eq!(reader.varint(), Ok(300));
//! assert_eq!(reader.signed(), Ok(-2));
//! assert_eq!(reader.text(), Ok("accounts"));
//! assert!(reader.is_empty());
//! ```

mod reader;
mod writer;

pub use reader::{ByteReader, CodecError};
pub use writer::ByteWriter;

/// Maps numbers to unsigned ones so that small numbers of either sign are small.
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// Reverts [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests;
