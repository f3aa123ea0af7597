//! Renderings of a comparison: lines and a table for a terminal, a document for programs.
//!
//! Nothing is measured or judged here, and nothing is written: functions give text, the caller
//! decides where it goes and whether it may be coloured.

mod document;
mod headline;
mod table;
mod text;

pub use document::{Document, VERSION, document};
pub use headline::{headlines, query_text, verdict_line};
pub use table::{TableStyle, table};
pub use text::counted;
