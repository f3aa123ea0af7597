//! Alert rules and their evaluation.
//!
//! ```text
//! query > 5m                     a statement has run for longer
//! idle-in-transaction > 10m      a session has been idle in transaction for longer
//! connections > 90% for 1m       for a minute, over 90 % of max_connections were in use
//! lag > 1GB until 100MB          a standby lags by more; the alert ends at 100 MB or less
//! ```
//!
//! An [`AlertRule`] is the parsed form of such a line. A [`RuleEvaluator`] evaluates the rules of
//! one server on each sample and returns which alerts started and which ended. A lag or another
//! level that fluctuates around its threshold causes one alert, because by default the alert ends
//! at 90 % of the threshold. An alert about a session ends when the session does something else.
//! While a server is unreachable, only its `unreachable` alerts start or end.

mod evaluator;
mod values;

use std::{sync::Arc, time::Duration};

pub use self::evaluator::{Alert, AlertChange, RuleEvaluator, SessionInfo, UncheckedRule};
use crate::units::{format_cell, format_duration};
use howdah_collect::{ColumnUnit, ViewCell};

/// Quantity that a rule compares with its threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RuleSubject {
    /// Run time of a statement.
    Query,
    /// Time that a session has been idle in transaction.
    IdleInTransaction,
    /// Time since a session's transaction began.
    Transaction,
    /// Time that a session has waited for a lock.
    Blocked,
    /// Number of client sessions, as a percentage of `max_connections`.
    Connections,
    /// Lag of a standby, or of the slowest standby of a primary.
    Lag,
    /// Age of the oldest unfrozen transaction id in the cluster.
    Wraparound,
    /// Time that the server has been unreachable.
    Unreachable,
}

impl RuleSubject {
    /// All subjects, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Query,
        Self::IdleInTransaction,
        Self::Transaction,
        Self::Blocked,
        Self::Connections,
        Self::Lag,
        Self::Wraparound,
        Self::Unreachable,
    ];

    /// Returns the keyword of the subject in a rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::IdleInTransaction => "idle-in-transaction",
            Self::Transaction => "transaction",
            Self::Blocked => "blocked",
            Self::Connections => "connections",
            Self::Lag => "lag",
            Self::Wraparound => "wraparound",
            Self::Unreachable => "unreachable",
        }
    }

    /// Returns the units that a threshold of this subject may have.
    fn measures(self) -> &'static [Measure] {
        match self {
            Self::Query
            | Self::IdleInTransaction
            | Self::Transaction
            | Self::Blocked
            | Self::Unreachable => &[Measure::Seconds],
            Self::Connections => &[Measure::Percent],
            Self::Lag => &[Measure::Bytes, Measure::Seconds],
            Self::Wraparound => &[Measure::Percent, Measure::Transactions],
        }
    }

    /// Whether the value is a time that keeps growing. Such a value crossed the threshold
    /// `value - threshold` seconds ago.
    fn is_elapsed_time(self) -> bool {
        !matches!(self, Self::Connections | Self::Lag | Self::Wraparound)
    }
}

/// Unit of a rule's threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// A duration, such as `5m`.
    Seconds,
    /// A percentage, such as `90%`, of `max_connections` or of the transactions until wraparound.
    Percent,
    /// A size, such as `1GB`.
    Bytes,
    /// A number of transaction ids, such as `1500M`.
    Transactions,
}

impl Measure {
    /// Returns the name in JSON documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Percent => "percent",
            Self::Bytes => "bytes",
            Self::Transactions => "transactions",
        }
    }

    /// Formats a value with its unit.
    pub fn format_value(self, value: f64) -> String {
        let unit = match self {
            Self::Seconds => return format_duration(value),
            Self::Percent => ColumnUnit::Percent,
            Self::Bytes => ColumnUnit::Bytes,
            Self::Transactions => ColumnUnit::Count,
        };
        format_cell(&ViewCell::Real(value), unit)
    }

    /// Parses a value with its unit.
    fn parse(text: &str) -> Option<(Self, f64)> {
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let number: f64 = text[..digits].parse().ok()?;
        let (measure, factor) = match &text[digits..] {
            "%" => (Self::Percent, 1.0),
            "B" => (Self::Bytes, 1.0),
            "kB" | "KB" => (Self::Bytes, 1024.0),
            "MB" => (Self::Bytes, 1024.0 * 1024.0),
            "GB" => (Self::Bytes, 1024.0 * 1024.0 * 1024.0),
            "TB" => (Self::Bytes, 1024.0 * 1024.0 * 1024.0 * 1024.0),
            "k" => (Self::Transactions, 1e3),
            "M" => (Self::Transactions, 1e6),
            "G" => (Self::Transactions, 1e9),
            _ => {
                return howdah_settings::parse_seconds(text)
                    .map(|seconds| (Self::Seconds, seconds));
            }
        };
        Some((measure, number * factor))
    }
}

