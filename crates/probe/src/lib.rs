//! What a running PostgreSQL server is really waiting for, measured inside it: no restart, no extension, no
//! statement.
//!
//! Each figure has a source. Exact ones come from programs that the kernel runs at points of the server's
//! code (uprobes and the static markers of `--enable-dtrace`); where such programs may not run, samples of
//! the server's memory stand in, and say so.

pub mod altered;
mod bpf;
mod calibrate;
mod capability;
pub mod catalogue;
pub mod checkpoints;
mod clock;
mod distribution;
pub mod doctor;
pub mod durations;
mod error;
pub mod export;
pub mod extend;
mod marks;
pub mod recorder;
mod sampling;
pub mod stacks;
mod straight;
pub mod sweep;
mod traced;
pub mod waits;

pub use calibrate::HitCost;
pub use capability::Capabilities;
pub use clock::Clock;
pub use distribution::{Distribution, Figures};
pub use error::{BpfError, Error};
pub use sampling::{Life, SampleError};
