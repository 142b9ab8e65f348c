"""A world: machines with nodes of one farm, on virtual time and a network in memory. A seed determines its trace.

    async with World.open(seed=7, hosts=3) as world:      inside `simulate(seed, main)`, which makes the trio run
        await world.start("node-1")                       the process of a node, by `bridge.node.app.run_node`
        world.network.isolate("node-2")
        await world.kill("node-3")                        SIGKILL; also `power_cut`, `stop` (SIGTERM), `pause`, `resume`
        async with world.control("node-1") as client:     the product's control client
            await client.view()

A kill keeps the content of the disk at that moment: the tasks of the process are canceled afterwards, and later writes
are undone. A power cut keeps the durable content and a random part of the later writes.
"""

import gc
import logging
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from signal import SIGTERM
from typing import Any, Final, Protocol, TypeVar

import trio

import consensus.server.interfaces
from bridge.api.control_routes import KEYS_EXPORT
from bridge.api.trace import TraceEvent
from bridge.node import local_node
from bridge.node.app import run_node
from bridge.node.control.client import ControlClient
from bridge.node.offline.recovering import RecoveryPlan
from bridge.node.security.control_socket import SOCKET_NAME
from bridge.node.settings.configuration import load_configuration
from bridge.node.settings.machine import Machine
from bridge.wire.i2p.destination_keys import MasterKey
from tests.simulation.farm.datagrams import MemoryDatagrams
from tests.simulation.farm.host import Host, HostDisk, PlainDisk, Run, current_host, current_service
from tests.simulation.farm.interposing import interposed
from tests.simulation.farm.network import Network
from tests.simulation.farm.routers import Floodfills, Router
from tests.simulation.farm.settings import GOSSIP_PORT, I2CP_PORT, Profile, is_i2pd, write_farm, write_node
from tests.simulation.farm.sockets import Sockets
from tests.simulation.farm.streams import MemoryStreams
from tests.simulation.farm.virtual_time import TaskOrder, VirtualClock, ordered_by

MEMORY_FILES: Final = Path("/dev/shm")  # noqa: S108 - a file system in memory; each world makes its own directory
COLLECT_EVERY_S: Final = 60.0
"""Virtual seconds between two collections of garbage: finalizers run at the same moments in each process."""

T = TypeVar("T")


class OnRecovery(Protocol):
    """Called when a new farm is made from a survivor, before its node starts."""

    def __call__(self, plan: RecoveryPlan, *, ended_well: bool) -> None:
        """Take the plan; `ended_well` is False if the node may have lost entries at its end."""


