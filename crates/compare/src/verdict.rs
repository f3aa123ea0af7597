//! What a comparison concludes.

use std::fmt;

/// What became of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Verdict {
    /// It got slower.
    Slower(Part),
    /// It got faster.
    Faster(Part),
    /// No difference that is certain, large enough and above the noise.
    NoChange,
    /// Too few executions ended well in one of the runs to say.
    TooFew,
    /// It was executed in the base run only.
    OnlyInBase,
    /// It was executed in the other run only.
    OnlyInRun,
}

/// Which executions of a query changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// The typical ones.
    Typical,
    /// Only some, but so much that the mean changed: the typical ones are as they were.
    Tail,
}

impl Verdict {
    /// The word for it in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower(_) => "slower",
            Self::Faster(_) => "faster",
            Self::NoChange => "no change",
            Self::TooFew => "too few",
            Self::OnlyInBase => "only in base",
            Self::OnlyInRun => "only in run",
        }
    }

    /// Which part changed, if one did.
    pub const fn part(self) -> Option<Part> {
        match self {
            Self::Slower(part) | Self::Faster(part) => Some(part),
            _ => None,
        }
    }

    /// Whether it got slower.
    pub const fn is_slower(self) -> bool {
        matches!(self, Self::Slower(_))
    }

    /// Whether it got faster.
    pub const fn is_faster(self) -> bool {
        matches!(self, Self::Faster(_))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Part {
    /// The word for it in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Typical => "typical",
            Self::Tail => "tail",
        }
    }
}

/// What became of the workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Overall {
    /// At least one query got slower, none faster.
    Slower,
    /// At least one query got faster, none slower.
    Faster,
    /// Some queries got slower, some faster.
    Mixed,
    /// No query changed, and at least one was executed often enough to say so.
    NoChange,
    /// No query was executed often enough in both runs.
    TooFew,
}

impl Overall {
    /// Of the queries' verdicts.
    pub fn of(verdicts: impl IntoIterator<Item = Verdict>) -> Self {
        let (mut slower, mut faster, mut same) = (false, false, false);
        for verdict in verdicts {
            slower |= verdict.is_slower();
            faster |= verdict.is_faster();
            same |= verdict == Verdict::NoChange;
        }
        match (slower, faster, same) {
            (true, true, _) => Self::Mixed,
            (true, false, _) => Self::Slower,
            (false, true, _) => Self::Faster,
            (false, false, true) => Self::NoChange,
            (false, false, false) => Self::TooFew,
        }
    }

    /// The word for it in files and output.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slower => "slower",
            Self::Faster => "faster",
            Self::Mixed => "mixed",
            Self::NoChange => "no change",
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
fn the_whole_is_judged_by_its_parts() {
    use Verdict::{Faster, NoChange, OnlyInRun, Slower, TooFew};
    let (slower, faster) = (Slower(Part::Typical), Faster(Part::Tail));
    assert_eq!(Overall::of([NoChange, slower, TooFew]), Overall::Slower);
    assert_eq!(Overall::of([NoChange, faster]), Overall::Faster);
    assert_eq!(Overall::of([faster, slower]), Overall::Mixed);
    assert_eq!(Overall::of([TooFew, NoChange]), Overall::NoChange);
    assert_eq!(Overall::of([TooFew, OnlyInRun]), Overall::TooFew);
    assert_eq!(Overall::of([]), Overall::TooFew);
}
