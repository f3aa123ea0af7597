//! [`StopDeadline`]: makes a backend in the middle of a flush end in time for the shutdown.

use std::{
    io,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

/// The time by which a backend must have ended its work, once it is being stopped. Clones share
/// the time.
#[derive(Clone, Debug)]
pub struct StopDeadline(Arc<StopState>);

#[derive(Debug)]
struct StopState {
    /// When stopping was requested, and the deadline.
    times: Mutex<Option<(Instant, Instant)>>,
    /// An eventfd that is readable once the deadline is set.
    event: OwnedFd,
}

impl StopDeadline {
    /// Creates a deadline that is not set.
    ///
    /// # Errors
    ///
    /// The eventfd cannot be created.
    pub(super) fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self(Arc::new(StopState { times: Mutex::new(None), event })))
    }

    /// Sets the deadline, unless an earlier one is set.
    pub fn set(&self, deadline: Instant) {
        let mut times = self.0.times.lock();
        if times.is_none_or(|(_, earlier)| deadline < earlier) {
            *times = Some((Instant::now(), deadline));
        }
        drop(times);
        // Fails only if the counter is full, and then the eventfd is readable anyway.
        let _ = rustix::io::write(&self.0.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.times.lock().is_some()
    }

    /// Returns the eventfd, which is readable once the deadline is set.
    pub(super) fn event(&self) -> &OwnedFd {
        &self.0.event
    }

    /// Returns `limit`, or an earlier time if the deadline demands it. A quarter of the time before
    /// the deadline is left for what comes after the limit.
    pub(super) fn limit(&self, limit: Instant) -> Instant {
        let times = *self.0.times.lock();
        times.map_or(limit, |(set, deadline)| {
            let all = deadline.saturating_duration_since(set);
            limit.min(set + all - all / 4)
        })
    }

    /// Returns `delay`, or a shorter one of which two fit into the time left after the limit.
    pub(super) fn kill_delay(&self, delay: Duration) -> Duration {
        let times = *self.0.times.lock();
        times
            .map_or(delay, |(set, deadline)| delay.min(deadline.saturating_duration_since(set) / 8))
    }
}

#[test]
fn limits_leave_time_before_the_deadline() {
    let stop = StopDeadline::new().expect("an eventfd");
    let now = Instant::now();
    let (hour, second) = (Duration::from_secs(3600), Duration::from_secs(1));
    assert_eq!((stop.limit(now + hour), stop.kill_delay(second)), (now + hour, second));
    stop.set(now + 8 * second);
    assert!(stop.is_set() && stop.limit(now + hour) < now + 7 * second);
    assert!(stop.kill_delay(hour) <= second);
    assert_eq!(stop.limit(now + second), now + second);
    stop.set(now + hour);
    assert!(stop.limit(now + hour) < now + 7 * second, "a later deadline has no effect");
}
