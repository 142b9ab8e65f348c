"""Entries at their extremes: a short run of what takes minutes.

The long one is `python -m tests.simulation entry-fuzz --count 500000`.
"""

from random import randrange

import pytest

from bridge.core.farm import state_machine as farm
from tests.simulation import entry_fuzz
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_no_entry_that_a_member_signs_keeps_a_farm_from_going_on() -> None:
    tally = Tally()
    play(entry_fuzz.subject(), randrange(2**32), 2_000, tally)
    assert tally.outcomes.keys() == entry_fuzz.OUTCOMES


def test_the_fuzz_finds_a_farm_that_divides_by_what_a_member_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "may_raise", lambda current, level: bool(1 // (level.number - 1) or current))
    with pytest.raises(FuzzError, match="ZeroDivisionError"):
        play(entry_fuzz.subject(), 1, 4_000, Tally())
