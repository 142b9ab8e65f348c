"""The arrival of a Meta LeaseSet2 (a *structure*) in the network: the look-ups that count, and the time to settle."""

from msgspec.structs import replace

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import Measurement, Report
from bridge.core.publishing.arrival import KEPT_MS, LOOK_UPS_MAX, SETTLE_MS, SUCCESSION_MS, LookUps
from bridge.core.state.farm_state import StructureHandOver
from tests.effort import each_case
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, Log, report

HANDED_OVER = StructureHandOver(1, BASE_MS // 1000)
SETTLED_MS = BASE_MS + SETTLE_MS + PERIOD_MS


FIRST_MS = BASE_MS - 60_000
"""The first hand-over of server 1, before the last one at `BASE_MS`."""
PAUSED_MS = BASE_MS - SUCCESSION_MS - 1_000


def look_up(server_id: int, at_ms: int, *, found: bool) -> tuple[Report, int]:
    measured = Measurement(hash_of(MASTER), reachable=found)
    return replace(report(server_id), remote_metas=(measured,)), at_ms


def hand_over(at_ms: int, server_id: int = 1) -> tuple[Report, int]:
    return report(server_id, last_published_time_ms=at_ms), at_ms


@each_case(
    ("noted", "seen"),
    [
        ([], None),
        ([look_up(2, BASE_MS, found=True)], True),
        ([look_up(2, BASE_MS - 1, found=True)], None),
        ([look_up(1, BASE_MS + 1, found=True)], None),
        ([look_up(2, SETTLED_MS - 1, found=False)], None),
        ([look_up(2, SETTLED_MS, found=False)], False),
        ([look_up(2, SETTLED_MS, found=False), look_up(3, BASE_MS + 1, found=True)], True),
        ([look_up(1, SETTLED_MS, found=False)], None),
        ([hand_over(FIRST_MS), hand_over(BASE_MS), look_up(2, SETTLED_MS - 60_000, found=False)], False),
        ([hand_over(PAUSED_MS), hand_over(BASE_MS), look_up(2, SETTLED_MS - 60_000, found=False)], None),
        ([hand_over(PAUSED_MS + 1_000), hand_over(BASE_MS), look_up(2, BASE_MS, found=False)], False),
        ([hand_over(BASE_MS + 3_600_000), hand_over(BASE_MS), look_up(2, SETTLED_MS, found=False)], False),
        ([hand_over(FIRST_MS, 3), hand_over(BASE_MS), look_up(2, SETTLED_MS - 60_000, found=False)], None),
        ([hand_over(FIRST_MS), look_up(3, BASE_MS - 1, found=True), look_up(2, SETTLED_MS - 2, found=False)], None),
        ([hand_over(BASE_MS - 2 * KEPT_MS), hand_over(BASE_MS), look_up(2, BASE_MS - KEPT_MS - 1, found=False)], None),
    ],
    ids=[
        "none",
        "found",
        "found-before",
        "found-by-publisher",
        "too-early",
        "not-found",
        "found-by-one",
        "not-found-by-publisher",
        "not-found-since-first-hand-over",
        "too-early-after-pause",
        "not-found-since-earlier-hand-over",
        "log-time-moved-back",
        "new-publisher",
        "found-since-first-hand-over",
        "stopped-server",
    ],
)
def test_look_ups_decide_if_structure_is_seen(noted: list[tuple[Report, int]], seen: bool | None) -> None:  # noqa: FBT001
    look_ups = LookUps()
    for each, at_ms in noted:
        look_ups.note(each, at_ms)
    assert look_ups.is_seen(MASTER, HANDED_OVER, PERIOD_MS) is seen


def test_look_ups_keep_last_result_of_each_server() -> None:
    look_ups, master_hash = LookUps(), hash_of(MASTER)
    for server_id, reachable in ((3, False), (2, False), (2, True)):
        measured = Measurement(master_hash, reachable=reachable)
        look_ups.note(replace(report(server_id), remote_metas=(measured,)), BASE_MS + server_id)
    assert [(each.server_id, each.is_found, each.at_ms) for each in look_ups.of_others(MASTER, None)] == [
        (2, True, BASE_MS + 2),
        (3, False, BASE_MS + 3),
    ]
    assert [each.server_id for each in look_ups.of_others(MASTER, 2)] == [3]
    assert look_ups.of_others("another master", None) == ()


def test_look_up_of_standby_does_not_count() -> None:
    look_ups, found = LookUps(), Measurement(hash_of(MASTER), reachable=True)
    look_ups.note(replace(report(2, standby=True), remote_metas=(found,)), BASE_MS)
    assert look_ups.of_others(MASTER, None) == ()


def test_look_ups_of_invented_masters_are_bounded() -> None:
    look_ups = LookUps()
    for number in range(LOOK_UPS_MAX):
        look_ups.note(replace(report(2), remote_metas=(Measurement(f"{number}", reachable=True),)), BASE_MS)
    look_ups.note(replace(report(3), remote_metas=(Measurement(hash_of(MASTER), reachable=True),)), BASE_MS)
    assert len(look_ups.of_others(MASTER, None)) == 1
    assert len(look_ups) == LOOK_UPS_MAX


def test_last_hand_over_is_newest_that_is_not_in_the_future() -> None:
    log = Log(
        report(1, last_published_time_ms=BASE_MS - 5_000),
        report(2, last_published_time_ms=BASE_MS),
        report(3, last_published_time_ms=BASE_MS + 3_600_000),
    )
    assert log.farm.state.last_hand_over(MASTER) == StructureHandOver(2, BASE_MS // 1000)
    assert log.farm.state.last_hand_over("another master") is None
