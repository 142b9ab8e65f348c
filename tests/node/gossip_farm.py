"""Helpers that start, crash and observe gossip agents in one test."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial, wraps
from operator import itemgetter
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import trio
from trio.testing import MockClock

import gossip
from gossip.core.keyring import Keyring
from gossip.core.member import Address, Status
from gossip.core.options import SwimOptions
from gossip.node.endpoints import endpoint
from gossip.node.group import Group
from gossip.node.limits import Loss
from gossip.node.udp import Network
from gossip.wire.seal import SealFault

RING = Keyring.of(b"the key of the farm of the tests")
PATIENCE_S = 60
_READ: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
"""Last event cursor that a test has read, for each group."""


def in_simulated_time(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run a test with a clock that jumps to the next deadline whenever every task waits.

    The clock does not wait for threads, so hours could pass during an fsync. Work for threads therefore runs in place.
    """

    async def in_place(work: Callable[..., Any], *arguments: Any, abandon_on_cancel: bool = False) -> Any:
        del abandon_on_cancel
        await trio.lowlevel.checkpoint()
        return work(*arguments)

    @wraps(test)
    def run(**fixtures: Any) -> None:
        with patch("trio.to_thread.run_sync", in_place):
            trio.run(partial(test, **fixtures), clock=MockClock(autojump_threshold=0))

    return run


class Farm:
    """The agents of a test; each can be crashed separately."""

    def __init__(self, nursery: trio.Nursery, network: Network | None) -> None:
        self._nursery = nursery
        self._network = network
        self._scopes: dict[Group, trio.CancelScope] = {}
        self._ended: dict[Group, trio.Event] = {}

    async def start(self, *seeds: Group, **settings: Any) -> Group:
        """Start an agent that joins through `seeds`."""
        defaults: dict[str, Any] = {
            "bind": Address("127.0.0.1", 0),
            "key": RING,
            "options": SwimOptions.loopback(),
            "seeds": tuple(endpoint(seed.info.address) for seed in seeds),
        }
        given = defaults | settings
        if "keyring" in given:
            given["key"] = given.pop("keyring")
        group: Group = await self._nursery.start(self._run, given)
        return group

    async def start_many(self, count: int, **settings: Any) -> list[Group]:
        """Start an agent, and further agents that join through it."""
        first = await self.start(**settings)
        return [first, *[await self.start(first, **settings) for _ in range(count - 1)]]

    async def crash(self, agent: Group) -> None:
        """Stop an agent without announcing its departure."""
        self._scopes[agent].cancel()
        await self._ended[agent].wait()

    async def _run(self, settings: dict[str, Any], task_status: Any) -> None:
        ended = trio.Event()
        with trio.CancelScope() as scope:
            async with gossip.open_group(**settings, network=self._network) as agent:
                self._scopes[agent], self._ended[agent] = scope, ended
                task_status.started(agent)
                await trio.sleep_forever()
        ended.set()


@asynccontextmanager
async def running_farm(network: Network | None = None) -> AsyncIterator[Farm]:
    async with trio.open_nursery() as nursery:
        yield Farm(nursery, network)
        nursery.cancel_scope.cancel()


def statuses(agent: Group) -> dict[bytes, Status]:
    """Return the status of every other member as `agent` sees it."""
    return {member.node_id: member.status for member in agent.members()}


def sees(agent: Group, *others: Group, status: Status = Status.ALIVE) -> bool:
    seen = statuses(agent)
    return all(seen.get(other.node_id) is status for other in others)


async def until(agent: Group, condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; check it after each event of the agent."""
    with trio.fail_after(PATIENCE_S):
        events = agent.events(after=agent.cursor)
        while not condition():
            await anext(events)


async def until_all_see_all(agents: list[Group]) -> None:
    for agent in agents:
        others = [other for other in agents if other is not agent]
        await until(agent, lambda agent=agent, others=others: sees(agent, *others))  # type: ignore[misc] # mypy: defaults of lambdas


async def until_counted(agent: Group, reason: SealFault | Loss, least: int = 1) -> None:
    with trio.fail_after(PATIENCE_S):
        while agent.describe().wire.dropped.get(reason, 0) < least:  # noqa: ASYNC110 - counters have no event to wait for
            await trio.sleep(0.01)


async def next_event(group: Any) -> Any:
    numbered = await anext(group.events(after=_READ.get(group, 0)))
    _READ[group] = numbered.cursor
    return numbered.event


def new_events(group: Any) -> list[Any]:
    """Return the unread events of this test that the ring still holds."""
    ring = group._ring
    read, _READ[group] = _READ.get(group, 0), ring.cursor
    numbered = (each for lane in ring._lanes.values() for each in lane if each[0] > read)
    return [event for _, event in sorted(numbered, key=itemgetter(0))]
