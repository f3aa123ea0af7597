"""The shift of one sample against another by ranks, and the interval of a ratio of means by resampling:
`crates/compare/src/statistics/{shift,bootstrap,random}.rs`."""

import bisect
import math
import sys

from .distributions import critical, mean, p_two_sided, rounded, total

BLOCKS = 20
ROUNDS = 400
MASK = (1 << 64) - 1


def blocks(values, count=BLOCKS):
    """The values in at most `count` blocks of neighbours whose lengths differ by at most one."""
    count = min(count, len(values))
    return [values[i * len(values) // count : (i + 1) * len(values) // count] for i in range(count)]


def shift(base, run, confidence, margin):
    """Hodges and Lehmann's estimate of the shift, with its interval and p-values."""
    differences = Differences(base, run)
    estimate = differences.median()
    error, df = standard_error(base, run, estimate, differences)

    def p_under(shift):
        theta = mean(placements(run, differences.base, -shift))
        return p_two_sided((theta - 0.5) / error, df)

    half_width = critical(1.0 - confidence, df) * error
    is_inside = abs(estimate) <= margin
    return {
        "estimate": estimate,
        "low": differences.quantile(0.5 - half_width),
        "high": differences.quantile(0.5 + half_width),
        "p": p_under(0.0),
        "p_beyond_margin": 1.0 if is_inside else p_under(math.copysign(margin, estimate)),
    }


def pseudo_median(values):
    """The median of the means of all pairs."""
    return Differences([-value for value in values], values).median() / 2.0


def standard_error(base, run, shift, differences):
    base_var, base_df = clustered_variance(placements(base, differences.run, shift))
    run_var, run_df = clustered_variance(placements(run, differences.base, -shift))
    variance = base_var + run_var
    step = 0.5 / min(len(base), len(run))
    if variance <= step * step:
        return step, float(BLOCKS - 1)
    df = variance * variance / (base_var * base_var / max(base_df, 1.0) + run_var * run_var / max(run_df, 1.0))
    return math.sqrt(variance), df


def placements(values, others, offset):
    """For each value plus `offset`, the share of `others`, which are sorted, below it; ties count half."""
    tie, seen = 1e-9, {}
    for value in values:
        if value not in seen:
            moved = value + offset
            below = bisect.bisect_left(others, moved - tie)
            not_above = bisect.bisect_right(others, moved + tie)
            seen[value] = float(below + not_above) / float(2 * len(others))
    return [seen[value] for value in values]


def clustered_variance(values):
    short = variance_over(values, BLOCKS)
    if len(values) < 8 * 10:
        return short
    long = variance_over(values, 8)
    return long if long[0] > short[0] else short


def variance_over(values, count):
    center, parts = mean(values), blocks(values, count)
    count = float(len(parts))
    if count < 2.0:
        return 0.0, 0.0
    sums = [total(value - center for value in part) for part in parts]
    squares = total(value * value for value in sums)
    size = float(len(values))
    return squares * count / (count - 1.0) / (size * size), count - 1.0


class Differences:
    """All differences between the values of two samples, computed when needed.

    Durations are whole microseconds, so many values are equal: each distinct one is stored with its count.
    """

    def __init__(self, base, run):
        self.base, self.run = sorted(base), sorted(run)
        self.base_values, self.base_counts = distinct(self.base)
        self.run_values, run_counts = distinct(self.run)
        self.run_below = [0]
        for count in run_counts:
            self.run_below.append(self.run_below[-1] + count)
        self.count = len(base) * len(run)

    def median(self):
        lower = self.smallest(-(-self.count // 2))
        return lower if self.count % 2 else (lower + self.smallest(self.count // 2 + 1)) / 2

    def quantile(self, share):
        rank = min(max(share * self.count, 1.0), float(self.count))
        return self.smallest(rounded(rank))

    def smallest(self, rank):
        """The `rank`th smallest difference, counting from 1, up to rounding errors."""
        low, high = self.run[0] - self.base[-1], self.run[-1] - self.base[0]
        if self.count_at_most(low) >= rank:
            return low
        for _ in range(60):
            middle = (low + high) / 2
            if middle in (low, high):
                break
            if self.count_at_most(middle) >= rank:
                high = middle
            else:
                low = middle
        return high

    def count_at_most(self, limit):
        run, below, size = self.run_values, self.run_below, len(self.run_values)
        at, count = 0, 0
        for value, times in zip(self.base_values, self.base_counts):
            while at < size and run[at] - value <= limit:
                at += 1
            count += below[at] * times
        return count


def distinct(values):
    """The distinct values of a sorted list, and how often each occurs."""
    found, counts = [], []
    for value in values:
        if found and found[-1] == value:
            counts[-1] += 1
        else:
            found.append(value)
            counts.append(1)
    return found, counts


def mean_ratio_interval(base, run, confidence, seed):
    """The interval of the ratio of means when blocks of neighbours in time are drawn with replacement.

    Durations are whole numbers, so the sums of blocks are exact in any order.
    """
    random = SeededRandom(seed)
    sides = [[(total(block), len(block)) for block in blocks(values)] for values in (run, base)]

    def resampled_mean(parts):
        drawn = [parts[random.below(len(parts))] for _ in parts]
        return total(part[0] for part in drawn) / float(sum(part[1] for part in drawn))

    ratios = []
    for _ in range(ROUNDS):
        run_mean, base_mean = [resampled_mean(parts) for parts in sides]
        ratios.append(run_mean / max(base_mean, sys.float_info.min))
    ratios.sort()
    cut = int((1.0 - confidence) / 2.0 * ROUNDS)
    return ratios[cut], ratios[ROUNDS - 1 - cut]


class SeededRandom:
    """SplitMix64. Its nth number depends on the seed and n only."""

    def __init__(self, seed):
        self.state = seed

    def skip(self, count):
        self.state = (self.state + 0x9E3779B97F4A7C15 * count) & MASK

    def below(self, bound):
        self.skip(1)
        mixed = ((self.state ^ (self.state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        return ((mixed ^ (mixed >> 31)) * bound) >> 64

