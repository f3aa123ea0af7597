//! The verdicts of a comparison.

use std::fmt;

/// The verdict on a query: how it changed between the sides, or why that is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueryVerdict {
    /// The query got slower.
    Slower(ChangedPart),
    /// The query got faster.
    Faster(ChangedPart),
    /// Several runs exclude a change that matters, or two runs show none that is certain and large
    /// enough.
    NoChange,
    /// Neither a change nor its absence is certain: the runs or the machine differ too much.
    Undecided,
    /// Too few successful executions on at least one side.
    TooFew,
    /// The query was executed in base runs only.
    OnlyInBase,
    /// The query was executed in assessed runs only.
    OnlyInRun,
}

/// The part of a query's executions that changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChangedPart {
    /// The typical executions changed.
    Typical,
    /// The mean changed, but no change of the typical executions is certain and large enough:
    /// usually, a minority of the executions changed.
    Tail,
}

impl QueryVerdict {
    /// Returns the verdict's name in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower(_) => "slower",
            Self::Faster(_) => "faster",
            Self::NoChange => "no change",
            Self::Undecided => "undecided",
            Self::TooFew => "too few",
            Self::OnlyInBase => "only in base",
            Self::OnlyInRun => "only in run",
        }
    }

    /// Returns the part of the executions that changed; `None` if the query is neither slower nor
    /// faster.
    pub const fn part(self) -> Option<ChangedPart> {
        match self {
            Self::Slower(part) | Self::Faster(part) => Some(part),
            _ => None,
        }
    }

    /// Whether the query got slower.
    pub const fn is_slower(self) -> bool {
        matches!(self, Self::Slower(_))
    }

    /// Whether the query got faster.
    pub const fn is_faster(self) -> bool {
        matches!(self, Self::Faster(_))
    }
}

impl fmt::Display for QueryVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl ChangedPart {
    /// Returns the name in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Typical => "typical",
            Self::Tail => "tail",
        }
    }
}

/// The verdict on the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overall {
    /// At least one query got slower, none faster.
    Slower,
    /// At least one query got faster, none slower.
    Faster,
    /// Some queries got slower, some faster.
    Mixed,
    /// No query changed. Queries that are undecided cannot matter to the total time.
    NoChange,
    /// No query is known to have changed, but some may have: runs differ too much to say.
    NotComparable,
    /// No query was executed often enough on both sides.
    TooFew,
}

impl Overall {
    /// Derives the verdict on the workload from the verdicts on its queries.
    pub fn from_verdicts(verdicts: impl IntoIterator<Item = QueryVerdict>) -> Self {
        let (mut slower, mut faster, mut same, mut undecided) = (false, false, false, false);
        for verdict in verdicts {
            slower |= verdict.is_slower();
            faster |= verdict.is_faster();
            same |= verdict == QueryVerdict::NoChange;
            undecided |= verdict == QueryVerdict::Undecided;
        }
        match (slower, faster) {
            (true, true) => Self::Mixed,
            (true, false) => Self::Slower,
            (false, true) => Self::Faster,
            (false, false) if undecided => Self::NotComparable,
            (false, false) if same => Self::NoChange,
            (false, false) => Self::TooFew,
        }
    }

    /// Returns the verdict's name in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Mixed => "mixed",
            Self::NoChange => "no change",
            Self::NotComparable => "not comparable",
            Self::TooFew => "too few",
        }
    }
}

impl fmt::Display for Overall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

#[test]
fn overall_verdict_combines_query_verdicts() {
    use QueryVerdict::{Faster, NoChange, OnlyInRun, Slower, TooFew, Undecided};
    let (slower, faster) = (Slower(ChangedPart::Typical), Faster(ChangedPart::Tail));
    assert_eq!(Overall::from_verdicts([NoChange, slower, TooFew]), Overall::Slower);
    assert_eq!(Overall::from_verdicts([NoChange, faster]), Overall::Faster);
    assert_eq!(Overall::from_verdicts([faster, slower]), Overall::Mixed);
    assert_eq!(Overall::from_verdicts([NoChange, Undecided]), Overall::NotComparable);
    assert_eq!(Overall::from_verdicts([slower, Undecided]), Overall::Slower);
    assert_eq!(Overall::from_verdicts([TooFew, NoChange]), Overall::NoChange);
    assert_eq!(Overall::from_verdicts([TooFew, OnlyInRun]), Overall::TooFew);
    assert_eq!(Overall::from_verdicts([]), Overall::TooFew);
}
