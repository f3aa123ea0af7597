//! Containers for the data of a log: maps with small keys, and shared copies of repeated texts.

pub(crate) mod hashing;
pub(crate) mod intern;
