"""The comparison as the JSON document of `howdah compare --format json`: `crates/report/src/document.rs`."""

from . import text
from .query import TEXT_BYTES_MAX, truncated

MEASURES = ("calls", "errors", "skipped", "total_us")
DESCRIPTION = ("name", "capture", "target", "rate", "server_version", "complete")


def document(comparison, plan, infos, texts, unattributed):
    """The document. `infos` are `runs.info`, by number; `texts` are the rows of the view, by fingerprint."""
    numbers = [*plan["base"], *plan["run"]]
    deduced = {fingerprint for number in numbers for fingerprint in infos[number]["types_deduced"]}
    queries = [query_document(query, texts, deduced) for query in comparison["queries"]]

    def side_of_run(number, name, index):
        measures = [query[name][index] for query in queries]
        return side([number], measures)

    def side(run_numbers, measures):
        first = infos[run_numbers[0]]
        described = {key: first[key] for key in DESCRIPTION}
        described["complete"] = all(infos[number]["complete"] for number in run_numbers)
        sums = {key: sum(query[key] for query in measures if query) for key in MEASURES}
        described.update({key: sums[key] for key in ("calls", "errors", "skipped")})
        described["unattributed"] = sum(unattributed.get(number, 0) for number in run_numbers)
        described["total_us"] = sums["total_us"]
        return described

    control = plan["control"]
    result = {
        "format": "howdah-comparison",
        "version": 1,
        "verdict": comparison["verdict"],
        "summary": None,
        "headlines": [],
        "base": side(plan["base"], [query["base"] for query in queries]),
        "run": side(plan["run"], [query["run"] for query in queries]),
        "base_runs": [side_of_run(number, "base_runs", at) for at, number in enumerate(plan["base"])],
        "run_runs": [side_of_run(number, "run_runs", at) for at, number in enumerate(plan["run"])],
        "control": None,
        "settings": plan["settings"],
        "drift": comparison["drift"],
        "machine": comparison["machine"],
        "undecided_share": comparison["undecided_share"],
        "caveats": [],
        # Conditions and plans are those of `howdah compare`.
        "fail_on": [],
        "queries_total": len(queries),
        "queries": queries,
    }
    if control is not None:
        described = {key: infos[control][key] for key in DESCRIPTION}
        result["control"] = {**described, "noise": comparison["control_noise"]}
    runs = [infos[number] for number in numbers]
    result["caveats"] = [{"kind": kind, "text": words} for kind, words in caveats(result, comparison, runs)]
    result["summary"] = text.summary(result)
    result["headlines"] = text.headlines(result)
    return result


def query_document(query, texts, deduced):
    fingerprint = query["fingerprint"]
    sql, user, database = texts.get(fingerprint, ("", "", ""))
    described = {"query": truncated(sql, TEXT_BYTES_MAX), "user": user, "database": database}
    return {
        "fingerprint": fingerprint,
        **described,
        **{key: value for key, value in query.items() if key != "fingerprint"},
        "because": None,
        "types_deduced": fingerprint in deduced,
    }


def caveats(result, comparison, runs):
    """The kinds and texts of what makes the runs hard to compare."""
    if any(run["capture"] != runs[0]["capture"] for run in runs):
        yield "different_captures", "the runs replayed different captures"
    if any(run["rate"] != runs[0]["rate"] for run in runs):
        yield "different_rates", "the runs were replayed at different paces"
    for run in runs:
        if missing := run["missing_workers"]:
            workers = f"{'worker' if len(missing) == 1 else 'workers'} {', '.join(map(str, missing))}"
            yield "incomplete", f"{run['name']} is incomplete: it lacks the part of {workers}"
        elif not run["complete"]:
            yield "incomplete", f"{run['name']} is incomplete: its replay ended early"
    if comparison["machine_changed"]:
        yield "machine_changed", (
            f"the machine was not the same: a statement that reads no table took {text.factor(result['machine'])} the "
            "time; replay both sides again in turns, on a machine that does nothing else"
        )
    undecided = sum(query["verdict"] == "undecided" for query in result["queries"])
    base_runs, run_runs = len(result["base_runs"]), len(result["run_runs"])
    if undecided and (base_runs, run_runs) == (1, 1):
        yield "runs_vary", (
            f"{text.queries(undecided)} undecided: the difference may be the machine's; replay each side three times, "
            "in turns, and pass all runs"
        )
    elif undecided:
        yield "runs_vary", (
            f"{text.queries(undecided)} undecided: the {base_runs} base runs and {run_runs} changed runs differ too "
            "much among themselves; more runs on each side, or an idle machine, would decide"
        )
    if comparison["everything_moved"]:
        moved = "most queries changed by about the same factor, which may be the machine"
        if control := result["control"]:
            yield "everything_moved", (
                f"{moved}: the control run differs from the base by {text.factor(control['noise'])} but shows only "
                "what the machine did while it ran; replay base and run again in turns"
            )
        else:
            yield "everything_moved", (
                f"{moved}: replay base and run again in turns, and pass one more run of the base as --control"
            )
    deduced = sum(query["types_deduced"] for query in result["queries"])
    if deduced:
        yield "types_deduced", (
            f"parameter types of {text.queries(deduced)} were deduced from values, since logs do not contain them"
        )
