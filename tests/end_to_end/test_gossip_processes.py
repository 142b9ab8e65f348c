"""Gossip on real sockets: many nodes in one process, and killed or paused processes.

The tests are short versions of `python -m benchmarks gossip-many gossip-kill gossip-stop`, which print the figures.
"""

import time

import pytest

from benchmarks.gossip import NODES_IN_ONE, SIZE, converge_in_one_process, stop_some, times_seen
from benchmarks.gossip_group import processes

TIMEOUT_S = 40.0
PROCESSOR_S = 10.0
"""Processor seconds of fifty nodes, which need 2. Elapsed time would measure the other programs of the machine."""


@pytest.mark.soak
async def test_fifty_nodes_in_one_process_discover_each_other() -> None:
    begun = time.process_time()
    await converge_in_one_process(NODES_IN_ONE)
    assert time.process_time() - begun < PROCESSOR_S


@pytest.mark.soak
async def test_gossip_marks_only_killed_process_dead() -> None:
    async with processes() as group:
        await group.start_many(SIZE)
        await group.converge(TIMEOUT_S)
        victim = group.members[SIZE // 2]
        others = [member for member in group.members if member is not victim]
        killed_at = await group.kill(victim)
        await group.until(
            "all nodes mark the killed node dead",
            lambda: all(member.status.get(victim.name) == "dead" for member in others),
            TIMEOUT_S,
        )
        assert min(times_seen(others, victim, {"suspect"}, killed_at)) - killed_at < TIMEOUT_S / 2
        assert {change.name for member in others for change in member.story if change.status == "dead"} == {victim.name}


@pytest.mark.soak
async def test_processes_stopped_for_three_seconds_stay_alive() -> None:
    async with processes() as group:
        await group.start_many(SIZE)
        await group.converge(TIMEOUT_S)
        assert await stop_some(group) == 0


async def test_process_ends_with_its_parent() -> None:
    async with processes() as group:
        process = (await group.start()).child.process
        assert process.stdin is not None
        await process.stdin.aclose()
        assert await process.wait() == 0
