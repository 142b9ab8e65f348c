"""Membership for the other parts of a node: by gossip, or by introductions without gossip.

transport = "tls"  ──▶ gossip.Group
transport = "i2p"  ──▶ bridge.node.membership.introductions.Introductions
"""

from collections.abc import AsyncIterator, Callable, Collection
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Protocol

import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Struct
from msgspec.structs import replace

import gossip
from bridge.core.formation.member import MemberStatus
from bridge.node.membership.introductions import Introductions, Others
from bridge.node.membership.member_directory import MemberDirectory
from bridge.node.raft.connecting import Connecting, HandshakeWords
from bridge.node.settings.choices import Timing
from bridge.node.settings.configuration import NodeConfiguration
from bridge.node.settings.network import GossipSettings
from bridge.node.settings.timing import profile_of
from consensus.protocols.garlic_farm import Metrics, PeerAddress
from gossip import Address, GroupDescription, GroupEvent, Incarnation, Keyring, Member, NodeId, NodeInfo, Reader
from gossip.node import DEFAULT_CAPACITY, GenerationKeeper, NodeIdentity, begin_generation, exclusive, load_identity
from gossip.wire import Signer


class MembershipProvider(Protocol):
    """Membership, regardless of its source. Methods that are not async do not block."""

    def events(self, after: int = 0) -> Reader[GroupEvent]:
        """Return a reader of changes and alarms after a cursor."""

    @property
    def node_id(self) -> NodeId:
        """This node's id."""

    @property
    def public_key(self) -> bytes:
        """The public key of this node's identity."""

    @property
    def identity_key(self) -> Ed25519PrivateKey:
        """The secret key that signs for this node."""

    @property
    def generation(self) -> int:
        """The number of this run."""

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of known other nodes and of nodes in contact."""

    @property
    def keyring(self) -> Keyring | None:
        """The group's keys; None if they cannot change at run time."""

    def members(self) -> tuple[Member, ...]:
        """Return every other node."""

    def describe(self) -> GroupDescription:
        """Return the state and the counters."""

    def set_metadata(self, metadata: bytes) -> None:
        """Replace this node's metadata."""

    async def leave(self) -> None:
        """Announce to the others that this node leaves."""


class GroupKeys(Struct, frozen=True):
    """The farm's callbacks for gossip's keys."""

    key_ring: Keyring
    """The keys of the farm key file."""
    offer_keys: Callable[[NodeInfo], bytes]
    """Returns the reply to a node with a retired key."""
    may_send_keys: Callable[[NodeId], bool]
    """Returns True if gossip accepts keys from this identity, and sends it keys encrypted for it."""


@asynccontextmanager
async def open_membership(
    settings: NodeConfiguration, metadata: bytes, keys: GroupKeys, metrics: Metrics
) -> AsyncIterator[MembershipProvider]:
    """Run the membership of one node while the block lasts. Without gossip, the caller must also run `introduce`."""
    if settings.gossip is not None:
        chosen = settings.gossip
        async with gossip.open_group(
            chosen.bind,
            key=keys.key_ring,
            advertise=chosen.advertise,
            seeds=chosen.seeds,
            state_directory=settings.state_dir,
            capacity=chosen.capacity,
            metadata=metadata,
            options=gossip_options(chosen),
            broadcast=chosen.broadcast,
            interface=chosen.interface,
            allow_wan=chosen.allow_wan,
            offer_keys=keys.offer_keys,
            may_send_keys=keys.may_send_keys,
            aligned_rounds=True,
        ) as group:
            yield group
        return
    with ExitStack() as stack:
        identity, generation = await trio.to_thread.run_sync(_begin, settings.state_dir, stack)
        yield _introductions(settings, metadata, metrics, identity, generation)


def words_of(provider: MembershipProvider) -> HandshakeWords:
    """Return the extra data of handshakes: introductions, or nothing with gossip."""
    if isinstance(provider, Introductions):
        return HandshakeWords(provider.introduced, provider.met)
    return HandshakeWords()


async def introduce(
    provider: MembershipProvider,
    connecting: Connecting,
    member_directory: MemberDirectory,
    settled: Callable[[], bool],
    connected: Callable[[], Collection[int]],
    is_out: Callable[[bytes], bool],
) -> None:
    """Introduce this node to others until canceled; with gossip, return immediately without an effect.

    `settled` returns True if the node knows its farm; `connected` returns the Raft ids of connected servers. `is_out`
    returns True for a retired or evicted identity.
    """
    if not isinstance(provider, Introductions):
        return

    def addresses(*, out: bool) -> list[PeerAddress]:
        selected = [each for each in member_directory.members() if is_out(each.node_id) is out]
        found = [
            member_directory.address_of(each.node_id)
            for each in selected
            if out or each.status is not MemberStatus.LEFT
        ]
        return [address for address in found if address is not None]

    def present() -> set[NodeId]:
        servers = connected()
        return {NodeId(each.node_id) for each in member_directory.members() if each.metadata.raft_id in servers}

    others = Others(
        settled=settled,
        connected=present,
        addresses=partial(addresses, out=False),
        avoided=partial(addresses, out=True),
    )
    await provider.run(connecting.introducer(), others)


def gossip_options(settings: GossipSettings) -> gossip.SwimOptions:
    """Return the options for the timing.

    A holder of the farm key could invent suspicions, so another node's suspicion only leads to a probe.
    """
    timed = gossip.SwimOptions.loopback() if settings.timing is Timing.LOCAL else gossip.SwimOptions.lan()
    return replace(timed, first_hand_verdicts=True)


def _begin(directory: Path, stack: ExitStack) -> tuple[NodeIdentity, int]:
    """Lock the state directory until `stack` closes; return the identity in it and the generation that begins."""
    stack.enter_context(exclusive(directory))
    identity = load_identity(directory)
    return identity, begin_generation(directory, identity.node_id)


def _introductions(
    settings: NodeConfiguration, metadata: bytes, metrics: Metrics, identity: NodeIdentity, generation: int
) -> Introductions:
    directory, consensus = settings.state_dir, settings.consensus
    period_s, hurried_s = profile_of(consensus.timing).introduce_s
    own = NodeInfo(
        node_id=identity.node_id,
        # A description needs a numeric address; the metadata has the advertised endpoint, which may be a name.
        address=Address(consensus.bind.host, consensus.bind.port),
        incarnation=Incarnation(generation, 0),
        capacity=DEFAULT_CAPACITY,
        metadata=metadata,
    )
    return Introductions(
        own,
        Signer(identity.key),
        GenerationKeeper(directory, identity.node_id, generation),
        metrics,
        seeds=[PeerAddress(seed.host, seed.port, None) for seed in consensus.seeds],
        advertised=PeerAddress(consensus.advertise.host, consensus.advertise.port, None),
        period_s=period_s,
        hurried_s=hurried_s,
    )
