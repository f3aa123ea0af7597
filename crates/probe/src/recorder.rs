//! A flight recorder: what is cheap to know of a server, all the time, into a file that never grows beyond its
//! size; and what is exact for the moments that matter.
//!
//! ```text
//! waits, sweep, extension locks, checkpoints ─► seconds ─► ring of the file
//!                                                  │
//!                                               trigger ─► exact probes for ten seconds
//!                                                  └─────► episode: 30 s before, 30 s after, kept apart
//! ```
//!
//! A [`Recorder`] is told when to look and sleeps nowhere itself; the file is written by a thread of its own, so
//! that a disk that stalls, which may be just what is being recorded, holds up no look. What was missed
//! on the way is in every second's [`Lost`]. A server that ends is waited for.

mod budget;
mod bytes;
mod episode;
mod exact;
mod layout;
mod pen;
mod record;
mod recording;
mod ring;
mod sources;
mod spread;
mod told;
mod trigger;

use std::{
    collections::{HashSet, VecDeque},
    iter, mem,
    path::{Path, PathBuf},
    time::{Duration, Instant, SystemTime},
};

use howdah_inspect::Server;
use rustix::time::{ClockId, clock_gettime};

pub use self::{
    bytes::Damage,
    record::{
        Ended, Exact, Extension, FigureSource, Lost, Named, Note, NoteKind, PhaseBegan, PhaseEnded,
        Record, RelationWaits, Second, Started, Sweep, ThresholdCrossed, TriggerKind, WaitRow,
        Waits,
    },
    recording::{ReadError, Recording},
    ring::RecordError,
    spread::Spread,
    told::{Event, Summary},
    trigger::{ALLOCATIONS_MIN, Setting, SettingError, Thresholds, WAITS_MIN},
};
use self::{
    episode::Episodes,
    exact::{ExactProbes, Told},
    pen::{Body, RecordingWriter, Standing},
    sources::{Sources, wall_us},
    trigger::Crossing,
};
use crate::{Capabilities, HitCost, SampleError, checkpoints::Phase, waits::Pace};

/// How to record.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Looks a second: 1 to 1000.
    pub rate: u32,
    /// When something is looked at more closely.
    pub thresholds: Thresholds,
    /// From the end of an episode until a trigger may fire again.
    pub cool_down: Duration,
    /// What programs in the kernel may cost, as a share of all processors.
    pub budget: f64,
    /// The largest that the file may become; `None`: as it is there already, or [`MAX_BYTES`].
    pub max_bytes: Option<u64>,
}

/// How large a file may become if nobody says.
pub const MAX_BYTES: u64 = 64 << 20;

impl Default for Options {
    fn default() -> Self {
        Self {
            rate: 100,
            thresholds: Thresholds::default(),
            cool_down: Duration::from_secs(60),
            budget: 0.03,
            max_bytes: None,
        }
    }
}

