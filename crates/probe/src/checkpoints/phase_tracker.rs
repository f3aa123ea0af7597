//! Tracks nested phases that have started but not finished.

use std::time::SystemTime;

use super::{CheckpointPhase, FinishedPhase, PhaseCounts, PhaseUpdate};

/// The open phases of one process.
#[derive(Clone, Debug, Default)]
pub(super) struct PhaseTracker {
    open: Vec<(CheckpointPhase, SystemTime)>,
}

impl PhaseTracker {
    /// Starts a phase. If one of the same kind is still open, its end was lost, as were the ends of
    /// all phases inside it.
    pub(super) fn start(
        &mut self,
        phase: CheckpointPhase,
        pid: u32,
        at: SystemTime,
    ) -> PhaseUpdate {
        if let Some(index) = self.position(phase) {
            self.open.truncate(index);
        }
        let depth = self.open.len();
        self.open.push((phase, at));
        PhaseUpdate::Started { phase, pid, at, depth }
    }

    /// Finishes a phase; `None` if its start was not observed. Phases still open inside it are
    /// discarded, because their ends were lost.
    pub(super) fn finish(
        &mut self,
        phase: CheckpointPhase,
        pid: u32,
        at: SystemTime,
        counts: PhaseCounts,
    ) -> Option<PhaseUpdate> {
        let depth = self.position(phase)?;
        let (_, started_at) = self.open[depth];
        self.open.truncate(depth);
        let duration = at.duration_since(started_at).unwrap_or_default();
        Some(PhaseUpdate::Finished(FinishedPhase {
            phase,
            pid,
            started_at,
            duration,
            depth,
            counts,
        }))
    }

    /// Discards all open phases.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    fn position(&self, phase: CheckpointPhase) -> Option<usize> {
        self.open.iter().rposition(|(open, _)| *open == phase)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(ms: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(ms)
    }

    #[test]
    fn phases_nest_and_unmatched_finish_is_ignored() {
        let mut timeline = PhaseTracker::default();
        let none = PhaseCounts::default();
        assert_eq!(timeline.finish(CheckpointPhase::Sync, 7, at(0), none), None);
        timeline.start(CheckpointPhase::Checkpoint, 7, at(0));
        timeline.start(CheckpointPhase::Buffers, 7, at(5));
        timeline.start(CheckpointPhase::Write, 7, at(6));
        let Some(PhaseUpdate::Finished(span)) =
            timeline.finish(CheckpointPhase::Write, 7, at(16), none)
        else {
            panic!("phase was open");
        };
        assert_eq!((span.depth, span.duration), (2, Duration::from_millis(10)));
        // The end of an enclosing phase closes a phase whose own end was lost.
        timeline.start(CheckpointPhase::Sync, 7, at(17));
        assert!(timeline.finish(CheckpointPhase::Buffers, 7, at(20), none).is_some());
        assert_eq!(timeline.finish(CheckpointPhase::Sync, 7, at(21), none), None);
        assert!(timeline.finish(CheckpointPhase::Checkpoint, 7, at(22), none).is_some());
        // A second start without an end.
        timeline.start(CheckpointPhase::Checkpoint, 7, at(30));
        let again = timeline.start(CheckpointPhase::Checkpoint, 7, at(40));
        assert!(matches!(again, PhaseUpdate::Started { depth: 0, .. }));
    }
}
