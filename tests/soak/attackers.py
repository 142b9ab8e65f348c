"""All attackers of a farm together. Each is a task that runs until it is canceled, and counts its actions.

    no key             datagrams and connections that never authenticate
    a copied key       impostors, forged entries, invented members, endless requests
    a hostile member   an admitted identity that sends false data in its own name and as its own server

All of them use only loopback. A refused attacker continues: that is its purpose. A success that must never happen is
recorded as a fault.
"""

import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Any, Self

import msgspec
import trio
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

import gossip
from bridge.api.log import EntryKind
from bridge.node.security.key_files import load_farm_key
from bridge.wire.keys.farm_key import FarmKey
from bridge.wire.log.proof import sign_entry
from consensus.core.model import Entry
from consensus.net.tls import load_or_create_certificate
from consensus.protocols.garlic_farm.node.dialer import Dialed, Dialer, PeerAddress
from consensus.protocols.garlic_farm.wire import messages as wire
from consensus.protocols.garlic_farm.wire.codec import encode_request
from consensus.protocols.garlic_farm.wire.digest import Credentials
from consensus.protocols.garlic_farm.wire.errors import GarlicFarmError
from consensus.protocols.garlic_farm.wire.peers import Claim, Refusal
from consensus.protocols.garlic_farm.wire.proof import ConnectionRole
from consensus.protocols.garlic_farm.wire.upgrade import Identity
from consensus.protocols.garlic_farm.wire.upgrade_client import Initiator
from gossip.core.member import Address
from gossip.node.settings import ConfigError
from gossip.node.state_files import StateError, load_identity
from tests.destinations import new_demo_leaf
from tests.end_to_end.farm import Farm, Node
from tests.end_to_end.settings import LOOPBACK, addresses
from tests.processes import END_S

HALF_OPEN_AT_ONCE = 100
DRIPPING_AT_ONCE = 20
INVENTED_SERVERS = 64
HOSTILE_PAUSE_S = 5.0
FAR = (2**24, 2**31, 2**53, 2**62, 2**63 - 1)


@dataclass(slots=True)
class Target:
    """One node, as seen by the attackers."""

    name: str
    raft_id: int
    gossip: tuple[str, int]
    consensus: PeerAddress


@dataclass(slots=True)
class FarmFacts:
    """Facts about the farm for all attackers: more than a real attacker would have."""

    key: FarmKey
    cluster_id: str
    targets: list[Target]
    master: str
    seen: list[bytes] = field(default_factory=list)
    """Committed entries, for replays."""


def facts_of(farm: Farm, nodes: list[Node]) -> FarmFacts:
    view = nodes[0].view()
    targets = []
    for node in nodes:
        own = node.view()
        gossip_bind, consensus_bind = (bind.rpartition(":") for bind in addresses(node))
        fingerprint = load_or_create_certificate(node.directory).fingerprint
        address = PeerAddress(consensus_bind[0], int(consensus_bind[2]), fingerprint)
        targets.append(Target(node.name, own.node.raft_id or 0, (gossip_bind[0], int(gossip_bind[2])), address))
    seen = [entry.data for entry in nodes[0].entries().values() if entry.kind is EntryKind.APPLICATION]
    key = load_farm_key(farm.directory / "farm.key")
    return FarmFacts(key, view.farm.cluster_id or "", targets, view.publishing[0].master, seen)


class TrustingPeers:
    """A peer directory that accepts every server, and signs with its own key."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public_key = key.public_key().public_bytes_raw()

    def sign(self, data: bytes) -> bytes:
        """Sign with the attacker's key."""
        return self._key.sign(data)

    def admissions(self) -> tuple[bytes, ...]:
        return ()

    def judge(self, _: Claim) -> Refusal | None:
        """Accept every claim."""
        return None

    def voucher_of(self, _: Claim) -> bytes | None:
        return None