class World:
    """The machines, the network between them, and the trace."""

    def __init__(
        self, seed: int, directory: Path, clock: VirtualClock, order: TaskOrder, nursery: trio.Nursery
    ) -> None:
        self.seed = seed
        self.directory = directory
        self.clock = clock
        self.random = Random(f"{seed}/world")
        self.network = Network(clock, Random(f"{seed}/network"))
        self.datagrams = MemoryDatagrams(self.network)
        self.streams = MemoryStreams(self.network)
        self.sockets = Sockets(self.streams)
        self.hosts: dict[str, Host] = {}
        self.away: set[str] = set()
        """Machines whose nodes are not members now: they are joining, have left, were evicted, or lost their disks."""
        self.trace: list[str] = []
        self.profile = Profile()
        self.master: MasterKey | None = None
        self.floodfills = Floodfills(lambda: clock.now_s)
        self.routers: dict[str, Router] = {}
        """The routers by machine, if the profile has routers."""
        self.signers: set[bytes] = set()
        """The transient keys of the nodes."""
        self.failures: list[tuple[str, str]] = []
        """Members whose processes ended by an exception, and the exception."""
        self.on_event: list[Callable[[Host, TraceEvent], None]] = []
        """Called with each event of a node's own trace."""
        self.on_taken: list[Callable[[Host, bytes], None]] = []
        """Called with each structure that a router of a machine accepts, or drops without a reply."""
        self.on_recovery: list[OnRecovery] = []
        self._order = order
        self._nursery = nursery

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        seed: int,
        hosts: int = 3,
        profile: Profile | None = None,
        disk: Callable[[Path], HostDisk] = PlainDisk,
    ) -> "AsyncIterator[World]":
        """Make a world with the files of a farm of `hosts` nodes. None of them runs yet."""
        clock, order = _RUN.get()
        root = MEMORY_FILES if MEMORY_FILES.is_dir() else None
        directory = Path(tempfile.mkdtemp(prefix="world-", dir=root))
        try:
            async with trio.open_nursery() as nursery:
                world = cls(seed, directory, clock, order, nursery)
                order.is_held = world._is_held
                with interposed(world.datagrams, world.sockets), world._observed():
                    world._found(hosts, profile or Profile(), disk)
                    nursery.start_soon(_collect_garbage)
                    for name, router in world.routers.items():
                        await world.serve(name, I2CP_PORT, router.serve)
                    try:
                        yield world
                    finally:
                        await world._end()
                nursery.cancel_scope.cancel()
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    # -- machines ------------------------------------------------------------------------------------------------------

    def _found(self, hosts: int, profile: Profile, disk: Callable[[Path], HostDisk]) -> None:
        self.profile = profile
        operator = Host("operator", self.seed, ["10.0.0.250"], PlainDisk(self.directory / "operator"), self._now)
        with as_host(operator):
            self.master = write_farm(self.directory / "keys", hosts, demo=not profile.has_routers)
        for number in range(1, hosts + 1):
            self.add(number, disk, founders=hosts)

    def add(
        self,
        number: int,
        disk: Callable[[Path], HostDisk] = PlainDisk,
        founders: int = 3,
        farm_key: str | None = None,
    ) -> Host:
        """Add a machine with the settings of one more node. A node of an existing farm needs its exported key file."""
        assert self.master is not None
        name = f"node-{number}"
        host = Host(name, self.seed, [f"10.0.0.{number}"], disk(self.directory / name), self._now)
        if number in self.profile.with_nat:
            host.addresses, host.public = [f"192.168.{number}.2"], host.addresses[0]
        self.hosts[name] = host
        self.network.add(host)
        several = founders if self.profile.seeds is None else self.profile.seeds
        seeds = self.present_seeds(name) if farm_key else _seeds(range(1, several + 1), number)
        with as_host(host):
            key, leaf = write_node(self.directory / "keys", host, seeds, self.master, self.profile, farm_key)
        assert key.offline is not None
        self.signers.add(key.offline.transient_key)
        self.floodfills.destinations[leaf.hash] = leaf
        if self.profile.has_routers:
            random = Random(f"{self.seed}/router/{name}")
            self.routers[name] = router = Router(self.floodfills, random, lambda: host.wall_s, is_i2pd=is_i2pd(host))
            router.on_taken = partial(self._taken_by_router, host)
        return host

    def _taken_by_router(self, host: Host, structure: bytes) -> None:
        for each in self.on_taken:
            each(host, structure)

    async def join(self, number: int, disk: Callable[[Path], HostDisk] = PlainDisk) -> Host:
        """Add a machine, and start its node with the farm's key file, as `garlicfarm keys export` writes it."""
        running = next(name for name, host in self.hosts.items() if host.run is not None and not host.is_paused)
        async with self.control(running) as client:
            farm_key = (await client.call(KEYS_EXPORT)).farm_key
        host = self.add(number, disk, farm_key=farm_key)
        if host.name in self.routers:
            await self.serve(host.name, I2CP_PORT, self.routers[host.name].serve)
        await self.start(host.name)
        return host

    def present_seeds(self, name: str) -> list[str]:
        """Return the seeds that an operator writes for a node of an existing farm: the other members."""
        numbers = [host.number for each, host in self.members.items() if each != name]
        return _seeds(numbers, 0) if self.profile.seeds is None else _seeds(range(1, self.profile.seeds + 1), 0)

    @property
    def members(self) -> dict[str, Host]:
        """The machines whose nodes are members of the farm, whether they run or not."""
        return {name: host for name, host in self.hosts.items() if name not in self.away}

    async def start(self, name: str) -> None:
        """Start the process of a node; return before it has read its settings."""
        host = self.hosts[name]
        assert host.run is None, f"{name} runs"
        host.starts += 1
        if not host.is_powered:
            host.boot()
        host.run = Run(level=host.level)
        self.note(host, "start")
        self._nursery.start_soon(self._run, host, host.run)
        await trio.lowlevel.checkpoint()

    async def start_all(self) -> None:
        for host in self.hosts.values():
            if host.run is None:
                await self.start(host.name)

    async def stop(self, name: str) -> None:
        """Send SIGTERM, and wait for the end of the process."""
        host = self.hosts[name]
        run = host.run
        if run is None:
            return
        self.note(host, "SIGTERM")
        if not run.signals:
            run.scope.cancel()
        for each in run.signals:
            each.send_nowait(SIGTERM)
        await run.ended.wait()

    async def kill(self, name: str) -> None:
        """End the process by SIGKILL. Its disk keeps all written bytes."""
        host = self.hosts[name]
        self.note(host, "SIGKILL")
        await self._end_run(host, self._taken(host, durable=False))

    async def power_cut(self, name: str) -> None:
        """Cut the power of a machine. Its disk keeps all synced bytes, and a part of the others."""
        host = self.hosts[name]
        self.note(host, "power cut")
        snapshot = self._taken(host, durable=True)
        self.streams.close_all(host, power_cut=True)
        host.is_powered = False
        await self._end_run(host, snapshot)

    def pause(self, name: str) -> None:
        """Stop the process as SIGSTOP does: its tasks do not run; its kernel still takes packets."""
        self.hosts[name].is_paused = True
        self._order.holds = True
        self.note(self.hosts[name], "SIGSTOP")

    def resume(self, name: str) -> None:
        """Continue a paused process."""
        self.hosts[name].is_paused = False
        self._order.holds = any(each.is_paused for each in self.hosts.values())
        self._order.release()
        self.note(self.hosts[name], "SIGCONT")

    def move(self, name: str, *addresses: str) -> None:
        """Give a machine other addresses, as DHCP does; open connections break after a while, like TCP's."""
        self.network.move(self.hosts[name], list(addresses))
        self.note(self.hosts[name], f"addresses {' '.join(addresses)}")

    async def serve(self, name: str, port: int, handler: Callable[[trio.SocketStream], Awaitable[object]]) -> "Service":
        """Run a server on the loopback address of a machine, such as a router, until its scope is canceled.

        A kill of the node does not end it. A power cut does; it starts again with the machine.
        """
        found = Service(self.hosts[name], f"port {port}")
        await self._nursery.start(self._serve, found, port, handler)
        return found

    async def _serve(
        self,
        service: "Service",
        port: int,
        handler: Callable[[trio.SocketStream], Awaitable[object]],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        current_host.set(service.host)
        current_service.set(service.name)
        with service.scope:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
            task_status.started()
            while True:
                try:
                    await trio.serve_listeners(handler, listeners)
                except* trio.ClosedResourceError:
                    pass
                while not service.host.is_powered:  # noqa: ASYNC110 - a flag of the machine
                    await trio.sleep(1)
                listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        self.streams.close_all(service.host, service.name)

    def control(self, name: str) -> ControlClient:
        return ControlClient(self.hosts[name].directory / SOCKET_NAME)

    # -- the trace -----------------------------------------------------------------------------------------------------

    @property
    def time_s(self) -> float:
        return self.clock.now_s

    def _now(self) -> float:
        return self.clock.now_s

    def note(self, host: Host | None, text: str) -> None:
        """Add a line to the trace."""
        line = text.replace(str(self.directory), "<world>")
        self.trace.append(f"{round(self.clock.now_s * 1000):>9} {'world' if host is None else host.name} {line}")

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Copy each event of the nodes, and each warning of their logs, into the trace. Fail if one has a traceback."""
        before = local_node._log_event
        numbers = consensus.server.interfaces._calls

        def log_event(event: TraceEvent) -> None:
            host = current_host.get()
            if host is None:
                before(event)
                return
            facts = " ".join(f"{name}={value}" for name, value in sorted(event.data.items()))
            self.note(host, f"{event.kind} {facts}")
            for each in self.on_event:
                each(host, event)

        handler = _TraceHandler(self)
        loggers = [logging.getLogger(each) for each in ("garlicfarm", "bridge", "consensus", "gossip")]
        propagated = [each.propagate for each in loggers]
        local_node._log_event = log_event
        consensus.server.interfaces._calls = count(1)
        for each in loggers:
            each.addHandler(handler)
            each.propagate = False
        try:
            yield
        finally:
            local_node._log_event = before
            consensus.server.interfaces._calls = numbers
            for each, was in zip(loggers, propagated, strict=True):
                each.removeHandler(handler)
                each.propagate = was
        assert not handler.faults, f"seed {self.seed}: {handler.faults}"

    # -- processes -----------------------------------------------------------------------------------------------------

    def _is_held(self, task: trio.lowlevel.Task) -> bool:
        host = task.context.get(current_host)
        return host is not None and host.is_paused

    async def _run(self, host: Host, run: Run) -> None:
        current_host.set(host)
        try:
            async with trio.open_nursery() as workers:
                run.workers = workers
                with run.scope:
                    try:
                        settings = load_configuration(host.configuration_file, machine=_machine(host))
                        await run_node(settings, ends_within=lambda seconds: self._end_within(host, run, seconds))
                    except* Exception as group:  # noqa: BLE001 - any fault ends this process, not the world
                        if not run.is_killed:
                            run.failure = "; ".join(f"{type(each).__name__}: {each}" for each in _leaves(group))
                            run.errors = group
                workers.cancel_scope.cancel()
        finally:
            if host.run is run:
                self._close_sockets(host)
                host.run = None
            if run.failure is not None and host.name in self.members:
                self.failures.append((host.name, run.failure))
            self.note(host, "end" if run.failure is None else f"failed: {run.failure}")
            gc.collect()  # Files of an ended process close, with their locks.
            run.ended.set()

    def _end_within(self, host: Host, run: Run, seconds: float | None) -> None:
        """Exit the process after a time, as the deadline of `garlicfarm run` does; None removes the deadline."""
        run.ends_at_s = None if seconds is None else self.clock.now_s + seconds
        if run.ends_at_s is not None:
            self.clock.call_at(run.ends_at_s, lambda: self._exit_late(host, run))

    def _exit_late(self, host: Host, run: Run) -> None:
        if host.run is run and not run.is_killed and run.ends_at_s is not None and run.ends_at_s <= self.clock.now_s:
            self.note(host, "exit at its deadline")
            self._nursery.start_soon(self._end_run, host, self._taken(host, durable=False))

    def _close_sockets(self, host: Host) -> None:
        self.datagrams.close_all(host)
        self.streams.close_all(host)

    def _taken(self, host: Host, *, durable: bool) -> object:
        """Return the content of the disk after a kill or a power cut; None if the disk does not record it."""
        disk: Any = host.disk
        if isinstance(disk, PlainDisk):
            return None
        return disk.durable(host.random) if durable else disk.snapshot()

    async def _end_run(self, host: Host, snapshot: object) -> None:
        run = host.run
        if run is not None:
            run.is_killed = True
            run.scope.cancel()
        self._close_sockets(host)
        if host.is_paused:
            self.resume(host.name)
        if run is not None:
            await run.ended.wait()
        if snapshot is not None:
            disk: Any = host.disk
            disk.restore(snapshot)

    async def _end(self) -> None:
        with trio.CancelScope(shield=True):
            for host in self.hosts.values():
                host.disk.hang = False
                await self._end_run(host, None)
        self.note(None, f"{self.network.datagrams} datagrams, {self.network.segments} segments")


@dataclass(frozen=True, slots=True)
class Service:
    """A process other than the node on a machine."""

    host: Host
    name: str
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)


class _TraceHandler(logging.Handler):
    """Copies warnings of a node's log into the trace."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.WARNING)
        self._world = world
        self.faults: list[str] = []
        """Contained errors: faults of the program that did not end a node."""

    def emit(self, record: logging.LogRecord) -> None:
        """Add a line for a record of a machine's task."""
        host = current_host.get()
        text = record.getMessage()
        if record.exc_info and record.exc_info[1] is not None:
            text += f": {record.exc_info[1]!r}"
            self.faults.append(text)
        self._world.note(host, f"{record.levelname.lower()}: {text}")


def _seeds(numbers: Iterable[int], own: int) -> list[str]:
    return [f"10.0.0.{each}:{GOSSIP_PORT}" for each in numbers if each != own]


def _machine(host: Host) -> Machine:
    return Machine(hostname=host.name, state_dir=host.directory)


def _leaves(group: BaseExceptionGroup[Any]) -> Iterable[BaseException]:
    for each in group.exceptions:
        if isinstance(each, BaseExceptionGroup):
            yield from _leaves(each)
        else:
            yield each


@contextmanager
def as_host(host: Host) -> Iterator[None]:
    """Run the block as a task of a machine."""
    token = current_host.set(host)
    try:
        yield
    finally:
        current_host.reset(token)


async def _collect_garbage() -> None:
    """Collect garbage at fixed moments."""
    while True:
        await trio.sleep(COLLECT_EVERY_S)
        gc.collect(1)


_RUN: "trio.lowlevel.RunVar[tuple[VirtualClock, TaskOrder]]" = trio.lowlevel.RunVar("world")


def simulate(seed: int, main: Callable[[], Awaitable[T]]) -> T:
    """Run `main` on virtual time, with an order of tasks from the seed."""
    clock, order = VirtualClock(), TaskOrder(Random(f"{seed}/tasks"))

    async def run() -> T:
        _RUN.set((clock, order))
        return await main()

    was_enabled, had_frozen = gc.isenabled(), bool(gc.get_freeze_count())
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        with ordered_by(order):
            return trio.run(run, clock=clock.for_trio)
    finally:
        if not had_frozen:
            gc.unfreeze()  # Otherwise each later collection would visit the modules that a test run has frozen.
        if was_enabled:
            gc.enable()
