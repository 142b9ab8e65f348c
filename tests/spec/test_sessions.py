"""The session table: each request is executed once, also if repeated, expired, dumped and loaded."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from consensus.sessions.table import (
    RequestId,
    RequestStatus,
    SessionLimits,
    SessionTable,
    SessionTableError,
    parse_request_id,
)

SMALL = SessionLimits(sessions_max=3, window=4, result_bytes_max=8, expiry_ms=100)


def execute(
    table: SessionTable, request: RequestId, index: int, now_ms: int = 0, result: bytes = b"done"
) -> RequestStatus:
    """Process a request of the log as a state machine does."""
    verdict = table.admit(request, index, now_ms)
    if verdict is RequestStatus.NEW:
        table.record(request, result)
    return verdict


def test_repeated_request_gets_first_result() -> None:
    """Quote: "… the latest serial number processed for each client, along with the associated response".

    Quote: "If it receives a command whose serial number has already been executed, it responds immediately …".
    """
    table, request = SessionTable(), RequestId("alice", 0, 1)
    assert execute(table, request, 1, result=b"first") is RequestStatus.NEW
    assert execute(table, request, 2, result=b"second") is RequestStatus.DUPLICATE
    assert table.result_of(request) == b"first"


def test_requests_within_window_arrive_in_any_order() -> None:
    table = SessionTable(SMALL)
    verdicts = [execute(table, RequestId("alice", 0, number), index) for index, number in enumerate((4, 2, 1, 3), 1)]
    assert verdicts == [RequestStatus.NEW] * 4
    assert execute(table, RequestId("alice", 0, 5), 5) is RequestStatus.NEW
    assert execute(table, RequestId("alice", 0, 1), 6) is RequestStatus.EXPIRED, "its result is outside the window"


def test_idle_session_expires_by_log_time() -> None:
    table = SessionTable(SMALL)
    execute(table, RequestId("alice", 0, 1), 1, now_ms=1_000)
    table.expire(1_100)
    assert len(table) == 1
    table.expire(1_101)
    assert len(table) == 0
    assert execute(table, RequestId("alice", 0, 1), 2, now_ms=1_101) is RequestStatus.EXPIRED


def test_log_time_going_back_is_ignored() -> None:
    table = SessionTable(SMALL)
    table.expire(1_000)
    execute(table, RequestId("alice", 0, 1), 1, now_ms=0)
    table.expire(1_050)
    assert len(table) == 1


def test_longest_idle_session_dropped_for_new_client() -> None:
    table = SessionTable(SMALL)
    for index, name in enumerate(("alice", "bob", "carol"), start=1):
        execute(table, RequestId(name, 0, 1), index)
    execute(table, RequestId("alice", 0, 2), 4)
    assert execute(table, RequestId("dave", 3, 1), 5) is RequestStatus.NEW
    assert execute(table, RequestId("bob", 0, 1), 6) is RequestStatus.EXPIRED, "bob was idle for the longest time"
    assert execute(table, RequestId("alice", 0, 2), 7) is RequestStatus.DUPLICATE
    assert execute(table, RequestId("bob", 6, 1), 8) is RequestStatus.NEW, "a new start makes a new session"


def test_session_start_in_future_refused() -> None:
    table = SessionTable()
    assert execute(table, RequestId("alice", 7, 1), 7) is RequestStatus.EXPIRED
    assert execute(table, RequestId("alice", 6, 1), 8) is RequestStatus.NEW


def test_request_with_long_result_not_executed_again() -> None:
    table, request = SessionTable(SMALL), RequestId("alice", 0, 1)
    execute(table, request, 1, result=b"123456789")
    assert execute(table, request, 2) is RequestStatus.DUPLICATE
    assert table.result_of(request) is None


def history(seed: int, length: int) -> list[tuple[RequestId, int, int]]:
    """Return requests of a few clients, many of them repeated: (request, index, log time)."""
    random = Random(seed)
    sent: list[RequestId] = []
    next_of: dict[tuple[str, int], int] = {}
    entries = []
    now_ms = 0
    for index in range(1, length + 1):
        now_ms += random.choice((0, 0, 5, 5, 60))
        if sent and random.random() < 0.5:
            request = random.choice(sent)
        else:
            name = (random.choice("abcde"), random.randrange(index))
            if next_of and random.random() < 0.8:
                name = random.choice(sorted(next_of)[-8:])
            next_of[name] = next_of.get(name, 0) + 1
            request = RequestId(*name, next_of[name])
            sent.append(request)
        entries.append((request, index, now_ms))
    return entries


@given(seed=some.integers(0, 2**32), cut=some.integers(0, 120))
def test_requests_executed_once_also_after_load(seed: int, cut: int) -> None:
    table, executed = SessionTable(SMALL), dict[RequestId, bytes]()
    for place, (request, index, now_ms) in enumerate(history(seed, 120)):
        if place == cut:
            restored = SessionTable.load(table.dump(), SMALL)
            assert restored.dump() == table.dump()
            table = restored
        verdict = execute(table, request, index, now_ms, result=b"%d" % index)
        if verdict is RequestStatus.NEW:
            assert request not in executed, f"executed twice (seed {seed})"
            executed[request] = b"%d" % index
        elif verdict is RequestStatus.DUPLICATE:
            assert table.result_of(request) == executed[request]
        assert len(table) <= SMALL.sessions_max


@given(seed=some.integers(0, 2**32))
def test_active_client_within_window_never_refused(seed: int) -> None:
    table, random = SessionTable(SMALL), Random(seed)
    index = now_ms = 0
    for number in range(1, 60):
        for late in [0, *random.sample(range(min(number, SMALL.window)), k=min(number, SMALL.window) // 2)]:
            index, now_ms = index + 1, now_ms + random.randrange(20)
            expected = (
                RequestStatus.NEW if late == 0 and not table.was_executed(RequestId("alice", 0, number)) else None
            )
            verdict = execute(table, RequestId("alice", 0, number - late), index, now_ms)
            assert verdict is (expected or RequestStatus.DUPLICATE)


@given(some.binary(max_size=200))
def test_invalid_bytes_raise_session_table_error(data: bytes) -> None:
    try:
        table = SessionTable.load(data, SMALL)
    except SessionTableError:
        return
    assert SessionTable.load(table.dump(), SMALL).dump() == table.dump()


@given(seed=some.integers(0, 2**32), place=some.integers(0, 10_000), value=some.integers(0, 255))
def test_damaged_dump_raises_error_or_loads_within_limits(seed: int, place: int, value: int) -> None:
    table = SessionTable(SMALL)
    for request, index, now_ms in history(seed, 20):
        execute(table, request, index, now_ms)
    data = bytearray(table.dump())
    data[place % len(data)] = value
    try:
        loaded = SessionTable.load(bytes(data), SMALL)
    except SessionTableError:
        return
    assert len(loaded) <= SMALL.sessions_max


@pytest.mark.parametrize(("client", "start", "sequence"), [("", 0, 1), ("x" * 65, 0, 1), ("x", -1, 1), ("x", 0, 0)])
def test_request_id_out_of_range_refused(client: str, start: int, sequence: int) -> None:
    with pytest.raises(ValueError, match=r"bytes|63-bit"):
        RequestId(client, start, sequence)


def test_request_id_parsed_only_from_its_text() -> None:
    request = RequestId("0011223344556677-3", 120, 9)
    assert str(request) == "0011223344556677-3-120-9"
    assert parse_request_id(str(request)) == request
    for text in ("", "a", "a-1", "a-1-0", "-1-1", "a-1-x", "a--1", f"a-1-{2**63}", "x" * 65 + "-1-1", "a-1-²"):
        assert parse_request_id(text) is None


def test_first_clock_entry_expires_no_session() -> None:
    """Log time begins with the first clock entry, and with it the idle time of earlier sessions."""
    table = SessionTable(SessionLimits(expiry_ms=1_000))
    request = RequestId("early", 0, 1)
    assert table.admit(request, 1, 0) is RequestStatus.NEW
    table.record(request, b"")
    table.expire(1_700_000_000_000)
    assert table.was_executed(request)
    table.expire(1_700_000_001_001)
    assert not table.was_executed(request)
