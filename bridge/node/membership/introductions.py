"""Membership without gossip: servers introduce themselves in the handshakes of the Garlic Farm protocol.

    seeds and known members ──▶ a connection periodically, and after changes ──▶ X-Garlic-Introduction
    Raft's own connections, both ways ─────────────────────────────────────────▶ the same header

With `transport = "i2p"` servers exchange only the Garlic Farm protocol. After the password, each side of the handshake
sends the data that gossip would send. These are its own signed description (name, endpoint, formation, admitted new
nodes), and its copies of other nodes' descriptions. A connection made only for introductions is closed after the
handshake. A member counts as alive while it introduces itself or has a Raft connection to this node
(`bridge.core.membership.connection_membership`).

Other parts of the node use introductions like gossip (`membership_provider`). Introductions do not change keys or send
queries.
"""

import base64
import binascii
from collections.abc import Callable, Collection, Iterable
from random import Random
from types import MappingProxyType

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from msgspec.structs import replace

from bridge.core.membership.connection_membership import ConnectionMembership, Consequence
from consensus import now_ms
from consensus.protocols.garlic_farm import INTRODUCTIONS_MAX, Dialer, GarlicFarmError, Identity, Metrics, PeerAddress
from gossip import (
    EVENTS_LIMIT,
    AdoptGeneration,
    Alarm,
    CountedDrop,
    Description,
    EventRing,
    GroupDescription,
    GroupEvent,
    Keyring,
    Member,
    MembershipChanged,
    NodeId,
    NodeInfo,
    Reader,
    WireDescription,
)
from gossip.node import GenerationKeeper
from gossip.wire import DatagramError, SignatureUse, Signer, Verifier, decode_node_info, encode_node_info

LOOK_INTERVAL_S = 0.5
SILENT_PERIODS = 3
CONTACTS_MAX = 64
GOODBYE_S = 30.0
PAUSE_S = 0.1


class IntroductionDrop(CountedDrop):
    """Introductions without effect."""

    LEFT_OUT = "introduction_left_out", "introductions of other members while the list of members is full"
    REFUSED = "introduction_refused", "introductions that this node does not accept"


class Others(Struct, frozen=True, kw_only=True):
    """Data on other nodes from other sources than introductions."""

    settled: Callable[[], bool] = lambda: False
    """Returns True if the farm exists: until then introductions are sent more often."""
    connected: Callable[[], Collection[NodeId]] = tuple
    """The members with an open Raft connection."""
    addresses: Callable[[], Iterable[PeerAddress]] = tuple
    """Addresses of the known members."""
    avoided: Callable[[], Iterable[PeerAddress]] = tuple
    """Addresses of evicted members: this node does not connect to them, even if they are seeds."""


