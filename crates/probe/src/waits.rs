//! What all backends wait for, sampled from their memory: up to a thousand times a second, without a
//! statement, a lock or an extension.
//!
//! A [`Sampler`] looks at all processes of a server at once, whenever it is told to; a [`Profile`] adds up
//! what it saw, by kind of process, event and statement; a [`Pace`] keeps the rhythm. None of them sleeps
//! or reads a clock of its own.
//!
//! ```no_run
//! use std::{thread, time::{Duration, Instant}};
//! use howdah_probe::waits::{Options, Pace, Profile, Sampler};
//!
//! let server = howdah_inspect::Server::in_data_dir("/var/lib/postgresql/15/main")?;
//! let mut sampler = Sampler::open(&server, Options::default())?;
//! let mut profile = Profile::default();
//! let mut pace = Pace::new(Instant::now(), Duration::from_millis(10));
//! for _ in 0..1000 {
//!     thread::sleep(pace.due().saturating_duration_since(Instant::now()));
//!     let now = Instant::now();
//!     pace.reached(now);
//!     profile.add(&sampler.sample(now)?);
//! }
//! for row in profile.total().rows {
//!     println!("{:>8.3} s {} {}", row.time.as_secs_f64(), row.kind, row.event);
//! }
//! # Ok::<(), howdah_probe::SampleError>(())
//! ```
//!
//! Samples are not durations: at a rate of one a millisecond, a wait of a tenth of that is seen once in
//! ten times. Sums over many are right all the same. The server reports a wait, and not when it began.

mod backend;
mod names;
mod pace;
mod profile;
mod query;
mod sampler;
mod tranches;

pub use backend::{Backend, Kind};
pub use names::{Class, Names, WaitEvent};
pub use pace::Pace;
pub use profile::{Group, Profile, ROWS_MAX, Report, Row};
pub use query::{QueryId, QueryOptions, Texts};
pub use sampler::{Checks, Cost, Counts, Observation, Options, Round, Sampler};
