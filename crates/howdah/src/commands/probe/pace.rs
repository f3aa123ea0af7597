//! How long a probe runs and how often it reports.

use std::{
    io::Write as _,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_probe::waits::Pace;

use crate::{context::Context, values::time};

/// Options of all probes that run for a while.
#[derive(Clone, Copy, Debug, clap::Args)]
pub(super) struct PaceArgs {
    /// End after this time; without it, at Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = time)]
    duration: Option<Duration>,
    /// Time from one line to the next
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1s")]
    pub(super) interval: Duration,
}

/// Ticks until the time is over or somebody wants to end.
#[derive(Debug)]
pub(super) struct Ticks<'a> {
    ctx: &'a Context,
    interrupted: Arc<AtomicBool>,
    end: Option<Instant>,
    pace: Pace,
}

impl PaceArgs {
    /// From now on, a tick `every` so often.
    pub(super) fn begin<'a>(&self, ctx: &'a Context, every: Duration) -> Ticks<'a> {
        let now = Instant::now();
        Ticks {
            ctx,
            interrupted: ctx.interrupted(),
            end: self.duration.and_then(|duration| now.checked_add(duration)),
            pace: Pace::new(now + every, every),
        }
    }
}

impl Ticks<'_> {
    /// Ticks that were left out, because what came before took too long.
    pub(super) fn missed(&self) -> u64 {
        self.pace.missed()
    }

    /// Waits for the next tick; false if there is none, or nobody reads what was written.
    pub(super) fn tick(&mut self) -> bool {
        let due = self.pace.due();
        let goes_on = self.wait_until(due);
        self.pace.reached(Instant::now());
        goes_on
    }

    /// The same for whoever knows better when the next tick is due.
    pub(super) fn wait_until(&mut self, due: Instant) -> bool {
        // Who reads a pipe or a file wants to see it now; an error comes again with what is written next.
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
