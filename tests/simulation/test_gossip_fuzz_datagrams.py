"""Datagrams of strangers and of liars against a group with its whole wire floor: a short run of what takes minutes.

The long one is `python -m tests.simulation gossip-fuzz --count 1000000`.
"""

import random

import pytest

from gossip.core.probe import Prober
from tests.simulation.fuzzing import FuzzError
from tests.simulation.gossip_fuzz import OPTIONS, PERIODS_TO_AGREE, Tally, fuzz_round
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


def _rounds(count: int) -> Tally:
    tally = Tally()
    for seed in range(count):
        fuzz_round(seed, 50, tally)
    return tally


def test_every_group_is_at_odds_when_the_lies_end_and_agrees_after_the_silence() -> None:
    tally = _rounds(3)
    assert (tally.torn, len(tally.periods)) == (3, 3)
    assert 0 < min(tally.periods) <= max(tally.periods) <= PERIODS_TO_AGREE
    assert tally.outcomes["burst: taken"] > 0


def _never_again(prober: Prober) -> None:
    prober._reconnect_at = prober._context.now + 3_600_000


MUTANTS = {
    "no node refutes": ("gossip.core.member.LocalNode.raise_above", lambda *_: None),
    "the lost are never asked": ("gossip.core.probe.Prober.reconnect", _never_again),
    "keyrings are told once and never compared": (
        "gossip.core.keyring_exchange.KeyringExchange.compare",
        lambda *_: None,
    ),
    "a step of the clock is believed, not its bound": ("gossip.core.keyring.ClockBound.at", lambda *_: 1 << 19),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_the_fuzzer_finds_a_group_that_does_not_heal(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(FuzzError, match=f"{PERIODS_TO_AGREE} periods after the last lie"):
        _rounds(12)


def test_the_fuzzer_finds_a_wire_that_takes_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.wire.seal._Window.fresh", lambda *_: True)
    with pytest.raises(FuzzError, match="stranger was taken"):
        fuzz_round(1, 800, Tally())


def test_a_group_with_its_wire_floor_forms_by_itself() -> None:
    group = WireGroup(3, 1, OPTIONS)
    group.run(3_000)
    assert group.agreed()
