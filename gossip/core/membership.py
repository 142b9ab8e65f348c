"""Whom a node knows: peers, and the directory of everybody else that it heard of.

    peer        a symmetrical link: each end probes the other and gossips with it; bounded by the node's capacity
    directory   all known members, peers included; bounded and aged, so that ten thousand members do not have to fit

The RFC bounds peers by capacity; knowing more members than one's peers costs memory only, and is what lets a node that
loses peers find new ones. Dead and left members stay for a while as tombstones: without them a replayed or late claim
would bring them back.

In a full directory a newcomer takes the place of, in this order:

    the dead or gone that this node never met     the longest unmentioned of them
    the living that it never met                  the newest of them
    those it met                                  the longest unmentioned of them

Whoever holds the farm's key can name new identities without end. If the longest unmentioned of all had to go, as is
usual, such a flood would wash out every quiet member within a second; like this its names replace one another.

Iteration is in insertion order everywhere (dicts, never sets of bytes), so that a run repeats exactly under one seed.
"""

from dataclasses import dataclass, field
from random import Random

from gossip.core.member import Address, Incarnation, NodeId, NodeInfo, Status

_LIVE = (Status.ALIVE, Status.SUSPECT)


@dataclass(slots=True, eq=False)
class Entry:
    """What is known of one member. `incarnation` may be ahead of the signed one in `info`: verdicts are not signed."""

    info: NodeInfo
    status: Status
    incarnation: Incarnation
    since_ms: int
    heard_ms: int
    round_trip_ms: int | None = None
    peer_count: int | None = None
    contact_ms: int = 0
    """When it last spoke to this node itself, as against others who mention it."""
    confirmed: bool = False
    """Whether it ever spoke to this node itself: hearsay costs its teller nothing."""
    departure: bytes = b""
    """The member's signature over its leaving, while it is gone: whoever is told so wants to see it."""
    place: int = 0
    """Where it stands among those of its status: the membership's own bookkeeping."""
    node_id: NodeId = field(init=False)
    """Whose entry it is. The description may be replaced by a newer one, never by another member's."""

    def __post_init__(self) -> None:
        """Name the entry after its first description."""
        self.node_id = self.info.node_id

    @property
    def address(self) -> Address:
        """Where the member says it is."""
        return self.info.address

    @property
    def is_live(self) -> bool:
        """Neither dead nor left (a suspect is live until proven otherwise)."""
        return self.status in _LIVE

    @property
    def has_room(self) -> bool:
        """Whether it could take a peer, by its last word; unknown counts as no."""
        return self.peer_count is not None and self.peer_count < self.info.capacity


