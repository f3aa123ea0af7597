//! How finely the heat of pages is followed. Pages of one usage count that lie apart are read one by one,
//! and each run of them costs as much time as several pages in a row. So only as many classes are loaded
//! apart as the whole can bear; the cooler ones become one, in the order of the disk.

use super::{Wanted, classes};

/// What a run costs more than its pages, in pages: where files are cold, a page that was asked for ahead
/// takes some 25 µs, and one in a row 7.
const RUN_PAGES: u64 = 3;
/// Loading by classes may take a quarter longer than all at once.
const SHARE: u64 = 4;

/// What is not worth a thought.
const SMALL_PAGES: u64 = 256;

/// Makes one class of those that are too scattered to be loaded apart.
///
/// From the hottest on, a class stays as long as its runs can be paid. One that cannot is joined with the
/// next cooler, and so on; what they are together has their mean heat, by which it stands among those of
/// other relations.
pub(super) fn blend(pages: &mut [Wanted]) {
    let mut purse = (pages.len() as u64 / SHARE).max(SMALL_PAGES);
    let classes = classes(pages);
    // Of those that are joined, the hottest.
    let mut top = None;
    for (at, &class) in classes.iter().enumerate().rev() {
        let hottest = top.unwrap_or(class);
        if at > 0 {
            let cost = runs(pages, class, hottest) * RUN_PAGES;
            if cost > purse {
                top = Some(hottest);
                continue;
            }
            purse -= cost;
        }
        join(pages, class, hottest);
        top = None;
    }
}

/// Runs of the pages whose class is in `low..=high`, over all that are hotter.
fn runs(pages: &[Wanted], low: u8, high: u8) -> u64 {
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

fn join(pages: &mut [Wanted], low: u8, high: u8) {
    if low == high {
        return;
    }
    let ours = |page: &&mut Wanted| (low..=high).contains(&page.class);
    let (sum, count) = pages
        .iter_mut()
        .filter(ours)
        .fold((0, 0), |(sum, count), page| (sum + u64::from(page.class), count + 1));
    // A mean of theirs, so it fits.
    let mean = ((sum + count / 2) / count.max(1)) as u8;
    pages.iter_mut().filter(ours).for_each(|page| page.class = mean);
}
