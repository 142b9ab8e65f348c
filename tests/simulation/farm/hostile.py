"""A member of a trial that becomes hostile: it has valid keys, and sends each field at its extremes.

    Hostility.lead     while it leads: entries of each kind, signed by it, with extremes (`tests.simulation.entry_fuzz`)
    Hostility.lie      after its process has ended: datagrams sealed by the farm's key, from its machine, with any
                       source address (`tests.simulation.gossip_hostility`)

The entries of a leader reach the log, so each server applies them, now and after each restart. A leader has the right
to evict and remove servers, so this leader evicts only invented nodes. The datagrams claim that members are dead, or
have other addresses and incarnations, and come from members that do not exist.

An eviction ends both kinds of hostility: the member loses its rights, and the farm replaces its keys. The liar still
has the earlier keys. Afterwards the farm must be healthy, and all state machines must be equal.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import Any, Final, cast
from unittest.mock import patch

import trio

from bridge.core.log.fields import BOX_BYTES
from bridge.core.log.records import Eviction, KeyReplacement
from bridge.core.membership.eviction import LAST_ERA
from bridge.node.raft.submitting import Submitting
from bridge.wire.log.entries import encode
from gossip.core.member import Address
from gossip.core.swim import Swim
from gossip.node.state_files import load_identity
from gossip.wire.identity import Signer
from tests.simulation.entry_fuzz import SAMPLES, unsigned
from tests.simulation.farm.host import Host, current_host
from tests.simulation.farm.world import World, as_host
from tests.simulation.gossip_hostility import Liar
from tests.simulation.gossip_wire_group import WireGroup, WireNode

ENTRIES: Final = 24
PROPOSE_S: Final = 2.0
"""Longest time for one entry: a hostile leader may lose its leadership."""
LIES: Final = 150
LIE_EVERY_S: Final = 0.1
RECORDED: Final = 256
ERAS: Final = (1, 50, 2**31, LAST_ERA)
"""A leader may begin the next era, with any boxes; later eras must not have an effect."""


class Parts:
    """Parts of the running nodes, by machine: an attacker on the same machine has them, too."""

    def __init__(self) -> None:
        self.submitting: dict[str, Submitting] = {}
        self.swim: dict[str, Swim] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the parts of nodes that start within the block."""
        submitting, swim, parts = Submitting.__init__, Swim.__init__, self

        def submitting_made(made: Submitting, *arguments: Any, **named: Any) -> None:
            submitting(made, *arguments, **named)
            host = current_host.get()
            if host is not None:
                parts.submitting[host.name] = made

        def swim_made(made: Swim, *arguments: Any, **named: Any) -> None:
            swim(made, *arguments, **named)
            host = current_host.get()
            if host is not None:
                parts.swim[host.name] = made

        with patch.object(Submitting, "__init__", submitting_made), patch.object(Swim, "__init__", swim_made):
            yield


class Hostility:
    """The hostility of one member."""

    def __init__(self, world: World, parts: Parts, host: Host) -> None:
        self._world = world
        self._parts = parts
        self._host = host
        self._random = Random(f"{world.seed}/hostile/{host.name}")

    async def lead(self) -> int:
        """Propose entries through the server of this member; return the number of committed ones."""
        with as_host(self._host):
            return await self._lead()

    async def _lead(self) -> int:
        submitting, committed = self._parts.submitting[self._host.name], 0
        server_id = submitting._replica.server_id
        for _ in range(ENTRIES):
            try:
                entry = submitting._signer.sign(self._entry(server_id))
            except ValueError:
                continue  # no node signs it, and without a signature it does not have an effect
            if not submitting._replica.leads or self._host.run is None:
                break
            with trio.move_on_after(PROPOSE_S):
                answer = await submitting._replica.server.propose((entry,))
                committed += answer.position is not None
        return committed

    def _entry(self, server_id: int) -> bytes:
        random = self._random
        if random.random() < 1 / 4:
            era = random.choice(ERAS)
            node_id = random.randbytes(8)
            boxes = ((random.randbytes(8), random.randbytes(BOX_BYTES)),)
            return encode(random.choice((KeyReplacement(era, boxes), Eviction(node_id, era, boxes))))
        sample = random.choice([each for each in SAMPLES if "removal" not in each])
        own = _about(sample, server_id)
        return unsigned(own, random) if random.random() < 3 / 4 else json.dumps(own).encode()

    async def lie(self) -> None:
        """Send lies for a while, with the keys of this moment."""
        nodes = self._nodes()
        if len(nodes) < 2:
            return
        group = cast("WireGroup", _Group(nodes, self._world))
        liar = Liar(group, self._random, (Signer(load_identity(self._host.directory).key),))
        datagrams = self._world.datagrams
        for _ in range(LIES):
            await trio.sleep(LIE_EVERY_S)
            receiver, source, data = liar.datagram()
            datagrams.forge(self._host, source, data, receiver.address)

    def _nodes(self) -> list[WireNode]:
        found = []
        for name, core in sorted(self._parts.swim.items()):
            host = self._world.hosts[name]
            if host.run is not None and host is not self._host and core.keyring is not None:
                info = core.describe().self_info
                address = Address(host.addresses[0], info.address.port)
                codec, repairs = cast("Any", None), cast("Any", None)
                found.append(WireNode(address, info.node_id, codec, core, core.keyring, repairs))
        return found


def _about(sample: dict[str, Any], server_id: int) -> dict[str, Any]:
    """Return the entry with its author's id, and without its request id, which would mark a later one as a copy."""
    inner = {name: _about(each, server_id) if isinstance(each, dict) else each for name, each in sample.items()}
    return {name: server_id if name == "id" else each for name, each in inner.items() if name != "request"}


class _Group:
    """The part of a `WireGroup` that a liar uses: the nodes, the time, and datagrams to repeat."""

    def __init__(self, nodes: list[WireNode], world: World) -> None:
        self.nodes = nodes
        self.recorded = [
            (sender, receiver, b"\x01") for sender in nodes for receiver in nodes if sender is not receiver
        ]
        self._world = world
        at = {each.address: each for each in nodes}
        world.datagrams.on_sent = lambda source, target, data: self._record(at, source, target, data)

    @property
    def now(self) -> int:
        """The time in milliseconds."""
        return round(self._world.time_s * 1000)

    def _record(self, at: dict[Address, WireNode], source: Address, target: Address, data: bytes) -> None:
        if source in at and target in at:
            self.recorded = [*self.recorded[1 - RECORDED :], (at[source], at[target], data)]
