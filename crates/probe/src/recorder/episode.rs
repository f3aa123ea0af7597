//! Collects the records around a trigger, so that they survive the ring.

use std::collections::VecDeque;

use super::writer::RecordBody;

/// Buffers the records of the last half minute, and those of a running episode, as far as they fit
/// into an episode's slot of the file.
#[derive(Debug)]
pub(super) struct Episodes {
    recent: VecDeque<(i64, RecordBody)>,
    recent_bytes: usize,
    bytes_max: usize,
    /// Time from the end of an episode until a trigger may fire again.
    cool_down_us: i64,
    open: Option<OpenEpisode>,
    quiet_until_us: i64,
}

/// An episode that is being recorded.
#[derive(Debug)]
struct OpenEpisode {
    until_us: i64,
    bodies: Vec<RecordBody>,
    bytes: usize,
}

/// Time before a trigger that an episode covers, in microseconds.
const BEFORE_US: i64 = 30_000_000;
/// Time after a trigger that an episode covers, in microseconds.
const AFTER_US: i64 = 30_000_000;

impl Episodes {
    /// Creates the buffer. `bytes_max` is the maximum total length of an episode's records.
    pub(super) fn new(bytes_max: usize, cool_down_us: i64) -> Self {
        Self {
            recent: VecDeque::new(),
            recent_bytes: 0,
            bytes_max,
            cool_down_us,
            open: None,
            quiet_until_us: i64::MIN,
        }
    }

    /// Appends a record to the recent ones and, if it still fits, to the open episode.
    pub(super) fn add(&mut self, at_us: i64, body: &RecordBody) {
        if let Some(open) = &mut self.open
            && open.bytes + body.len() <= self.bytes_max
        {
            open.bytes += body.len();
            open.bodies.push(RecordBody::clone(body));
        }
        self.recent.push_back((at_us, RecordBody::clone(body)));
        self.recent_bytes += body.len();
        // Half of the slot is reserved for the time after the trigger.
        while let Some((first_us, first)) = self.recent.front()
            && (*first_us < at_us - BEFORE_US || self.recent_bytes > self.bytes_max / 2)
        {
            self.recent_bytes -= first.len();
            self.recent.pop_front();
        }
    }

    /// Whether a trigger may fire: no episode is running, and the cool-down has passed.
    pub(super) fn can_trigger(&self, at_us: i64) -> bool {
        self.open.is_none() && at_us >= self.quiet_until_us
    }

    /// Starts an episode with the buffered records of the last half minute.
    pub(super) fn start(&mut self, at_us: i64) {
        let bodies = self.recent.iter().map(|(_, body)| RecordBody::clone(body)).collect();
        let until_us = at_us.saturating_add(AFTER_US);
        self.open = Some(OpenEpisode { until_us, bodies, bytes: self.recent_bytes });
    }

    /// Returns the records of the episode once it has ended. With `is_cut_short`, ends it
    /// immediately.
    pub(super) fn take_finished(
        &mut self,
        at_us: i64,
        is_cut_short: bool,
    ) -> Option<Vec<RecordBody>> {
        let open = self.open.take_if(|open| is_cut_short || at_us >= open.until_us)?;
        self.quiet_until_us = at_us.saturating_add(self.cool_down_us);
        Some(open.bodies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn body(byte: u8) -> RecordBody {
        vec![byte; 100].into()
    }

    #[test]
    fn episode_spans_30_s_before_and_after_trigger() {
        let mut episodes = Episodes::new(1 << 20, 60 * SECOND);
        let mut stored = Vec::new();
        for second in 0..200_u8 {
            let at_us = i64::from(second) * SECOND;
            episodes.add(at_us, &body(second));
            if matches!(second, 100 | 110 | 150) && episodes.can_trigger(at_us) {
                episodes.start(at_us);
            }
            stored.extend(episodes.take_finished(at_us, false));
        }
        let seconds: Vec<u8> = stored.iter().flatten().map(|body| body[0]).collect();
        assert_eq!(seconds, (70..=130).collect::<Vec<_>>());
        assert!(!episodes.can_trigger(189 * SECOND) && episodes.can_trigger(190 * SECOND));
        episodes.start(200 * SECOND);
        assert_eq!(episodes.take_finished(201 * SECOND, false), None);
        assert!(episodes.take_finished(201 * SECOND, true).is_some());
    }

    #[test]
    fn episode_is_bounded_by_slot_size() {
        let mut episodes = Episodes::new(1000, 0);
        (0..50).for_each(|second| episodes.add(second, &body(0)));
        episodes.start(50);
        (50..99).for_each(|second| episodes.add(second, &body(1)));
        let bodies = episodes.take_finished(99, true).unwrap();
        assert_eq!(bodies.iter().filter(|body| body[0] == 0).count(), 5);
        assert_eq!(bodies.len(), 10);
    }
}
