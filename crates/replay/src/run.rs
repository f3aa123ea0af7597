//! One replay from its first event to its report.

use std::{
    collections::HashSet,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant},
};

use howdah_dataset::{MachineSeries, RunWriter, WriteError};
use howdah_net::Poller;
use howdah_stats::Registry;
use howdah_traffic::{Event, Kind, SessionId, Timestamp};
use parking_lot::Mutex;

use crate::{
    capacity::Capacity,
    error::{EventSourceError, StartError},
    inbox::{Inbox, QueuedEvent, SendResult, event_bytes},
    machine::{CalibrationControl, CalibrationPlan, MachineMonitor},
    metrics::Metrics,
    notice::{Notice, NoticeSink},
    order::{CommitOrder, StatementOrder, sequencer::Sequencer, stalls},
    outcome_writer::{OutcomeWriter, ReplayTotals},
    pace::{
        IdleTimes, Schedule,
        clock::ReplayStart,
        control::{PaceControl, RateChange},
    },
    player::{FinishedEvent, PlayerSettings},
    settings::ReplaySettings,
    target::{ReplayTarget, SessionTarget},
    worker::{LagAbort, ReplayWorker, WorkerContext, WorkerStats},
};

/// Bytes of events that may be queued between the dispatcher and one worker.
const INBOX_BYTES: usize = 4 << 20;

/// Delay between reading the first event and sending it: long enough for workers to receive the
/// other events that are due at the same time.
const START_DELAY: Duration = Duration::from_millis(20);

/// A replay that is ready to run, except for its events.
pub struct Replay {
    /// The servers, at least one, with the identity to log in with if the capture has none. Each
    /// session uses one of them, in turn. The first is the one whose speed is measured.
    pub targets: Vec<ReplayTarget>,
    /// Pace, identities, limits and other options.
    pub settings: ReplaySettings,
    /// When the first event is due; `None` for as soon as possible.
    pub start: Option<ReplayStart>,
    /// Receives the outcomes; with `None`, only totals are kept.
    pub writer: Option<RunWriter>,
    /// Whether events have their captured outcome. A log that is replayed while it is being read
    /// does not provide it, because the end of a statement is logged after its start.
    pub has_outcomes: bool,
    /// The connection slots of the target. If set, a notice is reported when the capture needs
    /// more.
    pub capacity: Option<Capacity>,
    /// Whether a fixed statement measures the speed of the target.
    pub calibration: CalibrationPlan,
    /// Changes the rate while the replay runs.
    pub pace: PaceControl,
    /// Receives notices.
    pub notices: NoticeSink,
    /// Receives the live metrics.
    pub registry: Registry,
    /// Stops the replay soon after it is set to true; may be set from any thread.
    pub stop: Arc<AtomicBool>,
}

/// The result of a replay.
#[derive(Debug)]
#[non_exhaustive]
pub struct ReplayReport {
    /// Counts and latencies of the events.
    pub tally: ReplayTotals,
    /// Events that the workers took from their queues. Each is counted in `tally` as done, failed,
    /// skipped or dropped. If the replay was stopped, events still in the queues are not included.
    pub events_read: u64,
    /// Time from the start until all sessions have ended and all outcomes are recorded.
    pub elapsed: Duration,
    /// How busy this host was, and how fast the target executed the calibration statement.
    pub machine: MachineSeries,
    /// Number of sessions among the events read.
    pub sessions: u64,
    /// Maximum number of connections open at once; with several workers, the sum of their maxima.
    pub connections_max: usize,
    /// Number of connections that logged in to the target.
    pub connections: u64,
    /// Connections that were lost, and attempts to connect that failed.
    pub connections_lost: u64,
    /// Number of sessions whose transaction was still open at the end of the capture. They were
    /// closed, which rolled it back.
    pub closed_in_transaction: u64,
    /// Captured time in which no statement ran, and that was left out.
    pub idle_skipped: Duration,
    /// Changes of the rate while the replay ran, up to a thousand.
    pub rate_changes: Vec<RateChange>,
    /// The lag for which the replay was ended before the end of the capture, if it was.
    pub lag_abort: Option<LagAbort>,
    /// Number of times that a transaction had to run ahead of others that it followed in the
    /// capture, because those waited for its locks; `None` if the order was not kept.
    pub order_inversions: Option<u64>,
    /// Whether captured outcomes are known; see [`Replay::has_outcomes`].
    pub has_outcomes: bool,
    /// Whether the replay was stopped before the end of the capture.
    pub is_interrupted: bool,
    /// The error that ended reading before the end of the capture.
    pub source_error: Option<EventSourceError>,
    /// The first error in writing the run. If an outcome could not be written, later outcomes are
    /// missing, too.
    pub write_error: Option<WriteError>,
    /// The run, still open so that the summary can be added; `None` if no run is written, or an
    /// outcome could not be written.
    pub writer: Option<RunWriter>,
}

