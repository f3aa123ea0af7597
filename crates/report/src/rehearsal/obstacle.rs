//! [`Obstacle`]: a reason why runs do not show whether a change matters.

use std::fmt;

use super::RehearsalSide;
use crate::text;

/// Minimum factor between calibration times for the machine to be named as the cause.
const MACHINE_CHANGE_MIN: f64 = 1.1;

/// A reason why the runs of a rehearsal are not comparable.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Obstacle {
    /// No query was executed often enough on both sides.
    TooFewExecutions,
    /// Some queries may have changed: the runs of one side differ too much, or the machine changed.
    Undecided {
        /// Number of undecided queries.
        queries: usize,
        /// Factor by which the calibration statement differs between the sides, at least 1; 1 if
        /// unknown.
        machine: f64,
    },
    /// Runs on the base differ among themselves by a factor that counts as a change.
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
        /// Share of failed or unsent executions on this server, 0 to 1.
        share: f64,
    },
}

impl Obstacle {
    /// Returns the name of the obstacle in JSON.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::TooFewExecutions => "too_few_executions",
            Self::Undecided { .. } => "undecided",
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
            Self::Undecided { queries, machine } => {
                let queries =
                    if *queries == 1 { "1 query".to_owned() } else { format!("{queries} queries") };
                if *machine >= MACHINE_CHANGE_MIN {
                    let factor = text::factor(*machine);
                    write!(f, "{queries} may have changed: the machine itself differed by {factor}")
                } else {
                    write!(
                        f,
                        "{queries} may have changed: runs on one server differ too much to say"
                    )
                }
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
