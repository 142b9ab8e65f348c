"""One fault after another in a farm of three: most faults of machines and networks, and their ends.

`python -m tests.simulation.farm.fault_walk SEED [FAULT…]` prints the trace of all faults, or of some. Two processes
must print the same bytes.
"""

import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from bridge.api.view import VerdictKind
from bridge.node.control.client import ControlError
from tests.simulation.farm.network import Link
from tests.simulation.farm.world import World, simulate

BAD_LINK: Final = Link(delay_s=0.02, jitter_s=0.02, loss=0.05, duplication=0.05, reordering=0.1)
FORMED_S: Final = 20.0
"""Seconds until a farm of three has a leader and its first publication."""
FAULT_S: Final = 8.0
HEALED_WITHIN_S: Final = 40.0


async def verdicts(world: World) -> dict[str, VerdictKind | None]:
    """Return the verdict of each node; None for one without a reply."""
    found: dict[str, VerdictKind | None] = {}
    for name, host in world.hosts.items():
        found[name] = None
        if host.run is not None and not host.is_paused:
            try:
                async with world.control(name) as client:
                    found[name] = (await client.view()).verdict.kind
            except ControlError:
                continue
    return found


async def until_healthy(world: World, within_s: float = HEALED_WITHIN_S) -> None:
    """Wait until all nodes report a healthy farm; raise AssertionError after the time."""
    until_s = world.time_s + within_s
    while set((found := await verdicts(world)).values()) != {VerdictKind.HEALTHY}:
        assert world.time_s < until_s, f"seed {world.seed}: {found} after {within_s} s"
        await trio.sleep(1)


class FaultWalk:
    """The faults of a world, each with its end."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def run(self, chosen: Sequence[str] = ()) -> None:
        """Cause each fault, or the chosen ones, and wait until the farm is healthy again."""
        faults: list[Callable[[], Awaitable[None]]] = [
            self.kill,
            self.power_cut,
            self.stop,
            self.isolation,
            self.one_way_block,
            self.pause,
            self.wrong_clock,
            self.bad_link,
            self.hanging_disk,
        ]
        for fault in faults:
            if chosen and fault.__name__ not in chosen:
                continue
            self._world.note(None, fault.__name__)
            await fault()
            await until_healthy(self._world)

    async def kill(self) -> None:
        """End the process of a node by SIGKILL, and start it again."""
        await self._world.kill("node-1")
        await trio.sleep(FAULT_S)
        await self._world.start("node-1")

    async def power_cut(self) -> None:
        """Cut the power of a machine, and start it again."""
        await self._world.power_cut("node-2")
        await trio.sleep(FAULT_S)
        await self._world.start("node-2")

    async def stop(self) -> None:
        """End the process of a node by SIGTERM, and start it again."""
        await self._world.stop("node-3")
        await self._world.start("node-3")

    async def isolation(self) -> None:
        """Separate a machine from all others."""
        self._world.network.isolate("node-3")
        await trio.sleep(FAULT_S)
        self._world.network.heal()

    async def one_way_block(self) -> None:
        """Block one direction between two machines."""
        self._world.network.block("node-1", "node-2")
        await trio.sleep(FAULT_S)
        self._world.network.heal()

    async def pause(self) -> None:
        self._world.pause("node-1")
        await trio.sleep(FAULT_S)
        self._world.resume("node-1")

    async def wrong_clock(self) -> None:
        """Set the clock of a machine an hour ahead, with a drift."""
        host = self._world.hosts["node-2"]
        host.jump(3600)
        host.drift_by(1e-3)
        await trio.sleep(FAULT_S)
        host.drift_by(0)
        host.jump(-3600)

    async def bad_link(self) -> None:
        """Let all links lose, delay, duplicate and reorder packets."""
        self._world.network.link = BAD_LINK
        await trio.sleep(FAULT_S)
        self._world.network.link = Link()

    async def hanging_disk(self) -> None:
        """Let the disk of a machine hang."""
        disk = self._world.hosts["node-2"].disk
        disk.hang = True
        await trio.sleep(FAULT_S)
        disk.hang = False


async def farm_with_faults(seed: int, chosen: Sequence[str] = ()) -> list[str]:
    async with World.open(seed) as world:
        await world.start_all()
        await trio.sleep(FORMED_S)
        await until_healthy(world)
        await FaultWalk(world).run(chosen)
    return world.trace


def main() -> None:
    """Print the trace of a seed."""
    seed, chosen = int(sys.argv[1]), sys.argv[2:]
    sys.stdout.write("".join(f"{line}\n" for line in simulate(seed, lambda: farm_with_faults(seed, chosen))))


if __name__ == "__main__":
    main()
