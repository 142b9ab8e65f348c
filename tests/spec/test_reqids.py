"""Updates by ØMQ Raft are applied once per reqid: also if repeated, dropped, dumped, or after log time moves back."""

from random import Random

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import Farm, RequestRefused
from bridge.core.log.feature_level import REQIDS_LEVEL
from bridge.core.log.records import Author, Exclusion, Foreign, ProvenRecord
from bridge.core.membership.authors import EntryWithoutEffect, NoEffect
from bridge.core.state.reqids import (
    AHEAD_S,
    OLDEST_S,
    REQID_BYTES,
    Reqids,
    ReqidStatus,
    ReqidTable,
    ReqidTableError,
    Update,
    reqid_in,
    request_text,
    second_of,
)
from consensus.protocols.zmq_raft import REQUEST_ID_BYTES
from consensus.protocols.zmq_raft.wire.request_ids import DEFAULT_WINDOW, request_seconds
from tests.authored import FOUNDERS
from tests.effort import over_seeds
from tests.spec.farm_stories import BASE_MS

NOW_S = BASE_MS // 1000
NOW_MS = NOW_S * 1000
LEAF = "a" * 52
FOREIGN = "a JSON object of an unknown kind"


def reqid(second: int = NOW_S, counter: int = 1) -> bytes:
    return second.to_bytes(4, "big") + bytes(5) + counter.to_bytes(3, "big")


def test_reqid_window_equals_protocol_window() -> None:
    window = DEFAULT_WINDOW
    assert (REQUEST_ID_BYTES, window.past_ms, window.future_ms) == (REQID_BYTES, OLDEST_S * 1000, AHEAD_S * 1000)
    assert second_of(reqid()) == request_seconds(reqid()) == NOW_S


def test_request_text_has_one_spelling() -> None:
    assert reqid_in(request_text(reqid())) == reqid()
    text = request_text(reqid(0x5956DC88, 0xCAB20))
    for other in (
        None,
        "",
        "zmq:",
        text.upper(),
        text + "0",
        text[:-1],
        text[:-1] + " ",
        "client-0-1",
        text[:-1] + "g",
    ):
        assert reqid_in(other) is None, other
    with pytest.raises(ValueError, match="12 bytes, not 11"):
        request_text(bytes(11))


@pytest.mark.parametrize(
    ("age_s", "status"),
    [
        (OLDEST_S, ReqidStatus.NEW),
        (OLDEST_S + 1, ReqidStatus.EXPIRED),
        (-AHEAD_S, ReqidStatus.NEW),
        (-AHEAD_S - 1, ReqidStatus.AHEAD),
    ],
)
def test_reqid_fresh_from_7_h_45_min_ago_to_15_min_ahead(age_s: int, status: ReqidStatus) -> None:
    assert ReqidTable().admit(reqid(NOW_S - age_s), 1, NOW_MS) is status


def test_repeated_reqid_is_duplicate_even_if_expired() -> None:
    table = ReqidTable()
    assert table.admit(reqid(), 7, NOW_MS) is ReqidStatus.NEW
    later_ms = NOW_MS + (OLDEST_S + 1) * 1000
    assert table.admit(reqid(), 9, later_ms) is ReqidStatus.DUPLICATE
    assert table.index_of(reqid()) == 7


def test_dropped_reqid_expired_after_log_time_moves_back() -> None:
    table = ReqidTable()
    table.admit(reqid(), 1, NOW_MS)
    table.admit(reqid(NOW_S + OLDEST_S + 60), 2, NOW_MS + (OLDEST_S + 60) * 1000)
    assert (table.index_of(reqid()), len(table)) == (None, 1)
    assert table.admit(reqid(), 3, NOW_MS) is ReqidStatus.EXPIRED


def test_full_table_drops_oldest_reqid() -> None:
    table = ReqidTable(limit=3)
    for counter in (4, 2, 3, 5):
        assert table.admit(reqid(counter=counter), counter, NOW_MS) is ReqidStatus.NEW
    assert [table.index_of(reqid(counter=each)) for each in (2, 3, 4, 5)] == [None, 3, 4, 5]
    assert table.admit(reqid(counter=1), 9, NOW_MS) is ReqidStatus.EXPIRED
    assert table.admit(reqid(counter=2), 9, NOW_MS) is ReqidStatus.EXPIRED


def test_full_table_refuses_reqids_below_lowest() -> None:
    """A full table drops its lowest reqid, so it would drop a lower reqid immediately."""
    table = ReqidTable(limit=4)
    for counter in (4, 5, 6, 7):
        table.admit(reqid(counter=counter), counter, NOW_MS)
    assert table.floor == bytes(12), "no reqid is dropped yet"
    assert table.judge(reqid(counter=3), NOW_MS) is ReqidStatus.EXPIRED
    assert table.admit(reqid(counter=3), 8, NOW_MS) is ReqidStatus.EXPIRED
    assert [table.index_of(reqid(counter=each)) for each in (4, 5, 6, 7)] == [4, 5, 6, 7]
    assert table.admit(reqid(counter=8), 9, NOW_MS) is ReqidStatus.NEW


