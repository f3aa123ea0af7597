//! What other sizes of the cache would mean, as far as the usage histogram tells.
//!
//! The clock sweep takes pages of usage count 0 and lowers the others by one as it passes, so a page's
//! count is how many more passes it lasts. A smaller cache keeps the pages of the highest counts. A
//! larger one keeps all of today's pages, and others, of which the histogram knows nothing: only whether
//! there is pressure at all.

/// One size of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Buffers.
    pub buffers: u64,
    /// Pages of today's cache that it would keep, hottest first.
    pub keeps: u64,
    /// Those of them with a usage count of [`HOT`] and more.
    pub keeps_hot: u64,
    /// What follows.
    pub verdict: Verdict,
}

/// What the histogram says of a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The present size.
    Present,
    /// Smaller, and every page that lasts more than a pass stays: hardly a loss.
    Enough,
    /// Smaller, and pages that are in steady use would go: reads will come of it.
    TooSmall,
    /// Larger, while the present cache has buffers that nothing was ever put into.
    NoUse,
    /// Larger, and most of today's pages are in steady use: more may bring more.
    MayHelp,
    /// Larger, and today's cache holds many pages that nobody came back to: nothing shows a need.
    NoNeedSeen,
}

/// Pages of this usage count or more outlast that many passes of the clock sweep.
pub const HOT: usize = 3;

/// Halves and doubles of the present size.
#[must_use]
pub fn alternatives(buffers: u64, usage: [u64; 6], free: u64) -> Vec<Alternative> {
    let sizes = [(1, 4), (1, 2), (1, 1), (2, 1), (4, 1)];
    sizes.into_iter().map(|(up, down)| one(buffers * up / down, buffers, usage, free)).collect()
}

fn one(size: u64, buffers: u64, usage: [u64; 6], free: u64) -> Alternative {
    let total: u64 = usage.iter().sum();
    let hot: u64 = usage[HOT..].iter().sum();
    let returning: u64 = usage[2..].iter().sum();
    let verdict = match size.cmp(&buffers) {
        std::cmp::Ordering::Equal => Verdict::Present,
        std::cmp::Ordering::Less if size >= returning => Verdict::Enough,
        std::cmp::Ordering::Less => Verdict::TooSmall,
        std::cmp::Ordering::Greater if free > 0 => Verdict::NoUse,
        // Half of the pages came back more than once: the sweep finds no easy victim.
        std::cmp::Ordering::Greater if returning * 2 >= total => Verdict::MayHelp,
        std::cmp::Ordering::Greater => Verdict::NoNeedSeen,
    };
    Alternative { buffers: size, keeps: total.min(size), keeps_hot: hot.min(size), verdict }
}

impl Verdict {
    /// A word for programs.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Enough => "enough",
            Self::TooSmall => "too small",
            Self::NoUse => "no use",
            Self::MayHelp => "may help",
            Self::NoNeedSeen => "no need seen",
        }
    }

    /// A line for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Present => "as it is",
            Self::Enough => "keeps every page that was used again",
            Self::TooSmall => "loses pages that are used again and again",
            Self::NoUse => "the present one has never been full",
            Self::MayHelp => "may help: half and more of the pages are used again and again",
            Self::NoNeedSeen => "no need seen: most pages were used once and not again",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts(usage: [u64; 6], free: u64) -> Vec<Verdict> {
        alternatives(1000, usage, free).into_iter().map(|size| size.verdict).collect()
    }

    #[test]
    fn a_cache_that_was_never_full_needs_no_more() {
        use Verdict::{Enough, NoUse, Present, TooSmall};
        let told = verdicts([0, 100, 0, 0, 0, 300], 600);
        assert_eq!(told, [TooSmall, Enough, Present, NoUse, NoUse]);
    }

    #[test]
    fn a_full_cache_is_judged_by_what_comes_back() {
        use Verdict::{Enough, MayHelp, NoNeedSeen, Present, TooSmall};
        let busy = verdicts([100, 100, 100, 0, 100, 600], 0);
        assert_eq!(busy, [TooSmall, TooSmall, Present, MayHelp, MayHelp]);
        let scanned = verdicts([500, 300, 0, 0, 0, 200], 0);
        assert_eq!(scanned, [Enough, Enough, Present, NoNeedSeen, NoNeedSeen]);
    }

    #[test]
    fn a_smaller_cache_keeps_the_hottest() {
        let half = alternatives(1000, [400, 0, 0, 0, 0, 600], 0)[1];
        assert_eq!((half.buffers, half.keeps, half.keeps_hot), (500, 500, 500));
    }
}
