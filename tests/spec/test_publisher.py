"""Choice of publisher, leaves and publication times: identical on all servers, with hysteresis, never empty."""

from collections.abc import Mapping
from math import nan
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.farm.state_machine import PublicationAccepted
from bridge.core.log.records import ConditionStatus, LeafFault, LeafStatus, Publication, PublishConfig
from bridge.core.log.weights import COST_MAX, UNHEALTHY_COST
from bridge.core.publishing.candidates import candidates_of, score, score_parts, standby_of
from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.publishing.lease_set import content_hash, leaf_load
from bridge.core.publishing.publication import Pace, PlannedPublication, next_publication_ms, plan_publication
from bridge.core.publishing.publisher_election import PublisherChanged
from bridge.core.publishing.score import Inability, ScoreFigure
from bridge.core.state.farm_state import FarmState, FarmTuning
from bridge.node.raft.farm_content import objection_to_state
from tests.effort import each_case
from tests.spec.farm_stories import BASE_MS, IDLE, MASTER, PERIOD_MS, TUNING, Log, leaf, report

BASE_S = BASE_MS // 1000
PACE = Pace()
WEAK = {"job_lag_ms": 500}


def inability(state: FarmState, server_id: int) -> Inability | None:
    return next(each.inability for each in candidates_of(state, MASTER, TUNING) if each.server_id == server_id)


def period(log: Log, number: int, **changes: Mapping[str, object]) -> list[object]:
    """Append one period: servers 1 and 2 report (with changes `one` and `two`), then comes the clock entry."""
    date_ms = BASE_MS + number * PERIOD_MS - 1_000
    log.append(report(1, date_ms, **changes.get("one", {})), report(2, date_ms, **changes.get("two", {})))
    return list(log.clock(number * PERIOD_MS))


# The score


def test_idle_router_up_ten_minutes_scores_a_thousand() -> None:
    assert score(report(1)) == 1_000


@each_case(
    ("changes", "points"),
    [
        ({"job_lag_ms": 500}, 850),
        ({"job_lag_ms": 5_000}, 700),
        ({"job_lag_ms": None}, 850),
        ({"uptime_ms": 0}, 800),
        ({"uptime_ms": 300_000}, 900),
        ({"destinations": (leaf("a"), leaf("b", healthy=False))}, 900),
        ({"destinations": ()}, 1_000),
        ({"current_bandwidth_bytes_per_s": 600_000}, 910),
        ({"configured_bandwidth_bytes_per_s": 0}, 925),
        ({"configured_bandwidth_bytes_per_s": nan}, 925),
        ({"cpu_percent": 40}, 960),
        ({"memory_percent": 40}, 980),
    ],
)
def test_score_reduced_by_bad_or_unknown_figures(changes: dict[str, object], points: int) -> None:
    assert score(report(1, **changes)) == points


FIGURE = st.none() | st.integers() | st.floats()


@given(st.tuples(FIGURE, FIGURE, FIGURE, FIGURE, FIGURE, FIGURE), st.lists(st.booleans(), max_size=5))
def test_points_of_parts_add_up_to_score(figures: tuple[float | None, ...], health: list[bool]) -> None:
    names = (
        "job_lag_ms",
        "uptime_ms",
        "current_bandwidth_bytes_per_s",
        "configured_bandwidth_bytes_per_s",
        "cpu_percent",
        "memory_percent",
    )
    leaves = tuple(leaf(f"leaf{number}", healthy=each) for number, each in enumerate(health))
    found = report(1, destinations=leaves, **dict(zip(names, figures, strict=True)))
    parts = score_parts(found)
    assert [each.figure for each in parts] == list(ScoreFigure)
    assert all(0 <= each.points <= each.maximum for each in parts)
    assert sum(each.points for each in parts) == score(found)
    assert sum(each.maximum for each in parts) == 1_000


def test_conditions_of_leaves_decide_nothing() -> None:
    """Servers of older versions do not read the conditions of leaves, and must make the same choice."""
    plain, informed = Log(), Log()
    for number, failures in enumerate((0, 3, 0, 1, 1, 0)):
        for log in (plain, informed):
            conditions = tuple(ConditionStatus(each, number, failures, "refused") for each in LeafFault)
            one = replace(leaf("leaf01", healthy=not failures), conditions=conditions if log is informed else ())
            period(log, number, one={"destinations": (one,)})
        assert plain.farm.state.masters == informed.farm.state.masters
        assert candidates_of(plain.farm.state, MASTER, TUNING) == candidates_of(informed.farm.state, MASTER, TUNING)


