//! Logs of real servers, and stories of what can stand in a log.

mod bad_input;
mod files;
mod generated;
mod ordered;
mod same_events;
mod sessions;
mod sources;
mod stories;
mod streaming;
mod support;
mod wrap;
