"""The order of the leaves for a client: costs, failures, suspicion, and the records of unlisted leaves."""

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.core.connecting.leaves import (
    FAILURE_COUNTS_MAX_S,
    FAILURE_COUNTS_S,
    PROVEN_FOR_S,
    RECORDS_MAX,
    LeafFailure,
    LeafState,
    LeafTable,
)
from bridge.core.connecting.structures import ListedLeaf

NOW_S = 1_000.0
UNIX_S = 1_767_225_600
SEED = 7
DRAWS = 6_000
SILENT = LeafFailure(reason="no reply")
CHI_SQUARE_LIMIT_2 = 13.8
"""Two degrees of freedom: exceeded by chance once in 1,000 seeds."""


def name(number: int) -> bytes:
    return number.to_bytes(32, "big")


def table_of(*costs: int, timeout_s: float = 5.0, ends_s: int = UNIX_S + 900) -> LeafTable:
    table = LeafTable(timeout_s)
    table.replace([ListedLeaf(name(number), cost, ends_s) for number, cost in enumerate(costs)])
    return table


def first_leaves(table: LeafTable, draws: int = DRAWS) -> Counter[int]:
    random = Random(SEED)
    return Counter(int.from_bytes(table.order(NOW_S, UNIX_S, random)[0], "big") for _ in range(draws))


@pytest.mark.parametrize(
    ("costs", "shares"),
    [
        ((20, 20, 20), (1 / 3, 1 / 3, 1 / 3)),
        ((20, 40, 40), (1 / 2, 1 / 4, 1 / 4)),
        ((0, 5, 10), (1 / 3, 1 / 3, 1 / 3)),
        ((10, 20, 40), (4 / 7, 2 / 7, 1 / 7)),
    ],
)
def test_load_follows_costs(costs: tuple[int, ...], shares: tuple[float, ...]) -> None:
    found = first_leaves(table_of(*costs))
    square = sum((found[leaf] - DRAWS * share) ** 2 / (DRAWS * share) for leaf, share in enumerate(shares))
    assert square < CHI_SQUARE_LIMIT_2, (SEED, found)


def test_leaf_above_four_times_the_least_cost_is_not_first() -> None:
    assert set(first_leaves(table_of(20, 80, 81), 1_000)) == {0, 1}


def test_unhealthy_leaf_follows_healthy_leaf() -> None:
    assert set(first_leaves(table_of(60, 130, 160), 200)) == {0}
    assert set(first_leaves(table_of(130, 130), 200)) == {0, 1}


def test_expensive_leaves_follow_by_cost() -> None:
    order = table_of(5, 99, 70, 180, 50).order(NOW_S, UNIX_S, Random(SEED))
    assert [int.from_bytes(each, "big") for each in order] == [0, 4, 2, 1, 3]


def test_failed_leaf_is_last_until_it_replies_or_time_passes() -> None:
    table = table_of(10, 90, 90)
    table.failed(name(0), SILENT, NOW_S)
    assert table.order(NOW_S, UNIX_S, Random(SEED))[-1] == name(0)
    assert table[name(0)].state(NOW_S, UNIX_S) is LeafState.FAILED
    assert table.order(NOW_S + FAILURE_COUNTS_S, UNIX_S, Random(SEED))[0] == name(0)
    table.replied(name(0), 0.1, NOW_S + 1)
    assert table.order(NOW_S + 1, UNIX_S, Random(SEED))[0] == name(0)
    assert table[name(0)].state(NOW_S + 1, UNIX_S) is LeafState.GOOD


@pytest.mark.parametrize(
    ("failure", "first_s"), [(SILENT, FAILURE_COUNTS_S), (LeafFailure(reason="slow", is_opened=False), 10.0)]
)
def test_failures_in_a_row_count_longer_up_to_600_s(failure: LeafFailure, first_s: float) -> None:
    table = table_of(10, 90)
    counts_s = []
    for _ in range(9):
        table.failed(name(0), failure, NOW_S)
        counts_s.append(table[name(0)].failed_until_s - NOW_S)
    assert counts_s[:4] == [first_s, 2 * first_s, 4 * first_s, 8 * first_s]
    assert counts_s[-1] == FAILURE_COUNTS_MAX_S
    table.received(name(0), NOW_S)
    table.failed(name(0), failure, NOW_S)
    assert table[name(0)].failed_until_s - NOW_S == first_s


