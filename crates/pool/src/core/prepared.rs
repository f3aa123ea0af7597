//! Prepared statements: their texts, which servers have them, and the settings they were parsed
//! under.

pub(crate) mod deallocate;
pub(crate) mod names;
pub(crate) mod parse_settings;
pub(crate) mod statements;
