"""Servers join and go while clients write and read. `python -m tests.simulation garlic-farm-joins` is the long one."""

from pathlib import Path
from random import Random

import trio

from tests.simulation.consensus.linearizability import Verdict
from tests.simulation.garlic_farm_joins import Story


async def test_two_servers_join_and_go_and_the_whole_history_is_linearizable(tmp_path: Path) -> None:
    """One by log packs, one by snapshot after the log was compacted."""
    with trio.fail_after(300):
        figures = await Story(tmp_path, entries=2_000, clients=16, random=Random(11)).run()
    print("\n".join(figures.lines()))  # noqa: T201 - shown with -s
    assert figures.verdict is Verdict.LINEARIZABLE
    assert figures.written_meanwhile > 0
