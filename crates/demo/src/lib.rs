//! The guided tour: a slowdown is planted, and captured traffic finds it.
//!
//! ```text
//! shop ──► production ── traffic, logged ──► capture ─┬─► base (unchanged)    ─┬─ compare: slower
//!  (one    ──► base                                   ├─► control (unchanged) ─┤  compare: no change
//!   copy   ──► control                                └─► changed (no index)  ─┘
//!   each)  ──► changed
//! ```
//!
//! Everything is real: servers, log, replay, statistics. Only the shop is made up.

mod shop;
mod stage;
mod story;
mod workload;

pub use story::{Demo, Ending, Error};
