//! Encodes Parquet column chunks from rows that are already stored by column.
//!
//! The general encoder takes Arrow arrays: it hashes every value of a column to find it in a
//! dictionary, and visits each level of each column. The capture writer has already found equal
//! values, and most of its columns are empty. So this module takes numbers and indexes of a
//! [`StringDictionary`](crate::dictionary::StringDictionary), and encodes pages from them.
//!
//! ```text
//! column chunk = dictionary page?, data page …     each page: header (Thrift), body, compressed
//! data page    = repetition levels, definition levels (RLE/bit-packing hybrid), values
//! values       = numbers: DELTA_BINARY_PACKED;  strings: RLE_DICTIONARY, or PLAIN where few repeat
//! ```
//!
//! Source: the Parquet format's `README.md` and `Encodings.md`, data pages of version 1.

mod delta;
mod group;
mod hybrid;
mod pages;

pub(crate) use group::{EncodedGroup, GroupWriter};
pub(crate) use pages::PageCompressor;
