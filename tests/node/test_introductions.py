"""Introductions of servers in handshakes: they are signed, forwarded, and checked by each receiver."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from trio.testing import MockClock

from bridge.api.control import FarmKeyState, Refused
from bridge.node.control.key_admin import StaticKeyAdmin
from bridge.node.events.event_log import EventLog
from bridge.node.membership.introductions import IntroductionDrop, Introductions, Others
from bridge.node.security.farm_keys import FarmKeys
from bridge.node.security.key_files import load_farm_key, save_farm_key
from bridge.wire.keys.farm_key import new_farm_key
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dialer, PeerAddress
from consensus.protocols.garlic_farm.node.metrics import Metrics
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.upgrade import INTRODUCTION_CHARACTERS_MAX, INTRODUCTIONS_MAX, Identity
from gossip.core.effects import Alarm, AlarmKind, MembershipChanged
from gossip.core.member import METADATA_LIMIT_BYTES, Address, Incarnation, NodeInfo, Status
from gossip.node.state_files import GenerationKeeper
from gossip.wire.identity import Signer
from tests.node.gossip_farm import new_events


def node(
    number: int, *, generation: int = 1, metadata: bytes = b"", seeds: Sequence[PeerAddress] = ()
) -> Introductions:
    """Return the introductions of node `number`, which has its own identity."""
    signer = Signer(Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32))
    own = NodeInfo(signer.node_id, Address("127.0.0.1", 7669), Incarnation(generation, 0), 30, metadata)
    return Introductions(
        own,
        signer,
        GenerationKeeper(None, signer.node_id, generation),
        Metrics(),
        seeds=seeds,
        advertised=PeerAddress("a.i2p", 7669, None),
        period_s=60.0,
        hurried_s=15.0,
    )


def handshake(calling: Introductions, called: Introductions) -> None:
    """Exchange introductions in both directions."""
    sent, returned = calling.introduced(Identity()), called.introduced(Identity())
    called.met(sent)
    calling.met(returned)


def unread(of: Introductions) -> list[object]:
    return new_events(of)


def statuses(to: Introductions) -> dict[bytes, Status]:
    return {each.node_id: each.status for each in to.members()}


async def test_introductions_are_exchanged_then_forwarded() -> None:
    alice, bob, carol = node(1), node(2), node(3)
    handshake(alice, bob)
    handshake(carol, bob)
    assert statuses(carol) == {bob.node_id: Status.ALIVE, alice.node_id: Status.ALIVE}
    assert statuses(bob) == {alice.node_id: Status.ALIVE, carol.node_id: Status.ALIVE}
    assert [type(each) for each in unread(carol)] == [MembershipChanged, MembershipChanged]
    handshake(alice, bob)
    assert statuses(alice) == {bob.node_id: Status.ALIVE, carol.node_id: Status.ALIVE}


async def test_newer_introduction_replaces_older_one() -> None:
    alice, bob = node(1), node(2)
    handshake(alice, bob)
    alice.set_metadata(b"founded")
    handshake(alice, bob)
    assert [each.info.metadata for each in bob.members()] == [b"founded"]
    before = bob.members()
    alice.set_metadata(b"founded")
    handshake(alice, bob)
    assert bob.members() == before


class Calls:
    """A dialer that records the dialed servers, and fails."""

    def __init__(self) -> None:
        self.called: set[str] = set()

    async def dial(self, address: PeerAddress) -> Dialed:
        """Record the address, and fail."""
        self.called.add(address.host)
        await trio.lowlevel.checkpoint()
        raise GarlicFarmError(Fault.UNREACHABLE, "no server is there")


async def test_seed_at_address_of_expelled_server_is_not_dialed(autojump_clock: MockClock) -> None:
    seeds = [PeerAddress(f"{name}.i2p", 7669, None) for name in ("evicted", "honest")]
    alice, calls = node(1, seeds=seeds), Calls()
    with trio.move_on_after(100):
        await alice.run(cast("Dialer", calls), Others(avoided=lambda: seeds[:1]))
    assert calls.called == {"honest.i2p"}


async def test_forged_or_unreadable_introduction_is_dropped() -> None:
    alice, bob, carol = node(1), node(2), node(3)
    (introduction,) = alice.introduced(Identity()).introductions
    at = len(introduction) // 2
    forged = introduction[:at] + ("A" if introduction[at] != "A" else "B") + introduction[at + 1 :]
    bob.met(Identity(introductions=(forged, "", "AAAA", *carol.introduced(Identity()).introductions)))
    assert statuses(bob) == {carol.node_id: Status.ALIVE}
    assert bob.describe().core.dropped[IntroductionDrop.REFUSED] == 3


async def test_signed_departure_is_not_an_announcement() -> None:
    alice, bob, carol = node(1), node(2), node(3)
    handshake(alice, bob)
    with trio.move_on_after(0.1):
        await alice.leave()
    departure = alice.introduced(Identity())
    bob.met(departure)
    assert statuses(bob) == {alice.node_id: Status.LEFT}
    # An attacker with a copy of the departure cannot use it as Alice's departure, or as an announcement of Alice.
    introduction, *_ = departure.introductions
    handshake(carol, bob)
    carol.met(Identity(introductions=(*bob.introduced(Identity()).introductions, introduction)))
    assert statuses(carol) == {bob.node_id: Status.ALIVE}


async def test_copy_of_running_node_is_reported_as_conflict() -> None:
    alice, copy = node(1, metadata=b"here"), node(1, metadata=b"there")
    handshake(alice, alice)
    assert unread(alice) == []
    handshake(alice, copy)
    found = unread(alice)
    assert [each.kind for each in found if isinstance(each, Alarm)] == [AlarmKind.IDENTITY_CONFLICT]


async def test_largest_introductions_fit_into_handshake() -> None:
    nodes = [node(number, generation=2**52, metadata=bytes(METADATA_LIMIT_BYTES)) for number in range(1, 20)]
    for each in nodes[1:]:
        handshake(nodes[0], each)
    introductions = nodes[0].introduced(Identity()).introductions
    assert len(introductions) == INTRODUCTIONS_MAX
    assert max(map(len, introductions)) <= INTRODUCTION_CHARACTERS_MAX


async def test_static_key_ring_refuses_changes_with_remedy(tmp_path: Path) -> None:
    save_farm_key(tmp_path / "farm.key", new_farm_key(3))
    trace = EventLog("node-1", lambda: 0)
    keys = StaticKeyAdmin(FarmKeys(tmp_path / "farm.key", load_farm_key(tmp_path / "farm.key")), trace)
    listing = await keys.listing()
    assert [each.state for each in listing.keys] == [FarmKeyState.PRIMARY]
    assert (listing.members, listing.file_epoch) == (1, 1)
    assert (await keys.export()) == (tmp_path / "farm.key").read_text()
    [event] = trace.recent(10)
    assert (event.kind, event.data) == ("keys-exported", {"epoch": 1, "unconfirmed": True})
    for step in (keys.install(), keys.use("k", force=True), keys.remove("k", force=True)):
        with pytest.raises(Refused, match="append the new key to `gossip_keys`"):
            await step
