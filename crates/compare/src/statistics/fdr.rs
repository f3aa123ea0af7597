//! Multiple testing: p-values adjusted for the number of tests.

/// Adjusts p-values so that, of all tests called significant at a level, the expected share of
/// false ones is at most that level.
///
/// Source: Benjamini and Hochberg, Controlling the false discovery rate, 1995. The result is in the
/// order of the input.
pub(crate) fn benjamini_hochberg(p_values: &[f64]) -> Vec<f64> {
    let count = p_values.len();
    let mut order: Vec<usize> = (0..count).collect();
    order.sort_by(|&left, &right| p_values[left].total_cmp(&p_values[right]));
    let mut adjusted = vec![1.0; count];
    let mut smallest = 1.0_f64;
    for (rank, &index) in order.iter().enumerate().rev() {
        smallest = smallest.min(p_values[index] * count as f64 / (rank + 1) as f64);
        adjusted[index] = smallest;
    }
    adjusted
}

/// Computed by hand: ranks 1..5 of 5 give 0.005·5, 0.009·5/2, 0.02·5/3, 0.04·5/4, 0.5, each capped
/// by the next.
#[test]
fn p_values_match_manual_calculation() {
    let adjusted = benjamini_hochberg(&[0.04, 0.005, 0.5, 0.009, 0.02]);
    let expected = [0.05, 0.0225, 0.5, 0.0225, 0.02 * 5.0 / 3.0];
    for (got, want) in adjusted.iter().zip(expected) {
        assert!((got - want).abs() < 1e-12, "{adjusted:?}");
    }
    assert!(benjamini_hochberg(&[]).is_empty());
}
