//! One server, read at an interval by a thread of its own.
//!
//! The thread has the connection; nobody waits for it. What it finds out it hands to a callback as a whole
//! new [`Standing`]. A server that hangs, refuses or restarts is a standing, too, and is tried again with
//! growing pauses.

mod course;

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use howdah_collect::{
    Activity, CollectError, Identity, Missing, Overview, RateView, View, WaitCounts,
};
use howdah_connect::Target;
use howdah_traffic::Timestamp;

use self::course::SamplerState;
use crate::{Pooled, Poolers, host::HostFigures, waits::WaitHistory};

/// All that was read of a server at one moment.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// What the server is.
    pub identity: Arc<Identity>,
    /// What the role cannot see.
    pub missing: Arc<[Missing]>,
    /// When it was read, by our clock.
    pub read: Instant,
    /// Sessions.
    pub activity: Activity,
    /// The cluster's figures.
    pub overview: Overview,
    /// The figures of the reading before.
    pub before: Option<Overview>,
    /// The view that is looked at, if one is.
    pub view: Option<RateView>,
    /// Why that view cannot be read.
    pub view_error: Option<String>,
    /// The clients of poolers, if there are poolers.
    pub pooled: Option<Arc<Pooled>>,
    /// A view that was read for the history, beside the one that is looked at.
    pub also: Option<RateView>,
    /// What active sessions were doing, second by second.
    pub waits: Arc<WaitHistory>,
    /// Figures of its host, if that is ours.
    pub host: Option<HostFigures>,
    /// When it was read, by our clock, in microseconds since 1970. It never goes back.
    pub seen_us: i64,
    /// How long the reading took.
    pub cost: Duration,
}

impl Snapshot {
    /// A first reading of a server's sessions, and of nothing else.
    pub fn of_activity(identity: Identity, overview: Overview, activity: Activity) -> Self {
        Self {
            identity: Arc::new(identity),
            missing: Arc::new([]),
            read: Instant::now(),
            seen_us: activity.taken_us,
            activity,
            overview,
            before: None,
            view: None,
            view_error: None,
            pooled: None,
            also: None,
            waits: Arc::default(),
            host: None,
            cost: Duration::ZERO,
        }
    }
}

/// How it stands with a server.
#[derive(Clone, Debug)]
pub enum Standing {
    /// The first connection is being made.
    Connecting,
    /// It was read.
    Read(Arc<Snapshot>),
    /// It cannot be read now.
    Away {
        /// Why, in a sentence.
        reason: String,
        /// Since when.
        since: Instant,
        /// When it will be tried again.
        retry: Instant,
        /// What was read last.
        last: Option<Arc<Snapshot>>,
    },
}

impl Standing {
    /// What was read last, if anything was.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        match self {
            Self::Connecting => None,
            Self::Read(snapshot) => Some(snapshot),
            Self::Away { last, .. } => last.as_ref(),
        }
    }
}

/// What a reading should have.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// From the beginning of one reading to that of the next.
    pub interval: Duration,
    /// What idle sessions ran last.
    pub idle_texts: bool,
    /// A view, beside activity and overview.
    pub view: Option<&'static View>,
    /// All views in turn, one with each reading: for a history that has every screen.
    pub all_views: bool,
    /// The whole texts of statements that have not run for a second, too.
    pub whole_texts: bool,
}

impl Wanted {
    /// Whether somebody who calls a statement slow from then on needs whole texts of shorter ones.
    pub(crate) fn whole_texts_for(slow: Option<Duration>) -> bool {
        slow.is_some_and(|slow| slow < Duration::from_secs(1))
    }
}

/// The shortest interval: statistics move about once a second.
pub const INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Longest pause between two attempts to reach a server.
const PAUSE_MAX: Duration = Duration::from_secs(10);

