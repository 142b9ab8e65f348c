"""Small mechanisms of gossip: rotation, health, suspicion, update queue, rate limit, options."""

from random import Random

import pytest

from gossip.core.dissemination import UpdateQueue, update_bytes
from gossip.core.member import Awareness, Incarnation, Status, info_bytes
from gossip.core.messages import AliveUpdate
from gossip.core.options import SwimOptions, TokenBucket
from gossip.core.probe import Rotation
from gossip.core.updates import Suspicion
from tests.simulation.gossip_network import node_id
from tests.spec.gossip_story import info_of, verdict


def test_rotation_visits_each_member_once_per_pass() -> None:
    rotation = Rotation(Random(3))
    members = [node_id(n) for n in range(10)]
    for _ in range(5):
        assert sorted(m for m in (rotation.next(members) for _ in members) if m) == members


def test_rotation_visits_new_member_within_two_passes() -> None:
    rotation = Rotation(Random(3))
    members = [node_id(n) for n in range(10)]
    for _ in range(4):
        rotation.next(members)
    changed = [*members[1:], node_id(99)]
    visited = [rotation.next(changed) for _ in range(2 * len(changed))]
    assert node_id(99) in visited
    assert members[0] not in visited


def test_rotation_changed_within_pass_skips_none() -> None:
    for seed in range(50):
        rotation = Rotation(Random(seed))
        members = [node_id(n) for n in range(10)]
        visited = [rotation.next(members) for _ in range(5)]
        removed = visited[2]
        rest = [m for m in members if m != removed]
        visited += [rotation.next([*rest, node_id(99)]) for _ in range(6)]
        assert set(rest) <= set(visited), f"random seed {seed}"


def test_rotation_without_members_returns_none() -> None:
    assert Rotation(Random(1)).next([]) is None


def test_health_bounded_by_zero_and_limit() -> None:
    awareness = Awareness(8)
    awareness.adjust(-5)
    assert awareness.scale(100) == 100
    awareness.adjust(50)
    assert awareness.scale(100) == 800


def _suspicion(group_size: int, confirmations: int) -> int:
    suspicion = Suspicion(Incarnation(1, 0), node_id(1), group_size, SwimOptions(suspicion_multiplier=5), 1_000)
    for accuser in range(2, 2 + confirmations):
        suspicion.confirm(node_id(accuser))
    return suspicion.deadline - 1_000


def test_suspicion_shortened_by_confirmations() -> None:
    durations = [_suspicion(10, confirmations) for confirmations in range(5)]
    assert durations[0] == 30_000
    assert durations == sorted(durations, reverse=True)
    assert durations[3] == durations[4] == 5_000


def test_suspicion_without_possible_confirmers_is_short() -> None:
    assert _suspicion(3, 0) == 5_000


def test_suspicion_longer_in_larger_group() -> None:
    assert _suspicion(1_000, 3) == 15_000


def test_update_sent_lambda_log_n_times() -> None:
    for group_size, times in ((1, 4), (9, 4), (10, 8), (99, 8), (100, 12)):
        queue = UpdateQueue(4)
        queue.add_verdict(verdict(1, Status.DEAD, by=2))
        sends = 0
        while queue.take(1_000, group_size)[0]:
            sends += 1
        assert sends == times, f"group of {group_size}"
        assert len(queue.queued) == 0


def test_least_sent_update_goes_first() -> None:
    queue = UpdateQueue(4)
    first, second = verdict(1, Status.DEAD, by=9), verdict(2, Status.DEAD, by=9)
    queue.add_verdict(first)
    assert queue.take(50, 50)[0] == [first]
    queue.add_verdict(second)
    assert queue.take(50, 50)[0] == [second]


def test_newer_update_about_member_replaces_older() -> None:
    queue = UpdateQueue(4)
    queue.add_verdict(verdict(1, Status.SUSPECT, by=9))
    queue.add_verdict(verdict(1, Status.DEAD, by=9))
    assert queue.take(1_000, 5)[0] == [verdict(1, Status.DEAD, by=9)]


def test_updates_stay_within_byte_budget() -> None:
    queue = UpdateQueue(4)
    updates = [AliveUpdate(info_of(n, metadata=bytes(400))) for n in range(1, 6)]
    for update in updates:
        queue.add_alive(update.info, update_bytes(update))
    taken = queue.take(1_150, 10)[0]
    assert sum(update_bytes(update) for update in taken) <= 1_150
    assert 0 < len(taken) < 5
    rest = queue.take(1_150, 10)[0]
    assert not set(taken) & set(rest)


def test_alive_update_not_sent_to_its_subject() -> None:
    queue = UpdateQueue(4)
    queue.add_alive(info_of(1), info_bytes(info_of(1)))
    assert queue.take(1_000, 5, receiver=node_id(1))[0] == []
    assert len(queue.take(1_000, 5, receiver=node_id(2))[0]) == 1


def test_alive_update_of_only_peer_dropped() -> None:
    queue = UpdateQueue(4)
    queue.add_alive(info_of(1), info_bytes(info_of(1)))
    queue.add_verdict(verdict(2, Status.DEAD, by=9))
    queue.drop_known({node_id(1), node_id(3)})
    assert node_id(1) in queue.queued
    queue.drop_known({node_id(1)})
    assert [*queue.queued] == [node_id(2)]


def test_rate_allows_burst_then_refill() -> None:
    rate = TokenBucket(per_second=10, burst=5)
    assert sum(rate.take(0) for _ in range(100)) == 5
    assert sum(rate.take(now) for now in range(0, 10_001, 10)) == 100


@pytest.mark.parametrize("options", [SwimOptions.lan(), SwimOptions.loopback()])
def test_presets_leave_helpers_time_of_direct_ping(options: SwimOptions) -> None:
    assert 2 * options.probe_timeout_ms <= options.probe_period_ms


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"probe_timeout_ms": 1_000}, "probe_timeout_ms = 1000 must be below probe_period_ms"),
        ({"gossip_period_ms": 0}, "gossip_period_ms = 0 must be positive"),
        ({"helpers": -1}, "helpers = -1"),
    ],
)
def test_invalid_options_refused_by_name(knobs: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SwimOptions(**knobs)  # type: ignore[arg-type]  # each row is one knob of the right kind
