//! Derivatives of the logarithm of the gamma function.
//!
//! Source: NIST Digital Library of Mathematical Functions, 5.5.2, 5.11.2 and 5.15.8: the argument
//! is moved above 10 by the recurrence, where the asymptotic series is exact to 1e-10.

/// Returns ψ(x), the first derivative of ln Γ(x), for x > 0.
pub(crate) fn digamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0)));
    sum + x.ln() - 0.5 / x - series
}

/// Returns ψ′(x), the second derivative of ln Γ(x), for x > 0.
pub(crate) fn trigamma(mut x: f64) -> f64 {
    let mut sum = 0.0;
    while x < 10.0 {
        sum += 1.0 / (x * x);
        x += 1.0;
    }
    let square = 1.0 / (x * x);
    let series = 1.0 / 6.0 - square * (1.0 / 30.0 - square * (1.0 / 42.0 - square / 30.0));
    sum + 1.0 / x + 0.5 * square + square / x * series
}

/// Returns the x > 0 with ψ′(x) = `value`; infinity if `value` is not positive.
pub(crate) fn inverse_trigamma(value: f64) -> f64 {
    if value <= 0.0 {
        return f64::INFINITY;
    }
    // ψ′ falls from infinity to 0, so a bisection of the logarithm always converges.
    let (mut low, mut high) = (1e-8_f64.ln(), 1e8_f64.ln());
    for _ in 0..100 {
        let middle = f64::midpoint(low, high);
        if trigamma(middle.exp()) > value {
            low = middle;
        } else {
            high = middle;
        }
    }
    high.exp()
}

#[test]
fn derivatives_match_known_values() {
    const EULER: f64 = 0.577_215_664_901_532_9;
    assert!((digamma(1.0) + EULER).abs() < 1e-10);
    assert!((digamma(0.5) + EULER + 2.0 * 2.0_f64.ln()).abs() < 1e-10);
    let basel = std::f64::consts::PI.powi(2) / 6.0;
    assert!((trigamma(1.0) - basel).abs() < 1e-10);
    assert!((trigamma(0.5) - 3.0 * basel).abs() < 1e-9);
    for x in [0.3, 1.0, 2.5, 40.0] {
        assert!((inverse_trigamma(trigamma(x)) / x - 1.0).abs() < 1e-8);
    }
    assert_eq!(inverse_trigamma(-1.0), f64::INFINITY);
}
