//! The statsd line grammar: parses packets into samples borrowed from them, without allocating.
//!
//! ```text
//! packet := line ("\n" line)*
//! line   := name (":" value)+ "|" type (field)* (":" value … "|" type (field)*)*
//! value  := a number; for sets any text
//! field  := "|@" rate | "|#" tag ("," tag)* | "|c:" container | "|T" seconds | "|e:" data
//!         | "|card:" word
//! type   := "c" | "g" | "ms" | "h" | "d" | "s" | "kv" | "C" | anything else, which is a counter
//! ```
//!
//! A line yields any number of samples, bad lines (one per value, as counted by etsy's server), an
//! event (`_e{…}`) or a service check (`_sc|…`). After an error, parsing continues with the next
//! value or line. Sanitising and storing keys is done elsewhere.

mod message;
mod number;
mod parse;
#[cfg(test)]
mod tests;

use crate::settings::{ExtraTypes, StatsdDialect, StatsdSettings};

pub(crate) use self::number::number;
pub use self::{
    message::{
        AlertType, CheckStatus, EventPriority, MessageOptions, StatsdCheck, StatsdEvent, check,
        event,
    },
    parse::packet,
};

/// The rules for lines that statsd servers read differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LineRules {
    /// A sign changes a gauge by the value instead of setting it: etsy's dialect.
    pub signs_change_gauges: bool,
    /// Sample rates apply only to counters: the Perl dialect.
    pub rates_for_counters_only: bool,
    /// Containers are part of samples ([`StatsdSample::container`]).
    pub origin: bool,
    /// Timestamps have an effect ([`SampleSink::timed_sample`]).
    pub timestamps: bool,
    /// The value of a set is one member, which may contain `:`, and unknown fields are ignored
    /// wherever they are: the DogStatsD dialect.
    pub dogstatsd_values: bool,
    /// Types that are otherwise counters.
    pub types: ExtraTypes,
}

impl LineRules {
    /// Returns the rules for these settings.
    pub fn new(settings: &StatsdSettings) -> Self {
        let dialect = settings.dialect;
        let is_dogstatsd = dialect == StatsdDialect::Dogstatsd;
        Self {
            signs_change_gauges: dialect == StatsdDialect::Etsy,
            rates_for_counters_only: dialect == StatsdDialect::Perl,
            origin: settings.dogstatsd.origin.unwrap_or(is_dogstatsd),
            timestamps: settings.dogstatsd.timestamps.unwrap_or(is_dogstatsd),
            dogstatsd_values: is_dogstatsd,
            types: settings.types,
        }
    }
}

