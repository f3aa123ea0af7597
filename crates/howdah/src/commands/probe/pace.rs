//! Duration and report interval of a probe.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_probe::waits::TickSchedule;

use crate::{context::CommandContext, values::time};

/// Options of all probes that run for some time.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PaceArgs {
    /// Exit after this time [default: run until Ctrl-C]
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Time between reports
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(super) interval: Duration,
}

/// A ticker that ends after the duration or when interrupted.
#[derive(Debug)]
pub(super) struct Ticks<'a> {
    ctx: &'a CommandContext,
    interrupted: Arc<AtomicBool>,
    end: Option<Instant>,
    pace: TickSchedule,
}

impl PaceArgs {
    /// Starts a ticker with this interval.
    pub(super) fn start<'a>(&self, ctx: &'a CommandContext, every: Duration) -> Ticks<'a> {
        let now = Instant::now();
        Ticks {
            ctx,
            interrupted: ctx.interrupted(),
            end: self.duration.and_then(|duration| now.checked_add(duration)),
            pace: TickSchedule::new(now + every, every),
        }
    }
}

impl Ticks<'_> {
    /// Number of ticks skipped because the work in between took too long.
    pub(super) fn missed(&self) -> u64 {
        self.pace.missed()
    }

    /// Waits for the next tick; returns false at the end, or if stdout is closed.
    pub(super) fn tick(&mut self) -> bool {
        let due = self.pace.next_tick_at();
        let should_continue = self.wait_until(due);
        self.pace.advance(Instant::now());
        should_continue
    }

    /// Like [`Self::tick`], for callers that determine the time of the tick themselves.
    pub(super) fn wait_until(&mut self, due: Instant) -> bool {
        // Flush, so that a pipe or file is up to date. An error will recur at the next write.
        if self.ctx.stdout().flush().is_err() {
            return false;
        }
        let until = self.end.map_or(due, |end| end.min(due));
        thread::sleep(until.saturating_duration_since(Instant::now()));
        let now = Instant::now();
        let is_over = self.end.is_some_and(|end| now >= end);
        !is_over && !self.interrupted.load(Ordering::Relaxed)
    }
}
