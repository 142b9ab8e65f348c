"""Request ids: when they were made, and for how long a server accepts them."""

import json
from pathlib import Path

import pytest

from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from consensus.protocols.zmq_raft.wire.request_ids import (
    Freshness,
    RequestIds,
    Window,
    judge,
    make_request_id,
    request_seconds,
)

MACHINE = b"\xf2\x7e\x10"
MADE_S = 0x5956DC88
HOUR_MS = 60 * 60 * 1000
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "zmq-raft.json").read_text(encoding="utf-8"))


def test_a_request_id_is_the_time_the_machine_the_process_and_a_counter() -> None:
    request_id = make_request_id(0x5956DC88, b"\x26\xf2\x7e", 0x10DC, 0xCCAB20)
    assert request_id.hex() == "5956dc8826f27e10dcccab20"
    assert request_seconds(request_id) == 0x5956DC88


def test_large_processes_and_counters_wrap() -> None:
    assert make_request_id(1, MACHINE, 2**22 + 1, 2**24 + 2)[-5:].hex() == "0001000002"


@pytest.mark.parametrize(("seconds", "machine"), [(-1, MACHINE), (2**32, MACHINE), (1, b"12"), (1, b"1234")])
def test_a_time_or_a_machine_that_does_not_fit_is_refused(seconds: int, machine: bytes) -> None:
    with pytest.raises(ZmqRaftError):
        make_request_id(seconds, machine, 1, 1)


@pytest.mark.parametrize("request_id", [b"", bytes(11), bytes(13)])
def test_only_twelve_bytes_tell_a_time(request_id: bytes) -> None:
    with pytest.raises(ZmqRaftError):
        judge(request_id, 0)


@pytest.mark.parametrize(
    ("age_ms", "freshness"),
    [
        (0, Freshness.FRESH),
        (465 * 60_000, Freshness.FRESH),
        (465 * 60_000 + 1, Freshness.EXPIRED),
        (-15 * 60_000, Freshness.FRESH),
        (-15 * 60_000 - 1, Freshness.FUTURE),
    ],
)
def test_an_id_is_fresh_from_seven_hours_and_three_quarters_ago_to_a_quarter_of_an_hour_ahead(
    age_ms: int, freshness: Freshness
) -> None:
    assert judge(make_request_id(MADE_S, MACHINE, 1, 1), MADE_S * 1000 + age_ms) is freshness


def test_the_window_can_be_another() -> None:
    request_id = make_request_id(MADE_S, MACHINE, 1, 1)
    window = Window(past_ms=45_000, future_ms=0)
    ages = (-1, 0, 45_000, 45_001)
    assert [judge(request_id, MADE_S * 1000 + age_ms, window) for age_ms in ages] == [
        *(Freshness.FUTURE, Freshness.FRESH, Freshness.FRESH, Freshness.EXPIRED)
    ]


def test_ids_are_remembered_longer_than_they_are_accepted_by_the_margin_at_the_other_end() -> None:
    assert Window().kept_ms == 8 * HOUR_MS
    assert Window.of_ttl(8 * HOUR_MS) == Window()
    day = Window.of_ttl(24 * HOUR_MS)
    assert (day.past_ms, day.future_ms, day.kept_ms) == (24 * HOUR_MS - 15 * 60_000, 15 * 60_000, 24 * HOUR_MS)


def test_the_ids_that_the_package_refused_are_not_fresh_for_us() -> None:
    asked = {each["name"]: bytes.fromhex(each["request"][0]) for each in VECTORS["client_requests"]}
    now_ms = request_seconds(asked["RequestUpdate to follower"]) * 1000
    assert judge(asked["RequestUpdate id 7h46m old (ttl 8h - margin 15m exceeded)"], now_ms) is Freshness.EXPIRED
    assert judge(asked["RequestUpdate id 16m in future"], now_ms) is Freshness.FUTURE
    assert judge(asked["RequestUpdate repeated id after commit"], now_ms) is Freshness.FRESH


def test_a_process_gives_no_id_twice() -> None:
    ids = RequestIds(MACHINE, 7, 2**24 - 2)
    given = [ids.next(seconds) for seconds in (1, 1, 1, 1, 2)]
    assert len(set(given)) == 5
    assert [each[-3:].hex() for each in given] == ["fffffe", "ffffff", "000000", "000001", "000002"]
