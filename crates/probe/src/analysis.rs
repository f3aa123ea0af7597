//! Analysis of flight recordings: a summary in words of what stands out, and everything recorded as
//! one document for programs.
//!
//! ```text
//! recording ─► window ─► summary ─► report
//! ```
//!
//! The recording is made and read by [`recorder`](crate::recorder). Nothing is drawn here.

mod report;
mod summary;
pub mod units;
mod window;

pub use report::{RecordingReport, VERSION, report};
pub use summary::{RecordingFinding, RecordingSummary, summarize};
pub use window::{PhaseSpan, RecordingWindow, TimeBucket, TimeSpan};