impl ReplayReport {
    /// Returns the reason why no session could log in, taken from one of the errors; `None` if a
    /// session could log in, if none tried to, or if the replay was interrupted.
    pub fn login_failure(&self) -> Option<&str> {
        let is_refused = self.connections == 0 && self.connections_lost > 0 && !self.is_interrupted;
        let failures = self.tally.errors.values().max_by_key(|failures| failures.count);
        is_refused.then(|| failures.map_or("connections were refused", |failures| &failures.sample))
    }
}

impl Replay {
    /// Replays `events`, which must be in the order of their time, through to the last reply.
    ///
    /// The first event starts the clock, so this function waits for it, regardless of `stop`. A
    /// separate thread pulls the other events, only as far ahead as the schedule needs, so a slow
    /// or endless source is fine. Failed statements, lost connections and a source that fails
    /// midway are not errors; the [`ReplayReport`] contains them.
    ///
    /// # Errors
    ///
    /// See [`StartError`]. No event has been sent, except if a worker could no longer wait for its
    /// sockets.
    pub fn run<T: Into<Box<Event>>, E: Into<EventSourceError>>(
        self,
        mut events: impl Iterator<Item = Result<T, E>> + Send + 'static,
    ) -> Result<ReplayReport, StartError> {
        let targets = self.targets.iter().map(|it| SessionTarget::new(it, &self.settings));
        let targets = targets.collect::<Result<Arc<[_]>, _>>()?;
        let Some(first) = self.targets.first() else { return Err(StartError::NoTarget) };
        let opening: Box<Event> = match events.next() {
            None => return Err(StartError::NoEvents),
            Some(Err(error)) => return Err(StartError::Source(error.into())),
            Some(Ok(event)) => event.into(),
        };
        let soon = Instant::now() + START_DELAY;
        let origin = self.start.and_then(|start| start.origin).unwrap_or(opening.time);
        let start = self.start.map_or(soon, |start| start.at);
        let schedule = Schedule::new(origin, start, self.settings.rate);
        self.pace.start(schedule);
        let metrics = Metrics::new(&self.registry);
        let calibration = Arc::new(CalibrationControl::new(self.calibration));
        let machine = MachineMonitor::start(
            schedule.start(),
            &first.target,
            &first.endpoint,
            calibration.clone(),
            metrics.connections_active.clone(),
        );
        let machine = machine.map_err(StartError::Thread)?;
        let order =
            (self.settings.order == StatementOrder::Commit).then(|| Arc::new(CommitOrder::new()));
        if let Some(order) = order.clone() {
            let target = first.target.with_endpoint(&first.endpoint);
            // The thread is not joined: it may still be waiting for the server.
            thread::Builder::new()
                .name("commit-order".to_owned())
                .spawn(move || stalls::watch(&order, &target))
                .map_err(StartError::Thread)?;
        }
        let outcome_writer = OutcomeWriter::new(
            self.writer,
            schedule,
            self.pace.clone(),
            metrics.clone(),
            self.settings.checks_results,
        );
        let (finished, outcomes) = mpsc::sync_channel(1024);
        let shared = WorkerContext {
            schedule,
            pace: self.pace,
            targets,
            players: PlayerSettings {
                fetch_rows: self.settings.limits.fetch_rows,
                lag: self.settings.lag,
                think_time: self.settings.think_time,
                order: self.settings.order,
                types: Arc::default(),
                ids: self.settings.maps_ids.then(Arc::default),
            },
            order,
            limits: self.settings.limits,
            workers: self.settings.workers.max(1),
            notices: Arc::new(self.notices),
            metrics,
            calibration,
            stop: self.stop.clone(),
            lag_abort: Arc::default(),
            finished,
            free_batches: Arc::default(),
        };
        let input = InputSettings { capacity: self.capacity, idle_max: self.settings.idle_max };
        let mut report = play(shared, outcome_writer, outcomes, input, machine, opening, events)?;
        report.has_outcomes = self.has_outcomes;
        Ok(report)
    }
}

