"""The small mechanisms of gossip, each by itself."""

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


def test_a_rotation_visits_each_member_once_per_pass() -> None:
    rotation = Rotation(Random(3))
    members = [node_id(n) for n in range(10)]
    for _ in range(5):
        assert sorted(m for m in (rotation.next(members) for _ in members) if m) == members


def test_a_newcomer_is_visited_within_two_passes_and_one_that_left_never() -> None:
    rotation = Rotation(Random(3))
    members = [node_id(n) for n in range(10)]
    for _ in range(4):
        rotation.next(members)
    changed = [*members[1:], node_id(99)]
    visited = [rotation.next(changed) for _ in range(2 * len(changed))]
    assert node_id(99) in visited
    assert members[0] not in visited


def test_changes_in_the_middle_of_a_pass_skip_no_member() -> None:
    for seed in range(50):
        rotation = Rotation(Random(seed))
        members = [node_id(n) for n in range(10)]
        visited = [rotation.next(members) for _ in range(5)]
        gone = visited[2]
        rest = [m for m in members if m != gone]
        visited += [rotation.next([*rest, node_id(99)]) for _ in range(6)]
        assert set(rest) <= set(visited), f"random seed {seed}"


def test_an_empty_rotation_has_no_next() -> None:
    assert Rotation(Random(1)).next([]) is None


def test_health_stays_between_zero_and_its_limit() -> None:
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


def test_a_suspicion_lasts_from_its_longest_to_its_shortest_as_confirmations_come() -> None:
    durations = [_suspicion(10, confirmations) for confirmations in range(5)]
    assert durations[0] == 30_000
    assert durations == sorted(durations, reverse=True)
    assert durations[3] == durations[4] == 5_000


def test_where_no_member_could_confirm_a_suspicion_is_short_at_once() -> None:
    assert _suspicion(3, 0) == 5_000


def test_a_suspicion_lasts_longer_in_a_larger_group() -> None:
    assert _suspicion(1_000, 3) == 15_000


def test_news_is_told_lambda_log_n_times() -> None:
    for group_size, times in ((1, 4), (9, 4), (10, 8), (99, 8), (100, 12)):
        news = UpdateQueue(4)
        news.add_verdict(verdict(1, Status.DEAD, by=2))
        told = 0
        while news.take(1_000, group_size)[0]:
            told += 1
        assert told == times, f"group of {group_size}"
        assert len(news.queued) == 0


def test_the_least_told_news_goes_first() -> None:
    news = UpdateQueue(4)
    first, second = verdict(1, Status.DEAD, by=9), verdict(2, Status.DEAD, by=9)
    news.add_verdict(first)
    assert news.take(50, 50)[0] == [first]
    news.add_verdict(second)
    assert news.take(50, 50)[0] == [second]


def test_newer_news_about_a_member_replaces_the_older() -> None:
    news = UpdateQueue(4)
    news.add_verdict(verdict(1, Status.SUSPECT, by=9))
    news.add_verdict(verdict(1, Status.DEAD, by=9))
    assert news.take(1_000, 5)[0] == [verdict(1, Status.DEAD, by=9)]


def test_news_keeps_to_its_budget_and_what_does_not_fit_waits() -> None:
    news = UpdateQueue(4)
    updates = [AliveUpdate(info_of(n, metadata=bytes(400))) for n in range(1, 6)]
    for update in updates:
        news.add_alive(update.info, update_bytes(update))
    taken = news.take(1_150, 10)[0]
    assert sum(update_bytes(update) for update in taken) <= 1_150
    assert 0 < len(taken) < 5
    rest = news.take(1_150, 10)[0]
    assert not set(taken) & set(rest)


def test_a_member_is_not_told_that_it_lives() -> None:
    news = UpdateQueue(4)
    news.add_alive(info_of(1), info_bytes(info_of(1)))
    assert news.take(1_000, 5, receiver=node_id(1))[0] == []
    assert len(news.take(1_000, 5, receiver=node_id(2))[0]) == 1


def test_in_a_pair_news_that_the_other_lives_is_no_news() -> None:
    news = UpdateQueue(4)
    news.add_alive(info_of(1), info_bytes(info_of(1)))
    news.add_verdict(verdict(2, Status.DEAD, by=9))
    assert news.take(1_000, 2, receiver=node_id(1))[0] == [verdict(2, Status.DEAD, by=9)]
    assert len(news.queued) == 1, "the verdict is told again, the introduction is not"


def test_a_rate_allows_its_burst_and_then_its_pace() -> None:
    rate = TokenBucket(per_second=10, burst=5)
    assert sum(rate.take(0) for _ in range(100)) == 5
    assert sum(rate.take(now) for now in range(0, 10_001, 10)) == 100


@pytest.mark.parametrize("options", [SwimOptions.lan(), SwimOptions.loopback()])
def test_the_presets_leave_helpers_as_much_time_as_the_direct_ping(options: SwimOptions) -> None:
    assert 2 * options.probe_timeout_ms <= options.probe_period_ms


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"probe_timeout_ms": 1_000}, "probe_timeout_ms = 1000 must be below probe_period_ms"),
        ({"gossip_period_ms": 0}, "gossip_period_ms = 0 must be positive"),
        ({"helpers": -1}, "helpers = -1"),
    ],
)
def test_options_that_cannot_work_are_refused_by_name(knobs: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        SwimOptions(**knobs)  # type: ignore[arg-type]  # each row is one knob of the right kind
