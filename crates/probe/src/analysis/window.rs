//! A recording in time order: seconds, checkpoint phases and events, and their sums.

use std::collections::{BTreeMap, HashMap};

use crate::{
    checkpoints::CheckpointPhase,
    recorder::{
        BLOCKERS_MAX, ExtensionTotals, FlightRecord, FlightRecording, HostPressure, LostCounts,
        RecordedCircles, RecordedCounters, RecordedSecond, RecordedSessions, RecordingEnded,
        RecordingNote, RecordingStarted, RelationWaits, SESSIONS_MAX, SweepTotals,
        ThresholdCrossed, TracedCalls,
    },
    waits::TimeCategory,
};

/// A time span, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeSpan {
    /// Start of the span.
    pub from_us: i64,
    /// End of the span, inclusive.
    pub to_us: i64,
}

/// The part of a recording that lies in a time span.
#[derive(Clone, Debug, Default)]
pub struct RecordingWindow {
    /// The recorded seconds, in time order.
    pub seconds: Vec<RecordedSecond>,
    /// Samples of sessions, in time order. Moments at which all sessions idled have none.
    pub sessions: Vec<RecordedSessions>,
    /// Sessions that waited in circles, in time order.
    pub circles: Vec<RecordedCircles>,
    /// Growth of the server's counters, in time order.
    pub counters: Vec<RecordedCounters>,
    /// Pressure on the host, in time order.
    pub pressures: Vec<HostPressure>,
    /// Phases of checkpoints, ordered by start and depth.
    pub phases: Vec<PhaseSpan>,
    /// Thresholds that were reached, each of which triggered an episode.
    pub crossings: Vec<ThresholdCrossed>,
    /// Calls that were measured exactly, which happens only during episodes.
    pub traced_calls: Vec<TracedCalls>,
    /// Events of the recording itself, such as a restart of the server.
    pub notes: Vec<RecordingNote>,
    /// Starts and resumptions of the whole recording, without repetitions.
    pub started: Vec<RecordingStarted>,
    /// Time and reason of the last proper end of a recording in this span; `None` if there is none.
    pub ended: Option<RecordingEnded>,
    /// Losses in all seconds.
    pub lost: LostCounts,
    /// Maximum size of the file, in bytes.
    pub max_bytes: u64,
    /// Number of records of the whole recording that could not be decoded or are implausible.
    pub unreadable: u64,
    names: HashMap<(u32, u32), String>,
    file_names: HashMap<(u32, u32), String>,
    statements: HashMap<u64, String>,
    episodes: Vec<TimeSpan>,
}

/// A phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PhaseSpan {
    /// Kind of the phase.
    pub phase: CheckpointPhase,
    /// Number of enclosing phases; 0 for the outermost.
    pub depth: u32,
    /// Time span of the phase, up to the last recorded second if it is open.
    pub span: TimeSpan,
    /// Whether the window has no end of the phase.
    pub is_open: bool,
    /// Buffers written, if they were counted.
    pub buffers: Option<u64>,
    /// Files synced, if they were counted.
    pub files: Option<u64>,
}

/// Sums over consecutive seconds.
#[derive(Clone, Debug, Default)]
pub struct TimeBucket {
    /// Start, in microseconds since 1970.
    pub at_us: i64,
    /// Recorded time, in microseconds; a bucket can have gaps.
    pub elapsed_us: u64,
    /// Waits for extension locks; `None` if they were not traced.
    pub extension: Option<ExtensionTotals>,
    /// The clock sweep, if it was sampled.
    pub sweep: Option<SweepTotals>,
    /// Seconds that sessions spent in an event, estimated from samples: by group, class and event.
    pub waits: BTreeMap<(TimeCategory, String, String), f64>,
}

/// Gap between an episode and the next recorded second, in microseconds, beyond which the episode
/// is considered to be from an earlier time.
const EPISODE_GAP_US: i64 = 120_000_000;

