//! Prepared statements: their texts, the servers that have them, and the settings under which they
//! were parsed.

pub(crate) mod deallocate;
pub(crate) mod names;
pub(crate) mod parse_settings;
pub(crate) mod statements;
