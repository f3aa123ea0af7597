//! Draws a flight recording of a server: text for people, one SVG chart with everything on one time
//! axis, and an HTML page with both.
//!
//! The recording is analysed by [`howdah_probe::analysis`], which also has the document for
//! programs.

mod page;
mod svg;
#[cfg(test)]
mod tests;
mod text;

pub use page::page;
pub use svg::svg;
pub use text::text;
