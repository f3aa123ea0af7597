#!/usr/bin/env python3
"""Compares runs as `howdah compare` does, on a Spark cluster.

    spark-submit compare.py BASE RUN
    spark-submit compare.py --base A1 A2 A3 --run B1 B2 B3 -o comparison.json

Runs are folders that `howdah replay -o` wrote, wherever Spark can read them, or folders of such folders, if several
replays of one capture ran at the same time. The document has the keys and figures of `howdah compare --format json`;
the table is that of `howdah compare`. Exits with 4 if the runs differ too much to say whether anything changed.

In the cluster deploy mode, pass the package, too: `zip -r howdah_compare.zip howdah_compare`, `--py-files
howdah_compare.zip`.
"""

import argparse
import json
import math
import shutil
import sys

from howdah_compare import compare, document, runs, text
from howdah_compare.engines import ENGINES

NOT_COMPARABLE = 4


def factor(words):
    """`1.25x`, `1.25` or `25%`."""
    number = 1.0 + float(words[:-1]) / 100.0 if words.endswith("%") else float(words.rstrip("xX×"))
    if not math.isfinite(number) or number <= 1.0:
        raise ValueError
    return number


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pair", nargs="*", metavar="BASE RUN", help="the baseline run and the run to compare with it")
    parser.add_argument("--base", nargs="+", default=[], metavar="RUN", help="runs of the baseline's setup")
    parser.add_argument("--run", nargs="+", default=[], metavar="RUN", help="runs of the changed setup")
    parser.add_argument("--control", metavar="RUN", help="a second run of the baseline's setup, if there are two runs")
    parser.add_argument("--min-change", type=factor, metavar="FACTOR", help="ignore changes by less than this factor")
    parser.add_argument("--limit", type=int, default=20, metavar="COUNT", help="queries in the table; 0 for all")
    parser.add_argument("--format", choices=("table", "json"), default="table", help="what to print")
    parser.add_argument("-o", "--output", metavar="FILE", help="file for the document as JSON; a URI is a folder for a file of it")
    parser.add_argument("--engine", choices=ENGINES, default="spark", help="DuckDB needs no cluster")
    options = parser.parse_args()
    if options.pair and (len(options.pair) != 2 or options.base or options.run):
        parser.error("pass BASE and RUN, or --base and --run")
    if options.pair:
        options.base, options.run = options.pair[:1], options.pair[1:]
    if not options.base or not options.run:
        parser.error("pass BASE and RUN, or --base and --run")
    if options.control and len(options.base) + len(options.run) > 2:
        parser.error("--control is for two runs: pass it as a run of the base")
    return options


def compared(options, engine):
    paths = [*options.base, *options.run, *([options.control] if options.control else [])]
    parts = [runs.parts_of(path, engine.manifests(path)) for path in paths]
    infos = {number: runs.info(path, parts[number]) for number, path in enumerate(paths)}
    base, run = list(range(len(options.base))), list(range(len(options.base), len(options.base) + len(options.run)))
    plan = compare.plan(base, run, len(paths) - 1 if options.control else None, options.min_change)
    # The texts of the changed runs are used first. Those of a control run, and of runs beyond a pair, are not.
    order = [*plan["run"], *plan["base"]]
    preference = [order.index(number) if number in order else len(paths) for number in range(len(paths))]
    engine.load(list(zip(paths, parts, preference)))
    rows = {}
    for number, part, count in engine.rows("select run, part, count(*) from outcomes group by run, part"):
        rows.setdefault(number, {})[part] = count
    for number, path in enumerate(paths):
        runs.check_rows(parts[number], rows.get(number, {}))
    unattributed = {number: int(count) for number, count in engine.rows("select run, executions from unattributed")}
    figures = [json.loads(it) for it in engine.figures(json.dumps(plan))]
    for number in range(len(paths)):
        if not unattributed.get(number) and not any(str(number) in query["runs"] for query in figures):
            raise runs.RunError(f"the run {paths[number]} has no executions to compare")
    rows = engine.rows("select fingerprint, query, user_name, database_name from texts")
    texts = {fingerprint: described for fingerprint, *described in rows}
    result = compare.compare(figures, infos, plan)
    return document.document(result, plan, infos, texts, unattributed)


def finite(value):
    """The value as JSON can have it: figures that are not finite are null."""
    if isinstance(value, dict):
        return {key: finite(it) for key, it in value.items()}
    if isinstance(value, list):
        return [finite(it) for it in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def main():
    options = arguments()
    try:
        engine = ENGINES[options.engine]()
        result = compared(options, engine)
        words = json.dumps(finite(result), indent=2, ensure_ascii=False, allow_nan=False)
        if options.output and "://" in options.output:
            engine.write(words, options.output)
        elif options.output:
            with open(options.output, "w", encoding="utf-8") as file:
                file.write(words + "\n")
    except runs.RunError as error:
        sys.exit(f"compare: {error}")
    if options.format == "table":
        words = text.table(result, shutil.get_terminal_size((120, 24)).columns, options.limit).rstrip("\n")
    print(words)
    sys.exit(NOT_COMPARABLE if result["verdict"] == "not comparable" else 0)


if __name__ == "__main__":
    main()
