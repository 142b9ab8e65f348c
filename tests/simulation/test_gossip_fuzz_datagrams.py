"""Datagrams of strangers and of liars against a group with its whole wire floor: a short run of what takes minutes.

The long one is `python -m tests.simulation gossip-fuzz --count 1000000`.
"""

import random

import pytest

from tests.simulation.gossip_fuzz import PERIODS_TO_AGREE, TUNING, FuzzError, Tally, fuzz_round
from tests.simulation.gossip_wire_group import WireGroup


def test_hostile_datagrams_raise_nothing_break_nothing_and_leave_a_group_that_agrees() -> None:
    seed = random.randrange(2**32)
    tally = Tally()
    for each in (seed, seed + 1):
        try:
            fuzz_round(each, 1_500, tally)
        except Exception as error:
            raise AssertionError(f"python -m tests.simulation gossip-fuzz --count 1500 --first {each}") from error
    assert max(tally.periods) <= PERIODS_TO_AGREE
    assert {outcome.partition(": ")[2] for outcome in tally.outcomes} >= {"taken", "malformed", "forged", "bad-seal"}
    assert tally.outcomes["stranger: taken"] == 0 < tally.outcomes["liar: taken"]


def test_the_fuzzer_finds_a_group_that_does_not_refute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.simulation.gossip_hostility.LIARS", 4)  # a full directory forgets the dead
    monkeypatch.setattr("gossip.core.own.Own.raise_above", lambda *_: None)
    monkeypatch.setattr("gossip.core.own.Own.adopt", lambda *_: None)
    with pytest.raises(FuzzError, match="no agreement"):
        fuzz_round(1, 2_000, Tally())


def test_the_fuzzer_finds_a_wire_that_takes_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.wire.seal._Window.fresh", lambda *_: True)
    with pytest.raises(FuzzError, match="stranger was taken"):
        fuzz_round(1, 800, Tally())


def test_a_group_with_its_wire_floor_forms_by_itself() -> None:
    group = WireGroup(3, 1, TUNING)
    group.run(3_000)
    assert group.agreed()
