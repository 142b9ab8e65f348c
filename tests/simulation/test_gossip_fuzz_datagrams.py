"""Hostile datagrams, with and without the key, against a group with its complete wire layer: a short version.

The long run is `python -m tests.simulation gossip-fuzz --count 1000000`.
"""

import random

import pytest

from gossip.core.probe import Prober
from tests.simulation.fuzzing import FuzzError
from tests.simulation.gossip_fuzz import OPTIONS, PERIODS_TO_AGREE, Tally, fuzz_round
from tests.simulation.gossip_wire_group import WireGroup


def test_hostile_datagrams_leave_group_in_agreement() -> None:
    seed = random.randrange(2**32)
    tally = Tally()
    try:
        fuzz_round(seed, 800, tally)
    except Exception as error:
        raise AssertionError(f"python -m tests.simulation gossip-fuzz --count 800 --first {seed}") from error
    assert max(tally.periods) <= PERIODS_TO_AGREE
    assert {outcome.partition(": ")[2] for outcome in tally.outcomes} >= {"accepted", "malformed", "forged", "bad-seal"}
    assert tally.outcomes["outsider: accepted"] == 0 < tally.outcomes["liar: accepted"]


def _rounds(count: int) -> Tally:
    tally = Tally()
    for seed in range(count):
        fuzz_round(seed, 50, tally)
    return tally


def test_group_disagrees_after_burst_then_agrees() -> None:
    tally = _rounds(2)
    assert (tally.torn, len(tally.periods)) == (2, 2)
    assert 0 < min(tally.periods) <= max(tally.periods) <= PERIODS_TO_AGREE
    assert tally.outcomes["burst: accepted"] > 0


def _never_again(prober: Prober) -> None:
    prober._reconnect_at = prober._context.now + 3_600_000


MUTANTS = {
    "without refutation": ("gossip.core.member.LocalNode.raise_above", lambda *_: None),
    "without reconnection to lost members": ("gossip.core.probe.Prober.reconnect", _never_again),
    "keyrings are sent once and never compared": (
        "gossip.core.keyring_exchange.KeyringExchange.compare",
        lambda *_: None,
    ),
    "clock bound is a constant": ("gossip.core.keyring.ClockBound.at", lambda *_: 1 << 19),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_fuzzer_detects_group_that_does_not_heal(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    with pytest.raises(FuzzError, match=f"{PERIODS_TO_AGREE} periods after the last lie"):
        _rounds(12)


def test_fuzzer_detects_accepted_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossip.wire.seal._Window.fresh", lambda *_: True)
    with pytest.raises(FuzzError, match="datagram without the key was accepted"):
        fuzz_round(1, 800, Tally())


def test_wire_group_forms_automatically() -> None:
    group = WireGroup(3, 1, OPTIONS)
    group.run(3_000)
    assert group.agreed()