# Ability


@each_case(
    ("changes", "reason"),
    [
        ({"attached": False}, Inability.UNATTACHED),
        ({"publish_config": PublishConfig.OFF}, Inability.OFF),
        ({"can_sign_until_s": None}, Inability.NO_KEY),
        ({"can_sign_until_s": BASE_S + 900}, Inability.KEY_ENDS),
        ({"can_sign_until_s": BASE_S + 901}, None),
        ({"date_ms": BASE_MS - 30_001}, Inability.CLOCK_OFF),
        ({}, None),
    ],
)
def test_unable_server_never_chosen(changes: dict[str, object], reason: Inability | None) -> None:
    log = Log()
    date_ms = changes.pop("date_ms", BASE_MS)
    assert isinstance(date_ms, int)
    log.append(report(1, date_ms, **changes))
    assert inability(log.farm.state, 1) is reason
    assert log.publisher == (1 if reason is None else None)


def test_server_without_master_is_not_candidate() -> None:
    log = Log(report(1), report(2, masters=()))
    assert inability(log.farm.state, 2) is Inability.NO_KEY
    assert sorted(log.leaves) == ["leaf01", "leaf02"]


# The choice


def test_lower_server_id_publishes_among_equals() -> None:
    log = Log(report(3, attached=False), report(2, attached=False))
    log.append(report(2), report(1))
    assert log.publisher == 2
    log.append(report(4), report(3), report(2, publish_config=PublishConfig.OFF))
    assert log.publisher == 1


def test_better_server_publishes_after_three_clock_entries() -> None:
    log = Log(report(1, **WEAK))
    for number in (1, 2):
        period(log, number, one=WEAK)
        assert log.publisher == 1
    assert PublisherChanged(MASTER, 2, 1) in period(log, 3, one=WEAK)


def test_lead_below_margin_never_counts() -> None:
    log = Log()
    for number in range(1, 20):
        period(log, number, one={"job_lag_ms": 333}, two={})
    assert log.publisher == 1
    assert score(report(1, job_lag_ms=333)) == 1_000 - TUNING.margin_points + 1


def test_good_period_of_publisher_restarts_count() -> None:
    log = Log(report(1, **WEAK))
    for number, changes in enumerate((WEAK, WEAK, {}, WEAK, WEAK), start=1):
        period(log, number, one=changes)
    assert log.publisher == 1


def test_reports_within_period_count_once() -> None:
    log = Log(report(1, **WEAK))
    log.append(*(report(2, BASE_MS + number) for number in range(50)))
    assert log.publisher == 1


def test_standby_is_best_able_server_after_publisher() -> None:
    log = Log(report(1), report(2, **WEAK), report(3), report(4, attached=False))
    assert log.publisher == 1
    assert standby_of(log.farm.state, MASTER, TUNING) == 3
    log.append(report(3, publish_config=PublishConfig.OFF))
    assert standby_of(log.farm.state, MASTER, TUNING) == 2
    log.append(report(2, can_sign_until_s=None))
    assert standby_of(log.farm.state, MASTER, TUNING) is None


def test_standby_stays_while_equal_candidates_alternate() -> None:
    log = Log(report(1), report(2), report(3))
    found = []
    for percent in range(20):
        log.append(report(2 + percent % 2, cpu_percent=percent), report(3 - percent % 2, cpu_percent=20))
        found.append(standby_of(log.farm.state, MASTER, TUNING))
    assert (log.publisher, set(found)) == (1, {2})


@pytest.mark.parametrize(("lag_ms", "expected"), [(333, 3), (334, 2), (1_000, 2)])
def test_reported_standby_is_kept_below_margin(lag_ms: int, expected: int) -> None:
    log = Log(report(1), report(2), report(3, standby=True, job_lag_ms=lag_ms))
    assert log.publisher == 1
    assert standby_of(log.farm.state, MASTER, TUNING) == expected


