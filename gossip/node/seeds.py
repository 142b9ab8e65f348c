"""Seeds by name: resolved for ever, because names come up late and their addresses move.

A name that does not resolve is tried again with growing pauses; one that does is asked again now and then, and only a
change is passed on. The core itself tries the addresses it was given for ever.
"""

from collections.abc import Callable
from typing import Final

import trio

from gossip.core.member import Address
from gossip.node.endpoints import numeric, parse_endpoint
from gossip.node.settings import SEEDS_LIMIT, ConfigError
from gossip.node.udp import Network

RETRY_FIRST_S: Final = 1.0
RETRY_LAST_S: Final = 60.0
REFRESH_S: Final = 300.0
RESOLVE_TIMEOUT_S: Final = 20.0
ADDRESSES_OF_A_NAME: Final = 16


class NamesToFollow:
    """The seeds that are names, those given later among them, each followed once."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, int], None] = {}
        self._inlet, self._outlet = trio.open_memory_channel[tuple[str, int]](SEEDS_LIMIT)

    def add(self, seeds: tuple[str, ...]) -> None:
        """Follow these as well; `ConfigError`, and none of them, if that were too many."""
        new = [name for name in dict.fromkeys(named_seeds(seeds)) if name not in self._given]
        if len(self._given) + len(new) > SEEDS_LIMIT:
            raise ConfigError(f"more than {SEEDS_LIMIT} seeds by name: none of these were added, a handful is enough")
        for name in new:
            self._given[name] = None
            self._inlet.send_nowait(name)

    async def follow(self, network: Network, give: Callable[[tuple[Address, ...]], None]) -> None:
        """Resolve all of them for ever."""
        async with trio.open_nursery() as nursery, self._outlet:
            async for host, port in self._outlet:
                nursery.start_soon(follow_name, host, port, network, give)


def numeric_seeds(seeds: tuple[str, ...]) -> tuple[Address, ...]:
    """The seeds that need no resolving."""
    parsed = [(numeric(host), port) for host, port in map(parse_endpoint, seeds)]
    return tuple(Address(host, port) for host, port in parsed if host is not None)


def named_seeds(seeds: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """The seeds that are names."""
    return tuple((host, port) for host, port in map(parse_endpoint, seeds) if numeric(host) is None)


async def follow_name(host: str, port: int, network: Network, give: Callable[[tuple[Address, ...]], None]) -> None:
    """Resolve one name for ever and pass on what changes."""
    known: tuple[Address, ...] = ()
    pause_s = RETRY_FIRST_S
    while True:
        found: tuple[Address, ...] = ()
        with trio.move_on_after(RESOLVE_TIMEOUT_S):
            try:
                found = tuple(sorted(await network.resolve(host, port)))[:ADDRESSES_OF_A_NAME]
            except (OSError, UnicodeError):  # not known (yet), or not encodable as a name
                found = ()
        if found and found != known:
            known = found
            give(found)
        await trio.sleep(REFRESH_S if found else pause_s)
        pause_s = RETRY_FIRST_S if found else min(2 * pause_s, RETRY_LAST_S)
