//! Scans of a chunk: one pass of vector instructions finds every delimiter, before any parsing.

pub(crate) mod bitmasks;
pub(crate) mod structural_index;
#[cfg(target_arch = "x86_64")]
mod vector;
