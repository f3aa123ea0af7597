//! A fuzz target for every parser of Howdah, and a runner that needs stable Rust only.
//!
//! A [`Target`] is a plain function over bytes. It panics when the code under test violates a
//! property: besides not crashing, that parsed values can be written and parsed again, that input
//! in pieces gives the same result as the whole, that counts add up. [`TARGETS`] is the only list
//! of targets. A [`Campaign`] generates inputs from a target's seeds and words, reproducibly for a
//! given seed, and keeps those that make the target behave in a new way according to its [`Shape`].
//! It also limits memory and processor time.
//!
//! ```text
//! seeds ─► pool ─► mutate ─► target ─► Shape: new? ─► pool
//!                               └─► panic, too much memory, too long ─► Failure, shrunk
//! ```
//!
//! `cargo test -p howdah-fuzz` runs each target briefly; `make fuzz TARGET=sql SECONDS=600` runs
//! one for longer. This is not a coverage-guided fuzzer: shapes are a rough substitute for
//! coverage. The functions in [`targets`] have the signature that libFuzzer expects.

pub mod campaign;
pub mod memory;
pub mod mutate;
pub mod random;
pub mod targets;

pub use campaign::{Campaign, Failure};
pub use targets::{Seeds, Shape, TARGETS, Target};
