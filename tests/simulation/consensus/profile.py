"""The fault rates and parameters of one history, drawn from its seed.

Every history draws its own rates, and many of them are zero ("swarm testing"). If everything fails together, a world
never gets far enough for a rare combination of two faults. A world with one fixed mixture shows one kind of history
only.

    general      all faults
    paused       leaders pause while isolated; they receive reads after other servers have replaced them
    storm        leaders fail soon after their election, and almost no entry is replicated
    figure 8     the scenario of figure 8 in the paper, one entry at a time, with five servers. Each leader reaches two
                 others at most and is soon isolated
    membership   a few servers, changed one by one by leaders that are cut off soon after their election
    lease        clocks drift apart up to the bound of the leases, messages arrive late or twice, and leaders lose one
                 server after another. Only this kind and *ended* have leases
    slow disks   only the disks of a leader's followers are slow. Timeouts are those for a LAN, and each write takes
                 longer than the minimum election timeout
    hung disks   only the disks of a majority fail: they hang for longer than a leader may wait
    far terms    all faults, and a forger sends messages with far higher terms
    ended        servers get true and false evidence that a process has ended, in worlds with and without leases; only
                 on request
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from random import Random
from typing import Any

from msgspec.structs import replace

from consensus.core.features import GARLIC_FARM, KRAFT, KRAFT_STATIC, ZMQ_RAFT, Features
from consensus.core.model import ReplicaKey, ServerId, integer_id
from consensus.core.options import Options, lan
from consensus.sessions.table import SessionLimits
from tests.simulation.consensus.connections import Wiring

_ELECTION_MS = 150
_LEASE_BOUND_MS = 40
_LAN = lan()
_STATIC = 0.25
"""Share of the KRaft histories with static voters."""
_WHOLE_BATCHES = 8
_WHOLE_BATCH_BYTES = 4_000
"""Capacity for the largest batch of a client."""
LOG_TIME_UNITS = 1_000
"""Units of log time per simulated millisecond, so that no two clock entries are equal."""


class Kind(Enum):
    """The kind of world."""

    GENERAL = "general"
    PAUSED = "paused"
    STORM = "storm"
    FIGURE_8 = "figure 8"
    MEMBERSHIP = "membership"
    LEASE = "lease"
    FAR_TERMS = "far terms"
    SLOW_DISKS = "slow disks"
    HUNG_DISKS = "hung disks"
    ENDED = "ended"

    def __str__(self) -> str:
        """Return the name as written in a command."""
        return self.value


_WITHOUT_RANDOM_FAULTS: dict[str, Any] = {"loss": 0, "long_delay": 0, "crash_between_effects": 0, "slow_disk": 0}
"""Rates of worlds whose faults come only from the nemesis."""
_FIXED_SERVERS = (Kind.PAUSED, Kind.FIGURE_8, Kind.SLOW_DISKS, Kind.HUNG_DISKS)
"""Worlds without membership changes."""


@dataclass(frozen=True, slots=True)
class Strategy:
    """The strategy of a history: the features of the protocol, and whether its messages use Kafka's wire."""

    features: Features
    on_kafkas_wire: bool = False


STRATEGIES = {
    "append": Strategy(GARLIC_FARM),
    "fetch": Strategy(KRAFT),
    "zmq": Strategy(ZMQ_RAFT),
    "kraft": Strategy(KRAFT, on_kafkas_wire=True),
}
"""Strategies by name: leaders that send appends, followers that fetch, ØMQ Raft with appends, and a KRaft quorum."""


