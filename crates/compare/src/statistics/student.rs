//! Student's t and Fisher's F distributions.

/// Returns the two-sided p-value of `t` with `df` degrees of freedom: the probability of a value at
/// least as far from zero.
pub(crate) fn p_two_sided(t: f64, df: f64) -> f64 {
    if !t.is_finite() {
        return 0.0;
    }
    incomplete_beta(df / 2.0, 0.5, df / (df + t * t)).clamp(0.0, 1.0)
}

/// Returns the probability that a ratio of two variances with `df` and `other_df` degrees of
/// freedom exceeds `ratio`, if the variances are equal (Fisher's F distribution).
pub(crate) fn p_variance_ratio(ratio: f64, df: f64, other_df: f64) -> f64 {
    incomplete_beta(other_df / 2.0, df / 2.0, other_df / (other_df + df * ratio)).clamp(0.0, 1.0)
}

/// Returns the value that the absolute value of t exceeds with probability `p`.
pub(crate) fn critical(p: f64, df: f64) -> f64 {
    let (mut low, mut high) = (0.0, 1.0);
    while p_two_sided(high, df) > p && high < 1e9 {
        high *= 2.0;
    }
    for _ in 0..80 {
        let middle = f64::midpoint(low, high);
        if p_two_sided(middle, df) > p {
            low = middle;
        } else {
            high = middle;
        }
    }
    high
}

/// Returns the regularised incomplete beta function I_x(a, b), by the continued fraction of DLMF
/// 8.17.22, evaluated with Lentz's method.
fn incomplete_beta(a: f64, b: f64, x: f64) -> f64 {
    if x <= 0.0 || x >= 1.0 {
        return x.clamp(0.0, 1.0);
    }
    // The fraction converges fast only on this side of the mean; the other side is its mirror
    // image.
    if x > (a + 1.0) / (a + b + 2.0) {
        return 1.0 - incomplete_beta(b, a, 1.0 - x);
    }
    let front =
        (a * x.ln() + b * (1.0 - x).ln() + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b)).exp();
    let away_from_zero = |value: f64| if value.abs() < 1e-300 { 1e-300 } else { value };
    let mut c = 1.0;
    let mut d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0));
    let mut fraction = d;
    for step in 1..500 {
        let m = f64::from(step);
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        let before = fraction;
        for term in [even, odd] {
            d = 1.0 / away_from_zero(1.0 + term * d);
            c = away_from_zero(1.0 + term / c);
            fraction *= c * d;
        }
        if (fraction / before - 1.0).abs() < 1e-15 {
            break;
        }
    }
    front * fraction / a
}

/// Returns the logarithm of Γ, by Stirling's series (DLMF 5.11.1) after moving the argument above
/// 10.
fn ln_gamma(x: f64) -> f64 {
    let mut shifted = x;
    let mut product = 1.0;
    while shifted < 10.0 {
        product *= shifted;
        shifted += 1.0;
    }
    let inverse = 1.0 / shifted;
    let square = inverse * inverse;
    let series =
        inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)));
    (shifted - 0.5) * shifted.ln() - shifted + 0.5 * std::f64::consts::TAU.ln() + series
        - product.ln()
}

#[cfg(test)]
fn close(left: f64, right: f64, tolerance: f64) {
    assert!((left - right).abs() <= tolerance * right.abs(), "{left} is not {right}");
}

#[test]
fn gamma_matches_known_values() {
    close(ln_gamma(5.0), 24.0_f64.ln(), 1e-10);
    close(ln_gamma(0.5), std::f64::consts::PI.sqrt().ln(), 1e-9);
    close(ln_gamma(20.0), 121_645_100_408_832_000.0_f64.ln(), 1e-12);
}

/// One and two degrees of freedom have closed forms; the others are from printed tables.
#[test]
fn p_values_match_closed_forms_and_tables() {
    for t in [0.1, 0.5, 1.0, 3.0, 30.0_f64] {
        close(p_two_sided(t, 1.0), 1.0 - 2.0 * t.atan() / std::f64::consts::PI, 1e-9);
        close(p_two_sided(t, 2.0), 1.0 - t / (2.0 + t * t).sqrt(), 1e-9);
    }
    assert_eq!(p_two_sided(0.0, 7.0), 1.0);
    for (df, t) in [(5.0, 2.571), (10.0, 2.228), (30.0, 2.042), (120.0, 1.980)] {
        close(critical(0.05, df), t, 5e-4);
    }
    close(critical(0.01, 38.0), 2.712, 5e-4);
    assert_eq!(p_two_sided(f64::INFINITY, 9.0), 0.0);
    for (ratio, df, other_df) in [(6.388, 4.0, 4.0), (3.478, 4.0, 10.0), (2.447, 4.0, 100.0)] {
        close(p_variance_ratio(ratio, df, other_df), 0.05, 0.03);
    }
    for t in [0.5, 2.0, 4.0] {
        close(p_variance_ratio(t * t, 1.0, 7.0), p_two_sided(t, 7.0), 1e-9);
    }
}
