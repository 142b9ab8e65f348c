"""Publishing while the log does not advance, and the log after that outage (docs/explanation/publishing.md)."""

import pytest
from msgspec.structs import replace

from bridge.core.farm.state_machine import PublicationAccepted, PublicationRefused
from bridge.core.log.hashes import hash_of
from bridge.core.log.records import CostFactor, Exclusion, Publication, PublishConfig, Report
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.publishing.publication import Pace, PlannedPublication, plan_publication
from bridge.core.publishing.without_quorum import LocalObservations, QuorumWatch, acting_publisher, plan_without_quorum
from bridge.core.state.farm_state import FarmState
from tests.spec.farm_stories import BASE_MS, MASTER, TUNING, Log, leaf, report

PACE = Pace()
OUTAGE_MS = 30_000
"""Time of the last log entry after the base; the outage begins there."""
NODE_IDS = {1: b"node-ccc", 2: b"node-bbb", 3: b"node-aaa"}


def farm_of_three(*last_reports: Report, published: bool = True) -> Log:
    """Return a log of servers 1, 2 and 3 with a leaf each and a publication of server 1, up to the last reports."""
    log = Log(*(report(server_id) for server_id in (1, 2, 3)))
    log.clock(OUTAGE_MS)
    log.append(*(report(server_id, BASE_MS + OUTAGE_MS) for server_id in (1, 2, 3)), *last_reports)
    if published:
        [planned] = [plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + OUTAGE_MS, handed_over=None)]
        assert planned is not None
        assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]
    return log


def state_of(log: Log) -> FarmState:
    admitted = {server_id: Admitted(node_id) for server_id, node_id in NODE_IDS.items()}
    return replace(log.farm.state, admitted=admitted)


