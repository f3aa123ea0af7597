//! What readings of the clock sweep add up to. Reads nothing itself.

use std::time::{Duration, Instant};

use howdah_inspect::SweepState;

/// The sweep in one row's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepRow {
    /// The end of the row, since the beginning.
    pub at: Duration,
    /// Its length: a little more than was asked for, where a look came late.
    pub elapsed: Duration,
    /// Where the hand is: the next buffer it looks at.
    pub hand: u32,
    /// Passes since the server started; wraps at 2³².
    pub complete_passes: u32,
    /// Buffers of the server: the way of one pass.
    pub buffers: u32,
    /// Buffers looked at.
    pub examined: u64,
    /// Buffers handed out.
    pub allocations: u64,
    /// Buffers looked at for one handed out, if any was.
    pub per_allocation: Option<PerAllocation>,
    /// Whether free buffers are left at the end.
    pub has_free_buffers: bool,
}

/// Buffers looked at for one that was handed out.
///
/// Least and most are of slices: the looks up to the next at which something had been handed out. With
/// several allocations in a slice, it counts as their average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerAllocation {
    /// Of the slice with the fewest.
    pub min: f64,
    /// All that were looked at over all that were handed out.
    pub avg: f64,
    /// Of the slice with the most.
    pub max: f64,
}

/// The sweep since the beginning.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepSummary {
    /// How long.
    pub elapsed: Duration,
    /// How often it was looked.
    pub looks: u64,
    /// Buffers of the server: the way of one pass.
    pub buffers: u32,
    /// Buffers looked at.
    pub examined: u64,
    /// Buffers handed out: the calls.
    pub allocations: u64,
    /// Of these, handed out while no free buffers were left: the calls that swept.
    pub swept: u64,
    /// How often the count of allocations was set to 0 meanwhile.
    pub resets: u64,
    /// Buffers looked at for one handed out, if any was.
    pub per_allocation: Option<PerAllocation>,
    /// Passes per second of the slowest and of the fastest row, if one is full.
    pub passes_per_s: Option<(f64, f64)>,
}

/// The hand went back for longer than a look between two writes explains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WentBack;

/// Where a reading is, seen from the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// In the same pass, at the same place or further.
    Within,
    /// In a later pass.
    Passed,
    /// Before it.
    Back,
}

#[derive(Debug)]
pub(super) struct Meter {
    began: Instant,
    row_length: Duration,
    last: SweepState,
    last_at: Instant,
    back_since: Option<Instant>,
    looks: u64,
    resets: u64,
    swept: u64,
    whole: Sums,
    row: Sums,
    row_began: Instant,
    passes_per_s: Option<(f64, f64)>,
    slice_examined: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    examined: u64,
    allocations: u64,
    slices: Option<(f64, f64)>,
}

impl SweepRow {
    /// How often the hand went round, in parts of a pass.
    #[must_use]
    pub fn passes(&self) -> f64 {
        self.examined as f64 / f64::from(self.buffers)
    }

    /// The same, per second.
    #[must_use]
    pub fn passes_per_s(&self) -> f64 {
        per_second(self.passes(), self.elapsed)
    }
}

impl SweepSummary {
    /// How often the hand went round, in parts of a pass.
    #[must_use]
    pub fn passes(&self) -> f64 {
        self.examined as f64 / f64::from(self.buffers)
    }

    /// The same, per second.
    #[must_use]
    pub fn passes_per_s_avg(&self) -> f64 {
        per_second(self.passes(), self.elapsed)
    }
}

impl Meter {
    /// When a look fills the row that lasts.
    pub(super) fn row_ends(&self) -> Option<Instant> {
        self.row_began.checked_add(self.row_length)
    }

    pub(super) fn new(now: Instant, state: SweepState, row_length: Duration) -> Self {
        Self {
            began: now,
            row_length,
            last: state,
            last_at: now,
            back_since: None,
            looks: 0,
            resets: 0,
            swept: 0,
            whole: Sums::default(),
            row: Sums::default(),
            row_began: now,
            passes_per_s: None,
            slice_examined: 0,
        }
    }

    pub(super) fn step(&self, state: &SweepState) -> Step {
        match self.way_to(state) {
            ..0 => Step::Back,
            _ if state.complete_passes == self.last.complete_passes => Step::Within,
            _ => Step::Passed,
        }
    }