class Introductions:
    """The introductions of one node. `run` it once; methods that are not async do not block."""

    def __init__(
        self,
        own: NodeInfo,
        signer: Signer,
        keeper: GenerationKeeper,
        metrics: Metrics,
        *,
        seeds: Collection[PeerAddress],
        advertised: PeerAddress,
        period_s: float,
        hurried_s: float,
    ) -> None:
        self._seeds, self._advertised = tuple(seeds), advertised
        self._random = Random()
        self._core = ConnectionMembership(own, int(SILENT_PERIODS * period_s * 1000))
        self._signer = signer
        self._verifier = Verifier()
        self._keeper = keeper
        self._metrics = metrics
        self._period_s, self._hurried_s = period_s, hurried_s
        self._ring: EventRing[GroupEvent] = EventRing(EVENTS_LIMIT)
        self._changed = trio.Event()
        self._received, self._sent, self._refused = 0, 0, 0
        self._adopting: int | None = None
        """The generation of this node in other nodes' records; the next generation must be greater."""
        self._leaving, self._departed = trio.Event(), trio.Event()

    # -- replacement of gossip -----------------------------------------------------------------------------------------

    @property
    def public_key(self) -> bytes:
        """The public key of this node's identity."""
        return self._signer.key.public_key().public_bytes_raw()

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """The secret key that signs for this node."""
        return self._signer.key

    @property
    def node_id(self) -> NodeId:
        """This node's id."""
        return self._core.own.node_id

    @property
    def generation(self) -> int:
        """The number of this run."""
        return self._keeper.current

    @property
    def keyring(self) -> Keyring | None:
        """Always None: without gossip only the farm key file has keys."""
        return None

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of known and of live other nodes."""
        return self._core.counts

    def members(self) -> tuple[Member, ...]:
        """Return every other server that has introduced itself."""
        return self._core.members()

    def events(self, after: int = 0) -> Reader[GroupEvent]:
        """Return a reader of changes and alarms after a cursor."""
        return self._ring.after(after)

    def set_metadata(self, metadata: bytes) -> None:
        """Replace this node's metadata, and announce it soon."""
        if metadata != self._core.own.metadata:
            self._core.announce(metadata)
            self._announce()

    def describe(self) -> GroupDescription:
        """Return the state and the counters in the types of gossip."""
        core = self._core
        counted = {"introductions_sent": self._sent, "introductions_heard": self._received}
        dropped: dict[CountedDrop, int] = {
            IntroductionDrop.REFUSED: self._refused,
            IntroductionDrop.LEFT_OUT: core.left_out,
        }
        return GroupDescription(
            Description(
                self_info=core.own,
                members=core.members(),
                peer_count=core.counts[1],
                health_score=0,
                leaving=core.leaving,
                in_maintenance=False,
                halted=False,
                joins_in_flight=0,
                seed_count=0,
                sent=MappingProxyType(counted),
                received=MappingProxyType({}),
                dropped=MappingProxyType(dropped),
            ),
            WireDescription(0, 0, 0, 0, MappingProxyType({}), 0, self._ring.lost),
        )

    # -- in the handshakes ---------------------------------------------------------------------------------------------

    def introduced(self, identity: Identity) -> Identity:
        """Return the identity with the signed descriptions of this node and of other nodes."""
        self._sent += 1
        purpose = SignatureUse.LEAVING if self._core.leaving else SignatureUse.PRESENCE
        others = self._core.alive()
        if len(others) >= INTRODUCTIONS_MAX:
            # In a large farm the sample is random, so that the description of every member is eventually sent.
            others = tuple(self._random.sample(others, INTRODUCTIONS_MAX - 1))
        sent = [self._signer.signed_info(self._core.own, purpose), *others]
        return replace(identity, introductions=tuple(_encoded(info) for info in sent))

    def met(self, peer: Identity) -> None:
        """Handle a server's description of itself, and its copies of other nodes' descriptions."""
        for number, info in enumerate(introductions_in(peer)):
            if info is None:
                self._refused += 1
                continue
            present = self._verifier.holds(info)
            leaving = not present and number == 0 and self._verifier.holds(info, SignatureUse.LEAVING)
            if not present and not leaving:
                self._refused += 1
                continue
            self._received += 1
            for consequence in self._core.receive(info, now_ms(), first_hand=number == 0, leaving=leaving):
                self._publish(consequence)

    # -- tasks ---------------------------------------------------------------------------------------------------------

    async def run(self, dialer: Dialer, others: Others) -> None:
        """Introduce this node to its seeds and known members, until canceled; then the events end."""
        visited: set[PeerAddress] = set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._announce_departure, dialer, others)
                while True:
                    for change in self._core.update_status(now_ms(), others.connected()):
                        self._publish(change)
                    if self._adopting is not None:
                        await self._adopt(self._adopting)
                    for address in sorted(self._contacts(others) - visited, key=str):
                        if len(visited) < CONTACTS_MAX:
                            visited.add(address)
                            nursery.start_soon(self._visit, dialer, others, address, visited)
                    await trio.sleep(LOOK_INTERVAL_S)
        finally:
            self._ring.close()

    async def leave(self) -> None:
        """Announce the departure to seeds and members, and wait for delivery, at most `GOODBYE_S`."""
        self._core.announce_departure()
        self._leaving.set()
        with trio.move_on_after(GOODBYE_S):
            await self._departed.wait()

    async def _announce_departure(self, dialer: Dialer, others: Others) -> None:
        await self._leaving.wait()
        async with trio.open_nursery() as nursery:
            for address in sorted(self._contacts(others), key=str):
                nursery.start_soon(self._introduce, dialer, address)
        self._departed.set()

    def _contacts(self, others: Others) -> set[PeerAddress]:
        # All nodes may have the same list of seeds, so this node can be one of them.
        return {*self._seeds, *others.addresses()} - {self._advertised, *others.avoided()}

    async def _visit(self, dialer: Dialer, others: Others, address: PeerAddress, visited: set[PeerAddress]) -> None:
        """Introduce this node at one address, while the address belongs to a seed or a member."""
        while address in self._contacts(others):
            announced = self._core.own.incarnation
            await self._introduce(dialer, address)
            with trio.move_on_after(self._period_s if others.settled() else self._hurried_s):
                if announced == self._core.own.incarnation:
                    await self._changed.wait()
            await trio.sleep(PAUSE_S)
        visited.discard(address)

    async def _introduce(self, dialer: Dialer, address: PeerAddress) -> None:
        try:
            dialed = await dialer.dial(address)
        except GarlicFarmError as error:
            self._metrics.incident(error.fault, str(address), f"introduction to {address}: {error}", outgoing=True)
        else:
            self._metrics.connected(str(address))
            with trio.move_on_after(1.0):
                await dialed.stream.aclose()

    async def _adopt(self, generation: int) -> None:
        self._adopting = None
        await self._keeper.adopt(generation, self._publish)
        self._core.adopt(generation)
        self._announce()

    def _publish(self, event: Consequence) -> None:
        match event:
            case AdoptGeneration(generation):
                self._adopting = generation
            case MembershipChanged() | Alarm():
                self._ring.append(event)

    def _announce(self) -> None:
        self._changed.set()
        self._changed = trio.Event()


def introductions_in(peer: Identity) -> list[NodeInfo | None]:
    """Return the descriptions that a peer sent, None in place of unreadable ones; signatures are not verified here."""
    return [_info(encoded) for encoded in peer.introductions]


def _encoded(info: NodeInfo) -> str:
    return base64.urlsafe_b64encode(encode_node_info(info)).decode().rstrip("=")


def _info(encoded: str) -> NodeInfo | None:
    try:
        return decode_node_info(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    except (binascii.Error, ValueError, DatagramError):
        return None
