//! A recording in the order of time: seconds, phases and events, in steps that a picture has room for.

use std::collections::{BTreeMap, HashMap};

use howdah_probe::{
    checkpoints::Phase,
    recorder::{
        Ended, Exact, Extension, Lost, Note, Record, Recording, RelationWaits, Second, Started,
        Sweep, ThresholdCrossed,
    },
    waits::Group,
};

/// From one moment to another, in microseconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Its begin.
    pub from_us: i64,
    /// Its end.
    pub to_us: i64,
}

/// Everything that was recorded in a span.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    pub(crate) seconds: Vec<Second>,
    pub(crate) phases: Vec<PhaseSpan>,
    pub(crate) fired: Vec<ThresholdCrossed>,
    pub(crate) exact: Vec<Exact>,
    pub(crate) notes: Vec<Note>,
    pub(crate) started: Vec<Started>,
    pub(crate) ended: Option<Ended>,
    pub(crate) lost: Lost,
    pub(crate) max_bytes: u64,
    pub(crate) unread: u64,
    names: HashMap<(u32, u32), String>,
    episodes: Vec<Span>,
}

/// A phase of a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PhaseSpan {
    pub(crate) phase: Phase,
    pub(crate) depth: u32,
    pub(crate) span: Span,
    /// Its end was not seen: recording or server ended before.
    pub(crate) is_open: bool,
    pub(crate) buffers: Option<u64>,
    pub(crate) files: Option<u64>,
}

/// Some seconds together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Step {
    pub(crate) at_us: i64,
    pub(crate) elapsed_us: u64,
    pub(crate) extension: Option<Extension>,
    pub(crate) sweep: Option<Sweep>,
    /// Seconds that sessions were at an event, on average over looks: by group, class and event.
    pub(crate) waits: BTreeMap<(Group, String, String), f64>,
}

/// So long nothing was recorded: what was before is an episode's, and long ago.
const GAP_US: i64 = 120_000_000;

impl Span {
    /// How much of another lies within it, in microseconds.
    pub(crate) fn overlap_us(self, other: Self) -> i64 {
        self.to_us.min(other.to_us).saturating_sub(self.from_us.max(other.from_us)).max(0)
    }

    fn holds(self, at_us: i64) -> bool {
        (self.from_us..=self.to_us).contains(&at_us)
    }
}

impl Timeline {
    /// What is in a recording. Of a ring that is full, episodes are older than all else: they are in it only
    /// if they hang together with it, and [by themselves](Self::of_episode).
    #[must_use]
    pub fn of(recording: &Recording) -> Self {
        let mut from_us = i64::MIN;
        for (_, last) in &recording.episodes {
            let (before, after) = recording.records.split_at(*last + 1);
            let before = before.iter().rev().find_map(second_us);
            if let (Some(before), Some(after)) = (before, after.iter().find_map(second_us))
                && after.saturating_sub(before) > GAP_US
            {
                from_us = after;
            }
        }
        Self::within(recording, Span { from_us, to_us: i64::MAX })
    }

    /// The episodes that a recording keeps, oldest first.
    #[must_use]
    pub fn episodes(&self) -> &[Span] {
        &self.episodes
    }

    /// One of [`Self::episodes`], from 0 on.
    #[must_use]
    pub fn of_episode(recording: &Recording, number: usize) -> Option<Self> {
        let span = *episodes(recording).get(number)?;
        Some(Self::within(recording, span))
    }

    /// What was recorded in a span.
    fn within(recording: &Recording, span: Span) -> Self {
        let (max_bytes, unread) = (recording.max_bytes, recording.unread);
        let episodes = episodes(recording);
        let mut timeline = Self { max_bytes, unread, episodes, ..Self::default() };
        let mut open = BTreeMap::new();
        for record in &recording.records {
            timeline.add(record, span, &mut open);
        }
        timeline.seconds.sort_by_key(|second| second.at_us);
        let end_us = timeline.span().to_us;
        timeline.phases.extend(open.into_values().map(|phase: PhaseSpan| PhaseSpan {
            span: Span { to_us: end_us.max(phase.span.from_us), ..phase.span },
            ..phase
        }));
        timeline.phases.sort_by_key(|phase| (phase.span.from_us, phase.depth));
        timeline
    }

