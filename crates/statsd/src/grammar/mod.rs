//! The wire grammar: bytes of a packet to samples, borrowed from the packet, nothing allocated.
//!
//! ```text
//! packet := line ("\n" line)*
//! line   := name (":" value)+ "|" type (field)* (":" value … "|" type (field)*)*
//! value  := a number; for sets any text
//! field  := "|@" rate | "|#" tag ("," tag)* | "|c:" container | "|T" seconds | "|e:" data | "|card:" word
//! type   := "c" | "g" | "ms" | "h" | "d" | "s" | anything else, which is a counter
//! ```
//!
//! A line gives any number of samples, bad lines (one per value, as etsy's server counts them), an
//! event (`_e{…}`) or a service check (`_sc|…`). Whatever the bytes are, parsing goes on with the
//! next value or line. What a key means, how it is sanitised and kept, is not said here.

mod number;
mod parse;
#[cfg(test)]
mod tests;

pub(crate) use self::number::number;
pub use self::parse::packet;

/// What is done with what a packet says. Calls come in the order of the bytes.
pub trait Sink {
    /// A line that is not empty begins.
    fn line(&mut self);
    /// One value.
    fn sample(&mut self, sample: &Sample<'_>);
    /// A value, or a whole line, that cannot be used.
    fn bad(&mut self, bad: BadLine<'_>);
    /// A DogStatsD event.
    fn event(&mut self);
    /// A DogStatsD service check.
    fn check(&mut self);
    /// Values with a DogStatsD timestamp (`|T…`), which is read and not used.
    fn timestamped(&mut self) {}
}

/// One value of one metric.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample<'p> {
    /// The bytes before the first `:`, as they came.
    pub name: &'p [u8],
    /// The bytes after `|#` and before the next `|`, as they came: `env:prod,canary`. Often empty.
    pub tags: &'p [u8],
    /// What the value means.
    pub value: Value<'p>,
    /// The sample rate: above zero, 1 if none was given; one sample stands for at most
    /// [`WEIGHT_MAX`] of them.
    pub rate: f64,
}

/// A value, with the meaning its type gives it. Every number is finite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'p> {
    /// `c` and types nobody knows: to be added, over the rate.
    Count(f64),
    /// `ms`: milliseconds, never negative. `h`, `d`: a value in any unit.
    Timing(f64, TimingUnit),
    /// `g` without a sign: the new value.
    Set(f64),
    /// `g` with a sign: to be added to the present value.
    Change(f64),
    /// `s`: a member; the empty one counts as `0`.
    Member(&'p [u8]),
}

/// Most samples that one stands for: a rate below its inverse is refused. No client samples that
/// rarely, and one such packet would outweigh all others in a sum that is never reset.
pub const WEIGHT_MAX: f64 = 1e9;

/// The largest value that may be added up, scaled up by its rate. Doubles above it cannot count single
/// bytes or nanoseconds any more, and a few that are far above would make a sum infinite for good.
pub const ADDEND_MAX: f64 = 1e18;

/// What a timing is measured in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TimingUnit {
    /// Type `ms`.
    #[default]
    Milliseconds,
    /// Types `h` and `d`: whatever the sender means.
    Plain,
}

impl TimingUnit {
    /// How many of it make one base unit: 1,000 milliseconds are a second.
    #[must_use]
    pub fn per_base(self) -> f64 {
        match self {
            Self::Milliseconds => 1e3,
            Self::Plain => 1.0,
        }
    }

    /// A value in base units: seconds for milliseconds. Divided, because 18 × 0.001 is above 0.018, and
    /// would fall into the bucket after the one that ends there.
    #[must_use]
    pub fn to_base(self, value: f64) -> f64 {
        value / self.per_base()
    }
}

/// Something that cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadLine<'p> {
    /// The whole line it stands in.
    pub line: &'p [u8],
    /// What is wrong.
    pub reason: Reason,
}

/// Why a value cannot be used. The order is that of [`Reason::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// No `|type` after the value, or no value at all.
    NoType,
    /// The value is not a number.
    NotANumber,
    /// The value is infinite, or too large for a double.
    NotFinite,
    /// A `ms` below zero.
    NegativeTimer,
    /// The sample rate is not a number above zero, or its inverse is above [`WEIGHT_MAX`].
    BadRate,
    /// A field after the type that nobody knows.
    UnknownField,
    /// An event whose lengths do not fit its text.
    BadEvent,
    /// A service check without name or status.
    BadCheck,
    /// Longer than the limit for keys, tags included.
    KeyTooLong,
    /// More tags than the limit.
    TooManyTags,
    /// A value that would spoil a sum: above [`ADDEND_MAX`], scaled up by its rate.
    TooLarge,
    /// Nothing before the first `:`.
    NoName,
    /// A member of a set that has as many as the limit allows.
    SetFull,
}

impl Reason {
    /// All reasons.
    pub const ALL: [Self; 13] = [
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
    ];

    /// A word for labels and tables.
    #[must_use]
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
        }
    }
}
