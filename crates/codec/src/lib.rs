//! Variable-length numbers and length-prefixed texts: the encoding shared by Howdah's own files,
//! protocol buffers and Parquet.
//!
//! ```text
//! varint = a number of up to 64 bits in groups of seven bits, lowest first; the high bit of a byte
//!          says that another one follows (unsigned LEB128)
//! signed = varint of the zigzag encoding: 0, -1, 1, -2, … become 0, 1, 2, 3, …
//! text   = varint: its length in bytes, then UTF-8
//! ```
//!
//! [`ByteWriter`] appends these values to a buffer, and [`ByteReader`] reads them back. The reader
//! does not trust its input: it allocates nothing, and it checks a count or a length before
//! returning it.
//!
//! [`protobuf`] writes messages of protocol buffers.
//!
//! Formats with fixed-width numbers use the standard library instead of this crate. The crate
//! `wire` reads the messages of PostgreSQL's protocol, because its errors name the fields.
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

pub mod protobuf;
mod reader;
mod writer;

pub use reader::{ByteReader, CodecError};
pub use writer::ByteWriter;

/// Maps signed numbers to unsigned ones, so that numbers close to zero stay small.
#[inline]
pub const fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// Inverts [`zigzag`].
#[inline]
pub const fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests;
