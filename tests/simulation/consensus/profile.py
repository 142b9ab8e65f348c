"""How bad the world of one history is, drawn from its seed.

Every history draws its own rates, many of them zero ("swarm testing"): a world in which everything fails at once never
gets far enough for the rare interplay of two faults, and a world with one fixed mixture shows one kind of history only.
Limits of the core are drawn small, so that windows fill, tails are trimmed and batches are cut in short histories.

    general      anything
    paused       leaders that pause, cut off, and are asked for reads when others have replaced them
    storm        leaders fall soon after their election, and hardly an entry gets through
    figure 8     five servers whose leaders reach two others at most, and are isolated before long: what the paper draws
                 as its figure 8, entry by entry
    membership   a few servers, changed one by one by leaders that are cut off soon after their election
    lease        clocks that run apart as far as the bound of the leases allows, messages that come late or twice, and
                 leaders that are cut off from one server after the other; the only kind that has leases, because
                 clocks that jump break their assumption
    slow disks   nothing is wrong but the disks of all followers of a leader: each write takes longer than an election
                 timeout, at the times of a LAN
    hung disks   nothing is wrong but the disks of a majority, which hang for longer than a leader may wait
    far terms    anything, and a forger sends messages of terms far ahead
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from random import Random

from consensus.core.features import GARLIC_FARM, KRAFT, KRAFT_STATIC, ZMQ_RAFT, Features
from consensus.core.model import ReplicaKey, ServerId, integer_id
from consensus.core.options import Options, lan
from consensus.sessions.table import SessionLimits
from tests.simulation.consensus.connections import Wiring

_ELECTION_MS = 150
_LEASE_BOUND_MS = 40
_LAN = lan()
_STATIC = 0.25
"""Share of the histories of KRaft whose voters stay."""
_WHOLE_BATCHES = 8
_WHOLE_BATCH_BYTES = 4_000
"""Room for the largest batch of a client."""
LOG_TIME_UNITS = 1_000
"""Log time is counted finer than simulated milliseconds, so that no two clock entries are equal."""


class Kind(Enum):
    """What kind of world."""

    GENERAL = "general"
    PAUSED = "paused"
    STORM = "storm"
    FIGURE_8 = "figure 8"
    MEMBERSHIP = "membership"
    LEASE = "lease"
    FAR_TERMS = "far terms"
    SLOW_DISKS = "slow disks"
    HUNG_DISKS = "hung disks"

    def __str__(self) -> str:
        """As in a command."""
        return self.value


_FIXED_SERVERS = (Kind.PAUSED, Kind.FIGURE_8, Kind.SLOW_DISKS, Kind.HUNG_DISKS)
"""Worlds in which no server comes or goes."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """What a history plays: what the protocol permits, and whether its messages are Kafka's on Kafka's connections."""

    features: Features
    on_kafkas_wire: bool = False


STRATEGIES = {
    "append": Strategy(GARLIC_FARM),
    "fetch": Strategy(KRAFT),
    "zmq": Strategy(ZMQ_RAFT),
    "kraft": Strategy(KRAFT, on_kafkas_wire=True),
}
"""What is played: leaders that send appends, followers that fetch, ØMQ Raft with its appends, and a KRaft quorum."""


@dataclass(frozen=True, slots=True)
class KafkaRates:
    """What only a history on Kafka's wire has."""

    static: bool
    """Whether the voters are told to each server and stay, without directories (kraft.version 0)."""
    old_versions: float
    """Share of servers that have older versions of some requests, such as a Vote without a pre-vote."""
    busy: float
    """Share of requests that a server refuses because it is busy, after which they come again."""
    lost_directories: float
    """How often a crash of one server is followed by the loss of its whole directory: a server of the same id and
    address, with another directory, starts in its place."""
    loser: int
    """The number of that server."""
    batch_records: int
    """A client's batch has so many records at most. Where answers have room for few entries it is 1: in production any
    batch fits one answer, so that none is split."""
    late_answers: float
    """Share of answers that are made a moment after the core gave its reply, when it may know more."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Rates are probabilities per message, effect or decision; times are milliseconds of simulated time."""

    kind: Kind
    servers: int
    options: Options
    loss: float
    duplication: float
    long_delay: float
    late_words: float
    """Share of the words of an election that come late: vote requests, votes, announcements, "I do not lead"."""
    max_delay_ms: int
    crash_between_effects: float
    disk_ms: int
    group_bytes: int
    """How much the executor writes with one sync."""
    slow_disk: float
    slow_disk_ms: int
    full_disk: float
    """Share of the nemesis's decisions that fill a disk for a while."""
    rot: float
    """How often a crash is followed by the loss of a bit of what had been synced."""
    nuisance_ms: int
    """Mean time between decisions of the nemesis: crash, restart, partition, pause, clock jump."""
    leader_trouble: float
    """How often a new leader is crashed or cut off from some servers soon after its election."""
    clock_rate: float
    """Clocks run up to so much faster or slower than the world's."""
    jumps: bool
    pre_vote: float
    """Share of servers that understand pre-vote."""
    transfer: float
    """Share of servers that understand TimeoutNow."""
    transfer_ms: int
    """Mean time between requests to hand leadership over; 0: never."""
    strangers: int
    """Servers with empty logs that belong to no configuration at first."""
    change_ms: int
    """Mean time between requests to change the configuration; 0: it never changes."""
    joint: bool
    """Whether the servers have agreed on joint configurations and learners."""
    snapshot_entries: int
    """A server takes a snapshot whenever it has applied so many entries since the last; 0: never."""
    clients: int
    keys: int
    think_ms: int
    """Mean time between two calls of a client."""
    reads: float
    """Share of calls that read."""
    patience_ms: int
    """After so long a client gives a call up, and its outcome is unknown."""
    retry_ms: int
    astray: float
    """How often a client asks a server at random instead of the one that it takes for the leader."""
    limits: SessionLimits
    wiring: Wiring
    """What travels together on one connection."""
    reply_timeout_ms: int
    """After so long without a reply a connection is taken for dead."""
    trouble_ms: int = 0
    """The trouble lasts at least so long."""
    steady_disk_ms: int = 0
    """How long a sync takes of the disks that the nemesis slows down, in the worlds of slow and hung disks."""
    package_peers: float = 0
    """Share of servers that judge what they are sent, and answer it, as those of the npm package (`zmq_judge`)."""
    repeat_ms: int = 0
    """After so long without an answer a ØMQ peer sends a request again."""
    forged_ms: int = 0
    """Mean time between forged messages of terms far ahead (`forger`); 0: never."""
    kafka: KafkaRates | None = None
    """Of a history on Kafka's wire."""


