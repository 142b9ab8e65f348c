"""Publishing while the log stands still, and how the log goes on afterwards (docs/explanation/publishing.md)."""

from dataclasses import replace

import pytest

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
"""The log's last entry is so much after the base; what follows happens without it."""
NODE_IDS = {1: b"node-ccc", 2: b"node-bbb", 3: b"node-aaa"}


def farm_of_three(*last_reports: Report, published: bool = True) -> Log:
    """Servers 1, 2 and 3 with a leaf each, of which server 1 has published; the log ends after the last reports."""
    log = Log()
    log.append(*(report(server_id) for server_id in (1, 2, 3)))
    log.clock(OUTAGE_MS)
    log.append(*(report(server_id, BASE_MS + OUTAGE_MS) for server_id in (1, 2, 3)), *last_reports)
    if published:
        [planned] = [plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + OUTAGE_MS, handed_over=None)]
        assert planned is not None
        assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]
    return log


def state_of(log: Log) -> FarmState:
    """Its state, with the identities of the servers."""
    admitted = {server_id: Admitted(node_id) for server_id, node_id in NODE_IDS.items()}
    return replace(log.farm.state, admitted=admitted)


def acting(log: Log, own: Report, *reachable: int) -> int | None:
    """Who publishes, as the sender of `own` sees it."""
    around = LocalObservations(own, frozenset(reachable))
    return acting_publisher(state_of(log), MASTER, around, (BASE_MS + OUTAGE_MS) // 1000)


def plan(
    log: Log, own: Report, *reachable: int, after_ms: int = 120_000, handed_over: Publication | None = None
) -> PlannedPublication | None:
    """What the sender of `own` publishes that much after the base."""
    around = LocalObservations(own, frozenset(reachable))
    return plan_without_quorum(state_of(log), MASTER, TUNING, PACE, around, BASE_MS + after_ms, handed_over=handed_over)


def costs(planned: PlannedPublication | None) -> dict[str, int]:
    """The planned entries."""
    assert planned is not None
    return {entry.destination: entry.cost for entry in planned.entries}


# -- who ---------------------------------------------------------------------------------------------------------------


def test_the_server_that_published_last_goes_on_while_it_lives() -> None:
    log = farm_of_three()
    assert acting(log, report(1), 2, 3) == 1
    assert acting(log, report(3), 1, 2) == 1


def test_if_it_is_gone_the_lowest_node_id_of_those_that_are_left_publishes_and_not_the_lowest_raft_id() -> None:
    log = farm_of_three()
    assert acting(log, report(2), 3) == 3
    assert acting(log, report(3), 2) == 3
    assert acting(log, report(2)) == 2


@pytest.mark.parametrize(
    "unable",
    [
        {"can_sign_until_s": None},
        {"can_sign_until_s": (BASE_MS + OUTAGE_MS) // 1000 + 600},
        {"publish_config": PublishConfig.OFF},
        {"attached": False},
        {"destination": "another~master=="},
    ],
    ids=["no key", "its key ends", "publishing is off", "no router", "another master"],
)
def test_an_unable_server_is_passed_over_be_it_this_server_or_another(unable: dict[str, object]) -> None:
    of_three = report(3, BASE_MS + OUTAGE_MS, **unable)
    assert acting(farm_of_three(of_three), report(2), 3) == 2
    assert acting(farm_of_three(), of_three, 2) == 2
    assert acting(farm_of_three(), of_three) is None


def test_a_server_whose_clock_contradicts_the_log_publishes_nothing() -> None:
    log = farm_of_three(report(3, BASE_MS + OUTAGE_MS + 600_000))
    assert acting(log, report(2), 3) == 2


def test_a_server_that_a_person_took_out_of_the_farm_publishes_nothing() -> None:
    log, around = farm_of_three(), LocalObservations(report(2), frozenset({3}))
    state = state_of(log)
    evicted = {**state.admitted, 3: replace(state.admitted[3], standing=Standing.EVICTED)}
    for without in (replace(state, removed=(3,)), replace(state, admitted=evicted)):
        assert acting_publisher(without, MASTER, around, BASE_MS // 1000) == 2


def test_before_anything_was_published_the_chosen_server_is_the_one() -> None:
    assert acting(farm_of_three(published=False), report(3), 1, 2) == 1


# -- what --------------------------------------------------------------------------------------------------------------


def test_leaves_of_servers_that_gossip_holds_for_dead_are_left_out_as_if_they_were_silent() -> None:
    assert costs(plan(farm_of_three(), report(3), 2)) == {"leaf02": 0, "leaf03": 0}


def test_when_fewer_than_half_are_left_all_are_listed_and_the_dead_ones_cost_more() -> None:
    assert costs(plan(farm_of_three(), report(3))) == {"leaf01": 100, "leaf02": 100, "leaf03": 0}


def test_this_servers_own_health_counts_as_it_is_and_not_as_it_was_reported() -> None:
    ill = report(3, destinations=(leaf("leaf03", healthy=False),))
    assert costs(plan(farm_of_three(), ill, 2)) == {"leaf01": 100, "leaf02": 0, "leaf03": 100}
    new = report(3, destinations=(leaf("leaf03"), leaf("leaf04")))
    assert costs(plan(farm_of_three(), new, 2)) == {"leaf02": 0, "leaf03": 0, "leaf04": 0}


def test_what_an_operator_excluded_stays_out_and_its_factors_count() -> None:
    log = farm_of_three(report(2, BASE_MS + OUTAGE_MS, destinations=(leaf("leaf02", load=1.0),)))
    loaded = costs(plan(log, report(3), 2))["leaf02"]
    log.append(CostFactor(hash_of("leaf02"), 2.0), Exclusion(hash_of("leaf01"), excluded=True))
    assert costs(plan(log, report(3), 2)) == {"leaf02": 2 * loaded, "leaf03": 0}
    assert "leaf01" not in costs(plan(log, report(3)))


def test_there_is_never_a_publication_without_entries() -> None:
    log = Log()
    log.append(*(report(each, destinations=()) for each in (1, 2, 3)))
    log.clock(OUTAGE_MS)
    assert plan(log, report(3, destinations=())) is None
    all_ill = report(3, destinations=(leaf("leaf03", healthy=False),))
    assert costs(plan(farm_of_three(), all_ill)) == {"leaf01": 100, "leaf02": 100, "leaf03": 100}


def test_entries_last_for_a_quarter_of_an_hour_beyond_the_next_refresh() -> None:
    planned = plan(farm_of_three(), report(3), 2, after_ms=120_000)
    assert planned is not None
    assert {entry.end_s for entry in planned.entries} == {(BASE_MS + 120_000) // 1000 + 330 + 900}


def test_a_master_that_the_farm_never_heard_of_is_not_published() -> None:
    assert plan(Log(), report(3)) is None


# -- when --------------------------------------------------------------------------------------------------------------


def test_a_node_that_steps_in_publishes_at_once_and_later_than_what_was_committed() -> None:
    log = farm_of_three()
    committed = log.master.publication
    planned = plan(log, report(3), 2, after_ms=OUTAGE_MS)
    assert planned is not None
    assert committed is not None
    assert planned.publication.published_s == committed.published_s + 1
    assert planned.publication.server_id == 3


def test_the_last_publisher_refreshes_when_it_would_have_done_so_anyway() -> None:
    log = farm_of_three()
    committed = log.master.publication
    assert plan(log, report(1), 2, 3, after_ms=OUTAGE_MS + 200_000, handed_over=committed) is None
    assert plan(log, report(1), 2, 3, after_ms=OUTAGE_MS + 331_000, handed_over=committed) is not None


def test_a_change_is_published_but_not_sooner_than_65_seconds_after_the_last_one() -> None:
    log = farm_of_three()
    first = plan(log, report(3), 2, after_ms=120_000)
    assert first is not None
    handed_over = first.publication
    assert plan(log, report(3), 2, after_ms=190_000, handed_over=handed_over) is None
    assert plan(log, report(3), after_ms=184_000, handed_over=handed_over) is None
    second = plan(log, report(3), after_ms=185_000, handed_over=handed_over)
    assert costs(second) == {"leaf01": 100, "leaf02": 100, "leaf03": 0}


def test_seconds_rise_even_if_the_clock_does_not() -> None:
    log = farm_of_three()
    late = Publication(MASTER, 3, BASE_MS // 1000 + 900, "other content")
    planned = plan(log, report(3), 2, after_ms=120_000, handed_over=late)
    assert planned is None
    planned = plan(log, report(3), 2, after_ms=900_000 + 64_500, handed_over=late)
    assert planned is None
    planned = plan(log, report(3), 2, after_ms=900_000 + 65_500, handed_over=late)
    assert planned is not None
    assert planned.publication.published_s > late.published_s


# -- afterwards --------------------------------------------------------------------------------------------------------


def after_an_outage(unfenced_s: int) -> Log:
    """The log moves again at 600 s, and server 3 reports what it published alone; server 1 is the publisher as ever."""
    log = farm_of_three()
    log.leap(600_000)
    log.append(*(report(each, BASE_MS + 600_000) for each in (1, 2)))
    log.append(report(3, BASE_MS + 600_000, last_published_time_ms=unfenced_s * 1000))
    assert log.publisher == 1
    return log


def test_the_next_committed_publication_is_later_than_what_was_published_without_a_quorum() -> None:
    unfenced_s = BASE_MS // 1000 + 605
    log = after_an_outage(unfenced_s)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    assert planned.publication.published_s == unfenced_s + 1
    assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]


def test_a_publication_that_was_planned_before_that_was_known_is_refused() -> None:
    log = after_an_outage(BASE_MS // 1000 + 605)
    [refused] = log.append(Publication(MASTER, 1, BASE_MS // 1000 + 605, "content"))
    assert isinstance(refused, PublicationRefused)
    assert "without a quorum" in refused.reason


def test_a_publisher_that_was_overtaken_publishes_at_once_what_has_not_changed() -> None:
    log = after_an_outage(BASE_MS // 1000 + 599)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    log.append(planned.publication)
    again = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 700_000, handed_over=planned.publication)
    assert again is None


def test_a_second_from_a_clock_that_is_far_ahead_binds_no_publisher() -> None:
    log = after_an_outage(BASE_MS // 1000 + 10_000)
    planned = plan_publication(log.farm.state, MASTER, 1, PACE, BASE_MS + 600_000, handed_over=log.master.publication)
    assert planned is not None
    assert planned.publication.published_s == BASE_MS // 1000 + 600
    assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]


# -- whether there is a quorum -----------------------------------------------------------------------------------------


def test_there_is_no_quorum_once_no_clock_entry_has_come_for_two_and_a_half_periods() -> None:
    watch = QuorumWatch(now=0)
    watch.clock_committed(now=10_000)
    assert watch.lost_for_ms(now=85_000, period_ms=30_000, election_timeout_ms=1_000) is None
    assert watch.lost_for_ms(now=85_001, period_ms=30_000, election_timeout_ms=1_000) == 75_001
    watch.clock_committed(now=90_000)
    assert watch.lost_for_ms(now=90_000, period_ms=30_000, election_timeout_ms=1_000) is None


def test_an_election_is_no_outage_however_short_the_period_is() -> None:
    watch = QuorumWatch(now=0)
    assert watch.lost_for_ms(now=5_000, period_ms=500, election_timeout_ms=1_000) is None
    assert watch.lost_for_ms(now=5_001, period_ms=500, election_timeout_ms=1_000) == 5_001


def test_servers_that_are_far_apart_have_the_time_of_three_elections() -> None:
    watch = QuorumWatch(now=0)
    assert watch.lost_for_ms(now=90_000, period_ms=30_000, election_timeout_ms=30_000) is None
    assert watch.lost_for_ms(now=90_001, period_ms=30_000, election_timeout_ms=30_000) == 90_001


def test_a_node_that_has_just_been_started_waits_as_long_and_knows_that_the_log_has_not_moved() -> None:
    watch = QuorumWatch(now=1_000)
    assert not watch.moved
    assert watch.lost_for_ms(now=76_000, period_ms=30_000, election_timeout_ms=1_000) is None
    assert watch.lost_for_ms(now=76_001, period_ms=30_000, election_timeout_ms=1_000) == 75_001
