"""Servers join and leave while clients write and read.

`python -m tests.simulation garlic-farm-joins` runs the same story with more entries.
"""

from pathlib import Path
from random import Random

import pytest
import trio

from tests.simulation.consensus.linearizability import Verdict
from tests.simulation.garlic_farm_joins import Story


@pytest.mark.soak
async def test_history_with_joining_servers_is_linearizable(tmp_path: Path) -> None:
    """One server gets the log as log packs (compressed batches of entries), the other a snapshot, after compaction."""
    with trio.fail_after(300):
        figures = await Story(tmp_path, entries=2_000, clients=16, random=Random(11)).run()
    print("\n".join(figures.lines()))  # noqa: T201 - shown with -s
    assert figures.verdict is Verdict.LINEARIZABLE
    assert figures.written_meanwhile > 0
