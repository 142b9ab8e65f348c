"""Mutated handshakes, requests, replies and entries: a short version of a run of minutes.

The long run is `python -m tests.simulation garlic-farm-fuzz --count 500000`.
"""

from random import Random, randrange

import pytest

from consensus.protocols.garlic_farm.wire.codec import encode_reply
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator
from tests.simulation import garlic_farm_targets as targets
from tests.simulation.fuzzing import FuzzError, Tally, play
from tests.simulation.garlic_farm_fuzz import subject

SHORT = {"upgrade": 600, "requests": 1_200, "replies": 2_000, "json": 2_000}


@pytest.mark.parametrize("what", targets.TARGETS)
def test_fuzz_mutated_inputs_raise_only_their_error(what: str) -> None:
    tally = Tally()
    play(subject(targets.TARGETS[what]()), randrange(2**32), SHORT[what], tally)
    assert tally.inputs == SHORT[what]
    assert len(tally.outcomes) > 1


def test_fuzz_gzip_bomb_is_refused() -> None:
    target = targets.RequestTarget()
    bomb = target._with_pack(target._bomb)
    assert len(bomb) < 100_000
    assert target.check(bomb, Random(0)) == "refused bomb"


def test_fuzz_detects_unchecked_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "knows", lambda *_: True)
    with pytest.raises(FuzzError, match="without a proof of the password"):
        play(subject(targets.UpgradeTarget()), 1, 20_000, Tally())


def test_fuzz_detects_handshake_accepted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "spend", lambda *_: True)
    target = targets.UpgradeTarget()
    genuine = b"s" + target._genuine(Random(3))
    assert target.check(genuine, Random(0)) == "server upgraded"
    with pytest.raises(FuzzError, match="twice with the same proof"):
        target.check(genuine, Random(0))


def test_fuzz_detects_missing_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "encode_reply", lambda reply: encode_reply(reply)[:-1])
    target = targets.ReplyTarget()
    with pytest.raises(FuzzError):
        play(subject(target), 1, 1_000, Tally())
