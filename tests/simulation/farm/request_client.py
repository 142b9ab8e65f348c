"""A client of a trial that sends requests of other kinds than `workload` and `operators`, at any running node.

    RequestClient.run   reads at each route, with parameters at their limits
                        checks of orders, orders with unknown objects, forced publications, user events, queries

A violation is:

reply       no reply, although process and disk of the node work, and no fault begins or ends until the timeout
document    a reply of another type than the route's. A fault of the program in a handler fails the trial, too
events      the pages of `/v1/events` lack an event of the node, or repeat one
counter     a counter of `/metrics` falls while the node runs
effect      the other checks of a trial detect an effect of a checked order, such as an eviction
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, Final

import trio

from bridge.api import control_routes as routes
from bridge.api.control import RefusalAnswer
from bridge.api.control_routes import ROUTES, Route
from bridge.api.json import DocumentError, RequestBody, decode, encode
from bridge.api.requests import (
    ClientOrder,
    CommandRequest,
    ConfirmClusterRequest,
    CorrectionOrder,
    CostOrder,
    EventRequest,
    ExclusionOrder,
    ForceOrder,
    KeyRequest,
    NodeRequest,
    QueryRequest,
    RemovalOrder,
    ReplaceKeysRequest,
    RevokeRequest,
)
from bridge.api.trace import EventPage, TraceEvent
from bridge.node.control.client import DONE, ControlError
from tests.simulation.farm.checks import Violation
from tests.simulation.farm.disk import Disk
from tests.simulation.farm.host import Host, Run
from tests.simulation.farm.world import World

PAUSE_S: Final = 1.0
"""Mean time between two requests."""
NUMBERS: Final = (0, 1, 2, 7, 100, 5000, 2**31, 2**63 - 1)
UNKNOWN: Final = "00" * 16
"""An id that no cluster, key or invitation has."""
_READS: Final = tuple(
    each for each in ROUTES.values() if each.method == "GET" and each not in (routes.STREAM, routes.PAGE)
)
_COUNTERS: Final = re.compile(r"^(\w+_(?:total|count|sum|bucket)(?:\{.*\})?) (\S+)$", re.MULTILINE)
_Life = tuple[str, int]
"""A machine, and the number of the node's starts. A node starts again in one process after a change of its address."""