@dataclass(frozen=True, slots=True)
class KafkaRates:
    """Rates of a history on Kafka's wire."""

    static: bool
    """True if voters are configured in every server and never change, without directories (kraft.version 0)."""
    old_versions: float
    """Share of servers with older versions of some requests, such as a Vote without a pre-vote."""
    busy: float
    """Share of requests that a server refuses because it is busy; the sender retries them."""
    lost_directories: float
    """Share of crashes of one server that also lose its whole directory.

    A server with the same id and address, but another directory, replaces it.
    """
    loser: int
    """Number of that server."""
    batch_records: int
    """Maximum number of records in a client's batch.

    It is 1 if replies have room for few entries: in production every batch fits one reply, so that none is split.
    """
    late_answers: float
    """Share of replies sent a moment after the core returned them; the core may have changed since."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Parameters of one world.

    Rates are probabilities per message, effect or decision; times are milliseconds of simulated time.
    """

    kind: Kind
    servers: int
    options: Options
    loss: float
    duplication: float
    long_delay: float
    late_messages: float
    """Share of an election's messages that arrive late: vote requests, votes, announcements, replies "I do not
    lead"."""
    max_delay_ms: int
    crash_between_effects: float
    disk_ms: int
    group_bytes: int
    """Maximum size of one synced write of the executor."""
    slow_disk: float
    slow_disk_ms: int
    full_disk: float
    """Share of the nemesis's decisions that fill a disk for a while."""
    rot: float
    """Share of crashes that also flip one bit of the synced data."""
    nuisance_ms: int
    """Mean time between decisions of the nemesis: crash, restart, partition, pause, clock jump."""
    leader_trouble: float
    """Share of new leaders that crash or lose contact with some servers soon after their election."""
    clock_rate: float
    """Maximum drift of a clock against simulated time, faster or slower."""
    jumps: bool
    pre_vote: float
    """Share of servers that support pre-vote."""
    transfer: float
    """Share of servers that support TimeoutNow."""
    transfer_ms: int
    """Mean time between requests to transfer leadership; 0: never."""
    joiners: int
    """Number of servers with empty logs that initially belong to no configuration."""
    change_ms: int
    """Mean time between requests to change the configuration; 0: it never changes."""
    joint: bool
    """True if the servers have agreed on joint configurations and learners."""
    snapshot_entries: int
    """Number of applied entries between two snapshots of a server; 0: no snapshots."""
    clients: int
    keys: int
    think_ms: int
    """Mean time between two calls of a client."""
    reads: float
    """Share of calls that read."""
    timeout_ms: int
    """Timeout of a client's call; the outcome of a canceled call is unknown."""
    retry_ms: int
    astray: float
    """Share of requests that a client sends to a random server instead of the presumed leader."""
    limits: SessionLimits
    wiring: Wiring
    """The kinds of messages that share one connection."""
    reply_timeout_ms: int
    """Timeout of a connection without a reply."""
    trouble_ms: int = 0
    """Minimum duration of the trouble phase."""
    steady_disk_ms: int = 0
    """Duration of a sync on the slowed disks, in the worlds of slow and hung disks."""
    package_peers: float = 0
    """Share of servers that validate and answer messages like the servers of the npm package (`zmq_judge`)."""
    repeat_ms: int = 0
    """Interval between repetitions of a ØMQ peer's unanswered request."""
    forged_ms: int = 0
    """Mean time between forged messages with far higher terms (`forger`); 0: never."""
    ends_ms: int = 0
    """Time between two pieces of evidence that a process has ended; 0: never."""
    kafka: KafkaRates | None = None
    """Rates of a history on Kafka's wire; None on other wires."""


def draw_ids(seed: int, profile: Profile, features: Features) -> list[ServerId]:
    """Return the ids of the servers of a history.

    They are numbers, or ids with directories in every second history; ØMQ Raft always uses strings. With directories,
    the servers that join later have the ids of the first ones, in other directories. Code that confuses them counts a
    vote or an acknowledgment twice. On Kafka's wire, servers that join later alternate between observers with their
    own ids and successors of a server that has lost its directory (`is_successor`).
    """
    places = range(1, profile.servers + profile.joiners + 1)
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
    """Return True if the server replaces another server with a lost directory: it has the same id and address."""
    return isinstance(server_id, ReplicaKey) and bool(server_id.directory) and server_id.id != place_of(server_id)


def place_of(server_id: ServerId) -> int:
    """Return the number of the server among all servers of the history, from 1."""
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
    """Draw the world of one history, and its kind unless `kind` is given."""
    drawn = random.choices(list(Kind), (35, 8, 14, 10, 12, 13, 5, 2, 1, 0))[0]
    chosen, general = kind or drawn, _draw_general(random)
    profile = dataclasses.replace(_MAKERS[chosen](general, random), kind=chosen)
    if strategy.on_kafkas_wire:
        return _with_kafka(profile, random)
    return _with_zmq(profile, random) if strategy.features is ZMQ_RAFT else profile


def features_of(strategy: Strategy, profile: Profile) -> Features:
    return KRAFT_STATIC if profile.kafka is not None and profile.kafka.static else strategy.features


