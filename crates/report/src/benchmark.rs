//! Renders the results of a benchmark of cache warming: a table for terminals, an HTML page with a
//! chart, and JSON and CSV for programs.
//!
//! [`howdah_warm::benchmark`] measures them.

mod document;
mod page;
mod rows;
mod sentences;
mod svg;
mod table;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub use document::{BenchmarkDocument, VERSION, document, steps_csv};
pub use page::page;
pub use table::table;

/// Formats a time: `95 µs`, `42 ms`, `1.5 s`.
fn seconds(time: Duration) -> String {
    match time.as_secs_f64() {
        0.0 => "0 s".to_owned(),
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 100.0 => format!("{s:.1} s"),
        s => format!("{s:.0} s"),
    }
}
