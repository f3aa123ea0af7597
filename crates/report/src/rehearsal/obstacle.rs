//! [`Obstacle`]: why runs do not show whether a change matters.

use std::fmt;

use super::RehearsalSide;
use crate::text;

/// A reason why the runs of a rehearsal are not comparable.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Obstacle {
    /// No query was executed often enough on both sides.
    TooFewExecutions,
    /// Runs on the base differ among themselves by as much as counts as a change.
    Noise {
        /// The factor by which the typical query differs.
        factor: f64,
        /// The factor that counts as a change.
        limit: f64,
    },
    /// Most statements failed, or were not sent, on one side only.
    Failures {
        /// The server with the failures.
        side: RehearsalSide,
        /// Share of its executions, 0 to 1.
        share: f64,
    },
}

impl Obstacle {
    /// The word in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TooFewExecutions => "too_few_executions",
            Self::Noise { .. } => "noise",
            Self::Failures { .. } => "failures",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooFewExecutions => {
                f.write_str("no query was executed often enough on both servers")
            }
            Self::Noise { factor, limit } => write!(
                f,
                "two runs on the base differ by {}, and {} counts as a change",
                text::factor(*factor),
                text::factor(*limit)
            ),
            Self::Failures { side, share } => write!(
                f,
                "{:.0} % of the statements on {side} failed or were not sent",
                share * 100.0
            ),
        }
    }
}
