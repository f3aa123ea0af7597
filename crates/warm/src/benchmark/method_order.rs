//! Orders the methods of each run, so that no method always comes first or last.

use crate::benchmark::results::WarmMethod;

/// Returns the order of `methods` in run `run`, counted from 0.
///
/// Each run starts with the next method, so after as many runs as methods, each one was measured
/// once in each position. The runs after that do the same in reverse order, so that each method
/// also comes after each other one.
pub(crate) fn method_order(methods: &[WarmMethod], run: u32) -> Vec<WarmMethod> {
    let count = methods.len().max(1);
    let (cycle, start) = (run as usize / count, run as usize % count);
    let mut order = methods.to_vec();
    if cycle % 2 == 1 {
        order.reverse();
    }
    // Without methods, there is nothing to rotate.
    order.rotate_left(if methods.is_empty() { 0 } else { start });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_each_position_once() {
        for cycle in 0..3 {
            let orders: Vec<_> =
                (0..3).map(|run| method_order(&WarmMethod::ALL, cycle * 3 + run)).collect();
            for position in 0..3 {
                for method in WarmMethod::ALL {
                    let count = orders.iter().filter(|order| order[position] == method).count();
                    assert_eq!(count, 1, "{orders:?}");
                }
            }
        }
    }

    #[test]
    fn two_methods_alternate() {
        let methods = [WarmMethod::NoWarming, WarmMethod::Howdah];
        assert_eq!(method_order(&methods, 0), methods);
        assert_eq!(method_order(&methods, 1), [WarmMethod::Howdah, WarmMethod::NoWarming]);
        assert_eq!(method_order(&[], 5), []);
    }

    #[test]
    fn second_cycle_reverses_the_neighbours() {
        use WarmMethod::{Autoprewarm, Howdah, NoWarming};
        assert_eq!(method_order(&WarmMethod::ALL, 1), [Autoprewarm, Howdah, NoWarming]);
        assert_eq!(method_order(&WarmMethod::ALL, 3), [Howdah, Autoprewarm, NoWarming]);
        assert_eq!(method_order(&WarmMethod::ALL, 4), [Autoprewarm, NoWarming, Howdah]);
    }
}
