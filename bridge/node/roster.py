"""Who is who: the members that gossip knows, with what their signed metadata says about names, addresses and ids.

Metadata is decoded once for each incarnation of a member. A member whose metadata cannot be read is known to gossip but
not to the farm: it is counted, and left out here.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from bridge.core.picture import Facts
from bridge.wire.metadata import MetadataError, NodeMetadata, decode_metadata
from consensus.node.garlic_farm_dial import PeerAddress
from gossip.core.member import NodeId, Status
from gossip.node.agent import Agent

_ENDPOINT = re.compile(r"tcp://(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+)):([0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Listed:
    """One other member of the farm. A suspect still counts as reachable: suspicion is not a verdict."""

    node_id: NodeId
    reachable: bool
    metadata: NodeMetadata


class Roster:
    """The members, refreshed whenever gossip says that something changed."""

    def __init__(self, agent: Agent, own_name: str) -> None:
        self._agent = agent
        self._own_name = own_name
        self._decoded: dict[NodeId, tuple[bytes, NodeMetadata | None]] = {}
        self._listed: dict[NodeId, Listed] = {}
        self.unreadable = 0

    def refresh(self) -> None:
        """Take over what gossip knows now."""
        decoded: dict[NodeId, tuple[bytes, NodeMetadata | None]] = {}
        listed: dict[NodeId, Listed] = {}
        for member in self._agent.members():
            known = self._decoded.get(member.node_id)
            if known is None or known[0] != member.metadata:
                known = (member.metadata, self._decode(member.metadata))
            decoded[member.node_id] = known
            if known[1] is not None:
                reachable = member.status in {Status.ALIVE, Status.SUSPECT}
                listed[member.node_id] = Listed(member.node_id, reachable, known[1])
        self._decoded, self._listed = decoded, listed

    def members(self) -> tuple[Listed, ...]:
        """Every other member whose metadata can be read, dead ones as well."""
        return tuple(self._listed.values())

    def facts(self) -> Mapping[bytes, Facts]:
        """What the picture shows of each."""
        return {
            node_id: Facts(each.metadata.name, each.metadata.raft_id, each.metadata.endpoint)
            for node_id, each in self._listed.items()
        }

    def name_of(self, node_id: NodeId) -> str:
        """What operators call the node."""
        if node_id == self._agent.node_id:
            return self._own_name
        known = self._listed.get(node_id)
        return node_id.hex() if known is None else known.metadata.name

    def endpoint_of(self, node_id: bytes) -> str | None:
        """Where its Raft server listens."""
        known = self._listed.get(NodeId(node_id))
        return None if known is None else known.metadata.endpoint

    def address_of(self, node_id: bytes) -> PeerAddress | None:
        """How to connect to its Raft server, and which certificate it must show."""
        known = self._listed.get(NodeId(node_id))
        if known is None or known.metadata.endpoint is None or known.metadata.fingerprint is None:
            return None
        found = _ENDPOINT.fullmatch(known.metadata.endpoint)
        if found is None:
            return None
        return PeerAddress(found[1] or found[2], int(found[3]), known.metadata.fingerprint)

    def _decode(self, metadata: bytes) -> NodeMetadata | None:
        try:
            return decode_metadata(metadata)
        except MetadataError:
            self.unreadable += 1
            return None
