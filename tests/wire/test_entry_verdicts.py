"""The decoder's verdicts on generated entries equal the recorded verdicts (`tests.wire.entry_verdicts`)."""

import pytest

from tests.wire.entry_verdicts import BLOCK, BLOCKS, digest_of, recorded

QUICK = 20
"""The quick test compares every twentieth block; `make soak` compares all blocks."""


def _changed(step: int) -> list[str]:
    hashes = recorded()
    assert len(hashes) == BLOCKS
    return [
        f"seeds {at * BLOCK} to {(at + 1) * BLOCK - 1}" for at in range(0, BLOCKS, step) if digest_of(at) != hashes[at]
    ]


def test_entry_verdicts_equal_recorded_verdicts() -> None:
    assert _changed(QUICK) == []


@pytest.mark.soak
def test_entry_verdicts_of_all_blocks_equal_recorded_verdicts() -> None:
    assert _changed(1) == []
