"""The comparison for people: `crates/report/src/{text,headline,table}.rs`."""

import math
import unicodedata

UNITS = (("µs", 1.0), ("ms", 1e3), ("s", 1e6))
HEADER = "           calls  errors     mean      p50      p90      p95      p99      max    total"


def time_unit(us):
    return next((unit for unit in UNITS if us / unit[1] < 999.5), UNITS[-1])


def digits(value, scale):
    if scale == 1.0 or value >= 100.0:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10.0 else f"{value:.2f}"


def duration(us):
    return duration_in_unit_of(us, us)


def duration_in_unit_of(us, other):
    unit, scale = time_unit(other)
    return f"{digits(us / scale, scale)} {unit}"


def durations(before, after):
    longer = max(before, after)
    return f"{duration_in_unit_of(before, longer)} → {duration_in_unit_of(after, longer)}"


def factor_digits(factor):
    if factor >= 100.0:
        return f"{factor:.0f}"
    return f"{factor:.1f}" if factor >= 10.0 else f"{factor:.2f}"


def factor(value):
    return f"{factor_digits(value)}×"


def interval(change):
    return f"{factor_digits(change['low'])}–{factor_digits(change['high'])}"


def counted(count, noun, plural=None):
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def queries(count):
    return counted(count, "query", "queries")


def one_line(text, width=None):
    """The text in one line of at most `width` characters. Control characters become spaces, because a query must not
    control the terminal on which it is printed."""
    line = " ".join("".join(" " if unicodedata.category(char) == "Cc" else char for char in text).split())
    if width is None or len(line) <= max(width, 1):
        return line
    return line[: max(width, 1) - 1].rstrip() + "…"


def query_text(query, width):
    return one_line(query["query"], width) if query["query"] else f"query {query['fingerprint']}"


def message(change, width):
    text = one_line(change["message"], width)
    return f" ({text})" if text else ""


def summary(document):
    """The verdict in one line."""
    all_queries, verdict = document["queries"], document["verdict"]
    count = lambda test: sum(map(test, all_queries))
    judged = count(lambda query: query["change"] is not None)
    slower, faster, undecided = [
        count(lambda query: query["verdict"] == name) for name in ("slower", "faster", "undecided")
    ]
    of_judged = f"of {queries(judged)}"
    line = {
        "no change": f"no change in {queries(judged - undecided)}",
        "slower": f"{slower} {of_judged} slower",
        "faster": f"{faster} {of_judged} faster",
        "mixed": f"{slower} {of_judged} slower, {faster} faster",
        "not comparable": f"not comparable: {undecided} {of_judged} may have changed, "
        "the runs differ too much to say",
        "too few": "too few executions to say",
    }[verdict]
    others = len(all_queries) - judged
    if undecided and verdict != "not comparable":
        line += f"; {undecided} undecided"
        if verdict == "no change" and document["undecided_share"] is not None:
            line += f", which added at most {document['undecided_share'] * 100.0:.1f} % of the time"
    if judged and others:
        line += f"; {others} not executed often enough to say"
    return line


def headlines(document):
    """What a person should read first: changed queries, new and vanished errors, caveats."""
    all_queries = document["queries"]
    slower = [query for query in all_queries if query["verdict"] == "slower"]
    faster = [query for query in reversed(all_queries) if query["verdict"] == "faster"]
    lines = [change_line(query, document["settings"]["confidence"]) for query in slower + faster]
    for query in all_queries:
        for change in query["errors"]:
            if change["base"] == 0:
                what, count = "errors", change["run"]
            elif change["run"] == 0:
                what, count = "no more errors", change["base"]
            else:
                continue
            code = change["sqlstate"] or "no SQLSTATE"
            lines.append(f"{what}: {query_text(query, 100)} {count} × {code}{message(change, 80)}")
    return lines + [f"note: {caveat['text']}" for caveat in document["caveats"]]


def change_line(query, confidence):
    base, run = query["base"], query["run"]
    if query["part"] == "typical":
        change = query["change"]
        percent = math.floor(confidence * 100.0 + 0.5)
        times = f"(p50 {durations(base['p50_us'], run['p50_us'])}, {percent} % CI {interval(change)})"
        amount = f"{factor(change['ratio'])} {times}"
    else:
        change = query["mean_change"]
        times = f"(mean {durations(base['mean_us'], run['mean_us'])}, p99 {durations(base['p99_us'], run['p99_us'])}"
        amount = f"{factor(change['ratio'])} in the mean, by its slow executions {times}, 99 % CI {interval(change)})"
    return f"{query['verdict']}: {query_text(query, 100)} {amount}"


def table(document, width, queries_max):
    """The comparison as `howdah compare` prints it, at least 86 columns wide; 0 queries are all."""
    width = max(width, 86)
    lines = [side_line(label, document[label], width) for label in ("base", "run")]
    if control := document["control"]:
        name = one_line(control["name"], width // 2)
        lines.append(f"control  {name}: the typical query differs by {factor(control['noise'])} from base")
    lines += ["", f"verdict: {document['summary']}", *document["headlines"]]
    all_queries = document["queries"]
    if all_queries:
        lines += ["", HEADER]
    shown = min(queries_max or len(all_queries), len(all_queries))
    with_verdict = [query for query in all_queries if query["verdict"] != "too few"]
    without_verdict = [query for query in all_queries if query["verdict"] == "too few"]
    for query in with_verdict[:shown]:
        lines += query_lines(query, width)
    if without_verdict := without_verdict[: max(shown - len(with_verdict), 0)]:
        lines += ["", "not executed often enough to say:"]
    for query in without_verdict:
        lines += query_lines(query, width)
    if shown < len(all_queries):
        lines.append(f"… and {len(all_queries) - shown} more (--limit 0 shows all)")
    return "\n".join(lines) + "\n"


def side_line(label, side, width):
    version = side["server_version"] and f"PostgreSQL {one_line(side['server_version'], 40)}, "
    line = (
        f"{label:<8} {one_line(side['name'], width // 2)}: {version}{counted(side['calls'], 'execution')}, "
        f"{counted(side['errors'], 'error')}, {duration(side['total_us'])} in all"
    )
    for count, what in ((side["skipped"], "skipped"), (side["unattributed"], "of no known query")):
        if count:
            line += f", {count} {what}"
    return line


def query_lines(query, width):
    is_tail = query["part"] == "tail"
    title = f"{query['verdict'] + (' tail' if is_tail else ''):<13}"
    change = query["mean_change"] if is_tail else query["change"]
    if change:
        impact_us = query["impact_us"]
        difference = f"{'-' if impact_us < 0.0 else '+'}{duration(abs(impact_us))}"
        title += f"{factor(change['ratio'])} ({interval(change)})  {difference}  "
    lines = [title + query_text(query, max(width - len(title), 20))]
    for label in ("base", "run"):
        if side := query[label]:
            line = f"  {label:<5}{side['calls']:>9} {side['errors']:>7}"
            if side["timed"]:
                names = ("mean_us", "p50_us", "p90_us", "p95_us", "p99_us", "max_us", "total_us")
                line += "".join(f"{duration(side[name]):>9}" for name in names)
            lines.append(line)
    for change in query["errors"]:
        text = message(change, max(width - 30, 20))
        lines.append(f"  {change['sqlstate'] or 'no SQLSTATE'}: {change['base']} → {change['run']}{text}")
    if query["rows_differ"]:
        lines.append(
            f"  rows per execution: {query['base']['rows_mean']:.2f} → {query['run']['rows_mean']:.2f}"
        )
    if query["types_deduced"]:
        lines.append("  parameter types deduced from values")
    return lines
