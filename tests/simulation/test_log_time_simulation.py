"""Log time while fewer than half of the clocks jump, drift or lie, and with planted bugs in its rules."""

import pytest

from tests.effort import IS_SOAK
from tests.simulation.log_time_clocks import MUTANTS, first_broken

SEEDS = range(5 if IS_SOAK else 2)
FIRST_SEEDS = {"one voter is enough": 1, "stale readings count": 20}
"""First seed of the search for rarely detected bugs; `--mutants` begins with seed 0 for all bugs."""


@pytest.mark.search
def test_log_time_with_wrong_clocks_stays_within_bounds() -> None:
    assert first_broken(SEEDS) is None


@pytest.mark.parametrize("name", MUTANTS)
def test_log_time_planted_bug_is_found(name: str) -> None:
    first = FIRST_SEEDS.get(name, 0)
    assert first_broken(range(first, first + 40), name) is not None
