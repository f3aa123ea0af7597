//! Reads the three formats of server logs: detects a log's format and splits its bytes into
//! records.

pub(crate) mod csv;
pub(crate) mod detector;
pub(crate) mod input_item;
mod json;
pub(crate) mod reader;
mod recent_sessions;
mod stderr;
#[cfg(test)]
mod tests;
