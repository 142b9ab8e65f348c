"""A removal that needs a higher feature level, in a farm that may need the vote of the old server."""

from collections.abc import Callable

import pytest
import trio

from bridge.api.control_routes import COMMANDS, COMMANDS_CHECK, NODES
from bridge.api.requests import CommandRequest, RemovalOrder
from bridge.api.view import FarmView
from bridge.core.log.feature_level import FIRST_LEVEL
from bridge.node.control.client import ControlError
from tests.simulation.farm.fault_walk import until_healthy
from tests.simulation.farm.world import World, simulate

OLD, LOST = "node-3", "node-4"
REMOVE_OLD = CommandRequest(removal=RemovalOrder(OLD, removed=True))


async def _until(world: World, is_reached: Callable[[FarmView], bool]) -> None:
    """Wait until the view of node 1 satisfies a condition."""
    with trio.fail_after(90):
        while True:
            async with world.control("node-1") as client:
                if is_reached(await client.view()):
                    return
            await trio.sleep(1)


async def _refused(world: World, name: str, reason: str) -> None:
    """Check that the dry run and the command are refused with this reason, and that leadership stays."""
    async with world.control(name) as client:
        leader = (await client.cluster()).leader_id
        with pytest.raises(ControlError, match=reason):
            await client.check(COMMANDS_CHECK, REMOVE_OLD)
        with pytest.raises(ControlError, match=reason):
            await client.call(COMMANDS, REMOVE_OLD)
        assert (await client.cluster()).leader_id == leader
        assert (await client.call(NODES)).level == FIRST_LEVEL
        assert (await client.submit(b'{"a": 1}')).accepted


@pytest.mark.soak
def test_removal_of_old_server_keeps_the_majority() -> None:
    """The parts have tests in `tests/node/test_order_level.py`."""

    async def story() -> None:
        async with World.open(7, hosts=3) as world:
            for host in world.hosts.values():
                host.level = FIRST_LEVEL
            await world.start_all()
            await until_healthy(world)
            await world.join(4)
            await _until(world, lambda view: len(view.raft.voters) == len(world.hosts))
            await until_healthy(world)
            for name in ("node-1", "node-2"):
                await world.stop(name)
                world.hosts[name].level = None
                await world.start(name)
                await until_healthy(world)
            await world.kill(LOST)
            await _until(world, lambda view: LOST in view.verdict.text)
            for name in ("node-1", "node-2"):
                await _refused(world, name, "node-3 runs, .* update it, or stop it first")
            await world.start(LOST)
            await until_healthy(world)
            await _refused(world, "node-1", "node-3 runs, .* update it, or stop it first")
            await world.kill(OLD)
            await _until(world, lambda view: OLD in view.verdict.text)
            async with world.control("node-1") as client:
                await client.check(COMMANDS_CHECK, REMOVE_OLD)
                await client.call(COMMANDS, REMOVE_OLD)
            await _until(world, lambda view: len(view.raft.voters) == len(world.hosts) - 1)
            async with world.control("node-1") as client:
                assert (await client.call(NODES)).level > FIRST_LEVEL

    simulate(7, story)
