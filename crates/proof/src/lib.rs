//! What warming a cache brings, measured: a server is restarted with cold caches, one client reads single
//! rows as fast as it can, and its throughput is written down step by step: without warming, with
//! contrib's autoprewarm, with Howdah's load.
//!
//! ```text
//! data ─► warm cache, client: the steady rate ─► image, autoprewarm.blocks
//!   ┌────────────────────────────────────────────────────┘
//!   └─► for each way: stop ─ throw files out of the system's cache ─ start ─ warm ┬─► steps ─► curve
//!                                                              client, at once ──┘
//! ```
//!
//! The server is a throw-away one, or one that the caller can restart. Everything is measured by our own
//! client; no other program is needed. How a warm cache is made is not this crate's business.

mod chart;
mod cost;
mod curve;
mod data;
mod document;
mod error;
mod experiment;
mod page;
mod place;
mod points;
mod rank;

pub use curve::Curve;
pub use document::{Document, VERSION, document, steps_csv};
pub use error::ProofError;
pub use experiment::{Cold, Findings, Proof, Run, Warming, Way};
pub use page::page;
pub use place::{Given, Place, Throwaway};
pub use points::Step;
