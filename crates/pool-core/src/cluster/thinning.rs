//! [`thin`]: thins a history so that older entries are further apart.

use std::collections::VecDeque;

/// Thinning creates gaps of at most 1/16 of the age of the older entry next to them.
const RESOLUTION: u64 = 16;

/// Thins out `entries`, which are in order of time: removes each entry whose neighbors are at most
/// a sixteenth of the older one's age apart. The number of remaining entries grows with the
/// logarithm of the time span. If at least `most` entries are left, the oldest is removed.
pub(super) fn thin<T>(entries: &mut VecDeque<T>, most: usize, time: impl Fn(&T) -> u64) {
    let Some(newest) = entries.back().map(&time) else { return };
    let times: Vec<u64> = entries.iter().map(time).collect();
    let mut is_kept = vec![true; times.len()];
    let mut last = newest;
    for at in (1..times.len().saturating_sub(1)).rev() {
        let older = times[at - 1];
        is_kept[at] = last.saturating_sub(older) > newest.saturating_sub(older) / RESOLUTION;
        if is_kept[at] {
            last = times[at];
        }
    }
    let mut is_kept = is_kept.into_iter();
    entries.retain(|_| is_kept.next() == Some(true));
    if entries.len() >= most {
        entries.pop_front();
    }
}

#[test]
fn thinned_history_is_short_and_reaches_far_back() {
    let mut entries = VecDeque::new();
    let mut most = 0;
    for time in 0..1_000_000_u64 {
        if entries.len() >= 512 {
            thin(&mut entries, 512, |it| *it);
            most = most.max(entries.len());
        }
        entries.push_back(time);
    }
    assert!(most < 450, "{most}");
    for age in [1, 10, 1000, 50_000, 900_000] {
        let wanted = 999_999 - age;
        let found = entries.iter().rev().find(|it| **it <= wanted).unwrap();
        assert!(wanted - found <= age / 8, "{age}: {found}");
    }
}
