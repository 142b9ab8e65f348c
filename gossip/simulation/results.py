"""The figures of a played scenario: one list of named lines for every output."""

from collections.abc import Sequence
from math import ceil
from statistics import fmean

from gossip.simulation.scenario import JUDGED_AFTER_PERIODS, Play

NONE = "none"


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[max(ceil(share * len(ordered)) - 1, 0)]


def spread(values: Sequence[float]) -> str:
    """Return median, 99 % and the largest as text."""
    if not values:
        return NONE
    return " / ".join(f"{quantile(values, share):.1f}" for share in (0.5, 0.99, 1.0))


def figures(play: Play) -> list[tuple[str, str]]:
    """Return name and text of each figure."""
    return [*_overlay(play), *_detection(play), *_load(play)]


def _overlay(play: Play) -> list[tuple[str, str]]:
    up = play.network.up
    peers = [float(len(node.core.membership.links)) for node in up]
    listed = [float(len(node.core.membership)) for node in up]
    return [
        ("members running at the end", f"{len(up):,}"),
        ("parts of the overlay", f"{play.parts} (1: every member reachable from every other)"),
        ("peers of a member", f"{fmean(peers):.1f} on average, least {min(peers):.0f}, most {max(peers):.0f}"),
        ("members listed by one", f"{fmean(listed):.0f} on average, most {max(listed):.0f}"),
    ]


def _detection(play: Play) -> list[tuple[str, str]]:
    crashes = play.crashes
    judged = [(crash.peers, crash.unaware) for crash in crashes if crash.unaware is not None]
    suspected = [crash.first_suspected for crash in crashes if crash.first_suspected is not None]
    declared = [crash.first_declared for crash in crashes if crash.first_declared is not None]
    unaware = sum(len(nodes) for _, nodes in judged)
    unaware_peers = sum(len(peers & nodes) for peers, nodes in judged)
    unit = "median / 99 % / last, in periods after the crash"
    return [
        ("crashes", f"{len(crashes):,}"),
        ("first suspicion", f"{spread(suspected)} ({unit})"),
        ("first declaration", f"{spread(declared)}"),
        ("declared at peers", spread([time for crash in crashes for time in crash.declared_by_peers])),
        ("declared in directories", spread([time for crash in crashes for time in crash.declared_by_directories])),
        (
            f"unaware after {JUDGED_AFTER_PERIODS} periods",
            f"{unaware_peers:,} peers, {unaware - unaware_peers:,} directories of {len(judged):,} crashes judged",
        ),
        (
            "accused while running",
            f"{play.false_suspicions:,} times suspected, {play.false_deaths:,} declared dead (views)",
        ),
    ]


def _load(play: Play) -> list[tuple[str, str]]:
    story, load = play.scenario, play.load
    each = [float(load.messages_of.get(node.number, 0)) / story.periods for node in play.network.up]
    stretches = (
        ("all periods", slice(0, None)),
        ("while forming", slice(0, story.settled_by)),
        ("from churn on", slice(story.settled_by, story.quiet_from)),
        ("at rest", slice(story.quiet_from, None)),
    )
    rows = []
    for name, part in stretches:
        messages, octets = fmean(load.messages_by_period[part]), fmean(load.bytes_by_period[part])
        rows.append((f"load {name}", f"{messages:.2f} messages, {octets:,.0f} bytes per member and period"))
    return [*rows, ("messages of one member", f"{spread(each)} per period, over its part of the story")]


def load_ratio(play: Play, other: Play, first_period: int = 0) -> tuple[float, float]:
    """Return messages and bytes per member from a period on, as a multiple of another play's."""
    mine, theirs = play.load, other.load
    return (
        fmean(mine.messages_by_period[first_period:]) / fmean(theirs.messages_by_period[first_period:]),
        fmean(mine.bytes_by_period[first_period:]) / fmean(theirs.bytes_by_period[first_period:]),
    )
