"""How bad the world of one history is, drawn from its seed.

Every history draws its own rates, many of them zero ("swarm testing"): a world in which everything fails at once never
gets far enough for the rare interplay of two faults, and a world with one fixed mixture shows one kind of history only.
Limits of the core are drawn small, so that windows fill, tails are trimmed and batches are cut in short histories.
"""

from dataclasses import dataclass, replace
from random import Random

from consensus.core.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Profile:
    """Rates are probabilities per message, effect or decision; times are milliseconds of simulated time."""

    servers: int
    tuning: Tuning
    loss: float
    duplication: float
    long_delay: float
    max_delay_ms: int
    crash_between_effects: float
    disk_ms: int
    group_bytes: int
    """How much the executor writes with one sync."""
    slow_disk: float
    slow_disk_ms: int
    nuisance_ms: int
    """Mean time between decisions of the nemesis: crash, restart, partition, pause, clock jump."""
    leader_trouble: float
    """How often a new leader is crashed or cut off from some servers soon after its election."""
    proposal_ms: int
    pre_vote: float
    """Share of servers that understand pre-vote."""
    strangers: int
    """Servers with empty logs that belong to no configuration at first."""
    change_ms: int
    """Mean time between requests to change the configuration; 0: it never changes."""
    joint: bool
    """Whether the servers have agreed on joint configurations and learners."""
    snapshot_entries: int
    """A server takes a snapshot whenever it has applied so many entries since the last; 0: never."""


def draw_profile(random: Random) -> Profile:
    """The world of one history: a general one, a storm of elections, or one in which servers come and go."""
    general = _draw_general(random)
    kind = random.random()
    if kind < 0.4:
        return _make_storm(general, random)
    return _make_restless(general, random) if kind < 0.62 else general


def _make_storm(general: Profile, random: Random) -> Profile:
    """Leaders fall soon after their election, entries travel one by one: where figure 8 of the paper happens."""
    tuning = replace(general.tuning, max_entries_per_append=1, in_flight=random.choice((1, 2)), heartbeat_ms=70)
    return replace(
        general,
        servers=random.choice((3, 5, 5)),
        tuning=tuning,
        loss=0,
        long_delay=random.choice((0, 0.1, 0.3)),
        max_delay_ms=random.choice((10, 20)),
        crash_between_effects=0,
        disk_ms=random.choice((1, 5)),
        slow_disk=0,
        nuisance_ms=1_000,
        leader_trouble=0.95,
        proposal_ms=20,
    )


def _make_restless(general: Profile, random: Random) -> Profile:
    """The configuration changes all the time and leaders fall in between, in a world that is calm enough for it."""
    return replace(
        general,
        servers=random.choice((1, 2, 3, 4)),
        tuning=replace(general.tuning, max_entries_per_append=random.choice((1, 100)), catch_up_rounds=10),
        loss=random.choice((0, 0, 0.05)),
        long_delay=random.choice((0, 0.1)),
        max_delay_ms=random.choice((5, 20)),
        crash_between_effects=random.choice((0, 0, 0.002)),
        disk_ms=random.choice((1, 5)),
        slow_disk=0,
        nuisance_ms=random.choice((300, 2_000)),
        leader_trouble=random.choice((0.3, 0.7)),
        strangers=random.choice((2, 3)),
        change_ms=20,
        joint=random.random() < 0.8,
    )


def _draw_general(random: Random) -> Profile:
    change_ms = random.choice((0, 30, 100, 300))
    return Profile(
        servers=random.choice((1, 2, 3, 3, 3, 4, 5, 5, 5, 5)),
        tuning=Tuning(
            election_timeout_min_ms=150,
            election_timeout_max_ms=300,
            heartbeat_ms=random.choice((30, 70)),
            retry_ms=random.choice((30, 100)),
            commit_notice_ms=random.choice((0, 0, 5, 20)),
            max_entries_per_append=random.choice((1, 1, 2, 100)),
            max_bytes_per_append=random.choice((1, 100, 100_000)),
            in_flight=random.choice((1, 2, 5)),
            tail_entries=random.choice((1, 4, 1_000)),
            catch_up_rounds=random.choice((1, 3, 10)),
            catch_up_stall_ms=random.choice((500, 3_000)),
            tail_bytes=random.choice((100, 1_000_000)),
            max_pending_proposals=random.choice((2, 8, 100)),
            max_pending_bytes=random.choice((200, 100_000)),
            snapshot_chunk_bytes=random.choice((50, 500, 100_000)),
        ),
        loss=random.choice((0, 0, 0.02, 0.1, 0.3)),
        duplication=random.choice((0, 0, 0.02, 0.2)),
        long_delay=random.choice((0, 0, 0.02, 0.1)),
        max_delay_ms=random.choice((1, 5, 20, 60)),
        crash_between_effects=random.choice((0, 0.001, 0.005, 0.02)),
        disk_ms=random.choice((1, 5, 20)),
        group_bytes=random.choice((1, 200, 1_000_000)),
        slow_disk=random.choice((0, 0, 0.05)),
        slow_disk_ms=random.choice((100, 1_000)),
        nuisance_ms=random.choice((30, 100, 300, 2_000)),
        leader_trouble=random.choice((0, 0.3, 0.7, 0.9)),
        proposal_ms=random.choice((5, 20, 100)),
        pre_vote=random.choice((0, 0.5, 1, 1)),
        strangers=random.choice((1, 2, 3)) if change_ms else 0,
        change_ms=change_ms,
        joint=random.random() < 0.7,
        snapshot_entries=random.choice((0, 1, 3, 10)),
    )
