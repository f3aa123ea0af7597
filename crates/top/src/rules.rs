//! Rules: what a person wants to be told of, and what of it holds now.
//!
//! ```text
//! query > 5m                     a statement has run for longer
//! idle-in-transaction > 10m      a session has idled in its transaction for longer
//! connections > 90% for 1m       … and has stayed there for a minute
//! lag > 1GB until 100MB          … and counts as over only below that
//! ```
//!
//! A [`Rule`] is such a line, read. A [`Guard`] keeps the rules of one server: it looks at one reading after
//! the other and says which alerts began and which ended. A level that trembles around its threshold is one
//! alert, since it ends lower than it begins; one about a session ends when the session goes on to
//! something else. What cannot be read is no alert and ends none.

mod guard;
mod measure;

use std::{sync::Arc, time::Duration};

pub use self::guard::{Alert, Change, Guard, Unchecked, Who};
use crate::units::{parse_span, shown, span};
use howdah_collect::{Cell, Unit};

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Subject {
    /// How long a statement has run.
    Query,
    /// How long a session has idled in its transaction.
    IdleInTransaction,
    /// How long a transaction has lasted.
    Transaction,
    /// How long a session has waited for a lock.
    Blocked,
    /// Sessions of clients, of those that may be.
    Connections,
    /// How far a standby, or the slowest one of a primary, is behind.
    Lag,
    /// Age of the oldest transaction that is not frozen.
    Wraparound,
    /// How long the server could not be read.
    Away,
}

impl Subject {
    /// All there are.
    pub const ALL: [Self; 8] = [
        Self::Query,
        Self::IdleInTransaction,
        Self::Transaction,
        Self::Blocked,
        Self::Connections,
        Self::Lag,
        Self::Wraparound,
        Self::Away,
    ];

    /// Its word in a rule.
    pub fn name(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::IdleInTransaction => "idle-in-transaction",
            Self::Transaction => "transaction",
            Self::Blocked => "blocked",
            Self::Connections => "connections",
            Self::Lag => "lag",
            Self::Wraparound => "wraparound",
            Self::Away => "away",
        }
    }

    /// What it is measured in.
    fn measures(self) -> &'static [Measure] {
        match self {
            Self::Query
            | Self::IdleInTransaction
            | Self::Transaction
            | Self::Blocked
            | Self::Away => &[Measure::Seconds],
            Self::Connections => &[Measure::Percent],
            Self::Lag => &[Measure::Bytes, Measure::Seconds],
            Self::Wraparound => &[Measure::Percent, Measure::Transactions],
        }
    }

    /// Whether it is a time that passes while nothing changes: what is over the threshold now is known
    /// to have been so for as long as it is over it.
    fn is_time_that_passes(self) -> bool {
        !matches!(self, Self::Connections | Self::Lag | Self::Wraparound)
    }
}

/// What a threshold counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Measure {
    /// `5m`
    Seconds,
    /// `90%`: of the connections there may be, of the transactions until wraparound.
    Percent,
    /// `1GB`
    Bytes,
    /// `1500M`
    Transactions,
}

impl Measure {
    /// Its name in documents.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Seconds => "seconds",
            Self::Percent => "percent",
            Self::Bytes => "bytes",
            Self::Transactions => "transactions",
        }
    }

    /// A value as people read it.
    pub fn shown(self, value: f64) -> String {
        let unit = match self {
            Self::Seconds => return span(value),
            Self::Percent => Unit::Percent,
            Self::Bytes => Unit::Bytes,
            Self::Transactions => Unit::Count,
        };
        shown(&Cell::Real(value), unit)
    }

    /// Reads a value with its unit.
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
            _ => return parse_span(text).map(|seconds| (Self::Seconds, seconds)),
        };
        Some((measure, number * factor))
    }
}

/// What a person wants to be told of.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What it is about.
    pub subject: Subject,
    /// What the threshold counts.
    pub measure: Measure,
    /// Above that it begins.
    pub threshold: f64,
    /// When it has been above for so long.
    pub hold: Duration,
    /// At or below that it ends.
    pub clear: f64,
    /// The words it was made of, with single spaces.
    pub text: Arc<str>,
}

/// Words that are no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseRuleError {
    /// The parts are not where they should be.
    #[error(
        "write SUBJECT > VALUE [for TIME] [until VALUE], such as 'query > 5m' or 'connections > 90% for 1m'"
    )]
    Grammar,
    /// The first word.
    #[error("there is no {word:?}: a rule is about {}", names())]
    Subject {
        /// What stands there.
        word: String,
    },
    /// A threshold that the subject is not measured in.
    #[error("{word:?} is no {}, which {subject} is measured in", kinds(measures))]
    Value {
        /// What stands there.
        word: String,
        /// What it was to be a value of.
        subject: &'static str,
        /// What would do.
        measures: &'static [Measure],
    },
    /// What stands behind `until` is not below the threshold.
    #[error("until has to be below the threshold, and in its unit")]
    Until,
}

fn names() -> String {
    Subject::ALL.map(Subject::name).join(", ")
}

fn kinds(measures: &[Measure]) -> String {
    let kinds = measures.iter().map(|measure| match measure {
        Measure::Seconds => "time such as 30s or 5m",
        Measure::Percent => "percentage such as 90%",
        Measure::Bytes => "size such as 100MB",
        Measure::Transactions => "number such as 1500M",
    });
    kinds.collect::<Vec<_>>().join(" and no ")
}

/// A level ends that far below its threshold, unless the rule says otherwise.
const CLEAR_SHARE: f64 = 0.9;

impl Rule {
    /// Reads a rule.
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
        let subject = Subject::ALL
            .into_iter()
            .find(|known| known.name() == *subject)
            .ok_or_else(|| ParseRuleError::Subject { word: (*subject).to_owned() })?;
        let (measure, threshold) = Self::value(subject, value)?;
        let is_level = !subject.is_time_that_passes();
        let mut rule = Self {
            subject,
            measure,
            threshold,
            hold: Duration::ZERO,
            clear: if is_level { threshold * CLEAR_SHARE } else { threshold },
            text: words.join(" ").into(),
        };
        let mut rest = rest;
        while let [word, value, more @ ..] = rest {
            match *word {
                "for" => {
                    let seconds = parse_span(value).ok_or(ParseRuleError::Grammar)?;
                    rule.hold = Duration::try_from_secs_f64(seconds)
                        .map_err(|_| ParseRuleError::Grammar)?;
                }
                "until" => {
                    let (unit, clear) = Self::value(subject, value)?;
                    if unit != measure || clear > threshold {
                        return Err(ParseRuleError::Until);
                    }
                    rule.clear = clear;
                }
                _ => return Err(ParseRuleError::Grammar),
            }
            rest = more;
        }
        if rest.is_empty() { Ok(rule) } else { Err(ParseRuleError::Grammar) }
    }

    fn value(subject: Subject, word: &str) -> Result<(Measure, f64), ParseRuleError> {
        let measures = subject.measures();
        Measure::parse(word).filter(|(measure, _)| measures.contains(measure)).ok_or_else(|| {
            ParseRuleError::Value { word: word.to_owned(), subject: subject.name(), measures }
        })
    }
}

#[cfg(test)]
mod tests;
