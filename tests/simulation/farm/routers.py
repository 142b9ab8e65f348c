"""Models of Java I2P and of i2pd for simulated farms, and of the floodfills of their network.

    Router.serve(stream)      I2CP of one router (`tests.node.fake_i2cp_router`), with the machine's clock
    Floodfills                the structures that clients of the network find, from a documented delay after publication

Behavior, as measured on a private network of both kinds:

    Java    disconnects with a reason if it does not accept a structure; a floodfill stores an accepted one after 11 s
    i2pd    ignores such a structure without a reply. A floodfill stores an accepted one after 5 to 50 s, and the next
            one at least 20 s later. i2pd verifies sessions with the destination's key only, and does not look masters
            up
    both    request a lease set when a session has tunnels; a restart ends all sessions; for `START_S` nothing listens

The models lack tunnels, encryption and other routers. So a session is ready immediately, and its only request for a
lease set follows its creation.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final

import trio

from bridge.wire.i2p.i2cp_messages import (
    CreateLeaseSet2,
    Disconnect,
    HostLookup,
    HostReply,
    RequestVariableLeaseSet,
    SessionStatus,
    Status,
)
from bridge.wire.i2p.meta_lease_set import LeaseSetError, MetaLeaseSet, check_acceptable_to_java_router
from bridge.wire.i2p.meta_lease_set import decode as decode_structure
from bridge.wire.i2p.structures import Destination
from tests.node.fake_i2cp_router import FakeRouter, clock_now_ms
from tests.wire.i2cp_router_half import Message

JAVA_FLOOD_S: Final = 11.0
I2PD_FLOOD_S: Final = (5.0, 50.0)
I2PD_PAUSE_S: Final = 20.0
"""Minimum time between two structures of one session at a floodfill (PUBLISH_MIN_INTERVAL)."""
TUNNELS: Final = 2
"""Inbound tunnels of each session."""
START_S: Final = 20.0
"""Time from the end of a router to its next start."""


@dataclass(frozen=True, slots=True)
class Found:
    """A structure at the floodfills, from `at_s` on."""

    at_s: float
    structure: MetaLeaseSet


@dataclass(eq=False)
class Floodfills:
    """The structures of all routers, as clients find them."""

    now_s: Callable[[], float]
    destinations: dict[bytes, Destination] = field(default_factory=dict)
    """Leaves whose lease sets are found."""
    _stored: dict[bytes, list[Found]] = field(default_factory=dict)

    def store(self, structure: MetaLeaseSet, at_s: float) -> None:
        self._stored.setdefault(structure.destination.hash, []).append(Found(at_s, structure))

    def find(self, master_hash: bytes) -> MetaLeaseSet | None:
        """Return the structure that a client finds now: the latest of the arrived structures."""
        arrived = [each for each in self._stored.get(master_hash, ()) if each.at_s <= self.now_s()]
        return max((each.structure for each in arrived), key=lambda each: each.published_s, default=None)


class Router(FakeRouter):
    """One router. Its clock is its machine's."""

    def __init__(self, floodfills: Floodfills, random: Random, wall_s: Callable[[], float], *, is_i2pd: bool) -> None:
        super().__init__(is_i2pd=is_i2pd)
        self._floodfills = floodfills
        self._random = random
        self._wall_s = wall_s
        self._last: dict[bytes, MetaLeaseSet] = {}
        self._flooded_s: dict[bytes, float] = {}
        self.refused: list[str] = []
        """The reason of each refused structure."""
        self.on_taken: Callable[[bytes], None] | None = None
        """Called with each accepted structure, and with structures that i2pd drops during a planned refusal.

        i2pd does not reply, so a node has handed over such a structure, and repeats it for a while.
        """

    async def serve(self, stream: trio.abc.Stream) -> None:
        """Serve one connection, or close it while the router is down."""
        if not self.up:
            await trio.aclose_forcefully(stream)
            return
        await super().serve(stream)

    async def restart(self) -> None:
        """End all sessions; accept connections again after `START_S`."""
        await self.stop()
        await trio.sleep(START_S)
        self.start()

    async def stop(self) -> None:
        """End all sessions; accept connections again after `start`."""
        self.up = False
        await self.crash()
        self._last.clear()

    def start(self) -> None:
        """Accept connections again."""
        self.up = True

    def _answers(self, stream: trio.abc.Stream, message: Message) -> list[Message]:
        # The wall clock of the machine may jump between two messages.
        self.clock_offset_ms = round(self._wall_s() * 1000) - clock_now_ms()
        if isinstance(message, HostLookup):
            return [self._look_up(message)]
        answers = super()._answers(stream, message)
        match answers:
            case [SessionStatus(session_id, Status.CREATED)]:
                return [*answers, RequestVariableLeaseSet(session_id, TUNNELS)]
            case _:
                return answers

    def _look_up(self, message: HostLookup) -> HostReply:
        self.lookups += 1
        wanted = message.destination_hash
        found = self._floodfills.destinations.get(wanted)
        if found is None and not self.is_i2pd:
            structure = self._floodfills.find(wanted)
            found = None if structure is None else structure.destination
        if found is None:
            return HostReply(message.session_id, message.request_id, 1)
        return HostReply(message.session_id, message.request_id, 0, found.encoded)

    def _take(self, message: CreateLeaseSet2) -> list[Message]:
        invalid = self._refusal(message)
        refusal = self.refusal or invalid
        if self.on_taken is not None and (refusal is None or (self.is_i2pd and invalid is None)):
            self.on_taken(message.structure)
        if refusal is not None:
            self.refused.append(refusal)
            return [] if self.is_i2pd else [Disconnect(refusal)]
        structure = decode_structure(message.structure)
        key = structure.destination.hash
        self._last[key] = structure
        self.structures.append(message.structure)
        self._floodfills.store(structure, self._arrival_s(key))
        return []

    def _refusal(self, message: CreateLeaseSet2) -> str | None:
        """Return the reason not to accept a structure; None if it is accepted."""
        if message.private_key_count is not self.is_i2pd:
            return "Invalid leaseset"
        try:
            structure = decode_structure(message.structure)
        except LeaseSetError as error:
            return str(error)
        previous = self._last.get(structure.destination.hash)
        known = None if self.is_i2pd or previous == structure else previous
        reasons = check_acceptable_to_java_router(structure, int(self._wall_s()), known)
        return "; ".join(reasons) or None

    def _arrival_s(self, key: bytes) -> float:
        now_s = self._floodfills.now_s()
        if not self.is_i2pd:
            return now_s + JAVA_FLOOD_S
        at_s = max(now_s + self._random.uniform(*I2PD_FLOOD_S), self._flooded_s.get(key, -I2PD_PAUSE_S) + I2PD_PAUSE_S)
        self._flooded_s[key] = at_s
        return at_s
