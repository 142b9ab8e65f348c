"""A client: timeouts of replies, their doubling in doubt about the network, and refused or refreshed structures."""

from collections.abc import Sequence
from math import inf
from random import Random

import pytest

from bridge.core.connecting.leaves import LeafTable
from bridge.core.connecting.reply_times import TIMEOUT_MAX_S, NetworkDoubt, ReplyTimes
from bridge.core.connecting.structures import (
    REFRESH_LONGEST_S,
    REFRESH_SHORTEST_S,
    ListedLeaf,
    OfferedStructure,
    refresh_delay_s,
    refusal,
)
from bridge.core.publishing.entries import LEAVES_MAX
from tests.effort import each_case

BASE_S = 5.0
SEED = 3


def times_of(*seconds: float) -> ReplyTimes:
    times = ReplyTimes()
    for each in seconds:
        times.add(each)
    return times


@each_case(
    ("measured", "expected_s"),
    [
        ((), 5.0),
        ((0.02,), 5.0),
        ((9.0,), 36.0),
        ((9.0, 0.02), 5.0),
        ((0.02, 0.02, 9.0), 5.0),
        ((0.02, 0.02, 9.0, 9.0), 13.5),
        ((2.0, 2.0, 2.0), 8.0),
        ((30.0, 30.0, 30.0), TIMEOUT_MAX_S),
        ((9.0, 9.0, *[0.02] * 32), 1.0),
        ([0.02] * 7, 5.0),
        ([0.02] * 8, 1.0),
        ([0.02] * 31 + [9.0], 1.0),
        ([0.02] * 30 + [1.4, 9.0], 2.8),
        ([1.0] * 7, 5.0),
        ([1.0] * 8, 2.0),
        ([2.5] * 16, 5.0),
        ([2.6] * 16, 10.4),
        ([0.02] * 30 + [4.0] * 2, 6.0),
        ((-1.0,), 5.0),
    ],
)
def test_timeout_follows_measured_times(measured: Sequence[float], expected_s: float) -> None:
    times = times_of(*measured)
    assert times.timeout_s(BASE_S, times.least_s(BASE_S)) == pytest.approx(expected_s)


def test_late_reply_counts_alone() -> None:
    times = times_of(*[0.02] * 8)
    times.add(1.4, is_late=True)
    for expected_s in [2.8] * 32 + [1.0]:
        assert times.timeout_s(BASE_S, times.least_s(BASE_S)) == pytest.approx(expected_s)
        times.add(0.02)


def test_timeout_is_bounded_by_60_s_or_a_longer_base() -> None:
    for base_s, expected_s in ((BASE_S, TIMEOUT_MAX_S), (300.0, 300.0), (inf, inf)):
        for times in (times_of(50.0), times_of(*[50.0] * 16)):
            assert times.timeout_s(base_s, times.least_s(base_s), doubt=64.0) == expected_s


def test_leaf_without_times_gets_timeout_of_all_leaves() -> None:
    table = LeafTable(BASE_S)
    table.replace([ListedLeaf(bytes([each]) * 32, 10, 1) for each in range(2)])
    table.replied(bytes(32), 4.0, 10.0)
    assert table.timeout_s(b"\1" * 32) == 16.0
    table.replied(b"\1" * 32, 0.1, 11.0)
    assert (table.timeout_s(b"\1" * 32), table.timeout_s(bytes(32))) == (5.0, 16.0)
    for _ in range(32):
        table.replied(bytes(32), 0.1, 12.0)
    assert table.timeout_s(b"\1" * 32) == 1.0  # The leaf has too few times for its own least timeout.


def test_doubt_doubles_once_for_simultaneous_late_replies() -> None:
    doubt = NetworkDoubt()
    for number in range(10):
        doubt.late(0.0, 7.0 + number)
    assert doubt.factor == 2.0
    doubt.late(7.0, 20.0)
    assert doubt.factor == 4.0


@each_case(("leaves", "needed"), [(0, 2), (1, 2), (2, 4), (3, 6), (16, 32)])
def test_doubt_doubles_after_two_failures_of_each_leaf(leaves: int, needed: int) -> None:
    doubt = NetworkDoubt()
    factors = []
    for number in range(2 * needed):
        doubt.failed(5.0 * number, 5.0 * number + 5, leaves)
        factors.append(doubt.factor)
    assert factors == [1.0] * (needed - 1) + [2.0] * needed + [4.0]
    doubt.replied()
    doubt.failed(1000.0, 1005.0, leaves)
    assert doubt.factor == 1.0


def test_hundred_failures_of_simultaneous_streams_count_once() -> None:
    doubt = NetworkDoubt()
    for number in range(100):
        doubt.failed(number / 100, 5 + number / 100, 2)
    assert doubt.factor == 1.0


def offered(published_s: int = 100, entries: int = 1, leaves: int = 1) -> OfferedStructure:
    return OfferedStructure(
        published_s=published_s,
        ends_s=published_s + 900,
        entries=entries,
        leaves=tuple(ListedLeaf(bytes([each]) * 32, 10, published_s + 900) for each in range(leaves)),
        demo=False,
    )


@each_case(
    ("structure", "newest_s", "reason"),
    [
        (offered(), None, None),
        (offered(), 100, None),
        (offered(), 99, None),
        (offered(), 101, "1 s older"),
        (offered(entries=LEAVES_MAX, leaves=LEAVES_MAX), None, None),
        (offered(entries=LEAVES_MAX + 1), None, "17 entries"),
        (offered(leaves=0), None, "none of its entries"),
    ],
)
def test_structure_is_refused_with_reason(
    structure: OfferedStructure, newest_s: int | None, reason: str | None
) -> None:
    found = refusal(structure, newest_s)
    assert (found is None) if reason is None else (found is not None and reason in found)


@each_case("left_s", [-100.0, 0.0, 10.0, 60.0, 900.0, 65_535.0])
def test_refresh_is_before_the_end_with_spread(left_s: float) -> None:
    random = Random(SEED)
    delays = [refresh_delay_s(left_s, random) for _ in range(200)]
    longest_s = max(REFRESH_SHORTEST_S, min(left_s / 2, REFRESH_LONGEST_S))
    assert all(REFRESH_SHORTEST_S <= each <= longest_s for each in delays), SEED
    assert longest_s == REFRESH_SHORTEST_S or max(delays) - min(delays) > longest_s / 8
