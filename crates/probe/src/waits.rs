//! Samples the wait events of all backends from their memory, up to a thousand times a second,
//! without SQL, a lock or an extension.
//!
//! A [`WaitSampler`] samples all processes of a server when it is called; a [`Profile`] adds up the
//! samples by kind of process, event, statement and label; a [`TickSchedule`] keeps the rate. None
//! of them sleeps; the caller passes the time.
//!
//! ```no_run
//! use std::{thread, time::{Duration, Instant}};
//! use howdah_probe::waits::{Profile, SamplerOptions, TickSchedule, WaitSampler};
//!
//! let server = howdah_inspect::RunningServer::in_data_dir("/var/lib/postgresql/15/main")?;
//! let mut sampler = WaitSampler::open(&server, SamplerOptions::default())?;
//! let mut profile = Profile::default();
//! let mut schedule = TickSchedule::new(Instant::now(), Duration::from_millis(10));
//! for _ in 0..1000 {
//!     thread::sleep(schedule.next_tick_at().saturating_duration_since(Instant::now()));
//!     let now = Instant::now();
//!     schedule.advance(now);
//!     profile.add(&sampler.sample(now)?);
//! }
//! for row in profile.total().rows {
//!     println!("{:>8.3} s {} {}", row.time.as_secs_f64(), row.kind, row.event);
//! }
//! # Ok::<(), howdah_probe::SampleError>(())
//! ```
//!
//! Samples are not durations: at one sample per millisecond, a wait of 0.1 ms is found once in ten
//! times. Sums over many samples are still accurate. The server reports that a process waits, but
//! not since when.

mod backend;
mod names;
mod profile;
mod query;
mod sampler;
mod sessions;
mod tick_schedule;
mod tranches;

pub use backend::{BackendInfo, ProcessKind};
pub use names::{Class, WaitEvent, WaitEventNames};
pub use profile::{
    Profile, ProfileKey, ProfileRow, ProfileSpan, ROWS_MAX, TimeCategory, WaitReport,
};
pub use query::{QueryId, QueryOptions, QueryTexts};
pub(crate) use sampler::cluster_name;
pub use sampler::{
    NoWaitStates, Observation, ProcessCounts, SampleRound, SamplerOptions, SamplingCost,
    WaitSampler,
};
pub use sessions::{LabelId, SessionDimension, SessionLabel, SessionLabels};
pub use tick_schedule::TickSchedule;