def test_late_reply_shows_that_leaf_is_alive() -> None:
    table = table_of(10, 90)
    table.failed(name(0), LeafFailure(reason="no reply", unanswered_since_s=NOW_S - 5), NOW_S)
    table.replied_late(name(0), 9.0, NOW_S + 4)
    assert table[name(0)].state(NOW_S + 4, UNIX_S) is not LeafState.FAILED
    assert table[name(0)].times.typical_s is None  # This long time may include the repetition of a lost packet.
    table.replied_late(name(0), 3.0, NOW_S + 4)
    assert table[name(0)].times.typical_s == 3.0


def test_late_reply_of_slow_network_raises_timeouts() -> None:
    table = table_of(10)
    table.failed(name(0), LeafFailure(reason="no reply", unanswered_since_s=NOW_S - 5), NOW_S)
    table.replied_late(name(0), 12.0, NOW_S + 7)
    assert table.timeout_s(name(0)) == 10.0
    table.replied(name(0), 9.0, NOW_S + 20)
    assert table.timeout_s(name(0)) == 36.0


def test_leaves_that_replied_after_a_missing_reply_are_first() -> None:
    table = table_of(10, 10, 10)
    table.replied(name(1), 0.1, NOW_S - 6)
    table.failed(name(0), LeafFailure(reason="no reply", unanswered_since_s=NOW_S - 5), NOW_S)
    random = Random(SEED)
    assert {table.order(NOW_S, UNIX_S, random)[0] for _ in range(50)} == {name(1), name(2)}
    table.replied(name(2), 0.1, NOW_S + 1)
    assert {table.order(NOW_S + 1, UNIX_S, random)[0] for _ in range(50)} == {name(2)}
    assert {table.order(NOW_S + PROVEN_FOR_S, UNIX_S, random)[0] for _ in range(50)} == {name(1), name(2)}


def test_failed_leaf_without_bytes_is_last_at_missing_reply() -> None:
    table = table_of(10, 10, 10)
    table.failed(name(0), LeafFailure(reason="no lease set", is_opened=False), NOW_S - 30)
    table.received(name(1), NOW_S - 11)
    table.received(name(2), NOW_S - 11)
    assert name(0) in {table.order(NOW_S, UNIX_S, Random(seed))[0] for seed in range(20)}
    table.failed(name(1), LeafFailure(reason="no reply", unanswered_since_s=NOW_S - 10), NOW_S - 9)
    assert table.order(NOW_S, UNIX_S, Random(SEED)) == [name(2), name(1), name(0)]
    table.failed(name(2), LeafFailure(reason="no reply", unanswered_since_s=NOW_S - 8), NOW_S - 1)
    assert table.order(NOW_S, UNIX_S, Random(SEED)) == [name(1), name(0), name(2)]


def test_leaf_with_newest_byte_is_first_if_all_failed() -> None:
    table = table_of(10, 20, 30)
    for number, second in ((0, 1.0), (1, 3.0), (2, 2.0)):
        table.received(name(number), NOW_S + second)
    for number in range(3):
        table.failed(name(number), SILENT, NOW_S + 4)
    assert table.order(NOW_S + 9, UNIX_S, Random(SEED)) == [name(1), name(2), name(0)]
    table.failed(name(1), SILENT, NOW_S + 9)
    assert table.order(NOW_S + 20, UNIX_S, Random(SEED)) == [name(2), name(0), name(1)]


def test_leaf_that_has_just_failed_is_last_of_the_failed_leaves() -> None:
    table = table_of(10, 20)
    table.failed(name(1), SILENT, NOW_S - 10)
    table.received(name(0), NOW_S - 1)
    table.failed(name(0), SILENT, NOW_S)
    assert table.order(NOW_S, UNIX_S, Random(SEED)) == [name(1), name(0)]
    assert table.order(NOW_S + 5, UNIX_S, Random(SEED)) == [name(0), name(1)]


def test_oldest_failure_is_tried_first_if_all_failed() -> None:
    table = table_of(10, 20, 30)
    for number, second in ((1, 3.0), (0, 1.0), (2, 2.0)):
        table.failed(name(number), SILENT, NOW_S + second)
    assert table.order(NOW_S + 5, UNIX_S, Random(SEED)) == [name(0), name(2), name(1)]


