//! Selects the events of a capture to keep.
//!
//! - [`EventFilter`] keeps the events that match a [`Filter`], and the earlier events of their
//!   sessions that they depend on: login, prepared statements and settings.
//! - [`SampleRate`] selects a share of the sessions by a hash of their names, so the same sessions
//!   are selected every time.
//! - [`Slices`] splits a stream of events by time; each slice is a separate capture.
//! - [`OpenTransactions`] counts the transactions that are open where a capture ends.

mod criteria;
mod event_filter;
mod open_transactions;
mod preambles;
#[cfg(feature = "grammar")]
mod read_only;
mod sample_rate;
mod slices;

#[cfg(not(feature = "grammar"))]
mod read_only {
    use howdah_traffic::Event;

    use super::ExclusionReason;

    /// A detector that finds no event to be read-only: only PostgreSQL's grammar shows that.
    #[derive(Debug, Default)]
    pub(crate) struct WithoutGrammar;

    pub(crate) use WithoutGrammar as ReadOnlyNames;

    impl WithoutGrammar {
        pub(crate) fn exclusion_reason(&self, _: &Event) -> Option<ExclusionReason> {
            Some(ExclusionReason::Unreadable)
        }

        pub(crate) fn remove_session(&self, _: &str) {}
    }
}

pub use criteria::{ExclusionReason, Filter};
pub use event_filter::{EventFilter, ExcludedCounts};
pub use open_transactions::OpenTransactions;
pub use sample_rate::{ParseSampleRateError, SampleRate};
pub use slices::Slices;