    fn add(&mut self, record: &Record, span: Span, open: &mut BTreeMap<u32, PhaseSpan>) {
        // Names and beginnings hold for all that follows.
        match record {
            Record::Named(named) => {
                self.names.insert((named.database, named.relation), named.name.clone());
            }
            // It is repeated, so that a ring does not forget it.
            Record::Started(started) if self.started.contains(started) => {}
            Record::Started(started) => {
                open.clear();
                self.started.push(started.clone());
            }
            _ if !is_sound(record) => self.unread += 1,
            _ if !span.holds(moment(record)) => {}
            Record::Second(second) => {
                self.lost.add(&second.lost);
                self.seconds.push(second.clone());
            }
            Record::PhaseBegan(began) => {
                let span = Span { from_us: began.at_us, to_us: began.at_us };
                let (phase, depth) = (began.phase, began.depth);
                let began =
                    PhaseSpan { phase, depth, span, is_open: true, buffers: None, files: None };
                open.retain(|other, _| *other < depth);
                open.insert(depth, began);
            }
            Record::PhaseEnded(ended) => {
                open.retain(|_, other| other.phase != ended.phase && other.depth <= ended.depth);
                let to_us = ended.at_us.saturating_add_unsigned(ended.duration_us);
                self.phases.push(PhaseSpan {
                    phase: ended.phase,
                    depth: ended.depth,
                    span: Span { from_us: ended.at_us, to_us },
                    is_open: false,
                    buffers: ended.buffers,
                    files: ended.files,
                });
            }
            Record::Fired(fired) => self.fired.push(*fired),
            Record::Exact(exact) => self.exact.push(exact.clone()),
            Record::Note(note) => self.notes.push(note.clone()),
            Record::Ended(ended) => self.ended = Some(ended.clone()),
            _ => {}
        }
    }

    /// From the first second to the end of the last.
    #[must_use]
    pub fn span(&self) -> Span {
        let end = |second: &Second| second.at_us.saturating_add_unsigned(second.elapsed_us);
        Span {
            from_us: self.seconds.first().map_or(0, |second| second.at_us),
            to_us: self.seconds.iter().map(end).max().unwrap_or(0),
        }
    }

    /// A relation's name, or its numbers.
    pub(crate) fn name(&self, of: &RelationWaits) -> String {
        let known = self.names.get(&(of.database, of.relation));
        known.cloned().unwrap_or_else(|| format!("{}/{}", of.database, of.relation))
    }

    /// What an exact call was about, with names for numbers.
    pub(crate) fn subject(&self, subject: &str) -> String {
        let (front, last) = subject.rsplit_once(' ').unwrap_or(("", subject));
        let of = last.split_once('/').and_then(|(database, relation)| {
            self.names.get(&(database.parse().ok()?, relation.parse().ok()?))
        });
        of.map_or_else(
            || subject.to_owned(),
            |name| format!("{front} {name}").trim_start().to_owned(),
        )
    }

    /// Seconds put together, so that there are at most `most` steps; and how long each is.
    pub(crate) fn steps(&self, most: i64) -> (Vec<Step>, i64) {
        let Span { from_us, to_us } = self.span();
        let seconds = to_us.saturating_sub(from_us) / 1_000_000 + 1;
        let step_us = (seconds / most.max(1) + 1) * 1_000_000;
        let mut steps: BTreeMap<i64, Step> = BTreeMap::new();
        for second in &self.seconds {
            let place = second.at_us.saturating_sub(from_us).div_euclid(step_us);
            let empty = || Step { at_us: from_us + place * step_us, ..Step::default() };
            steps.entry(place).or_insert_with(empty).add(second);
        }
        (steps.into_values().collect(), step_us)
    }
}