def publisher_seen_by(log: Log, own: Report, *reachable: int) -> int | None:
    """Return the publisher in the view of the sender of `own`."""
    around = LocalObservations(own, frozenset(reachable))
    return acting_publisher(state_of(log), MASTER, around, (BASE_MS + OUTAGE_MS) // 1000)


def plan(
    log: Log, own: Report, *reachable: int, after_ms: int = 120_000, handed_over: Publication | None = None
) -> PlannedPublication | None:
    """Return the plan of the sender of `own` at that time after the base."""
    around = LocalObservations(own, frozenset(reachable))
    return plan_without_quorum(state_of(log), MASTER, TUNING, PACE, around, BASE_MS + after_ms, handed_over=handed_over)


def costs(planned: PlannedPublication | None) -> dict[str, int]:
    assert planned is not None
    return {entry.destination: entry.cost for entry in planned.entries}


# -- the publisher


def test_live_last_publisher_keeps_publishing() -> None:
    log = farm_of_three()
    assert publisher_seen_by(log, report(1), 2, 3) == 1
    assert publisher_seen_by(log, report(3), 1, 2) == 1


def test_lowest_live_node_id_publishes_next() -> None:
    log = farm_of_three()
    assert publisher_seen_by(log, report(2), 3) == 3
    assert publisher_seen_by(log, report(3), 2) == 3
    assert publisher_seen_by(log, report(2)) == 2


@pytest.mark.parametrize(
    "unable",
    [
        {"can_sign_until_s": None},
        {"can_sign_until_s": (BASE_MS + OUTAGE_MS) // 1000 + 600},
        {"publish_config": PublishConfig.OFF},
        {"attached": False},
        {"destination": "another~master=="},
    ],
    ids=["no key", "key ends", "publishing off", "no router", "other master"],
)
def test_unable_server_is_skipped(unable: dict[str, object]) -> None:
    of_three = report(3, BASE_MS + OUTAGE_MS, **unable)
    assert publisher_seen_by(farm_of_three(of_three), report(2), 3) == 2
    assert publisher_seen_by(farm_of_three(), of_three, 2) == 2
    assert publisher_seen_by(farm_of_three(), of_three) is None


def test_server_with_contradicting_clock_is_skipped() -> None:
    log = farm_of_three(report(3, BASE_MS + OUTAGE_MS + 600_000))
    assert publisher_seen_by(log, report(2), 3) == 2


def test_removed_or_evicted_server_is_skipped() -> None:
    log, around = farm_of_three(), LocalObservations(report(2), frozenset({3}))
    state = state_of(log)
    evicted = {**state.admitted, 3: replace(state.admitted[3], standing=Standing.EVICTED)}
    for without in (replace(state, removed=(3,)), replace(state, admitted=evicted)):
        assert acting_publisher(without, MASTER, around, BASE_MS // 1000) == 2


def test_chosen_server_publishes_first() -> None:
    assert publisher_seen_by(farm_of_three(published=False), report(3), 1, 2) == 1


# -- the entries


def test_leaves_of_dead_servers_left_out() -> None:
    assert costs(plan(farm_of_three(), report(3), 2)) == {"leaf02": 0, "leaf03": 0}


def test_leaves_all_listed_if_majority_is_dead() -> None:
    assert costs(plan(farm_of_three(), report(3))) == {"leaf01": 100, "leaf02": 100, "leaf03": 0}


def test_own_health_counts_as_measured_not_as_reported() -> None:
    unhealthy = report(3, destinations=(leaf("leaf03", healthy=False),))
    assert costs(plan(farm_of_three(), unhealthy, 2)) == {"leaf01": 100, "leaf02": 0, "leaf03": 100}
    new = report(3, destinations=(leaf("leaf03"), leaf("leaf04")))
    assert costs(plan(farm_of_three(), new, 2)) == {"leaf02": 0, "leaf03": 0, "leaf04": 0}


def test_exclusions_and_cost_factors_stay_in_effect() -> None:
    log = farm_of_three(report(2, BASE_MS + OUTAGE_MS, destinations=(leaf("leaf02", load=1.0),)))
    loaded = costs(plan(log, report(3), 2))["leaf02"]
    log.append(CostFactor(hash_of("leaf02"), 2.0), Exclusion(hash_of("leaf01"), excluded=True))
    assert costs(plan(log, report(3), 2)) == {"leaf02": 2 * loaded, "leaf03": 0}
    assert "leaf01" not in costs(plan(log, report(3)))


def test_publication_without_entries_is_not_planned() -> None:
    log = Log(*(report(each, destinations=()) for each in (1, 2, 3)))
    log.clock(OUTAGE_MS)
    assert plan(log, report(3, destinations=())) is None
    all_unhealthy = report(3, destinations=(leaf("leaf03", healthy=False),))
    assert costs(plan(farm_of_three(), all_unhealthy)) == {"leaf01": 100, "leaf02": 100, "leaf03": 100}


def test_entries_outlast_next_refresh_by_fifteen_minutes() -> None:
    planned = plan(farm_of_three(), report(3), 2, after_ms=120_000)
    assert planned is not None
    assert {entry.end_s for entry in planned.entries} == {(BASE_MS + 120_000) // 1000 + 330 + 900}


def test_unknown_master_is_not_published() -> None:
    assert plan(Log(), report(3)) is None


# -- the time


def test_new_publisher_publishes_after_committed_second() -> None:
    log = farm_of_three()
    committed = log.master.publication
    planned = plan(log, report(3), 2, after_ms=OUTAGE_MS)
    assert planned is not None
    assert committed is not None
    assert planned.publication.published_s == committed.published_s + 1
    assert planned.publication.server_id == 3


def test_last_publisher_refreshes_at_its_usual_time() -> None:
    log = farm_of_three()
    committed = log.master.publication
    assert plan(log, report(1), 2, 3, after_ms=OUTAGE_MS + 200_000, handed_over=committed) is None
    assert plan(log, report(1), 2, 3, after_ms=OUTAGE_MS + 331_000, handed_over=committed) is not None


def test_change_published_after_65_seconds_at_earliest() -> None:
    log = farm_of_three()
    first = plan(log, report(3), 2, after_ms=120_000)
    assert first is not None
    handed_over = first.publication
    assert plan(log, report(3), 2, after_ms=190_000, handed_over=handed_over) is None
    assert plan(log, report(3), after_ms=184_000, handed_over=handed_over) is None
    second = plan(log, report(3), after_ms=185_000, handed_over=handed_over)
    assert costs(second) == {"leaf01": 100, "leaf02": 100, "leaf03": 0}


def test_published_second_rises_without_clock() -> None:
    log = farm_of_three()
    late = Publication(MASTER, 3, BASE_MS // 1000 + 900, "other content")
    planned = plan(log, report(3), 2, after_ms=120_000, handed_over=late)
    assert planned is None
    planned = plan(log, report(3), 2, after_ms=900_000 + 64_500, handed_over=late)
    assert planned is None
    planned = plan(log, report(3), 2, after_ms=900_000 + 65_500, handed_over=late)
    assert planned is not None
    assert planned.publication.published_s > late.published_s


# -- after the outage


def after_an_outage(unfenced_s: int) -> Log:
    """Return a log that advances again at 600 s. Server 3 reports its publication; server 1 is the publisher."""
    log = farm_of_three()
    log.leap(600_000)
    log.append(*(report(each, BASE_MS + 600_000) for each in (1, 2)))
    log.append(report(3, BASE_MS + 600_000, last_published_time_ms=unfenced_s * 1000))
    assert log.publisher == 1
    return log


def test_next_committed_publication_after_unfenced_second() -> None:
    unfenced_s = BASE_MS // 1000 + 605
    log = after_an_outage(unfenced_s)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    assert planned.publication.published_s == unfenced_s + 1
    assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]


def test_publication_planned_before_report_refused() -> None:
    log = after_an_outage(BASE_MS // 1000 + 605)
    [refused] = log.append(Publication(MASTER, 1, BASE_MS // 1000 + 605, "content"))
    assert isinstance(refused, PublicationRefused)
    assert "without a quorum" in refused.reason


def test_overtaken_publisher_republishes_immediately() -> None:
    log = after_an_outage(BASE_MS // 1000 + 599)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    log.append(planned.publication)
    again = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 700_000, handed_over=planned.publication)
    assert again is None


def test_second_of_clock_far_ahead_ignored() -> None:
    log = after_an_outage(BASE_MS // 1000 + 10_000)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    assert planned.publication.published_s == BASE_MS // 1000 + 600
    assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]


# -- detection of the outage


def test_quorum_lost_after_two_and_half_periods() -> None:
    watch = QuorumWatch(now=0)
    watch.clock_committed(now=10_000)
    assert watch.left_ms(now=85_000, period_ms=30_000, election_timeout_ms=1_000) == 0
    assert watch.left_ms(now=85_001, period_ms=30_000, election_timeout_ms=1_000) == -1
    watch.clock_committed(now=90_000)
    assert watch.left_ms(now=90_000, period_ms=30_000, election_timeout_ms=1_000) == 75_000


def test_election_is_not_outage_with_short_period() -> None:
    watch = QuorumWatch(now=0)
    assert watch.left_ms(now=5_001, period_ms=500, election_timeout_ms=1_000) == -1


def test_quorum_loss_waits_three_election_timeouts() -> None:
    watch = QuorumWatch(now=0)
    assert watch.left_ms(now=90_001, period_ms=30_000, election_timeout_ms=30_000) == -1


def test_started_node_waits_full_time_with_unmoved_log() -> None:
    watch = QuorumWatch(now=1_000)
    assert not watch.moved
    assert watch.left_ms(now=76_001, period_ms=30_000, election_timeout_ms=1_000) == -1
