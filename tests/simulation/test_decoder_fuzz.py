"""Hostile input of each decoder: short versions of runs of minutes, and planted bugs that they find.

The long runs are `python -m tests.simulation NAME --count 500000`, with a name of `DECODERS`.
"""

from collections.abc import Callable
from random import Random, randrange
from typing import Any

import pytest

from bridge.core.farm import state_machine as farm
from bridge.core.log.records import Clock
from bridge.wire.i2p import i2cp, meta_lease_set, sam
from bridge.wire.i2p.i2cp import FrameReader
from bridge.wire.i2p.i2cp_messages import I2cpError
from bridge.wire.i2p.meta_lease_set import Verdict, decode, verify
from bridge.wire.log import entries
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator
from consensus.protocols.kafka.connections.counters import ListenerClose
from consensus.protocols.kafka.connections.listener import KafkaListener
from consensus.protocols.kafka.wire import record_batches, serialization
from consensus.protocols.kafka.wire.scram import ScramServer
from consensus.protocols.kraft.replica.quorum_service import QuorumService
from consensus.protocols.zmq_raft.endpoint.entry_streams import EntryStreams, _Budget
from consensus.protocols.zmq_raft.wire import codec
from tests.effort import IS_SOAK
from tests.simulation import garlic_farm_targets as garlic_farm
from tests.simulation import i2cp_fuzz, kraft_targets, meta_lease_set_fuzz, sam_fuzz, structure_exchange_fuzz
from tests.simulation import zmq_raft_targets as zmq
from tests.simulation.decoders import DECODERS
from tests.simulation.entry_fuzz import Applied
from tests.simulation.fuzzing import FuzzError, Subject, Tally, play
from tests.simulation.i2cp_fuzz import I2cpFrames
from tests.simulation.kraft_endpoint_target import EndpointTarget as KraftEndpoint
from tests.simulation.meta_lease_set_fuzz import MetaLeaseSets
from tests.simulation.sam_fuzz import SamParsers
from tests.simulation.structure_exchange_fuzz import StructureExchange
from tests.simulation.zmq_endpoint_target import IDENTITIES
from tests.simulation.zmq_endpoint_target import EndpointTarget as ZmqEndpoint

INPUTS: dict[Callable[[], Subject[Any]], tuple[int, set[str] | None]] = {
    MetaLeaseSets: (250, None),
    StructureExchange: (250, None),
    I2cpFrames: (135, None),
    SamParsers: (335, None),
    Applied: (85, None),
    garlic_farm.UpgradeTarget: (100, {"server refused", "introductions"}),
    garlic_farm.RequestTarget: (200, {"refused", "decoded"}),
    garlic_farm.ReplyTarget: (335, {"refused", "decoded"}),
    garlic_farm.JsonTarget: (335, {"Foreign", "Report"}),
    kraft_targets.RequestTarget: (335, {kraft_targets.REFUSED, "accepted by the core"}),
    kraft_targets.ResponseTarget: (335, {kraft_targets.REFUSED, "accepted by the core"}),
    kraft_targets.BatchTarget: (100, {kraft_targets.REFUSED, "headers"}),
    kraft_targets.EntriesTarget: (135, {kraft_targets.REFUSED, "nothing"}),
    kraft_targets.LoginTarget: (670, {"logged in", "proof refused", "server refused"}),
    KraftEndpoint: (9, {"FETCH", "PRODUCE", "VOTE", ListenerClose.MALFORMED}),
    zmq.RequestTarget: (670, None),
    zmq.ReplyTarget: (670, None),
    zmq.BroadcastTarget: (500, None),
    ZmqEndpoint: (10, {"EntriesBatch", "SnapshotPiece", "UpdateCommitted", "ChangeCommitted"}),
}
"""Number of inputs in a portion, and the outcomes that must occur (None: all). `make test` often plays one portion."""
SOAK_FACTOR = 60
"""Number of portions in `make soak`."""


