//! Assesses other sizes of the cache, as far as the usage histogram and the age of the cache allow.
//!
//! The clock sweep evicts pages of usage count 0 and decrements the others as it passes, so a
//! page's count is the number of further passes it survives. A page that was read once has count 1
//! until the first pass; a higher count means that it was used again. A smaller cache retains the
//! pages with the highest counts. A larger one retains all present pages and others, which the
//! histogram does not include: it only shows whether there is pressure at all.
//!
//! A young cache shows which pages are used again, but not that others are not: a claim that
//! something is not needed requires a cache that has seen the work of a day.

use std::time::Duration;

/// A possible size of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alternative {
    /// Size of the cache in buffers.
    pub buffers: u64,
    /// Number of pages of the present cache that this size would retain, the hottest ones.
    pub kept: u64,
    /// Number of retained pages that were used again: with a usage count of at least
    /// [`REUSED_USAGE`].
    pub kept_reused: u64,
    /// Number of pages that were used again and that this size would not retain.
    pub lost_reused: u64,
    /// Likely effect of this size.
    pub assessment: SizeAssessment,
}

/// Likely effect of a cache size, by the usage histogram and the age of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeAssessment {
    /// The size that the server has now.
    Present,
    /// A smaller size that retains every page that was used again.
    Enough,
    /// A smaller size that evicts pages that were used again, which causes reads.
    TooSmall,
    /// A larger size, although the present cache has free buffers after [`SUPPORTING_AGE`].
    BuffersFree,
    /// A larger size that may help, because at least half of the present pages were used again.
    MayHelp,
    /// A larger size without a visible benefit, because most of the present pages were not used
    /// again.
    NoBenefit,
    /// The cache is younger than [`SUPPORTING_AGE`], and nothing shows that this size is too small
    /// or may help.
    TooYoung,
}

/// Usage count from which a page counts as hot: it survives that many passes of the clock sweep.
pub const HOT_USAGE: usize = 3;
/// Usage count from which a page was used again after it was read.
pub const REUSED_USAGE: usize = 2;

/// Age from which a cache supports claims that something is not needed: it has seen a day's work.
pub const SUPPORTING_AGE: Duration = Duration::from_secs(24 * 3600);

/// Assesses the present size of the cache, and a quarter, half, two and four times that size.
///
/// `usage` has the number of pages by usage count, `free` is the number of free buffers, and `age`
/// the time since the cache was empty, if known.
pub fn alternatives(
    buffers: u64,
    usage: [u64; 6],
    free: u64,
    age: Option<Duration>,
) -> Vec<Alternative> {
    let sizes = [(1, 4), (1, 2), (1, 1), (2, 1), (4, 1)];
    sizes
        .into_iter()
        .map(|(up, down)| assess_size(buffers * up / down, buffers, usage, free, age))
        .collect()
}

fn assess_size(
    size: u64,
    buffers: u64,
    usage: [u64; 6],
    free: u64,
    age: Option<Duration>,
) -> Alternative {
    let total: u64 = usage.iter().sum();
    let reused: u64 = usage[REUSED_USAGE..].iter().sum();
    let if_old = |assessment| match age {
        Some(age) if age >= SUPPORTING_AGE => assessment,
        _ => SizeAssessment::TooYoung,
    };
    let assessment = match size.cmp(&buffers) {
        std::cmp::Ordering::Equal => SizeAssessment::Present,
        std::cmp::Ordering::Less if size >= reused => if_old(SizeAssessment::Enough),
        std::cmp::Ordering::Less => SizeAssessment::TooSmall,
        std::cmp::Ordering::Greater if free > 0 => if_old(SizeAssessment::BuffersFree),
        // Half of the pages were used repeatedly: the sweep finds no easy victim.
        std::cmp::Ordering::Greater if reused * 2 >= total => SizeAssessment::MayHelp,
        std::cmp::Ordering::Greater => if_old(SizeAssessment::NoBenefit),
    };
    Alternative {
        buffers: size,
        kept: total.min(size),
        kept_reused: reused.min(size),
        lost_reused: reused.saturating_sub(size),
        assessment,
    }
}

impl SizeAssessment {
    /// Returns the assessment's name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Present => "present",
            Self::Enough => "enough",
            Self::TooSmall => "too small",
            Self::BuffersFree => "no use",
            Self::MayHelp => "may help",
            Self::NoBenefit => "no need seen",
            Self::TooYoung => "not known yet",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Option<Duration> = Some(SUPPORTING_AGE);
    const YOUNG: Option<Duration> = Some(Duration::from_secs(120));

    fn assess(usage: [u64; 6], free: u64, age: Option<Duration>) -> Vec<SizeAssessment> {
        alternatives(1000, usage, free, age).into_iter().map(|size| size.assessment).collect()
    }

    #[test]
    fn free_buffers_after_a_day_need_no_growth() {
        use SizeAssessment::{BuffersFree, Enough, Present, TooSmall};
        let assessed = assess([0, 100, 0, 0, 0, 300], 600, OLD);
        assert_eq!(assessed, [TooSmall, Enough, Present, BuffersFree, BuffersFree]);
    }

    #[test]
    fn young_cache_does_not_show_that_something_is_not_needed() {
        use SizeAssessment::{Present, TooSmall, TooYoung};
        let expected = [TooSmall, TooYoung, Present, TooYoung, TooYoung];
        for age in [YOUNG, None] {
            assert_eq!(assess([0, 100, 0, 0, 0, 300], 600, age), expected);
            // Right after a load, all pages have count 1.
            let loaded = [TooYoung, TooYoung, Present, TooYoung, TooYoung];
            assert_eq!(assess([0, 1000, 0, 0, 0, 0], 0, age), loaded);
        }
    }

    #[test]
    fn full_cache_is_assessed_by_repeated_use() {
        use SizeAssessment::{Enough, MayHelp, NoBenefit, Present, TooSmall};
        for age in [YOUNG, OLD] {
            let busy = assess([100, 100, 100, 0, 100, 600], 0, age);
            assert_eq!(busy, [TooSmall, TooSmall, Present, MayHelp, MayHelp]);
        }
        let scanned = assess([500, 300, 0, 0, 0, 200], 0, OLD);
        assert_eq!(scanned, [Enough, Enough, Present, NoBenefit, NoBenefit]);
    }

    #[test]
    fn assessment_and_figures_use_the_same_threshold() {
        // Pages of usage count 2 were used again, though they are not hot.
        let sizes = alternatives(1000, [0, 300, 400, 0, 0, 200], 100, OLD);
        let half = sizes[1];
        assert_eq!(
            (half.buffers, half.kept, half.kept_reused, half.lost_reused),
            (500, 500, 500, 100)
        );
        assert_eq!(half.assessment, SizeAssessment::TooSmall);
        for size in sizes {
            assert_eq!(size.lost_reused > 0, size.assessment == SizeAssessment::TooSmall);
            assert_eq!(size.kept_reused + size.lost_reused, 600);
        }
    }
}