def test_standby_is_kept_among_several_reported() -> None:
    log = Log(report(1), report(2), report(3, standby=True, job_lag_ms=100), report(4, standby=True))
    assert standby_of(log.farm.state, MASTER, TUNING) == 4
    log.append(report(2, publish_config=PublishConfig.ON), report(3, standby=True, publish_config=PublishConfig.ON))
    assert (log.publisher, standby_of(log.farm.state, MASTER, TUNING)) == (2, 3)


def test_standby_needs_publisher() -> None:
    log = Log(report(1, attached=False))
    assert standby_of(log.farm.state, MASTER, TUNING) is None
    assert standby_of(log.farm.state, "unknown", TUNING) is None


def test_stale_publisher_replaced_within_three_periods() -> None:
    log = Log(report(1, BASE_MS + 29_999))
    changes: list[object] = []
    for number in (1, 2, 3):
        log.append(report(2, BASE_MS + number * PERIOD_MS - 1_000))
        changes += log.clock(number * PERIOD_MS)
    assert changes == [PublisherChanged(MASTER, 2, 1)]


def test_publisher_replaced_by_report_that_it_is_unable() -> None:
    for changes in ({"attached": False}, {"publish_config": PublishConfig.OFF}, {"can_sign_until_s": None}):
        log = Log(report(1), report(2))
        assert log.append(report(1, **changes)) == [PublisherChanged(MASTER, 2, 1)]


def test_publish_config_on_beats_healthy_auto() -> None:
    log = Log(report(1))
    assert log.append(report(2, publish_config=PublishConfig.ON, **WEAK)) == [PublisherChanged(MASTER, 2, 1)]
    for number in range(1, 6):
        period(log, number, two={"publish_config": PublishConfig.ON, **WEAK})
    assert log.publisher == 2


def test_publisher_none_if_all_are_unable() -> None:
    log = Log(report(1), report(2))
    changes = log.clock(10 * PERIOD_MS)
    assert changes == [PublisherChanged(MASTER, None, 1)]


@pytest.mark.parametrize("seed", range(5))
def test_noise_in_figures_rarely_moves_publisher(seed: int) -> None:
    random = Random(seed)
    log = Log()
    moves = 0
    for number in range(1, 201):
        noise = [{"job_lag_ms": random.uniform(0, 300), "cpu_percent": random.uniform(0, 60)} for _ in range(2)]
        moves += len(period(log, number, one=noise[0], two=noise[1]))
    assert moves <= 4, f"seed {seed}: the publisher moved {moves} times in 200 periods"


# The leaves


def test_healthy_destinations_listed_once_each() -> None:
    log = Log(report(1), report(2, destinations=(leaf("b"), leaf("c", healthy=False), leaf("d"))))
    assert sorted(log.leaves) == ["b", "d", "leaf01"]


def test_destination_of_two_routers_listed_at_lower_cost() -> None:
    log = Log(report(1, destinations=(leaf("a", load=1.0),)), report(2, destinations=(leaf("a", load=0.2),)))
    assert log.leaves == {"a": 10}


def test_leaves_of_stale_or_unattached_servers_unhealthy() -> None:
    log = Log(*(report(server_id) for server_id in (1, 2, 3, 4)))
    log.append(report(3, BASE_MS + PERIOD_MS - 1), report(4, BASE_MS + PERIOD_MS - 1, attached=False))
    log.append(report(2, BASE_MS + PERIOD_MS - 1))
    log.clock(2 * PERIOD_MS)
    assert sorted(log.leaves) == ["leaf02", "leaf03"]


def test_unhealthy_leaves_listed_if_majority_is_unhealthy() -> None:
    log = Log(report(1), *(report(each, destinations=(leaf(f"leaf0{each}", healthy=False),)) for each in (2, 3)))
    assert log.leaves == {"leaf01": 0, "leaf02": 100, "leaf03": 100}
    # The highest cost is within the bounds of a snapshot, so other servers accept the snapshot.
    busy = replace(leaf("leaf03", load=1.0, healthy=False), current_tunnels=0)
    log.append(report(3, destinations=(busy,), job_lag_ms=10_000))
    assert log.leaves["leaf03"] == COST_MAX + UNHEALTHY_COST
    assert objection_to_state(log.farm.state, PERIOD_MS) is None