/// Settings of the [`Dispatcher`].
#[derive(Clone, Copy)]
struct InputSettings {
    capacity: Option<Capacity>,
    /// See [`ReplaySettings::idle_max`].
    idle_max: Option<Duration>,
}

fn play<T: Into<Box<Event>>, E: Into<EventSourceError>>(
    shared: WorkerContext,
    outcome_writer: OutcomeWriter,
    outcomes: Receiver<Vec<FinishedEvent>>,
    input: InputSettings,
    machine: MachineMonitor,
    opening: Box<Event>,
    events: impl Iterator<Item = Result<T, E>> + Send + 'static,
) -> Result<ReplayReport, StartError> {
    let mut workers = Vec::with_capacity(shared.workers);
    for _ in 0..shared.workers {
        let poller = Poller::new().map_err(StartError::Thread)?;
        let waker = poller.waker().map_err(StartError::Thread)?;
        if let Some(order) = &shared.order {
            order.add_worker(waker.clone());
        }
        let inbox = Arc::new(Inbox::new(waker, INBOX_BYTES));
        workers.push((ReplayWorker::new(poller, inbox.clone(), shared.clone()), inbox));
    }
    let start = shared.schedule.start();
    let stop = shared.stop.clone();
    let notices = shared.notices.clone();
    let calibration = shared.calibration.clone();
    let order = shared.order.clone();
    let (pace, lag_abort) = (shared.pace.clone(), shared.lag_abort.clone());
    let free_batches = shared.free_batches.clone();
    // The outcome writer ends when the last worker has dropped its sender.
    drop(shared);
    let (workers, inboxes): (Vec<_>, Vec<_>) = workers.into_iter().unzip();
    let input_end = Arc::new(Mutex::new(InputEnd::default()));
    let dispatcher = Dispatcher {
        open: vec![HashSet::new(); inboxes.len()],
        inboxes,
        hash: RandomState::new(),
        idle: IdleTimes::new(input.idle_max, opening.time),
        last: opening.time,
        held_up: None,
        capacity: input.capacity,
        sequencer: order.clone().map(Sequencer::new),
        calibration,
        notices,
        end: input_end.clone(),
    };
    // The thread is not joined: after a stop it may still be reading from an endless pipe.
    thread::Builder::new()
        .name("replay-reader".to_owned())
        .spawn(move || dispatcher.run(opening, events))
        .map_err(StartError::Thread)?;
    let (stats, (tally, writer, mut write_error)) = thread::scope(|scope| {
        let writing = scope.spawn(move || outcome_writer.run(&outcomes, &free_batches));
        let workers: Vec<_> =
            workers.into_iter().map(|worker| scope.spawn(|| worker.run())).collect();
        let stats: Vec<_> = workers
            .into_iter()
            .map(|worker| worker.join().expect("workers do not panic"))
            .collect();
        (stats, writing.join().expect("the outcome writer does not panic"))
    });
    let elapsed = start.elapsed();
    if let Some(order) = &order {
        order.finish();
    }
    let machine = machine.finish();
    if let Some(Err(error)) = writer.as_ref().map(|writer| writer.write_machine(&machine)) {
        tracing::error!(%error, "cannot write the measurements of the machine");
        write_error.get_or_insert(error);
    }
    let mut sum = WorkerStats::default();
    for stats in stats {
        sum.add(stats.map_err(StartError::Thread)?);
    }
    let mut input_end = input_end.lock();
    Ok(ReplayReport {
        tally,
        events_read: sum.events,
        elapsed,
        machine,
        sessions: sum.sessions,
        connections_max: sum.open_max,
        connections: sum.connections,
        connections_lost: sum.lost,
        closed_in_transaction: sum.closed_in_transaction,
        has_outcomes: false,
        order_inversions: order.map(|order| order.inversions()),
        is_interrupted: sum.stopped || stop.load(Ordering::Relaxed),
        source_error: input_end.error.take(),
        idle_skipped: input_end.idle_skipped,
        rate_changes: pace.changes(),
        lag_abort: lag_abort.get().cloned(),
        write_error,
        writer,
    })
}

