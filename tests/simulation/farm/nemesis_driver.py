"""Applies the faults of a plan to a world, and ends them all."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

import trio

from tests.simulation.farm.disk import Disk
from tests.simulation.farm.host import EPOCH_S, Host
from tests.simulation.farm.hostile import Parts
from tests.simulation.farm.nemeses import ENDING, OF_OPERATORS, OF_ROUTERS, ON_NETWORK, Fault, Nemesis, outdated_nodes
from tests.simulation.farm.network import Link
from tests.simulation.farm.operators import Operator
from tests.simulation.farm.world import World


async def start_first(world: World, faults: tuple[Fault, ...]) -> None:
    """Start all nodes for the first time, some with an old version or a wrong clock; return with right clocks."""
    began_s, clocks = world.time_s, [each for each in faults if each.nemesis is Nemesis.FIRST_CLOCK]
    for fault in faults:
        if fault.nemesis is Nemesis.OLD_VERSION and fault.at_s == 0:
            world.hosts[fault.hosts[0]].level = int(fault.amount)
    for fault in clocks:
        world.hosts[fault.hosts[0]].jump(fault.amount - EPOCH_S)
    await world.start_all()
    for fault in sorted(clocks, key=lambda each: each.until_s):
        await trio.sleep_until(began_s + fault.until_s)
        world.note(None, f"{fault.hosts[0]}: the clock is set")
        world.hosts[fault.hosts[0]].jump(EPOCH_S - fault.amount)


class NemesisDriver:
    """The faults of one trial; `active` has the present ones."""

    def __init__(self, world: World, faults: tuple[Fault, ...], parts: Parts) -> None:
        self._world = world
        self.first_clocks = [each for each in faults if each.nemesis is Nemesis.FIRST_CLOCK]
        """The faults that `start_first` has begun and ended."""
        self.outdated = outdated_nodes(faults)
        others = (*OF_OPERATORS, Nemesis.FIRST_CLOCK)
        self._faults = [each for each in faults if each.nemesis not in others]
        self.active: list[Fault] = []
        self.operator = Operator(world, faults, self.active, parts)
        self.changed_s = world.time_s
        """Time of the last begin or end of a fault."""

    def holds_down(self, name: str) -> bool:
        """Return True if a fault or the operator keeps the process of a machine ended."""
        operator = self.operator
        return name in (self._world.away - operator.joining) | operator.down or any(
            name in each.hosts and each.nemesis in ENDING for each in self.active
        )

    async def run(self, trouble_s: float) -> None:
        """Begin and end the faults at their times."""
        began_s = self._world.time_s
        moments: list[tuple[float, int, Callable[[Fault], Awaitable[None]], Fault]] = []
        for number, fault in enumerate(self._faults):
            moments.append((fault.at_s, 2 * number, self._begin, fault))
            moments.append((fault.until_s, 2 * number + 1, self._end, fault))
        for at_s, _, change, fault in sorted(moments, key=lambda each: each[:2]):
            await trio.sleep_until(began_s + at_s)
            await change(fault)
        await trio.sleep_until(began_s + trouble_s)

    async def heal(self) -> None:
        """End all faults, but not the operator's action."""
        for fault in [each for each in self.active if each.nemesis not in OF_OPERATORS]:
            await self._end(fault)
        for host in self._world.hosts.values():
            if host.is_paused:
                self._world.resume(host.name)
        self._world.network.heal()
        self.changed_s = self._world.time_s

    async def _begin(self, fault: Fault) -> None:
        self.active.append(fault)
        self.changed_s = self._world.time_s
        self._world.note(None, f"fault: {' '.join(fault.hosts)}: {fault.nemesis.value} ({fault.amount:g})")
        async with trio.open_nursery() as nursery:
            for name in fault.hosts:
                if fault.nemesis in ENDING:
                    nursery.start_soon(self._end_process, fault, name)
        if fault.nemesis in OF_ROUTERS:
            await self._set_router(fault)
        elif fault.nemesis is Nemesis.OLD_VERSION:
            await self._install(fault.hosts[0], int(fault.amount))
        elif fault.nemesis not in ENDING:
            self._disturb()
            self._set(fault, begins=True)

    async def _end(self, fault: Fault) -> None:
        self.active.remove(fault)
        self.changed_s = self._world.time_s
        self._world.note(None, f"end of fault: {' '.join(fault.hosts)}: {fault.nemesis.value}")
        if fault.nemesis in ENDING:
            for name in fault.hosts:
                if self._world.hosts[name].run is None and not self.holds_down(name):
                    await self._world.start(name)
        elif fault.nemesis in OF_ROUTERS:
            await self._set_router(fault)
        elif fault.nemesis is Nemesis.OLD_VERSION:
            await self._install(fault.hosts[0], None)
        else:
            self._disturb()
            self._set(fault, begins=False)

    async def _end_process(self, fault: Fault, name: str) -> None:
        match fault.nemesis:
            case Nemesis.KILL:
                await self._world.kill(name)
            case Nemesis.POWER_CUT:
                await self._world.power_cut(name)
            case _:
                await self._stop(name)

    async def _stop(self, name: str) -> None:
        with trio.move_on_after(30):
            await self._world.stop(name)
        if self._world.hosts[name].run is not None:
            await self._world.kill(name)

    async def _install(self, name: str, level: int | None) -> None:
        """Replace the version on a machine, and start it; the first version is installed before the farm begins."""
        host = self._world.hosts[name]
        if host.level != level:
            host.level = level
            await self._stop(name)
            if host.run is None and not self.holds_down(name):
                await self._world.start(name)

    def _disturb(self) -> None:
        """Set the network to the sum of the active faults."""
        network = self._world.network
        network.heal()
        network.link = Link()
        names, mtu_bytes = list(self._world.hosts), None
        for fault in self.active:
            match fault.nemesis:
                case Nemesis.ISOLATE:
                    network.isolate(fault.hosts[0])
                case Nemesis.ONE_WAY if len(fault.hosts) == 2:
                    network.block(*fault.hosts)
                case Nemesis.PART:
                    network.part(fault.hosts, [each for each in names if each not in fault.hosts])
                case Nemesis.LOSSY:
                    network.link = Link(loss=fault.amount, duplication=fault.amount, reordering=fault.amount)
                case Nemesis.SLOW_LINK:
                    network.link = Link(delay_s=fault.amount, jitter_s=fault.amount)
                case Nemesis.SMALL_MTU:
                    mtu_bytes = int(fault.amount)
                case _:
                    pass
        if mtu_bytes is not None:
            network.link = replace(network.link, mtu_bytes=mtu_bytes, drops_fragments=True)

    def _set(self, fault: Fault, *, begins: bool) -> None:
        """Set the clock, the disk or the process of a machine."""
        if fault.nemesis in ON_NETWORK:
            return
        host = self._world.hosts[fault.hosts[0]]
        disk = host.disk
        assert isinstance(disk, Disk)
        same = [each for each in self.active if each.nemesis is fault.nemesis and each.hosts == fault.hosts]
        match fault.nemesis:
            case Nemesis.PAUSE:
                self._pause(host, stopped=bool(same))
            case Nemesis.CLOCK_JUMP:
                host.jump(fault.amount if begins else -fault.amount)
            case Nemesis.CLOCK_DRIFT:
                host.drift_by(same[-1].amount if same else 0.0)
                if not same:
                    self._set_right(host.name)
            case Nemesis.SLOW_DISK:
                disk.sync_delay_s = same[-1].amount if same else 0.0
            case Nemesis.HANGING_DISK:
                disk.hang = bool(same)
            case Nemesis.FULL_DISK:
                disk.full = bool(same)
            case _:
                pass

    async def _set_router(self, fault: Fault) -> None:
        router = self._world.routers[fault.hosts[0]]
        same = any(each.nemesis is fault.nemesis and each.hosts == fault.hosts for each in self.active)
        match fault.nemesis:
            case Nemesis.ROUTER_REFUSES:
                router.refusal = "planned refusal" if same else None
            case Nemesis.ROUTER_HANGS:
                router.unresponsive = same
            case _ if same:
                await router.stop()
            case _:
                router.start()

    def _pause(self, host: Host, *, stopped: bool) -> None:
        if stopped and host.run is not None and not host.is_paused:
            self._world.pause(host.name)
        elif not stopped and host.is_paused:
            self._world.resume(host.name)

    def _set_right(self, name: str) -> None:
        """Remove the offset that a drift has caused in a clock."""
        host = self._world.hosts[name]
        jumps_s = sum(
            each.amount for each in self.active if each.nemesis is Nemesis.CLOCK_JUMP and each.hosts == (name,)
        )
        jumps_s += self.operator.wrong_clocks.get(name, 0.0)
        host.jump(jumps_s - (host.wall_s - EPOCH_S - self._world.time_s))
