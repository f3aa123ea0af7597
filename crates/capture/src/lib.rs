//! Makes captures: selects the events to keep ([`filter`]), replaces their values ([`redact`]), and
//! decodes the traffic of the pooler's clients into events ([`live`]).
//!
//! Events and traffic are processed as streams; little is stored beyond the state of open sessions.
//! The `dataset` crate stores captures.

pub mod filter;
pub mod live;
pub mod redact;

pub use filter::{
    EventFilter, ExcludedCounts, ExclusionReason, Filter, OpenTransactions, ParseSampleRateError,
    SampleRate, Slices,
};
pub use redact::{KeyError, RedactionKey, Redactor};
