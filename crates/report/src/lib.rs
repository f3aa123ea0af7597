//! Renders results: lines and tables for terminals, documents for programs, pages and charts for
//! browsers.
//!
//! This crate does not measure or assess anything. Functions return text, and the caller decides
//! where it goes and whether it may be coloured. Measurements of probes are written line by line to
//! the caller's writer.

pub mod benchmark;
pub mod cache;
mod chart;
mod document;
mod headline;
pub mod logging;
mod page;
pub mod pool_advice;
pub mod probe;
pub mod recording;
pub mod rehearsal;
mod table;
mod text;

pub use document::{ComparisonDocument, DOCUMENT_VERSION, document};
pub use headline::{headlines, query_text, verdict_line};
pub use page::{WebPage, hashed_policy};
pub use table::{TableStyle, table};
pub use text::counted;
