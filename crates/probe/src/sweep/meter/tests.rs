//! Readings as a server might give them.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// 100 buffers; none free.
fn state(complete_passes: u32, next_victim: u32, allocations: u32) -> SweepState {
    SweepState { next_victim, complete_passes, allocations, has_free_buffers: false, buffers: 100 }
}

fn meter(state: SweepState) -> (Instant, Meter) {
    let now = Instant::now();
    (now, Meter::new(now, state, MS * 1000))
}

#[test]
fn a_row_is_what_came_in_it_and_not_before() {
    let (begin, mut meter) = meter(state(5000, 90, 7));
    assert_eq!(meter.add(begin + MS, state(5000, 95, 8)), Ok(None));
    let row = meter.add(begin + MS * 1000, state(5003, 40, 18)).unwrap().unwrap();
    assert_eq!((row.examined, row.allocations), (250, 11));
    assert_eq!((row.hand, row.complete_passes), (40, 5003));
    assert_eq!((row.passes(), row.passes_per_s()), (2.5, 2.5));
    assert_eq!(row.per_allocation, Some(PerAllocation { min: 5.0, avg: 250.0 / 11.0, max: 24.5 }));
    let row = meter.add(begin + MS * 3000, state(5003, 40, 18)).unwrap().unwrap();
    assert_eq!((row.elapsed, row.at), (MS * 2000, MS * 3000));
    assert_eq!((row.examined, row.allocations, row.per_allocation), (0, 0, None));
    let summary = meter.summary();
    assert_eq!((summary.allocations, summary.swept, summary.examined), (11, 11, 250));
    assert_eq!((summary.passes_per_s, summary.looks), (Some((0.0, 2.5)), 3));
}

#[test]
fn the_count_of_allocations_is_set_to_zero_now_and_then() {
    let (begin, mut meter) = meter(state(0, 0, 1000));
    meter.add(begin + MS, state(0, 10, 1010)).unwrap();
    meter.add(begin + MS * 2, state(0, 20, 3)).unwrap();
    meter.add(begin + MS * 3, state(0, 30, 0)).unwrap();
    let summary = meter.summary();
    assert_eq!((summary.allocations, summary.resets), (13, 2));
}

#[test]
fn passes_wrap() {
    let (begin, mut meter) = meter(state(u32::MAX, 90, 0));
    assert_eq!(meter.step(&state(0, 10, 5)), Step::Passed);
    meter.add(begin + MS, state(0, 10, 5)).unwrap();
    assert_eq!(meter.summary().examined, 20);
}

#[test]
fn a_pass_that_is_half_written_is_waited_for() {
    let (begin, mut meter) = meter(state(7, 95, 0));
    // The hand was set back, the pass not counted yet.
    assert_eq!(meter.step(&state(7, 5, 2)), Step::Back);
    meter.add(begin + MS, state(7, 5, 2)).unwrap();
    assert_eq!(meter.summary().examined, 0);
    meter.add(begin + MS * 2, state(8, 15, 4)).unwrap();
    let summary = meter.summary();
    assert_eq!((summary.examined, summary.allocations), (20, 4));
}

#[test]
fn a_hand_that_stays_back_is_another_server_s() {
    let (begin, mut meter) = meter(state(7, 95, 0));
    assert_eq!(meter.add(begin, state(0, 5, 2)), Ok(None));
    assert_eq!(meter.add(begin + MS * 900, state(0, 5, 2)), Ok(None));
    assert_eq!(meter.add(begin + MS * 1100, state(0, 6, 2)), Err(WentBack));
}

#[test]
fn free_buffers_are_handed_out_without_a_sweep() {
    let free =
        |allocations, has_free_buffers| SweepState { has_free_buffers, ..state(0, 0, allocations) };
    let (begin, mut meter) = meter(free(0, true));
    meter.add(begin + MS, free(40, true)).unwrap();
    meter.add(begin + MS * 2, free(50, false)).unwrap();
    meter.add(begin + MS * 3, state(0, 12, 54)).unwrap();
    let summary = meter.summary();
    assert_eq!((summary.allocations, summary.swept), (54, 4));
    assert_eq!(summary.per_allocation.unwrap().max, 3.0);
}

#[test]
fn what_is_looked_at_after_a_count_goes_with_the_next() {
    let (begin, mut meter) = meter(state(0, 0, 0));
    meter.add(begin + MS, state(0, 10, 1)).unwrap();
    meter.add(begin + MS * 2, state(0, 60, 1)).unwrap();
    meter.add(begin + MS * 3, state(0, 61, 2)).unwrap();
    let per = meter.summary().per_allocation.unwrap();
    assert_eq!((per.min, per.max, per.avg), (10.0, 51.0, 30.5));
}

proptest! {
    /// However the hand moves and whenever the count is lost, rows add up to the summary, and the way of
    /// the hand to what it is.
    #[test]
    fn rows_add_up(
        start in any::<u32>(),
        steps in prop::collection::vec((0_u32..1000, 0_u32..50, prop::bool::weighted(0.1), 1_u64..2000), 1..300),
    ) {
        let (mut now, mut meter) = meter(state(start, 0, 0));
        let (mut hand, mut allocations, mut counted, mut rows) = (0_u64, 0_u32, 0_u64, (0, 0));
        for (way, handed_out, is_reset, ms) in steps {
            hand += u64::from(way);
            allocations = if is_reset { 0 } else { allocations } + handed_out;
            now += Duration::from_millis(ms);
            let passes = start.wrapping_add((hand / 100) as u32);
            let before = meter.last.allocations;
            counted += u64::from(if allocations < before { allocations } else { allocations - before });
            if let Some(row) = meter.add(now, state(passes, (hand % 100) as u32, allocations)).unwrap() {
                rows = (rows.0 + row.examined, rows.1 + row.allocations);
            }
        }
        let summary = meter.summary();
        prop_assert_eq!((summary.examined, summary.allocations), (hand, counted));
        prop_assert_eq!((rows.0 + meter.row.examined, rows.1 + meter.row.allocations), (hand, counted));
        prop_assert_eq!(summary.swept, counted);
    }
}
