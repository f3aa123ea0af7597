//! Renders a flight recording of a server: text for people, an SVG chart with everything on one
//! time axis, and an HTML page with both.
//!
//! [`howdah_probe::analysis`] analyses the recording, and also has the document for programs.

mod page;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use page::page;
pub use svg::svg;
pub use text::text;
