"""The verdicts of a comparison, from the figures of all queries: `crates/compare/src/compare`."""

import math

from .between_runs import Limits, run_shifts
from .distributions import exp, median
from .query import TAIL_CHANGE_MIN, TAIL_CONFIDENCE, TAIL_EXECUTIONS_MIN, TAIL_FLOORS_MIN

SETTINGS = {
    "change_min": 1.25,
    "undecided_share_max": 0.1,
    "floor_us": 50,
    "floor_between_runs_us": 10,
    "no_change_max": 1.5,
    "executions_min": 15,
    "confidence": 0.95,
    "false_discoveries_max": 0.01,
}
CHANGE_MIN_BETWEEN_RUNS = 1.2
# A control run measures the noise that the floor otherwise guards against.
FLOOR_SHARE_WITH_CONTROL = 0.2
# "Everything moved" needs this many queries, and this share of them.
DRIFT_QUERIES_MIN = 4
DRIFT_SHARE_MIN = 0.8


def plan(base, run, control, change_min=None):
    """What is compared, and how: numbers of the runs, and the settings.

    Fewer than four runs are too few to measure their variance: then the first of each side is compared, with the second
    one of the base as the control.
    """
    is_pair = len(base) + len(run) < 4
    if is_pair:
        control, base, run = control if control is not None else (base[1:2] or [None])[0], base[:1], run[:1]
    default = SETTINGS["change_min"] if is_pair else CHANGE_MIN_BETWEEN_RUNS
    settings = {**SETTINGS, "change_min": change_min or default}
    floor_us = settings["floor_us"] * (1.0 if control is None else FLOOR_SHARE_WITH_CONTROL)
    return {
        "is_pair": is_pair,
        "base": base,
        "run": run,
        "control": control,
        "settings": settings,
        "floor_us": floor_us,
    }


def compare(queries, infos, plan):
    """The comparison. `queries` are the results of `query.figures`; `infos` describe the runs, by number."""
    queries = sorted((query for query in queries if query["base"] or query["run"]), key=lambda it: it["fingerprint"])
    machine = machine_shift(infos, plan)
    measured = pair(queries, machine, plan) if plan["is_pair"] else several(queries, machine, plan)
    compared = []
    for query in queries:
        base, run = query["base"], query["run"]
        base_calls, run_calls = base and base["calls"], run and run["calls"]
        result = {"verdict": "too few", "part": None, "change": None, "mean_change": None}
        result.update({"noise": None, "detectable": None, "largest": None})
        if base_calls and run_calls:
            result.update(measured["classify"](query))
        elif base_calls:
            result["verdict"] = "only in base"
        elif run_calls:
            result["verdict"] = "only in run"
        if plan["is_pair"]:
            result["noise"] = measured["noise_of"](query)
        of_runs = lambda numbers: [query["runs"].get(str(number)) for number in numbers]
        compared.append(
            {
                "fingerprint": query["fingerprint"],
                **result,
                "impact_us": impact_us(base, run),
                "base": base,
                "run": run,
                "base_runs": of_runs(plan["base"]),
                "run_runs": of_runs(plan["run"]),
                "errors": query["errors"],
                "rows_differ": rows_differ(base, run),
            }
        )
    # The worst first; 0 comes before −0.
    compared.sort(key=lambda it: (-it["impact_us"], math.copysign(1.0, it["impact_us"]) < 0.0))
    share = undecided_share(compared)
    settings = plan["settings"]
    factors = [query["change"]["ratio"] for query in compared if query["change"]]
    drift = None if measured["drift"] is None else exp(measured["drift"])
    return {
        "verdict": overall(compared, share, settings),
        "drift": drift,
        "machine": None if machine is None else exp(machine),
        "undecided_share": share,
        "everything_moved": drift is not None and moved_together(factors, drift, settings),
        "machine_changed": machine is not None and abs(machine) >= math.log(settings["change_min"]) / 2.0,
        "control_noise": measured.get("control_noise"),
        "queries": compared,
    }


