"""Gossip on real sockets: many nodes in one process, and processes that are killed or get no processor time.

Short versions of `python -m benchmarks gossip-many gossip-kill gossip-stop`, which print the figures.
"""

import pytest

from benchmarks.gossip import NODES_IN_ONE, SIZE, converge_in_one_process, seen, stop_some
from benchmarks.gossip_group import processes

PATIENCE_S = 40.0


@pytest.mark.soak
async def test_fifty_nodes_in_one_process_see_one_another() -> None:
    assert 0 < await converge_in_one_process(NODES_IN_ONE) < PATIENCE_S


async def test_twelve_processes_bury_the_killed_one_and_no_other() -> None:
    async with processes() as group:
        await group.start_many(SIZE)
        await group.converge(PATIENCE_S)
        victim = group.members[SIZE // 2]
        rest = [member for member in group.members if member is not victim]
        killed_at = await group.kill(victim)
        await group.until(
            "the killed one is dead to all",
            lambda: all(member.status.get(victim.name) == "dead" for member in rest),
            PATIENCE_S,
        )
        assert min(seen(rest, victim, {"suspect"}, killed_at)) - killed_at < PATIENCE_S / 2
        assert {change.name for member in rest for change in member.story if change.status == "dead"} == {victim.name}


@pytest.mark.soak
async def test_three_of_twelve_that_stand_still_for_three_seconds_are_not_buried() -> None:
    async with processes() as group:
        await group.start_many(SIZE)
        await group.converge(PATIENCE_S)
        assert await stop_some(group) == 0


async def test_a_process_ends_with_the_one_that_started_it() -> None:
    async with processes() as group:
        member = await group.start()
        await member.questions.aclose()
        assert await member.process.wait() == 0
