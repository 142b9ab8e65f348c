"""Hostile bytes and clients of Kafka's protocol: a short version of a run of minutes, and planted bugs.

The long run is `python -m tests.simulation kraft-fuzz --count 500000`.
"""

from random import randrange
from typing import Any

import pytest

from consensus.protocols.kafka.connections.counters import ListenerClose
from consensus.protocols.kafka.connections.listener import KafkaListener
from consensus.protocols.kafka.wire import compression, record_batches, serialization
from consensus.protocols.kafka.wire.scram import ScramServer
from consensus.protocols.kraft.replica.quorum_service import QuorumService
from tests.simulation import kraft_fuzz as fuzz
from tests.simulation import kraft_targets as targets
from tests.simulation.fuzzing import FuzzError, Tally, play
from tests.simulation.kraft_endpoint_target import EndpointTarget


@pytest.mark.parametrize("what", ["batches", "entries", "requests", "responses"])
def test_fuzz_hostile_bytes_raise_only_their_error(what: str) -> None:
    target, tally = fuzz.TARGETS[what](), Tally()
    play(fuzz.subject(target), randrange(2**32), 2_000, tally)
    assert tally.outcomes.keys() <= target.expected
    assert len(tally.outcomes) > 0.8 * len(target.expected)


def test_fuzz_login_requires_password() -> None:
    target, tally = fuzz.TARGETS["logins"](), Tally()
    play(fuzz.subject(target), randrange(2**32), 2_000, tally)
    assert tally.outcomes.keys() <= target.expected
    assert {"logged in", "proof refused", "server refused"} <= tally.outcomes.keys()


def test_fuzz_state_is_empty_after_hostile_clients() -> None:
    target, tally = EndpointTarget(), Tally()
    play(fuzz.subject(target), randrange(2**32), 60, tally)
    assert tally.outcomes.keys() <= target.expected
    assert {"FETCH", "PRODUCE", "VOTE", ListenerClose.MALFORMED} <= tally.outcomes.keys()


def test_fuzz_detects_other_error_of_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization.Cursor, "take", _unchecked)
    with pytest.raises(FuzzError, match=r"IndexError|error"):
        play(fuzz.subject(targets.RequestTarget()), 1, 1_000, Tally())


def _unchecked(cursor: serialization.Cursor, size: int) -> int:
    start = cursor.position
    cursor.position = start + size
    return start


def test_fuzz_detects_allocation_by_announced_size(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[list[None]] = []

    def spend(_: serialization.Cursor, elements: int) -> None:
        rooms[:] = [[None] * min(elements, 10**6)]

    monkeypatch.setattr(serialization.Cursor, "spend", spend)
    with pytest.raises(FuzzError, match=r"used .* bytes"):
        play(fuzz.subject(targets.RequestTarget()), 1, 20_000, Tally())


def test_fuzz_detects_unbounded_decompression(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compression.decompress
    monkeypatch.setattr(record_batches, "decompress", lambda data, kind, _: right(data, kind, 2**26))
    with pytest.raises(FuzzError, match="batches, seed 1"):
        play(fuzz.subject(targets.BatchTarget()), 1, 20_000, Tally())


def test_fuzz_detects_unchecked_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScramServer.respond

    def respond(server: ScramServer, message: bytes) -> bytes:
        server.user = "alice"
        return right(server, message)

    monkeypatch.setattr(ScramServer, "respond", respond)
    with pytest.raises(FuzzError, match="a refused client is logged in"):
        play(fuzz.subject(targets.LoginTarget()), 1, 100, Tally())


def test_fuzz_detects_response_before_login(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KafkaListener._call_service

    async def ask(listener: KafkaListener, session: Any, request: Any) -> Any:
        session.must_login = False
        return await right(listener, session, request)

    monkeypatch.setattr(KafkaListener, "_call_service", ask)
    with pytest.raises(FuzzError, match="is answered before the login"):
        play(fuzz.subject(EndpointTarget()), 1, 100, Tally())


def test_fuzz_detects_kept_request_of_closed_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = QuorumService._call_server

    async def ask(service: QuorumService, request: Any) -> Any:
        monkeypatch.setattr(service._receiver, "forget", lambda _: None)
        return await right(service, request)

    monkeypatch.setattr(QuorumService, "_call_server", ask)
    with pytest.raises(FuzzError, match="are left after all clients have closed"):
        play(fuzz.subject(EndpointTarget()), 1, 300, Tally())