class Attackers:
    """All attacks, in one thread with its own trio loop, within the block."""

    def __init__(self, facts: FarmFacts, random: Random, hostile: Path) -> None:
        """`hostile` is the state directory of an admitted node that an attacker has taken over."""
        self._facts = facts
        self._random = random
        self._hostile = hostile
        self._thread = threading.Thread(target=self._run, name="attackers")
        self._token: trio.lowlevel.TrioToken | None = None
        self._scope = trio.CancelScope()
        self.hostile_server_speaks = False
        """True if the hostile member also acts as its Raft server: such a voter can stop commitment."""
        self.actions: Counter[str] = Counter()
        self.faults: list[str] = []
        self.hostile_leaves = [new_demo_leaf() for _ in range(INVENTED_SERVERS)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(END_S)

    @property
    def alive(self) -> bool:
        """True while the attacks continue."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            trio.run(self._attack)
        except BaseException as error:  # noqa: BLE001 - reported by the test, which joins the thread
            self.faults.append(f"an attacker ended unexpectedly: {error!r}")

    async def _attack(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                for attack in (
                    self._datagrams,
                    self._half_open,
                    self._dripping,
                    self._impostors,
                    self._forged_entries,
                    self._invented_members,
                    self._hostile_entries,
                    self._hostile_messages,
                ):
                    nursery.start_soon(self._repeat, attack)

    async def _repeat(self, attack: Callable[[], Awaitable[None]]) -> None:
        while True:
            with suppress(OSError, GarlicFarmError, trio.BrokenResourceError, trio.ClosedResourceError):
                await attack()
            await trio.sleep(0.2)

    # -- without a key -------------------------------------------------------------------------------------------------

    async def _datagrams(self) -> None:
        """Send a few hundred datagrams per second: random ones, and valid headers with random bytes after them."""
        label = self._facts.key.label
        with trio.socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for _ in range(100):
                target = self._random.choice(self._facts.targets)
                body = self._random.randbytes(self._random.choice((0, 1, 27, 40, 200, 1400)))
                code = bytes([self._random.choice((63, 64, 65, 66, 67, 68, 69, 250))])
                with suppress(OSError):
                    await sender.sendto(self._random.choice((body, code + label + body)), target.gossip)
                self.actions["datagrams without a key"] += 1
                await trio.sleep(0.003)

    async def _half_open(self) -> None:
        """Open connections that send the start of a TLS handshake or nothing, and stay open."""
        streams: list[trio.SocketStream] = []
        try:
            for _ in range(HALF_OPEN_AT_ONCE):
                target = self._random.choice(self._facts.targets)
                stream = await trio.open_tcp_stream(target.consensus.host, target.consensus.port)
                streams.append(stream)
                self.actions["half-open connections"] += 1
                if self._random.random() < 0.5:
                    with suppress(trio.BrokenResourceError):
                        await stream.send_all(b"\x16\x03\x01")
            await trio.sleep(2)
        finally:
            for stream in streams:
                stream.socket.close()

    # -- with a copied key ---------------------------------------------------------------------------------------------

    async def _dial(
        self, target: Target, key: Ed25519PrivateKey | None, role: ConnectionRole, claimed: int | None
    ) -> Dialed:
        credentials = tuple(Credentials(each.username, each.password) for each in self._facts.key.digest_credentials)
        peers = None if key is None else TrustingPeers(key)
        identity = Identity(self._facts.cluster_id, claimed)
        caller = Initiator(self._facts.key.cluster, lambda: credentials, lambda: identity, os.urandom, peers, role)
        return await Dialer(caller).dial(target.consensus, target.raft_id)

    async def _dripping(self) -> None:
        """Send requests that announce megabytes and then arrive byte by byte."""
        async with trio.open_nursery() as nursery:
            for _ in range(DRIPPING_AT_ONCE):
                nursery.start_soon(self._drip, self._random.choice(self._facts.targets))

    async def _drip(self, target: Target) -> None:
        with suppress(OSError, GarlicFarmError, trio.BrokenResourceError, trio.ClosedResourceError):
            dialed = await self._dial(target, None, ConnectionRole.CLIENT, None)
            self.actions["dripping requests"] += 1
            request = encode_request(wire.ClientRequest(entries=(Entry.command(0, bytes(1_000_000)),)))
            first_part = len(request) - 100_000
            try:
                with trio.move_on_after(5):
                    await dialed.stream.send_all(request[:first_part])
                    for at in range(first_part, len(request) - 1):
                        await dialed.stream.send_all(request[at : at + 1])
                        await trio.sleep(0.5)
            finally:
                await trio.aclose_forcefully(dialed.stream)

    async def _impostors(self) -> None:
        """Claim to be a server, as a client with the password and a proof by another key."""
        target = self._random.choice(self._facts.targets)
        claimed = self._random.choice([*(each.raft_id for each in self._facts.targets), 4, 77, 2**31 - 1])
        self.actions["impostors"] += 1
        try:
            dialed = await self._dial(target, Ed25519PrivateKey.generate(), ConnectionRole.SERVER, claimed)
        except GarlicFarmError:
            return
        await trio.aclose_forcefully(dialed.stream)
        self.faults.append(f"{target.name} accepted an unknown peer as server {claimed}")

    async def _forged_entries(self) -> None:
        """Submit forged entries as a client, and replay committed ones."""
        target = self._random.choice(self._facts.targets)
        dialed = await self._dial(target, None, ConnectionRole.CLIENT, None)
        try:
            key = Ed25519PrivateKey.generate()
            for number in range(1, 9):
                entry = self._random.choice([*self._forgeries(), *self._facts.seen[-40:]])
                if self._random.random() < 0.5 and b'"proof"' not in entry:
                    entry = sign_entry(entry, key, bytes.fromhex(self._facts.cluster_id), number)
                request = wire.ClientRequest(entries=(Entry.command(0, entry),))
                await dialed.stream.send_all(encode_request(request))
                self.actions["forged and repeated entries"] += 1
                with trio.move_on_after(0.3):
                    await dialed.stream.receive_some(4096)
        finally:
            await trio.aclose_forcefully(dialed.stream)

    def _forgeries(self) -> list[bytes]:
        invented = self._random.randrange(5, 5 + INVENTED_SERVERS)
        ours = self._random.choice(self._facts.targets).raft_id
        return [
            msgspec.json.encode(each)
            for each in (
                self._report(invented),
                self._report(ours),
                {"publication": self._publication(invented)},
                {"publication": self._publication(ours)},
                {"level": {"number": 65535, "version": "9"}},
                {"clock": {"time": 4_294_967_295_000, "id": ours, "period": 500}},
                {"factors": {"throughIndex": 2**40, "formula": "x", "factors": {}}},
                {"removal": {"server": ours, "removed": True}},
                {"force": {"master": self._facts.master}},
            )
        ]

    def _report(self, server_id: int, leaves: int = 16) -> dict[str, Any]:
        chosen = self._random.sample(self.hostile_leaves, leaves)
        return {
            "cluster": self._facts.key.cluster,
            "date": 4_000_000_000_000,
            "id": server_id,
            "router": {"attached": True, "uptime": 10**9, "jobLag": 0.0},
            "meta": {
                "destination": self._facts.master,
                "publishConfig": "on",
                "publishing": True,
                "canSignUntil": 4_000_000_000,
            },
            "destinations": [{"destination": leaf.base64, "healthy": True} for leaf in chosen],
        }

    def _publication(self, server_id: int) -> dict[str, Any]:
        return {"master": self._facts.master, "id": server_id, "published": 4_000_000_000, "contentHash": "0" * 64}

    async def _invented_members(self) -> None:
        """Join gossip with the copied key under ever new identities that claim to be servers."""
        seeds = [f"{host}:{port}" for host, port in (each.gossip for each in self._facts.targets)]
        self.actions["invented members"] += 1
        with suppress(ConfigError, StateError):
            async with gossip.open_group(
                Address(LOOPBACK, 0), key=self._facts.key.key_ring, seeds=seeds, metadata=self._random.randbytes(64)
            ) as group:
                with trio.move_on_after(2):
                    await trio.sleep_forever()
                if self._random.random() < 0.5:
                    await group.leave()

    # -- a hostile member ----------------------------------------------------------------------------------------------

    async def _hostile_entries(self) -> None:
        """Report sixty-four leaves as an admitted node, publish in the future, and report for other nodes."""
        target = self._random.choice(self._facts.targets)
        identity = load_identity(self._hostile)
        dialed = await self._dial(target, None, ConnectionRole.CLIENT, None)
        try:
            # Four times the milliseconds: the numbers rise, and are above all numbers that the node itself has used.
            first = 4 * _clock_ms()
            for number in range(first, first + 4):
                record: dict[str, Any] = self._random.choice(
                    [
                        self._report(4, INVENTED_SERVERS) | {"date": _clock_ms()},
                        self._report(self._random.choice(self._facts.targets).raft_id),
                        {"publication": self._publication(4)},
                    ]
                )
                entry = sign_entry(
                    msgspec.json.encode(record), identity.key, bytes.fromhex(self._facts.cluster_id), number
                )
                request = wire.ClientRequest(entries=(Entry.command(0, entry),))
                await dialed.stream.send_all(encode_request(request))
                self.actions["entries of a hostile member"] += 1
                with trio.move_on_after(0.3):
                    await dialed.stream.receive_some(4096)
        finally:
            await trio.aclose_forcefully(dialed.stream)

    async def _hostile_messages(self) -> None:
        """Send occasional messages with extreme terms and indexes, as the server of the same node."""
        await trio.sleep(HOSTILE_PAUSE_S)
        if not self.hostile_server_speaks:
            return
        target = self._random.choice(self._facts.targets)
        identity = load_identity(self._hostile)
        dialed = await self._dial(target, identity.key, ConnectionRole.SERVER, 4)
        try:
            for _ in range(4):
                term, last_term, last, commit = (self._random.choice(FAR) for _ in range(4))
                kind = self._random.choice(
                    (wire.RequestVoteRequest, wire.AppendEntriesRequest, wire.InstallSnapshotRequest)
                )
                with suppress(GarlicFarmError, ValueError, OverflowError):
                    await dialed.stream.send_all(
                        encode_request(
                            kind(
                                source=4,
                                destination=target.raft_id,
                                term=term,
                                last_log_term=last_term,
                                last_log_index=last,
                                commit_index=commit,
                            )
                        )
                    )
                    self.actions["messages of a hostile member"] += 1
                with trio.move_on_after(0.2):
                    await dialed.stream.receive_some(4096)
        finally:
            await trio.aclose_forcefully(dialed.stream)


def _clock_ms() -> int:
    return time.time_ns() // 1_000_000
