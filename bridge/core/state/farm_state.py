"""The farm's state at one log index: immutable, equal on all servers, comparable by `==`.

The state does not depend on a local clock, a random source or the network.

*`reported_ms`* is the log time of a report: the report's `date` plus `lag_ms`. The log time of the report's entry would
be too coarse, since log time advances only once in a reporting period. A report made just before a clock entry would be
stale one period too early.

*`lag_ms`* is the lag of the sender's clock compared with log time. It starts at zero. Each report changes it as little
as possible, so that `reported_ms` is within one period after the log time of the entry. Without this correction, all
reports of a server with a slow clock would be stale too early.
"""

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any

from msgspec import Struct, field, structs

from bridge.core.log.feature_level import FIRST_LEVEL
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import LeafStatus, Publication, Report
from bridge.core.log.voter_clocks import VoterClocks
from bridge.core.log.weights import Weights
from bridge.core.membership.admission import Admitted
from bridge.core.membership.authors import AuthorNumbers
from bridge.core.membership.client_keys import Client
from bridge.core.membership.eviction import Rekeying
from bridge.core.state.kafka_clients import KafkaClients
from consensus.sessions import SessionLimits

SERVERS_MAX = 64
MASTERS_MAX = 8
MASTERS_OF_SERVER_MAX = MASTERS_MAX // 2
"""The share of one server from `BOUNDS_LEVEL` on. A master within the share loses its place only to the first master of
another server. A server may have more masters while there is room."""
LEAVES_PER_SERVER_MAX = 64
PERIOD_MIN_MS, PERIOD_MAX_MS = 500, 600_000
AUTHORS_MARK = "~"
"""Prefix of the client names of the farm's authors in the table of sessions.

The farm ignores a request id if the client chose a name with this prefix.
"""
SESSION_LIMITS = SessionLimits(
    sessions_max=1024, window=16, result_bytes_max=16, expiry_ms=3_600_000, reserved_prefix=AUTHORS_MARK
)
AUTHOR_SESSIONS_MAX = 16
"""Sessions of one author that unknown authors cannot displace. A run of a node has three or four; the rest is for
restarts within the lifetime of a session."""
UNFENCED_AHEAD_MS = 30_000
"""A reported timestamp counts only up to this lead over log time.

A publication without a quorum may lead log time, but a timestamp of a wrong clock must not block later publications.
"""
LOG_TIME_LIMIT_MS = (2**32 - 1) * 1000
"""Upper limit of log time: the seconds of a Meta LeaseSet2 have 32 bits. A clock entry above the limit is ignored."""


class FarmTuning(Struct, frozen=True):
    """The reporting period, and constants of the farm's decisions, which must be equal on all servers.

    `period_ms` is the reporting period. Clock entries contain the leader's period, which then applies to all servers. A
    report is stale after 1.5 periods.
    """

    period_ms: int = 30_000
    clock_tolerance_ms: int = 30_000
    forget_after_ms: int = 3_600_000
    margin_points: int = 100
    margin_clocks: int = 3
    cost_margin: int = 10

    @property
    def stale_after_ms(self) -> int:
        """Maximum age of a report that counts."""
        return self.period_ms * 3 // 2


class ServerState(Struct, frozen=True):
    """The latest report of one server.

    `reported_ms` and `lag_ms`: see the module. `clock_off`: the report's date differs too much from log time.
    """

    report: Report
    reported_ms: int = field(name="heard_ms")
    lag_ms: int = 0
    clock_off: bool = False


class Choice(Struct, frozen=True):
    """The publisher, and the number of consecutive clock entries with another server ahead of it by the margin."""

    server_id: int | None = None
    beaten: int = 0


class Leaf(Struct, frozen=True):
    """A destination in the Meta LeaseSet2, with its cost (lower is preferred)."""

    destination: str
    cost: int


class MasterState(Struct, frozen=True):
    """One master destination: its publisher, the leaves that it lists, the last accepted publication.

    `since_ms` is the log time of its first report. `forced`: an operator requested another publication.
    """

    since_ms: int = 0
    choice: Choice = Choice()
    leaves: tuple[Leaf, ...] = ()
    publication: Publication | None = None
    forced: bool = False


class StructureHandOver(Struct, frozen=True):
    """The server whose router accepted a structure, and the timestamp of the structure."""

    server_id: int
    published_s: int


