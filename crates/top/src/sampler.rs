//! One server, read at an interval by a thread of its own.
//!
//! The thread has the connection; nobody waits for it. What it finds out it hands to a callback as a whole
//! new [`Standing`]. A server that hangs, refuses or restarts is a standing, too, and is tried again with
//! growing pauses.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use howdah_collect::{
    Activity, CollectError, Identity, Kind, Missing, Overview, Rated, Reading, Server, State, View,
    Wait, rates,
};
use howdah_connect::Target;

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
    pub view: Option<Rated>,
    /// Why that view cannot be read.
    pub view_error: Option<String>,
    /// What active sessions were doing since the sampler began.
    pub waits: Arc<Waits>,
    /// How long the reading took.
    pub cost: Duration,
}

/// What active sessions were doing or waiting for, counted over readings.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    /// How many readings were counted.
    pub readings: u64,
    /// How many sessions were seen in each wait; `None` is running.
    pub counts: BTreeMap<Option<Wait>, u64>,
}

impl Waits {
    /// Counts one reading. Idle sessions, and processes that wait for work, are not at work.
    fn count(&mut self, activity: &Activity) {
        self.readings += 1;
        for backend in &activity.backends {
            let helps = backend.kind == Some(Kind::ParallelWorker);
            let works = helps || matches!(backend.state, Some(State::Active | State::FastPath));
            if works && backend.kind != Some(Kind::WalSender) {
                *self.counts.entry(backend.wait.clone()).or_default() += 1;
            }
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
    /// Begins to read. `tell` gets each new standing, on the sampler's thread.
    ///
    /// # Errors
    ///
    /// The operating system has no thread for it.
    pub fn start(
        target: Target,
        wanted: Wanted,
        tell: impl FnMut(Standing) + Send + 'static,
    ) -> std::io::Result<Self> {
        let orders = Orders { wanted, number: 0, is_over: false };
        let shared = Arc::new(Shared { orders: Mutex::new(orders), changed: Condvar::new() });
        let worker = Worker { target, shared: Arc::clone(&shared), tell, last: None };
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
    shared: Arc<Shared>,
    tell: F,
    last: Option<Arc<Snapshot>>,
}

/// What is carried from one reading to the next of the same connection.
struct Course {
    server: Server,
    identity: Arc<Identity>,
    missing: Arc<[Missing]>,
    overview: Option<Overview>,
    /// The last reading of the view that was looked at.
    reading: Option<Reading>,
    waits: Waits,
}

impl<F: FnMut(Standing)> Worker<F> {
    fn run(mut self) {
        let mut failures = 0;
        let mut since = Instant::now();
        loop {
            let outcome = Course::begin(&self.target).and_then(|course| {
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
    fn read_on(&mut self, mut course: Course) -> Result<(), CollectError> {
        loop {
            let orders = *self.shared.orders();
            if orders.is_over {
                return Ok(());
            }
            let begun = Instant::now();
            let snapshot = Arc::new(course.read(orders.wanted, begun)?);
            let cost = snapshot.cost;
            self.last = Some(Arc::clone(&snapshot));
            (self.tell)(Standing::Read(snapshot));
            // A polite guest takes no more than a tenth of the time.
            let interval = orders.wanted.interval.max(INTERVAL_MIN).max(cost * 10);
            if self.shared.wait(begun + interval, orders.number).is_over {
                return Ok(());
            }
        }
    }
}

impl Course {
    fn begin(target: &Target) -> Result<Self, CollectError> {
        let server = Server::connect(target)?;
        let identity = Arc::new(server.identity().clone());
        let missing = server.privileges().missing(identity.version).into();
        Ok(Self {
            server,
            identity,
            missing,
            overview: None,
            reading: None,
            waits: Waits::default(),
        })
    }

    fn read(&mut self, wanted: Wanted, begun: Instant) -> Result<Snapshot, CollectError> {
        let activity = self.server.activity(wanted.idle_texts)?;
        let overview = self.server.overview()?;
        self.waits.count(&activity);
        let (view, view_error) = match wanted.view.map(|view| self.view(view)).transpose() {
            Ok(view) => (view.flatten(), None),
            Err(error) if error.is_fatal() => return Err(error),
            Err(error) => (None, Some(with_causes(&error))),
        };
        let before = self.overview.replace(overview.clone());
        Ok(Snapshot {
            identity: Arc::clone(&self.identity),
            missing: Arc::clone(&self.missing),
            read: Instant::now(),
            activity,
            overview,
            before,
            view,
            view_error,
            waits: Arc::new(self.waits.clone()),
            cost: begun.elapsed(),
        })
    }

    fn view(&mut self, view: &'static View) -> Result<Option<Rated>, CollectError> {
        let Some(reading) = self.server.read(view)? else { return Ok(None) };
        let before =
            self.reading.replace(reading.clone()).filter(|before| before.view.name == view.name);
        Ok(Some(rates(before.as_ref(), &reading)))
    }
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
            waits: Arc::default(),
            cost: Duration::from_millis(3),
        }
    }

    #[test]
    fn attempts_grow_rarer_up_to_a_bound() {
        assert_eq!(pause(0), Duration::from_millis(500));
        assert_eq!(pause(1), Duration::from_secs(1));
        assert_eq!(pause(1000), PAUSE_MAX);
    }

    #[test]
    fn only_work_is_counted() {
        let wait = Wait { class: "IO".into(), event: "DataFileRead".into() };
        let backend = |state, kind, wait| Backend { state, kind, wait, ..Backend::default() };
        let mut waits = Waits::default();
        waits.count(&Activity {
            taken_us: 0,
            backends: vec![
                backend(Some(State::Active), Some(Kind::Client), Some(wait.clone())),
                backend(Some(State::Active), Some(Kind::Client), None),
                backend(None, Some(Kind::ParallelWorker), None),
                backend(Some(State::Idle), Some(Kind::Client), Some(wait.clone())),
                backend(Some(State::Active), Some(Kind::WalSender), Some(wait.clone())),
                backend(None, Some(Kind::Other("checkpointer".into())), Some(wait.clone())),
            ],
        });
        assert_eq!(waits.readings, 1);
        assert_eq!(waits.counts, BTreeMap::from([(None, 2), (Some(wait), 1)]));
    }
}
