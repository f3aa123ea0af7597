//! Decides when the calibration statement may be executed: never at the expense of captured
//! sessions.

use std::time::{Duration, Instant};

use howdah_connect::Client;
use howdah_dataset::{CalibrationEnd, CalibrationEndReason};
use parking_lot::{Condvar, Mutex};

use super::CLOSE_TIMEOUT;
use crate::capacity::{Capacity, is_through_pooler};

/// The decision whether a replay executes the calibration statement: a fixed statement that reads
/// no table, whose duration, on a connection of its own, shows how fast the target is at the
/// moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CalibrationPlan {
    /// The statement is executed as long as few enough captured sessions are open.
    Run {
        /// Time from the start of one execution to that of the next.
        interval: Duration,
        /// Maximum number of captured sessions that may be open at once while the statement is
        /// executed; when there are more, the calibration ends.
        sessions_max: usize,
    },
    /// The statement is not executed.
    Omit {
        /// The cause, for programs.
        reason: CalibrationEndReason,
        /// The cause as a message for people.
        message: String,
    },
}

/// Number of available connection slots that are kept free, in addition to a tenth of them and the
/// calibration's own: a few more sessions may log in while the calibration frees its slot.
const SPARE_SLOTS: usize = 5;

impl CalibrationPlan {
    /// Default time between executions.
    pub const INTERVAL: Duration = Duration::from_millis(250);

    /// Plans to execute the statement if a target with this capacity has enough free slots while
    /// `sessions` captured sessions are open at once. Pass 0 if their number is not known: the
    /// calibration still ends when too many are open.
    ///
    /// `client` is a connection with the login of the calibration. The statement is not executed
    /// through a pooler, which may have fewer connections than the server, nor for a role or
    /// database with a connection limit.
    pub fn new(client: &mut Client, capacity: Option<Capacity>, sessions: usize) -> Self {
        let plan = Self::from_capacity(capacity, sessions);
        let Self::Run { .. } = plan else { return plan };
        match find_obstacle(client) {
            Some((reason, message)) => Self::Omit { reason, message },
            None => plan,
        }
    }

    fn from_capacity(capacity: Option<Capacity>, sessions: usize) -> Self {
        let omit = |message| Self::Omit { reason: CalibrationEndReason::NoFreeSlot, message };
        let Some(capacity) = capacity else {
            return omit("the target does not report its connection slots".to_owned());
        };
        let available = capacity.available();
        let others = SPARE_SLOTS + available / 10 + 1;
        match available.checked_sub(others) {
            Some(sessions_max) if sessions <= sessions_max => {
                Self::Run { interval: Self::INTERVAL, sessions_max }
            }
            _ => omit(format!("too few free connection slots, {capacity}")),
        }
    }

    /// Plans not to execute the statement, because the user disabled it.
    pub fn disabled() -> Self {
        Self::Omit {
            reason: CalibrationEndReason::Disabled,
            message: "it is switched off".to_owned(),
        }
    }
}

/// Selects the session's process id and the connection limits that apply to it; -1 means no limit.
const SESSION_SQL: &str = "\
select pg_catalog.pg_backend_pid(),
       (select rolconnlimit from pg_catalog.pg_roles where rolname = session_user),
       (select datconnlimit from pg_catalog.pg_database
        where datname = pg_catalog.current_database())";

/// Returns the reason why the calibration must not use a connection like `client`, if there is one:
/// it goes through a pooler, its role or database has a connection limit, or querying these facts
/// fails.
fn find_obstacle(client: &mut Client) -> Option<(CalibrationEndReason, String)> {
    let results = match client.query(SESSION_SQL) {
        Ok(results) => results,
        Err(error) => return Some((CalibrationEndReason::StatementFailed, error.to_string())),
    };
    let row = results.first().and_then(|result| result.rows.first());
    let number = |column| row.and_then(|row| row.text(column)?.parse::<i32>().ok());
    let backend = row.and_then(|row| row.text(0));
    if is_through_pooler(client, backend.as_deref()) {
        let message = "the connection goes through a pooler".to_owned();
        return Some((CalibrationEndReason::Pooler, message));
    }
    [(1, "role"), (2, "database")].into_iter().find_map(|(column, kind)| {
        let limit = number(column).filter(|limit| *limit >= 0)?;
        let message = format!("its {kind} has a connection limit of {limit}");
        Some((CalibrationEndReason::NoFreeSlot, message))
    })
}

/// The shared state of the calibration, which ends when it fails, when the captured sessions need
/// its connection slot, or with the replay.
#[derive(Debug)]
pub(crate) struct CalibrationControl {
    interval: Duration,
    sessions_max: usize,
    state: Mutex<CalibrationState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct CalibrationState {
    /// End of the last execution, as time since the start of the replay.
    executed: Option<Duration>,
    end: Option<CalibrationEnd>,
    is_replay_over: bool,
    has_connection: bool,
}

impl CalibrationControl {
    pub(crate) fn new(plan: CalibrationPlan) -> Self {
        let mut state = CalibrationState::default();
        let (interval, sessions_max) = match plan {
            CalibrationPlan::Run { interval, sessions_max } => (interval, sessions_max),
            CalibrationPlan::Omit { reason, message } => {
                state.end = Some(CalibrationEnd { reason, message, at_us: None });
                (CalibrationPlan::INTERVAL, 0)
            }
        };
        Self { interval, sessions_max, state: Mutex::new(state), changed: Condvar::new() }
    }