impl Step {
    pub(crate) fn add(&mut self, second: &Second) {
        self.elapsed_us = self.elapsed_us.saturating_add(second.elapsed_us);
        if let Some(extension) = &second.extension {
            add_extension(self.extension.get_or_insert_default(), extension);
        }
        if let Some(sweep) = &second.sweep {
            add_sweep(self.sweep.get_or_insert_default(), sweep);
        }
        let look = second.elapsed_us as f64 / 1e6 / f64::from(second.waits.rounds.max(1));
        for row in &second.waits.rows {
            let key = (row.group, row.class.clone(), row.event.clone());
            *self.waits.entry(key).or_default() += row.samples as f64 * look;
        }
    }

    /// Seconds that sessions were at events of a group, by class.
    pub(crate) fn classes(&self, group: Group) -> BTreeMap<&str, f64> {
        let mut classes = BTreeMap::new();
        for ((of, class, _), seconds) in &self.waits {
            if *of == group {
                *classes.entry(&**class).or_default() += seconds;
            }
        }
        classes
    }

    /// How long it was.
    pub(crate) fn seconds(&self) -> f64 {
        self.elapsed_us as f64 / 1e6
    }

    /// Buffers looked at for one handed out.
    pub(crate) fn examined_each(&self) -> Option<f64> {
        let sweep = self.sweep.as_ref().filter(|sweep| sweep.allocations > 0)?;
        Some(sweep.examined as f64 / sweep.allocations as f64)
    }
}

fn add_extension(sum: &mut Extension, more: &Extension) {
    sum.waits.merge(&more.waits);
    sum.holds.merge(&more.holds);
    sum.at_once = sum.at_once.saturating_add(more.at_once);
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

fn add_sweep(sum: &mut Sweep, more: &Sweep) {
    let slices = match (sum.slices_milli, more.slices_milli) {
        (Some((min, max)), Some((least, most))) => Some((min.min(least), max.max(most))),
        (one, other) => one.or(other),
    };
    *sum = Sweep {
        examined: sum.examined.saturating_add(more.examined),
        allocations: sum.allocations.saturating_add(more.allocations),
        slices_milli: slices,
        ..*more
    };
}

fn episodes(recording: &Recording) -> Vec<Span> {
    let moments = |(first, last): &(usize, usize)| {
        let moments = recording.records[*first..=*last].iter().filter_map(second_us);
        let (from_us, to_us) = (moments.clone().min()?, moments.max()?);
        Some(Span { from_us, to_us })
    };
    recording.episodes.iter().filter_map(moments).collect()
}

/// Whether its numbers can be true. A file is from anywhere; sums over what is sound do not overflow.
fn is_sound(record: &Record) -> bool {
    /// The year 3000.
    const LATEST_US: i64 = 32_503_680_000_000_000;
    const DAY_US: u64 = 86_400_000_000;
    let is_of_our_time = (0..LATEST_US).contains(&moment(record));
    is_of_our_time
        && match record {
            Record::Second(second) => second.elapsed_us <= DAY_US && second.cpu_us <= 1000 * DAY_US,
            Record::PhaseEnded(ended) => ended.duration_us <= 365 * DAY_US,
            _ => true,
        }
}

fn second_us(record: &Record) -> Option<i64> {
    match record {
        Record::Second(second) => Some(second.at_us),
        _ => None,
    }
}

fn moment(record: &Record) -> i64 {
    match record {
        Record::Started(record) => record.at_us,
        Record::Second(record) => record.at_us,
        Record::PhaseBegan(record) => record.at_us,
        Record::PhaseEnded(record) => record.at_us,
        Record::Fired(record) => record.at_us,
        Record::Exact(record) => record.at_us,
        Record::Note(record) => record.at_us,
        Record::Ended(record) => record.at_us,
        _ => 0,
    }
}
