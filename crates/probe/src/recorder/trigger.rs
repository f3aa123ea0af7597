//! Triggers: conditions on the recorded data, each of which can start an episode.
//!
//! A trigger on a number of sessions, on lag or on pressure fires when its threshold is reached,
//! and then only after the value was below it: a state that lasts is one event. The others fire in
//! each second in which their threshold is reached.

use std::{fmt, str::FromStr, thread, time::Duration};

use super::record::{RecordedSecond, TriggerKind};
use crate::waits::TimeCategory;

/// Thresholds at which triggers fire; a trigger whose threshold is `None` never fires.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// The 99th percentile of waits for extension locks in a second that has at least [`WAITS_MIN`]
    /// waits.
    pub extend_p99: Option<Duration>,
    /// Buffers examined per allocation, over a second that has at least [`ALLOCATIONS_MIN`]
    /// allocations.
    pub sweep: Option<f64>,
    /// Time that a checkpoint has spent syncing files.
    pub checkpoint_sync: Option<Duration>,
    /// Average number of sessions that wait for heavyweight locks.
    pub locks: Option<f64>,
    /// Average number of sessions that wait for the WAL to be written or synced.
    pub wal_sync: Option<f64>,
    /// Average number of sessions that execute statements.
    pub active: Option<f64>,
    /// Time without a commit although sessions wait.
    pub commits_stopped: Option<Duration>,
    /// Replay lag of the slowest standby.
    pub standby_lag: Option<Duration>,
    /// Pressure on the host's resources, in percent.
    pub pressure: Option<f64>,
}

/// Minimum number of waits in a second for which the 99th percentile is meaningful.
pub const WAITS_MIN: u64 = 10;
/// Minimum number of allocations in a second for which the sweep trigger is evaluated; fewer may
/// all come from one backend.
pub const ALLOCATIONS_MIN: u64 = 100;

impl Default for Thresholds {
    /// Returns values that users would notice: a wait of 100 ms for the lock, 50 buffers per
    /// allocation, 10 s of syncs, 20 sessions that wait for locks, 5 s without a commit, and a
    /// standby that lags a minute. Many sessions that execute statements or wait for the WAL, and
    /// pressure, are normal on some busy servers, so these are off.
    fn default() -> Self {
        Self {
            extend_p99: Some(Duration::from_millis(100)),
            sweep: Some(50.0),
            checkpoint_sync: Some(Duration::from_secs(10)),
            locks: Some(20.0),
            commits_stopped: Some(Duration::from_secs(5)),
            standby_lag: Some(Duration::from_secs(60)),
            ..Self::NONE
        }
    }
}

/// The values that triggers compare with their thresholds, after a second.
#[derive(Clone, Copy, Debug)]
pub(super) struct TriggerInputs<'a> {
    pub(super) second: &'a RecordedSecond,
    /// Time that a checkpoint has spent syncing files.
    pub(super) syncing: Option<Duration>,
    /// Time without a commit although sessions wait.
    pub(super) commits_stopped: Option<Duration>,
    pub(super) standby_lag: Option<Duration>,
    /// Percent.
    pub(super) pressure: Option<f64>,
}

impl Thresholds {
    /// Thresholds that turn all triggers off.
    pub const NONE: Self = Self {
        extend_p99: None,
        sweep: None,
        checkpoint_sync: None,
        locks: None,
        wal_sync: None,
        active: None,
        commits_stopped: None,
        standby_lag: None,
        pressure: None,
    };

    /// Sets the threshold of one trigger, or turns the trigger off.
    pub fn set(&mut self, setting: TriggerSetting) {
        let value = setting.value;
        let duration = value.and_then(|ms| Duration::try_from_secs_f64(ms / 1e3).ok());
        match setting.kind {
            TriggerKind::ExtendP99 => self.extend_p99 = duration,
            TriggerKind::Sweep => self.sweep = value,
            TriggerKind::CheckpointSync => self.checkpoint_sync = duration,
            TriggerKind::Locks => self.locks = value,
            TriggerKind::WalSync => self.wal_sync = value,
            TriggerKind::Active => self.active = value,
            TriggerKind::CommitsStopped => self.commits_stopped = duration,
            TriggerKind::StandbyLag => self.standby_lag = duration,
            TriggerKind::Pressure => self.pressure = value,
        }
    }

