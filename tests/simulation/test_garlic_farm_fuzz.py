"""Mutated handshakes, requests, replies and entries: a short run of what takes minutes.

The long one is `python -m tests.simulation garlic-farm-fuzz --count 500000`.
"""

from random import Random, randrange

import pytest

from consensus.protocols.garlic_farm.wire.codec import encode_reply
from consensus.protocols.garlic_farm.wire.upgrade_server import Authenticator
from tests.simulation import garlic_farm_targets as targets
from tests.simulation.fuzzing import FuzzError, Tally, play
from tests.simulation.garlic_farm_fuzz import subject

SHORT = {"upgrade": 1_500, "requests": 3_000, "replies": 5_000, "json": 5_000}


@pytest.mark.parametrize("what", targets.TARGETS)
def test_mutated_inputs_raise_the_one_error_and_nothing_else(what: str) -> None:
    tally = Tally()
    play(subject(targets.TARGETS[what]()), randrange(2**32), SHORT[what], tally)
    assert tally.inputs == SHORT[what]
    assert len(tally.outcomes) > 1


def test_a_gzip_bomb_is_refused_when_it_reaches_the_limit() -> None:
    target = targets.RequestTarget()
    bomb = target._with_pack(target._bomb)
    assert len(bomb) < 100_000
    assert target.check(bomb, Random(0)) == "refused bomb"


def test_the_fuzz_catches_a_server_that_does_not_look_at_the_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "knows", lambda *_: True)
    with pytest.raises(FuzzError, match="did not prove the password"):
        play(subject(targets.UpgradeTarget()), 1, 20_000, Tally())


def test_the_fuzz_catches_a_server_that_takes_a_handshake_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Authenticator, "spend", lambda *_: True)
    target = targets.UpgradeTarget()
    genuine = b"s" + target._genuine(Random(3))
    assert target.check(genuine, Random(0)) == "server upgraded"
    with pytest.raises(FuzzError, match="twice with the same proof"):
        target.check(genuine, Random(0))


def test_the_fuzz_catches_a_codec_that_forgets_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "encode_reply", lambda reply: encode_reply(reply)[:-1])
    target = targets.ReplyTarget()
    with pytest.raises(FuzzError):
        play(subject(target), 1, 1_000, Tally())
