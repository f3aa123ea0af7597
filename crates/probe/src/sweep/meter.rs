//! Accumulates samples of the clock sweep. Does no I/O itself.

use std::time::{Duration, Instant};

use howdah_inspect::SweepState;

/// Movement of the clock hand, and buffer allocations, in one interval of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepRow {
    /// End of the row, since the start of sampling.
    pub at: Duration,
    /// Length: more than requested if a sample was late, less if the row was cut short.
    pub elapsed: Duration,
    /// Position of the hand: the next buffer it examines.
    pub hand: u32,
    /// Completed passes since the server started; wraps at 2³².
    pub complete_passes: u32,
    /// Buffers of the server: the length of one pass.
    pub buffers: u32,
    /// Buffers examined.
    pub examined: u64,
    /// Buffers allocated.
    pub allocations: u64,
    /// Buffers examined per allocation, if there were allocations.
    pub per_allocation: Option<PerAllocation>,
    /// Whether free buffers are left at the end.
    pub has_free_buffers: bool,
}

/// Buffers examined per allocation.
///
/// Minimum and maximum are over slices. A slice ends with the first sample that has an allocation;
/// one with several allocations counts with its average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerAllocation {
    /// The smallest value of any slice.
    pub min: f64,
    /// All examined buffers divided by all allocations.
    pub avg: f64,
    /// The largest value of any slice.
    pub max: f64,
}

/// Totals of the clock sweep since the start of sampling.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SweepSummary {
    /// Time that the samples cover.
    pub elapsed: Duration,
    /// Number of samples.
    pub samples: u64,
    /// Buffers of the server: the length of one pass.
    pub buffers: u32,
    /// Buffers examined.
    pub examined: u64,
    /// Buffers allocated.
    pub allocations: u64,
    /// Number of allocations that took a sweep, because the list of free buffers was empty at the
    /// sample before them.
    pub swept: u64,
    /// Number of resets of the allocation counter.
    pub resets: u64,
    /// Buffers examined per allocation, if there were allocations.
    pub per_allocation: Option<PerAllocation>,
    /// Passes per second of the slowest and of the fastest row; `None` before the end of the first.
    pub passes_per_s: Option<(f64, f64)>,
}

/// The error that the server reset its counters: the hand stayed before its earlier position for
/// too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ClockHandReset;

/// Position of a sample relative to the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HandMovement {
    /// The hand is in the same pass, at the same position or further.
    Within,
    /// The hand is in a later pass.
    NextPass,
    /// The hand is before its previous position.
    Backward,
}

/// Turns samples of the clock sweep into rows and totals.
#[derive(Debug)]
pub(super) struct SweepMeter {
    started_at: Instant,
    row_length: Duration,
    last: SweepState,
    last_at: Instant,
    backward_since: Option<Instant>,
    samples: u64,
    resets: u64,
    swept: u64,
    total: SweepSums,
    row: SweepSums,
    row_started_at: Instant,
    passes_per_s: Option<(f64, f64)>,
    slice_examined: u64,
}

/// Sums over a row or over all rows.
#[derive(Clone, Copy, Debug, Default)]
struct SweepSums {
    examined: u64,
    allocations: u64,
    slices: Option<(f64, f64)>,
}

impl SweepRow {
    /// Returns the passes of the hand, including fractions.
    pub fn passes(&self) -> f64 {
        self.examined as f64 / f64::from(self.buffers)
    }

    /// Returns the passes per second.
    pub fn passes_per_s(&self) -> f64 {
        per_second(self.passes(), self.elapsed)
    }
}

impl SweepSummary {
    /// Returns the passes of the hand, including fractions.
    pub fn passes(&self) -> f64 {
        self.examined as f64 / f64::from(self.buffers)
    }

    /// Returns the passes per second.
    pub fn passes_per_s_avg(&self) -> f64 {
        per_second(self.passes(), self.elapsed)
    }
}

impl SweepMeter {
    /// Returns the time at which the current row is complete; `None` for rows of unlimited length.
    pub(super) fn row_full_at(&self) -> Option<Instant> {
        self.row_started_at.checked_add(self.row_length)
    }

    pub(super) fn new(now: Instant, state: SweepState, row_length: Duration) -> Self {
        Self {
            started_at: now,
            row_length,
            last: state,
            last_at: now,
            backward_since: None,
            samples: 0,
            resets: 0,
            swept: 0,
            total: SweepSums::default(),
            row: SweepSums::default(),
            row_started_at: now,
            passes_per_s: None,
            slice_examined: 0,
        }
    }

    pub(super) fn movement_to(&self, state: &SweepState) -> HandMovement {
        match self.distance_to(state) {
            ..0 => HandMovement::Backward,
            _ if state.complete_passes == self.last.complete_passes => HandMovement::Within,
            _ => HandMovement::NextPass,
        }
    }

