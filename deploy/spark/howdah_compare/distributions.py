"""Distributions, sums and medians: `crates/compare/src/statistics/{student,gamma}.rs`."""

import functools
import math
import operator


def total(values):
    """The sum in the order of the values. The built-in `sum` rounds otherwise in some versions of Python."""
    return functools.reduce(operator.add, values, 0.0)


def mean(values):
    return total(values) / len(values)


def median(values):
    values = sorted(values)
    middle = len(values) // 2
    if not values:
        return None
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2


def rounded(value):
    """A value of at least 0, rounded half up: the built-in `round` rounds half to even."""
    whole = math.floor(value)
    return whole + 1 if value - whole >= 0.5 else whole


def exp(value):
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def p_two_sided(t, df):
    if not math.isfinite(t):
        return 0.0
    return min(max(incomplete_beta(df / 2.0, 0.5, df / (df + t * t)), 0.0), 1.0)


def p_variance_ratio(ratio, df, other_df):
    p = incomplete_beta(other_df / 2.0, df / 2.0, other_df / (other_df + df * ratio))
    return min(max(p, 0.0), 1.0)


def critical(p, df):
    """The value that the absolute value of t exceeds with probability `p`."""
    low, high = 0.0, 1.0
    while p_two_sided(high, df) > p and high < 1e9:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2
        if p_two_sided(middle, df) > p:
            low = middle
        else:
            high = middle
    return high


def incomplete_beta(a, b, x):
    """I_x(a, b): DLMF 8.17.22, evaluated with Lentz's method."""
    if x <= 0.0 or x >= 1.0:
        return min(max(x, 0.0), 1.0)
    if x > (a + 1.0) / (a + b + 2.0):
        return 1.0 - incomplete_beta(b, a, 1.0 - x)
    front = math.exp(a * math.log(x) + b * math.log(1.0 - x) + ln_gamma(a + b) - ln_gamma(a) - ln_gamma(b))
    c = 1.0
    d = 1.0 / away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    fraction = d
    for step in range(1, 500):
        m = float(step)
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        before = fraction
        for term in (even, odd):
            d = 1.0 / away_from_zero(1.0 + term * d)
            c = away_from_zero(1.0 + term / c)
            fraction *= c * d
        if abs(fraction / before - 1.0) < 1e-15:
            break
    return front * fraction / a


def away_from_zero(value):
    return 1e-300 if abs(value) < 1e-300 else value


def ln_gamma(x):
    """ln Γ: DLMF 5.11.1, after moving the argument above 10."""
    shifted, product = x, 1.0
    while shifted < 10.0:
        product *= shifted
        shifted += 1.0
    inverse = 1.0 / shifted
    square = inverse * inverse
    series = inverse * (1.0 / 12.0 - square * (1.0 / 360.0 - square * (1.0 / 1260.0 - square / 1680.0)))
    return (shifted - 0.5) * math.log(shifted) - shifted + 0.5 * math.log(math.tau) + series - math.log(product)


def digamma(x):
    summed = 0.0
    while x < 10.0:
        summed -= 1.0 / x
        x += 1.0
    square = 1.0 / (x * x)
    series = square * (1.0 / 12.0 - square * (1.0 / 120.0 - square * (1.0 / 252.0)))
    return summed + math.log(x) - 0.5 / x - series


def trigamma(x):
    summed = 0.0
    while x < 10.0:
        summed += 1.0 / (x * x)
        x += 1.0
    square = 1.0 / (x * x)
    series = 1.0 / 6.0 - square * (1.0 / 30.0 - square * (1.0 / 42.0 - square / 30.0))
    return summed + 1.0 / x + 0.5 * square + square / x * series


def inverse_trigamma(value):
    if value <= 0.0:
        return math.inf
    low, high = math.log(1e-8), math.log(1e8)
    for _ in range(100):
        middle = (low + high) / 2
        if trigamma(math.exp(middle)) > value:
            low = middle
        else:
            high = middle
    return math.exp(high)
