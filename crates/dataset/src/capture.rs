//! Captures: events on disk, in files ordered by arrival.

mod bucket_writer;
mod event_columns;
mod event_row;
mod merge;
mod merged;
mod origin;
mod reader;
mod writer;

pub use bucket_writer::{BucketWriter, ImportPart};
#[cfg(test)]
pub(crate) use event_row::StoredEvent;
pub use merge::Events;
pub use merged::{MergedCaptures, MergedEvents, SameNameSessions};
pub use origin::CaptureMergeError;
pub use reader::Capture;
pub use writer::{CaptureSettings, CaptureWriter};

#[cfg(test)]
mod tests;
