"""Counters of Garlic Farm connections, and incidents: each is counted, and few are reported as text.

Every refusal is counted under its fault. The text of an incident goes to a callback, at most once in a period for each
pair of fault and peer. Of incoming connections only a few incidents per fault and period are reported. A flood of
connections, from any number of addresses, must not become a flood of log lines. The next reported text contains the
number of omitted incidents.
"""

from collections import Counter
from collections.abc import Callable

import trio
from msgspec import Struct

from consensus.core.drops import CountedReason
from consensus.protocols.garlic_farm.wire.errors import Fault
from consensus.server.histogram import Histogram

_REPEAT_AFTER_S = 10.0
_REMEMBERED_MAX = 1024
_REPORTED_PER_FAULT_MAX = 5


class ConnectionEvent(CountedReason):
    """Ordinary events of a connection, with counters."""

    CHALLENGES = (
        "challenges",
        (
            "Handshakes of the Raft port that this node answered with a challenge, as it does for each new client. It"
            " grows with reconnections"
        ),
    )
    CLIENT_REQUESTS_BEYOND_QUOTA = (
        "client-requests-beyond-quota",
        (
            "Requests of clients of the Raft port beyond their share, with the answer `busy`. If it grows, a"
            " program submits faster than the farm commits"
        ),
    )
    CONNECTIONS_ACCEPTED = (
        "connections-accepted",
        (
            "Connections that the Raft port has accepted, before the handshake. A steep rise without"
            " `connections_established` is a scanner or a flood"
        ),
    )
    CONNECTIONS_BROKEN = (
        "connections-broken",
        (
            "Connections of the Raft port that ended in the middle of a message. It grows when peers die or the"
            " network fails"
        ),
    )
    CONNECTIONS_ESTABLISHED = (
        "connections-established",
        (
            "Connections of the Raft port whose handshake has succeeded. It grows as servers and clients reconnect; a"
            " steady growth means that they lose their connections"
        ),
    )
    CONNECTIONS_HUNG_UP = (
        "connections-hung-up",
        (
            "Connections of clients that the Raft port closed without an answer, because it is not known whether"
            " their entry is committed. It grows when leaders change; the client repeats under its request id"
        ),
    )
    CONNECTIONS_IDLE = (
        "connections-idle",
        ("Connections that the Raft port closed after a long idle time. It grows with idle clients"),
    )
    FAREWELLS_ANSWERED = (
        "farewells-answered",
        "Notices of a removal that the removed server answered. It grows by one for each removal",
    )
    FAREWELLS_UNANSWERED = (
        "farewells-unanswered",
        "Notices of a removal that the removed server did not answer in time, for example because it is dead",
    )
    HEARTBEAT_CONNECTIONS = (
        "heartbeat-connections",
        (
            "Second connections to a server, for heartbeats, opened because a reply on the first one took too long. It"
            " grows with slow disks, and while a snapshot or much data travels"
        ),
    )
    LINKS_ESTABLISHED = (
        "links-established",
        (
            "Connections that this node has opened to other servers. A steady growth means that they break: see"
            " `connection-failed` in `garlicfarm events`"
        ),
    )
    LINKS_FAILED = (
        "links-failed",
        (
            "Connections to other servers that an unexpected error ended: a fault of the program, which the node's log"
            " shows. Report it"
        ),
    )
    LOG_PACKS_SENT = (
        "log-packs-sent",
        "Packs of log entries that this node sent to servers that joined. It grows while a server joins",
    )
    PEERS_WITHOUT_ADDRESS = (
        "peers-without-address",
        ("Attempts to reach a server before gossip brings its address. If it grows, check the gossip of that server"),
    )
    REQUESTS_DROPPED = (
        "requests-dropped",
        (
            "Requests to another server that waited too long, exceeded the limit, or lost the connection before the"
            " reply. Raft repeats them. It grows while that server is down or slow, or the network is slow"
        ),
    )
    REQUESTS_WITHOUT_LINK = (
        "requests-without-link",
        (
            "Requests to a server that lacks a connection: it is outside the group, or the limit is reached."
            " Raft repeats them; if it grows, see `garlicfarm servers`"
        ),
    )
    SERVERS_ADDED = (
        "servers-added",
        "Servers that this node, as the leader, added to the group. It grows by one for each addition",
    )
    SERVERS_REMOVED = (
        "servers-removed",
        "Servers that this node, as the leader, removed from the group. It grows by one for each removal",
    )
    SNAPSHOT_CHUNKS_SENT = (
        "snapshot-chunks-sent",
        "Chunks of snapshots that this node sent to servers that joined. It grows while a server joins",
    )


class _Period(Struct):
    """Incidents of one fault: reported since `began_s`, and omitted since the last report."""

    began_s: float
    reported: int = 0
    left_out: int = 0


class Incident(Struct, frozen=True):
    """An event that an operator may want to know: its kind, the peer, and a text."""

    fault: Fault
    peer: str
    text: str
    outgoing: bool = False
    """True if this node opened the connection."""


class Metrics:
    """Counts of faults and events, and incidents to a callback."""

    def __init__(
        self,
        on_incident: Callable[[Incident], None] = lambda _: None,
        on_connected: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Make counters; `on_connected` gets each peer's address after a completed handshake, in either direction."""
        self.counts: Counter[Fault | ConnectionEvent] = Counter()
        self.answers = Histogram()
        """Times from a request to another server until its reply."""
        self.connected = on_connected
        self._on_incident = on_incident
        self._reported_at: dict[tuple[Fault, str], float] = {}
        self._periods: dict[Fault, _Period] = {}

    def count(self, event: ConnectionEvent) -> None:
        """Count an ordinary event."""
        self.counts[event] += 1

    def add(self, event: ConnectionEvent, number: int) -> None:
        """Count `number` ordinary events."""
        self.counts[event] += number

    def incident(self, fault: Fault, peer: str, text: str, *, outgoing: bool = False) -> None:
        """Count a fault; report it unless this fault of this peer, or too many of its kind, were reported recently."""
        self.counts[fault] += 1
        now = trio.current_time()
        reported_at = self._reported_at.get((fault, peer))
        period = self._period(fault, now)
        is_repeated = reported_at is not None and now - reported_at < _REPEAT_AFTER_S
        if is_repeated or (not outgoing and period.reported >= _REPORTED_PER_FAULT_MAX):
            period.left_out += not outgoing
            return
        if not outgoing:
            period.reported += 1
            if period.left_out:
                text = f"{text} ({period.left_out} more incidents of this kind were left out)"
                period.left_out = 0
        if len(self._reported_at) >= _REMEMBERED_MAX:
            self._reported_at.clear()
        self._reported_at[fault, peer] = now
        self._on_incident(Incident(fault, peer, text, outgoing))

    def _period(self, fault: Fault, now: float) -> _Period:
        period = self._periods.setdefault(fault, _Period(now))
        if now - period.began_s >= _REPEAT_AFTER_S:
            period.began_s, period.reported = now, 0
        return period