/// An alert rule: a condition that starts an alert, and the value at which the alert ends.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertRule {
    /// Quantity that is compared with the threshold.
    pub subject: RuleSubject,
    /// Unit of the threshold.
    pub measure: Measure,
    /// Value above which the alert starts.
    pub threshold: f64,
    /// Time that the value must be above the threshold before the alert starts.
    pub hold_for: Duration,
    /// Value at or below which the alert ends.
    pub clear_below: f64,
    /// Text of the rule with single spaces.
    pub text: Arc<str>,
}

/// The reason why a text is not a valid rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The text does not follow the grammar, or the value after `for` is not a time.
    #[error(
        "write SUBJECT > VALUE [for TIME] [until VALUE], such as 'query > 5m' or 'connections > 90% for 1m'"
    )]
    Grammar,
    /// The rule begins with a word that is not a subject.
    #[error("unknown subject {word:?}; the subjects of rules are {}", subject_names())]
    Subject {
        /// The word found where a subject is expected.
        word: String,
    },
    /// The threshold or the value after `until` is not a number, or its unit does not suit the
    /// subject.
    #[error("{word:?} is not a valid value for {subject}: use a {}", value_kinds(measures))]
    Value {
        /// The word found instead of a valid value.
        word: String,
        /// Subject of the rule.
        subject: &'static str,
        /// Units that the subject accepts.
        measures: &'static [Measure],
    },
    /// The value after `until` is above the threshold, or of another kind (a time for a size).
    #[error(
        "the value after 'until' must be of the same kind as the threshold, such as a time, and \
         must not exceed it"
    )]
    Until,
}

fn subject_names() -> String {
    RuleSubject::ALL.map(RuleSubject::name).join(", ")
}

fn value_kinds(measures: &[Measure]) -> String {
    let kinds = measures.iter().map(|measure| match measure {
        Measure::Seconds => "time such as 30s or 5m",
        Measure::Percent => "percentage such as 90%",
        Measure::Bytes => "size such as 100MB",
        Measure::Transactions => "number such as 1500M",
    });
    kinds.collect::<Vec<_>>().join(" or a ")
}

/// Default value at which an alert ends, as a fraction of its threshold. Alerts on elapsed times
/// end at the threshold itself.
const CLEAR_SHARE: f64 = 0.9;

impl AlertRule {
    /// Parses a rule.
    ///
    /// # Errors
    ///
    /// See [`ParseRuleError`].
    pub fn parse(text: &str) -> Result<Self, ParseRuleError> {
        let spaced = text.replace('>', " > ");
        let words: Vec<&str> = spaced.split_whitespace().collect();
        let [subject, ">", value, rest @ ..] = words.as_slice() else {
            return Err(ParseRuleError::Grammar);
        };
        let subject = RuleSubject::ALL
            .into_iter()
            .find(|known| known.name() == *subject)
            .ok_or_else(|| ParseRuleError::Subject { word: (*subject).to_owned() })?;
        let (measure, threshold) = Self::parse_value(subject, value)?;
        let is_level = !subject.is_elapsed_time();
        let mut rule = Self {
            subject,
            measure,
            threshold,
            hold_for: Duration::ZERO,
            clear_below: if is_level { threshold * CLEAR_SHARE } else { threshold },
            text: words.join(" ").into(),
        };
        let mut rest = rest;
        while let [word, value, more @ ..] = rest {
            match *word {
                "for" => {
                    let hold_for = howdah_settings::parse_duration(value);
                    rule.hold_for = hold_for.map_err(|_| ParseRuleError::Grammar)?;
                }
                "until" => {
                    let (unit, clear) = Self::parse_value(subject, value)?;
                    if unit != measure || clear > threshold {
                        return Err(ParseRuleError::Until);
                    }
                    rule.clear_below = clear;
                }
                _ => return Err(ParseRuleError::Grammar),
            }
            rest = more;
        }
        if rest.is_empty() { Ok(rule) } else { Err(ParseRuleError::Grammar) }
    }

    fn parse_value(subject: RuleSubject, word: &str) -> Result<(Measure, f64), ParseRuleError> {
        let measures = subject.measures();
        Measure::parse(word).filter(|(measure, _)| measures.contains(measure)).ok_or_else(|| {
            ParseRuleError::Value { word: word.to_owned(), subject: subject.name(), measures }
        })
    }
}

#[cfg(test)]
mod tests;
