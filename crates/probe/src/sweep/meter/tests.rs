//! Tests with samples such as a server might produce.

use proptest::prelude::*;

use super::*;

const MS: Duration = Duration::from_millis(1);

/// 100 buffers; none free.
fn state(complete_passes: u32, next_victim: u32, allocations: u32) -> SweepState {
    SweepState { next_victim, complete_passes, allocations, has_free_buffers: false, buffers: 100 }
}

fn meter(state: SweepState) -> (Instant, SweepMeter) {
    let now = Instant::now();
    (now, SweepMeter::new(now, state, MS * 1000))
}

#[test]
fn row_excludes_counts_before_its_start() {
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
    assert_eq!((summary.passes_per_s, summary.samples), (Some((0.0, 2.5)), 3));
}

#[test]
fn allocation_counter_reset_is_detected() {
    let (begin, mut meter) = meter(state(0, 0, 1000));
    meter.add(begin + MS, state(0, 10, 1010)).unwrap();
    meter.add(begin + MS * 2, state(0, 20, 3)).unwrap();
    meter.add(begin + MS * 3, state(0, 30, 0)).unwrap();
    let summary = meter.summary();
    assert_eq!((summary.allocations, summary.resets), (13, 2));
}

#[test]
fn pass_counter_wraps() {
    let (begin, mut meter) = meter(state(u32::MAX, 90, 0));
    assert_eq!(meter.movement_to(&state(0, 10, 5)), HandMovement::NextPass);
    meter.add(begin + MS, state(0, 10, 5)).unwrap();
    assert_eq!(meter.summary().examined, 20);
}

#[test]
fn half_written_pass_is_awaited() {
    let (begin, mut meter) = meter(state(7, 95, 0));
    // The hand was wrapped, the pass not yet counted.
    assert_eq!(meter.movement_to(&state(7, 5, 2)), HandMovement::Backward);
    meter.add(begin + MS, state(7, 5, 2)).unwrap();
    assert_eq!(meter.summary().examined, 0);
    meter.add(begin + MS * 2, state(8, 15, 4)).unwrap();
    let summary = meter.summary();
    assert_eq!((summary.examined, summary.allocations), (20, 4));
}

#[test]
fn lasting_backward_hand_is_a_reset() {
    let (begin, mut meter) = meter(state(7, 95, 0));
    assert_eq!(meter.add(begin, state(0, 5, 2)), Ok(None));
    assert_eq!(meter.add(begin + MS * 900, state(0, 5, 2)), Ok(None));
    assert_eq!(meter.add(begin + MS * 1100, state(0, 6, 2)), Err(ClockHandReset));
}

#[test]
fn free_buffers_are_not_counted_as_swept() {
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
fn late_examinations_count_in_the_next_slice() {
    let (begin, mut meter) = meter(state(0, 0, 0));
    meter.add(begin + MS, state(0, 10, 1)).unwrap();
    meter.add(begin + MS * 2, state(0, 60, 1)).unwrap();
    meter.add(begin + MS * 3, state(0, 61, 2)).unwrap();
    let per = meter.summary().per_allocation.unwrap();
    assert_eq!((per.min, per.max, per.avg), (10.0, 51.0, 30.5));
}

proptest! {
    /// However the hand moves and whenever the counter is reset, rows add up to the summary, and to
    /// the distance the hand moved.
    #[test]
    fn rows_add_up_to_the_summary(
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