/// Reads events and distributes them over the workers by session.
struct Dispatcher {
    inboxes: Vec<Arc<Inbox>>,
    idle: IdleTimes,
    /// Time of the latest event so far, without idle times that are left out.
    last: Timestamp,
    /// For each worker, its sessions whose Connect, but not Disconnect, has been read.
    open: Vec<HashSet<SessionId>>,
    hash: RandomState,
    /// When the dispatcher last waited for room in an inbox.
    held_up: Option<Instant>,
    capacity: Option<Capacity>,
    /// Notes the ends of transactions, if the replay keeps their order.
    sequencer: Option<Sequencer>,
    calibration: Arc<CalibrationControl>,
    notices: Arc<NoticeSink>,
    end: Arc<Mutex<InputEnd>>,
}

/// The result of reading the events.
#[derive(Debug, Default)]
struct InputEnd {
    /// The error that ended reading.
    error: Option<EventSourceError>,
    /// Idle time that was left out so far.
    idle_skipped: Duration,
}

impl Dispatcher {
    fn run<T: Into<Box<Event>>, E: Into<EventSourceError>>(
        mut self,
        opening: Box<Event>,
        events: impl Iterator<Item = Result<T, E>>,
    ) {
        let events = events.map(|event| event.map(Into::into));
        for event in std::iter::once(Ok(opening)).chain(events) {
            match event {
                Ok(event) => {
                    if !self.dispatch(event) {
                        return;
                    }
                }
                Err(error) => {
                    self.end.lock().error = Some(error.into());
                    break;
                }
            }
        }
        if let Some(sequencer) = &self.sequencer {
            sequencer.finish();
        }
        for inbox in &self.inboxes {
            inbox.finish(self.last);
        }
    }

    /// Sends an event to the worker of its session. Returns false if that worker accepts no more
    /// events.
    fn dispatch(&mut self, event: Box<Event>) -> bool {
        let skipped_before = self.idle.skipped();
        let time = self.idle.scheduled_time(&event);
        if self.idle.skipped() > skipped_before {
            self.end.lock().idle_skipped = self.idle.skipped();
        }
        self.last = self.last.max(time);
        let worker = (self.hash.hash_one(&event.session) % self.inboxes.len() as u64) as usize;
        match event.action.kind() {
            Kind::Connect => {
                self.open[worker].insert(event.session.clone());
                self.check_capacity();
            }
            Kind::Disconnect => {
                self.open[worker].remove(&event.session);
            }
            _ => {}
        }
        let arrival = QueuedEvent {
            bytes: event_bytes(&event),
            time,
            position: self.sequencer.as_mut().map(|it| it.position(&event)).unwrap_or_default(),
            open_sessions: self.open[worker].len(),
            read_at: Instant::now(),
            last_blocked: self.held_up,
            event,
        };
        match self.inboxes[worker].send(arrival) {
            SendResult::Sent => true,
            SendResult::SentAfterWait => {
                self.held_up = Some(Instant::now());
                true
            }
            SendResult::Closed => false,
        }
    }

    fn check_capacity(&self) {
        let sessions = self.open.iter().map(HashSet::len).sum();
        self.calibration.make_room_for(sessions);
        if let Some(capacity) = self.capacity.filter(|capacity| sessions > capacity.available()) {
            self.notices.report(&Notice::TooManySessions { sessions, capacity });
        }
    }
}