class RequestClient:
    """The client. `changed_s` returns the time when the last fault began or ended."""

    def __init__(self, world: World, leaves: Callable[[], list[str]], changed_s: Callable[[], float]) -> None:
        self._world = world
        self._random = Random(f"{world.seed}/other requests")
        self._leaves = leaves
        self._changed_s = changed_s
        self._events: defaultdict[_Life, list[TraceEvent]] = defaultdict(list)
        self._starts: Counter[str] = Counter()
        self._read: defaultdict[_Life, int] = defaultdict(lambda: 1)
        """The next event to read."""
        self._counters: dict[tuple[_Life, str], float] = {}
        self.figures: Counter[str] = Counter()
        self.violations: list[Violation] = []
        world.on_event.append(self._event)

    def _event(self, host: Host, event: TraceEvent) -> None:
        self._starts[host.name] += event.kind == "node-started"
        self._events[self._life(host)].append(event)

    def _life(self, host: Host) -> _Life:
        return host.name, self._starts[host.name]

    async def run(self) -> None:
        """Send one request after another until canceled."""
        while True:
            await trio.sleep(self._random.expovariate(1 / PAUSE_S))
            running = [each for each in self._world.hosts.values() if each.run is not None and not each.is_paused]
            if running:
                host = self._random.choice(running)
                await self._send(host, *(self._reading(host) if self._random.random() < 1 / 2 else self._order()))

    def _reading(self, host: Host) -> tuple[Route[Any], str, RequestBody | None]:
        random, route = self._random, self._random.choice(_READS)
        query = "&".join(f"{each}={random.choice(NUMBERS)}" for each in route.numbers if random.random() < 1 / 2)
        if route is routes.EVENTS:
            query = f"from={self._read[self._life(host)]}"
        return route, query, None

    def _order(self) -> tuple[Route[Any], str, RequestBody | None]:
        random, master = self._random, self._world.master
        assert master is not None
        name, flag = random.choice([*self._world.hosts, "node-99", "2"]), random.random() < 1 / 2
        leaf = random.choice(self._leaves() or [master.destination.address])
        force = CommandRequest(force=ForceOrder(master.destination.address))
        orders: list[tuple[Route[Any], RequestBody | None]] = [
            (routes.COMMANDS, force),
            (routes.COMMANDS_CHECK, force),
            (routes.COMMANDS_CHECK, CommandRequest(exclusion=ExclusionOrder(leaf, flag))),
            (routes.COMMANDS_CHECK, CommandRequest(cost=CostOrder(leaf, random.choice([0.1, 1.0, 11.0])))),
            (routes.COMMANDS_CHECK, CommandRequest(removal=RemovalOrder(name, flag))),
            (routes.COMMANDS_CHECK, CommandRequest(client=ClientOrder(name, admitted=False))),
            (routes.COMMANDS_CHECK, CommandRequest(correction=CorrectionOrder())),
            (routes.NODES_APPROVE_CHECK, NodeRequest(name, flag)),
            (routes.NODES_EVICT_CHECK, NodeRequest(name, flag)),
            (routes.KEYS_REPLACE_CHECK, ReplaceKeysRequest(flag)),
            (routes.KEYS_REMOVE_CHECK, KeyRequest(UNKNOWN, flag)),
            (routes.KEYS_REMOVE, KeyRequest(UNKNOWN, flag)),
            (routes.KEYS_USE, KeyRequest(UNKNOWN, flag)),
            (routes.WITHDRAW_CHECK, None),
            (routes.WITHDRAW, None),
            (routes.CONFIRM_CLUSTER, ConfirmClusterRequest(UNKNOWN)),
            (routes.INVITATIONS_REVOKE, RevokeRequest(UNKNOWN)),
            (routes.EVENT, EventRequest(f"event-{random.randrange(100)}", "x" * random.choice([0, 512, 513]))),
            (routes.QUERY, QueryRequest(random.choice(["ping", "rtt", "clock", "view", "unknown"]), "", 1000)),
        ]
        route, body = random.choice(orders)
        return route, "", body

    async def _send(self, host: Host, route: Route[Any], query: str, body: RequestBody | None) -> None:
        target = f"{route.path}?{query}" if query else route.path
        life, run, sent_s = self._life(host), host.run, self._world.time_s
        worked = self._works(host, run)
        try:
            async with self._world.control(host.name) as client:
                status, content = await client.request(route.method, target, b"" if body is None else encode(body))
        except ControlError as error:
            await trio.sleep(1)  # An ending process closes its connections first.
            if worked and self._works(host, run) and self._life(host) == life and self._changed_s() < sent_s:
                self._violate("reply", host, f"{target}: {error}")
            return
        self.figures["other requests done" if status in DONE else "other requests refused"] += 1
        try:
            if route is routes.METRICS and status in DONE:
                self._judge_counters(host, life, content.decode())
            elif not route.content:
                # The replies of /healthz and /readyz have the same document with another status.
                answer = route.answer if status in DONE or route in (routes.HEALTHZ, routes.READYZ) else RefusalAnswer
                document = decode(content, answer)
                if route is routes.EVENTS and status in DONE:
                    self._judge_events(host, life, document)
        except DocumentError as error:
            self._violate("document", host, f"{target}: {status}: {error}")

    def _works(self, host: Host, run: Run | None) -> bool:
        disk = host.disk
        assert isinstance(disk, Disk)
        return host.run is run and not (host.is_paused or disk.hang or disk.full or disk.sync_delay_s)

    def _judge_events(self, host: Host, life: _Life, page: EventPage) -> None:
        first = self._read[life] - 1
        if page.lost or list(page.events) != self._events[life][first : first + len(page.events)]:
            self._violate("events", host, f"{page.lost} lost, {page.events!r:.200} from {first + 1}")
        self._read[life] = page.next_cursor

    def _judge_counters(self, host: Host, life: _Life, text: str) -> None:
        for name, value in _COUNTERS.findall(text):
            before = self._counters.get((life, name), 0.0)
            if float(value) < before:
                self._violate("counter", host, f"{name} was {before:g}, and is {value}")
            self._counters[life, name] = float(value)

    def _violate(self, check: str, host: Host, text: str) -> None:
        self.violations.append(Violation(check, f"{host.name} at {self._world.time_s:.0f} s: {text}"))