impl TimeSpan {
    /// Returns the length of the overlap with `other`, in microseconds; 0 if there is none.
    pub fn overlap_us(self, other: Self) -> i64 {
        self.to_us.min(other.to_us).saturating_sub(self.from_us.max(other.from_us)).max(0)
    }

    /// Whether a time lies in the span.
    pub fn contains(self, at_us: i64) -> bool {
        (self.from_us..=self.to_us).contains(&at_us)
    }
}

impl RecordingWindow {
    /// Creates a window of the whole recording. In a full ring file, episodes may be older than the
    /// other records: they are included only if they are contiguous with these, and otherwise
    /// available [separately](Self::from_episode).
    pub fn from_recording(recording: &FlightRecording) -> Self {
        let mut from_us = i64::MIN;
        for (_, last) in &recording.episodes {
            let (before, after) = recording.records.split_at(*last + 1);
            let before = before.iter().rev().find_map(second_start_us);
            if let (Some(before), Some(after)) = (before, after.iter().find_map(second_start_us))
                && after.saturating_sub(before) > EPISODE_GAP_US
            {
                from_us = after;
            }
        }
        Self::from_span(recording, TimeSpan { from_us, to_us: i64::MAX })
    }

    /// Returns the time spans of the episodes in the recording, oldest first.
    pub fn episodes(&self) -> &[TimeSpan] {
        &self.episodes
    }

    /// Creates a window of one of [`Self::episodes`], numbered from 0; `None` if it does not exist.
    pub fn from_episode(recording: &FlightRecording, number: usize) -> Option<Self> {
        let span = *episodes(recording).get(number)?;
        Some(Self::from_span(recording, span))
    }

    /// Creates a window of everything recorded in a time span.
    pub fn from_span(recording: &FlightRecording, span: TimeSpan) -> Self {
        let (max_bytes, unreadable) = (recording.max_bytes, recording.unreadable);
        let episodes = episodes(recording);
        let mut window = Self { max_bytes, unreadable, episodes, ..Self::default() };
        let mut open = BTreeMap::new();
        for record in &recording.records {
            window.add(record, span, &mut open);
        }
        window.seconds.sort_by_key(|second| second.at_us);
        window.sessions.sort_by_key(|sessions| sessions.at_us);
        window.circles.sort_by_key(|circles| circles.sessions.at_us);
        window.counters.sort_by_key(|counters| counters.at_us);
        window.pressures.sort_by_key(|pressure| pressure.at_us);
        let end_us = window.span().to_us;
        window.phases.extend(open.into_values().map(|phase: PhaseSpan| PhaseSpan {
            span: TimeSpan { to_us: end_us.max(phase.span.from_us), ..phase.span },
            ..phase
        }));
        window.phases.sort_by_key(|phase| (phase.span.from_us, phase.depth));
        window
    }

    fn add(&mut self, record: &FlightRecord, span: TimeSpan, open: &mut BTreeMap<u32, PhaseSpan>) {
        // Names, texts and start records apply to the whole recording.
        match record {
            _ if !has_short_names(record) => self.unreadable += 1,
            FlightRecord::NamedRelation(named) => {
                self.names.insert((named.database, named.relation), named.name.clone());
            }
            FlightRecord::NamedFile(named) => {
                self.file_names.insert((named.database, named.filenode), named.name.clone());
            }
            FlightRecord::StatementText(statement) => {
                self.statements.insert(statement.id, statement.text.clone());
            }
            // Repeated, so that the ring file does not lose it.
            FlightRecord::Started(started) if self.started.contains(started) => {}
            FlightRecord::Started(started) => {
                open.clear();
                self.started.push(started.clone());
            }
            _ if !is_plausible(record) => self.unreadable += 1,
            _ if !span.contains(record_time_us(record)) => {}
            FlightRecord::Second(second) => {
                self.lost.add(&second.lost);
                self.seconds.push(second.clone());
            }
            FlightRecord::PhaseStarted(started) => {
                let span = TimeSpan { from_us: started.at_us, to_us: started.at_us };
                let (phase, depth) = (started.phase, started.depth);
                let started =
                    PhaseSpan { phase, depth, span, is_open: true, buffers: None, files: None };
                open.retain(|other, _| *other < depth);
                open.insert(depth, started);
            }
            FlightRecord::PhaseEnded(ended) => {
                open.retain(|_, other| other.phase != ended.phase && other.depth <= ended.depth);
                let to_us = ended.at_us.saturating_add_unsigned(ended.duration_us);
                self.phases.push(PhaseSpan {
                    phase: ended.phase,
                    depth: ended.depth,
                    span: TimeSpan { from_us: ended.at_us, to_us },
                    is_open: false,
                    buffers: ended.buffers,
                    files: ended.files,
                });
            }
            FlightRecord::Sessions(sessions) => self.sessions.push(sessions.clone()),
            FlightRecord::WaitCircle(circles) => self.circles.push(circles.clone()),
            FlightRecord::Counters(counters) => self.counters.push(*counters),
            FlightRecord::Pressure(pressure) => self.pressures.push(*pressure),
            FlightRecord::ThresholdCrossed(crossing) => self.crossings.push(*crossing),
            FlightRecord::TracedCalls(calls) => self.traced_calls.push(calls.clone()),
            FlightRecord::Note(note) => self.notes.push(note.clone()),
            FlightRecord::Ended(ended) => self.ended = Some(ended.clone()),
        }
    }

