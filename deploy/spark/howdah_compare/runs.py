"""What the manifests say of a run and of its parts: docs/src/reference/capture-format.md."""

import json
import math
import re

from .distributions import total

VERSIONS = (1, 2, 3)
DESCRIPTION = ("capture", "target", "rate", "server_version")


class RunError(Exception):
    """A run cannot be read, or is not one."""


def parts_of(path, files):
    """The parts of a run, in their order: folder, manifest, and `machine.json` or None.

    `files` are pairs of path and text of each `run.json` and `machine.json` in the folder and below it. A folder with a
    `run.json` is a run; without one, its sub-folders are the parts of as many workers, and their manifests say so.
    """
    texts = {}
    for file, text in files:
        folder, _, name = file.rpartition("/")
        texts.setdefault(folder, {})[name] = text
    folders = [folder for folder in texts if "run.json" in texts[folder]]
    if not folders:
        raise RunError(f"{path} is not a run: it has no run.json, nor has a folder in it")
    # Folders in the folder of a run are other things.
    depth = min(folder.count("/") for folder in folders)
    parts = []
    for folder in (folder for folder in folders if folder.count("/") == depth):
        manifest, machine = json.loads(texts[folder]["run.json"]), texts[folder].get("machine.json")
        if manifest.get("format") != "howdah-run":
            raise RunError(f"{folder} is not a run: its format is {manifest.get('format')!r}")
        if manifest["version"] not in VERSIONS:
            raise RunError(f"{folder} has version {manifest['version']}; this program reads up to {VERSIONS[-1]}")
        parts.append((folder, manifest, json.loads(machine) if machine else None))
    whole = [folder for folder, manifest, _ in parts if not manifest.get("part")]
    if len(parts) > 1 and whole:
        raise RunError(f"{path} has several runs, such as {whole[0]}: pass their own folders")
    parts.sort(key=lambda part: (worker_of(part[1]), numbers_by_value(part[0])))
    first = parts[0][1]
    for folder, manifest, _ in parts:
        for key, of in (("capture", plain), ("target", plain), ("rate", plain), ("run_id", part), ("workers", part)):
            if of(manifest, key) != of(first, key):
                raise RunError(
                    f"{path} is not one run: its parts {parts[0][0]} and {folder} differ in {key}, "
                    f"{of(first, key)!r} and {of(manifest, key)!r}"
                )
    return parts


def plain(manifest, key):
    return manifest[key]


def part(manifest, key):
    return (manifest.get("part") or {}).get(key)


def worker_of(manifest):
    return part(manifest, "worker") or 0


def numbers_by_value(text):
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split("([0-9]+)", text)]


def info(path, parts):
    """The description of a run, with the time of its calibration statement and the statements with deduced types."""
    found = {worker_of(manifest) for _, manifest, _ in parts}
    missing = [worker for worker in range(part(parts[0][1], "workers") or 0) if worker not in found]
    deduced = [manifest.get("summary") for _, manifest, _ in parts]
    deduced = [summary.get("types_deduced") for summary in deduced if isinstance(summary, dict)]
    return {
        "name": path,
        **{key: parts[0][1][key] for key in DESCRIPTION},
        "complete": all(manifest["complete"] for _, manifest, _ in parts) and not missing,
        "missing_workers": missing,
        "types_deduced": [text for it in deduced if isinstance(it, dict) for text in it.get("statements") or ()],
        "calibration_us": calibration_us([machine for _, _, machine in parts]),
    }


def calibration_us(machines):
    """The geometric mean over all buckets of all parts; None unless each part executed the statement to its end."""
    logarithms = []
    for machine in machines:
        if not machine or machine["calibration"].get("end") is not None:
            return None
        medians = [us for us in machine["buckets"]["calibration_p50_us"] if us is not None]
        if not medians:
            return None
        logarithms += [math.log(float(max(us, 1))) for us in medians]
    return math.exp(total(logarithms) / len(logarithms))


def check_rows(parts, rows):
    """Compares the rows that were read with the manifests; `rows` are by number of the part."""
    for number, (folder, manifest, _) in enumerate(parts):
        if manifest["finished"] and manifest["outcomes"] != rows.get(number, 0):
            raise RunError(
                f"{folder} has {rows.get(number, 0)} outcomes, but its run.json counts {manifest['outcomes']}: "
                "files are missing, or belong to another run"
            )
