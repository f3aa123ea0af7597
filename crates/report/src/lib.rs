//! Draws results: lines and tables for terminals, documents for programs, pages and charts for
//! browsers.
//!
//! Nothing is measured, assessed or written here: functions return text, and the caller decides
//! where it goes and whether it may be coloured.

pub mod benchmark;
pub mod cache;
mod chart;
mod document;
mod headline;
pub mod recording;
pub mod rehearsal;
mod table;
mod text;

pub use document::{ComparisonDocument, DOCUMENT_VERSION, document};
pub use headline::{headlines, query_text, verdict_line};
pub use table::{TableStyle, table};
pub use text::counted;
