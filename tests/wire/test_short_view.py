"""The reply to the query `view`: round trips, its size, and one error for any other text."""

import pytest
from hypothesis import given
from hypothesis import strategies as some

from bridge.core.formation.member import MemberStatus
from bridge.wire.membership.round_trips import ANSWER_LIMIT_BYTES
from bridge.wire.membership.short_view import (
    MASTERS_LISTED_MAX,
    SERVERS_LISTED_MAX,
    ShortView,
    ShortViewError,
    read_short_view,
    write_short_view,
)
from tests.effort import each_case

EXAMPLE = ShortView(
    verdict="degraded",
    severity="warning",
    term=3,
    commit_index=812_345,
    leader=3,
    statuses={**dict.fromkeys((1, 2, 3, 4, 7), MemberStatus.ALIVE), 5: MemberStatus.SUSPECT, 6: MemberStatus.DEAD},
    publishers={"wkq7xjh3r2mq": 3, "abcd2345efgh": None},
)
TEXT = (
    "verdict=degraded severity=warning term=3 commit=812345 leader=3 alive=1-4,7 suspect=5 dead=6 left="
    " publishers=wkq7xjh3r2mq:3,abcd2345efgh:0"
)
letters = some.text("abcdefghijklmnopqrstuvwxyz234567", min_size=1, max_size=12)
servers = some.integers(1, 2**32 - 1)
views = some.builds(
    ShortView,
    verdict=some.sampled_from(("healthy", "no-healthy-leaf")),
    severity=some.sampled_from(("ok", "warning", "critical")),
    term=some.integers(0, 2**63 - 1),
    commit_index=some.integers(0, 2**63 - 1),
    leader=some.none() | servers,
    statuses=some.dictionaries(servers, some.sampled_from(MemberStatus), max_size=SERVERS_LISTED_MAX),
    publishers=some.dictionaries(letters, some.none() | servers, max_size=MASTERS_LISTED_MAX),
)


def test_short_view_has_documented_text() -> None:
    assert write_short_view(EXAMPLE) == TEXT
    assert read_short_view(TEXT) == EXAMPLE


@given(views)
def test_short_view_fits_in_reply(view: ShortView) -> None:
    text = write_short_view(view)
    assert len(text.encode()) <= ANSWER_LIMIT_BYTES
    found = read_short_view(text)
    assert found.statuses.items() <= view.statuses.items()
    assert (found.term, found.leader, found.publishers) == (view.term, view.leader, view.publishers)


def test_short_view_of_largest_farm_is_complete() -> None:
    statuses = dict.fromkeys(range(1, SERVERS_LISTED_MAX + 1), MemberStatus.ALIVE)
    statuses |= dict.fromkeys((2, 17, 33, 64), MemberStatus.DEAD)
    view = ShortView("healthy", "ok", 2**40, 2**50, 64, statuses, EXAMPLE.publishers)
    assert read_short_view(write_short_view(view)).statuses == statuses


def test_short_view_leaves_out_alive_servers_first() -> None:
    statuses = {10**9 + 2 * each: MemberStatus.ALIVE for each in range(60)}
    statuses |= {10**9 + 200 + 2 * each: MemberStatus.DEAD for each in range(4)}
    found = read_short_view(write_short_view(ShortView("degraded", "warning", 1, 1, None, statuses)))
    assert sum(each is MemberStatus.DEAD for each in found.statuses.values()) == 4
    assert len(found.statuses) < len(statuses)


@each_case(
    "text",
    [
        "",
        "oslo",
        TEXT + " ",
        TEXT.replace("term=3", "term=" + "9" * 19),
        TEXT.replace("alive=1-4", "alive=1-4000000000"),
        TEXT.replace("alive=1-4", "alive=4-1"),
        TEXT.replace("alive=1-4,7", "alive=" + ",".join(f"{each}-{each + 60}" for each in range(1, 300, 61))),
        TEXT.replace("degraded", "\x1b[31m"),
        TEXT.replace("term=3", "term=\u0663"),
        TEXT + ",a:1" * 200,
    ],
)
def test_short_view_other_text_is_refused(text: str) -> None:
    with pytest.raises(ShortViewError):
        read_short_view(text)


@given(some.text(max_size=600) | some.lists(some.sampled_from(TEXT.split(" ")), max_size=12).map(" ".join))
def test_short_view_arbitrary_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_short_view(text)
    except ShortViewError:
        return
    assert len(found.statuses) <= SERVERS_LISTED_MAX
