"""The members known to a node: its peers, and the directory of all discovered members.

    peer        a symmetrical link: each end probes the other and gossips with it; bounded by the node's capacity
    directory   all known members, peers included; bounded and aged, so that ten thousand members do not have to fit

The RFC limits only the number of peers. The directory may be larger: it costs only memory, and a node finds new peers
in it when it loses some. Dead and departed members stay for a while as tombstones. Otherwise a replayed or late update
would revive them.

In a full directory, a newcomer replaces a member without a link, from the first of these groups that is not empty:

    dead or left, never met by this node          the member without a mention for the longest time
    live, never met by this node                  the newest
    met by this node                              the member without a mention for the longest time

docs/reference/gossip-protocol.md ("Decisions") has the reason for this order: floods of names. Members are always
visited in the order of insertion (dicts, never sets of bytes), so that a run repeats exactly under one seed.
"""

from collections.abc import Mapping
from random import Random
from typing import Final, Protocol

from msgspec import Struct

from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status, info_bytes
from gossip.core.messages import CountedDrop

_LIVE = (Status.ALIVE, Status.SUSPECT)


class Member(Protocol):
    """One other member, as this node sees it. The values follow the member; callers must not change them.

    A copy of each member for each view would take a megabyte for ten thousand members.
    """

    @property
    def info(self) -> NodeInfo:
        """The member's signed description."""

    @property
    def node_id(self) -> NodeId:
        """The member's id."""

    @property
    def status(self) -> Status:
        """The member's status."""

    @property
    def incarnation(self) -> Incarnation:
        """The incarnation of the status."""

    @property
    def is_peer(self) -> bool:
        """True if this node probes the member and gossips with it."""

    @property
    def since_ms(self) -> int:
        """The start of the present status, by this core's clock."""

    @property
    def round_trip_ms(self) -> int | None:
        """The last round trip, if any."""

    @property
    def peer_count(self) -> int | None:
        """The number of peers that the member last reported, if any."""

    @property
    def equivocates(self) -> bool:
        """True if the member signed two different descriptions of one incarnation."""


class MemberRecord(Struct, eq=False, gc=False):
    """The record of one member. `incarnation` may exceed the signed one in `info`, because verdicts are not signed."""

    info: NodeInfo
    status: Status
    incarnation: Incarnation
    since_ms: int
    mentioned_ms: int
    round_trip_ms: int | None = None
    peer_count: int | None = None
    contact_ms: int = 0
    """The time of the last message from the member itself; before the first one, the time when the record was made."""
    is_peer: bool = False
    confirmed: bool = False
    """True if this node has received a message from the member itself. (Any node can send names of members.)"""
    proved: Address | None = None
    """The proved address: a reply from it contained a secret of this node, a token or a ping number. Or None."""
    proved_before: Address | None = None
    """The previous proved address.

    If the identity runs twice, the newer address may belong to the second instance. The first instance must still
    receive updates, because they reveal the second one.
    """
    equivocates: bool = False
    """True if the member signed two different descriptions of one incarnation."""
    last_ping: int | None = None
    """The number of the member's last ping to this node."""
    link_secret: bytes = b""
    """The last bytes of the token of the JoinReq that made this link; both ends of the link store them."""
    departure: bytes = b""
    """The member's signature over its departure, if it has left.

    Other members accept a departure only with this signature.
    """
    place: int = 0
    """The record's index among the records with the same status; only `Membership` uses it."""
    size_bytes: int = 0
    """The approximate wire size of the description."""
    node_id: NodeId = NodeId(b"")
    """The member's id. It never changes, although newer descriptions replace `info`."""

    def __post_init__(self) -> None:
        self.node_id = self.info.node_id
        self.size_bytes = info_bytes(self.info)

    @property
    def address(self) -> Address:
        """The address in the member's description."""
        return self.info.address

    @property
    def is_live(self) -> bool:
        """True if neither dead nor left (a suspect is live until proven otherwise)."""
        return self.status in _LIVE

    @property
    def has_room(self) -> bool:
        """True if the member last reported a vacancy; False if unknown."""
        return self.peer_count is not None and self.peer_count < self.info.capacity


class Description(Struct, frozen=True):
    """This node, its known members, and its counters, for operators."""

    self_info: NodeInfo
    members: tuple[Member, ...]
    peer_count: int
    health_score: int
    leaving: bool
    in_maintenance: bool
    halted: bool
    joins_in_flight: int
    seed_count: int
    sent: Mapping[str, int]
    received: Mapping[str, int]
    dropped: Mapping[CountedDrop, int]
    now_ms: int = 0
    """The core's clock at its last step, the base of `Member.since_ms`; 0 without a core."""


