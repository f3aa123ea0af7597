//! [`LagHistory`]: past WAL positions of the primary, from which a standby's lag is computed, in
//! bytes and in time by our own clock. `pg_last_xact_replay_timestamp` cannot replace it: its age
//! grows while nothing is written, and it compares the clocks of two machines.

use std::{collections::VecDeque, time::Duration};

use super::thinning::thin;
use crate::time::Time;

/// Maximum number of positions stored; the history is thinned before it exceeds this.
const POSITIONS_MAX: usize = 600;

/// Past WAL positions of the primary, each with the time at which it was first seen.
#[derive(Debug, Default)]
pub(crate) struct LagHistory {
    /// Index of the primary in the cluster's list of servers.
    primary: Option<usize>,
    /// Pairs of the time at which a position was first seen, and the position; both increase.
    positions: VecDeque<(Time, u64)>,
}

impl LagHistory {
    /// Records the WAL position that the primary reported at `now`.
    pub(crate) fn record(&mut self, primary: usize, lsn: u64, now: Time) {
        if self.primary.replace(primary) != Some(primary) {
            self.positions.clear();
        }
        if self.positions.back().is_none_or(|(_, last)| *last < lsn) {
            self.positions.push_back((now, lsn));
        }
        if self.positions.len() >= POSITIONS_MAX {
            thin(&mut self.positions, POSITIONS_MAX, |(at, _)| at.0);
        }
    }

    /// Returns the lag of a standby that has replayed up to `lsn`, in bytes and time; `None` before
    /// any primary was seen.
    pub(crate) fn lag_at(&self, lsn: u64, now: Time) -> Option<(u64, Duration)> {
        let (_, newest) = self.positions.back()?;
        let missing = self.positions.iter().find(|(_, position)| *position > lsn);
        let lag = missing.map_or(Duration::ZERO, |(since, _)| now.since(*since));
        Some((newest.saturating_sub(lsn), lag))
    }
}

#[test]
fn lag_counts_from_first_position_not_reached() {
    let at = |seconds: u64| Time::default() + Duration::from_secs(seconds);
    let mut history = LagHistory::default();
    assert_eq!(history.lag_at(5, at(0)), None);
    history.record(0, 100, at(1));
    history.record(0, 200, at(2));
    history.record(0, 200, at(3));
    history.record(0, 300, at(4));
    let seconds = Duration::from_secs;
    assert_eq!(
        history.lag_at(300, at(60)),
        Some((0, seconds(0))),
        "nothing was written since then"
    );
    assert_eq!(history.lag_at(250, at(5)), Some((50, seconds(1))));
    assert_eq!(history.lag_at(100, at(5)), Some((200, seconds(3))));
    // After many checks the history still covers the last hour.
    for second in 5..40_000 {
        history.record(0, 300 + second, at(second));
    }
    let (_, lag) = history.lag_at(36_300, at(40_000)).unwrap();
    assert!((3500..=4000).contains(&lag.as_secs()), "{lag:?}");
    history.record(1, 310, at(6));
    assert_eq!(history.lag_at(300, at(7)), Some((10, seconds(1))), "the primary has changed");
}
