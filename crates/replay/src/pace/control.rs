//! [`PaceControl`]: changes the rate of a running replay.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use howdah_traffic::Timestamp;
use parking_lot::Mutex;

use super::{Rate, Schedule};

/// Maximum number of changes that a report lists.
const CHANGES_MAX: usize = 1_000;

/// Changes the rate of a running replay, from any thread. Clones control the same replay.
#[derive(Clone, Debug, Default)]
pub struct PaceControl(Arc<SharedPace>);

#[derive(Debug, Default)]
struct SharedPace {
    /// Number of changes so far; workers fetch the schedule when it differs from theirs.
    version: AtomicU64,
    state: Mutex<PaceState>,
}

#[derive(Debug, Default)]
struct PaceState {
    schedule: Option<Schedule>,
    changes: Vec<RateChange>,
}

/// A change of the rate while a replay ran.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateChange {
    /// Time since the start of the replay.
    pub at: Duration,
    /// The rate from then on, in [`Rate::RANGE`].
    pub rate: f64,
}

/// The reason why a rate cannot be changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RateChangeError {
    /// The replay has not begun, because it waits for its first event.
    #[error("the replay has not begun")]
    NotBegun,
    /// The replay runs without waiting, at `--rate max`, so it has no schedule to change.
    #[error("the replay runs at the highest speed, which cannot be changed")]
    Unpaced,
    /// The rate is not in [`Rate::RANGE`].
    #[error("the rate must be a number from {} to {}", Rate::RANGE.start(), Rate::RANGE.end())]
    OutOfRange,
}

impl PaceControl {
    /// Changes the rate from now on: captured time that has been replayed stays as it is.
    ///
    /// # Errors
    ///
    /// See [`RateChangeError`].
    pub fn set_rate(&self, rate: f64) -> Result<(), RateChangeError> {
        if !Rate::RANGE.contains(&rate) {
            return Err(RateChangeError::OutOfRange);
        }
        let now = Instant::now();
        let mut state = self.0.state.lock();
        let schedule = state.schedule.ok_or(RateChangeError::NotBegun)?;
        if !schedule.is_paced() {
            return Err(RateChangeError::Unpaced);
        }
        if schedule.rate == Rate::Times(rate) {
            return Ok(());
        }
        state.schedule = Some(schedule.with_rate(now, rate));
        if state.changes.len() < CHANGES_MAX {
            let at = now.saturating_duration_since(schedule.start());
            state.changes.push(RateChange { at, rate });
        }
        self.0.version.fetch_add(1, Ordering::Release);
        Ok(())
    }

    /// Returns the rate and the captured time that should have been reached by now, in microseconds
    /// since 1970; `None` before the first event.
    pub fn rate_and_position(&self) -> Option<(Rate, Timestamp)> {
        let schedule = self.0.state.lock().schedule?;
        Some((schedule.rate, schedule.position(Instant::now())))
    }

    /// Starts with the schedule of a replay.
    pub(crate) fn start(&self, schedule: Schedule) {
        self.0.state.lock().schedule = Some(schedule);
    }

    /// Returns the schedule if it was changed after the version that the caller knows, and updates
    /// that version.
    pub(crate) fn changed_since(&self, known: &mut u64) -> Option<Schedule> {
        let version = self.0.version.load(Ordering::Acquire);
        if std::mem::replace(known, version) == version {
            return None;
        }
        self.0.state.lock().schedule
    }

    /// Returns the changes so far.
    pub(crate) fn changes(&self) -> Vec<RateChange> {
        self.0.state.lock().changes.clone()
    }
}

#[test]
fn rate_of_a_paced_replay_can_be_changed() {
    let control = PaceControl::default();
    assert_eq!(control.set_rate(2.0), Err(RateChangeError::NotBegun));
    let schedule = |rate| Schedule::new(Timestamp::from_micros(0), Instant::now(), rate);
    control.start(schedule(Rate::Max));
    assert_eq!(control.set_rate(2.0), Err(RateChangeError::Unpaced));
    control.start(schedule(Rate::Times(1.0)));
    assert_eq!(control.set_rate(0.0), Err(RateChangeError::OutOfRange));
    let mut known = 0;
    assert!(control.changed_since(&mut known).is_none());
    assert_eq!(control.set_rate(2.0), Ok(()));
    assert_eq!(control.set_rate(2.0), Ok(()));
    assert_eq!(control.changed_since(&mut known).unwrap().rate, Rate::Times(2.0));
    assert!(control.changed_since(&mut known).is_none());
    assert_eq!(control.changes().len(), 1);
}
