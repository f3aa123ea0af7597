"""Differences that are known: `on purpose` with the reason, or `missing` with the reason why."""
import typing


class Reason(typing.NamedTuple):
    kind: str
    text: str


REASONS = {}


def listed(kind, area, why, *names):
    for name in names:
        REASONS[area, name] = Reason(kind, why)


def on_purpose(area, why, *names):
    listed("on purpose", area, why, *names)


def missing(area, why, *names):
    listed("missing", area, why, *names)