/// Why recording cannot begin.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BeginError {
    /// The server cannot be looked at.
    #[error(transparent)]
    Server(#[from] SampleError),
    /// The file cannot be written.
    #[error(transparent)]
    File(#[from] RecordError),
}

/// Records a server, and its successors on the same data directory.
#[derive(Debug)]
pub struct Recorder {
    options: Options,
    data_dir: PathBuf,
    hit: Option<HitCost>,
    server: ServerPresence,
    pace: Pace,
    /// The same moment by both clocks.
    anchor: (Instant, i64),
    second: Begun,
    pen: RecordingWriter,
    file: Standing,
    next_number: u64,
    /// Whom we record, and the names of what was seen last: what the ring must not forget.
    standing: Started,
    names: VecDeque<Named>,
    bytes_since_repeated: usize,
    episodes: Episodes,
    exact: Option<(i64, ExactProbes)>,
    sync: Syncing,
    named: HashSet<(u32, u32)>,
    events: Vec<Event>,
    figures: Vec<FigureSource>,
    summary: Summary,
}

/// Whether there is a server.
#[derive(Debug)]
enum ServerPresence {
    There(Box<Sources>),
    /// It ended; when to look for it again.
    Away(Instant),
}

/// The second that lasts.
#[derive(Clone, Copy, Debug)]
struct Begun {
    at: Instant,
    at_us: i64,
    /// Losses that are known before it ends.
    lost: Lost,
    cpu: Duration,
    held_back: u64,
}

/// A checkpoint's syncs: since when they last, and how long those took that ended in this second.
#[derive(Clone, Copy, Debug, Default)]
struct Syncing {
    since_us: Option<i64>,
    took_us: Option<u64>,
}

/// How often a server that ended is looked for.
const LOOKED_FOR_EVERY: Duration = Duration::from_millis(500);
/// Names that are repeated, those that came last.
const NAMES_REPEATED: usize = 32;
/// Relations that are asked for by name in a run.
const NAMES_MAX: usize = 10_000;

impl Recorder {
    /// Begins to record a server, or goes on behind what a file holds.
    ///
    /// # Errors
    ///
    /// Its memory may not be read, or the file cannot be written.
    pub fn begin(
        server: &Server,
        path: &Path,
        options: Options,
        now: Instant,
    ) -> Result<Self, BeginError> {
        let hit = Capabilities::own().may_trace().then(HitCost::measure).and_then(Result::ok);
        let (sources, figures) = Sources::open(server, now, hit, options.budget)?;
        let (pen, next_number) = RecordingWriter::open(path, options.max_bytes, MAX_BYTES)?;
        let data_dir = server.data_dir().map_err(SampleError::from)?;
        let (anchor, at_us) = (Instant::now(), wall_us(SystemTime::now()));
        let cool_down_us = i64::try_from(options.cool_down.as_micros()).unwrap_or(i64::MAX);
        let every = Duration::from_secs(1) / options.rate.clamp(1, 1000);
        let cpu = process_cpu();
        let standing = started(server, &data_dir, &figures, &options, at_us);
        let mut recorder = Self {
            standing,
            names: VecDeque::new(),
            bytes_since_repeated: 0,
            options,
            data_dir,
            hit,
            server: ServerPresence::There(Box::new(sources)),
            pace: Pace::new(anchor, every),
            anchor: (anchor, at_us),
            second: Begun { at: anchor, at_us, lost: Lost::default(), cpu, held_back: 0 },
            episodes: Episodes::new(pen.body_max(), cool_down_us),
            summary: Summary { max_bytes: pen.max_bytes(), ..Summary::default() },
            pen,
            file: Standing::default(),
            next_number,
            exact: None,
            sync: Syncing::default(),
            named: HashSet::new(),
            events: Vec::new(),
            figures,
        };
        recorder.repeat_standing(at_us);
        Ok(recorder)
    }

    /// Where each figure comes from.
    #[must_use]
    pub fn figures(&self) -> &[FigureSource] {
        &self.figures
    }

    /// When to look next.
    #[must_use]
    pub fn due(&self) -> Instant {
        match self.server {
            ServerPresence::There(_) => self.pace.due(),
            ServerPresence::Away(due) => due,
        }
    }

    /// Whether the server has ended and is waited for.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        matches!(self.server, ServerPresence::Away(_))
    }

    /// Looks once, and gives what should be told.
    pub fn tick(&mut self, now: Instant) -> Vec<Event> {
        self.second.lost.looks += self.pace.reached(now);
        if self.at_us(now).div_euclid(SECOND_US) != self.second.at_us.div_euclid(SECOND_US) {
            self.end_second(now);
        }
        match &mut self.server {
            ServerPresence::There(sources) => match sources.look(now) {
                Ok(look) => {
                    let at_us = self.at_us(now);
                    for text in look.notes {
                        self.note(at_us, NoteKind::Probes, text);
                    }
                    for record in look.records {
                        self.sync.see(&record);
                        self.record(at_us, &record);
                    }
                }
                Err(error) => self.lose_server(now, &error),
            },
            ServerPresence::Away(due) if now >= *due => self.look_for_server(now),
            ServerPresence::Away(_) => {}
        }
        mem::take(&mut self.events)
    }

    /// Tells the name of a relation that was seen without one.
    pub fn name(&mut self, database: u32, relation: u32, name: String, now: Instant) {
        let at_us = self.at_us(now);
        let named = Named { database, relation, name };
        self.names.push_back(named.clone());
        if self.names.len() > NAMES_REPEATED {
            self.names.pop_front();
        }
        self.record(at_us, &Record::Named(named));
    }

    /// Ends well: an episode that lasts is kept as it is, and the file has everything.
    #[must_use]
    pub fn finish(mut self, reason: &str, now: Instant) -> Summary {
        self.fetch_exact(self.at_us(now), true);
        self.end_second(now);
        let at_us = self.at_us(now);
        self.record(at_us, &Record::Ended(Ended { at_us, reason: reason.to_owned() }));
        if let Some(bodies) = self.episodes.ended(at_us, true) {
            self.pen.keep(bodies);
        }
        let mut summary = self.summary;
        summary.elapsed = now.saturating_duration_since(self.anchor.0);
        summary.held_back += self.second.held_back;
        let standing = self.pen.closed();
        summary.lost.records = standing.lost;
        (summary.left_out, summary.trouble) = (standing.left_out, standing.trouble);
        summary.cpu = process_cpu();
        summary
    }

    fn at_us(&self, now: Instant) -> i64 {
        let since = now.saturating_duration_since(self.anchor.0);
        self.anchor.1.saturating_add(i64::try_from(since.as_micros()).unwrap_or(i64::MAX))
    }

    fn record_start(&mut self, server: &Server, at_us: i64) {
        self.standing = started(server, &self.data_dir, &self.figures, &self.options, at_us);
        self.repeat_standing(at_us);
    }

    /// Whom we record, and names, again: twice in each slot of the ring, so that they outlive their
    /// first place.
    fn repeat_standing(&mut self, at_us: i64) {
        let names = self.names.iter().cloned().map(Record::Named);
        let again: Vec<_> =
            iter::once(Record::Started(self.standing.clone())).chain(names).collect();
        again.iter().for_each(|record| self.record(at_us, record));
        self.bytes_since_repeated = 0;
    }

    fn record(&mut self, at_us: i64, record: &Record) {
        let body: Body = record.to_bytes(self.next_number).into();
        self.next_number += 1;
        self.bytes_since_repeated += body.len();
        self.episodes.add(at_us, &body);
        self.pen.append(body);
    }

    fn note(&mut self, at_us: i64, kind: NoteKind, text: String) {
        let note = Note { at_us, kind, text };
        self.record(at_us, &Record::Note(note.clone()));
        self.events.push(Event::Note(note));
    }

    /// Records the second that is over, and judges it.
    fn end_second(&mut self, now: Instant) {
        let at_us = self.at_us(now);
        self.fetch_exact(at_us, false);
        let cpu = process_cpu();
        let next = Begun { at: now, at_us, lost: Lost::default(), cpu, ..self.second };
        let begun = mem::replace(&mut self.second, next);
        if let ServerPresence::There(sources) = &mut self.server {
            let second = sources.second(now, begun.lost.looks);
            self.end_seen_second(second, begun, now, cpu);
        }
        self.tell_of_file(at_us);
        if self.bytes_since_repeated > self.pen.body_max() / 2 {
            self.repeat_standing(at_us);
        }
        if let Some(bodies) = self.episodes.ended(at_us, false) {
            self.pen.keep(bodies);
        }
        self.sync.took_us = None;
    }

    fn end_seen_second(&mut self, mut second: Second, begun: Begun, now: Instant, cpu: Duration) {
        second.at_us = begun.at_us;
        second.elapsed_us = micros(now.saturating_duration_since(begun.at));
        second.cpu_us = micros(cpu.saturating_sub(begun.cpu));
        second.lost.calls = begun.lost.calls;
        second.lost.records = self.new_lost_records();
        self.summary.seconds += 1;
        self.summary.recorded += Duration::from_micros(second.elapsed_us);
        self.summary.looks += u64::from(second.waits.rounds);
        self.summary.lost.add(&second.lost);
        self.ask_for_names(&second);
        let at_us = self.at_us(now);
        let crossing = self.options.thresholds.judge(&second, self.sync.lasted(at_us));
        self.record(at_us, &Record::Second(second));
        if let Some(crossing) = crossing {
            self.cross(at_us, crossing);
        }
    }

    /// Fires, if it is not too soon.
    fn cross(&mut self, at_us: i64, crossing: Crossing) {
        if !self.episodes.may_fire(at_us) {
            self.second.held_back += 1;
            return;
        }
        let Crossing { kind, value, threshold } = crossing;
        let held_back = mem::take(&mut self.second.held_back);
        self.summary.held_back += held_back;
        self.summary.fired += 1;
        let milli = |value: f64| (value * 1000.0) as u64;
        let (value_milli, threshold_milli) = (milli(value), milli(threshold));
        let fired = ThresholdCrossed { at_us, kind, value_milli, threshold_milli, held_back };
        self.record(at_us, &Record::Fired(fired));
        self.episodes.begin(at_us);
        self.events.push(Event::Fired(fired));
        let (ServerPresence::There(sources), Some(hit)) = (&self.server, self.hit) else { return };
        match ExactProbes::attach(sources.server().clone(), hit, self.options.budget) {
            Ok(probes) => self.exact = Some((at_us, probes)),
            Err(error) => {
                let text = format!("exact probes cannot be attached: {error}");
                self.note(at_us, NoteKind::Probes, text);
            }
        }
    }

    /// Records what exact probes told meanwhile, and takes them away if that was all or they are to go.
    fn fetch_exact(&mut self, at_us: i64, is_over: bool) {
        let Some((began_us, mut probes)) = self.exact.take() else { return };
        let is_over = if is_over { probes.detach() } else { probes.is_over() };
        for told in probes.told() {
            match told {
                Told::Second(since, exact) => {
                    let began = began_us.saturating_add_unsigned(micros(since));
                    self.record(at_us, &Record::Exact(Exact { at_us: began, ..exact }));
                }
                Told::Note(text) => self.note(at_us, NoteKind::Probes, text),
                Told::Lost(calls) => self.second.lost.calls += calls,
            }
        }
        if !is_over {
            self.exact = Some((began_us, probes));
        }
    }

    fn new_lost_records(&mut self) -> u64 {
        let lost = self.pen.standing().lost;
        lost.saturating_sub(mem::replace(&mut self.file.lost, lost))
    }

    /// Says when the file begins to take nothing, and when it takes something again.
    fn tell_of_file(&mut self, at_us: i64) {
        let trouble = self.pen.standing().trouble;
        if trouble == self.file.trouble {
            return;
        }
        let text = match &trouble {
            Some(trouble) => format!("nothing is written to the file, and it goes on: {trouble}"),
            None => "the file is written again".to_owned(),
        };
        self.file.trouble = trouble;
        self.note(at_us, NoteKind::File, text);
    }

    fn ask_for_names(&mut self, second: &Second) {
        for of in second.extension.iter().flat_map(|extension| &extension.relations) {
            let RelationWaits { database, relation, .. } = *of;
            if self.named.len() < NAMES_MAX && self.named.insert((database, relation)) {
                self.events.push(Event::Unnamed { database, relation });
            }
        }
    }

    fn lose_server(&mut self, now: Instant, error: &SampleError) {
        self.fetch_exact(self.at_us(now), true);
        self.end_second(now);
        let at_us = self.at_us(now);
        self.sync = Syncing::default();
        self.server = ServerPresence::Away(now);
        self.note(at_us, NoteKind::ServerEnded, error.to_string());
    }

    fn look_for_server(&mut self, now: Instant) {
        self.server = ServerPresence::Away(now + LOOKED_FOR_EVERY);
        let Ok(server) = Server::in_data_dir(&self.data_dir) else { return };
        let Ok((sources, figures)) = Sources::open(&server, now, self.hit, self.options.budget)
        else {
            return;
        };
        self.server = ServerPresence::There(Box::new(sources));
        self.figures = figures;
        // Nobody was late for a look that there was nothing to see at.
        self.pace = Pace::new(now, Duration::from_secs(1) / self.options.rate.clamp(1, 1000));
        let at_us = self.at_us(now);
        self.second = Begun { at: now, at_us, lost: Lost::default(), ..self.second };
        let pid = server.postmaster().pid();
        self.note(at_us, NoteKind::ServerBack, format!("the server is there again: process {pid}"));
        self.record_start(&server, at_us);
    }
}

