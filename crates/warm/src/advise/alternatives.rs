//! Assesses other sizes of the cache, as far as the usage histogram allows.
//!
//! The clock sweep evicts pages of usage count 0 and decrements the others as it passes, so a
//! page's count is the number of further passes it survives. A smaller cache retains the pages with
//! the highest counts. A larger one retains all present pages and others, which the histogram does
//! not include: it only shows whether there is pressure at all.

/// A possible size of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Size of the cache in buffers.
    pub buffers: u64,
    /// Number of pages of the present cache that this size would retain, the hottest ones.
    pub kept: u64,
    /// Number of retained pages with a usage count of at least [`HOT_USAGE`].
    pub kept_hot: u64,
    /// Likely effect of this size, judged by the histogram.
    pub assessment: SizeAssessment,
}

/// Likely effect of a cache size, judged by the usage histogram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeAssessment {
    /// The size that the server has now.
    Present,
    /// A smaller size that retains every page that survives more than one pass, so little is lost.
    Enough,
    /// A smaller size that evicts pages in steady use, which causes reads.
    TooSmall,
    /// A larger size, although the present cache has free buffers.
    NeverFull,
    /// A larger size that may help, because at least half of the present pages are in steady use.
    MayHelp,
    /// A larger size without a visible benefit, because most of the present pages were not used
    /// again.
    NoBenefit,
}

/// Usage count from which a page counts as hot: it survives that many passes of the clock sweep.
pub const HOT_USAGE: usize = 3;

/// Assesses the present size of the cache, and a quarter, half, two and four times that size.
pub fn alternatives(buffers: u64, usage: [u64; 6], free: u64) -> Vec<Alternative> {
    let sizes = [(1, 4), (1, 2), (1, 1), (2, 1), (4, 1)];
    sizes
        .into_iter()
        .map(|(up, down)| assess_size(buffers * up / down, buffers, usage, free))
        .collect()
}

fn assess_size(size: u64, buffers: u64, usage: [u64; 6], free: u64) -> Alternative {
    let total: u64 = usage.iter().sum();
    let hot: u64 = usage[HOT_USAGE..].iter().sum();
    let returning: u64 = usage[2..].iter().sum();
    let verdict = match size.cmp(&buffers) {
        std::cmp::Ordering::Equal => SizeAssessment::Present,
        std::cmp::Ordering::Less if size >= returning => SizeAssessment::Enough,
        std::cmp::Ordering::Less => SizeAssessment::TooSmall,
        std::cmp::Ordering::Greater if free > 0 => SizeAssessment::NeverFull,
        // Half of the pages were used repeatedly: the sweep finds no easy victim.
        std::cmp::Ordering::Greater if returning * 2 >= total => SizeAssessment::MayHelp,
        std::cmp::Ordering::Greater => SizeAssessment::NoBenefit,
    };
    Alternative {
        buffers: size,
        kept: total.min(size),
        kept_hot: hot.min(size),
        assessment: verdict,
    }
}

impl SizeAssessment {
    /// Returns the assessment's name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Enough => "enough",
            Self::TooSmall => "too small",
            Self::NeverFull => "no use",
            Self::MayHelp => "may help",
            Self::NoBenefit => "no need seen",
        }
    }

    /// Returns a phrase that describes the assessment to people.
    pub fn description(self) -> &'static str {
        match self {
            Self::Present => "present size",
            Self::Enough => "retains every page that was used again",
            Self::TooSmall => "evicts pages in steady use",
            Self::NeverFull => "no use: the present cache has free buffers",
            Self::MayHelp => "may help: at least half of the pages are in steady use",
            Self::NoBenefit => "no benefit visible: most pages were used only once",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assess(usage: [u64; 6], free: u64) -> Vec<SizeAssessment> {
        alternatives(1000, usage, free).into_iter().map(|size| size.assessment).collect()
    }

    #[test]
    fn cache_never_full_needs_no_growth() {
        use SizeAssessment::{Enough, NeverFull, Present, TooSmall};
        let assessed = assess([0, 100, 0, 0, 0, 300], 600);
        assert_eq!(assessed, [TooSmall, Enough, Present, NeverFull, NeverFull]);
    }

    #[test]
    fn full_cache_is_assessed_by_repeated_use() {
        use SizeAssessment::{Enough, MayHelp, NoBenefit, Present, TooSmall};
        let busy = assess([100, 100, 100, 0, 100, 600], 0);
        assert_eq!(busy, [TooSmall, TooSmall, Present, MayHelp, MayHelp]);
        let scanned = assess([500, 300, 0, 0, 0, 200], 0);
        assert_eq!(scanned, [Enough, Enough, Present, NoBenefit, NoBenefit]);
    }

    #[test]
    fn smaller_cache_retains_the_hottest_pages() {
        let half = alternatives(1000, [400, 0, 0, 0, 0, 600], 0)[1];
        assert_eq!((half.buffers, half.kept, half.kept_hot), (500, 500, 500));
    }
}