def pair(queries, machine, plan):
    """The shifts between two runs. Returns the drift and a function that classifies a query."""
    settings = plan["settings"]
    minimum = math.log(settings["change_min"])
    shifts = {query["fingerprint"]: query["shift"] for query in queries if query["shift"]}
    with_control = [query for query in queries if query["control_shift"]]
    controls = {query["fingerprint"]: abs(query["control_shift"]["estimate"]) for query in with_control}
    has_control = plan["control"] is not None
    typical_noise = median(controls.values()) or 0.0
    drift = median(shift["estimate"] for shift in shifts.values())
    factors = [exp(shift["estimate"]) for shift in shifts.values()]
    # Without a measurement, the shift common to all queries is taken as the machine's.
    is_common = drift is not None and machine is None and moved_together(factors, exp(drift), settings)
    known = [abs(machine)] if machine is not None else [abs(drift)] if is_common else []
    q_values = adjusted({key: shift["p_beyond_margin"] for key, shift in shifts.items()})

    def classify(query):
        shift = shifts.get(query["fingerprint"])
        if not shift:
            return {}
        q = q_values[query["fingerprint"]]
        change = {"ratio": exp(shift["estimate"]), "low": exp(shift["low"]), "high": exp(shift["high"])}
        change.update({"p": shift["p"], "q": q})
        own = [max(controls.get(query["fingerprint"], 0.0), typical_noise)] if has_control else []
        large = max([minimum, *(2.0 * noise for noise in own + known)])
        moved = abs(math.log(change["ratio"]))
        moved_us = abs(change["ratio"] - 1.0) * query["base"]["p50_us"]
        if q <= settings["false_discoveries_max"] and moved >= minimum and moved_us >= plan["floor_us"]:
            if moved >= large:
                return {"change": change, "verdict": direction(change["ratio"]), "part": "typical"}
            return {"change": change, "verdict": "undecided"}
        mean = query["mean_change"]
        if mean and (log(mean["low"]) >= large or log(mean["high"]) <= -large):
            return {"change": change, "mean_change": mean, "verdict": direction(mean["ratio"]), "part": "tail"}
        return {"change": change, "mean_change": mean, "verdict": "no change"}

    def noise_of(query):
        noise = controls.get(query["fingerprint"])
        return None if noise is None else exp(noise)

    return {
        "classify": classify,
        "noise_of": noise_of,
        "drift": drift,
        "control_noise": exp(typical_noise) if has_control else None,
    }


def several(queries, machine, plan):
    """The shifts between several runs on each side. Returns the drift and a function that classifies a query."""
    settings = plan["settings"]

    def timed(side, query):
        runs = [query["runs"].get(str(number)) for number in plan[side]]
        return sum(run["timed"] for run in runs if run)

    enough = [
        query
        for query in queries
        if min(timed("base", query), timed("run", query)) >= settings["executions_min"]
    ]

    def levels(name):
        of = lambda query, side: [query[name].get(str(number)) for number in plan[side]]
        return [(of(query, "base"), of(query, "run")) for query in enough]

    typical, means = run_shifts(levels("levels")), run_shifts(levels("means"))
    machine = common_shift(typical, settings) if machine is None else abs(machine)
    limits = Limits(math.log(settings["change_min"]), machine)
    measured = {
        query["fingerprint"]: (shift, mean and mean.absolute)
        for query, shift, mean in zip(enough, typical, means)
        if shift
    }
    q_values = adjusted({key: shift.p_change(limits) for key, (shift, _) in measured.items()})
    floor_us = float(settings["floor_between_runs_us"])

    def classify(query):
        if query["fingerprint"] not in measured:
            return {}
        both, mean = measured[query["fingerprint"]]
        shift, q, base, run = both.absolute, q_values[query["fingerprint"]], query["base"], query["run"]
        change = interval(shift, settings["confidence"])
        moved_us = abs(change["ratio"] - 1.0) * base["p50_us"]
        beyond = shift.half_width(settings["confidence"]) + machine
        low, high = exp(shift.estimate - beyond), exp(shift.estimate + beyond)
        tail = mean and tail_change(base, run, mean)
        verdict, part = "undecided", None
        if q <= settings["false_discoveries_max"] and moved_us >= floor_us:
            verdict, part = direction(change["ratio"]), "typical"
        elif tail:
            verdict, part = direction(tail["ratio"]), "tail"
        elif excludes_change(low, high, base["p50_us"]):
            verdict = "no change"
        confidence = 1.0 - settings["false_discoveries_max"]
        detectable = limits.absolute_margin + shift.half_width(confidence)
        if both.relative:
            detectable = min(detectable, limits.relative_margin + both.relative.half_width(confidence))
        return {
            "verdict": verdict,
            "part": part,
            "change": {**change, "p": shift.p_beyond(0.0), "q": q},
            "mean_change": tail,
            "detectable": exp(max(detectable, limits.minimum)),
            "largest": high,
        }

    def excludes_change(low, high, base_us):
        limit = settings["no_change_max"]
        is_small = lambda factor: abs(factor - 1.0) * base_us < floor_us
        return (low >= 1.0 / limit or is_small(low)) and (high <= limit or is_small(high))

    def tail_change(base, run, mean):
        change = interval(mean, TAIL_CONFIDENCE)
        minimum = limits.minimum + machine
        is_certain = log(change["low"]) >= minimum or log(change["high"]) <= -minimum
        is_relevant = (
            min(base["timed"], run["timed"]) >= TAIL_EXECUTIONS_MIN
            and abs(mean.estimate) >= math.log(TAIL_CHANGE_MIN) + machine
            and abs(run["mean_us"] - base["mean_us"]) >= TAIL_FLOORS_MIN * floor_us
        )
        return change if is_certain and is_relevant else None

    return {"classify": classify, "drift": median(shift.absolute.estimate for shift, _ in measured.values())}


