"""Hostile messages of ØMQ Raft: a short version of a run of minutes.

The long run is `python -m tests.simulation zmq-raft-fuzz --count 500000`.
"""

from random import randrange

import pytest

from consensus.protocols.zmq_raft.endpoint.entry_streams import EntryStreams, _Budget
from consensus.protocols.zmq_raft.wire import codec
from consensus.protocols.zmq_raft.wire.codec import encode_request
from tests.simulation import zmq_raft_fuzz as fuzz
from tests.simulation import zmq_raft_targets as targets
from tests.simulation.fuzzing import FuzzError, Tally, play
from tests.simulation.zmq_endpoint_target import IDENTITIES, EndpointTarget


@pytest.mark.parametrize("what", sorted(fuzz.TARGETS.keys() - {"endpoint"}))
def test_fuzz_hostile_messages_raise_only_their_error(what: str) -> None:
    target, tally = fuzz.TARGETS[what](), Tally()
    play(fuzz.subject(target), randrange(2**32), 3_000, tally)
    assert tally.outcomes.keys() == target.expected


def test_fuzz_hostile_clients_get_correct_replies_or_none() -> None:
    target, tally = fuzz.TARGETS["endpoint"](), Tally()
    play(fuzz.subject(target), randrange(2**32), 150, tally)
    assert tally.outcomes.keys() <= target.expected
    assert {"EntriesBatch", "SnapshotPiece", "UpdateCommitted", "ChangeCommitted"} <= tally.outcomes.keys()


def test_fuzz_detects_reply_to_wrong_client(monkeypatch: pytest.MonkeyPatch) -> None:
    right = EntryStreams.submit
    monkeypatch.setattr(EntryStreams, "submit", lambda streams, _, request: right(streams, IDENTITIES[0], request))
    with pytest.raises(FuzzError, match="got the reply"):
        play(fuzz.subject(EndpointTarget()), 1, 100, Tally())


def test_fuzz_detects_uncounted_unconfirmed_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Budget, "change", lambda *_: None)
    with pytest.raises(FuzzError, match="under way"):
        play(fuzz.subject(EndpointTarget()), 1, 100, Tally())


def test_fuzz_detects_missing_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.RequestTarget()
    monkeypatch.setattr(targets, "encode_request", lambda request: encode_request(request)[:4])
    with pytest.raises(FuzzError, match="requests, seed 1"):
        play(fuzz.subject(target), 1, 1_000, Tally())


def test_fuzz_detects_other_error_of_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "whole_number", lambda value, _what: int(value))
    with pytest.raises(FuzzError, match=r"TypeError|ValueError|OverflowError"):
        play(fuzz.subject(targets.ReplyTarget()), 1, 10_000, Tally())


def test_fuzz_detects_allocation_by_announced_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "check_size", lambda *_: bytearray(2**22))
    with pytest.raises(FuzzError, match=r"used .* bytes"):
        play(fuzz.subject(targets.BroadcastTarget()), 1, 1_000, Tally())
