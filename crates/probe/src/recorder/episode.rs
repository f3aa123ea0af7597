//! What came before and after a trigger, so that it outlives the ring.

use std::collections::VecDeque;

use super::pen::Body;

/// Remembers the last half minute, and what comes while an episode lasts.
#[derive(Debug)]
pub(super) struct Episodes {
    recent: VecDeque<(i64, Body)>,
    recent_bytes: usize,
    bytes_max: usize,
    /// From the end of an episode until triggers may fire again.
    cool_down_us: i64,
    open: Option<Open>,
    quiet_until_us: i64,
}

#[derive(Debug)]
struct Open {
    until_us: i64,
    bodies: Vec<Body>,
    bytes: usize,
}

/// What is kept of the time before a trigger.
const BEFORE_US: i64 = 30_000_000;
/// And behind, exact probes included.
const AFTER_US: i64 = 30_000_000;

impl Episodes {
    /// `bytes_max`: what there is room for in the file.
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

    /// A record was made.
    pub(super) fn add(&mut self, at_us: i64, body: &Body) {
        if let Some(open) = &mut self.open
            && open.bytes + body.len() <= self.bytes_max
        {
            open.bytes += body.len();
            open.bodies.push(Body::clone(body));
        }
        self.recent.push_back((at_us, Body::clone(body)));
        self.recent_bytes += body.len();
        // Half of the room is for what comes after.
        while let Some((first_us, first)) = self.recent.front()
            && (*first_us < at_us - BEFORE_US || self.recent_bytes > self.bytes_max / 2)
        {
            self.recent_bytes -= first.len();
            self.recent.pop_front();
        }
    }

    /// Whether a trigger may fire: no episode lasts, and the last one is long enough ago.
    pub(super) fn may_fire(&self, at_us: i64) -> bool {
        self.open.is_none() && at_us >= self.quiet_until_us
    }

    /// A trigger fired.
    pub(super) fn begin(&mut self, at_us: i64) {
        let bodies = self.recent.iter().map(|(_, body)| Body::clone(body)).collect();
        let until_us = at_us.saturating_add(AFTER_US);
        self.open = Some(Open { until_us, bodies, bytes: self.recent_bytes });
    }

    /// The records of an episode that is over, or of one that is cut short.
    pub(super) fn ended(&mut self, at_us: i64, is_cut_short: bool) -> Option<Vec<Body>> {
        let open = self.open.take_if(|open| is_cut_short || at_us >= open.until_us)?;
        self.quiet_until_us = at_us.saturating_add(self.cool_down_us);
        Some(open.bodies)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: i64 = 1_000_000;

    fn body(byte: u8) -> Body {
        vec![byte; 100].into()
    }

    #[test]
    fn an_episode_is_what_was_before_and_what_came_after() {
        let mut episodes = Episodes::new(1 << 20, 60 * SECOND);
        let mut kept = Vec::new();
        for second in 0..200_u8 {
            let at_us = i64::from(second) * SECOND;
            episodes.add(at_us, &body(second));
            if matches!(second, 100 | 110 | 150) && episodes.may_fire(at_us) {
                episodes.begin(at_us);
            }
            kept.extend(episodes.ended(at_us, false));
        }
        let seconds: Vec<u8> = kept.iter().flatten().map(|body| body[0]).collect();
        assert_eq!(seconds, (70..=130).collect::<Vec<_>>());
        assert!(!episodes.may_fire(189 * SECOND) && episodes.may_fire(190 * SECOND));
        episodes.begin(200 * SECOND);
        assert_eq!(episodes.ended(201 * SECOND, false), None);
        assert!(episodes.ended(201 * SECOND, true).is_some());
    }

    #[test]
    fn an_episode_is_no_larger_than_its_room() {
        let mut episodes = Episodes::new(1000, 0);
        (0..50).for_each(|second| episodes.add(second, &body(0)));
        episodes.begin(50);
        (50..99).for_each(|second| episodes.add(second, &body(1)));
        let bodies = episodes.ended(99, true).unwrap();
        assert_eq!(bodies.iter().filter(|body| body[0] == 0).count(), 5);
        assert_eq!(bodies.len(), 10);
    }
}