    /// Returns the threshold of a trigger, in the unit of its kind.
    fn threshold(&self, kind: TriggerKind) -> Option<f64> {
        let ms = |duration: Option<Duration>| Some(duration?.as_secs_f64() * 1e3);
        match kind {
            TriggerKind::ExtendP99 => ms(self.extend_p99),
            TriggerKind::Sweep => self.sweep,
            TriggerKind::CheckpointSync => ms(self.checkpoint_sync),
            TriggerKind::Locks => self.locks,
            TriggerKind::WalSync => self.wal_sync,
            TriggerKind::Active => self.active,
            TriggerKind::CommitsStopped => ms(self.commits_stopped),
            TriggerKind::StandbyLag => ms(self.standby_lag),
            TriggerKind::Pressure => self.pressure,
        }
    }

    /// Returns the thresholds that are set, as settings.
    pub fn settings(&self) -> impl Iterator<Item = TriggerSetting> {
        TriggerKind::ALL
            .into_iter()
            .map(|kind| TriggerSetting { kind, value: self.threshold(kind) })
            .filter(|setting| setting.value.is_some())
    }

    /// Evaluates the triggers after a second; returns the first one that fires, if any. `above` has
    /// the triggers whose values have not been below their thresholds since they fired.
    pub(super) fn evaluate(
        &self,
        inputs: &TriggerInputs<'_>,
        above: &mut Vec<TriggerKind>,
    ) -> Option<TriggerHit> {
        let reached = |kind: TriggerKind| {
            let (value, threshold) = (inputs.value(kind)?, self.threshold(kind)?);
            (value >= threshold).then_some(TriggerHit { kind, value, threshold })
        };
        above.retain(|kind| reached(*kind).is_some());
        EVALUATION_ORDER.into_iter().filter(|kind| !above.contains(kind)).find_map(reached)
    }
}

/// The triggers, the most specific first: one that describes the cause is reported rather than one
/// that describes its effect.
const EVALUATION_ORDER: [TriggerKind; 9] = [
    TriggerKind::ExtendP99,
    TriggerKind::CheckpointSync,
    TriggerKind::Sweep,
    TriggerKind::CommitsStopped,
    TriggerKind::Locks,
    TriggerKind::WalSync,
    TriggerKind::StandbyLag,
    TriggerKind::Active,
    TriggerKind::Pressure,
];

impl TriggerInputs<'_> {
    /// Returns the value of a trigger, in the unit of its kind; `None` if it is unknown or there is
    /// too little data.
    fn value(&self, kind: TriggerKind) -> Option<f64> {
        let ms = |duration: Option<Duration>| Some(duration?.as_secs_f64() * 1e3);
        match kind {
            TriggerKind::ExtendP99 => {
                let waits = &self.second.extension.as_ref()?.waits;
                ms((waits.count() >= WAITS_MIN).then(|| waits.quantile(0.99)))
            }
            TriggerKind::Sweep => {
                let sweep =
                    self.second.sweep.filter(|sweep| sweep.allocations >= ALLOCATIONS_MIN)?;
                Some(sweep.examined as f64 / sweep.allocations as f64)
            }
            TriggerKind::CheckpointSync => ms(self.syncing),
            TriggerKind::Locks => Some(sessions(self.second, |class, _| class == "Lock")),
            TriggerKind::WalSync => Some(sessions(self.second, |_, event| is_wal_wait(event))),
            TriggerKind::Active => Some(sessions(self.second, |_, _| true)),
            TriggerKind::CommitsStopped => ms(self.commits_stopped),
            TriggerKind::StandbyLag => ms(self.standby_lag),
            TriggerKind::Pressure => self.pressure,
        }
    }
}

/// Whether an event is a wait for the WAL to be written or synced. PostgreSQL 17 changed the
/// spelling of its events.
pub(crate) fn is_wal_wait(event: &str) -> bool {
    ["IO:WALSync", "IO:WALWrite", "LWLock:WALWrite"]
        .into_iter()
        .any(|name| name.eq_ignore_ascii_case(event))
}

/// Whether sessions that wait for an event wait for files, for the WAL, or to extend a relation.
pub fn is_storage_wait(event: &str) -> bool {
    event.starts_with("IO:") || event == "Lock:extend" || is_wal_wait(event)
}

