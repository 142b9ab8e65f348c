"""Mutated requests and replies of a directory: a short version of a run of minutes.

The long run is `python -m tests.simulation structure-exchange-fuzz --count 500000`.
"""

from random import randrange

import pytest

from bridge.wire.i2p.structure_exchange import encode_reply
from tests.simulation import structure_exchange_fuzz as exchange
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_fuzz_mutated_exchanges_have_all_outcomes() -> None:
    tally = Tally()
    play(exchange.subject(), randrange(2**32), 4_000, tally)
    assert tally.outcomes.keys() == exchange.OUTCOMES


def test_fuzz_detects_reply_encoded_differently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "encode_reply", lambda reply: encode_reply(reply) + b"x")
    with pytest.raises(FuzzError, match="encoded to other bytes"):
        play(exchange.subject(), 1, 1_000, Tally())