impl Syncing {
    fn see(&mut self, record: &Record) {
        match record {
            Record::PhaseBegan(began) if began.phase == Phase::Sync => {
                self.since_us = Some(began.at_us);
            }
            Record::PhaseEnded(ended) if ended.phase == Phase::Sync => {
                *self = Self { since_us: None, took_us: Some(ended.duration_us) };
            }
            Record::PhaseEnded(ended) if ended.phase == Phase::Checkpoint => self.since_us = None,
            _ => {}
        }
    }

    fn lasted(&self, at_us: i64) -> Option<Duration> {
        let lasting =
            self.since_us.map(|since_us| at_us.saturating_sub(since_us).max(0).cast_unsigned());
        lasting.max(self.took_us).map(Duration::from_micros)
    }
}

/// Whom we record, and how.
fn started(
    server: &Server,
    data_dir: &Path,
    figures: &[FigureSource],
    options: &Options,
    at_us: i64,
) -> Started {
    let triggers = options.thresholds.settings();
    Started {
        at_us,
        major: server.major(),
        postmaster: server.postmaster().pid(),
        data_dir: data_dir.to_string_lossy().into_owned(),
        rate: options.rate,
        sources: figures.to_vec(),
        triggers: triggers.map(|setting| setting.to_string()).collect(),
    }
}

const SECOND_US: i64 = 1_000_000;

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Processor time of all threads of this process.
fn process_cpu() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or_default())
}
