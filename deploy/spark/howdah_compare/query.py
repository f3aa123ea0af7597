"""The figures of one query, from its row in the view `queries` of executions.sql: `crates/compare/src/samples`.

`figures` runs where the data is. Its result is small, so that the driver can hold that of each query.
"""

import json
import math
import sys

from .distributions import mean, median
from .shift import SeededRandom, blocks, mean_ratio_interval, pseudo_median, shift

SAMPLE_MAX = 4096
ERRORS_MAX = 300
MESSAGE_BYTES_MAX = 500
TEXT_BYTES_MAX = 4096
# Standard deviation of the logarithm of a short query's time between moments.
MOMENT_SPREAD = math.log(2.0)
# For a verdict on the tail: minimum executions on each side, and how much the mean must differ.
TAIL_EXECUTIONS_MIN = 200
TAIL_CHANGE_MIN = 2.0
TAIL_FLOORS_MIN = 10.0
TAIL_CONFIDENCE = 0.99
# For a run to count among several.
EXECUTIONS_PER_RUN_MIN = 5


def figures(fingerprint, totals, buckets, samples, errors, plan):
    """The figures as JSON. `plan` is a `Plan`, as JSON."""
    plan = json.loads(plan)
    runs = {}
    for text in totals:
        run, *counts = map(int, text.split(" "))
        runs[run] = RunOfQuery(*counts)
    for text in buckets or ():
        run, bucket, count = map(int, text.split(" "))
        runs[run].buckets[bucket] = count
    for text in samples or ():
        run, slot, at_us, service_us = map(int, text.split(" "))
        runs[run].sample.append((slot, at_us, service_us))
    for text in errors or ():
        # The message may contain spaces.
        run, code, count, first_place, message = text.split(" ", 4)
        runs[int(run)].errors.append((int(first_place), code, int(count), message))
    for run in runs.values():
        run.complete()
    of = lambda numbers: [runs[number] for number in numbers if number in runs]
    base, run = of(plan["base"]), of(plan["run"])
    result = {
        "fingerprint": fingerprint,
        "runs": {number: run.measures() for number, run in runs.items()},
        "base": merged_measures(base),
        "run": merged_measures(run),
        "errors": error_changes(base, run, len(plan["base"]), len(plan["run"])),
    }
    if plan["is_pair"]:
        result.update(pair_figures(fingerprint, runs, plan))
    else:
        levels = {number: run for number, run in runs.items() if run.timed >= EXECUTIONS_PER_RUN_MIN}
        means = {number: run for number, run in runs.items() if run.timed >= TAIL_EXECUTIONS_MIN // 4}
        result["levels"] = {number: run.level() for number, run in levels.items()}
        result["means"] = {number: run.level_of_mean() for number, run in means.items()}
    return json.dumps(result)


def pair_figures(fingerprint, runs, plan):
    """The shift between two runs and that of the control, and the interval of the ratio of means."""
    settings = plan["settings"]
    enough = lambda number: number in runs and runs[number].timed >= max(settings["executions_min"], 2)
    (base,), (run,), control = plan["base"], plan["run"], plan["control"]
    margin = math.log(settings["change_min"]) / 2.0

    def shift_of(base, run):
        if run is None or not enough(base) or not enough(run):
            return None
        return shift(runs[base].logarithms(), runs[run].logarithms(), settings["confidence"], margin)

    result = {"shift": shift_of(base, run), "control_shift": shift_of(base, control), "mean_change": None}
    if base in runs and run in runs:
        floor_us = plan["floor_us"]
        base_mean, run_mean = runs[base].mean_us(), runs[run].mean_us()
        ratio = run_mean / max(base_mean, sys.float_info.min)
        if (
            min(runs[base].timed, runs[run].timed) >= TAIL_EXECUTIONS_MIN
            and (ratio == 0.0 or abs(math.log(ratio)) >= math.log(TAIL_CHANGE_MIN))
            and abs(run_mean - base_mean) >= TAIL_FLOORS_MIN * floor_us
        ):
            low, high = mean_ratio_interval(
                runs[base].durations_us(), runs[run].durations_us(), TAIL_CONFIDENCE, int(fingerprint, 16)
            )
            result["mean_change"] = {"ratio": ratio, "low": low, "high": high}
    return result


class RunOfQuery:
    """The executions of one query in one run."""

    def __init__(self, done, failed, skipped, rows, rows_known, timed, total_us, max_us):
        self.done, self.failed, self.skipped = done, failed, skipped
        self.rows, self.rows_known = rows, rows_known
        self.timed, self.total_us, self.max_us = timed, total_us, max_us
        self.buckets, self.sample, self.errors = {}, [], []

    def complete(self):
        """Sorts what arrived in any order: the sample by time, to the millisecond, and then by slot."""
        in_slots = [(milliseconds(at_us), min(us, 0xFFFFFFFF)) for _, at_us, us in sorted(self.sample)]
        self.sample = sorted(in_slots, key=lambda at: at[0])
        self.errors = sorted(self.errors)[:ERRORS_MAX]

    def mean_us(self):
        return self.total_us / self.timed if self.timed else 0.0

    def durations_us(self):
        return [float(us) for _, us in self.sample]

    def logarithms(self):
        return [math.log(max(us, 1.0)) for us in self.durations_us()]

    def level(self):
        """The typical logarithm of the time in this run, and its variance."""
        logarithms = self.logarithms()
        medians = [median(block) for block in blocks(logarithms)]
        return [pseudo_median(logarithms), self.variance_of_mean(medians)]

    def level_of_mean(self):
        """The logarithm of the mean time in this run, and its variance."""
        center = max(self.mean_us(), 1.0)
        means = [mean(block) / center for block in blocks(self.durations_us())]
        return [math.log(center), self.variance_of_mean(means)]

    def variance_of_mean(self, parts):
        """Executions of the same moment are not independent: so the variance is at least that of as many
        executions as there are tenths of a second with any."""
        moments = float(max(len({at_ms // 100 for at_ms, _ in self.sample}), 1))
        least = MOMENT_SPREAD / moments
        count, center = float(len(parts)), mean(parts)
        squares = 0.0
        for value in parts:
            squares += (value - center) * (value - center)
        return max(squares / (count * max(count - 1.0, 1.0)), least * least)

    def measures(self):
        return merged_measures([self])


def milliseconds(us):
    """Towards zero, and within 24 days."""
    at_ms = abs(us) // 1000 * (1 if us >= 0 else -1)
    return min(max(at_ms, -(1 << 31)), (1 << 31) - 1)


def merged_measures(runs):
    """The measures over several runs; None without any."""
    if not runs:
        return None
    added = ("done", "failed", "skipped", "timed", "total_us")
    sums = {name: sum(getattr(run, name) for run in runs) for name in added}
    timed, max_us = sums["timed"], max(run.max_us for run in runs)
    rows, rows_known = sum(run.rows for run in runs), sum(run.rows_known for run in runs)
    at_rank = exact_ranks(runs) if timed <= SAMPLE_MAX and max_us <= 0xFFFFFFFF else histogram_ranks(runs, max_us)
    measures = {
        "calls": sums["done"] + sums["failed"],
        "errors": sums["failed"],
        "skipped": sums["skipped"],
        "timed": timed,
        "mean_us": sums["total_us"] / timed if timed else 0.0,
    }
    for name, share in (("p50_us", 0.5), ("p90_us", 0.9), ("p95_us", 0.95), ("p99_us", 0.99)):
        measures[name] = at_rank(max(math.ceil(share * timed), 1))
    measures["max_us"], measures["total_us"] = max_us, sums["total_us"]
    measures["rows_mean"] = rows / rows_known if rows_known else None
    return measures


def exact_ranks(runs):
    durations = sorted(us for run in runs for _, us in run.sample)
    return lambda rank: durations[rank - 1] if rank <= len(durations) else 0


def histogram_ranks(runs, max_us):
    """Percentiles from the distribution, within 1 %: the middle of a bucket."""
    buckets = {}
    for run in runs:
        for bucket, count in run.buckets.items():
            buckets[bucket] = buckets.get(bucket, 0) + count

    def at_rank(rank):
        below = 0
        for bucket in sorted(buckets):
            below += buckets[bucket]
            if below >= rank:
                return min(middle(bucket), max_us)
        return 0

    return at_rank


def middle(bucket):
    shift = max((bucket >> 6) - 1, 0)
    return ((bucket - (shift << 6)) << shift) + ((1 << shift) >> 1)


def error_changes(base, run, base_runs, run_runs):
    """The failures by code, for codes whose number per run differs; without a code first."""
    changes = {}
    for side, runs in (("base", base), ("run", run)):
        for _, code, count, message in [error for run in runs for error in run.errors]:
            change = changes.setdefault(code, {"message": truncated(message, MESSAGE_BYTES_MAX), "base": 0, "run": 0})
            change[side] += count
    return [
        {"sqlstate": None if code == "-" else code, **changes[code]}
        for code in sorted(changes, key=lambda code: (code != "-", code))
        if changes[code]["base"] * run_runs != changes[code]["run"] * base_runs
    ]


def truncated(text, bytes_max):
    """The text up to the last character that ends within this many bytes."""
    return text.encode()[:bytes_max].decode(errors="ignore")



def bucket(us):
    """The bucket of a time: what `howdah_bucket` of executions.sql is, for engines without functions in SQL."""
    shift = max(us.bit_length() - 7, 0)
    return (shift << 6) + (us >> shift)


def slot(fingerprint, number):
    """The slot of an execution: `howdah_slot`, likewise."""
    random = SeededRandom(int(fingerprint, 16))
    random.skip(number - SAMPLE_MAX - 1)
    return random.below(number)
