//! The clock sweep over time: how fast the hand goes round, and how many buffers are looked at to find one.
//!
//! The server keeps four counters for its own use, and they are read, not sampled: the hand's place and its
//! passes never lose a step. The count of allocations is set to 0 by the background writer every
//! `bgwriter_delay` (0.2 s); what was handed out between the last look and that moment goes unseen.
//! [`SweepSampler::due`] has looks two milliseconds apart around that moment, so about one in two hundred is
//! missing, more on a machine too busy to look in time. [`SweepSummary::resets`] tells how often it happened.
//!
//! What the counters cannot tell: how long any single sweep was, and whose (a slice between two looks
//! holds several); whether a victim was dirty; buffers that a backend took again from its own ring
//! (sequential scans, vacuum, `COPY`), for which no hand moves and nothing is counted. The number of passes
//! counts from the server's start and says nothing of one call: only differences do.

mod meter;
mod rhythm;

use std::time::{Duration, Instant};

use howdah_inspect::{ClockSweep, Error, MemoryError, Server, SweepState};

use meter::{Meter, Step};
pub use meter::{PerAllocation, SweepRow, SweepSummary};
use rhythm::Rhythm;

use crate::sampling::{Life, SampleError, own_cpu};

/// Follows the clock sweep of a server.
///
/// ```no_run
/// # use std::{thread, time::{Duration, Instant}};
/// # use howdah_probe::sweep::SweepSampler;
/// let server = howdah_inspect::Server::in_data_dir("/var/lib/postgresql/15/main")?;
/// let mut sweep = SweepSampler::open(&server, Instant::now(), Duration::from_secs(1))?;
/// for _ in 0..10_000 {
///     thread::sleep(sweep.due().saturating_duration_since(Instant::now()));
///     if let Some(row) = sweep.poll(Instant::now())? {
///         println!("{} allocations, {:.2} passes/s", row.allocations, row.passes_per_s());
///     }
/// }
/// println!("{} allocations swept", sweep.summary().swept);
/// # Ok::<(), howdah_probe::SampleError>(())
/// ```
#[derive(Debug)]
pub struct SweepSampler {
    life: Life,
    sweep: ClockSweep,
    meter: Meter,
    rhythm: Rhythm,
    due: Instant,
    cpu: Duration,
}

impl SweepSampler {
    /// The shortest row.
    pub const PERIOD: Duration = Duration::from_millis(1);

    /// Begins to follow the sweep of `server`, in rows of `row_length`.
    ///
    /// # Errors
    ///
    /// Its memory may not be read, or where the counters are cannot be found out in this binary.
    pub fn open(server: &Server, now: Instant, row_length: Duration) -> Result<Self, SampleError> {
        let life = Life::of(server)?;
        let sweep = server.clock_sweep()?;
        let meter = Meter::new(now, sweep.read()?, row_length);
        let rhythm = Rhythm::new(row_length);
        let due = now + rhythm.wait(now);
        Ok(Self { life, sweep, meter, rhythm, due, cpu: Duration::ZERO })
    }

    /// When to look next: two milliseconds to forty after the last look. Whoever looks at other times loses more
    /// allocations, or spends more.
    #[must_use]
    pub fn due(&self) -> Instant {
        self.due
    }

    /// Looks once; gives the row that has become full, if one has.
    ///
    /// # Errors
    ///
    /// The server has ended, or crashed and made its memory anew.
    pub fn poll(&mut self, now: Instant) -> Result<Option<SweepRow>, SampleError> {
        let cpu = own_cpu();
        let before = self.meter.summary();
        let row = self.look(now);
        let after = self.meter.summary();
        let is_moving = after.allocations > before.allocations;
        self.rhythm.saw(now, after.resets > before.resets, is_moving);
        let due = now + self.rhythm.wait(now);
        // A row ends when it is full.
        self.due = self.meter.row_ends().filter(|end| *end > now).map_or(due, |end| end.min(due));
        self.cpu += own_cpu().saturating_sub(cpu);
        row
    }

    /// Ends the row that lasts, however short it is.
    pub fn cut(&mut self, now: Instant) -> SweepRow {
        self.meter.cut(now)
    }

    /// All since it was opened.
    #[must_use]
    pub fn summary(&self) -> SweepSummary {
        self.meter.summary()
    }

    /// The processor time that looking has cost so far.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        self.cpu
    }

    fn look(&mut self, now: Instant) -> Result<Option<SweepRow>, SampleError> {
        let mut state = self.read()?;
        for _ in 0..RETRIES {
            let again = match self.meter.step(&state) {
                // As the hand passes the end, place and passes change one after the other; a look between
                // them is a whole pass off. So a pass is believed when it is seen twice.
                Step::Passed | Step::Back => self.read()?,
                Step::Within => break,
            };
            let is_settled = again.complete_passes == state.complete_passes;
            state = again;
            if is_settled && self.meter.step(&state) != Step::Back {
                break;
            }
        }
        let lost = SampleError::Reinitialised { pid: self.life.postmaster().pid() };
        self.meter.add(now, state).map_err(|_| self.life.check().err().unwrap_or(lost))
    }

    fn read(&self) -> Result<SweepState, SampleError> {
        self.sweep.read().map_err(|error| match self.life.explain(error) {
            SampleError::Inspect(
                Error::Memory(MemoryError::Unmapped { .. }) | Error::Layout(_),
            ) => SampleError::Reinitialised { pid: self.life.postmaster().pid() },
            error => error,
        })
    }
}

const RETRIES: usize = 4;