    /// Returns the time from the start of the first second to the end of the last; both are 0
    /// without seconds.
    pub fn span(&self) -> TimeSpan {
        let end = |second: &RecordedSecond| second.at_us.saturating_add_unsigned(second.elapsed_us);
        TimeSpan {
            from_us: self.seconds.first().map_or(0, |second| second.at_us),
            to_us: self.seconds.iter().map(end).max().unwrap_or(0),
        }
    }

    /// Returns a relation's name, or its oids if the name is unknown.
    pub fn relation_name(&self, relation: &RelationWaits) -> String {
        self.name_of_oids(relation.database, relation.relation)
    }

    /// Returns the name of the relation with these oids of its database and itself, or the oids if
    /// the name is unknown.
    pub fn name_of_oids(&self, database: u32, relation: u32) -> String {
        let known = self.names.get(&(database, relation));
        known.cloned().unwrap_or_else(|| format!("{database}/{relation}"))
    }

    /// Returns the text of a statement, without literals; `None` if it is unknown.
    pub fn statement(&self, id: u64) -> Option<&str> {
        self.statements.get(&id).map(String::as_str)
    }

    /// Returns the subject of a traced call, with the numbers of a relation or a file replaced by
    /// the relation's name if that is known: `relation 5/16384`, `5/file 16390`.
    pub fn subject_name(&self, subject: &str) -> String {
        let file = subject.split_once("/file ").and_then(|(database, filenode)| {
            self.file_names.get(&(database.parse().ok()?, filenode.parse().ok()?))
        });
        if let Some(name) = file {
            return name.clone();
        }
        let (front, last) = subject.rsplit_once(' ').unwrap_or(("", subject));
        let name = last.split_once('/').and_then(|(database, relation)| {
            self.names.get(&(database.parse().ok()?, relation.parse().ok()?))
        });
        name.map_or_else(
            || subject.to_owned(),
            |name| format!("{front} {name}").trim_start().to_owned(),
        )
    }

    /// Aggregates the seconds into at most `most` buckets, and returns them with the length of
    /// a bucket, in microseconds.
    pub fn buckets(&self, most: i64) -> (Vec<TimeBucket>, i64) {
        let TimeSpan { from_us, to_us } = self.span();
        let seconds = to_us.saturating_sub(from_us) / 1_000_000 + 1;
        let bucket_us = (seconds / most.max(1) + 1) * 1_000_000;
        let mut buckets: BTreeMap<i64, TimeBucket> = BTreeMap::new();
        for second in &self.seconds {
            let index = second.at_us.saturating_sub(from_us).div_euclid(bucket_us);
            let empty =
                || TimeBucket { at_us: from_us + index * bucket_us, ..TimeBucket::default() };
            buckets.entry(index).or_insert_with(empty).add(second);
        }
        (buckets.into_values().collect(), bucket_us)
    }
}

