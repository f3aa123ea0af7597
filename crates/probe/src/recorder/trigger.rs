//! When something has to be looked at more closely: three conditions over what is recorded anyway.

use std::{fmt, str::FromStr, time::Duration};

use super::record::{Second, TriggerKind};

/// From which values on triggers fire. `None`: never.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// The 99th percentile of waits for extension locks in a second; it takes [`WAITS_MIN`] waits.
    pub extend_p99: Option<Duration>,
    /// Buffers looked at for one handed out, over a second; it takes [`ALLOCATIONS_MIN`] of them.
    pub sweep: Option<f64>,
    /// How long a checkpoint has been syncing files.
    pub checkpoint_sync: Option<Duration>,
}

/// Fewer waits in a second say nothing of a hundredth of them.
pub const WAITS_MIN: u64 = 10;
/// Fewer allocations in a second may all be one's.
pub const ALLOCATIONS_MIN: u64 = 100;

impl Default for Thresholds {
    /// What a person would notice: a tenth of a second to get the lock, fifty buffers for one, ten seconds of
    /// syncs.
    fn default() -> Self {
        Self {
            extend_p99: Some(Duration::from_millis(100)),
            sweep: Some(50.0),
            checkpoint_sync: Some(Duration::from_secs(10)),
        }
    }
}

impl Thresholds {
    /// No trigger at all.
    pub const NONE: Self = Self { extend_p99: None, sweep: None, checkpoint_sync: None };

    /// Puts one of them in place.
    pub fn set(&mut self, setting: Setting) {
        let duration = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).ok();
        match setting.kind {
            TriggerKind::ExtendP99 => self.extend_p99 = setting.value.and_then(duration),
            TriggerKind::Sweep => self.sweep = setting.value,
            TriggerKind::CheckpointSync => self.checkpoint_sync = setting.value.and_then(duration),
        }
    }

    /// Those that are set, as they can be set.
    pub fn settings(&self) -> impl Iterator<Item = Setting> {
        let ms = |duration: Duration| duration.as_secs_f64() * 1e3;
        [
            (TriggerKind::ExtendP99, self.extend_p99.map(ms)),
            (TriggerKind::Sweep, self.sweep),
            (TriggerKind::CheckpointSync, self.checkpoint_sync.map(ms)),
        ]
        .into_iter()
        .filter(|(_, value)| value.is_some())
        .map(|(kind, value)| Setting { kind, value })
    }

    /// What fires after a second: which trigger, by which value, beyond which one.
    pub(super) fn judge(&self, second: &Second, syncing: Option<Duration>) -> Option<Crossing> {
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
            (value >= threshold).then_some(Crossing { kind, value, threshold })
        })
    }
}

/// A value that is a trigger's or above.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crossing {
    pub(super) kind: TriggerKind,
    pub(super) value: f64,
    pub(super) threshold: f64,
}

/// One trigger and its value: `extend-p99=100ms`, `sweep=50`, `checkpoint-sync=off`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Which.
    pub kind: TriggerKind,
    /// From which value on it fires, in its unit. `None`: never.
    pub value: Option<f64>,
}

/// Words that set no trigger.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// There is no such trigger.
    #[error(
        "there is no trigger {name:?}: write extend-p99, sweep or checkpoint-sync, then = and a value"
    )]
    Name {
        /// What was written.
        name: String,
    },
    /// There is no such value.
    #[error("{value:?} is no value of {kind}: write {example}, or off")]
    Value {
        /// Of which.
        kind: TriggerKind,
        /// What was written.
        value: String,
        /// What would be one.
        example: &'static str,
    },
}

impl FromStr for Setting {
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
        let wrong = || SettingError::Value {
            kind,
            value: text.split_once('=').map_or("", |(_, value)| value).to_owned(),
            example: if kind == TriggerKind::Sweep { "a number such as 50" } else { "100ms, 2s" },
        };
        Ok(Self { kind, value: Some(value.ok_or_else(wrong)? * factor) })
    }
}

impl TriggerKind {
    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::ExtendP99 => "extend-p99",
            Self::Sweep => "sweep",
            Self::CheckpointSync => "checkpoint-sync",
        }
    }

    /// A value of it with its unit.
    #[must_use]
    pub fn shown(self, value: f64) -> String {
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

/// As it can be written.
impl fmt::Display for Setting {
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
    use crate::recorder::record::{Extension, Sweep};

    fn parsed(text: &str) -> Result<Setting, String> {
        text.parse::<Setting>().map_err(|error| error.to_string())
    }

    #[test]
    fn settings_are_read_as_they_are_written() {
        for text in ["extend-p99=100ms", "sweep=2.5", "checkpoint-sync=1500ms", "sweep=off"] {
            assert_eq!(parsed(text).unwrap().to_string(), text);
        }
        assert_eq!(parsed("checkpoint-sync=2s").unwrap().value, Some(2000.0));
        for (text, said) in [
            ("sweep", "a number such as 50"),
            ("sweep=-1", "a number such as 50"),
            ("extend-p99=100", "100ms, 2s"),
            ("extend-p99=NaNms", "100ms, 2s"),
            ("p99=1ms", "no trigger \"p99\""),
        ] {
            let error = parsed(text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let mut thresholds = Thresholds::default();
        thresholds.set(parsed("sweep=off").unwrap());
        thresholds.set(parsed("extend-p99=5ms").unwrap());
        let set: Vec<_> = thresholds.settings().map(|setting| setting.to_string()).collect();
        assert_eq!(set, ["extend-p99=5ms", "checkpoint-sync=10000ms"]);
    }

    #[test]
    fn what_is_too_little_fires_nothing() {
        let thresholds = Thresholds::default();
        let second = |waits: u64, allocations: u64| {
            let mut extension = Extension::default();
            (0..waits).for_each(|_| extension.waits.add(Duration::from_millis(200)));
            let sweep = Sweep { examined: 60 * allocations, allocations, ..Sweep::default() };
            Second { extension: Some(extension), sweep: Some(sweep), ..Second::default() }
        };
        let kind = |second: &Second, syncing| {
            thresholds.judge(second, syncing).map(|crossing| crossing.kind)
        };
        assert_eq!(kind(&second(WAITS_MIN - 1, ALLOCATIONS_MIN - 1), None), None);
        assert_eq!(kind(&second(WAITS_MIN, 0), None), Some(TriggerKind::ExtendP99));
        assert_eq!(kind(&second(0, ALLOCATIONS_MIN), None), Some(TriggerKind::Sweep));
        let syncing = Some(Duration::from_secs(10));
        assert_eq!(kind(&second(0, 0), syncing), Some(TriggerKind::CheckpointSync));
        assert_eq!(Thresholds::NONE.judge(&second(99, 999), syncing), None);
    }
}
