//! A flight recorder for a server: it continuously records metrics that are cheap to observe, in a
//! file of bounded size, and adds exact traces of critical moments.
//!
//! ```text
//! waits, sweep, extension locks, checkpoints ─► seconds ─┬─► ring of the file
//! over SQL: sessions, counters ──────────────────────────┤
//!                                                        trigger ─► exact probes for ten seconds
//!                                                           └─────► episode: 30 s before and after
//! ```
//!
//! A [`FlightRecorder`] samples when its caller calls it; waiting for the next sample is the
//! caller's task. The file is written by a separate thread, so that a stalling disk, which may be
//! the very problem being recorded, does not delay sampling. The [`LostCounts`] of a second has the
//! events, samples and records that were found to be lost in it. If the server stops, the recorder
//! waits for it to return.
//!
//! With a connection, another thread reads the sessions that are not idle, their blockers, and the
//! server's counters once a second. A server that does not respond delays only that thread.

mod budget;
mod bytes;
mod episode;
mod exact_probes;
mod layout;
mod log_histogram;
mod metrics;
mod pressure;
mod record;
mod recording;
mod ring;
mod session_log;
mod session_monitor;
mod session_records;
mod sources;
mod totals;
mod trigger;
mod wait_circles;
mod wait_graph;
mod writer;

use std::{
    collections::{HashSet, VecDeque},
    iter, mem,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant, SystemTime},
};

use howdah_connect::ConnectTarget;
use howdah_inspect::RunningServer;
use howdah_stats::Registry;
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::trigger::{is_wal_wait, sessions};
pub use self::{
    bytes::RecordDecodeError,
    log_histogram::LogHistogram,
    metrics::METRICS,
    record::{
        ExtensionTotals, FlightRecord, LostCounts, NamedRelation, NoteKind, PhaseEnded,
        PhaseStarted, RecordedSecond, RecordedSource, RecordingEnded, RecordingNote,
        RecordingStarted, RelationWaits, SweepTotals, ThresholdCrossed, TracedCalls, TriggerKind,
        WaitRow, WaitSamples,
    },
    recording::{FlightRecording, RecordingReadError},
    ring::RecordingFileError,
    session_records::{
        BLOCKERS_MAX, HostPressure, MemberWait, NamedFile, RecordedCircles, RecordedCounters,
        RecordedSession, RecordedSessions, SESSIONS_MAX, STATEMENT_BYTES_MAX, SessionGroup,
        StatementText,
    },
    totals::{RecorderEvent, RecordingTotals},
    trigger::{
        ALLOCATIONS_MIN, SettingError, Thresholds, TriggerSetting, WAITS_MIN, is_storage_wait,
    },
};
use self::{
    episode::Episodes,
    exact_probes::{ExactProbes, TraceReport},
    metrics::RecorderMetrics,
    session_log::SessionLog,
    sources::{Sources, recorded_source, wall_us},
    trigger::{TriggerHit, TriggerInputs},
    writer::{RecordBody, RecordingWriter, WriterStatus},
};
use crate::{
    Capabilities, HitCost, PostmasterIdentity, SampleError,
    checkpoints::{CheckpointPhase, ProbeSource},
    durations::CallSubject,
    waits::TickSchedule,
};

/// Options for recording.
#[derive(Clone, Copy, Debug)]
pub struct RecorderOptions {
    /// Samples per second; values outside 1 to 1000 are clamped.
    pub rate: u32,
    /// Thresholds that trigger an episode.
    pub thresholds: Thresholds,
    /// Time from the end of an episode until a trigger may fire again.
    pub cool_down: Duration,
    /// Budget for BPF programs, as a share of all processors' time. Extension locks and the exact
    /// probes of an episode each have this budget.
    pub budget: f64,
    /// Budget for tracing extension locks without a trigger, as a share of the processor time that
    /// the server's processes need. If tracing costs more, only some seconds are traced.
    pub server_budget: f64,
    /// Maximum size of the file, in bytes. `None`: that of an existing file, or [`MAX_BYTES`].
    pub max_bytes: Option<u64>,
}

