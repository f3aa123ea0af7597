//! Which events of a capture to keep, and what of them to hide.
//!
//! - [`EventFilter`] keeps the events that a [`Filter`] describes, and with them what their sessions need to
//!   have the same meaning: the login, prepared statements, settings.
//! - [`SampleRate`] takes whole sessions, the same ones every time: parts of a capture, or a sample.
//! - [`Slices`] cuts a stream of events by time, each slice a capture of its own right.
//! - [`OpenTransactions`] counts the transactions that a capture ends in the middle of.
//! - [`Redactor`] replaces values by others of the same shape.
//!
//! All of them take events one at a time, in the order of time, and hold a bounded amount of state for
//! each session that is open. This crate neither reads nor writes captures.

mod filter;
mod memory;
mod open_transactions;
mod redact;
mod share;
mod sieve;
mod slices;
#[cfg(feature = "grammar")]
mod trust;

pub use filter::{Filter, Reason};
pub use open_transactions::OpenTransactions;
pub use redact::{KeyError, RedactionKey, Redactor};
pub use share::{ParseShareError, SampleRate};
pub use sieve::{EventFilter, Left};
pub use slices::Slices;
