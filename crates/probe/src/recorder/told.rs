//! What a recorder tells a person: what happens as it happens, a summary at the end, losses in words.

use std::{fmt, time::Duration};

use super::record::{Lost, Note, ThresholdCrossed};

/// Something a person should be told at once. It is in the file, too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A trigger fired.
    Fired(ThresholdCrossed),
    /// Anything else.
    Note(Note),
    /// A relation was seen that has no [name](super::Recorder::name) yet.
    Unnamed {
        /// `pg_database.oid`
        database: u32,
        /// `pg_class.oid`
        relation: u32,
    },
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// From the begin to the end.
    pub elapsed: Duration,
    /// Seconds that were recorded: records of them. The first and the last may be short.
    pub seconds: u64,
    /// How long they were together.
    pub recorded: Duration,
    /// Looks at the server.
    pub looks: u64,
    /// What was missed, of all seconds.
    pub lost: Lost,
    /// How often triggers fired.
    pub fired: u64,
    /// Seconds that would have fired one, had it not been too soon.
    pub held_back: u64,
    /// Processor time of the whole process.
    pub cpu: Duration,
    /// Records that an episode had no room for.
    pub left_out: u64,
    /// Why the file does not have all of it.
    pub trouble: Option<String>,
    /// How large the file may become.
    pub max_bytes: u64,
}

impl Lost {
    /// Adds another's.
    pub fn add(&mut self, other: &Self) {
        let Self { looks, locks, unpaired, skipped, phases, calls, samples, records } = other;
        self.looks = self.looks.saturating_add(*looks);
        self.locks = self.locks.saturating_add(*locks);
        self.unpaired = self.unpaired.saturating_add(*unpaired);
        self.skipped = self.skipped.saturating_add(*skipped);
        self.phases = self.phases.saturating_add(*phases);
        self.calls = self.calls.saturating_add(*calls);
        self.samples = self.samples.saturating_add(*samples);
        self.records = self.records.saturating_add(*records);
    }

    /// What was missed, in words, each with its number. Nothing of nothing.
    #[must_use]
    pub fn in_words(&self) -> Vec<(u64, &'static str)> {
        let all = [
            (self.looks, "looks that came too late and were left out"),
            (self.locks, "extension locks that were lost on the way from the kernel"),
            (self.unpaired, "extension locks whose beginning was not seen"),
            (self.skipped, "hits at which the kernel skipped a program"),
            (self.phases, "events of checkpoints that were lost"),
            (self.calls, "calls of exact probes that were lost"),
            (self.samples, "samples of waits that found no row"),
            (self.records, "records that the file did not take"),
        ];
        all.into_iter().filter(|(number, _)| *number > 0).collect()
    }
}

impl fmt::Display for ThresholdCrossed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |milli: u64| self.kind.shown(milli as f64 / 1000.0);
        let (value, threshold) = (shown(self.value_milli), shown(self.threshold_milli));
        write!(f, "{} fired: {value}, from {threshold} on", self.kind)
    }
}
