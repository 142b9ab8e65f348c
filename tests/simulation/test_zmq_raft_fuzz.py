"""Hostile messages of ØMQ Raft: a short run of what takes minutes.

The long one is `python -m tests.simulation zmq-raft-fuzz --count 500000`.
"""

from random import randrange

import pytest

from consensus.protocols.zmq_raft.wire import codec
from consensus.protocols.zmq_raft.wire.codec import encode_request
from tests.simulation import zmq_raft_fuzz as fuzz
from tests.simulation.fuzzing import FuzzError, Tally, play


@pytest.mark.parametrize("what", fuzz.TARGETS)
def test_hostile_messages_raise_the_one_error_and_nothing_else(what: str) -> None:
    target, tally = fuzz.TARGETS[what](), Tally()
    play(fuzz.subject(target), randrange(2**32), 3_000, tally)
    assert tally.outcomes.keys() == target.expected


def test_the_fuzz_catches_a_codec_that_forgets_a_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    target = fuzz.RequestTarget()
    monkeypatch.setattr(fuzz, "encode_request", lambda request: encode_request(request)[:4])
    with pytest.raises(FuzzError, match="requests, seed 1"):
        play(fuzz.subject(target), 1, 1_000, Tally())


def test_the_fuzz_catches_a_decoder_that_lets_out_another_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "whole_number", lambda value, _what: int(value))
    with pytest.raises(FuzzError, match=r"TypeError|ValueError|OverflowError"):
        play(fuzz.subject(fuzz.ReplyTarget()), 1, 10_000, Tally())


def test_the_fuzz_catches_a_decoder_that_trusts_a_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "check_size", lambda *_: bytearray(2**22))
    with pytest.raises(FuzzError, match=r"used .* bytes"):
        play(fuzz.subject(fuzz.BroadcastTarget()), 1, 1_000, Tally())
