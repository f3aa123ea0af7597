//! Formats numbers, dates and objects (`util.inspect`) like JavaScript, and objects as the Perl
//! server's JSON.
//!
//! Etsy's server uses JavaScript's default formatting in Graphite lines, on the console and at the
//! management port, and existing scripts parse it. No JavaScript is executed or parsed here.

mod date;
mod inspect;
mod json;
mod number;

pub use date::JsDate;
pub use inspect::{InspectOptions, JsValue, inspect};
pub use json::{Spacing, json};
pub use number::JsNumber;