class FarmState(Struct, frozen=True):
    """The farm after the entry `applied_index`."""

    log_time_ms: int
    applied_index: int = 0
    applied_term: int = 0
    servers: Mapping[int, ServerState] = field(default_factory=dict)
    masters: Mapping[str, MasterState] = field(default_factory=dict)
    admitted: Mapping[int, Admitted] = field(default_factory=dict)
    """The identity of each assigned Raft id."""
    weights: Weights = field(default_factory=Weights)
    removed: tuple[int, ...] = ()
    """Servers that an operator removed from the farm: their reports do not count, and the leader removes them."""
    rekeying: Rekeying = field(default_factory=Rekeying)
    level: int = FIRST_LEVEL
    clients: Mapping[bytes, Client] = field(default_factory=dict)
    """Client keys by NodeId, removed ones included."""
    numbers: Mapping[bytes, AuthorNumbers] = field(default_factory=dict)
    """The numbers of each author's entries that had effect."""
    clocks: VoterClocks = field(default_factory=VoterClocks)
    """The voters' clocks, which bound log time."""
    kafka: KafkaClients = field(default_factory=KafkaClients)
    """The producers and consumer groups of Kafka's clients."""
    admitted_by: Mapping[int, bytes] = field(default_factory=dict)
    """The leader that signed the admission of each Raft id, from `BOUNDS_LEVEL` on."""

    def after(self, index: int, term: int) -> "FarmState":
        """Return this state with the position of one more entry; `replace` would be slower."""
        return FarmState(self.log_time_ms, index, term, *_behind_the_position(self))

    def stale(self, server: ServerState, tuning: FarmTuning) -> bool:
        """Return True if the server has not reported for 1.5 reporting periods of log time."""
        return self.log_time_ms - server.reported_ms > tuning.stale_after_ms

    def serving(self, master: str) -> list[ServerState]:
        """Return the servers that report for `master`, in order of id; a report without masters is for all of them."""
        return [
            server
            for _, server in sorted(self.servers.items())
            if not server.report.masters or server.report.part_in(master) is not None
        ]

    def leaves_of(self, master: str) -> list[tuple[ServerState, LeafStatus]]:
        """Return every known leaf that belongs to `master` and is not excluded, with its server, in order of server."""
        master_hash = hash_of(master)
        return [
            (server, leaf)
            for server in self.serving(master)
            for leaf in server.report.destinations
            if leaf.master_hash in {None, master_hash} and hash_of(leaf.destination) not in self.weights.excluded
        ]

    def last_hand_over(self, master: str) -> StructureHandOver | None:
        """Return the newest hand-over of `master` in any report, without impossible timestamps; None without one."""
        latest_s = (self.log_time_ms + UNFENCED_AHEAD_MS) // 1000
        parts = [(by, server.report.part_in(master)) for by, server in sorted(self.servers.items())]
        found = [StructureHandOver(by, part.last_published_time_ms // 1000) for by, part in parts if part is not None]
        possible = (each for each in found if 0 < each.published_s <= latest_s)
        return max(possible, key=lambda each: each.published_s, default=None)

    def unfenced_second(self, master: str) -> int:
        """Return the latest timestamp of a publication of `master` in any report, committed or not; 0 without one.

        The timestamp of a publication without a quorum is not in the log. The server's next report contains it, and
        later publications must have a later timestamp, or clients keep the older structure.
        """
        last = self.last_hand_over(master)
        return 0 if last is None else last.published_s


def places_in(value: Struct) -> Iterator[tuple[str, object]]:
    """Yield the place and value of each field of a Struct, and of the content of its nested Structs and tables.

    The place of a field is, for example, `FarmState.removed`. The content of a mapping or tuple has this place with
    `.key`, `.value` or `.item` at the end.
    """
    for name, each in structs.asdict(value).items():
        yield from _places_in_field(f"{type(value).__name__}.{name}", each)


def _places_in_field(place: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Struct):
        yield from places_in(value)
        return
    yield place, value
    if isinstance(value, Mapping):
        for key, each in value.items():
            yield from _places_in_field(f"{place}.key", key)
            yield from _places_in_field(f"{place}.value", each)
    elif isinstance(value, tuple):
        for each in value:
            yield from _places_in_field(f"{place}.item", each)


_behind_the_position: Callable[[FarmState], tuple[Any, ...]] = attrgetter(*FarmState.__struct_fields__[3:])