@over_seeds(20)
def test_reqid_applied_once_in_random_history(seed: int) -> None:
    random, applied = Random(seed), set()
    reqids = Reqids(limit=8, skipped_max=16)
    for index in range(1, 400):
        now_ms = NOW_MS + index * 60_000 - random.choice((0, 0, 3_600_000))
        made_s = now_ms // 1000 + random.choice((0, 0, -60, AHEAD_S, AHEAD_S + 1, -OLDEST_S - 1))
        update = Update(reqid(made_s - made_s % 300, random.randint(1, 3)), proven=random.random() < 0.5)
        verdict = reqids.admit(update, index, now_ms)
        assert (verdict is ReqidStatus.NEW) <= (update not in applied), f"seed {seed}, entry {index}"
        assert reqids.is_skipped(index) == (verdict is not ReqidStatus.NEW)
        if verdict is ReqidStatus.NEW:
            assert reqids.index_of(update) == index, f"seed {seed}, entry {index}: applied and dropped immediately"
            applied.add(update)
        if random.random() < 0.1:
            dumped = reqids.dump()
            reqids = Reqids.load(dumped, limit=8, skipped_max=16)
            assert reqids.dump() == dumped, f"seed {seed}, entry {index}"
    assert len(applied) > 20


def test_latest_copies_known_with_start_of_list() -> None:
    reqids, update = Reqids(skipped_max=8), Update(reqid(), proven=False)
    for index in range(1, 6):
        reqids.admit(update, index, NOW_MS)
    assert not any(reqids.may_have_forgotten(index) for index in range(1, 6))
    for index in range(6, 11):
        reqids.admit(update, index, NOW_MS)
    assert [index for index in range(1, 11) if reqids.may_have_forgotten(index)] == [1, 2, 3, 4, 5]
    assert [index for index in range(1, 11) if reqids.is_skipped(index)] == [6, 7, 8, 9, 10]
    for index in range(11, 14):
        reqids.admit(update, index, NOW_MS)
    reqids = Reqids.load(reqids.dump(), skipped_max=8)
    assert reqids.may_have_forgotten(5)


def test_damaged_table_bytes_refused() -> None:
    assert Reqids().dump() == b""
    assert Reqids.load(b"").dump() == b""
    reqids = Reqids()
    for index in (1, 2, 3):
        reqids.admit(Update(reqid(), proven=False), index, NOW_MS)
    whole = reqids.dump()
    for damaged in (*(whole[:length] for length in range(1, len(whole))), whole + b"\0", b"\2" + whole[1:]):
        with pytest.raises(ReqidTableError):
            Reqids.load(damaged)
    with pytest.raises(ReqidTableError, match="do not rise"):
        Reqids.load(whole[:-1] + b"\2")


# -- in the farm's state machine ---------------------------------------------------------------------------------------


def farm(level: int = REQIDS_LEVEL) -> Farm:
    made = Farm(NOW_MS, founders=FOUNDERS[:3])
    made.state = replace(made.state, level=level)
    return made


def application_entry(second: int = NOW_S, counter: int = 1) -> ProvenRecord:
    return ProvenRecord(Foreign(FOREIGN, request_text(reqid(second, counter))))


def exclusion(number: int, server: int = 1) -> ProvenRecord:
    record = Exclusion(LEAF, excluded=True, request=request_text(reqid()))
    return ProvenRecord(record, Author(FOUNDERS[server - 1], number))


def test_copied_application_entry_skipped() -> None:
    story = farm()
    assert story.apply(5, 1, application_entry()) == story.apply(6, 2, application_entry()) == ()
    update = story.update_of(application_entry())
    assert update is not None
    assert story.reqids.index_of(update) == 5
    assert [story.reqids.is_skipped(index) for index in (5, 6)] == [False, True]


def test_update_signed_by_second_node_ignored() -> None:
    story = farm()
    story.apply(1, 1, exclusion(1, server=1))
    assert story.state.weights.excluded == (LEAF,)
    (change,) = story.apply(2, 1, exclusion(1, server=2))
    assert isinstance(change, EntryWithoutEffect)
    assert change.reason is NoEffect.REPEATED


def test_unknown_author_cannot_use_up_reqid() -> None:
    story = farm()
    story.apply(1, 1, application_entry())
    story.apply(2, 1, ProvenRecord(Foreign(FOREIGN, request_text(reqid())), Author(b"unknown.", 1)))
    story.apply(3, 1, exclusion(1))
    assert story.state.weights.excluded == (LEAF,)
    assert [story.reqids.is_skipped(index) for index in (1, 2, 3)] == [False, True, False]


def test_update_outside_window_refused() -> None:
    story = farm()
    for index, second in enumerate((NOW_S - OLDEST_S - 1, NOW_S + AHEAD_S + 1), start=1):
        assert story.apply(index, 1, application_entry(second)) == (RequestRefused(request_text(reqid(second))),)
        assert story.reqids.is_skipped(index)


def test_table_below_level_stays_empty() -> None:
    """Older servers do not support reqids: they treat each copy as an entry without a request."""
    story = farm(REQIDS_LEVEL - 1)
    for index in (1, 2):
        assert story.apply(index, 1, application_entry()) == ()
    assert story.update_of(application_entry()) is None
    assert story.reqids.dump() == b""