/// Default maximum size of the file, in bytes.
pub const MAX_BYTES: u64 = 64 << 20;

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            rate: 100,
            thresholds: Thresholds::default(),
            cool_down: Duration::from_secs(60),
            budget: 0.03,
            server_budget: 0.001,
            max_bytes: None,
        }
    }
}

/// The reason why recording cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecorderStartError {
    /// The server cannot be sampled.
    #[error(transparent)]
    Server(#[from] SampleError),
    /// The file cannot be opened for recording.
    #[error(transparent)]
    File(#[from] RecordingFileError),
    /// The thread that reads the server's sessions cannot be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// Records a server, across restarts on the same data directory.
#[derive(Debug)]
pub struct FlightRecorder {
    options: RecorderOptions,
    data_dir: PathBuf,
    hit: Option<HitCost>,
    server: ServerPresence,
    schedule: TickSchedule,
    /// The same moment on both clocks: monotonic, and wall clock in µs since 1970.
    anchor: (Instant, i64),
    second: CurrentSecond,
    writer: RecordingWriter,
    writer_status: WriterStatus,
    next_number: u64,
    /// The recorded server. This record and the latest relation names are repeated regularly, so
    /// that the ring contains them although it is overwritten.
    header: RecordingStarted,
    names: VecDeque<NamedRelation>,
    /// Number of bytes recorded, in all and when the header was last repeated.
    recorded_bytes: (u64, u64),
    episodes: Episodes,
    metrics: Option<RecorderMetrics>,
    exact: Option<(i64, ExactProbes)>,
    sync: SyncTimer,
    sessions: SessionLog,
    /// Triggers whose values have not been below their thresholds since they fired.
    above: Vec<TriggerKind>,
    named: HashSet<UnnamedObject>,
    events: Vec<RecorderEvent>,
    metric_sources: Vec<RecordedSource>,
    summary: RecordingTotals,
}

/// The recorded server: sampled, with its probes, or away.
#[derive(Debug)]
enum ServerPresence {
    There(Box<Sources>),
    /// The server stopped or could no longer be sampled; contains the time of the next attempt to
    /// find it.
    Away(Instant),
    /// The server's shared memory is gone: it is stopping, or one of its processes crashed, which
    /// shows when its postmaster exits within the time contained here.
    Ending(PostmasterIdentity, Instant),
}

/// An object whose name was requested: oids of a database and a relation, or the numbers of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum UnnamedObject {
    Relation(u32, u32),
    File(u32, u32, u32),
}

impl UnnamedObject {
    /// Returns the object of traced calls, if it is a relation or a file of one.
    fn of_subject(subject: CallSubject) -> Option<Self> {
        match subject {
            CallSubject::Lock(tag) => {
                tag.relation.map(|(database, relation)| Self::Relation(database, relation))
            }
            CallSubject::File { tablespace, database, filenode } => {
                Some(Self::File(tablespace, database, filenode))
            }
            CallSubject::None | CallSubject::Wait(_) | CallSubject::Caller(_) => None,
        }
    }
}

/// Data collected for the second in progress.
#[derive(Clone, Copy, Debug)]
struct CurrentSecond {
    at: Instant,
    at_us: i64,
    /// Losses found in this second, other than those that the sources count.
    lost: LostCounts,
    cpu: Duration,
    suppressed: u64,
}

/// The sync phase of a checkpoint: its start while it is running, or its length if it finished in
/// this second.
#[derive(Clone, Copy, Debug, Default)]
struct SyncTimer {
    since_us: Option<i64>,
    took_us: Option<u64>,
}

/// Time between attempts to find a server that has stopped.
const RECONNECT_INTERVAL: Duration = Duration::from_millis(500);
/// Time from the release of the server's shared memory to the exit of a postmaster that stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between checks whether the postmaster has exited.
const STOP_CHECK_INTERVAL: Duration = Duration::from_millis(20);
/// Maximum number of relation names to repeat: the latest ones.
const REPEATED_NAMES_MAX: usize = 32;
/// Maximum number of relations whose names are requested in a run.
const NAMES_MAX: usize = 10_000;

impl FlightRecorder {
    /// Starts recording a server. Appends to an existing file, or creates one. Sessions and
    /// counters are recorded if `target` says how to connect to the server.
    ///
    /// # Errors
    ///
    /// The server cannot be sampled, or the file cannot be opened for recording, as listed at
    /// [`RecordingFileError`], or no thread can be started.
    pub fn start(
        server: &RunningServer,
        path: &Path,
        options: RecorderOptions,
        target: Option<ConnectTarget>,
        now: Instant,
    ) -> Result<Self, RecorderStartError> {
        let hit = Capabilities::current().may_trace().then(HitCost::measure).and_then(Result::ok);
        let (sources, mut metric_sources) = Sources::open(server, now, hit, options)?;
        metric_sources.push(sessions_source(target.is_some()));
        let (writer, next_number) = RecordingWriter::open(path, options.max_bytes, MAX_BYTES)?;
        let data_dir = server.data_dir().map_err(SampleError::from)?;
        let sessions = SessionLog::start(target).map_err(RecorderStartError::Thread)?;
        let (anchor, at_us) = (Instant::now(), wall_us(SystemTime::now()));
        let cool_down_us = i64::try_from(options.cool_down.as_micros()).unwrap_or(i64::MAX);
        let period = Duration::from_secs(1) / options.rate.clamp(1, 1000);
        let cpu = process_cpu();
        let header = recording_started(server, &data_dir, &metric_sources, &options, at_us);
        let mut recorder = Self {
            header,
            names: VecDeque::new(),
            recorded_bytes: (0, 0),
            options,
            data_dir,
            hit,
            server: ServerPresence::There(Box::new(sources)),
            schedule: TickSchedule::new(anchor, period),
            anchor: (anchor, at_us),
            second: CurrentSecond {
                at: anchor,
                at_us,
                lost: LostCounts::default(),
                cpu,
                suppressed: 0,
            },
            episodes: Episodes::new(writer.body_max(), cool_down_us),
            metrics: None,
            summary: RecordingTotals {
                max_bytes: writer.max_bytes(),
                ..RecordingTotals::default()
            },
            writer,
            writer_status: WriterStatus::default(),
            next_number,
            exact: None,
            sync: SyncTimer::default(),
            sessions,
            above: Vec::new(),
            named: HashSet::new(),
            events: Vec::new(),
            metric_sources,
        };
        recorder.repeat_header(at_us);
        Ok(recorder)
    }

    /// Returns the source of each metric for the current server, with its limitation.
    pub fn metric_sources(&self) -> &[RecordedSource] {
        &self.metric_sources
    }

    /// Returns the time at which to call [`tick`](Self::tick) next.
    pub fn next_tick_at(&self) -> Instant {
        match self.server {
            ServerPresence::There(_) => self.schedule.next_tick_at(),
            ServerPresence::Away(due) => due,
            ServerPresence::Ending(..) => Instant::now() + STOP_CHECK_INTERVAL,
        }
    }

    /// Updates the metrics [`METRICS`] in this registry from now on.
    pub fn export_to(&mut self, registry: Registry) {
        self.metrics = Some(RecorderMetrics::new(registry));
    }

    /// Whether the server has stopped and the recorder waits for its return.
    pub fn is_waiting(&self) -> bool {
        matches!(self.server, ServerPresence::Away(_))
    }

    /// Takes one sample, or looks for the server if it has stopped, and returns events to report to
    /// the user. If a second has ended, first records it and evaluates the triggers.
    pub fn tick(&mut self, now: Instant) -> Vec<RecorderEvent> {
        self.second.lost.missed_samples += self.schedule.advance(now);
        if self.at_us(now).div_euclid(SECOND_US) != self.second.at_us.div_euclid(SECOND_US) {
            self.finish_second(now);
        }
        match &mut self.server {
            ServerPresence::There(sources) => match sources.poll(now) {
                Ok(output) => {
                    let at_us = self.at_us(now);
                    for text in output.notes {
                        self.note(at_us, NoteKind::Probes, text);
                    }
                    for record in output.records {
                        self.sync.observe(&record);
                        self.record(at_us, &record);
                    }
                }
                Err(error) => self.on_server_lost(now, &error),
            },
            ServerPresence::Away(due) if now >= *due => self.reconnect(now),
            ServerPresence::Away(_) => {}
            ServerPresence::Ending(postmaster, until) => {
                let pid = postmaster.postmaster().pid();
                let stopped = postmaster.check().err();
                if stopped.is_some() || now >= *until {
                    self.note_end(now, &stopped.unwrap_or(SampleError::Reinitialised { pid }));
                }
            }
        }
        mem::take(&mut self.events)
    }

    /// Records the name of a file's relation, reported by [`RecorderEvent::UnnamedFile`].
    pub fn set_file_name(&mut self, database: u32, filenode: u32, name: String, now: Instant) {
        let named = NamedFile { database, filenode, name };
        self.record(self.at_us(now), &FlightRecord::NamedFile(named));
    }

    /// Sets and records the name of a relation reported by [`RecorderEvent::Unnamed`].
    pub fn set_relation_name(&mut self, database: u32, relation: u32, name: String, now: Instant) {
        let at_us = self.at_us(now);
        let named = NamedRelation { database, relation, name };
        self.names.push_back(named.clone());
        if self.names.len() > REPEATED_NAMES_MAX {
            self.names.pop_front();
        }
        self.record(at_us, &FlightRecord::NamedRelation(named));
    }

    /// Stops recording, waits until all queued records are written, and returns the totals. A
    /// running episode is cut short and stored.
    pub fn finish(mut self, reason: &str, now: Instant) -> RecordingTotals {
        while let ServerPresence::Ending(..) = self.server {
            thread::sleep(STOP_CHECK_INTERVAL);
            self.tick(Instant::now());
        }
        self.collect_traces(self.at_us(now), true);
        self.finish_second(now);
        let at_us = self.at_us(now);
        self.record(
            at_us,
            &FlightRecord::Ended(RecordingEnded { at_us, reason: reason.to_owned() }),
        );
        if let Some(bodies) = self.episodes.take_finished(at_us, true) {
            self.writer.write_episode(bodies);
        }
        let mut summary = self.summary;
        summary.elapsed = now.saturating_duration_since(self.anchor.0);
        summary.suppressed += self.second.suppressed;
        let status = self.writer.finish();
        summary.lost.records = status.lost;
        (summary.omitted, summary.trouble) = (status.omitted, status.trouble);
        summary.cpu = process_cpu();
        summary
    }

    fn at_us(&self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.anchor.0);
        self.anchor.1.saturating_add(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn record_header(&mut self, server: &RunningServer, at_us: i64) {
        self.header =
            recording_started(server, &self.data_dir, &self.metric_sources, &self.options, at_us);
        self.repeat_header(at_us);
    }

    /// Records the header and the latest relation names. This is repeated about twice per slot of
    /// the ring, so that they survive overwriting.
    fn repeat_header(&mut self, at_us: i64) {
        let names = self.names.iter().cloned().map(FlightRecord::NamedRelation);
        let again: Vec<_> =
            iter::once(FlightRecord::Started(self.header.clone())).chain(names).collect();
        again.iter().for_each(|record| self.record(at_us, record));
        self.recorded_bytes.1 = self.recorded_bytes.0;
    }

    fn record(&mut self, at_us: i64, record: &FlightRecord) {
        if let Some(metrics) = &mut self.metrics {
            metrics.observe(record);
        }
        let body: RecordBody = record.to_bytes(self.next_number).into();
        self.next_number += 1;
        self.recorded_bytes.0 += body.len() as u64;
        self.episodes.add(at_us, &body);
        self.writer.append(body);
    }

    /// Returns the number of bytes after which names and texts are repeated: half a slot.
    fn repeat_bytes(&self) -> u64 {
        self.writer.body_max() as u64 / 2
    }

    fn note(&mut self, at_us: i64, kind: NoteKind, text: String) {
        let note = RecordingNote { at_us, kind, text };
        self.record(at_us, &FlightRecord::Note(note.clone()));
        self.events.push(RecorderEvent::Note(note));
    }

    /// Records the finished second, and evaluates the triggers.
    fn finish_second(&mut self, now: Instant) {
        let at_us = self.at_us(now);
        self.collect_traces(at_us, false);
        let cpu = process_cpu();
        let next =
            CurrentSecond { at: now, at_us, lost: LostCounts::default(), cpu, ..self.second };
        let finished = mem::replace(&mut self.second, next);
        if let ServerPresence::There(sources) = &mut self.server {
            let is_examined = self.exact.is_some();
            let second = sources.take_second(now, finished.lost.missed_samples, is_examined);
            self.record_sessions(Some(&second));
            self.record_second(second, finished, now, cpu);
        } else {
            self.record_sessions(None);
        }
        self.report_writer_status(at_us);
        if self.recorded_bytes.0 - self.recorded_bytes.1 > self.repeat_bytes() {
            self.repeat_header(at_us);
        }
        if let Some(bodies) = self.episodes.take_finished(at_us, false) {
            self.writer.write_episode(bodies);
        }
        self.sync.took_us = None;
    }

    fn record_second(
        &mut self,
        mut second: RecordedSecond,
        finished: CurrentSecond,
        now: Instant,
        cpu: Duration,
    ) {
        second.at_us = finished.at_us;
        second.elapsed_us = micros(now.saturating_duration_since(finished.at));
        second.cpu_us = micros(cpu.saturating_sub(finished.cpu));
        second.lost.calls = finished.lost.calls;
        let lost = self.writer.status().lost;
        second.lost.records = lost.saturating_sub(mem::replace(&mut self.writer_status.lost, lost));
        self.summary.seconds += 1;
        self.summary.recorded += Duration::from_micros(second.elapsed_us);
        self.summary.samples += u64::from(second.waits.rounds);
        self.summary.lost.add(&second.lost);
        for of in second.extension.iter().flat_map(|extension| &extension.relations) {
            self.request_name(UnnamedObject::Relation(of.database, of.relation));
        }
        let at_us = self.at_us(now);
        let pressure = HostPressure { at_us: second.at_us, ..HostPressure::read() };
        let inputs = TriggerInputs {
            second: &second,
            syncing: self.sync.duration_at(at_us),
            commits_stopped: self.sessions.commits_stopped(),
            standby_lag: self.sessions.standby_lag(),
            pressure: pressure.highest(),
        };
        let crossing = self.options.thresholds.evaluate(&inputs, &mut self.above);
        self.record(at_us, &FlightRecord::Second(second));
        if pressure.highest().is_some() {
            self.record(at_us, &FlightRecord::Pressure(pressure));
        }
        if let Some(crossing) = crossing {
            self.trigger(at_us, crossing, now);
        }
    }

    /// Records what the server's sessions reported since the last call.
    fn record_sessions(&mut self, second: Option<&RecordedSecond>) {
        let (position, repeat_bytes) = (self.recorded_bytes.0, self.repeat_bytes());
        let output = self.sessions.drain(second, position, repeat_bytes);
        for (at, record) in output.records {
            let at_us = self.at_us(at);
            let record = match record {
                FlightRecord::Sessions(sessions) => {
                    FlightRecord::Sessions(RecordedSessions { at_us, ..sessions })
                }
                FlightRecord::WaitCircle(circles) => {
                    let sessions = RecordedSessions { at_us, ..circles.sessions };
                    FlightRecord::WaitCircle(RecordedCircles { sessions, ..circles })
                }
                FlightRecord::Counters(counters) => {
                    FlightRecord::Counters(RecordedCounters { at_us, ..counters })
                }
                other => other,
            };
            self.record(at_us, &record);
        }
        for text in output.notes {
            self.note(self.at_us(Instant::now()), NoteKind::Probes, text);
        }
        for (database, relation) in output.relations {
            self.request_name(UnnamedObject::Relation(database, relation));
        }
        if let (Some(pid), ServerPresence::There(sources)) = (output.own_session, &mut self.server)
        {
            sources.exclude_session(pid);
        }
    }

    /// Starts an episode. While one is running or the cool-down has not passed, only counts the
    /// trigger.
    fn trigger(&mut self, at_us: i64, crossing: TriggerHit, now: Instant) {
        if !self.episodes.can_trigger(at_us) {
            self.second.suppressed += 1;
            return;
        }
        let TriggerHit { kind, value, threshold } = crossing;
        if kind.is_edge() {
            self.above.push(kind);
        }
        let suppressed = mem::take(&mut self.second.suppressed);
        self.summary.suppressed += suppressed;
        self.summary.triggered += 1;
        let milli = |value: f64| (value * 1000.0) as u64;
        let (value_milli, threshold_milli) = (milli(value), milli(threshold));
        let crossed = ThresholdCrossed { at_us, kind, value_milli, threshold_milli, suppressed };
        self.record(at_us, &FlightRecord::ThresholdCrossed(crossed));
        self.episodes.start(at_us);
        // The episode must be readable when the ring has overwritten what was recorded before it.
        self.repeat_header(at_us);
        for text in self.sessions.texts_for_episode(now) {
            self.record(at_us, &text);
        }
        self.events.push(RecorderEvent::ThresholdCrossed(crossed));
        let (ServerPresence::There(sources), Some(hit)) = (&self.server, self.hit) else { return };
        match ExactProbes::attach(sources.server().clone(), hit, self.options.budget) {
            Ok(probes) => self.exact = Some((at_us, probes)),
            Err(error) => {
                let text = format!("cannot attach exact probes: {error}");
                self.note(at_us, NoteKind::Probes, text);
            }
        }
    }

    /// Records the reports of exact probes, and drops the probes if they are finished or `is_over`.
    fn collect_traces(&mut self, at_us: i64, is_over: bool) {
        let Some((started_us, mut probes)) = self.exact.take() else { return };
        let is_over = if is_over { probes.detach() } else { probes.is_finished() };
        for report in probes.reports() {
            match report {
                TraceReport::Second(since, exact, subjects) => {
                    for object in subjects.into_iter().filter_map(UnnamedObject::of_subject) {
                        self.request_name(object);
                    }
                    let second_us = started_us.saturating_add_unsigned(micros(since));
                    self.record(
                        at_us,
                        &FlightRecord::TracedCalls(TracedCalls { at_us: second_us, ..exact }),
                    );
                }
                TraceReport::Note(text) => self.note(at_us, NoteKind::Probes, text),
                TraceReport::Lost(calls) => self.second.lost.calls += calls,
            }
        }
        if !is_over {
            self.exact = Some((started_us, probes));
        }
    }

    /// Reports that the file can no longer be written, or that it can be written again.
    fn report_writer_status(&mut self, at_us: i64) {
        let trouble = self.writer.status().trouble;
        if trouble == self.writer_status.trouble {
            return;
        }
        let text = match &trouble {
            Some(trouble) => format!("cannot write to the file, recording continues: {trouble}"),
            None => "writing to the file resumed".to_owned(),
        };
        self.writer_status.trouble = trouble;
        self.note(at_us, NoteKind::File, text);
    }

    /// Reports that the name of an object is not known, unless that was reported before.
    fn request_name(&mut self, name: UnnamedObject) {
        if self.named.len() < NAMES_MAX && self.named.insert(name) {
            self.events.push(match name {
                UnnamedObject::Relation(database, relation) => {
                    RecorderEvent::Unnamed { database, relation }
                }
                UnnamedObject::File(tablespace, database, filenode) => {
                    RecorderEvent::UnnamedFile { tablespace, database, filenode }
                }
            });
        }
    }

    fn on_server_lost(&mut self, now: Instant, error: &SampleError) {
        self.collect_traces(self.at_us(now), true);
        self.finish_second(now);
        self.sync = SyncTimer::default();
        self.above.clear();
        // A server that stops releases its shared memory before its postmaster exits.
        if let (SampleError::Reinitialised { pid }, ServerPresence::There(sources)) =
            (error, &self.server)
        {
            match PostmasterIdentity::for_server(sources.server()) {
                Ok(postmaster) => {
                    self.server = ServerPresence::Ending(postmaster, now + STOP_TIMEOUT);
                }
                // It has exited since.
                Err(_) => self.note_end(now, &SampleError::ServerStopped { pid: *pid }),
            }
            return;
        }
        self.note_end(now, error);
    }

    fn note_end(&mut self, now: Instant, error: &SampleError) {
        self.server = ServerPresence::Away(now);
        self.note(self.at_us(now), NoteKind::ServerEnded, error.to_string());
    }

    fn reconnect(&mut self, now: Instant) {
        self.server = ServerPresence::Away(now + RECONNECT_INTERVAL);
        let Ok(server) = RunningServer::in_data_dir(&self.data_dir) else { return };
        let Ok((sources, metric_sources)) = Sources::open(&server, now, self.hit, self.options)
        else {
            return;
        };
        self.server = ServerPresence::There(Box::new(sources));
        self.metric_sources = metric_sources;
        self.metric_sources.push(sessions_source(self.sessions.is_connected_by_uri()));
        // Ticks missed while the server was away do not count.
        self.schedule =
            TickSchedule::new(now, Duration::from_secs(1) / self.options.rate.clamp(1, 1000));
        let at_us = self.at_us(now);
        self.second = CurrentSecond { at: now, at_us, lost: LostCounts::default(), ..self.second };
        let pid = server.postmaster().pid();
        self.note(
            at_us,
            NoteKind::ServerBack,
            format!("the server is running again: process {pid}"),
        );
        self.record_header(&server, at_us);
    }
}

impl SyncTimer {
    fn observe(&mut self, record: &FlightRecord) {
        match record {
            FlightRecord::PhaseStarted(started) if started.phase == CheckpointPhase::Sync => {
                self.since_us = Some(started.at_us);
            }
            FlightRecord::PhaseEnded(ended) if ended.phase == CheckpointPhase::Sync => {
                *self = Self { since_us: None, took_us: Some(ended.duration_us) };
            }
            FlightRecord::PhaseEnded(ended) if ended.phase == CheckpointPhase::Checkpoint => {
                self.since_us = None;
            }
            _ => {}
        }
    }

    fn duration_at(&self, at_us: i64) -> Option<Duration> {
        let lasting =
            self.since_us.map(|since_us| at_us.saturating_sub(since_us).max(0).cast_unsigned());
        lasting.max(self.took_us).map(Duration::from_micros)
    }
}

fn sessions_source(is_connected: bool) -> RecordedSource {
    let limitation = if is_connected {
        "once a second: shorter waits of single sessions may be missed"
    } else {
        "no statements, users and blockers: name the server by a URI"
    };
    let source = is_connected.then_some(ProbeSource::Sql);
    recorded_source("sessions", source, limitation.to_owned())
}

/// Returns the header, which describes the recorded server and the options.
fn recording_started(
    server: &RunningServer,
    data_dir: &Path,
    metric_sources: &[RecordedSource],
    options: &RecorderOptions,
    at_us: i64,
) -> RecordingStarted {
    let triggers = options.thresholds.settings();
    RecordingStarted {
        at_us,
        major: server.major(),
        postmaster: server.postmaster().pid(),
        data_dir: data_dir.to_string_lossy().into_owned(),
        rate: options.rate,
        sources: metric_sources.to_vec(),
        triggers: triggers.map(|setting| setting.to_string()).collect(),
    }
}

const SECOND_US: i64 = 1_000_000;

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the processor time of all threads of this process.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
