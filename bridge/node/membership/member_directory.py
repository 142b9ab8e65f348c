"""Signed metadata of nodes: names, addresses and ids of the members, and of this node.

    gossip's members ──▶ MemberDirectory ──▶ name, Raft id, endpoint, certificate of each

    Forming (notice) ──┐
    Replica (Raft id) ─┼──▶ OwnMetadata ──▶ NodeMetadata, signed by gossip
    Reconciling ───────┘    (admissions, while this node leads)

Metadata is decoded only when a member's bytes change. A member with unreadable metadata is known to gossip but not to
the farm: this module counts and omits it. All parts of this node change one shared copy of the node's metadata
(`OwnMetadata`), so no part can overwrite another part's data. Each change announces the whole copy.
"""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic

import trio
from msgspec.structs import replace

from bridge.core.formation.founding import FormationNotice
from bridge.core.formation.member import FarmMember, MemberStatus, NodeMetadata, RoleHint
from bridge.core.log.feature_level import SUPPORTED_LEVEL
from bridge.wire.membership.metadata import MetadataError, decode_metadata, encode_metadata, fitting_admissions
from consensus.protocols.garlic_farm import PeerAddress
from gossip import Member, NodeId, NodeInfo, Status
from gossip.node import parse_endpoint

Admissions = tuple[tuple[bytes, int], ...]


