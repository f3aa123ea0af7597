//! Merges usage classes that are too scattered. Scattered pages of one class are read one by one,
//! and each run costs as much time as several consecutive pages. So only as many classes are loaded
//! separately as the plan can afford; cooler ones are merged and loaded in disk order.

use super::{PlannedPage, usage_classes};

/// Cost of a run in addition to its pages, in pages: with cold files, a prefetched page takes about
/// 25 µs, a consecutive one 7 µs.
const RUN_COST_PAGES: u64 = 3;
/// Divisor of the cost of loading all pages at once; the quotient is the extra cost that loading
/// class by class may have.
const BUDGET_DIVISOR: u64 = 4;

/// Extra cost that is always acceptable, in pages.
const BUDGET_PAGES_MIN: u64 = 256;

/// Merges classes that are too scattered to be loaded separately.
///
/// From the hottest down, a class stays separate as long as the budget covers its runs. A class
/// that is too expensive is merged with the next cooler class, and so on. The merged class has the
/// mean usage of its pages, which determines its order among those of other relations.
pub(super) fn merge_scattered_classes(pages: &mut [PlannedPage]) {
    let mut budget = (pages.len() as u64 / BUDGET_DIVISOR).max(BUDGET_PAGES_MIN);
    let classes = usage_classes(pages);
    // The hottest of the classes being merged.
    let mut top = None;
    for (at, &class) in classes.iter().enumerate().rev() {
        let hottest = top.unwrap_or(class);
        if at > 0 {
            let cost = count_runs(pages, class, hottest) * RUN_COST_PAGES;
            if cost > budget {
                top = Some(hottest);
                continue;
            }
            budget -= cost;
        }
        merge_classes(pages, class, hottest);
        top = None;
    }
}

/// Counts the runs of pages with a class in `low..=high`, continuing over hotter pages.
fn count_runs(pages: &[PlannedPage], low: u8, high: u8) -> u64 {
    let (mut runs, mut next, mut is_counted) = (0, None, false);
    for page in pages.iter().filter(|page| page.class >= low) {
        if next != Some(page.block) {
            is_counted = false;
        }
        if page.class <= high && !is_counted {
            (runs, is_counted) = (runs + 1, true);
        }
        next = page.block.checked_add(1);
    }
    runs
}

fn merge_classes(pages: &mut [PlannedPage], low: u8, high: u8) {
    if low == high {
        return;
    }
    let ours = |page: &&mut PlannedPage| (low..=high).contains(&page.class);
    let (sum, count) = pages
        .iter_mut()
        .filter(ours)
        .fold((0, 0), |(sum, count), page| (sum + u64::from(page.class), count + 1));
    // A mean of u8 values, so it fits.
    let mean = ((sum + count / 2) / count.max(1)) as u8;
    pages.iter_mut().filter(ours).for_each(|page| page.class = mean);
}
