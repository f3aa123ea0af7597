//! Scans a chunk for delimiters: one pass, with vector instructions if the processor has AVX2,
//! finds all of them before any parsing.

pub(crate) mod bitmasks;
pub(crate) mod structural_index;
#[cfg(target_arch = "x86_64")]
mod vector;
