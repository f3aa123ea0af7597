//! `--worker`, `--start-at` and `--run-id`: several processes, perhaps on several machines, that
//! replay one capture.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use anyhow::Context as _;
use howdah_connect::Client;
use howdah_dataset::{RunPart, SessionShare};
use howdah_replay::{ReplayStart, StatementOrder, TargetClock};
use howdah_traffic::Timestamp;

use crate::{context::CommandContext, errors};

/// One of several workers.
#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Several workers")]
pub(crate) struct WorkerArgs {
    /// Replay only the sessions of this worker, from 0, of COUNT, such as 0/4; other processes
    /// replay the rest
    #[arg(long, value_name = "INDEX/COUNT", requires_all = ["start_at", "run_id"])]
    worker: Option<SessionShare>,
    /// Time, by the clock of the target, at which the first event of the capture is due, such as
    /// 2026-11-28T09:00:00Z
    #[arg(long, value_name = "TIME")]
    start_at: Option<Timestamp>,
    /// Name of the run, the same for all of its workers
    #[arg(long, value_name = "ID", requires = "worker",
          value_parser = clap::builder::NonEmptyStringValueParser::new())]
    run_id: Option<String>,
}

/// The start of a replay that begins at a given time, and the clock by which it was computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlannedStart {
    time: Timestamp,
    at: Instant,
    clock: TargetClock,
}

/// A start that is missed by more than this is reported.
const LATE: Duration = Duration::from_secs(1);

/// Time before the start at which the replay is set up.
const SETUP_TIME: Duration = Duration::from_millis(500);

impl WorkerArgs {
    /// Returns the sessions to replay: all, if there is only one worker.
    pub(super) fn share(&self) -> SessionShare {
        self.worker.unwrap_or(SessionShare::ALL)
    }

    /// Whether other workers replay a part of the sessions.
    pub(super) fn is_one_of_several(&self) -> bool {
        self.share().count() > 1
    }

    /// Refuses options that need to see all sessions.
    pub(super) fn check(
        &self,
        order: StatementOrder,
        skip_idle: Option<Duration>,
    ) -> anyhow::Result<()> {
        let conflict = match (order, skip_idle) {
            _ if !self.is_one_of_several() => return Ok(()),
            (StatementOrder::Commit, _) => {
                "--order commit: a statement waits for transactions of other sessions, which another \
                 worker may replay"
            }
            (_, Some(_)) => "--skip-idle: the other workers would shorten other times",
            _ => return Ok(()),
        };
        let error = errors::wrong_usage(format_args!(
            "--worker {} cannot be used with {conflict}",
            self.share()
        ));
        Err(errors::with_hint(error, "replay with one process: use --workers for more threads"))
    }

    /// Computes the start of the replay from the target's clock; `None` for as soon as possible.
    pub(super) fn plan_start(
        &self,
        ctx: &CommandContext,
        client: &mut Client,
    ) -> anyhow::Result<Option<PlannedStart>> {
        let Some(time) = self.start_at else { return Ok(None) };
        let measured = TargetClock::measure(client).context("cannot query the target's clock")?;
        let clock = measured.context("cannot read the target's clock")?;
        let at = clock.instant_of(time);
        let late = Instant::now().saturating_duration_since(at);
        if late > LATE {
            ctx.report(format_args!(
                "note: --start-at {time} was {} s ago: the events since then are sent late",
                late.as_secs()
            ));
        }
        Ok(Some(PlannedStart { time, at, clock }))
    }

    /// Returns the part of the run that this worker writes; `None` if it writes a whole run.
    pub(super) fn part(&self, start: Option<&PlannedStart>) -> Option<RunPart> {
        let (worker, start) = (self.worker?, start?);
        Some(RunPart {
            run_id: self.run_id.clone()?,
            worker: worker.index(),
            workers: worker.count(),
            start: start.time,
            clock_offset_us: start.clock.offset_us,
            clock_round_trip_us: start.clock.round_trip_us,
        })
    }
}

impl PlannedStart {
    /// Returns the start for the replay, for events whose first has this captured time.
    pub(super) fn with_origin(&self, origin: Option<Timestamp>) -> ReplayStart {
        ReplayStart { origin, at: self.at }
    }

    /// Waits until shortly before the start. Returns early if `stop` is set.
    pub(super) fn wait(&self, ctx: &CommandContext, stop: &AtomicBool) {
        let left = || self.at.saturating_duration_since(Instant::now()).saturating_sub(SETUP_TIME);
        if left() > LATE {
            ctx.report(format_args!("waiting for the start at {}", self.time));
        }
        while !stop.load(Ordering::Relaxed) && !left().is_zero() {
            thread::sleep(left().min(Duration::from_millis(100)));
        }
    }
}