def interval(shift, confidence):
    half_width = shift.half_width(confidence)
    return {
        "ratio": exp(shift.estimate),
        "low": exp(shift.estimate - half_width),
        "high": exp(shift.estimate + half_width),
    }


def log(factor):
    return math.log(factor) if factor > 0.0 else -math.inf


def direction(factor):
    return "slower" if factor > 1.0 else "faster"


def adjusted(p_values):
    """p-values adjusted for their number: Benjamini and Hochberg."""
    in_order = sorted(p_values, key=lambda key: p_values[key])
    q_values, smallest = {}, 1.0
    for rank, key in reversed(list(enumerate(in_order, 1))):
        smallest = min(smallest, p_values[key] * len(in_order) / rank)
        q_values[key] = smallest
    return q_values


def common_shift(shifts, settings):
    """The shift of the machine if no calibration measured it: that of the median query, unless it is a change that
    not all have in common."""
    estimates = [shift.absolute.estimate for shift in shifts if shift]
    typical = median(estimates) or 0.0
    moved = moved_together([exp(estimate) for estimate in estimates], exp(typical), settings)
    is_small = len(estimates) >= DRIFT_QUERIES_MIN and abs(typical) < math.log(settings["change_min"])
    return abs(typical) if moved or is_small else 0.0


def moved_together(factors, drift, settings):
    """Whether the drift is a change in itself, and nearly all queries changed by about the same factor."""
    change = math.log(settings["change_min"])
    near = sum(abs(log(factor) - log(drift)) <= change / 2.0 for factor in factors)
    return (
        len(factors) >= DRIFT_QUERIES_MIN
        and abs(log(drift)) >= change
        and near / max(len(factors), 1) >= DRIFT_SHARE_MIN
    )


def machine_shift(infos, plan):
    """The shift of the calibration statement between the sides, if it was measured in all runs."""

    def level(numbers):
        times = [infos[number]["calibration_us"] for number in numbers]
        return None if None in times else median(math.log(max(time, 1.0)) for time in times)

    base, run = level(plan["base"]), level(plan["run"])
    return None if base is None or run is None else run - base


def impact_us(base, run):
    """What the change costs over all executions of the base; if only one side has times, their total."""
    (base_timed, base_mean), (run_timed, run_mean) = [
        (side["timed"], side["mean_us"]) if side else (0, 0.0) for side in (base, run)
    ]
    if not base_timed:
        return float(run_timed) * run_mean
    if not run_timed:
        return -float(base_timed) * base_mean
    return float(base_timed) * (run_mean - base_mean)


def rows_differ(base, run):
    base, run = [side["rows_mean"] if side else None for side in (base, run)]
    return base is not None and run is not None and abs(base - run) > 1e-9 * max(abs(base), 1.0)


def undecided_share(queries):
    """How much time the undecided queries may have added, as a share of the base's total time."""
    added_us, all_us = 0.0, 0.0
    for query in queries:
        total_us = float(query["base"]["total_us"]) if query["base"] else 0.0
        all_us += total_us
        if query["verdict"] == "undecided":
            if query["largest"] is None:
                return None
            added_us += total_us * max(query["largest"] - 1.0, 0.0)
    return added_us / max(all_us, 1.0)


def overall(queries, share, settings):
    """The verdict on the workload. Undecided queries that cannot matter to the total time permit "no change"."""
    verdicts = {query["verdict"] for query in queries}
    is_immaterial = share is not None and share <= settings["undecided_share_max"]
    if {"slower", "faster"} <= verdicts:
        return "mixed"
    for verdict in ("slower", "faster"):
        if verdict in verdicts:
            return verdict
    if "undecided" in verdicts and not is_immaterial:
        return "not comparable"
    if "no change" in verdicts:
        return "no change"
    return "not comparable" if "undecided" in verdicts else "too few"
