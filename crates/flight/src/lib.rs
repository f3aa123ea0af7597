//! Reports about a recording of a server: a summary in words, text for people, JSON for programs,
//! and one SVG chart with everything on one time axis.
//!
//! ```text
//! recording ─► window ─► summary ─► text, report
//!                └──────────┴─────► svg, page
//! ```
//!
//! Nothing is measured or written here: functions return text.

mod page;
mod report;
mod summary;
mod svg;
mod text;
mod units;
mod window;

pub use page::page;
pub use report::{RecordingReport, VERSION, report};
pub use summary::{RecordingFinding, RecordingSummary, summarize};
pub use svg::svg;
pub use text::text;
pub use window::{RecordingWindow, TimeSpan};