def test_empty_structure_never_published() -> None:
    log = Log(report(1, destinations=()))
    assert log.publisher == 1
    assert plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 10**6, handed_over=None) is None


def test_cost_rises_with_load_and_missing_tunnels() -> None:
    assert leaf_load(IDLE, leaf("a")) == 0
    assert leaf_load(IDLE, leaf("a", load=0.5)) == 25
    assert leaf_load(replace(IDLE, job_lag_ms=1_000), leaf("a", load=1.0)) == 80
    assert leaf_load(IDLE, replace(leaf("a"), current_tunnels=1)) == 15
    assert leaf_load(replace(IDLE, current_bandwidth_bytes_per_s=500_000), LeafStatus("a", healthy=True)) == 35


def test_cost_moves_only_by_margin() -> None:
    log = Log()
    for load, cost in ((0.2, 10), (0.38, 10), (0.06, 10), (0.4, 20), (0.3, 20), (0.2, 10)):
        log.append(report(1, destinations=(leaf("a", load=load),)))
        assert log.leaves == {"a": cost}, f"load {load}"


def test_sixteen_cheapest_leaves_are_listed() -> None:
    log = Log(report(1, destinations=tuple(leaf(f"leaf{number:02}", load=number / 20) for number in range(20))))
    assert sorted(log.leaves) == [f"leaf{number:02}" for number in range(LEAVES_MAX)]


def test_new_leaf_replaces_listed_one_at_clock_entry() -> None:
    log = Log()
    members = tuple(leaf(f"leaf{number:02}", load=0.5) for number in range(LEAVES_MAX))
    log.append(report(1, destinations=members))
    log.append(report(1, destinations=(*members, leaf("near", load=0.36))))
    log.clock(1)
    assert "near" not in log.leaves
    log.append(report(1, destinations=(*members, leaf("cheap", load=0.1))))
    assert "cheap" not in log.leaves
    log.clock(2)
    assert "cheap" in log.leaves
    assert "leaf15" not in log.leaves
    assert len(log.leaves) == LEAVES_MAX


# The publication


def plan_at(log: Log, after_ms: int, server_id: int = 1, pace: Pace = PACE) -> PlannedPublication | None:
    known = log.farm.state.masters.get(MASTER)
    last = None if known is None else known.publication
    # The publishers of these tests hand over each accepted publication, unless the test sets another one.
    handed_over = last if last is not None and last.server_id == server_id else None
    return plan_publication(log.farm.state, MASTER, server_id, pace, BASE_MS + after_ms, handed_over=handed_over)


def publish_at(log: Log, after_ms: int, server_id: int = 1) -> Publication:
    plan = plan_at(log, after_ms, server_id)
    assert plan is not None
    assert log.append(plan.publication) == [PublicationAccepted(plan.publication)]
    return plan.publication


def test_first_publication_waits_one_period() -> None:
    log = Log(report(1), report(2))
    assert plan_at(log, PACE.gather_ms - 1) is None
    assert plan_at(log, PACE.gather_ms) is not None


def with_voters(log: Log, *voters: int) -> Log:
    """Return the log of a farm with these voters, each with a correct clock."""
    log.farm.state = replace(log.farm.state, clocks=log.farm.state.clocks.configured((voters,)))
    return log


def test_first_publication_due_when_all_voters_are_healthy() -> None:
    log = with_voters(Log(), 1, 2, 3)
    log.append(report(1), report(2))
    assert plan_at(log, 100) is None
    log.append(report(3))
    plan = plan_at(log, 100)
    assert plan is not None
    assert [entry.destination for entry in plan.entries] == ["leaf01", "leaf02", "leaf03"]
    # A later change waits, so that the farm publishes it together with other changes
    assert log.append(plan.publication) == [PublicationAccepted(plan.publication)]
    log.append(report(2, destinations=(leaf("other"),)))
    assert plan_at(log, PACE.change_ms - 1) is None