@dataclass(slots=True, eq=False)
class MemberDirectory:
    """The members. `learn` applies one change, `refresh` reads all members."""

    own_id: NodeId
    own_name: str
    gossip_members: Callable[[], Iterable[Member]]
    """Returns gossip's present members."""
    now_s: Callable[[], float] = monotonic
    _listed: dict[bytes, FarmMember] = field(default_factory=dict, init=False)
    _unreadable: dict[bytes, bytes] = field(default_factory=dict, init=False)
    _suspected_s: dict[bytes, float] = field(default_factory=dict, init=False)
    """Times of the first suspicion, in seconds, by suspected member."""
    _outdated: dict[bytes, tuple[NodeInfo, NodeMetadata]] = field(default_factory=dict, init=False)
    """Members with a retired key, until gossip marks them alive."""
    unreadable: int = field(default=0, init=False)
    _news: trio.Event = field(default_factory=trio.Event, init=False)

    def __len__(self) -> int:
        return len(self._listed) + len(self._unreadable)

    def refresh(self) -> None:
        """Read gossip's present members, and drop members that gossip has dropped."""
        present = set()
        for member in self.gossip_members():
            present.add(member.node_id)
            self._take(member.info, member.status, equivocates=member.equivocates)
        for known in (self._listed, self._unreadable, self._suspected_s):
            for former in known.keys() - present:
                del known[former]
        self._notify()

    def learn(self, info: NodeInfo, status: Status, *, equivocates: bool = False) -> None:
        """Apply gossip's data on one member: a `refresh` at each change would take quadratic time in a large group."""
        self._take(info, status, equivocates=equivocates)
        self._notify()

    def learn_outdated(self, info: NodeInfo) -> None:
        """Store the signed description of a member with a retired key, which gossip cannot list as alive."""
        known = self._outdated.get(info.node_id)
        if known is None or known[0].incarnation < info.incarnation:
            with suppress(MetadataError):
                self._outdated[info.node_id] = info, decode_metadata(info.metadata)

    async def news(self) -> None:
        """Wait until the next `refresh` or `learn`."""
        await self._news.wait()

    def announced_admissions(self, node_id: bytes, cluster_id: bytes) -> list[tuple[FarmMember, int]]:
        """Return the members of the cluster that announce a Raft id for `node_id`, each with this id."""
        return [
            (each, raft_id)
            for each in self._listed.values()
            if (founding := each.metadata.notice.founding) is not None and founding.cluster_id == cluster_id
            for named, raft_id in each.metadata.admissions
            if named == node_id
        ]

    def members(self) -> tuple[FarmMember, ...]:
        """Return every other member with readable metadata, including dead ones."""
        return tuple(self._listed.values())

    def reachable(self) -> frozenset[bytes]:
        """Return the other members that gossip has marked neither dead nor left."""
        return frozenset(node_id for node_id, each in self._listed.items() if each.reachable)

    def is_in_contact(self, node_id: bytes, within_s: float) -> bool:
        """Return True if gossip counts the member as alive, or has suspected it for `within_s` at most."""
        known = self._listed.get(node_id)
        if known is None or not known.reachable:
            return False
        now_s = self.now_s()
        return now_s - self._suspected_s.get(node_id, now_s) < within_s

    def of_cluster(self, cluster: str) -> tuple[FarmMember, ...]:
        """Return the members whose metadata has this cluster label."""
        return tuple(each for each in self._listed.values() if each.metadata.cluster == cluster)

    def metadata_of(self, node_id: NodeId) -> NodeMetadata | None:
        """Return another member's metadata; None if it is unknown or unreadable."""
        known = self._listed.get(node_id)
        return None if known is None else known.metadata

    def name_of_server(self, server_id: int) -> str | None:
        """Return the name of the member that announces this Raft id."""
        names = (each.metadata.name for each in self._listed.values() if each.metadata.raft_id == server_id)
        return next(names, None)

    def name_of(self, node_id: NodeId) -> str:
        """Return the name of the node for operators; its id if the name is unknown."""
        if node_id == self.own_id:
            return self.own_name
        known = self._listed.get(node_id)
        return node_id.hex() if known is None else known.metadata.name

    def endpoint_of(self, node_id: bytes) -> str | None:
        """Return the endpoint of a node's Raft server."""
        known = self._listed.get(NodeId(node_id))
        return None if known is None else known.metadata.endpoint

    def address_of(self, node_id: bytes) -> PeerAddress | None:
        """Return the address of a node's Raft server, with the certificate that it must show, if any."""
        listed = self._listed.get(node_id)
        metadata = None if listed is None else listed.metadata
        if node_id in self._outdated and (listed is None or not listed.reachable):
            metadata = self._outdated[node_id][1]
        if metadata is None or metadata.endpoint is None:
            return None
        host, port = parse_endpoint(metadata.endpoint.removeprefix("tcp://"))
        return PeerAddress(host, port, metadata.fingerprint)

    def _notify(self) -> None:
        self._news.set()
        self._news = trio.Event()

    def _take(self, info: NodeInfo, gossip_status: Status, *, equivocates: bool) -> None:
        node_id, signed, status = info.node_id, info.metadata, MemberStatus[gossip_status.name]
        if status is MemberStatus.ALIVE:
            self._outdated.pop(node_id, None)
        if status is not MemberStatus.SUSPECT:
            self._suspected_s.pop(node_id, None)
        elif node_id not in self._suspected_s:
            self._suspected_s[node_id] = self.now_s()
        known = self._listed.get(node_id)
        if known is not None and known.signed == signed:
            if (known.status, known.equivocates) != (status, equivocates) or known.signed is not signed:
                # Refer to gossip's present description, so that the previous one can be freed.
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
    """Return the metadata of a starting node."""
    return NodeMetadata(
        cluster=cluster,
        name=name,
        role=RoleHint.ELIGIBLE,
        endpoint=endpoint,
        fingerprint=fingerprint,
        feature_level=SUPPORTED_LEVEL,
    )


def metadata_bytes(metadata: NodeMetadata) -> bytes:
    """Encode metadata for gossip, with as many admissions as fit."""
    return encode_metadata(fitting_admissions(metadata))


class OwnMetadata:
    """This node's present metadata."""

    def __init__(self, first: NodeMetadata, announce: Callable[[bytes], None]) -> None:
        """Start with the already announced metadata `first`; `announce` receives every change."""
        self.now = first
        self._announce = announce

    def notice_changed(self, notice: FormationNotice) -> None:
        """Announce another phase of formation."""
        self._change(replace(self.now, notice=notice))

    def server_runs(self, raft_id: int) -> None:
        """Announce that this node's Raft server runs under this id."""
        self._change(replace(self.now, raft_id=raft_id, role=RoleHint.VOTER))

    def announce_admissions(self, admissions: Admissions) -> None:
        """Announce the Raft ids of admitted nodes to these nodes."""
        if admissions != self.now.admissions:
            self._change(replace(self.now, admissions=admissions))

    def _change(self, metadata: NodeMetadata) -> None:
        self.now = metadata
        self._announce(metadata_bytes(metadata))
