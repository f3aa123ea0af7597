//! Analysis of flight recordings: a text summary of notable findings, and a JSON document with
//! these and the recorded data.
//!
//! ```text
//! recording ─► window ─► summary ─► report
//! ```
//!
//! The recording is written and read by [`recorder`](crate::recorder). Charts are rendered
//! elsewhere.

mod culprits;
mod deadlocks;
mod report;
mod story;
mod summary;
mod time_by;
pub mod units;
mod window;

pub use culprits::{Culprit, CulpritRole};
pub use deadlocks::{CircleMember, DeadlockHistory, UnseenDeadlocks, WaitCircle, deadlocks};
pub use report::{RecordingReport, VERSION, report};
pub use story::{StoryParagraph, StoryTopic, story};
pub use summary::{RecordingFinding, RecordingSummary, summarize};
pub use time_by::{TIME_SHARES_MAX, TimeDimension, TimeShare, database_time_by};
pub use window::{PhaseSpan, RecordingWindow, TimeBucket, TimeSpan};