@pytest.mark.parametrize(
    "missing",
    [
        {"attached": False},
        {"destinations": ()},
        {"destinations": (leaf("leaf02", healthy=False),)},
        {"destinations": (leaf("leaf02"), leaf("another", healthy=False))},
    ],
)
def test_first_publication_waits_for_missing_router_or_leaf(missing: dict[str, object]) -> None:
    log = with_voters(Log(), 1, 2)
    log.append(report(1), report(2, **missing))
    assert plan_at(log, PACE.gather_ms - 1) is None
    assert plan_at(log, PACE.gather_ms) is not None
    log.append(report(2))
    assert plan_at(log, 100) is not None


def test_plan_made_only_by_chosen_publisher() -> None:
    log = Log(report(1), report(2))
    assert plan_at(log, PACE.gather_ms, server_id=2) is None
    assert plan_publication(log.farm.state, "another", 1, PACE, BASE_MS + 10**6, handed_over=None) is None


def test_unchanged_structure_refreshed_every_five_minutes() -> None:
    waits_ms = set()
    for start_ms in range(30_000, 90_000, 1_000):
        log = Log(report(1))
        log.clock(40_000)
        publish_at(log, start_ms)
        due_ms = next_publication_ms(log.master, PACE)
        assert due_ms is not None
        waits_ms.add(due_ms - BASE_MS - start_ms)
        assert plan_at(log, due_ms - BASE_MS - 1) is None
        assert plan_at(log, due_ms - BASE_MS) is not None
    assert 270_000 <= min(waits_ms) <= max(waits_ms) <= 330_000
    assert len(waits_ms) > 30


def test_changes_coalesced_for_65_seconds() -> None:
    log = Log(report(1))
    publish_at(log, 30_000)
    log.append(report(2), report(3), report(2, destinations=(leaf("other"),)))
    assert plan_at(log, 94_999) is None
    plan = plan_at(log, 95_000)
    assert plan is not None
    assert [entry.destination for entry in plan.entries] == ["leaf01", "leaf03", "other"]


def test_new_publisher_publishes_immediately() -> None:
    log = Log(report(1), report(2))
    publish_at(log, 30_000)
    log.append(report(1, publish_config=PublishConfig.OFF))
    assert publish_at(log, 31_000, server_id=2).server_id == 2


def test_published_second_rises_without_log_time() -> None:
    log = Log(report(1), report(2))
    first = publish_at(log, 30_000)
    log.append(report(1, publish_config=PublishConfig.OFF))
    second = publish_at(log, 30_000, server_id=2)
    assert (first.published_s, second.published_s) == (BASE_S + 30, BASE_S + 31)


def test_entries_outlast_next_refresh_by_fifteen_minutes() -> None:
    log = Log(report(1))
    plan = plan_at(log, 30_000)
    assert plan is not None
    latest_refresh_s = plan.publication.published_s + 330
    assert all(entry.end_s >= latest_refresh_s + 900 for entry in plan.entries)
    assert max(entry.end_s for entry in plan.entries) <= plan.publication.published_s + 65_535


def test_content_hash_depends_on_costs_not_order_or_ends() -> None:
    log = Log(report(1), report(2))
    leaves = log.master.leaves
    assert content_hash(leaves) == content_hash(leaves[::-1])
    assert content_hash(leaves) != content_hash((replace(leaves[0], cost=11), leaves[1]))
    plan = plan_at(log, 30_000)
    assert plan is not None
    assert plan.publication.content_hash == content_hash(leaves)


def test_pace_of_period_publishes_changes_each_period() -> None:
    log = Log(tuning=FarmTuning(period_ms=2_000))
    log.append(report(1))
    pace = Pace.of_period(2_000)
    plan = plan_at(log, 2_000, pace=pace)
    assert plan is not None
    log.append(plan.publication, report(2))
    assert plan_at(log, 3_999, pace=pace) is None
    assert plan_at(log, 4_000, pace=pace) is not None


def test_accepted_but_unsigned_publication_planned_again() -> None:
    # Given a publisher with an accepted plan, whose process died before it signed
    log = Log(report(1))
    log.clock(40_000)
    accepted = publish_at(log, 40_000)
    # When it restarts, then it makes a new plan with a later second
    again = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 41_000, handed_over=None)
    assert again is not None
    assert again.publication.published_s > accepted.published_s
    # And a publisher that has handed over does not make a plan
    assert plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 41_000, handed_over=accepted) is None
