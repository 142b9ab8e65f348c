"""Request ids: their time of creation, and the period during which a server accepts them."""

import json
from pathlib import Path

import pytest

from consensus.protocols.zmq_raft.wire.frames import ZmqRaftError
from consensus.protocols.zmq_raft.wire.request_ids import (
    RequestIds,
    Window,
    is_fresh,
    make_request_id,
    request_seconds,
)

MACHINE = b"\xf2\x7e\x10"
MADE_S = 0x5956DC88
HOUR_MS = 60 * 60 * 1000
VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "zmq-raft.json").read_text(encoding="utf-8"))


def test_request_id_has_time_machine_process_and_counter() -> None:
    request_id = make_request_id(0x5956DC88, b"\x26\xf2\x7e", 0x10DC, 0xCCAB20)
    assert request_id.hex() == "5956dc8826f27e10dcccab20"
    assert request_seconds(request_id) == 0x5956DC88


def test_large_process_and_counter_wrap() -> None:
    assert make_request_id(1, MACHINE, 2**22 + 1, 2**24 + 2)[-5:].hex() == "0001000002"


@pytest.mark.parametrize(("seconds", "machine"), [(-1, MACHINE), (2**32, MACHINE), (1, b"12"), (1, b"1234")])
def test_time_or_machine_out_of_range_is_refused(seconds: int, machine: bytes) -> None:
    with pytest.raises(ZmqRaftError):
        make_request_id(seconds, machine, 1, 1)


@pytest.mark.parametrize("request_id", [b"", bytes(11), bytes(13)])
def test_id_of_wrong_length_is_refused(request_id: bytes) -> None:
    with pytest.raises(ZmqRaftError):
        is_fresh(request_id, 0)


def test_default_window_is_7_h_45_min_back_and_15_min_ahead() -> None:
    request_id = make_request_id(MADE_S, MACHINE, 1, 1)
    ages = (0, 465 * 60_000, 465 * 60_000 + 1, -15 * 60_000, -15 * 60_000 - 1)
    assert [is_fresh(request_id, MADE_S * 1000 + age_ms) for age_ms in ages] == [True, True, False, True, False]


def test_freshness_depends_on_window() -> None:
    request_id = make_request_id(MADE_S, MACHINE, 1, 1)
    window = Window(past_ms=45_000, future_ms=0)
    ages = (-1, 0, 45_000, 45_001)
    assert [is_fresh(request_id, MADE_S * 1000 + age_ms, window) for age_ms in ages] == [*(False, True, True, False)]


def test_ids_are_kept_for_past_and_future_margins() -> None:
    assert Window().kept_ms == 8 * HOUR_MS
    assert Window.of_ttl(8 * HOUR_MS) == Window()
    day = Window.of_ttl(24 * HOUR_MS)
    assert (day.past_ms, day.future_ms, day.kept_ms) == (24 * HOUR_MS - 15 * 60_000, 15 * 60_000, 24 * HOUR_MS)


def test_ids_refused_by_package_are_not_fresh() -> None:
    recorded = {each["name"]: bytes.fromhex(each["request"][0]) for each in VECTORS["client_requests"]}
    now_ms = request_seconds(recorded["RequestUpdate to follower"]) * 1000
    assert not is_fresh(recorded["RequestUpdate id 7h46m old (ttl 8h - margin 15m exceeded)"], now_ms)
    assert not is_fresh(recorded["RequestUpdate id 16m in future"], now_ms)
    assert is_fresh(recorded["RequestUpdate repeated id after commit"], now_ms)


def test_process_never_repeats_id() -> None:
    ids = RequestIds(MACHINE, 7, 2**24 - 2)
    given = [ids.next(seconds) for seconds in (1, 1, 1, 1, 2)]
    assert len(set(given)) == 5
    assert [each[-3:].hex() for each in given] == ["fffffe", "ffffff", "000000", "000001", "000002"]
