"""The decoder's verdicts on generated entries are those that were recorded before (`tests.wire.entry_verdicts`)."""

import pytest

from tests.wire.entry_verdicts import BLOCK, BLOCKS, digest_of, recorded

QUICK = 10
"""One block of so many is compared here, all of them by `make soak`."""


def _changed(step: int) -> list[str]:
    hashes = recorded()
    assert len(hashes) == BLOCKS
    return [
        f"seeds {at * BLOCK} to {(at + 1) * BLOCK - 1}" for at in range(0, BLOCKS, step) if digest_of(at) != hashes[at]
    ]


def test_entry_verdicts_equal_the_recorded_ones() -> None:
    assert _changed(QUICK) == []


@pytest.mark.soak
def test_all_entry_verdicts_equal_the_recorded_ones() -> None:
    assert _changed(1) == []
