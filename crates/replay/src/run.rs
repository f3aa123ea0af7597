//! One replay from its first event to its report.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    io,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Endpoint, Target};
use howdah_dataset::{RunWriter, WriteError};
use howdah_net::Poller;
use howdah_stats::Registry;
use howdah_traffic::{Event, Kind, SessionId, Timestamp};

use crate::{
    capacity::Capacity,
    inbox::{Arrival, Inbox, SendResult, event_bytes},
    metrics::Metrics,
    notice::{Notice, Notices},
    pace::Schedule,
    player::Finished,
    recorder::{Recorder, Tally},
    settings::Settings,
    target::{self, Logins},
    worker::{Shared, Worker, WorkerStats},
};

/// Memory of events between the reader and one worker.
const INBOX_BYTES: usize = 4 << 20;

/// From the first event read to its send: enough for workers to take what is due together with it.
const LEAD: Duration = Duration::from_millis(20);

/// A reader that failed; whatever it is made of.
pub type FeedError = Box<dyn std::error::Error + Send + Sync>;

/// What a replay needs besides events.
pub struct Replay {
    /// The server, and who logs in where the capture does not say.
    pub target: Target,
    /// Which of the target's places answered.
    pub endpoint: Endpoint,
    /// Whether it answered with TLS. All connections do the same.
    pub encrypted: bool,
    /// How to replay.
    pub settings: Settings,
    /// Where outcomes go; `None` keeps only the numbers.
    pub writer: Option<RunWriter>,
    /// Whether events tell how they ended when they were captured. A log that is replayed as it is
    /// read does not: a statement's end stands behind its beginning.
    pub outcomes_known: bool,
    /// What the target has room for, if it is to be said when the reader comes to a point of the
    /// capture that needs more.
    pub capacity: Option<Capacity>,
    /// Where notices go.
    pub notices: Notices,
    /// Where the live numbers go.
    pub registry: Registry,
    /// Set it, from any thread, and the replay ends within a moment.
    pub stop: Arc<AtomicBool>,
}

/// What a replay did.
#[derive(Debug)]
#[non_exhaustive]
pub struct Report {
    /// The numbers.
    pub tally: Tally,
    /// Events read from the capture. Each of them is done, failed or skipped in the tally; of a
    /// replay that was stopped, what had been read further ahead does not count.
    pub events_read: u64,
    /// From the start to the last answer.
    pub elapsed: Duration,
    /// Captured sessions.
    pub sessions: u64,
    /// Most connections open at once.
    pub connections_max: usize,
    /// Connections that logged in.
    pub connections: u64,
    /// Connections that the target closed or refused.
    pub connections_lost: u64,
    /// Sessions that had a transaction open where the capture ends: they were closed, which rolled it
    /// back.
    pub closed_in_transaction: u64,
    /// Whether it is known what failed when it was captured: see [`Replay::outcomes_known`].
    pub outcomes_known: bool,
    /// It was told to stop before the end.
    pub interrupted: bool,
    /// What kept the reader from the end of the capture.
    pub feed_error: Option<FeedError>,
    /// What kept the outcomes from being written; the run has what came before.
    pub write_error: Option<WriteError>,
    /// The run, still open, for its summary.
    pub writer: Option<RunWriter>,
}

impl Report {
    /// Why no session could log in, in the words of one refusal; `None` if one could or none had to.
    pub fn login_failure(&self) -> Option<&str> {
        let is_refused = self.connections == 0 && self.connections_lost > 0 && !self.interrupted;
        let failures = self.tally.errors.values().max_by_key(|failures| failures.count);
        is_refused.then(|| failures.map_or("connections were refused", |failures| &failures.sample))
    }
}

