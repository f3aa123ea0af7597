//! Imports of real servers' logs and of synthetic ones.

mod bad_input;
mod envelopes;
mod files;
mod format_equivalence;
mod generated;
mod log_stream;
mod sessions;
mod sources;
mod statements;
mod streaming;
mod support;