/// Returns the average number of working sessions in a second whose class and event are selected.
pub(crate) fn sessions(second: &RecordedSecond, select: impl Fn(&str, &str) -> bool) -> f64 {
    let rows = second.waits.rows.iter().filter(|row| row.group == TimeCategory::Database);
    let samples: f64 =
        rows.filter(|row| select(&row.class, &row.event)).map(|row| row.samples as f64).sum();
    samples / f64::from(second.waits.rounds.max(1))
}

/// A value at or above a threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TriggerHit {
    pub(super) kind: TriggerKind,
    pub(super) value: f64,
    pub(super) threshold: f64,
}

/// The threshold of one trigger: `extend-p99=100ms`, `sweep=50`, `checkpoint-sync=off`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TriggerSetting {
    /// The trigger to configure.
    pub kind: TriggerKind,
    /// The threshold, in the unit of its kind; `None` turns the trigger off.
    pub value: Option<f64>,
}

/// The reason why a text is not a trigger setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// The trigger is not known.
    #[error("unknown trigger {name:?}: use {}, then = and a value", TriggerKind::names())]
    Name {
        /// The unknown name.
        name: String,
    },
    /// The value is not valid.
    #[error("invalid value {value:?} for {kind}: use {example}, or off")]
    Value {
        /// The trigger that the value was given for.
        kind: TriggerKind,
        /// The invalid value.
        value: String,
        /// An example of a valid value.
        example: &'static str,
    },
}

impl FromStr for TriggerSetting {
    type Err = SettingError;

    fn from_str(text: &str) -> Result<Self, SettingError> {
        let (name, value) = text.split_once('=').unwrap_or((text, ""));
        let kind = TriggerKind::ALL.into_iter().find(|kind| kind.name() == name);
        let kind = kind.ok_or_else(|| SettingError::Name { name: name.to_owned() })?;
        if value == "off" {
            return Ok(Self { kind, value: None });
        }
        let number = |text: &str| {
            text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0)
        };
        let unit = kind.unit();
        let (number_text, factor) = match unit {
            TriggerUnit::Time => match (value.strip_suffix("ms"), value.strip_suffix('s')) {
                (Some(ms), _) => (Some(ms), 1.0),
                (None, seconds) => (seconds, 1e3),
            },
            TriggerUnit::Percent => (value.strip_suffix('%').or(Some(value)), 1.0),
            TriggerUnit::Sessions => match value.strip_suffix('x') {
                Some(multiple) => (Some(multiple), processors()),
                None => (Some(value), 1.0),
            },
            TriggerUnit::Buffers => (Some(value), 1.0),
        };
        let value = number_text.and_then(number);
        let invalid = || SettingError::Value {
            kind,
            value: text.split_once('=').map_or("", |(_, value)| value).to_owned(),
            example: unit.example(),
        };
        Ok(Self { kind, value: Some(value.ok_or_else(invalid)? * factor) })
    }
}

/// The unit of a trigger's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TriggerUnit {
    /// Milliseconds.
    Time,
    /// Buffers per allocation.
    Buffers,
    /// Average number of sessions.
    Sessions,
    /// Share of time, 0 to 100.
    Percent,
}

impl TriggerUnit {
    fn example(self) -> &'static str {
        match self {
            Self::Time => "100ms, 2s",
            Self::Buffers => "a number such as 50",
            Self::Sessions => "a number such as 20, or a multiple of the CPUs such as 4x",
            Self::Percent => "a percentage such as 60%",
        }
    }
}

/// Returns the number of processors.
fn processors() -> f64 {
    thread::available_parallelism().map_or(1.0, |count| count.get() as f64)
}

