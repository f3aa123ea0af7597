//! A fuzz target for every parser of Howdah, and a runner that needs stable Rust only.
//!
//! A [`Target`] is a plain function over bytes that panics when the code under test breaks a
//! promise: not only that it does not crash, but that what it reads it can write again, that pieces
//! give what the whole gives, that counts close. [`TARGETS`] is the one list of them. A
//! [`Campaign`] makes inputs from a target's seeds and words, always the same ones for the same
//! seed, and keeps those that make the target do something it had not done before, as its [`Shape`]
//! tells. It watches over memory and processor time, too.
//!
//! ```text
//! seeds ─► pool ─► mutate ─► target ─► Shape: new? ─► pool
//!                               └─► panic, too much memory, too long ─► Failure, shrunk
//! ```
//!
//! `cargo test -p howdah-fuzz` runs each target for a moment; `make fuzz TARGET=sql SECONDS=600`
//! runs one for long. What this is not: a coverage-guided fuzzer. The shapes are a poor man's
//! coverage; the functions in [`targets`] have the signature that a better fuzzer wants.

pub mod campaign;
pub mod memory;
pub mod mutate;
pub mod random;
pub mod targets;

pub use campaign::{Campaign, Failure};
pub use targets::{Seeds, Shape, TARGETS, Target};