def _with_zmq(profile: Profile, random: Random) -> Profile:
    """Adapt a world to ØMQ Raft, which negotiates nothing: leases, pre-votes and learners are off.

    A world of slow disks becomes a general one. A ØMQ reply cannot acknowledge a part of the appended entries, so a
    leader whose followers' disks are slow loses its majority.
    """
    kind = Kind.GENERAL if profile.kind is Kind.SLOW_DISKS else profile.kind
    return dataclasses.replace(
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
    """Adapt a world to Kafka's wire: no lease, learner or TimeoutNow.

    Static voters never change, so none of them may be lost permanently.
    """
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
    joiners = random.choice((0, 1)) if static else max(profile.joiners, int(rates.lost_directories > 0))
    return dataclasses.replace(
        profile,
        options=options,
        transfer=0,
        joint=False,
        rot=0 if static else profile.rot,
        change_ms=0 if static else profile.change_ms,
        joiners=0 if profile.kind in _FIXED_SERVERS else joiners,
        kafka=rates,
    )


def _make_paused(general: Profile, _random: Random) -> Profile:
    """Build a world with clients that send requests to any server, mostly for one key.

    A leader then resumes with reads that began after its term ended.
    """
    return dataclasses.replace(
        general,
        **_WITHOUT_RANDOM_FAULTS,
        servers=3,
        joiners=0,
        max_delay_ms=5,
        disk_ms=1,
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
    """Build a world with leaders that fail soon after their election, and entries sent one by one."""
    options = replace(general.options, max_entries_per_append=1, in_flight=random.choice((1, 2)), heartbeat_ms=70)
    return dataclasses.replace(
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
        # Few calls, so that a history with so many steps has many elections.
        clients=3,
        think_ms=60,
        reads=0.1,
        astray=0.3,
    )


def _make_figure_8(general: Profile, _random: Random) -> Profile:
    """Build a world where leaders fail soon, and send entries of older terms and their no-op one by one.

    The network is slow and the disk is fast. So a leader is often isolated after a majority holds an entry of an older
    term, and before the leader's first entry arrives.
    """
    options = replace(
        general.options,
        max_entries_per_append=1,
        in_flight=1,
        heartbeat_ms=70,
        retry_ms=100,
        election_timeout_max_ms=300,
    )
    return dataclasses.replace(
        general,
        **_WITHOUT_RANDOM_FAULTS,
        wiring=Wiring.MESSAGES,
        servers=5,
        joiners=0,
        options=options,
        duplication=0,
        max_delay_ms=20,
        disk_ms=0,
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
    """Build a world where isolated leaders begin changes that do not reach other servers."""
    return dataclasses.replace(
        general,
        **_WITHOUT_RANDOM_FAULTS,
        servers=random.choice((2, 2, 3, 4)),
        joiners=2,
        max_delay_ms=random.choice((5, 20)),
        disk_ms=1,
        full_disk=0,
        nuisance_ms=1_000,
        leader_trouble=0.8,
        change_ms=random.choice((15, 40)),
        joint=random.random() < 0.5,
        transfer_ms=0,
        snapshot_entries=random.choice((0, 3)),
    )


def _make_lease(general: Profile, random: Random) -> Profile:
    """Build a world with leases.

    A lease lasts 110 ms by a clock that runs a tenth too slow. Other servers begin an election after 150 ms by a clock
    that runs a tenth too fast.
    """
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
    return dataclasses.replace(
        general,
        wiring=Wiring.MESSAGES,
        servers=random.choice((3, 3, 5)),
        options=options,
        loss=random.choice((0, 0.01)),
        duplication=random.choice((0, 0.1)),
        long_delay=random.choice((0, 0.1, 0.3)),
        late_messages=random.choice((0, 0.5, 0.5)),
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
    """Build a world with slow disks and the connections of production servers: heartbeats do not wait for a disk."""
    return dataclasses.replace(
        general,
        **_WITHOUT_RANDOM_FAULTS,
        servers=random.choice((3, 3, 5)),
        joiners=0,
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
        duplication=0,
        max_delay_ms=5,
        disk_ms=1,
        full_disk=0,
        rot=0,
        nuisance_ms=10**9,
        leader_trouble=1,
        clock_rate=0,
        jumps=False,
        transfer_ms=0,
        change_ms=0,
        # Otherwise, an occasional snapshot would add its delays to the delays of the proposed entries.
        snapshot_entries=0,
        clients=3,
        think_ms=300,
        retry_ms=5_000,
        timeout_ms=5_000,
        trouble_ms=20_000,
        steady_disk_ms=1_600,
    )


def _make_hung_disks(general: Profile, random: Random) -> Profile:
    """Build a world without progress until some disks recover; the leader must detect that it cannot commit."""
    slow = _make_slow_disks(general, random)
    return dataclasses.replace(slow, steady_disk_ms=20_000, trouble_ms=25_000)


def _make_far_terms(general: Profile, random: Random) -> Profile:
    return dataclasses.replace(general, forged_ms=random.choice((20, 100, 400)))


def _make_ended(general: Profile, random: Random) -> Profile:
    """Build a world with evidence that processes have ended; in half of these worlds, leases must outweigh it."""
    base = random.choice((general, _make_lease(general, random)))
    return dataclasses.replace(base, pre_vote=1, ends_ms=random.choice((5, 20)))


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
        late_messages=0,
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
        joiners=random.choice((1, 2, 3)) if change_ms else int(rot > 0),
        change_ms=change_ms,
        joint=random.random() < 0.7,
        snapshot_entries=random.choice((0, 2, 5, 20)),
        clients=random.choice((3, 5, 8)),
        keys=random.choice((1, 2, 4)),
        think_ms=random.choice((1, 10, 50)),
        reads=random.choice((0.3, 0.5)),
        timeout_ms=random.choice((300, 2_000)),
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
    Kind.ENDED: _make_ended,
}
