//! Measures what a running PostgreSQL server waits for, without a restart or an extension.
//!
//! Each metric has a source. Exact values come from BPF programs attached to the server's code
//! (uprobes and the USDT probes of `--enable-dtrace`). Where such programs may not run, samples of
//! the server's memory or of its statistics views replace some metrics and are marked as such.

pub mod analysis;
mod basic_block;
mod bpf;
pub mod by_sql;
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
pub mod live;
pub mod patched_code;
pub mod recorder;
mod relation_names;
mod sampling;
pub mod stacks;
pub mod sweep;
mod traced_server;
mod usdt;
pub mod waits;

pub use calibrate::HitCost;
pub use capability::Capabilities;
pub use clock::ClockOffset;
pub use distribution::{Distribution, DurationStats};
pub use error::{BpfError, ProbeError};
pub use relation_names::{FileId, RelationId, RelationNamer, RelationNames};
pub use sampling::{PostmasterIdentity, SampleError};
