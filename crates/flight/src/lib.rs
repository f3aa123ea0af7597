//! What a flight recording of a server says: a verdict in words, lines for a person, a document for programs,
//! and one picture with everything on one clock.
//!
//! ```text
//! recording ─► timeline ─► verdict ─► text, document
//!                 └──────────┴──────► picture, page
//! ```
//!
//! Nothing is measured here, and nothing is written: functions give text.

mod document;
mod page;
mod picture;
mod text;
mod timeline;
mod units;
mod verdict;

pub use document::{Document, VERSION, document};
pub use page::page;
pub use picture::picture;
pub use text::text;
pub use timeline::{Span, Timeline};
pub use verdict::{Finding, Verdict, verdict};
