"""What nodes say of themselves in their signed metadata: names, addresses and ids of the members, and of this node.

    gossip's members ──▶ MemberDirectory ──▶ who has which name, Raft id, endpoint, certificate

    Forming (notice) ──┐
    Replica (Raft id) ─┼──▶ OwnMetadata ──▶ NodeMetadata, signed by gossip
    Reconciling ───────┘    (admissions, while this node leads)

Metadata is decoded once for each incarnation of a member. A member whose metadata cannot be read is known to gossip but
not to the farm: it is counted, and left out here. Each change of this node's own metadata is announced as a whole, so
no part can overwrite what another one said.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from time import monotonic

import trio

from bridge.core.formation.founding import FormationNotice
from bridge.core.formation.member import FarmMember, MemberStatus, NodeMetadata, RoleHint
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.wire.membership.metadata import MetadataError, decode_metadata, encode_metadata, fitting_admissions
from consensus.protocols.garlic_farm import PeerAddress
from gossip import Member, NodeId, NodeInfo, Status
from gossip.node import parse_endpoint

Admissions = tuple[tuple[bytes, int], ...]


class MemberDirectory:
    """The members. `learn` takes over one change, `refresh` everything."""

    def __init__(
        self,
        own_id: NodeId,
        own_name: str,
        members: Callable[[], Iterable[Member]],
        now_s: Callable[[], float] = monotonic,
    ) -> None:
        """`members` tells what gossip knows now."""
        self._own_id = own_id
        self._own_name = own_name
        self._members = members
        self._listed: dict[bytes, FarmMember] = {}
        self._unreadable: dict[bytes, bytes] = {}
        self._suspected_s: dict[bytes, float] = {}
        """When each suspect became one."""
        self._now_s = now_s
        self.unreadable = 0
        self._news = trio.Event()

    def __len__(self) -> int:
        """Members that gossip knew when they were last looked at, readable or not."""
        return len(self._listed) + len(self._unreadable)

    def refresh(self) -> None:
        """Take over what gossip knows now, and forget whom it has forgotten."""
        present = set()
        for member in self._members():
            present.add(member.node_id)
            self._take(member.info, member.status, equivocates=member.equivocates)
        for known in (self._listed, self._unreadable, self._suspected_s):
            for gone in known.keys() - present:
                del known[gone]
        self._tell()

    def learn(self, info: NodeInfo, status: Status, *, equivocates: bool = False) -> None:
        """Take over what gossip says of one member: a whole refresh for each would cost the square of their number."""
        self._take(info, status, equivocates=equivocates)
        self._tell()

    async def news(self) -> None:
        """Returns when something has been taken over since the call."""
        await self._news.wait()

    def admissions_told(self, node_id: bytes, cluster_id: bytes) -> list[tuple[FarmMember, int]]:
        """Who of those that count themselves to that cluster announces which Raft id for `node_id`."""
        return [
            (each, raft_id)
            for each in self._listed.values()
            if (founding := each.metadata.notice.founding) is not None and founding.cluster_id == cluster_id
            for named, raft_id in each.metadata.admissions
            if named == node_id
        ]

    def members(self) -> tuple[FarmMember, ...]:
        """Every other member whose metadata can be read, dead ones as well."""
        return tuple(self._listed.values())

    def reachable(self) -> frozenset[bytes]:
        """The other members that gossip has not given up."""
        return frozenset(node_id for node_id, each in self._listed.items() if each.reachable)

    def is_heard(self, node_id: bytes, within_s: float) -> bool:
        """Return True if gossip counts the member as alive, or has not suspected it for longer than `within_s`."""
        known = self._listed.get(node_id)
        if known is None or not known.reachable:
            return False
        now_s = self._now_s()
        return now_s - self._suspected_s.get(node_id, now_s) < within_s

    def of_cluster(self, cluster: str) -> tuple[FarmMember, ...]:
        """The members that call their farm so."""
        return tuple(each for each in self._listed.values() if each.metadata.cluster == cluster)

    def metadata_of(self, node_id: NodeId) -> NodeMetadata | None:
        """What another member tells of itself; None if it is not known, or cannot be read."""
        known = self._listed.get(node_id)
        return None if known is None else known.metadata

    def name_of_server(self, server_id: int) -> str | None:
        """What the member that announces this Raft id calls itself."""
        names = (each.metadata.name for each in self._listed.values() if each.metadata.raft_id == server_id)
        return next(names, None)

    def name_of(self, node_id: NodeId) -> str:
        """What operators call the node."""
        if node_id == self._own_id:
            return self._own_name
        known = self._listed.get(node_id)
        return node_id.hex() if known is None else known.metadata.name

    def endpoint_of(self, node_id: bytes) -> str | None:
        """Where its Raft server listens."""
        known = self._listed.get(NodeId(node_id))
        return None if known is None else known.metadata.endpoint

    def address_of(self, node_id: bytes) -> PeerAddress | None:
        """How to connect to its Raft server, and which certificate it must show, if it has one."""
        known = self._listed.get(NodeId(node_id))
        if known is None or known.metadata.endpoint is None:
            return None
        host, port = parse_endpoint(known.metadata.endpoint.removeprefix("tcp://"))
        return PeerAddress(host, port, known.metadata.fingerprint)

    def _tell(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _take(self, info: NodeInfo, gossip_status: Status, *, equivocates: bool) -> None:
        node_id, signed, status = info.node_id, info.metadata, MemberStatus[gossip_status.name]
        if status is not MemberStatus.SUSPECT:
            self._suspected_s.pop(node_id, None)
        elif node_id not in self._suspected_s:
            self._suspected_s[node_id] = self._now_s()
        known = self._listed.get(node_id)
        if known is not None and known.signed == signed:
            if (known.status, known.equivocates) != (status, equivocates) or known.signed is not signed:
                # The description that gossip has now: what it had before must not be kept alive by this one.
                self._listed[node_id] = FarmMember(
                    node_id, status, known.metadata, info.credential, signed, equivocates
                )
            return
        if self._unreadable.get(node_id) == signed:
            return
        try:
            metadata = decode_metadata(signed)
        except MetadataError:
            self.unreadable += 1
            self._unreadable[node_id] = signed
            self._listed.pop(node_id, None)
        else:
            self._unreadable.pop(node_id, None)
            self._listed[node_id] = FarmMember(node_id, status, metadata, info.credential, signed, equivocates)


def first_metadata(cluster: str, name: str, endpoint: str, fingerprint: bytes | None) -> NodeMetadata:
    """What a node says when it starts."""
    return NodeMetadata(
        cluster=cluster,
        name=name,
        role=RoleHint.ELIGIBLE,
        endpoint=endpoint,
        fingerprint=fingerprint,
        feature_level=SUPPORTED_LEVEL,
    )


def metadata_bytes(metadata: NodeMetadata) -> bytes:
    """The same for gossip, with as many admissions as there is room for."""
    return encode_metadata(fitting_admissions(metadata))


class OwnMetadata:
    """What this node says of itself now."""

    def __init__(self, first: NodeMetadata, announce: Callable[[bytes], None]) -> None:
        """`announce` has been told `first`, and is told every change."""
        self.now = first
        self._announce = announce

    def notice_changed(self, notice: FormationNotice) -> None:
        """Formation has got further."""
        self._change(replace(self.now, notice=notice))

    def server_runs(self, raft_id: int) -> None:
        """This node's Raft server runs, under this id."""
        self._change(replace(self.now, raft_id=raft_id, role=RoleHint.VOTER))

    def tell(self, admissions: Admissions) -> None:
        """Announce their Raft ids to admitted nodes."""
        if admissions != self.now.admissions:
            self._change(replace(self.now, admissions=admissions))

    def _change(self, metadata: NodeMetadata) -> None:
        self.now = metadata
        self._announce(metadata_bytes(metadata))