impl TriggerKind {
    /// Returns the name of the trigger in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExtendP99 => "extend-p99",
            Self::Sweep => "sweep",
            Self::CheckpointSync => "checkpoint-sync",
            Self::Locks => "locks",
            Self::WalSync => "wal-sync",
            Self::Active => "active",
            Self::CommitsStopped => "commits-stopped",
            Self::StandbyLag => "standby-lag",
            Self::Pressure => "pressure",
        }
    }

    /// Returns all names, as a list in a sentence.
    fn names() -> String {
        let names = Self::ALL.map(Self::name);
        let (last, others) = names.split_last().expect("there are triggers");
        format!("{} or {last}", others.join(", "))
    }

    fn unit(self) -> TriggerUnit {
        match self {
            Self::ExtendP99 | Self::CheckpointSync | Self::CommitsStopped | Self::StandbyLag => {
                TriggerUnit::Time
            }
            Self::Sweep => TriggerUnit::Buffers,
            Self::Locks | Self::WalSync | Self::Active => TriggerUnit::Sessions,
            Self::Pressure => TriggerUnit::Percent,
        }
    }

    /// Whether the trigger fires only when its threshold is reached, not while it is exceeded.
    pub(super) fn is_edge(self) -> bool {
        self.unit() == TriggerUnit::Sessions || matches!(self, Self::StandbyLag | Self::Pressure)
    }

    /// Whether the trigger needs a session on the server.
    pub fn needs_session(self) -> bool {
        matches!(self, Self::CommitsStopped | Self::StandbyLag)
    }

    /// Formats a value with its unit.
    pub fn format_value(self, value: f64) -> String {
        match self.unit() {
            TriggerUnit::Buffers => format!("{value:.1} buffers"),
            TriggerUnit::Sessions => format!("{value:.1} sessions"),
            TriggerUnit::Percent => format!("{value:.0} %"),
            TriggerUnit::Time if value < 10.0 => format!("{value:.2} ms"),
            TriggerUnit::Time if value < 10_000.0 => format!("{value:.0} ms"),
            TriggerUnit::Time => format!("{:.1} s", value / 1e3),
        }
    }
}