    /// Adds a reading; gives the row that it fills.
    ///
    /// A hand that seems to have gone back is let be: one of two writes is still to come, and the next
    /// reading that is ahead brings all steps meanwhile. For longer than [`PATIENCE`] it is an error.
    pub(super) fn add(
        &mut self,
        now: Instant,
        state: SweepState,
    ) -> Result<Option<SweepRow>, WentBack> {
        self.looks += 1;
        self.last_at = now;
        match u64::try_from(self.way_to(&state)) {
            Ok(examined) => {
                self.back_since = None;
                self.count(examined, &state);
                self.last = state;
            }
            Err(_) => {
                let since = *self.back_since.get_or_insert(now);
                if now.saturating_duration_since(since) > PATIENCE {
                    return Err(WentBack);
                }
            }
        }
        let elapsed = now.saturating_duration_since(self.row_began);
        Ok((elapsed >= self.row_length).then(|| self.finish_row(now, elapsed)))
    }

    /// Ends the row that lasts.
    pub(super) fn cut(&mut self, now: Instant) -> SweepRow {
        let elapsed = now.saturating_duration_since(self.row_began);
        self.finish_row(now, elapsed)
    }

    pub(super) fn summary(&self) -> SweepSummary {
        SweepSummary {
            elapsed: self.last_at.saturating_duration_since(self.began),
            looks: self.looks,
            buffers: self.last.buffers,
            examined: self.whole.examined,
            allocations: self.whole.allocations,
            swept: self.swept,
            resets: self.resets,
            per_allocation: self.whole.per_allocation(),
            passes_per_s: self.passes_per_s,
        }
    }

    /// From the last reading to this one, in buffers. The number of passes wraps at 2³².
    fn way_to(&self, state: &SweepState) -> i64 {
        let passes = state.complete_passes.wrapping_sub(self.last.complete_passes).cast_signed();
        i64::from(passes) * i64::from(state.buffers) + i64::from(state.next_victim)
            - i64::from(self.last.next_victim)
    }

    fn count(&mut self, examined: u64, state: &SweepState) {
        let allocations = match state.allocations.checked_sub(self.last.allocations) {
            Some(more) => u64::from(more),
            // Set to 0 meanwhile, and counted up anew.
            None => {
                self.resets += 1;
                u64::from(state.allocations)
            }
        };
        if !self.last.has_free_buffers {
            self.swept += allocations;
        }
        // An allocation is counted before its sweep begins. So what is looked at belongs to this or to an
        // earlier one, and goes with the next slice in which there are any.
        self.slice_examined += examined;
        let slice = (allocations > 0).then(|| {
            let ratio = self.slice_examined as f64 / allocations as f64;
            self.slice_examined = 0;
            ratio
        });
        for sums in [&mut self.whole, &mut self.row] {
            sums.examined += examined;
            sums.allocations += allocations;
            if let Some(slice) = slice {
                sums.slices = Some(widened(sums.slices, slice));
            }
        }
    }

    fn finish_row(&mut self, now: Instant, elapsed: Duration) -> SweepRow {
        let sums = std::mem::take(&mut self.row);
        self.row_began = now;
        let row = SweepRow {
            at: now.saturating_duration_since(self.began),
            elapsed,
            hand: self.last.next_victim,
            complete_passes: self.last.complete_passes,
            buffers: self.last.buffers,
            examined: sums.examined,
            allocations: sums.allocations,
            per_allocation: sums.per_allocation(),
            has_free_buffers: self.last.has_free_buffers,
        };
        self.passes_per_s = Some(widened(self.passes_per_s, row.passes_per_s()));
        row
    }
}

impl Sums {
    fn per_allocation(&self) -> Option<PerAllocation> {
        let (min, max) = self.slices?;
        Some(PerAllocation { min, avg: self.examined as f64 / self.allocations as f64, max })
    }
}

/// Whoever carries the hand round may be stopped between the two writes, but not for long: a spinlock is
/// held meanwhile.
const PATIENCE: Duration = Duration::from_secs(1);

fn widened(range: Option<(f64, f64)>, value: f64) -> (f64, f64) {
    range.map_or((value, value), |(min, max)| (min.min(value), max.max(value)))
}

fn per_second(amount: f64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { amount / elapsed.as_secs_f64() }
}

#[cfg(test)]
mod tests;
