"""The shift of each query between two sides of several runs, with the variance between runs:
`crates/compare/src/statistics/between_runs.rs`, which describes the model."""

import math

from .distributions import (
    critical,
    digamma,
    inverse_trigamma,
    mean,
    median,
    p_two_sided,
    p_variance_ratio,
    rounded,
    total,
    trigamma,
)

QUERIES_MIN = 5
REST_MIN = 0.01
EFFECT_USUAL = 0.05
EFFECT_USUAL_DF = 4.0
EXCEPTIONAL_MAX = 0.01
DF_MAX = 100.0


class Estimate:
    """A shift with its standard error and degrees of freedom."""

    def __init__(self, estimate, standard_error, df):
        self.estimate, self.standard_error, self.df = estimate, standard_error, df

    def half_width(self, confidence):
        return critical(1.0 - confidence, self.df) * self.standard_error

    def p_beyond(self, margin):
        beyond = abs(self.estimate) - margin
        if beyond <= 0.0 and margin > 0.0:
            return 1.0
        return p_two_sided(beyond / self.standard_error, self.df)


class Limits:
    """The smallest shifts that count: the minimum change, and the shift of the machine."""

    def __init__(self, minimum, machine):
        self.minimum, self.machine = minimum, machine
        self.absolute_margin = minimum / 2.0 + 2.0 * machine
        self.relative_margin = minimum / 4.0


class RunShift:
    """The shift of a query by itself, and in comparison with the typical query."""

    def __init__(self, absolute, relative):
        self.absolute, self.relative = absolute, relative

    def p_change(self, limits):
        estimate = self.absolute.estimate
        is_large = abs(estimate) >= max(limits.minimum, limits.machine)
        absolute = self.absolute.p_beyond(limits.absolute_margin) if is_large else 1.0
        if self.relative is None:
            return absolute
        direction = math.copysign(1.0, self.relative.estimate)
        is_large = abs(self.relative.estimate) >= limits.minimum and estimate * direction >= max(
            limits.minimum / 2.0, limits.machine
        )
        relative = self.relative.p_beyond(limits.relative_margin) if is_large else 1.0
        return min(2.0 * min(absolute, relative), 1.0)


def run_shifts(queries):
    """The shift of each query, or None if too few runs have it.

    A query is a pair: for each run of the base, and for each changed run, its level and variance, or None.
    """
    fits = [Fit.of(base, run) for base, run in queries]
    known = [fit for fit in fits if fit]
    effects = Effects.of(known)
    rests = [fit and fit.rest(effects) for fit in fits]
    ratios = [(rest["variance"] / rest["scale"], rest["df"]) for rest in rests if rest]
    prior = Prior.of(ratios) if effects else None
    typical = median(fit.estimate for fit in known) or 0.0
    return [fit and fit.shift(rest, prior, effects, typical) for fit, rest in zip(fits, rests)]


class Fit:
    """The estimated shift of a query, and the deviations of its runs from the mean of their side."""

    @classmethod
    def of(cls, base, run):
        levels = [[level for level, _ in filter(None, side)] for side in (base, run)]
        if not levels[0] or not levels[1] or len(levels[0]) + len(levels[1]) < 4:
            return None
        self = cls()
        base_mean, run_mean = mean(levels[0]), mean(levels[1])
        base_runs, run_runs = float(len(levels[0])), float(len(levels[1]))
        self.estimate = run_mean - base_mean
        self.factor = 1.0 / base_runs + 1.0 / run_runs
        self.deviations = [
            level and level[0] - center for side, center in ((base, base_mean), (run, run_mean)) for level in side
        ]
        self.within = mean([level[1] for level in [*base, *run] if level])
        self.df = base_runs + run_runs - 2.0
        return self

    def rest(self, effects):
        """The variance that the effects of the runs do not explain."""
        squares = 0.0
        for run, deviation in enumerate(self.deviations):
            if deviation is not None:
                rest = deviation - (effects.by_run[run] if effects else 0.0)
                squares += rest * rest
        return {
            "variance": max(squares / self.df, 1e-6),
            "df": self.df,
            "scale": self.within + REST_MIN * REST_MIN,
        }

    def shift(self, rest, prior, effects, typical):
        if prior:
            ratio, rest_df = prior.moderate(rest["variance"] / rest["scale"], rest["df"])
            rest_variance = ratio * rest["scale"]
        else:
            rest_variance, rest_df = with_usual_effect(rest["variance"] * rest["df"], rest["df"])
        rest_variance = max(rest_variance, self.within, REST_MIN * REST_MIN)
        effect_variance, effect_df = (effects.variance, effects.df) if effects else (0.0, 1.0)
        variance = effect_variance + rest_variance
        df = (
            variance
            * variance
            / (effect_variance * effect_variance / effect_df + rest_variance * rest_variance / rest_df)
        )
        absolute = Estimate(self.estimate, math.sqrt(self.factor * variance), min(max(df, 1.0), 1e6))
        if not effects:
            return RunShift(absolute, None)
        error = math.sqrt(self.factor * rest_variance * effects.median_share())
        return RunShift(absolute, Estimate(self.estimate - typical, error, rest_df))


class Effects:
    """The effect of each run, which all queries have in common."""

    @classmethod
    def of(cls, fits):
        if len(fits) < QUERIES_MIN:
            return None
        self = cls()
        runs = max(len(fit.deviations) for fit in fits)
        at = lambda run: [fit.deviations[run] for fit in fits if fit.deviations[run] is not None]
        self.by_run = [median(at(run)) or 0.0 for run in range(runs)]
        self.queries = len(fits)
        df = max([1.0, *(fit.df for fit in fits)])
        self.variance, self.df = with_usual_effect(total(effect * effect for effect in self.by_run), df)
        return self

    def median_share(self):
        return 1.0 + math.pi / 2.0 / self.queries


def with_usual_effect(squares, df):
    ratio = squares / df / (EFFECT_USUAL * EFFECT_USUAL)
    if p_variance_ratio(ratio, df, EFFECT_USUAL_DF) < EXCEPTIONAL_MAX:
        return squares / df, df
    df_sum = df + EFFECT_USUAL_DF
    return (squares + EFFECT_USUAL_DF * EFFECT_USUAL * EFFECT_USUAL) / df_sum, df_sum


class Prior:
    """The distribution of the variance over queries."""

    @classmethod
    def of(cls, variances):
        if len(variances) < 3:
            return None
        self = cls()
        count = float(len(variances))
        logarithms = limited(
            [math.log(variance) - digamma(df / 2.0) + math.log(df / 2.0) for variance, df in variances]
        )
        center = mean(logarithms)
        spread = total((value - center) * (value - center) for value in logarithms) / (count - 1.0)
        expected = total(trigamma(df / 2.0) for _, df in variances) / count
        self.df = 2.0 * inverse_trigamma(spread - expected)
        if math.isfinite(self.df):
            self.variance = math.exp(center + digamma(self.df / 2.0) - math.log(self.df / 2.0))
        else:
            self.variance = math.exp(center)
        return self

    def moderate(self, variance, df):
        prior_df = min(self.df, DF_MAX)
        if p_variance_ratio(variance / self.variance, df, prior_df) < EXCEPTIONAL_MAX:
            return variance, df
        moderated = (prior_df * self.variance + df * variance) / (prior_df + df)
        return moderated, min(prior_df + df, DF_MAX)


def limited(values):
    """The values, limited to their 10th and 85th percentiles."""
    in_order = sorted(values)
    low, high = [in_order[rounded(share * (len(values) - 1))] for share in (0.1, 0.85)]
    return [min(max(value, low), high) for value in values]