    /// Adds a sample; returns the row that it completes.
    ///
    /// The hand may seem to have moved backwards: at the end of a pass, the server resets the hand
    /// and counts the pass in two separate writes, and a sample may be taken between them. Such a
    /// sample is skipped; the next valid one includes the steps in between. If this lasts longer
    /// than [`HAND_RESET_TIMEOUT`], it is an error.
    pub(super) fn add(
        &mut self,
        now: Instant,
        state: SweepState,
    ) -> Result<Option<SweepRow>, ClockHandReset> {
        self.samples += 1;
        self.last_at = now;
        match u64::try_from(self.distance_to(&state)) {
            Ok(examined) => {
                self.backward_since = None;
                self.count(examined, &state);
                self.last = state;
            }
            Err(_) => {
                let since = *self.backward_since.get_or_insert(now);
                if now.saturating_duration_since(since) > HAND_RESET_TIMEOUT {
                    return Err(ClockHandReset);
                }
            }
        }
        let elapsed = now.saturating_duration_since(self.row_started_at);
        Ok((elapsed >= self.row_length).then(|| self.finish_row(now, elapsed)))
    }

    /// Ends the current row, even if it is shorter than the row length, and returns it.
    pub(super) fn finish_current_row(&mut self, now: Instant) -> SweepRow {
        let elapsed = now.saturating_duration_since(self.row_started_at);
        self.finish_row(now, elapsed)
    }

    pub(super) fn summary(&self) -> SweepSummary {
        SweepSummary {
            elapsed: self.last_at.saturating_duration_since(self.started_at),
            samples: self.samples,
            buffers: self.last.buffers,
            examined: self.total.examined,
            allocations: self.total.allocations,
            swept: self.swept,
            resets: self.resets,
            per_allocation: self.total.per_allocation(),
            passes_per_s: self.passes_per_s,
        }
    }

    /// Returns the distance from the last sample to `state`, in buffers. The number of passes wraps
    /// at 2³².
    fn distance_to(&self, state: &SweepState) -> i64 {
        let passes = state.complete_passes.wrapping_sub(self.last.complete_passes).cast_signed();
        i64::from(passes) * i64::from(state.buffers) + i64::from(state.next_victim)
            - i64::from(self.last.next_victim)
    }

    fn count(&mut self, examined: u64, state: &SweepState) {
        let allocations = match state.allocations.checked_sub(self.last.allocations) {
            Some(more) => u64::from(more),
            // The background writer has reset the counter to 0.
            None => {
                self.resets += 1;
                u64::from(state.allocations)
            }
        };
        if !self.last.has_free_buffers {
            self.swept += allocations;
        }
        // An allocation is counted before its sweep begins. So examined buffers belong to this
        // allocation or an earlier one, and count in the next slice that has any.
        self.slice_examined += examined;
        let slice = (allocations > 0).then(|| {
            let ratio = self.slice_examined as f64 / allocations as f64;
            self.slice_examined = 0;
            ratio
        });
        for sums in [&mut self.total, &mut self.row] {
            sums.examined += examined;
            sums.allocations += allocations;
            if let Some(slice) = slice {
                sums.slices = Some(widen(sums.slices, slice));
            }
        }
    }

    fn finish_row(&mut self, now: Instant, elapsed: Duration) -> SweepRow {
        let sums = std::mem::take(&mut self.row);
        self.row_started_at = now;
        let row = SweepRow {
            at: now.saturating_duration_since(self.started_at),
            elapsed,
            hand: self.last.next_victim,
            complete_passes: self.last.complete_passes,
            buffers: self.last.buffers,
            examined: sums.examined,
            allocations: sums.allocations,
            per_allocation: sums.per_allocation(),
            has_free_buffers: self.last.has_free_buffers,
        };
        self.passes_per_s = Some(widen(self.passes_per_s, row.passes_per_s()));
        row
    }
}

impl SweepSums {
    fn per_allocation(&self) -> Option<PerAllocation> {
        let (min, max) = self.slices?;
        Some(PerAllocation { min, avg: self.examined as f64 / self.allocations as f64, max })
    }
}

/// Time after which a backward hand is a reset. A backend may be descheduled between the two
/// writes, but only briefly: it holds a spinlock.
const HAND_RESET_TIMEOUT: Duration = Duration::from_secs(1);

fn widen(range: Option<(f64, f64)>, value: f64) -> (f64, f64) {
    range.map_or((value, value), |(min, max)| (min.min(value), max.max(value)))
}

fn per_second(amount: f64, elapsed: Duration) -> f64 {
    if elapsed.is_zero() { 0.0 } else { amount / elapsed.as_secs_f64() }
}

#[cfg(test)]
mod tests;
