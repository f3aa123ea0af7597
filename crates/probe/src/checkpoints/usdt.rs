//! Tracks the phases of checkpoints by the USDT probes at their start and end.

use std::time::SystemTime;

use howdah_inspect::RunningServer;

use super::{CheckpointPhase, PhaseCounts, PhaseUpdate, phase_tracker::PhaseTracker};
use crate::{
    clock::ClockOffset,
    error::ProbeError,
    usdt::{UsdtEvent, UsdtListener},
};

/// The transition of a phase that a USDT probe marks.
#[derive(Clone, Copy, Debug)]
enum Edge {
    Begin(CheckpointPhase),
    End(CheckpointPhase),
    /// The end of two phases, the inner one first.
    EndBoth(CheckpointPhase, CheckpointPhase),
}

/// The USDT probes of checkpoints except [`TWO_PHASE`], as named in `probes.d`.
const PROBES: [(&str, Edge); 13] = [
    ("checkpoint__start", Edge::Begin(CheckpointPhase::Checkpoint)),
    ("checkpoint__done", Edge::End(CheckpointPhase::Checkpoint)),
    ("clog__checkpoint__start", Edge::Begin(CheckpointPhase::Clog)),
    ("clog__checkpoint__done", Edge::End(CheckpointPhase::Clog)),
    ("subtrans__checkpoint__start", Edge::Begin(CheckpointPhase::Subtrans)),
    ("subtrans__checkpoint__done", Edge::End(CheckpointPhase::Subtrans)),
    ("multixact__checkpoint__start", Edge::Begin(CheckpointPhase::Multixact)),
    ("multixact__checkpoint__done", Edge::End(CheckpointPhase::Multixact)),
    ("buffer__checkpoint__start", Edge::Begin(CheckpointPhase::Buffers)),
    ("buffer__checkpoint__sync__start", Edge::Begin(CheckpointPhase::Sync)),
    ("buffer__checkpoint__done", Edge::EndBoth(CheckpointPhase::Sync, CheckpointPhase::Buffers)),
    ("buffer__sync__start", Edge::Begin(CheckpointPhase::Write)),
    ("buffer__sync__done", Edge::End(CheckpointPhase::Write)),
];

const TWO_PHASE: [(&str, Edge); 2] = [
    ("twophase__checkpoint__start", Edge::Begin(CheckpointPhase::TwoPhase)),
    ("twophase__checkpoint__done", Edge::End(CheckpointPhase::TwoPhase)),
];

/// Tracks phases by USDT probes.
#[derive(Debug)]
pub(super) struct FromUsdt {
    listener: UsdtListener,
    clock: ClockOffset,
    attached_at: SystemTime,
    phases: PhaseTracker,
}

impl FromUsdt {
    pub(super) fn attach(server: &RunningServer) -> Result<Self, ProbeError> {
        let names: Vec<_> = names().collect();
        let clock = ClockOffset::measure();
        let marks = UsdtListener::attach(server, &names)?;
        Ok(Self {
            listener: marks,
            clock,
            attached_at: SystemTime::now(),
            phases: PhaseTracker::default(),
        })
    }

    pub(super) fn poll(&mut self, visit: &mut impl FnMut(PhaseUpdate)) {
        let Self { listener: marks, clock, attached_at, phases: timeline } = self;
        marks.drain(|event| {
            let Some((_, edge)) = edges().nth(event.probe) else { return };
            let (pid, at) = (event.pid, clock.to_wall_clock(event.monotonic_ns));
            // Probes are attached one by one, so a checkpoint that was already running would be
            // incomplete.
            if at < *attached_at {
                return;
            }
            let mut end = |phase| timeline.finish(phase, pid, at, counts(phase, &event));
            match edge {
                Edge::Begin(phase) => visit(timeline.start(phase, pid, at)),
                Edge::End(phase) => end(phase).into_iter().for_each(&mut *visit),
                Edge::EndBoth(inner, outer) => {
                    [end(inner), end(outer)].into_iter().flatten().for_each(&mut *visit);
                }
            }
        });
    }

    pub(super) fn lost_events(&self) -> Result<u64, ProbeError> {
        Ok(self.listener.lost_events()?)
    }
}

/// Returns the names of all USDT probes of checkpoints.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    edges().map(|(name, _)| name)
}

fn edges() -> impl Iterator<Item = (&'static str, Edge)> {
    PROBES.into_iter().chain(TWO_PHASE)
}

/// Returns the counts in the arguments of the probe at the end of a phase.
fn counts(phase: CheckpointPhase, event: &UsdtEvent) -> PhaseCounts {
    let argument =
        |index: usize| event.arguments[index].and_then(|value| u64::try_from(value).ok());
    match phase {
        // Buffers written, NBuffers, and WAL segments added, removed, recycled.
        CheckpointPhase::Checkpoint => PhaseCounts {
            buffers_written: argument(0),
            segments: match [argument(2), argument(3), argument(4)] {
                [Some(added), Some(removed), Some(recycled)] => Some([added, removed, recycled]),
                _ => None,
            },
            ..PhaseCounts::default()
        },
        // NBuffers, buffers written, buffers to write.
        CheckpointPhase::Write => PhaseCounts {
            buffers_written: argument(1),
            buffers_to_write: argument(2),
            ..PhaseCounts::default()
        },
        _ => PhaseCounts::default(),
    }
}