def test_suspect_leaf_follows_others_until_its_reply_is_due() -> None:
    table = table_of(10, 100)
    table.suspect(name(0), NOW_S)
    assert table[name(0)].state(NOW_S + 4.9, UNIX_S) is LeafState.SUSPECT
    assert table.order(NOW_S + 4.9, UNIX_S, Random(SEED)) == [name(1), name(0)]
    assert table.order(NOW_S + 5.0, UNIX_S, Random(SEED)) == [name(0), name(1)]
    table.suspect(name(0), NOW_S)
    table.received(name(0), NOW_S + 1)
    assert table.order(NOW_S + 1, UNIX_S, Random(SEED))[0] == name(0)


def test_ended_entry_is_left_out() -> None:
    table = LeafTable(5.0)
    table.replace([ListedLeaf(name(0), 10, UNIX_S), ListedLeaf(name(1), 90, UNIX_S + 1)])
    assert table.order(NOW_S, UNIX_S, Random(SEED)) == [name(1)]
    assert table[name(0)].state(NOW_S, UNIX_S) is LeafState.ENDED


def test_newer_structure_withdraws_unlisted_and_unhealthy_leaves() -> None:
    table = table_of(10, 10, 10, 150)
    newer = [ListedLeaf(name(0), 90, UNIX_S + 900), ListedLeaf(name(1), 110, UNIX_S + 900)]
    assert table.replace(newer) == (name(1), name(2))
    assert table.replace(newer) == ()
    assert [each.hash for each in table.listed()] == [name(0), name(1)]


def test_leaf_keeps_its_outcomes_when_listed_again() -> None:
    table = table_of(10, 20)
    table.failed(name(0), SILENT, NOW_S)
    table.replace([ListedLeaf(name(1), 20, UNIX_S + 900)])
    table.replace([ListedLeaf(name(0), 10, UNIX_S + 900), ListedLeaf(name(1), 20, UNIX_S + 900)])
    assert table.order(NOW_S + 1, UNIX_S, Random(SEED)) == [name(1), name(0)]


def test_records_of_unlisted_leaves_are_bounded() -> None:
    table = LeafTable(5.0)
    for number in range(0, 4_000, 16):
        table.replace([ListedLeaf(name(each), 10, UNIX_S + 900) for each in range(number, number + 16)])
        assert len(table._records) <= RECORDS_MAX
    assert len(table.listed()) == 16


def test_record_of_leaf_with_open_stream_is_kept() -> None:
    table = table_of(10)
    table[name(0)].streams = 1
    for number in range(16, 3_200, 16):
        table.replace([ListedLeaf(name(each), 10, UNIX_S + 900) for each in range(number, number + 16)])
    table.received(name(0), NOW_S)
    assert table[name(0)].received_at_s == NOW_S


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["replace", "failed", "suspect", "replied", "late", "received", "forgive"]),
        st.integers(0, 20),
        st.integers(0, 255),
        st.floats(0, 2_000),
    ),
    max_size=40,
)


@given(operations=OPERATIONS, seed=st.integers(0, 1_000))
def test_order_has_each_usable_leaf_once(operations: list[tuple[str, int, int, float]], seed: int) -> None:
    table = table_of(*range(0, 160, 10))
    now_s = NOW_S
    for kind, number, cost, step_s in operations:
        now_s += step_s
        leaf = name(number)
        if kind == "replace":
            table.replace([ListedLeaf(name(number + each), cost, UNIX_S + each * 100) for each in range(16)])
        elif leaf in table and kind == "failed":
            table.failed(leaf, LeafFailure(reason="no reply", unanswered_since_s=now_s - step_s), now_s)
        elif leaf in table and kind == "suspect":
            table.suspect(leaf, now_s)
        elif leaf in table and kind == "replied":
            table.replied(leaf, step_s, now_s)
        elif leaf in table and kind == "late":
            table.replied_late(leaf, step_s, now_s)
        elif leaf in table and kind == "received":
            table.received(leaf, now_s)
        elif leaf in table:
            table.forgive(leaf)
        order = table.order(now_s, UNIX_S, Random(seed))
        assert sorted(order) == sorted(each.hash for each in table.listed() if each.ends_s > UNIX_S)
        clear = [table[each] for each in order if table[each].is_failed(now_s) or not table[each].failures_in_row]
        assert [each.is_failed(now_s) for each in clear] == sorted(each.is_failed(now_s) for each in clear)
        assert all(1.0 <= table.timeout_s(each) <= 60.0 for each in order)