    /// Returns the time from the start of one execution to that of the next.
    pub(crate) fn interval(&self) -> Duration {
        self.interval
    }

    /// Whether this number of captured sessions leaves room for the calibration.
    pub(super) fn has_room_for(&self, sessions: usize) -> bool {
        sessions <= self.sessions_max
    }

    /// Ends the calibration if `sessions` captured sessions need its slot, and then waits up to
    /// [`CLOSE_TIMEOUT`] until the slot is free.
    pub(crate) fn make_room_for(&self, sessions: usize) {
        // Waiting again would not help if the server does not respond.
        if !self.has_room_for(sessions) && self.release_slot() {
            self.wait_until_closed(CLOSE_TIMEOUT);
        }
    }

    /// Ends the calibration for good, because the captured sessions need its slot. Returns whether
    /// it was running until now.
    pub(crate) fn release_slot(&self) -> bool {
        let message = "the captured sessions need its connection slot";
        self.finish(CalibrationEndReason::NoFreeSlot, message.to_owned())
    }

    /// Ends the calibration for good. Returns false if it has already ended.
    pub(super) fn finish(&self, reason: CalibrationEndReason, message: String) -> bool {
        let mut state = self.state.lock();
        let was_running = state.is_running();
        if was_running {
            let at_us = state.executed.map(super::micros);
            state.end = Some(CalibrationEnd { reason, message, at_us });
            self.changed.notify_all();
        }
        was_running
    }

    /// Stops the calibration at the end of the replay.
    pub(super) fn stop(&self) {
        self.state.lock().is_replay_over = true;
        self.changed.notify_all();
    }

    /// Whether the statement may be executed.
    pub(super) fn is_running(&self) -> bool {
        self.state.lock().is_running()
    }

    /// Waits until `deadline`; returns early with false when the calibration ends.
    pub(super) fn wait_until(&self, deadline: Instant) -> bool {
        let mut state = self.state.lock();
        while state.is_running() {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return state.is_running();
            }
        }
        false
    }

    /// Records that an execution ended; `at` is the time since the start of the replay.
    pub(super) fn record_execution(&self, at: Duration) {
        self.state.lock().executed = Some(at);
    }

    /// Records that the calibration is about to connect; returns false if it must not. Checking and
    /// recording are one step, so that [`Self::make_room_for`] waits for every connection that it
    /// did not prevent.
    pub(super) fn start_connection(&self) -> bool {
        let mut state = self.state.lock();
        state.has_connection = state.is_running();
        state.has_connection
    }

    /// Records that the calibration's connection is closed.
    pub(super) fn end_connection(&self) {
        self.state.lock().has_connection = false;
        self.changed.notify_all();
    }

    /// Waits until the connection is closed, for at most `timeout`.
    pub(super) fn wait_until_closed(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.has_connection {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
        }
    }

    /// Returns the reason why the calibration was omitted or ended before the replay; `None`
    /// otherwise.
    pub(super) fn end(&self) -> Option<CalibrationEnd> {
        self.state.lock().end.clone()
    }
}

impl CalibrationState {
    fn is_running(&self) -> bool {
        self.end.is_none() && !self.is_replay_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(available: usize, sessions: usize) -> CalibrationPlan {
        let capacity = Capacity { max: available + 3, reserved: 3, in_use: 0 };
        CalibrationPlan::from_capacity(Some(capacity), sessions)
    }

    #[test]
    fn calibration_needs_a_spare_slot() {
        let run = |sessions_max| CalibrationPlan::Run {
            interval: CalibrationPlan::INTERVAL,
            sessions_max,
        };
        assert_eq!(plan(97, 0), run(82));
        assert_eq!(plan(97, 82), run(82));
        assert_eq!(plan(7, 1), run(1));
        let omitted = [(97, 83), (7, 2), (5, 0), (0, 0)]
            .map(|(available, sessions)| plan(available, sessions));
        for plan in omitted.into_iter().chain([CalibrationPlan::from_capacity(None, 0)]) {
            let CalibrationPlan::Omit { reason, .. } = &plan else { panic!("{plan:?}") };
            assert_eq!(*reason, CalibrationEndReason::NoFreeSlot);
        }
    }

    #[test]
    fn calibration_ends_when_sessions_need_its_slot() {
        let control = CalibrationControl::new(plan(97, 0));
        control.make_room_for(82);
        assert!(control.wait_until(Instant::now()));
        control.record_execution(Duration::from_millis(300));
        control.make_room_for(83);
        // Only the first reason counts.
        control.finish(CalibrationEndReason::StatementFailed, String::new());
        let end = control.end().unwrap();
        assert_eq!((end.reason, end.at_us), (CalibrationEndReason::NoFreeSlot, Some(300_000)));
        // Returns at once, whatever the deadline.
        assert!(!control.wait_until(Instant::now() + Duration::from_secs(3_600)));
    }

    #[test]
    fn end_of_replay_is_no_reason() {
        let control = CalibrationControl::new(plan(97, 0));
        control.stop();
        control.make_room_for(1_000);
        assert!(!control.wait_until(Instant::now()));
        assert_eq!(control.end(), None);
    }

    #[test]
    fn omitted_calibration_never_runs() {
        let control = CalibrationControl::new(CalibrationPlan::disabled());
        assert!(!control.is_running());
        let end = control.end().unwrap();
        assert_eq!((end.reason, end.at_us), (CalibrationEndReason::Disabled, None));
    }
}