/// A replay that could not begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The capture has no events.
    #[error("there are no events to replay")]
    NoEvents,
    /// The capture could not be read at all.
    #[error("cannot read the capture")]
    Feed(#[source] FeedError),
    /// The target's name or address is of no use.
    #[error(transparent)]
    Dial(#[from] howdah_net::DialError),
    /// The TLS settings are of no use.
    #[error(transparent)]
    Tls(#[from] howdah_connect::tls::TlsError),
    /// The kernel gave no poller or thread.
    #[error("cannot start a worker")]
    Worker(#[source] io::Error),
}

impl Replay {
    /// Plays `events`, which come in the order of their time, through to the last answer.
    ///
    /// The first event starts the clock, so it is waited for, here and without regard to `stop`. The
    /// others are pulled on a thread of their own, only as far ahead as the schedule needs; a slow
    /// or endless source is fine. A statement that fails, a connection that is lost, a reader
    /// that breaks off are results, found in the [`Report`].
    ///
    /// # Errors
    ///
    /// See [`StartError`]: nothing has been sent then.
    pub fn run<E: Into<FeedError>>(
        self,
        mut events: impl Iterator<Item = Result<Event, E>> + Send + 'static,
    ) -> Result<Report, StartError> {
        let dialer = target::dialer(&self.target, &self.endpoint, self.encrypted)?;
        let opening = match events.next() {
            None => return Err(StartError::NoEvents),
            Some(Err(error)) => return Err(StartError::Feed(error.into())),
            Some(Ok(event)) => event,
        };
        let schedule = Schedule::new(opening.time, Instant::now() + LEAD, self.settings.rate);
        let logins = Logins::new(self.target, self.endpoint, &self.settings);
        let metrics = Metrics::new(&self.registry);
        let recorder = Recorder::new(self.writer, schedule, metrics.clone());
        let (finished, outcomes) = mpsc::sync_channel(1024);
        let shared = Shared {
            schedule,
            dialer,
            logins: Arc::new(logins),
            types: Arc::default(),
            limits: self.settings.limits,
            workers: self.settings.workers.max(1),
            notices: Arc::new(self.notices),
            metrics,
            stop: self.stop.clone(),
            finished,
        };
        let mut report = play(shared, recorder, outcomes, self.capacity, opening, events)?;
        report.outcomes_known = self.outcomes_known;
        Ok(report)
    }
}

fn play<E: Into<FeedError>>(
    shared: Shared,
    recorder: Recorder,
    outcomes: Receiver<Vec<Finished>>,
    capacity: Option<Capacity>,
    opening: Event,
    events: impl Iterator<Item = Result<Event, E>> + Send + 'static,
) -> Result<Report, StartError> {
    let mut crew = Vec::with_capacity(shared.workers);
    for _ in 0..shared.workers {
        let poller = Poller::new().map_err(StartError::Worker)?;
        let waker = poller.waker().map_err(StartError::Worker)?;
        let inbox = Arc::new(Inbox::new(waker, INBOX_BYTES));
        crew.push((Worker::new(poller, inbox.clone(), shared.clone()), inbox));
    }
    let start = shared.schedule.start();
    let stop = shared.stop.clone();
    let notices = shared.notices.clone();
    // The recorder ends when the last worker has dropped its end of the channel.
    drop(shared);
    let (crew, inboxes): (Vec<_>, Vec<_>) = crew.into_iter().unzip();
    let error = Arc::new(Mutex::new(None));
    let feeder = Dispatcher {
        open: vec![HashSet::new(); inboxes.len()],
        inboxes,
        hash: RandomState::new(),
        last: opening.time,
        held_up: None,
        capacity,
        notices,
        error: error.clone(),
    };
    // Not joined: it may hang in a read of an endless pipe when the replay is told to stop.
    thread::Builder::new()
        .name("replay-reader".to_owned())
        .spawn(move || feeder.run(opening, events))
        .map_err(StartError::Worker)?;
    let (stats, (tally, writer, write_error)) = thread::scope(|scope| {
        let recording = scope.spawn(move || recorder.run(&outcomes));
        let crew: Vec<_> = crew.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let stats: Vec<_> = crew
            .into_iter()
            .map(|worker| worker.join().expect("a worker does not panic"))
            .collect();
        (stats, recording.join().expect("the recorder does not panic"))
    });
    let mut sum = WorkerStats::default();
    for stats in stats {
        sum.add(stats.map_err(StartError::Worker)?);
    }
    Ok(Report {
        tally,
        events_read: sum.events,
        elapsed: start.elapsed(),
        sessions: sum.sessions,
        connections_max: sum.open_max,
        connections: sum.connections,
        connections_lost: sum.lost,
        closed_in_transaction: sum.closed_in_transaction,
        outcomes_known: false,
        interrupted: sum.stopped || stop.load(Ordering::Relaxed),
        feed_error: error.lock().unwrap_or_else(PoisonError::into_inner).take(),
        write_error,
        writer,
    })
}

/// Reads events and deals them out to the workers.
struct Dispatcher {
    inboxes: Vec<Arc<Inbox>>,
    /// Captured time of the latest event so far.
    last: Timestamp,
    /// By worker: its sessions that are open at this point of the capture.
    open: Vec<HashSet<SessionId>>,
    hash: RandomState,
    /// When it last had to wait for room, if it ever had.
    held_up: Option<Instant>,
    capacity: Option<Capacity>,
    notices: Arc<Notices>,
    /// What it broke off for.
    error: Arc<Mutex<Option<FeedError>>>,
}

impl Dispatcher {
    fn run<E: Into<FeedError>>(
        mut self,
        opening: Event,
        events: impl Iterator<Item = Result<Event, E>>,
    ) {
        for event in std::iter::once(Ok(opening)).chain(events) {
            match event {
                Ok(event) => {
                    if !self.deal(event) {
                        return;
                    }
                }
                Err(error) => {
                    let mut place = self.error.lock().unwrap_or_else(PoisonError::into_inner);
                    *place = Some(error.into());
                    break;
                }
            }
        }
        for inbox in &self.inboxes {
            inbox.finish(self.last);
        }
    }

    /// False when the workers take no more.
    fn deal(&mut self, event: Event) -> bool {
        self.last = self.last.max(event.time);
        let worker = (self.hash.hash_one(&event.session) % self.inboxes.len() as u64) as usize;
        match event.action.kind() {
            Kind::Connect => {
                self.open[worker].insert(event.session.clone());
                self.compare_with_capacity();
            }
            Kind::Disconnect => {
                self.open[worker].remove(&event.session);
            }
            _ => {}
        }
        let arrival = Arrival {
            bytes: event_bytes(&event),
            open_sessions: self.open[worker].len(),
            read: Instant::now(),
            held_up: self.held_up,
            event,
        };
        match self.inboxes[worker].put(arrival) {
            SendResult::AtOnce => true,
            SendResult::Late => {
                self.held_up = Some(Instant::now());
                true
            }
            SendResult::Refused => false,
        }
    }

    fn compare_with_capacity(&self) {
        let sessions = self.open.iter().map(HashSet::len).sum();
        if let Some(capacity) = self.capacity.filter(|capacity| sessions > capacity.free()) {
            self.notices.give(&Notice::Crowded { sessions, capacity });
        }
    }
}
