"""Entries with extreme fields: a short version of a run of minutes.

The long run is `python -m tests.simulation entry-fuzz --count 500000`.
"""

from random import randrange

import pytest

from bridge.core.farm import state_machine as farm
from tests.simulation import entry_fuzz
from tests.simulation.fuzzing import FuzzError, Tally, play


def test_farm_applies_every_signed_entry() -> None:
    tally = Tally()
    play(entry_fuzz.subject(), randrange(2**32), 800, tally)
    assert tally.outcomes.keys() == entry_fuzz.OUTCOMES


def test_fuzz_detects_division_by_entry_field(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "may_raise", lambda current, level: bool(1 // (level.number - 1) or current))
    with pytest.raises(FuzzError, match="ZeroDivisionError"):
        play(entry_fuzz.subject(), 1, 4_000, Tally())
