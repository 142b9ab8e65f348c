"""Mutated lines of SAM: a short version of a run of minutes.

The long run is `python -m tests.simulation sam-fuzz --count 500000`.
"""

from random import randrange

import pytest

from bridge.wire.i2p.sam import encode_reply
from tests.simulation import sam_fuzz
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_fuzz_mutated_sam_lines_have_all_outcomes() -> None:
    tally = Tally()
    play(sam_fuzz.subject(), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() == sam_fuzz.OUTCOMES


def test_fuzz_detects_line_encoded_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sam_fuzz, "encode_reply", lambda words, pairs: encode_reply(words, {**pairs, "MORE": "1"}))
    with pytest.raises(FuzzError, match="parsed to another one"):
        play(sam_fuzz.subject(), 1, 1_000, Tally())
