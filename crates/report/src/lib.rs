//! Renders comparisons: lines and a table for terminals, a document for programs.
//!
//! Nothing is measured, assessed or written here: functions return text, and the caller decides
//! where it goes and whether it may be coloured.

mod document;
mod headline;
mod table;
mod text;

pub use document::{ComparisonDocument, DOCUMENT_VERSION, document};
pub use headline::{headlines, query_text, verdict_line};
pub use table::{TableStyle, table};
pub use text::counted;