def draw_ids(seed: int, profile: Profile, features: Features) -> list[ServerId]:
    """The servers of a history: numbers, or in every second one ids with directories; for ØMQ Raft always strings.

    There the servers that join later have the ids of the first ones, in other directories: whatever takes one for the
    other counts a vote or an acknowledgement twice. On Kafka's wire they are observers with ids of their own, and in
    turn servers that take the place of one that has lost its directory (`is_successor`).
    """
    places = range(1, profile.servers + profile.strangers + 1)
    if profile.kafka is not None:
        return [_replica(place, profile) for place in places]
    if features is ZMQ_RAFT:
        return [f"peer {place}" for place in places]
    if seed % 2 == 0:
        return list(places)
    return [ReplicaKey(1 + (place - 1) % profile.servers, place.to_bytes(16, "big")) for place in places]


def _replica(place: int, profile: Profile) -> ReplicaKey:
    if profile.kafka is None or profile.kafka.static:
        return ReplicaKey(place)
    newcomer = place - profile.servers
    succeeds = newcomer > 0 and newcomer % 2 == (profile.kafka.lost_directories > 0)
    number = 1 + (profile.kafka.loser + newcomer // 2 - 1) % profile.servers if succeeds else place
    return ReplicaKey(number, place.to_bytes(16, "big"))


def is_successor(server_id: ServerId) -> bool:
    """Whether it takes the place of a server that has lost its directory: it has its id and its address."""
    return isinstance(server_id, ReplicaKey) and bool(server_id.directory) and server_id.id != place_of(server_id)


def place_of(server_id: ServerId) -> int:
    """Its number among all servers of the history, from 1."""
    match server_id:
        case ReplicaKey(number, b""):
            return number
        case ReplicaKey(directory=directory):
            return int.from_bytes(directory, "big")
        case str():
            return int(server_id.removeprefix("peer "))
        case _:
            return integer_id(server_id)


def draw_profile(random: Random, strategy: Strategy, kind: Kind | None = None) -> Profile:
    """The world of one history, of a kind that is drawn too unless it is given."""
    drawn = random.choices(list(Kind), (35, 8, 14, 10, 12, 13, 5, 2, 1))[0]
    chosen, general = kind or drawn, _draw_general(random)
    profile = replace(_MAKERS[chosen](general, random), kind=chosen)
    if strategy.on_kafkas_wire:
        return _with_kafka(profile, random)
    return _with_zmq(profile, random) if strategy.features is ZMQ_RAFT else profile


def features_of(strategy: Strategy, profile: Profile) -> Features:
    """What the protocol permits in this history."""
    return KRAFT_STATIC if profile.kafka is not None and profile.kafka.static else strategy.features


def _with_zmq(profile: Profile, random: Random) -> Profile:
    """Nothing is negotiated, so there is no lease, no pre-vote, no learner.

    Disks are not slow for long at the times of a LAN: an answer that tells less than was asked cannot be given, so a
    leader whose followers' disks are slow loses its majority, as it must.
    """
    kind = Kind.GENERAL if profile.kind is Kind.SLOW_DISKS else profile.kind
    return replace(
        profile,
        kind=kind,
        options=replace(profile.options, lease_clock_bound_ms=None),
        pre_vote=0,
        transfer=0,
        joint=True,
        package_peers=random.choice((0, 0.5, 1)),
        repeat_ms=random.choice((10, 50, 140)),
    )


def _with_kafka(profile: Profile, random: Random) -> Profile:
    """No lease, learner or TimeoutNow. Where voters are told they stay, so none may be lost for ever."""
    options = replace(profile.options, lease_clock_bound_ms=None)
    if profile.kind is not Kind.FIGURE_8 and profile.kind is not Kind.STORM:
        room = random.choice((1, _WHOLE_BATCHES, 100)), random.choice((200, _WHOLE_BATCH_BYTES, 100_000))
        options = replace(options, max_entries_per_append=room[0], max_bytes_per_append=room[1])
    has_room = options.max_entries_per_append >= _WHOLE_BATCHES and options.max_bytes_per_append >= _WHOLE_BATCH_BYTES
    static = profile.kind is not Kind.MEMBERSHIP and random.random() < _STATIC
    loses_directories = not static and profile.kind not in _FIXED_SERVERS
    rates = KafkaRates(
        static=static,
        old_versions=random.choice((0, 0, 0.3, 1)),
        busy=random.choice((0, 0, 0.02)),
        lost_directories=random.choice((0, 0.3, 1)) if loses_directories else 0,
        loser=random.randint(1, profile.servers),
        batch_records=random.choice((1, 5, 5)) if has_room else 1,
        late_answers=random.choice((0, 0.1, 0.5)),
    )
    strangers = random.choice((0, 1)) if static else max(profile.strangers, int(rates.lost_directories > 0))
    return replace(
        profile,
        options=options,
        transfer=0,
        joint=False,
        rot=0 if static else profile.rot,
        change_ms=0 if static else profile.change_ms,
        strangers=0 if profile.kind in _FIXED_SERVERS else strangers,
        kafka=rates,
    )


def _make_paused(general: Profile, _random: Random) -> Profile:
    """Clients ask any server, mostly for one key, so that a leader wakes up with reads that began after its end."""
    return replace(
        general,
        servers=3,
        strangers=0,
        loss=0,
        long_delay=0,
        max_delay_ms=5,
        crash_between_effects=0,
        disk_ms=1,
        slow_disk=0,
        full_disk=0,
        rot=0,
        nuisance_ms=2_000,
        leader_trouble=0.9,
        change_ms=0,
        keys=1,
        think_ms=10,
        reads=0.7,
        astray=0.5,
    )


def _make_storm(general: Profile, random: Random) -> Profile:
    """Leaders fall soon after their election, entries travel one by one."""
    options = replace(general.options, max_entries_per_append=1, in_flight=random.choice((1, 2)), heartbeat_ms=70)
    return replace(
        general,
        wiring=Wiring.MESSAGES,
        servers=random.choice((3, 5, 5)),
        options=options,
        loss=0,
        long_delay=random.choice((0, 0.1, 0.3)),
        max_delay_ms=random.choice((10, 20)),
        crash_between_effects=0,
        disk_ms=random.choice((1, 5)),
        slow_disk=0,
        nuisance_ms=1_000,
        leader_trouble=0.95,
        # Few calls, so that a history of so many steps sees many elections.
        clients=3,
        think_ms=60,
        reads=0.1,
        astray=0.3,
    )


def _make_figure_8(general: Profile, _random: Random) -> Profile:
    """Every leader is in trouble at once; the entries of older terms and the no-op of its own travel one by one.

    The way is long and the disk is fast, so that a leader is often isolated between the answer that counts an entry of
    an older term for the majority and the arrival of its own first entry.
    """
    options = replace(
        general.options,
        max_entries_per_append=1,
        in_flight=1,
        heartbeat_ms=70,
        retry_ms=100,
        election_timeout_max_ms=300,
    )
    return replace(
        general,
        wiring=Wiring.MESSAGES,
        servers=5,
        strangers=0,
        options=options,
        loss=0,
        duplication=0,
        long_delay=0,
        max_delay_ms=20,
        crash_between_effects=0,
        disk_ms=0,
        slow_disk=0,
        full_disk=0,
        rot=0,
        nuisance_ms=2_000,
        leader_trouble=1,
        jumps=False,
        pre_vote=0,
        transfer_ms=0,
        change_ms=0,
        snapshot_entries=0,
        clients=3,
        think_ms=200,
        reads=0.1,
    )


def _make_membership(general: Profile, random: Random) -> Profile:
    """Leaders that are cut off begin changes that others know nothing of."""
    return replace(
        general,
        servers=random.choice((2, 2, 3, 4)),
        strangers=2,
        loss=0,
        long_delay=0,
        max_delay_ms=random.choice((5, 20)),
        crash_between_effects=0,
        disk_ms=1,
        slow_disk=0,
        full_disk=0,
        nuisance_ms=1_000,
        leader_trouble=0.8,
        change_ms=random.choice((15, 40)),
        joint=random.random() < 0.5,
        transfer_ms=0,
        snapshot_entries=random.choice((0, 3)),
    )


def _make_lease(general: Profile, random: Random) -> Profile:
    """A lease lasts 110 ms by a clock that runs a tenth too slow, others elect 150 ms later by one as much too fast."""
    options = replace(
        general.options,
        election_timeout_min_ms=_ELECTION_MS,
        election_timeout_max_ms=random.choice((152, 180)),
        heartbeat_ms=30,
        retry_ms=30,
        lease_clock_bound_ms=_LEASE_BOUND_MS,
        max_entries_per_append=100,
        max_bytes_per_append=100_000,
    )
    return replace(
        general,
        wiring=Wiring.MESSAGES,
        servers=random.choice((3, 3, 5)),
        options=options,
        loss=random.choice((0, 0.01)),
        duplication=random.choice((0, 0.1)),
        long_delay=random.choice((0, 0.1, 0.3)),
        late_words=random.choice((0, 0.5, 0.5)),
        transfer_ms=random.choice((0, 40, 40)),
        max_delay_ms=random.choice((1, 1, 2)),
        crash_between_effects=0,
        disk_ms=0,
        slow_disk=0,
        full_disk=random.choice((0, 0.6)),
        nuisance_ms=random.choice((150, 2_000)),
        leader_trouble=0.95,
        clock_rate=0.1,
        jumps=False,
        pre_vote=1,
        transfer=1,
        clients=4,
        keys=1,
        think_ms=4,
        reads=0.7,
        retry_ms=40,
        astray=0.5,
    )


def _make_slow_disks(general: Profile, random: Random) -> Profile:
    """As our own servers are connected: heartbeats wait for no disk."""
    return replace(
        general,
        servers=random.choice((3, 3, 5)),
        strangers=0,
        options=replace(
            general.options,
            election_timeout_min_ms=_LAN.election_timeout_min_ms,
            election_timeout_max_ms=_LAN.election_timeout_max_ms,
            heartbeat_ms=_LAN.heartbeat_ms,
            retry_ms=_LAN.retry_ms,
            commit_notice_ms=_LAN.commit_notice_ms,
        ),
        wiring=Wiring.HEARTBEATS_APART,
        reply_timeout_ms=2_000,
        loss=0,
        duplication=0,
        long_delay=0,
        max_delay_ms=5,
        crash_between_effects=0,
        disk_ms=1,
        slow_disk=0,
        full_disk=0,
        rot=0,
        nuisance_ms=10**9,
        leader_trouble=1,
        clock_rate=0,
        jumps=False,
        transfer_ms=0,
        change_ms=0,
        # Else a snapshot now and then adds its own waits to those of the entries that proposals wait for.
        snapshot_entries=0,
        clients=3,
        think_ms=300,
        retry_ms=5_000,
        patience_ms=5_000,
        trouble_ms=20_000,
        steady_disk_ms=1_600,
    )


def _make_hung_disks(general: Profile, random: Random) -> Profile:
    """No leader can be of use until some disks go on; the leader must notice."""
    slow = _make_slow_disks(general, random)
    return replace(slow, steady_disk_ms=20_000, trouble_ms=25_000)


def _make_far_terms(general: Profile, random: Random) -> Profile:
    return replace(general, forged_ms=random.choice((20, 100, 400)))


def _draw_general(random: Random) -> Profile:
    change_ms = random.choice((0, 30, 100, 300))
    rot = random.choice((0, 0, 0.05, 0.3))
    return Profile(
        kind=Kind.GENERAL,
        servers=random.choice((1, 2, 3, 3, 3, 4, 5, 5, 5, 5)),
        options=_draw_tuning(random),
        loss=random.choice((0, 0, 0.02, 0.1, 0.3)),
        duplication=random.choice((0, 0, 0.02, 0.2)),
        long_delay=random.choice((0, 0, 0.02, 0.1)),
        late_words=0,
        max_delay_ms=random.choice((1, 5, 20, 60)),
        crash_between_effects=random.choice((0, 0.001, 0.005, 0.02)),
        disk_ms=random.choice((1, 5, 20)),
        group_bytes=random.choice((1, 200, 1_000_000)),
        slow_disk=random.choice((0, 0, 0.05)),
        slow_disk_ms=random.choice((100, 1_000)),
        full_disk=random.choice((0, 0, 0.2)),
        rot=rot,
        nuisance_ms=random.choice((30, 100, 300, 2_000)),
        leader_trouble=random.choice((0, 0.3, 0.7, 0.9)),
        clock_rate=random.choice((0, 0.02, 0.2)),
        jumps=random.random() < 0.7,
        pre_vote=random.choice((0, 0.5, 1, 1)),
        transfer=random.choice((0, 0.5, 1, 1)),
        transfer_ms=random.choice((0, 0, 100, 400)),
        strangers=random.choice((1, 2, 3)) if change_ms else int(rot > 0),
        change_ms=change_ms,
        joint=random.random() < 0.7,
        snapshot_entries=random.choice((0, 2, 5, 20)),
        clients=random.choice((3, 5, 8)),
        keys=random.choice((1, 2, 4)),
        think_ms=random.choice((1, 10, 50)),
        reads=random.choice((0.3, 0.5)),
        patience_ms=random.choice((300, 2_000)),
        retry_ms=random.choice((60, 200)),
        astray=random.choice((0.05, 0.3)),
        limits=SessionLimits(
            sessions_max=random.choice((3, 64, 64)),
            window=random.choice((1, 4)),
            expiry_ms=random.choice((400, 1_000_000, 1_000_000)) * LOG_TIME_UNITS,
        ),
        wiring=random.choice((Wiring.MESSAGES, Wiring.MESSAGES, Wiring.ONE, Wiring.HEARTBEATS_APART)),
        reply_timeout_ms=2 * _ELECTION_MS,
    )


def _draw_tuning(random: Random) -> Options:
    return Options(
        election_timeout_min_ms=_ELECTION_MS,
        election_timeout_max_ms=300,
        heartbeat_ms=random.choice((30, 70)),
        retry_ms=random.choice((30, 100)),
        commit_notice_ms=random.choice((0, 0, 5, 20)),
        max_entries_per_append=random.choice((1, 2, 10, 100)),
        max_bytes_per_append=random.choice((1, 200, 100_000)),
        in_flight=random.choice((1, 2, 5)),
        tail_entries=random.choice((1, 4, 1_000)),
        catch_up_rounds=random.choice((1, 3, 10)),
        catch_up_stall_ms=random.choice((500, 3_000)),
        tail_bytes=random.choice((100, 1_000_000)),
        max_pending_proposals=random.choice((2, 8, 100)),
        max_pending_bytes=random.choice((200, 100_000)),
        snapshot_chunk_bytes=random.choice((150, 500, 100_000)),
        max_pending_reads=random.choice((2, 100)),
    )


_MAKERS: dict[Kind, Callable[[Profile, Random], Profile]] = {
    Kind.GENERAL: lambda general, _: general,
    Kind.PAUSED: _make_paused,
    Kind.STORM: _make_storm,
    Kind.FIGURE_8: _make_figure_8,
    Kind.MEMBERSHIP: _make_membership,
    Kind.LEASE: _make_lease,
    Kind.FAR_TERMS: _make_far_terms,
    Kind.SLOW_DISKS: _make_slow_disks,
    Kind.HUNG_DISKS: _make_hung_disks,
}