@pytest.mark.search
@pytest.mark.parametrize("subject", INPUTS)
def test_fuzz_hostile_input_raises_only_its_error(subject: Callable[[], Subject[Any]]) -> None:
    """Play portions of inputs until enough outcomes have occurred; `make soak` plays all portions.

    One portion sometimes lacks a rare outcome. Sixty portions practically never lack it.
    """
    tally, fuzzed = Tally(), subject()
    quick, required = INPUTS[subject]
    seed, expected = randrange(2**32), fuzzed.expected
    most_missing = max(1, len(expected) // 6) if fuzzed.steps == 1 else len(expected)
    for portion in range(SOAK_FACTOR):
        play(fuzzed, seed + portion, quick, tally)
        found = tally.outcomes.keys()
        assert tally.inputs == quick * (portion + 1), f"seed {seed}"
        is_enough = (required or expected) <= found and len(expected - found) <= most_missing
        if is_enough and not IS_SOAK:
            break
    assert is_enough, f"seed {seed}: without {sorted(expected - found)}"
    assert found <= expected, f"seed {seed}: unexpected {sorted(found - expected)}"


def test_decoders_all_have_short_run() -> None:
    assert {each for subjects in DECODERS.values() for each in subjects} == INPUTS.keys()


Planted = Callable[..., Any]
NO_LIMIT: Any = 10**9
CLOCK = entries.encode(Clock(17, 3, 2_000))
_rooms: list[list[None]] = []


def _instead(bug: Planted) -> Callable[[Planted], Planted]:
    return lambda _right: bug


def _unchecked(cursor: serialization.Cursor, size: int) -> int:
    start = cursor.position
    cursor.position = start + size
    return start


def _log_in(right: Planted) -> Planted:
    def respond(server: ScramServer, message: bytes) -> bytes:
        server.user = "alice"
        return right(server, message)  # type: ignore[no-any-return] # the function of ScramServer

    return respond


def _without_login(right: Planted) -> Planted:
    async def ask(listener: KafkaListener, session: Any, request: Any) -> Any:
        session.must_login = False
        return await right(listener, session, request)

    return ask


def _keep_request(right: Planted) -> Planted:
    async def ask(service: Any, request: Any) -> Any:
        service._receiver.forget = lambda _: None
        return await right(service, request)

    return ask


def _allocate(_: serialization.Cursor, elements: int) -> None:
    _rooms[:] = [[None] * min(elements, 10**6)]


BUGS: dict[str, tuple[object, str, Callable[[Planted], Planted], Callable[[], Subject[Any]], int, str]] = {
    "division by a field of an entry": (
        *(farm, "may_raise", _instead(lambda current, level: bool(1 // (level.number - 1) or current))),
        *(Applied, 4_000, "ZeroDivisionError"),
    ),
    "password is not checked": (
        *(Authenticator, "knows", _instead(lambda *_: True)),
        *(garlic_farm.UpgradeTarget, 20_000, "without a proof of the password"),
    ),
    "reply without its last byte": (
        *(garlic_farm, "encode_reply", lambda right: lambda value: right(value)[:-1]),
        *(garlic_farm.ReplyTarget, 1_000, "replies, seed 1"),
    ),
    "message without its last byte": (
        *(i2cp_fuzz, "encode", lambda right: lambda value: right(value)[:-1]),
        *(I2cpFrames, 1_000, "encoded to other bytes"),
    ),
    "structure without its last byte": (
        *(meta_lease_set_fuzz, "encode", lambda right: lambda value: right(value)[:-1]),
        *(MetaLeaseSets, 1_000, "encoded to other bytes"),
    ),
    "structure without size limit": (
        *(meta_lease_set, "STRUCTURE_LIMIT_BYTES", _instead(NO_LIMIT)),
        *(MetaLeaseSets, 10_000, "above the size limit"),
    ),
    "message without size limit": (
        *(i2cp, "FRAME_LIMIT_BYTES", _instead(NO_LIMIT)),
        *(I2cpFrames, 4_000, "the reader keeps"),
    ),
    "line without size limit": (
        *(sam, "LINE_LIMIT_BYTES", _instead(NO_LIMIT)),
        *(SamParsers, 4_000, "beyond the limits"),
    ),
    "line without limit of pairs": (
        *(sam, "PAIRS_LIMIT", _instead(NO_LIMIT)),
        *(SamParsers, 4_000, "beyond the limits"),
    ),
    "entry without size limit": (
        *(entries, "ENTRY_LIMIT_BYTES", _instead(NO_LIMIT)),
        *(garlic_farm.JsonTarget, 10_000, "above the size limit"),
    ),
    "truncated entry is accepted": (
        *(garlic_farm, "decode", lambda right: lambda data: right(data if data[-1:] == b"}" else CLOCK)),
        *(garlic_farm.JsonTarget, 1_000, "a truncated entry"),
    ),
    "line with another pair": (
        *(sam_fuzz, "encode_reply", lambda right: lambda words, pairs: right(words, {**pairs, "M": "1"})),
        *(SamParsers, 1_000, "parsed to another one"),
    ),
    "reply with another byte": (
        *(structure_exchange_fuzz, "encode_reply", lambda right: lambda reply: right(reply) + b"x"),
        *(StructureExchange, 1_000, "encoded to other bytes"),
    ),
    "another error of Kafka's decoder": (
        *(serialization.Cursor, "take", _instead(_unchecked)),
        *(kraft_targets.RequestTarget, 1_000, "IndexError|error"),
    ),
    "allocation by Kafka's announced size": (
        *(serialization.Cursor, "spend", _instead(_allocate)),
        *(kraft_targets.RequestTarget, 20_000, "used .* bytes"),
    ),
    "unbounded decompression": (
        *(record_batches, "decompress", lambda right: lambda data, kind, _: right(data, kind, 2**26)),
        *(kraft_targets.BatchTarget, 20_000, "batches, seed 6"),
    ),
    "proof is not checked": (
        *(ScramServer, "respond", _log_in),
        *(kraft_targets.LoginTarget, 100, "a refused client is logged in"),
    ),
    "response before the login": (
        *(KafkaListener, "_call_service", _without_login),
        *(KraftEndpoint, 100, "is answered before the login"),
    ),
    "kept request of a closed client": (
        *(QuorumService, "_call_server", _keep_request),
        *(KraftEndpoint, 300, "are left after all clients have closed"),
    ),
    "reply to another client": (
        *(EntryStreams, "submit", lambda right: lambda streams, _, request: right(streams, IDENTITIES[0], request)),
        *(ZmqEndpoint, 100, "got the reply"),
    ),
    "unconfirmed bytes are not counted": (_Budget, "change", _instead(lambda *_: None), ZmqEndpoint, 100, "under way"),
    "request without its last frames": (
        *(zmq, "encode_request", lambda right: lambda value: right(value)[:4]),
        *(zmq.RequestTarget, 1_000, "requests, seed 1"),
    ),
    "another error of the decoder of ØMQ Raft": (
        *(codec, "whole_number", _instead(lambda value, _what: int(value))),
        *(zmq.ReplyTarget, 10_000, "TypeError|ValueError|OverflowError"),
    ),
    "allocation by announced size of ØMQ Raft": (
        *(codec, "check_size", _instead(lambda *_: bytearray(2**22))),
        *(zmq.BroadcastTarget, 1_000, "used .* bytes"),
    ),
}


EARLY = {
    "unbounded decompression": 6,
    "kept request of a closed client": 6,
    "message without size limit": 5,
    "password is not checked": 4,
    "division by a field of an entry": 5,
}
"""Seeds that find a planted bug after fewer inputs than seed 1."""


@pytest.mark.parametrize("bug", BUGS)
def test_fuzz_detects_planted_bug(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, plant, subject, count, match = BUGS[bug]
    fuzzed = subject()
    monkeypatch.setattr(owner, name, plant(getattr(owner, name)))
    with pytest.raises(FuzzError, match=match):
        play(fuzzed, EARLY.get(bug, 1), count, Tally())


def test_fuzz_detects_handshake_accepted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "spend", lambda *_: True)
    target = garlic_farm.UpgradeTarget()
    genuine = b"s" + target._genuine(Random(3))
    assert target.check(genuine, Random(0)) == "server upgraded"
    with pytest.raises(FuzzError, match="twice with the same proof"):
        target.check(genuine, Random(0))


def test_fuzz_gzip_bomb_is_refused() -> None:
    target = garlic_farm.RequestTarget()
    bomb = target._with_pack(target._bomb)
    assert len(bomb) < 100_000
    assert target.check(bomb, Random(0)) == "refused bomb"


def test_reader_oversized_length_is_refused_before_body() -> None:
    reader = FrameReader()
    reader.feed(b"\xff\xff\xff\xff\x21")
    with pytest.raises(I2cpError):
        reader.next_frame()
    assert len(reader._unparsed) == 5


def test_corpus_verifies_if_type_is_supported() -> None:
    verdicts = [verify(decode(data)).verdict for data in meta_lease_set_fuzz.corpus()]
    assert verdicts == [Verdict.HOLDS] * 6 + [Verdict.CANNOT_VERIFY] * 5


def test_truncated_structures_are_refused_by_known_types() -> None:
    subject, random = MetaLeaseSets(), Random(0)
    for data in subject.known:
        taken = [length for length in range(len(data)) if subject.check(data[:length], random) != "refused"]
        # A truncated signature is accepted only for a type whose signature length is unknown.
        assert not taken or decode(data).signature_type == 99
