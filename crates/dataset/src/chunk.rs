//! Column chunks of Parquet, made from memory that is laid out by column already.
//!
//! The general encoder takes arrays: it hashes every value of a column to find it in a dictionary, and walks
//! each level of each column. Whoever writes down what clients do has found equal values before, and most of
//! its columns hold nothing. So this module takes numbers, and numbers of words in a
//! [`Words`](crate::words::Words), and makes pages of them.
//!
//! ```text
//! column chunk = dictionary page?, data page …     each page: header (Thrift), body, compressed
//! data page    = repetition levels, definition levels (hybrid of runs and packed bits), values
//! values       = numbers: DELTA_BINARY_PACKED;  words: RLE_DICTIONARY, or PLAIN where few repeat
//! ```
//!
//! Source: the Parquet format's `README.md` and `Encodings.md`, data pages of version 1.

mod delta;
mod group;
mod hybrid;
mod pages;

pub(crate) use group::GroupWriter;
pub(crate) use pages::Packer;