class Membership:
    """The directory, and which of it are peers. Holds no rules of precedence: see `updates`."""

    def __init__(self, own_id: NodeId, capacity: int, directory_limit: int, random: Random) -> None:
        self._own_id = own_id
        self.capacity = capacity
        self._limit = max(directory_limit, 2 * capacity)
        self._random = random
        self._entries: dict[NodeId, Entry] = {}
        self._peers: dict[NodeId, Entry] = {}
        self._standing: tuple[list[Entry], ...] = tuple([] for _ in Status)
        self._alive, self._suspects = self._standing[Status.ALIVE], self._standing[Status.SUSPECT]
        self._none_older_than = 0
        """No stranger was last heard of before this time: until that matters there is nothing to sweep."""

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, node_id: NodeId) -> Entry | None:
        """The entry of a member, if known."""
        return self._entries.get(node_id)

    def entries(self) -> list[Entry]:
        """All known members."""
        return list(self._entries.values())

    def alive(self) -> list[Entry]:
        """All that are held for alive (not to be changed)."""
        return self._alive

    def peers(self) -> list[Entry]:
        """All peers."""
        return list(self._peers.values())

    def peer_ids(self) -> dict[NodeId, Entry]:
        """The peers by id (not to be changed)."""
        return self._peers

    def is_peer(self, node_id: NodeId) -> bool:
        """Whether there is a link to this member."""
        return node_id in self._peers

    @property
    def peer_count(self) -> int:
        """How many peers there are."""
        return len(self._peers)

    @property
    def has_room(self) -> bool:
        """Whether another peer fits."""
        return len(self._peers) < self.capacity

    @property
    def live_count(self) -> int:
        """How many other members are not known to be dead or gone."""
        return len(self._alive) + len(self._suspects)

    @property
    def has_tombstones(self) -> bool:
        """Whether any dead or departed member is remembered."""
        return len(self._entries) > len(self._alive) + len(self._suspects)

    @property
    def group_size(self) -> int:
        """The n of log n: the live ones and this node."""
        return self.live_count + 1

    @property
    def is_short(self) -> bool:
        """Whether this node should look for further peers."""
        return len(self._peers) < min(self.capacity, self.live_count)

    def peer_at(self, address: Address) -> Entry | None:
        """The peer that lives at this address."""
        for peer in self._peers.values():
            known = peer.info.address
            if known is address or (known.host == address.host and known.port == address.port):
                return peer
        return None

    def live_at(self, address: Address) -> bool:
        """Whether a live member is known at this address."""
        return any(entry.is_live and entry.address == address for entry in self._entries.values())

    def insert(self, info: NodeInfo, now: int) -> tuple[Entry | None, NodeId | None]:
        """A new live member. Returns its entry (None if there is no room at all) and who had to go for it, if any."""
        evicted: NodeId | None = None
        if len(self._entries) >= self._limit:
            victim = self._dispensable()
            if victim is None:
                return None, None
            evicted = victim.node_id
            self.remove(evicted)
        entry = Entry(info, Status.ALIVE, info.incarnation, now, now, contact_ms=now)
        self._entries[info.node_id] = entry
        self._none_older_than = min(self._none_older_than, now)
        self._stand(entry)
        return entry, evicted

    def _dispensable(self) -> Entry | None:
        """Who makes room for a newcomer; see the module's text."""

        def rank(place: int, entry: Entry) -> tuple[int, int]:
            if entry.confirmed:
                return 2, entry.heard_ms
            return (1, -place) if entry.is_live else (0, entry.heard_ms)

        others = (each for each in enumerate(self._entries.values()) if each[1].node_id not in self._peers)
        found = min(others, key=lambda each: rank(*each), default=None)
        return None if found is None else found[1]

    def remove(self, node_id: NodeId) -> None:
        """Forget a member."""
        self._peers.pop(node_id, None)
        self._unstand(self._entries.pop(node_id))

    def _stand(self, entry: Entry) -> None:
        standing = self._standing[entry.status]
        entry.place = len(standing)
        standing.append(entry)

    def _unstand(self, entry: Entry) -> None:
        standing = self._standing[entry.status]
        last = standing.pop()
        if last is not entry:
            standing[entry.place] = last
            last.place = entry.place

    def set_status(self, entry: Entry, incarnation: Incarnation, status: Status, now: int) -> None:
        """Record how a member stands; the dead and the gone are nobody's peers."""
        if status is not entry.status:
            self._unstand(entry)
            entry.status = status
            self._stand(entry)
            entry.since_ms = now
        entry.incarnation = incarnation
        entry.heard_ms = now
        if status not in _LIVE:
            self.unlink(entry.node_id)

    def link(self, entry: Entry) -> bool:
        """Make a member a peer, if there is room and it lives."""
        if entry.node_id in self._peers:
            return True
        if not self.has_room or not entry.is_live:
            return False
        self._peers[entry.node_id] = entry
        entry.confirmed = True
        return True

    def unlink(self, node_id: NodeId) -> None:
        """A peer becomes one of the directory."""
        peer = self._peers.pop(node_id, None)
        if peer is not None:
            self._none_older_than = min(self._none_older_than, peer.heard_ms)

    def sample(self, count: int, status: Status, but: NodeId | None = None) -> list[Entry]:
        """Random members of one status."""
        standing = self._standing[status]
        if not standing:
            return []
        if len(standing) <= 2 * count:
            found = [entry for entry in standing if entry.node_id != but]
            return self._random.sample(found, min(count, len(found)))
        chosen: list[Entry] = []
        while len(chosen) < count:
            entry = standing[int(self._random.random() * len(standing))]
            if entry.node_id != but and entry not in chosen:
                chosen.append(entry)
        return chosen

    def vouched(self, count: int, since_ms: int, but: NodeId | None = None) -> list[Entry]:
        """Random living peers that spoke to this node since then."""
        found = [
            peer
            for peer in self._peers.values()
            if peer.contact_ms >= since_ms and peer.status is Status.ALIVE and peer.node_id != but
        ]
        return self._random.sample(found, min(count, len(found)))

    def longest_silent(self) -> Entry | None:
        """The living peer that has not spoken to this node for the longest time."""
        alive = (peer for peer in self._peers.values() if peer.status is Status.ALIVE)
        return min(alive, key=lambda peer: peer.contact_ms, default=None)

    def strangers(self) -> list[Entry]:
        """The living who are no peers, suspects included."""
        return [entry for entry in self._entries.values() if entry.is_live and entry.node_id not in self._peers]

    def sweep(self, now: int, directory_age_ms: int, tombstone_ms: int) -> list[NodeId]:
        """Forget whom nobody has mentioned for long; returns the forgotten."""
        if now - self._none_older_than < min(directory_age_ms, tombstone_ms):
            return []
        old: list[NodeId] = []
        oldest = now
        for node_id, entry in self._entries.items():
            if node_id in self._peers:
                continue
            if now - entry.heard_ms >= (directory_age_ms if entry.status in _LIVE else tombstone_ms):
                old.append(node_id)
            elif entry.heard_ms < oldest:
                oldest = entry.heard_ms
        self._none_older_than = oldest
        for node_id in old:
            self.remove(node_id)
        return old
