//! Captures: events on disk.

mod merge;
mod reader;
mod record;
mod rows;
mod writer;

pub use merge::Events;
pub use reader::Capture;
#[cfg(test)]
pub(crate) use record::StoredEvent;
pub use writer::{CaptureSettings, CaptureWriter};

#[cfg(test)]
mod tests;
