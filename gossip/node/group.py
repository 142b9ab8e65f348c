"""The library's front door: `async with gossip.open(...) as group`.

A `Group` is an agent with its events in a ring, so that several readers can follow them, each at its own pace, and
resume after a pause by a cursor. It adds nothing to the protocol.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import trio

from gossip.core.description import Member
from gossip.core.member import Address, NodeId, NodeInfo
from gossip.core.messages import Query
from gossip.node.agent import Agent, GroupEvent, open_agent
from gossip.node.counters import GroupDescription
from gossip.node.endpoints import numeric
from gossip.node.event_ring import EventRing, Reader
from gossip.node.key_manager import KeyManager
from gossip.node.questions import Answer
from gossip.node.setting_types import key_ring_of, unknown_names
from gossip.node.settings import ConfigError, GroupSettings
from gossip.node.udp import Network
from gossip.wire.seal import KeyRing

GROUP_EVENTS_LIMIT: Final = 1_024


class Group:
    """One node's part in a group. Made by `open_group`; methods that are not async return at once."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._ring: EventRing[GroupEvent] = EventRing(GROUP_EVENTS_LIMIT)
        self.keys = KeyManager(agent)

    @property
    def node_id(self) -> NodeId:
        """This node's name."""
        return self._agent.node_id

    @property
    def info(self) -> NodeInfo:
        """What this node says about itself: its address among it."""
        return self._agent.info

    @property
    def members(self) -> tuple[Member, ...]:
        """Every other member that this node knows of, the dead and the gone of late included."""
        return self._agent.members()

    def describe(self) -> GroupDescription:
        """Everything for operators: the members, the core's state, the counters."""
        return self._agent.describe()

    @property
    def cursor(self) -> int:
        """Where the stream of events is now: `events(after=cursor)` gives what is still to come."""
        return self._ring.cursor

    def events(self, after: int = 0) -> Reader[GroupEvent]:
        """What happened after a cursor, and then everything as it happens; ends with the group."""
        return self._ring.after(after)

    def update(self, metadata: bytes) -> None:
        """Say something else about this node (at most 512 bytes)."""
        self._agent.set_metadata(metadata)

    def broadcast(self, name: str, body: bytes = b"") -> None:
        """Say something to every member (at most 512 bytes); `BusyError` if too much was said lately."""
        self._agent.broadcast(name, body)

    @asynccontextmanager
    async def query(
        self, name: str, body: bytes = b"", timeout_s: float = 5.0
    ) -> AsyncIterator[trio.MemoryReceiveChannel[Answer]]:
        """Ask every member: `async for answer in` what this gives, until the timeout."""
        async with self._agent.query(name, body, int(timeout_s * 1000)) as answers:
            yield answers

    def answer(self, query: Query, body: bytes = b"") -> None:
        """Answer a query that came as an event."""
        self._agent.answer(query, body)

    def add_seeds(self, *seeds: Address | str) -> None:
        """Try to join through these, too: 'host:port' as in `seeds`, or addresses. `ConfigError` if that cannot be."""
        self._agent.join_through(seeds)

    def set_maintenance(self, *, on: bool) -> None:
        """While on, this node ignores requests to join."""
        self._agent.set_maintenance(on=on)

    async def leave(self) -> None:
        """Tell the others that this node goes. Leaving the block without it is a crash in their eyes."""
        await self._agent.leave()

    async def follow(self) -> None:
        """Take events from the agent into the ring until the agent ends."""
        lost_before = 0
        try:
            async for event in self._agent.events:
                lost = self._agent.events_lost
                self._ring.append(event, lost - lost_before)
                lost_before = lost
        finally:
            self._ring.close()


def open_group(
    bind: Address | str,
    *,
    key: bytes | KeyRing | None = None,
    insecure: bool = False,
    seeds: Sequence[str] = (),
    state_directory: Path | None = None,
    network: Network | None = None,
    **settings: Any,
) -> AbstractAsyncContextManager[Group]:
    """Be a member of a group for as long as the block lasts.

    `bind` is an address or a numeric host (any free port). `key` is the group's secret of 32 bytes; without one, say
    `insecure`. `settings` are the further fields of `GroupSettings`. Errors: `ConfigError`, `StateError`.
    """
    strange = unknown_names(settings)
    if strange:
        raise ConfigError(f"{', '.join(strange)}: no such setting; see the fields of GroupSettings")
    try:
        key_ring = key_ring_of(key)
    except (TypeError, ValueError) as error:
        raise ConfigError(str(error)) from error
    if network is not None and not callable(getattr(network, "bind", None)):
        raise ConfigError(f"network = {network!r:.60}: expected what brings datagrams (a gossip.node.udp.Network)")
    given_seeds: Any = tuple(seeds) if isinstance(seeds, list) else seeds
    config = GroupSettings(
        bind=_address(bind),
        key_ring=key_ring,
        insecure=insecure,
        seeds=given_seeds,
        state_directory=state_directory,
        **settings,
    )
    return _running(config, network)


def _address(bind: Any) -> Address:
    if isinstance(bind, Address):
        return bind
    host = numeric(bind) if isinstance(bind, str) else None
    if host is None:
        raise ConfigError(f"bind = {bind!r}: expected a numeric host, as in 192.168.1.5, or an Address with a port")
    return Address(host, 0)


@asynccontextmanager
async def _running(config: GroupSettings, network: Network | None) -> AsyncIterator[Group]:
    async with open_agent(config, network) as agent, trio.open_nursery() as nursery:
        group = Group(agent)
        nursery.start_soon(group.follow)
        yield group
        nursery.cancel_scope.cancel()
