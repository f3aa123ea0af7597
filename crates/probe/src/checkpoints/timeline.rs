//! Phases that are open, one in another.

use std::time::SystemTime;

use super::{Counts, Phase, Span, Update};

/// The phases of one process that have begun and not ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Timeline {
    open: Vec<(Phase, SystemTime)>,
}

impl Timeline {
    /// A phase begins. One of the same kind that is open lost its end, and so did all inside of it.
    pub(super) fn begin(&mut self, phase: Phase, pid: u32, at: SystemTime) -> Update {
        if let Some(lost) = self.position(phase) {
            self.open.truncate(lost);
        }
        let depth = self.open.len();
        self.open.push((phase, at));
        Update::Started { phase, pid, at, depth }
    }

    /// It ends; nothing if its beginning was not seen. What is open inside of it lost its end.
    pub(super) fn end(
        &mut self,
        phase: Phase,
        pid: u32,
        at: SystemTime,
        counts: Counts,
    ) -> Option<Update> {
        let depth = self.position(phase)?;
        let (_, started_at) = self.open[depth];
        self.open.truncate(depth);
        let duration = at.duration_since(started_at).unwrap_or_default();
        Some(Update::Finished(Span { phase, pid, started_at, duration, depth, counts }))
    }

    /// Forgets everything.
    pub(super) fn clear(&mut self) {
        self.open.clear();
    }

    fn position(&self, phase: Phase) -> Option<usize> {
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
    fn phases_nest_and_an_end_without_a_beginning_is_nothing() {
        let mut timeline = Timeline::default();
        let none = Counts::default();
        assert_eq!(timeline.end(Phase::Sync, 7, at(0), none), None);
        timeline.begin(Phase::Checkpoint, 7, at(0));
        timeline.begin(Phase::Buffers, 7, at(5));
        timeline.begin(Phase::Write, 7, at(6));
        let Some(Update::Finished(span)) = timeline.end(Phase::Write, 7, at(16), none) else {
            panic!("it was open");
        };
        assert_eq!((span.depth, span.duration), (2, Duration::from_millis(10)));
        // The end of what holds it ends a phase that lost its own.
        timeline.begin(Phase::Sync, 7, at(17));
        assert!(timeline.end(Phase::Buffers, 7, at(20), none).is_some());
        assert_eq!(timeline.end(Phase::Sync, 7, at(21), none), None);
        assert!(timeline.end(Phase::Checkpoint, 7, at(22), none).is_some());
        // A beginning again.
        timeline.begin(Phase::Checkpoint, 7, at(30));
        let again = timeline.begin(Phase::Checkpoint, 7, at(40));
        assert!(matches!(again, Update::Started { depth: 0, .. }));
    }
}
