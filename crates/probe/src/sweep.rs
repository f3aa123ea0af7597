//! Samples the clock sweep over time: how fast the hand moves, and how many buffers are examined
//! per allocation.
//!
//! The server maintains the counters for its own use. The hand's position and its passes never
//! lose a step. The count of allocations is reset to 0 by the background writer every
//! `bgwriter_delay` (0.2 s by default); allocations between the last sample and the reset go
//! unseen. [`SweepSampler::next_poll_at`] schedules samples two milliseconds apart around the
//! reset, so about one in two hundred allocations is missed, and more on a machine that is too busy
//! to sample in time. [`SweepSummary::resets`] counts the resets.
//!
//! The counters do not show the duration of a single sweep or the backend that ran it (a slice
//! between two samples covers several sweeps), nor whether a victim was dirty. They exclude buffers
//! that a backend reused from its own ring (sequential scans, vacuum, `COPY`), which neither move
//! the hand nor count as allocations. The number of passes counts from the server's start, so only
//! differences are meaningful.

mod adaptive_poll;
mod meter;

use std::time::{Duration, Instant};

use howdah_inspect::{ClockSweep, InspectError, MemoryError, RunningServer, SweepState};

use adaptive_poll::AdaptivePoll;
use meter::{HandMovement, SweepMeter};
pub use meter::{PerAllocation, SweepRow, SweepSummary};

use crate::sampling::{PostmasterIdentity, SampleError, thread_cpu_time};

/// Samples the clock sweep of a server.
///
/// ```no_run
/// # use std::{thread, time::{Duration, Instant}};
/// # use howdah_probe::sweep::SweepSampler;
/// let server = howdah_inspect::RunningServer::in_data_dir("/var/lib/postgresql/15/main")?;
/// let mut sweep = SweepSampler::open(&server, Instant::now(), Duration::from_secs(1))?;
/// for _ in 0..10_000 {
///     thread::sleep(sweep.next_poll_at().saturating_duration_since(Instant::now()));
///     if let Some(row) = sweep.poll(Instant::now())? {
///         println!("{} allocations, {:.2} passes/s", row.allocations, row.passes_per_s());
///     }
/// }
/// println!("{} allocations swept", sweep.summary().swept);
/// # Ok::<(), howdah_probe::SampleError>(())
/// ```
#[derive(Debug)]
pub struct SweepSampler {
    postmaster: PostmasterIdentity,
    sweep: ClockSweep,
    meter: SweepMeter,
    poll_interval: AdaptivePoll,
    due: Instant,
    cpu: Duration,
}

impl SweepSampler {
    /// The shortest useful length of a row. [`SweepSampler::open`] does not check it.
    pub const ROW_LENGTH_MIN: Duration = Duration::from_millis(1);

    /// Starts sampling the sweep of `server`, in rows of `row_length`.
    ///
    /// # Errors
    ///
    /// The server's memory cannot be read, or the counters cannot be located in its binary.
    pub fn open(
        server: &RunningServer,
        now: Instant,
        row_length: Duration,
    ) -> Result<Self, SampleError> {
        let postmaster = PostmasterIdentity::for_server(server)?;
        let sweep = server.clock_sweep()?;
        let meter = SweepMeter::new(now, sweep.read()?, row_length);
        let poll_interval = AdaptivePoll::new(row_length);
        let due = now + poll_interval.next_interval(now);
        Ok(Self { postmaster, sweep, meter, poll_interval, due, cpu: Duration::ZERO })
    }

    /// Returns the time of the next poll: 2 to 40 ms after the last one, or earlier at the end of a
    /// row. Polling at other times loses more allocations or costs more.
    pub fn next_poll_at(&self) -> Instant {
        self.due
    }

    /// Takes a sample, and returns the row that it completed, if any.
    ///
    /// # Errors
    ///
    /// The server has stopped, has crashed and reinitialised its memory, or cannot be read.
    pub fn poll(&mut self, now: Instant) -> Result<Option<SweepRow>, SampleError> {
        let cpu = thread_cpu_time();
        let before = self.meter.summary();
        let row = self.sample(now);
        let after = self.meter.summary();
        let is_moving = after.allocations > before.allocations;
        self.poll_interval.observe(now, after.resets > before.resets, is_moving);
        let due = now + self.poll_interval.next_interval(now);
        // Poll no later than the end of the row.
        self.due =
            self.meter.row_full_at().filter(|end| *end > now).map_or(due, |end| end.min(due));
        self.cpu += thread_cpu_time().saturating_sub(cpu);
        row
    }

    /// Ends the current row, however short it is, and returns it.
    pub fn cut(&mut self, now: Instant) -> SweepRow {
        self.meter.finish_current_row(now)
    }

    /// Returns the totals since sampling started.
    pub fn summary(&self) -> SweepSummary {
        self.meter.summary()
    }

    /// Returns the processor time spent sampling so far.
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    fn sample(&mut self, now: Instant) -> Result<Option<SweepRow>, SampleError> {
        let mut state = self.read()?;
        for _ in 0..REREAD_MAX {
            let again = match self.meter.movement_to(&state) {
                // When the hand wraps around, position and passes change one after the other, and a
                // sample in between is off by a whole pass. So a pass is accepted only after two
                // equal readings.
                HandMovement::NextPass | HandMovement::Backward => self.read()?,
                HandMovement::Within => break,
            };
            let is_stable = again.complete_passes == state.complete_passes;
            state = again;
            if is_stable && self.meter.movement_to(&state) != HandMovement::Backward {
                break;
            }
        }
        let lost = SampleError::Reinitialised { pid: self.postmaster.postmaster().pid() };
        self.meter.add(now, state).map_err(|_| self.postmaster.check().err().unwrap_or(lost))
    }

    fn read(&self) -> Result<SweepState, SampleError> {
        self.sweep.read().map_err(|error| match self.postmaster.explain(error) {
            SampleError::Inspect(
                InspectError::Memory(MemoryError::Unmapped { .. }) | InspectError::Layout(_),
            ) => SampleError::Reinitialised { pid: self.postmaster.postmaster().pid() },
            error => error,
        })
    }
}

const REREAD_MAX: usize = 4;