impl TimeBucket {
    /// Adds a second to the sums.
    pub fn add(&mut self, second: &RecordedSecond) {
        self.elapsed_us = self.elapsed_us.saturating_add(second.elapsed_us);
        if let Some(extension) = &second.extension {
            add_extension(self.extension.get_or_insert_default(), extension);
        }
        if let Some(sweep) = &second.sweep {
            add_sweep(self.sweep.get_or_insert_default(), sweep);
        }
        let seconds_per_sample =
            second.elapsed_us as f64 / 1e6 / f64::from(second.waits.rounds.max(1));
        for row in &second.waits.rows {
            let key = (row.group, row.class.clone(), row.event.clone());
            *self.waits.entry(key).or_default() += row.samples as f64 * seconds_per_sample;
        }
    }

    /// Returns the seconds that sessions spent in events of a group, by class.
    pub fn classes(&self, group: TimeCategory) -> BTreeMap<&str, f64> {
        let mut classes = BTreeMap::new();
        for ((of, class, _), seconds) in &self.waits {
            if *of == group {
                *classes.entry(&**class).or_default() += seconds;
            }
        }
        classes
    }

    /// Returns the recorded time, in seconds.
    pub fn seconds(&self) -> f64 {
        self.elapsed_us as f64 / 1e6
    }

    /// Returns the number of buffers examined per allocation; `None` without allocations.
    pub fn examined_per_allocation(&self) -> Option<f64> {
        let sweep = self.sweep.as_ref().filter(|sweep| sweep.allocations > 0)?;
        Some(sweep.examined as f64 / sweep.allocations as f64)
    }
}

fn add_extension(sum: &mut ExtensionTotals, more: &ExtensionTotals) {
    sum.waits.merge(&more.waits);
    sum.holds.merge(&more.holds);
    sum.conditional = sum.conditional.saturating_add(more.conditional);
    for of in &more.relations {
        let same = |other: &&mut RelationWaits| {
            (other.database, other.relation) == (of.database, of.relation)
        };
        match sum.relations.iter_mut().find(same) {
            Some(sum) => {
                sum.waits = sum.waits.saturating_add(of.waits);
                sum.total_us = sum.total_us.saturating_add(of.total_us);
                sum.max_us = sum.max_us.max(of.max_us);
            }
            None => sum.relations.push(*of),
        }
    }
    sum.relations.sort_by_key(|of| std::cmp::Reverse(of.total_us));
}

fn add_sweep(sum: &mut SweepTotals, more: &SweepTotals) {
    let slices = match (sum.slices_milli, more.slices_milli) {
        (Some((min, max)), Some((least, most))) => Some((min.min(least), max.max(most))),
        (one, other) => one.or(other),
    };
    *sum = SweepTotals {
        examined: sum.examined.saturating_add(more.examined),
        allocations: sum.allocations.saturating_add(more.allocations),
        slices_milli: slices,
        ..*more
    };
}

fn episodes(recording: &FlightRecording) -> Vec<TimeSpan> {
    let moments = |(first, last): &(usize, usize)| {
        let moments = recording.records[*first..=*last].iter().filter_map(second_start_us);
        let (from_us, to_us) = (moments.clone().min()?, moments.max()?);
        Some(TimeSpan { from_us, to_us })
    };
    recording.episodes.iter().filter_map(moments).collect()
}

/// Whether the numbers of a record are plausible. Files may come from anywhere, and sums over
/// implausible records could overflow.
fn is_plausible(record: &FlightRecord) -> bool {
    /// The year 3000, in microseconds since 1970.
    const LATEST_US: i64 = 32_503_680_000_000_000;
    let is_of_our_time = (0..LATEST_US).contains(&record_time_us(record));
    is_of_our_time
        && match record {
            FlightRecord::Second(second) => {
                second.elapsed_us <= DAY_US && second.cpu_us <= 1000 * DAY_US
            }
            FlightRecord::PhaseEnded(ended) => ended.duration_us <= 365 * DAY_US,
            FlightRecord::Counters(counters) => is_plausible_growth(counters),
            FlightRecord::Sessions(sessions) => are_plausible_sessions(sessions),
            FlightRecord::WaitCircle(circles) => {
                circles.waits.len() == circles.sessions.rows.len()
                    && are_plausible_sessions(&circles.sessions)
            }
            _ => true,
        }
}

