//! Phases by the markers at their ends.

use std::time::SystemTime;

use howdah_inspect::Server;

use super::{Counts, Phase, Update, timeline::Timeline};
use crate::{
    clock::Clock,
    error::Error,
    marks::{Mark, Marks},
};

/// What a marker says of a phase.
#[derive(Clone, Copy, Debug)]
enum Edge {
    Begin(Phase),
    End(Phase),
    /// The end of two phases, the inner one first.
    EndBoth(Phase, Phase),
}

/// The markers of checkpoints, as `probes.d` names them.
const MARKERS: [(&str, Edge); 13] = [
    ("checkpoint__start", Edge::Begin(Phase::Checkpoint)),
    ("checkpoint__done", Edge::End(Phase::Checkpoint)),
    ("clog__checkpoint__start", Edge::Begin(Phase::Clog)),
    ("clog__checkpoint__done", Edge::End(Phase::Clog)),
    ("subtrans__checkpoint__start", Edge::Begin(Phase::Subtrans)),
    ("subtrans__checkpoint__done", Edge::End(Phase::Subtrans)),
    ("multixact__checkpoint__start", Edge::Begin(Phase::Multixact)),
    ("multixact__checkpoint__done", Edge::End(Phase::Multixact)),
    ("buffer__checkpoint__start", Edge::Begin(Phase::Buffers)),
    ("buffer__checkpoint__sync__start", Edge::Begin(Phase::Sync)),
    ("buffer__checkpoint__done", Edge::EndBoth(Phase::Sync, Phase::Buffers)),
    ("buffer__sync__start", Edge::Begin(Phase::Write)),
    ("buffer__sync__done", Edge::End(Phase::Write)),
];

const TWO_PHASE: [(&str, Edge); 2] = [
    ("twophase__checkpoint__start", Edge::Begin(Phase::TwoPhase)),
    ("twophase__checkpoint__done", Edge::End(Phase::TwoPhase)),
];

/// Phases, told by markers.
#[derive(Debug)]
pub(super) struct FromMarkers {
    marks: Marks,
    clock: Clock,
    attached_at: SystemTime,
    timeline: Timeline,
}

impl FromMarkers {
    pub(super) fn attach(server: &Server) -> Result<Self, Error> {
        let names: Vec<_> = names().collect();
        let clock = Clock::now();
        let marks = Marks::attach(server, &names)?;
        Ok(Self { marks, clock, attached_at: SystemTime::now(), timeline: Timeline::default() })
    }

    pub(super) fn poll(&mut self, visit: &mut impl FnMut(Update)) {
        let Self { marks, clock, attached_at, timeline } = self;
        marks.drain(|mark| {
            let Some((_, edge)) = edges().nth(mark.marker) else { return };
            let (pid, at) = (mark.pid, clock.wall(mark.monotonic_ns));
            // Markers are attached one after another: a checkpoint that passes meanwhile is not seen whole.
            if at < *attached_at {
                return;
            }
            let mut end = |phase| timeline.end(phase, pid, at, counts(phase, &mark));
            match edge {
                Edge::Begin(phase) => visit(timeline.begin(phase, pid, at)),
                Edge::End(phase) => end(phase).into_iter().for_each(&mut *visit),
                Edge::EndBoth(inner, outer) => {
                    [end(inner), end(outer)].into_iter().flatten().for_each(&mut *visit);
                }
            }
        });
    }

    pub(super) fn lost(&self) -> Result<u64, Error> {
        Ok(self.marks.lost()?)
    }
}

/// The names of all of them.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    edges().map(|(name, _)| name)
}

fn edges() -> impl Iterator<Item = (&'static str, Edge)> {
    MARKERS.into_iter().chain(TWO_PHASE)
}

/// What the arguments of the marker at the end of a phase say.
fn counts(phase: Phase, mark: &Mark) -> Counts {
    let argument = |index: usize| mark.arguments[index].and_then(|value| u64::try_from(value).ok());
    match phase {
        // Buffers written, NBuffers, and WAL segments added, removed, recycled.
        Phase::Checkpoint => Counts {
            buffers_written: argument(0),
            segments: match [argument(2), argument(3), argument(4)] {
                [Some(added), Some(removed), Some(recycled)] => Some([added, removed, recycled]),
                _ => None,
            },
            ..Counts::default()
        },
        // NBuffers, buffers written, buffers to write.
        Phase::Write => Counts {
            buffers_written: argument(1),
            buffers_to_write: argument(2),
            ..Counts::default()
        },
        _ => Counts::default(),
    }
}