impl fmt::Display for TriggerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Formats the setting in the syntax that can be parsed.
impl fmt::Display for TriggerSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, value } = self;
        match (value, kind.unit()) {
            (None, _) => write!(f, "{kind}=off"),
            (Some(value), TriggerUnit::Buffers | TriggerUnit::Sessions) => {
                write!(f, "{kind}={value}")
            }
            (Some(value), TriggerUnit::Percent) => write!(f, "{kind}={value}%"),
            (Some(value), TriggerUnit::Time) => write!(f, "{kind}={value}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::record::{ExtensionTotals, SweepTotals, WaitRow, WaitSamples};

    fn parsed(text: &str) -> Result<TriggerSetting, String> {
        text.parse::<TriggerSetting>().map_err(|error| error.to_string())
    }

    #[test]
    fn trigger_settings_round_trip_as_text() {
        for text in [
            "extend-p99=100ms",
            "sweep=2.5",
            "checkpoint-sync=1500ms",
            "sweep=off",
            "locks=20",
            "wal-sync=8",
            "active=16.5",
            "commits-stopped=5000ms",
            "standby-lag=60000ms",
            "pressure=60%",
        ] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
        assert_eq!(parsed("checkpoint-sync=2s").unwrap().value, Some(2000.0));
        assert_eq!(parsed("active=4x").unwrap().value, Some(4.0 * processors()));
        for (text, expected) in [
            ("sweep", "a number such as 50"),
            ("sweep=-1", "a number such as 50"),
            ("sweep=4x", "a number such as 50"),
            ("locks=many", "a multiple of the CPUs such as 4x"),
            ("pressure=high", "a percentage such as 60%"),
            ("extend-p99=100", "100ms, 2s"),
            ("standby-lag=5", "100ms, 2s"),
            ("extend-p99=NaNms", "100ms, 2s"),
            ("p99=1ms", "unknown trigger \"p99\": use extend-p99, sweep, checkpoint-sync, locks, "),
            ("p99=1ms", ", standby-lag or pressure, then = and a value"),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let mut thresholds = Thresholds::default();
        for text in ["sweep=off", "extend-p99=5ms", "locks=off", "standby-lag=off", "pressure=80%"]
        {
            thresholds.set(parsed(text).unwrap());
        }
        let set: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
        let expected =
            ["extend-p99=5ms", "checkpoint-sync=10000ms", "commits-stopped=5000ms", "pressure=80%"];
        assert_eq!(set, expected);
    }

    fn inputs(second: &RecordedSecond) -> TriggerInputs<'_> {
        let (syncing, commits_stopped, standby_lag, pressure) = (None, None, None, None);
        TriggerInputs { second, syncing, commits_stopped, standby_lag, pressure }
    }

    #[test]
    fn too_few_samples_trigger_nothing() {
        let thresholds = Thresholds::default();
        let second = |waits: u64, allocations: u64| {
            let mut extension = ExtensionTotals::default();
            (0..waits).for_each(|_| extension.waits.add(Duration::from_millis(200)));
            let sweep =
                SweepTotals { examined: 60 * allocations, allocations, ..SweepTotals::default() };
            RecordedSecond {
                extension: Some(extension),
                sweep: Some(sweep),
                ..RecordedSecond::default()
            }
        };
        let kind = |second: &RecordedSecond, syncing| {
            let inputs = TriggerInputs { syncing, ..inputs(second) };
            thresholds.evaluate(&inputs, &mut Vec::new()).map(|crossing| crossing.kind)
        };
        assert_eq!(kind(&second(WAITS_MIN - 1, ALLOCATIONS_MIN - 1), None), None);
        assert_eq!(kind(&second(WAITS_MIN, 0), None), Some(TriggerKind::ExtendP99));
        assert_eq!(kind(&second(0, ALLOCATIONS_MIN), None), Some(TriggerKind::Sweep));
        let syncing = Some(Duration::from_secs(10));
        assert_eq!(kind(&second(0, 0), syncing), Some(TriggerKind::CheckpointSync));
        let second = second(99, 999);
        let inputs = TriggerInputs { syncing, ..inputs(&second) };
        assert_eq!(Thresholds::NONE.evaluate(&inputs, &mut Vec::new()), None);
    }

    /// A second with this average number of sessions in an event.
    fn waiting(event: &str, count: u64) -> RecordedSecond {
        let row = WaitRow {
            group: TimeCategory::Database,
            kind: "client backend".to_owned(),
            class: event.split(':').next().unwrap_or_default().to_owned(),
            event: event.to_owned(),
            samples: 100 * count,
        };
        let waits = WaitSamples { rounds: 100, rows: vec![row] };
        RecordedSecond { waits, ..RecordedSecond::default() }
    }

    #[test]
    fn lasting_state_is_one_event() {
        let thresholds = Thresholds { locks: Some(5.0), ..Thresholds::NONE };
        let mut above = Vec::new();
        let mut fires = |sessions: u64| {
            let hit = thresholds.evaluate(&inputs(&waiting("Lock:relation", sessions)), &mut above);
            above.extend(hit.filter(|hit| hit.kind.is_edge()).map(|hit| hit.kind));
            hit.is_some()
        };
        assert_eq!([4, 5, 9, 9, 3, 6].map(&mut fires), [false, true, false, false, false, true]);
    }

    #[test]
    fn each_new_trigger_fires_at_its_threshold() {
        let calm = waiting("CPU*", 3);
        let hit = |text: &str, inputs: &TriggerInputs<'_>| {
            let mut thresholds = Thresholds::NONE;
            thresholds.set(parsed(text).unwrap());
            thresholds.evaluate(inputs, &mut Vec::new()).map(|hit| hit.kind.name())
        };
        let (stopped, lag) = (Some(Duration::from_secs(6)), Some(Duration::from_secs(70)));
        let late = TriggerInputs {
            commits_stopped: stopped,
            standby_lag: lag,
            pressure: Some(61.0),
            ..inputs(&calm)
        };
        for (text, name) in [
            ("commits-stopped=6s", "commits-stopped"),
            ("standby-lag=70s", "standby-lag"),
            ("pressure=61", "pressure"),
            ("active=3", "active"),
        ] {
            assert_eq!(hit(text, &late), Some(name));
        }
        for text in ["commits-stopped=7s", "standby-lag=71s", "pressure=62%", "active=4", "locks=1"]
        {
            assert_eq!(hit(text, &late), None);
        }
        for event in ["IO:WALSync", "IO:WalSync", "LWLock:WALWrite"] {
            assert_eq!(hit("wal-sync=2", &inputs(&waiting(event, 2))), Some("wal-sync"));
        }
        assert_eq!(hit("locks=2", &inputs(&waiting("Lock:tuple", 2))), Some("locks"));
    }
}
