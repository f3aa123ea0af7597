//! Settings for reading lines beyond the dialect: forms of tags, types of values, and the
//! fields of DogStatsD.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// `[statsd.tags]`: the forms of tags that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct TagStyles {
    /// `name:1|c|#tag:value,tag2`. If off, the tags of such lines are dropped.
    pub dogstatsd: bool,
    /// `name;tag=value:1|c`. If off, `;` in a name becomes `_`.
    pub graphite: bool,
    /// `name,tag=value:1|c`. Always off in the Perl dialect, in which names may contain commas.
    pub influx: bool,
    /// `name#tag=value,tag2:1|c`.
    pub librato: bool,
    /// `name[tag=value,tag2]:1|c`, with the brackets anywhere in the name.
    pub signalfx: bool,
}

impl Default for TagStyles {
    fn default() -> Self {
        Self { dogstatsd: true, graphite: true, influx: true, librato: false, signalfx: false }
    }
}

/// `[statsd.dogstatsd]`: the fields of DogStatsD that have an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct DogstatsdSettings {
    /// Add the sender's container (`|c:`) as the tag `container_id`. Default: only in dialect
    /// `dogstatsd`.
    pub origin: Option<bool>,
    /// Send counters and gauges with a timestamp (`|T`) to the backends with that timestamp.
    /// Default: only in dialect `dogstatsd`.
    pub timestamps: Option<bool>,
    /// Values with older timestamps are rejected.
    #[serde(with = "howdah_settings::milliseconds")]
    pub timestamp_age: Duration,
}

impl Default for DogstatsdSettings {
    fn default() -> Self {
        Self { origin: None, timestamps: None, timestamp_age: Duration::from_secs(86_400) }
    }
}

/// `[statsd.types]`: types of other servers, which are counters in etsy's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExtraTypes {
    /// Statsite's `kv`: a value that is sent on once, with the time of the flush.
    pub kv: bool,
    /// Brubeck's `C`: a counter's sum since the client's start, of which the increase counts.
    pub absolute_counter: bool,
}
