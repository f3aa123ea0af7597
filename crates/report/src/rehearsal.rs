//! The report of a rehearsal.

pub mod html;

use std::fmt;

use serde::{Deserialize, Serialize};

/// One of the two servers of a rehearsal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RehearsalSide {
    /// The server in its present state.
    Base,
    /// The server with the change.
    Change,
}

impl RehearsalSide {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Base, Self::Change];

    /// The word in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Change => "change",
        }
    }
}

impl fmt::Display for RehearsalSide {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// The answer of a rehearsal, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RehearsalVerdict {
    /// No query is slower, and no condition of the user is violated.
    Passed,
    /// A query is slower, or a condition is violated.
    Failed,
    /// The runs do not show whether the change matters.
    NotComparable,
}

impl RehearsalVerdict {
    /// The word in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed => "failed",
            Self::NotComparable => "not comparable",
        }
    }
}
