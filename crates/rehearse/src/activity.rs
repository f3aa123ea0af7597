//! Observes a server during a run: reads wait events and counters with SQL. If the server runs on
//! this host, probes record checkpoints, extension locks and the clock sweep, too.
//!
//! ```text
//! ActivityMonitor ─┬─ sampler: pg_stat_activity ten times a second, counters every second
//!                  └─ flight recorder: checkpoints, extension locks, clock sweep
//!                       │
//!                       └─► ActivitySeries ─► server.json in the run's folder
//! ```
//!
//! Both servers of a rehearsal are sampled in the same way, so sampling costs the same. The sampler
//! or the recorder may be unavailable on one of them; a note in the series then says why.

mod differences;
mod monitor;
mod probes;
mod sampler;
mod series;

pub(crate) use self::{
    differences::Activities,
    monitor::ActivityMonitor,
    series::{ActivityBucket, ActivitySeries},
};