/// A consumer of the content of packets. Calls are made in the order of the bytes.
pub trait SampleSink {
    /// Called at the start of each non-empty line.
    fn line(&mut self);
    /// Called for each valid value.
    fn sample(&mut self, sample: &StatsdSample<'_>);
    /// Called instead of [`sample`](Self::sample) for each valid count or new gauge value with a
    /// timestamp, if the rules say so: `time` in seconds since 1970. Without a time for `kv`, whose
    /// values belong to the time of the flush.
    fn timed_sample(&mut self, sample: &StatsdSample<'_>, time: Option<i64>);
    /// Called instead of [`sample`](Self::sample) for each count of type `C`, if the rules say so:
    /// the value is the sum of all counts since the sender's start.
    fn running_total(&mut self, sample: &StatsdSample<'_>);
    /// Called for each value, or line, that cannot be used.
    fn bad(&mut self, bad: BadLine<'_>);
    /// Called for each valid DogStatsD event.
    fn event(&mut self, event: &StatsdEvent<'_>);
    /// Called for each valid DogStatsD service check.
    fn check(&mut self, check: &StatsdCheck<'_>);
    /// Called for each DogStatsD timestamp (`|T…`) that is ignored.
    fn timestamped(&mut self) {}
}

/// One value of one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StatsdSample<'p> {
    /// The bytes before the first `:`, unchanged.
    pub name: &'p [u8],
    /// The bytes after `|#` and before the next `|`, unchanged: `env:prod,canary`. Often empty.
    pub tags: &'p [u8],
    /// The sender's container, the bytes after `|c:`, if the rules say so. Often empty.
    pub container: &'p [u8],
    /// The value, with its meaning.
    pub value: SampleValue<'p>,
    /// The sample rate: above zero, 1 if missing. Its inverse is at most [`WEIGHT_MAX`].
    pub rate: f64,
}

/// A value with the meaning given by its type. All numbers are finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum SampleValue<'p> {
    /// `c` and unknown types: a count, to be divided by the rate.
    Count(f64),
    /// `ms`: milliseconds, never negative. `h`, `d`: a value in any unit.
    Timing(f64, TimingUnit),
    /// `g` without a sign, or in a dialect other than etsy's: the new value.
    Set(f64),
    /// `g` with a sign, in etsy's dialect: to be added to the current value.
    Change(f64),
    /// `s`: a member; an empty one becomes `0`.
    Member(&'p [u8]),
}

/// The maximum weight of a sample: rates below its inverse are refused. No client samples so
/// rarely, and one such packet would outweigh all others in a sum that is never reset.
pub const WEIGHT_MAX: f64 = 1e9;

/// The maximum absolute value, divided by its rate, that may be summed. Doubles of this size no
/// longer count single bytes or nanoseconds, and a few much larger ones would make a sum infinite
/// permanently.
pub const ADDEND_MAX: f64 = 1e18;

/// The latest timestamp that is not refused at once: the end of the year 9999.
const TIME_MAX: i64 = 253_402_300_799;

/// The unit of a timing, from the sample's type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimingUnit {
    /// Type `ms`.
    #[default]
    Milliseconds,
    /// Types `h` and `d`: any unit, chosen by the sender.
    Plain,
}

impl TimingUnit {
    /// Returns the number of units per base unit: 1,000 for milliseconds, whose base unit is the
    /// second.
    pub fn per_base(self) -> f64 {
        match self {
            Self::Milliseconds => 1e3,
            Self::Plain => 1.0,
        }
    }

    /// Converts a value to base units: milliseconds to seconds. Divides, because 18 × 0.001 is
    /// above 0.018 and would fall into the bucket above the bound 0.018.
    pub fn to_base(self, value: f64) -> f64 {
        value / self.per_base()
    }
}

/// A value or line that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine<'p> {
    /// The whole line, or only the key where the line is not available.
    pub line: &'p [u8],
    /// The reason why the value or line is rejected.
    pub reason: RejectReason,
}

/// The reason why a value cannot be used. The variants are in the order of [`RejectReason::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum RejectReason {
    /// No `|type` after the value, or no value at all.
    NoType,
    /// The value is not a number.
    NotANumber,
    /// The value is infinite, or too large for a double.
    NotFinite,
    /// A negative `ms` value.
    NegativeTimer,
    /// The sample rate is not a number above zero, its inverse is above [`WEIGHT_MAX`], or the
    /// field after the type is empty.
    BadRate,
    /// An unknown field directly after the type.
    UnknownField,
    /// An event that is malformed, or whose lengths do not match its text.
    BadEvent,
    /// A service check without a name, or without a status from 0 to 3.
    BadCheck,
    /// The key with its tags is longer than the limit.
    KeyTooLong,
    /// More tags than the limit.
    TooManyTags,
    /// The value divided by its rate exceeds [`ADDEND_MAX`].
    TooLarge,
    /// The name before the first `:` is empty or starts with `;`.
    NoName,
    /// The set already has the maximum number of members, and is not estimated.
    SetFull,
    /// The timestamp is 0, in the future, or older than the limit.
    BadTimestamp,
    /// The interval already has the maximum number of keys and timestamps.
    TooManyTimestamps,
}

impl RejectReason {
    /// All reasons, in the order of the variants.
    pub const ALL: [Self; 15] = [
        Self::NoType,
        Self::NotANumber,
        Self::NotFinite,
        Self::NegativeTimer,
        Self::BadRate,
        Self::UnknownField,
        Self::BadEvent,
        Self::BadCheck,
        Self::KeyTooLong,
        Self::TooManyTags,
        Self::TooLarge,
        Self::NoName,
        Self::SetFull,
        Self::BadTimestamp,
        Self::TooManyTimestamps,
    ];

    /// Returns the name for labels and tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoType => "no_type",
            Self::NotANumber => "not_a_number",
            Self::NotFinite => "not_finite",
            Self::NegativeTimer => "negative_timer",
            Self::BadRate => "bad_rate",
            Self::UnknownField => "unknown_field",
            Self::BadEvent => "bad_event",
            Self::BadCheck => "bad_check",
            Self::KeyTooLong => "key_too_long",
            Self::TooManyTags => "too_many_tags",
            Self::TooLarge => "too_large",
            Self::NoName => "no_name",
            Self::SetFull => "set_full",
            Self::BadTimestamp => "bad_timestamp",
            Self::TooManyTimestamps => "too_many_timestamps",
        }
    }
}
