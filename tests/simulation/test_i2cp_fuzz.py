"""Mutated I2CP streams: a short version of a run of minutes.

The long run is `python -m tests.simulation i2cp-fuzz --count 500000`.
"""

from random import randrange

import pytest

from bridge.wire.i2p.i2cp import FrameReader
from bridge.wire.i2p.i2cp_messages import I2cpError
from tests.simulation import i2cp_fuzz
from tests.simulation.fuzzing import FuzzError, Tally, play
from tests.wire.i2cp_router_half import encode


def test_fuzz_mutated_streams_have_all_outcomes() -> None:
    tally = Tally()
    play(i2cp_fuzz.subject(), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() == i2cp_fuzz.OUTCOMES


def test_reader_oversized_length_is_refused_before_body() -> None:
    reader = FrameReader()
    reader.feed(b"\xff\xff\xff\xff\x21")
    with pytest.raises(I2cpError):
        reader.next_frame()
    assert len(reader._unparsed) == 5


def test_fuzz_detects_missing_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i2cp_fuzz, "encode", lambda message: encode(message)[:-1])
    with pytest.raises(FuzzError, match="encoded to other bytes"):
        play(i2cp_fuzz.subject(), 1, 1_000, Tally())
