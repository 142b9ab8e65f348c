"""Hostile bytes and clients of Kafka's protocol: a short run of what takes minutes, and what it must catch.

The long one is `python -m tests.simulation kraft-fuzz --count 500000`.
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
def test_hostile_bytes_raise_the_one_error_and_nothing_else(what: str) -> None:
    target, tally = fuzz.TARGETS[what](), Tally()
    play(fuzz.subject(target), randrange(2**32), 8_000, tally)
    assert tally.outcomes.keys() <= target.expected
    assert len(tally.outcomes) > 0.8 * len(target.expected)


def test_only_who_knows_the_password_is_logged_in() -> None:
    target, tally = fuzz.TARGETS["logins"](), Tally()
    play(fuzz.subject(target), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() <= target.expected
    assert {"logged in", "proof refused", "server refused"} <= tally.outcomes.keys()


def test_hostile_clients_get_their_own_answers_and_leave_nothing_behind() -> None:
    target, tally = EndpointTarget(), Tally()
    play(fuzz.subject(target), randrange(2**32), 150, tally)
    assert tally.outcomes.keys() <= target.expected
    assert {"FETCH", "PRODUCE", "VOTE", ListenerClose.MALFORMED} <= tally.outcomes.keys()


def test_the_fuzz_catches_a_decoder_that_lets_out_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialization.Cursor, "take", _unchecked)
    with pytest.raises(FuzzError, match=r"IndexError|error"):
        play(fuzz.subject(targets.RequestTarget()), 1, 1_000, Tally())


def _unchecked(cursor: serialization.Cursor, size: int) -> int:
    start = cursor.position
    cursor.position = start + size
    return start


def test_the_fuzz_catches_a_decoder_that_takes_room_for_what_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    rooms: list[list[None]] = []

    def spend(_: serialization.Cursor, elements: int) -> None:
        rooms[:] = [[None] * min(elements, 10**6)]

    monkeypatch.setattr(serialization.Cursor, "spend", spend)
    with pytest.raises(FuzzError, match=r"used .* bytes"):
        play(fuzz.subject(targets.RequestTarget()), 1, 20_000, Tally())


def test_the_fuzz_catches_batches_that_are_unpacked_without_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    right = compression.decompress
    monkeypatch.setattr(record_batches, "decompress", lambda data, kind, _: right(data, kind, 2**26))
    with pytest.raises(FuzzError, match="batches, seed 1"):
        play(fuzz.subject(targets.BatchTarget()), 1, 20_000, Tally())


def test_the_fuzz_catches_a_server_that_believes_any_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ScramServer.respond

    def respond(server: ScramServer, message: bytes) -> bytes:
        server.user = "alice"
        return right(server, message)

    monkeypatch.setattr(ScramServer, "respond", respond)
    with pytest.raises(FuzzError, match="a refused client is logged in"):
        play(fuzz.subject(targets.LoginTarget()), 1, 100, Tally())


def test_the_fuzz_catches_a_listener_that_answers_before_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    right = KafkaListener._ask

    async def ask(listener: KafkaListener, session: Any, request: Any) -> Any:
        session.must_login = False
        return await right(listener, session, request)

    monkeypatch.setattr(KafkaListener, "_ask", ask)
    with pytest.raises(FuzzError, match="is answered before the login"):
        play(fuzz.subject(EndpointTarget()), 1, 100, Tally())


def test_the_fuzz_catches_a_listener_that_forgets_no_request_of_a_client_that_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = QuorumService._ask

    async def ask(service: QuorumService, asked: Any) -> Any:
        monkeypatch.setattr(service._receiver, "forget", lambda _: None)
        return await right(service, asked)

    monkeypatch.setattr(QuorumService, "_ask", ask)
    with pytest.raises(FuzzError, match="are left when all clients are gone"):
        play(fuzz.subject(EndpointTarget()), 1, 300, Tally())
