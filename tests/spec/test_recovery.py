"""First state of a recovered cluster: the parts that it keeps of the surviving node, and the parts that it drops."""

from msgspec.structs import replace

from bridge.core.farm.state_machine import PublicationAccepted
from bridge.core.log.records import Admission, Clock, Publication
from bridge.core.membership.admission import Admitted, Standing
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.state.farm_state import FarmState
from bridge.core.state.recovery import LEASE_SET_SECONDS_MAX, Reset, recovered, refused_until_s
from tests.authored import AuthoredFarm
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, report

A, B, C = (bytes([number]) * 8 for number in (1, 2, 3))


def old_farm(publisher: int) -> FarmState:
    """Return a farm with the founders A, B and C and a publication of `publisher`; B survives."""
    log = Log(founders=(A, B, C))
    log.append(Admission(B, "node-b"))
    log.clock(120_000)
    # The farm chooses the first candidate, because no later candidate is better by the margin.
    log.append(*(report(each, BASE_MS + 120_000) for each in sorted((1, 2, 3), key=lambda each: each != publisher)))
    log.append(Publication(MASTER, log.publisher or 0, BASE_MS // 1000 + 120, "content"))
    assert log.master.publication is not None
    assert log.publisher == publisher
    return log.farm.state


def test_recovered_farm_admits_only_survivor() -> None:
    state = recovered(old_farm(1), B)
    assert state.admitted == {1: Admitted(B, "node-b")}
    farm = AuthoredFarm(BASE_MS, TUNING, founders=(B,))
    farm.restore(state, PERIOD_MS, farm.sessions.dump())
    farm.apply(1000, 9, Admission(C, "node-a"))
    assert farm.state.admitted[2] == Admitted(C, "node-a", unseen_since_ms=BASE_MS + 120_000)


def test_recovered_farm_keeps_evictions_and_survivor_key() -> None:
    before = old_farm(1)
    table = {**before.admitted, 2: Admitted(B, "node-b", b"public key"), 3: Admitted(C, "c", standing=Standing.EVICTED)}
    state = recovered(replace(before, admitted=table), B)
    assert state.admitted == {1: Admitted(B, "node-b", b"public key"), 2: Admitted(C, "c", standing=Standing.EVICTED)}
    farm = AuthoredFarm(BASE_MS, TUNING, founders=(B,))
    farm.restore(state, PERIOD_MS, farm.sessions.dump())
    farm.apply(1000, 9, Admission(C, "node-a"))
    farm.apply(1001, 9, Admission(A, "node-a"))
    assert farm.state.admitted[2].standing is Standing.EVICTED
    assert farm.state.admitted[3] == Admitted(A, "node-a", unseen_since_ms=BASE_MS + 120_000)


def test_recovered_farm_keeps_only_leaves_of_survivor() -> None:
    state = recovered(old_farm(1), B)
    assert list(state.servers) == [1]
    assert state.servers[1].report.server_id == 1
    assert [leaf.destination for leaf in state.servers[1].report.destinations] == ["leaf02"]


def test_recovered_farm_keeps_log_time_and_index() -> None:
    before = old_farm(1)
    state = recovered(before, B)
    assert (state.log_time_ms, state.applied_index) == (before.log_time_ms, before.applied_index)


def test_recovered_farm_publishes_later_second() -> None:
    for publisher in (1, 2):
        before = old_farm(publisher)
        last = before.masters[MASTER].publication
        assert last is not None
        log = Log()
        log.records = [Clock(0, 1)] * before.applied_index
        log.farm.restore(recovered(before, B), PERIOD_MS, log.farm.sessions.dump())
        log.append(report(1, BASE_MS + 120_000))
        assert log.publisher == 1
        assert log.leaves == {"leaf01": 0}
        planned = plan_publication(log.farm.state, MASTER, 1, Pace(), BASE_MS + 60_000, handed_over=None)
        assert planned is not None
        assert planned.publication.published_s > last.published_s
        assert log.append(planned.publication) == [PublicationAccepted(planned.publication)]


def test_survivor_without_report_keeps_last_publication() -> None:
    before = old_farm(1)
    without_report = replace(before, servers={each: state for each, state in before.servers.items() if each != 2})
    state = recovered(without_report, B)
    assert state.servers == {}
    assert state.masters[MASTER].publication is not None


def test_reset_log_time_caps_report_and_publisher_times() -> None:
    before = old_farm(2)
    assert before.servers[2].reported_ms > BASE_MS
    state = recovered(before, B, Reset(log_time_ms=BASE_MS))
    assert state.log_time_ms == state.servers[1].reported_ms == BASE_MS
    assert not state.stale(state.servers[1], TUNING)
    assert all(master.since_ms <= BASE_MS for master in state.masters.values())


def test_dropped_second_refused_only_while_in_future() -> None:
    farm = old_farm(1)
    last = farm.masters[MASTER].publication
    assert last is not None
    assert recovered(farm, B, Reset(second=True)).masters[MASTER].publication is None
    assert refused_until_s(farm, last.published_s + 1) is None
    assert refused_until_s(farm, last.published_s - 10) == last.published_s - 10 + LEASE_SET_SECONDS_MAX