/// A thread that reads one server. Dropping it tells the thread to end, and does not wait for it: the
/// server may hang.
#[derive(Debug)]
pub struct Sampler {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    orders: Mutex<Orders>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct Orders {
    wanted: Wanted,
    /// Counts up with each order, so that none is overlooked.
    number: u64,
    is_over: bool,
}

impl Sampler {
    /// Begins to read, and to ask poolers who is behind what is read. `tell` gets each new standing, on the sampler's thread.
    ///
    /// # Errors
    ///
    /// The operating system has no thread for it.
    pub fn start(
        target: Target,
        poolers: Poolers,
        wanted: Wanted,
        tell: impl FnMut(Standing) + Send + 'static,
    ) -> std::io::Result<Self> {
        let orders = Orders { wanted, number: 0, is_over: false };
        let shared = Arc::new(Shared { orders: Mutex::new(orders), changed: Condvar::new() });
        let worker = Worker {
            target,
            poolers,
            shared: Arc::clone(&shared),
            tell,
            last: None,
            waits: WaitHistory::default(),
            seen_us: 0,
        };
        let thread =
            std::thread::Builder::new().name("sampler".to_owned()).spawn(|| worker.run())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Wants something else from now on, and a reading at once.
    pub fn want(&self, wanted: Wanted) {
        self.order(|orders| orders.wanted = wanted);
    }

    /// Ends it and waits until it has ended.
    pub fn finish(mut self) {
        self.order(|orders| orders.is_over = true);
        if let Some(thread) = self.thread.take() {
            // It has nothing to say that would help now.
            let _ = thread.join();
        }
    }

    fn order(&self, change: impl FnOnce(&mut Orders)) {
        let mut orders = self.shared.orders();
        change(&mut orders);
        orders.number += 1;
        self.shared.changed.notify_all();
    }
}

impl Drop for Sampler {
    fn drop(&mut self) {
        self.order(|orders| orders.is_over = true);
    }
}

impl Shared {
    fn orders(&self) -> MutexGuard<'_, Orders> {
        // Orders are plain values: a panic elsewhere cannot have left them half written.
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `until`, or until there are orders behind `number`.
    fn wait(&self, until: Instant, number: u64) -> Orders {
        let mut orders = self.orders();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if orders.is_over || orders.number != number || left.is_zero() {
                return *orders;
            }
            let waited = self.changed.wait_timeout(orders, left);
            (orders, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

struct Worker<F> {
    target: Target,
    poolers: Poolers,
    shared: Arc<Shared>,
    tell: F,
    last: Option<Arc<Snapshot>>,
    waits: WaitHistory,
    /// The last moment by our clock.
    seen_us: i64,
}

impl<F: FnMut(Standing)> Worker<F> {
    fn run(mut self) {
        let mut failures = 0;
        let mut since = Instant::now();
        loop {
            let outcome = SamplerState::begin(&self.target).and_then(|course| {
                failures = 0;
                self.read_on(course)
            });
            let Err(error) = outcome else { return };
            let now = Instant::now();
            if failures == 0 {
                since = now;
            }
            let pause = pause(failures);
            failures = failures.saturating_add(1);
            let reason = with_causes(&error);
            (self.tell)(Standing::Away {
                reason,
                since,
                retry: now + pause,
                last: self.last.clone(),
            });
            let orders = *self.shared.orders();
            if orders.is_over || self.shared.wait(now + pause, orders.number).is_over {
                return;
            }
        }
    }

    /// Reads until the orders are to end, or the connection is of no use any more.
    fn read_on(&mut self, mut course: SamplerState) -> Result<(), CollectError> {
        loop {
            let orders = *self.shared.orders();
            if orders.is_over {
                return Ok(());
            }
            let begun = Instant::now();
            // Just before the server: who holds a session now holds it in the reading.
            let pooled = self.poolers.read();
            let mut snapshot = course.read(orders.wanted, begun)?;
            snapshot.pooled = pooled;
            self.seen_us = now_us().max(self.seen_us);
            self.waits.add(self.seen_us, &WaitCounts::of(&snapshot.activity));
            snapshot.seen_us = self.seen_us;
            snapshot.waits = Arc::new(self.waits.clone());
            let snapshot = Arc::new(snapshot);
            let cost = snapshot.cost;
            self.last = Some(Arc::clone(&snapshot));
            (self.tell)(Standing::Read(snapshot));
            // A polite guest takes no more than a tenth of the time.
            let interval = orders.wanted.interval.max(INTERVAL_MIN).max(cost * 10);
            if self.sample_waits(&mut course, begun + interval, orders.number)?.is_over {
                return Ok(());
            }
        }
    }

    /// Counts waits, between one reading and the next, until `until` or until there are orders behind
    /// `number`.
    fn sample_waits(
        &mut self,
        course: &mut SamplerState,
        until: Instant,
        number: u64,
    ) -> Result<Orders, CollectError> {
        let mut pause = self.waits.pace(self.seen_us);
        let mut last = Instant::now();
        loop {
            let next = last + pause;
            let orders = self.shared.wait(next.min(until), number);
            // The reading itself is a sample: none is taken just before it.
            if orders.is_over || orders.number != number || next >= until {
                return Ok(orders);
            }
            last = Instant::now();
            match course.server.waits() {
                Ok(counts) => {
                    self.seen_us = now_us().max(self.seen_us);
                    self.waits.add(self.seen_us, &counts);
                }
                Err(error) if error.is_fatal() => return Err(error),
                // It will say so again with the next reading, which somebody looks at.
                Err(error) => tracing::debug!(%error, "waits were not counted"),
            }
            // Polite here, too: a tenth of the time and no more.
            pause = self.waits.pace(self.seen_us).max(last.elapsed() * 10);
        }
    }
}

/// The present, in microseconds since 1970.
pub(crate) fn now_us() -> i64 {
    Timestamp::now().as_micros()
}

/// How long to wait before the next attempt, after so many that failed.
fn pause(failures: u32) -> Duration {
    let first = Duration::from_millis(500);
    first.saturating_mul(1 << failures.min(8)).min(PAUSE_MAX)
}

/// An error and what caused it, on one line that is safe to show.
pub(crate) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    howdah_collect::shown_line(&text).into_owned()
}

#[cfg(test)]
pub(crate) mod tests {
    use howdah_collect::{Backend, Version};

    use super::*;

    /// A snapshot with these sessions.
    pub(crate) fn snapshot(taken_us: i64, backends: Vec<Backend>) -> Snapshot {
        let identity = Identity {
            version: Version(170_002),
            started_us: 0,
            host: "db1".to_owned(),
            port: 5432,
            database: "shop".to_owned(),
            connections_max: 100,
            data_directory: None,
            backend: howdah_collect::ServedBy::default(),
        };
        Snapshot {
            identity: Arc::new(identity),
            missing: Arc::new([]),
            read: Instant::now(),
            activity: Activity { taken_us, backends },
            overview: Overview { taken_us, ..Overview::default() },
            before: None,
            view: None,
            view_error: None,
            pooled: None,
            also: None,
            waits: Arc::default(),
            host: None,
            seen_us: taken_us,
            cost: Duration::from_millis(3),
        }
    }

    #[test]
    fn attempts_grow_rarer_up_to_a_bound() {
        assert_eq!(pause(0), Duration::from_millis(500));
        assert_eq!(pause(1), Duration::from_secs(1));
        assert_eq!(pause(1000), PAUSE_MAX);
    }
}