class Membership:
    """The directory, and the peers among its members. `updates` changes their status by the rule of precedence."""

    def __init__(self, own_id: NodeId, capacity: int, directory_limit: int, random: Random) -> None:
        self._own_id = own_id
        self.capacity = capacity
        self._limit = max(directory_limit, 2 * capacity)
        self._random = random
        self._entries: dict[NodeId, MemberRecord] = {}
        self.get: Final = self._entries.get
        """Return the entry of a known member, or None."""

        self.ids: Final = self._entries.keys()
        """The ids of all known members."""

        self.links: Final[dict[NodeId, MemberRecord]] = {}
        """The peers by id; only this class changes the mapping."""

        self.proved: Final[dict[tuple[str, int], NodeId]] = {}
        """Proved addresses of members: a datagram from there has a genuine source.

        The key is (host, port), so that the look-up for each ack runs no Python code.
        """

        self._standing: tuple[list[MemberRecord], ...] = tuple([] for _ in Status)
        self._alive, self._suspects = self._standing[Status.ALIVE], self._standing[Status.SUSPECT]
        self._none_older_than = 0
        """The oldest possible mention of an unlinked member.

        Until this mention is old enough, a sweep would not remove a member.
        """

    def __len__(self) -> int:
        return len(self._entries)

    def entries(self) -> list[MemberRecord]:
        """Return all known members."""
        return list(self._entries.values())

    def alive(self) -> list[MemberRecord]:
        """Return all members that are alive; callers must not change the result."""
        return self._alive

    def peers(self) -> list[MemberRecord]:
        """Return all peers."""
        return list(self.links.values())

    @property
    def has_room(self) -> bool:
        """True if another peer fits."""
        return len(self.links) < self.capacity

    @property
    def live_count(self) -> int:
        """The number of other members that are alive or suspect."""
        return len(self._alive) + len(self._suspects)

    @property
    def has_tombstones(self) -> bool:
        """True if any dead or departed member is recorded."""
        return len(self._entries) > len(self._alive) + len(self._suspects)

    @property
    def group_size(self) -> int:
        """The n of log n: the live members and this node."""
        return len(self._alive) + len(self._suspects) + 1

    @property
    def is_short(self) -> bool:
        """True if this node should look for further peers."""
        return len(self.links) < min(self.capacity, self.live_count)

    def peer_at(self, address: Address) -> MemberRecord | None:
        """Return the peer at this address, or None."""
        for peer in self.links.values():
            known = peer.info.address
            if known is address or (known.host == address.host and known.port == address.port):
                return peer
        return None

    def live_at(self, address: Address) -> bool:
        """Return True if a live member is known at this address."""
        return any(entry.is_live and entry.address == address for entry in self._entries.values())

    def insert(self, info: NodeInfo, now: int) -> tuple[MemberRecord | None, NodeId | None]:
        """Add a live member. Return its entry (None if all places are taken) and the id of the replaced member."""
        evicted: NodeId | None = None
        if len(self._entries) >= self._limit:
            victim = self._dispensable()
            if victim is None:
                return None, None
            evicted = victim.node_id
            self.remove(evicted)
        entry = MemberRecord(info, Status.ALIVE, info.incarnation, now, now, contact_ms=now)
        self._entries[info.node_id] = entry
        self._none_older_than = min(self._none_older_than, now)
        self._index_status(entry)
        return entry, evicted

    def _dispensable(self) -> MemberRecord | None:
        """Return the member that makes room for a newcomer; the order is in the module docstring."""
        lost = [entry for status in (Status.DEAD, Status.LEFT) for entry in self._standing[status]]
        unmet = [entry for entry in lost if not entry.confirmed]
        met: list[MemberRecord] = []
        # In a full directory, nearly always one of the newest members was never met.
        for entry in () if unmet else reversed(self._entries.values()):
            if not entry.is_peer:
                if not entry.confirmed:
                    return entry
                met.append(entry)
        return min(unmet or reversed(met), key=lambda entry: entry.mentioned_ms, default=None)

    def remove(self, node_id: NodeId) -> None:
        """Remove a member from the directory."""
        self.unlink(node_id)
        entry = self._entries.pop(node_id)
        self._unindex_status(entry)
        self._unprove(entry, entry.proved)
        self._unprove(entry, entry.proved_before)

    def prove(self, entry: MemberRecord, source: Address) -> None:
        """Record a member's reply with a secret of this node, if `source` is the member's address."""
        if source == entry.address and entry.proved != source:
            self._unprove(entry, entry.proved_before)
            entry.proved_before, entry.proved = entry.proved, source
            self.proved[source.host, source.port] = entry.node_id

    def _unprove(self, entry: MemberRecord, address: Address | None) -> None:
        if address is not None and self.proved.get((address.host, address.port)) == entry.node_id:
            del self.proved[address.host, address.port]

    def _index_status(self, entry: MemberRecord) -> None:
        standing = self._standing[entry.status]
        entry.place = len(standing)
        standing.append(entry)

    def _unindex_status(self, entry: MemberRecord) -> None:
        standing = self._standing[entry.status]
        last = standing.pop()
        if last is not entry:
            standing[entry.place] = last
            last.place = entry.place

    def set_status(self, entry: MemberRecord, incarnation: Incarnation, status: Status, now: int) -> None:
        """Record a member's status. Dead and departed members lose their links."""
        if status is not entry.status:
            self._unindex_status(entry)
            entry.status = status
            self._index_status(entry)
            entry.since_ms = now
        entry.incarnation = incarnation
        entry.mentioned_ms = now
        if status not in _LIVE:
            self.unlink(entry.node_id)

    def link(self, entry: MemberRecord) -> bool:
        """Make a live member a peer, if there is room; return True if it is a peer now."""
        if entry.is_peer:
            return True
        if not self.has_room or not entry.is_live:
            return False
        self.links[entry.node_id] = entry
        entry.is_peer = entry.confirmed = True
        return True

    def unlink(self, node_id: NodeId) -> None:
        """Make a peer an ordinary member of the directory."""
        peer = self.links.pop(node_id, None)
        if peer is not None:
            peer.is_peer = False
            self._none_older_than = min(self._none_older_than, peer.mentioned_ms)

    def sample(self, count: int, status: Status, but: NodeId | None = None) -> list[MemberRecord]:
        """Return random members of one status."""
        standing = self._standing[status]
        if not standing:
            return []
        if len(standing) <= 2 * count:
            found = [entry for entry in standing if entry.node_id != but]
            return self._random.sample(found, min(count, len(found)))
        chosen: list[MemberRecord] = []
        while len(chosen) < count:
            entry = standing[int(self._random.random() * len(standing))]
            if entry.node_id != but and entry not in chosen:
                chosen.append(entry)
        return chosen

    def vouched(self, count: int, since_ms: int, but: NodeId | None = None) -> list[MemberRecord]:
        """Return random peers that are alive and have sent this node a message since that time."""
        found = [
            peer
            for peer in self.links.values()
            if peer.contact_ms >= since_ms and peer.status is Status.ALIVE and peer.node_id != but
        ]
        return self._random.sample(found, min(count, len(found)))

    def longest_silent(self) -> MemberRecord | None:
        """Return the peer that is alive and whose last message to this node is the oldest."""
        alive = (peer for peer in self.links.values() if peer.status is Status.ALIVE)
        return min(alive, key=lambda peer: peer.contact_ms, default=None)

    def unlinked(self) -> list[MemberRecord]:
        """Return all live members that are not peers, suspects included."""
        return [entry for entry in self._entries.values() if entry.is_live and not entry.is_peer]

    def not_left(self) -> list[MemberRecord]:
        """Return all members that have not left, including dead ones."""
        return [entry for entry in self._entries.values() if entry.status is not Status.LEFT]

    def describe(self) -> tuple[Member, ...]:
        """Return every known member, for operators."""
        return tuple(self._entries.values())

    def sweep(self, now: int, directory_age_ms: int, tombstone_ms: int) -> list[NodeId]:
        """Remove the members without a link and without a recent mention; return their ids."""
        if now - self._none_older_than < min(directory_age_ms, tombstone_ms):
            return []
        old: list[NodeId] = []
        oldest = now
        for node_id, entry in self._entries.items():
            if entry.is_peer:
                continue
            if now - entry.mentioned_ms >= (directory_age_ms if entry.status in _LIVE else tombstone_ms):
                old.append(node_id)
            elif entry.mentioned_ms < oldest:
                oldest = entry.mentioned_ms
        self._none_older_than = oldest
        for node_id in old:
            self.remove(node_id)
        return old
