//! Triggers: three conditions on the recorded data, each of which can start an episode.

use std::{fmt, str::FromStr, time::Duration};

use super::record::{RecordedSecond, TriggerKind};

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
}

/// Minimum number of waits in a second for which the 99th percentile is meaningful.
pub const WAITS_MIN: u64 = 10;
/// Minimum number of allocations in a second for which the sweep trigger is evaluated; fewer may
/// all come from one backend.
pub const ALLOCATIONS_MIN: u64 = 100;

impl Default for Thresholds {
    /// Returns values that users would notice: a wait of 100 ms for the lock, 50 buffers per
    /// allocation, and 10 s of syncs.
    fn default() -> Self {
        Self {
            extend_p99: Some(Duration::from_millis(100)),
            sweep: Some(50.0),
            checkpoint_sync: Some(Duration::from_secs(10)),
        }
    }
}

impl Thresholds {
    /// Thresholds that turn all triggers off.
    pub const NONE: Self = Self { extend_p99: None, sweep: None, checkpoint_sync: None };

    /// Sets the threshold of one trigger, or turns the trigger off.
    pub fn set(&mut self, setting: TriggerSetting) {
        let duration = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok();
        match setting.kind {
            TriggerKind::ExtendP99 => self.extend_p99 = setting.value.and_then(duration),
            TriggerKind::Sweep => self.sweep = setting.value,
            TriggerKind::CheckpointSync => self.checkpoint_sync = setting.value.and_then(duration),
        }
    }

    /// Returns the thresholds that are set, as settings.
    pub fn settings(&self) -> impl Iterator<Item = TriggerSetting> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        [
            (TriggerKind::ExtendP99, self.extend_p99.map(ms)),
            (TriggerKind::Sweep, self.sweep),
            (TriggerKind::CheckpointSync, self.checkpoint_sync.map(ms)),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(kind, value)| TriggerSetting { kind, value })
    }

    /// Evaluates the triggers after a second; returns the first one that fires, if any.
    pub(super) fn evaluate(
        &self,
        second: &RecordedSecond,
        syncing: Option<Duration>,
    ) -> Option<TriggerHit> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        let waits = second.extension.as_ref().map(|extension| &extension.waits);
        let p99 =
            waits.filter(|waits| waits.count() >= WAITS_MIN).map(|waits| waits.quantile(0.99));
        let sweep = second.sweep.filter(|sweep| sweep.allocations >= ALLOCATIONS_MIN);
        let each = sweep.map(|sweep| sweep.examined as f64 / sweep.allocations as f64);
        let values = [
            (TriggerKind::ExtendP99, p99.map(ms), self.extend_p99.map(ms)),
            (TriggerKind::CheckpointSync, syncing.map(ms), self.checkpoint_sync.map(ms)),
            (TriggerKind::Sweep, each, self.sweep),
        ];
        values.into_iter().find_map(|(kind, value, threshold)| {
            let (value, threshold) = (value?, threshold?);
            (value >= threshold).then_some(TriggerHit { kind, value, threshold })
        })
    }
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
    #[error(
        "unknown trigger {name:?}: use extend-p99, sweep or checkpoint-sync, then = and a value"
    )]
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
        let (value, factor) = match (kind, value.strip_suffix("ms"), value.strip_suffix('s')) {
            (TriggerKind::Sweep, ..) => (number(value), 1.0),
            (_, Some(ms), _) => (number(ms), 1.0),
            (_, None, Some(seconds)) => (number(seconds), 1e3),
            (_, None, None) => (None, 1.0),
        };
        let invalid = || SettingError::Value {
            kind,
            value: text.split_once('=').map_or("", |(_, value)| value).to_owned(),
            example: if kind == TriggerKind::Sweep { "a number such as 50" } else { "100ms, 2s" },
        };
        Ok(Self { kind, value: Some(value.ok_or_else(invalid)? * factor) })
    }
}

impl TriggerKind {
    /// Returns the name of the trigger in settings.
    pub fn name(self) -> &'static str {
        match self {
            Self::ExtendP99 => "extend-p99",
            Self::Sweep => "sweep",
            Self::CheckpointSync => "checkpoint-sync",
        }
    }

    /// Formats a value with its unit.
    pub fn format_value(self, value: f64) -> String {
        match self {
            Self::Sweep => format!("{value:.1} buffers"),
            _ if value < 10.0 => format!("{value:.2} ms"),
            _ if value < 10_000.0 => format!("{value:.0} ms"),
            _ => format!("{:.1} s", value / 1e3),
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
        match (self.value, self.kind) {
            (None, kind) => write!(f, "{kind}=off"),
            (Some(value), TriggerKind::Sweep) => write!(f, "sweep={value}"),
            (Some(value), kind) => write!(f, "{kind}={value}ms"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::record::{ExtensionTotals, SweepTotals};

    fn parsed(text: &str) -> Result<TriggerSetting, String> {
        text.parse::<TriggerSetting>().map_err(|error| error.to_string())
    }

    #[test]
    fn trigger_settings_round_trip_as_text() {
        for text in ["extend-p99=100ms", "sweep=2.5", "checkpoint-sync=1500ms", "sweep=off"] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
        assert_eq!(parsed("checkpoint-sync=2s").unwrap().value, Some(2000.0));
        for (text, expected) in [
            ("sweep", "a number such as 50"),
            ("sweep=-1", "a number such as 50"),
            ("extend-p99=100", "100ms, 2s"),
            ("extend-p99=NaNms", "100ms, 2s"),
            ("p99=1ms", "unknown trigger \"p99\""),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let mut thresholds = Thresholds::default();
        thresholds.set(parsed("sweep=off").unwrap());
        thresholds.set(parsed("extend-p99=5ms").unwrap());
        let set: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
        assert_eq!(set, ["extend-p99=5ms", "checkpoint-sync=10000ms"]);
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
            thresholds.evaluate(second, syncing).map(|crossing| crossing.kind)
        };
        assert_eq!(kind(&second(WAITS_MIN - 1, ALLOCATIONS_MIN - 1), None), None);
        assert_eq!(kind(&second(WAITS_MIN, 0), None), Some(TriggerKind::ExtendP99));
        assert_eq!(kind(&second(0, ALLOCATIONS_MIN), None), Some(TriggerKind::Sweep));
        let syncing = Some(Duration::from_secs(10));
        assert_eq!(kind(&second(0, 0), syncing), Some(TriggerKind::CheckpointSync));
        assert_eq!(Thresholds::NONE.evaluate(&second(99, 999), syncing), None);
    }
}
