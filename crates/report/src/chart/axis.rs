//! Linear axes and tick positions.

/// A linear axis that maps values `from..to` to positions `begin..end`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Axis {
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl Axis {
    /// Creates an axis. If the range is a single value, it is extended by one.
    pub(crate) fn new((from, to): (f64, f64), (begin, end): (f64, f64)) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self { from, to, begin, end }
    }

    /// Returns the length on the axis that corresponds to a difference of values.
    pub(crate) fn length(&self, difference: f64) -> f64 {
        (difference / (self.to - self.from) * (self.end - self.begin)).abs()
    }

    /// Returns the position of a value. Values outside the range are clamped to its ends.
    pub(crate) fn position(&self, value: f64) -> f64 {
        let share = ((value - self.from) / (self.to - self.from)).clamp(0.0, 1.0);
        self.begin + share * (self.end - self.begin)
    }
}

/// Returns about `count` round numbers from 0 to `end`.
pub(crate) fn ticks(end: f64, count: f64) -> Vec<f64> {
    let rough = end / count;
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(power * 10.0);
    // NaN, or an empty range: a chart without data has no ticks.
    if !step.is_normal() {
        return vec![0.0];
    }
    (0..100).map(|number| f64::from(number) * step).take_while(|tick| *tick <= end).collect()
}

/// Returns powers of ten that cover `from` to `to`: the ends and ticks of a logarithmic axis.
pub(crate) fn decade_ticks(from: f64, to: f64) -> Vec<f64> {
    let power = |value: f64| value.max(1e-12).log10();
    let (first, last) = (power(from).floor() as i32, power(to).ceil() as i32);
    (first..=last.max(first + 1)).map(|power| 10_f64.powi(power)).collect()
}

/// Returns up to about ten ticks from `from` to `to`, in seconds since the Unix epoch, at steps
/// that are usual for clocks.
pub(crate) fn time_ticks(from: f64, to: f64) -> Vec<f64> {
    const STEPS: [f64; 16] = [
        1.0, 2.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 900.0, 1800.0, 3600.0, 7200.0,
        21_600.0, 86_400.0,
    ];
    let rough = (to - from) / 10.0;
    let step = STEPS.into_iter().find(|step| *step >= rough);
    let step = step.unwrap_or_else(|| (rough / 86_400.0).ceil() * 86_400.0);
    let first = (from / step).ceil();
    (0..20)
        .map(|number| (first + f64::from(number)) * step)
        .take_while(|tick| *tick <= to)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(ticks(22.0, 5.0), [0.0, 5.0, 10.0, 15.0, 20.0]);
        assert_eq!(ticks(4.0, 5.0), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks(28_000.0, 5.0), [0.0, 10_000.0, 20_000.0]);
        assert_eq!((ticks(0.0, 5.0), ticks(f64::NAN, 5.0)), (vec![0.0], vec![0.0]));
        assert_eq!(decade_ticks(3e-5, 0.2), [1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0]);
        assert_eq!(decade_ticks(1.0, 1.0), [1.0, 10.0]);
    }

    #[test]
    fn time_ticks_fall_on_clock_steps() {
        assert_eq!(time_ticks(3601.0, 3690.0).first(), Some(&3610.0));
        assert_eq!(time_ticks(0.0, 1800.0)[1], 300.0);
        assert!(time_ticks(0.0, 1e7).len() <= 20);
    }

    #[test]
    fn values_beyond_the_axis_are_clamped() {
        let axis = Axis::new((0.0, 10.0), (100.0, 0.0));
        assert_eq!(
            [axis.position(0.0), axis.position(5.0), axis.position(99.0)],
            [100.0, 50.0, 0.0]
        );
        assert_eq!(Axis::new((3.0, 3.0), (0.0, 1.0)).position(3.0), 0.0);
    }
}
