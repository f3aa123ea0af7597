//! Text as JavaScript writes it: numbers, dates, and what `util.inspect` makes of objects; and the
//! same objects as the Perl server's JSON.
//!
//! Graphite lines, the console and the management port of etsy's server are JavaScript's own
//! renderings, and people's scripts parse them. No JavaScript is run or read here.

mod date;
mod inspect;
mod json;
mod number;

pub use date::Date;
pub use inspect::{Inspect, Value, inspect};
pub use json::{Spacing, json};
pub use number::Number;