/// Maximum length of a name or of a statement in a recording, in bytes.
const NAME_BYTES_MAX: usize = 1024;

/// Whether the names of a record are short enough. Reports repeat them often.
fn has_short_names(record: &FlightRecord) -> bool {
    let is_short = |name: &String| name.len() <= NAME_BYTES_MAX;
    match record {
        FlightRecord::NamedRelation(named) => is_short(&named.name),
        FlightRecord::NamedFile(named) => is_short(&named.name),
        FlightRecord::StatementText(statement) => is_short(&statement.text),
        FlightRecord::Sessions(sessions) => sessions.names.iter().all(is_short),
        FlightRecord::WaitCircle(circles) => circles.sessions.names.iter().all(is_short),
        _ => true,
    }
}

fn are_plausible_sessions(sessions: &RecordedSessions) -> bool {
    let is_small = |number: u64| number <= COUNT_MAX;
    sessions.elapsed_us <= DAY_US
        && sessions.rows.len() <= SESSIONS_MAX
        && sessions.rows.iter().all(|row| {
            row.blockers.len() <= BLOCKERS_MAX
                && row.age_ms <= COUNT_MAX
                && row.transaction_ms.is_none_or(is_small)
                && row.temp_bytes <= BYTES_MAX
        })
        && is_small(sessions.omitted)
        && sessions.groups.iter().all(|group| is_small(group.sessions) && is_small(group.started))
}

const DAY_US: u64 = 86_400_000_000;
/// Largest plausible number of events in a sample, and of milliseconds or microseconds: sums over
/// the records of the largest file do not overflow.
const COUNT_MAX: u64 = 1 << 36;
/// Largest plausible number of bytes.
const BYTES_MAX: u64 = 1 << 50;

fn is_plausible_growth(counters: &RecordedCounters) -> bool {
    let RecordedCounters { at_us: _, elapsed_us, temp_bytes, replay_lag_bytes, .. } = *counters;
    let counts = [
        counters.commits,
        counters.rollbacks,
        counters.deadlocks,
        counters.temp_files,
        counters.sessions_started,
        counters.timed_checkpoints,
        counters.requested_checkpoints,
        counters.clients,
        counters.replay_lag_ms.unwrap_or(0),
        elapsed_us,
    ];
    let bytes = [temp_bytes, replay_lag_bytes.unwrap_or(0)];
    counts.into_iter().all(|count| count <= COUNT_MAX)
        && bytes.into_iter().all(|bytes| bytes <= BYTES_MAX)
}

fn second_start_us(record: &FlightRecord) -> Option<i64> {
    match record {
        FlightRecord::Second(second) => Some(second.at_us),
        _ => None,
    }
}

fn record_time_us(record: &FlightRecord) -> i64 {
    match record {
        FlightRecord::Started(record) => record.at_us,
        FlightRecord::Second(record) => record.at_us,
        FlightRecord::PhaseStarted(record) => record.at_us,
        FlightRecord::PhaseEnded(record) => record.at_us,
        FlightRecord::ThresholdCrossed(record) => record.at_us,
        FlightRecord::TracedCalls(record) => record.at_us,
        FlightRecord::Note(record) => record.at_us,
        FlightRecord::Ended(record) => record.at_us,
        FlightRecord::Sessions(record) => record.at_us,
        FlightRecord::WaitCircle(record) => record.sessions.at_us,
        FlightRecord::Counters(record) => record.at_us,
        FlightRecord::Pressure(record) => record.at_us,
        FlightRecord::NamedRelation(_)
        | FlightRecord::NamedFile(_)
        | FlightRecord::StatementText(_) => 0,
    }
}
