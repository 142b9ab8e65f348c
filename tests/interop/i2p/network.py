"""The closed network: its routers, its start and look-ups in it.

    make directories ─▶ start all ─▶ each router learns the others ─▶ i2pd restarts ─▶ tunnels ─▶ ready

Floodfills of both kinds: three i2pd, two Java. Java 2.7.0 sends lease sets only to the Java floodfills, because i2pd
2.45.1 is too old for it. `observer` is a Java router without clients, so it holds only structures that it looked up.
"""

import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Final

import trio

from bridge.sam.session import SamSession, new_private_key, open_session
from bridge.wire.i2p.structures import Destination, destination_from_base64, read_destination
from tests.end_to_end.farm import wait_until
from tests.interop.i2p import namespace
from tests.interop.i2p.i2pd_router import I2pdRouter
from tests.interop.i2p.java_router import JavaRouter
from tests.interop.i2p.router import Router

START_S: Final = 420.0
I2PD_FLOODFILLS: Final = 3
I2PD_OTHERS: Final = 13
"""With twelve routers, a killed router was part of many tunnels to living leaves."""
ONE_HOP: Final[Mapping[str, str]] = {
    f"{way}.{name}": str(value) for way in ("inbound", "outbound") for name, value in (("length", 1), ("quantity", 2))
}
"""Options of sessions: tunnels of one hop, because the network is small."""
ARRIVAL_S: Final = 25.0
"""Seconds from a session until a floodfill has its lease set, unless i2pd has dropped it."""
SESSIONS_MAX: Final = 4
_INFO_S: Final = 60.0
_POLL_S: Final = 0.2


class Network:
    """All routers by name: `i2pd-1` to `i2pd-16`, `java-1` to `java-4`."""

    def __init__(self, directory: Path) -> None:
        count = I2PD_FLOODFILLS + I2PD_OTHERS
        self.i2pd = [
            I2pdRouter(number, f"i2pd-{number}", directory / f"i2pd-{number}", is_floodfill=number <= I2PD_FLOODFILLS)
            for number in range(1, count + 1)
        ]
        self.java = [
            JavaRouter(count + number, f"java-{number}", directory / f"java-{number}", is_floodfill=number in {1, 4})
            for number in range(1, 5)
        ]
        self.routers: dict[str, Router] = {each.name: each for each in (*self.i2pd, *self.java)}
        self.ready_after_s = 0.0

    @property
    def floodfills(self) -> list[Router]:
        """The routers that store structures for the network."""
        return [each for each in self.routers.values() if each.is_floodfill]

    @property
    def observer(self) -> JavaRouter:
        return self.java[2]

    def start(self) -> None:
        """Start all routers, and return when all of them build tunnels."""
        began = time.monotonic()
        namespace.isolate([each.address for each in self.routers.values()])
        for each in self.routers.values():
            each.launch()
        for router in self.java:
            router.wait_started()
        for each in self.routers.values():
            wait_until(each.info_file.is_file, _INFO_S, f"{each.name} writes its description")
            if isinstance(each, I2pdRouter):
                each.wait_started()
        self._introduce()
        for each in self.i2pd:
            each.kill()
            each.launch()
        for each in self.i2pd:
            each.wait_started()
        left = START_S - (time.monotonic() - began)
        wait_until(self._all_ready, left, "all routers build tunnels", self.state)
        self.ready_after_s = time.monotonic() - began

    def _introduce(self) -> None:
        infos = {name: each.info_file.read_bytes() for name, each in self.routers.items()}
        hashes = {name: read_destination(info)[0].hash for name, info in infos.items()}
        for name, each in self.routers.items():
            for other in infos.keys() - {name}:
                each.learn(infos[other], hashes[other])

    def _all_ready(self) -> bool:
        return all(each.is_ready() for each in self.routers.values())

    def repair(self) -> None:
        """Start the routers that a story killed."""
        for each in self.routers.values():
            if not each.running:
                each.start()

    def stop(self) -> None:
        for each in self.routers.values():
            if each.running:
                each.kill()

    def state(self) -> str:
        return "\n".join(each.state() for each in self.routers.values() if each.running)

    def tunnel(self, router: Router, name: str, port: int) -> Destination:
        """Make a server tunnel to a port on loopback; return when the floodfills have all new sessions of the router.

        An i2pd restarts and loses its sessions.
        """
        before = self._stored()
        destination = destination_from_base64(router.tunnel(name, port))
        router.tunnels.add(destination.hash)
        made = router.tunnels if router.restarts_for_tunnel else {destination.hash}
        for _ in range(SESSIONS_MAX):
            if self._arrives(made, before):
                return destination
            before, made = self._stored(), router.tunnels
            router.kill()
            router.start()
        raise AssertionError(f"{router.name} did not publish its tunnels")

    def _stored(self) -> dict[bytes, list[int]]:
        """Return the state of each tunnel's lease set at the floodfills."""
        hashes = set[bytes]().union(*(each.tunnels for each in self.routers.values()))
        return {each: self._stored_at_floodfills(each) for each in hashes}

    def _stored_at_floodfills(self, destination_hash: bytes) -> list[int]:
        return [each.stored(destination_hash) for each in self.floodfills if each.running]

    def _is_newer(self, destination_hash: bytes, before: Sequence[int]) -> bool:
        now = self._stored_at_floodfills(destination_hash)
        return any(new > old for new, old in zip_longest(now, before, fillvalue=0))

    def is_stored(self, destination_hash: bytes) -> bool:
        return any(self._stored_at_floodfills(destination_hash))

    def _arrives(self, hashes: Collection[bytes], before: Mapping[bytes, list[int]]) -> bool:
        """Return True if a floodfill stores a newer lease set of each hash within a limit."""
        deadline_s = time.monotonic() + ARRIVAL_S
        while not all(self._is_newer(each, before.get(each, ())) for each in hashes):
            if time.monotonic() > deadline_s:
                return False
            time.sleep(_POLL_S)
        return True

    @asynccontextmanager
    async def published_session(self, router: Router) -> AsyncIterator[SamSession]:
        """Open a session with a new key whose lease set is at a floodfill.

        i2pd publishes a lease set when its inbound tunnels are ready. Without an outbound tunnel at that time, it logs
        "Destination is not ready" and tries again only when the tunnels are replaced, minutes later.
        """
        assert router.sam_bridge is not None
        private_key = await new_private_key(router.sam_bridge)
        for _ in range(SESSIONS_MAX):
            async with open_session(router.sam_bridge, private_key=private_key, options=ONE_HOP) as session:
                if await trio.to_thread.run_sync(self._arrives, [session.hash], {}):
                    yield session
                    return
        raise AssertionError(f"{router.name} did not publish any of {SESSIONS_MAX} sessions")

    def lookup(self, destination_hash: bytes) -> str:
        """Look up a structure from `observer`: `absent`, or `type=… verifies=… published=… HEX`."""
        return self.observer.lookup(destination_hash)
