//! Captures: events on disk, in files ordered by arrival.

mod event_columns;
mod event_row;
mod merge;
mod merged;
mod reader;
mod writer;

#[cfg(test)]
pub(crate) use event_row::StoredEvent;
pub use merge::Events;
pub use merged::{CaptureMergeError, MergedCaptures, MergedEvents, SameNameSessions};
pub use reader::Capture;
pub use writer::{CaptureSettings, CaptureWriter};

#[cfg(test)]
mod tests;
