"""The plans and the checks of trials, without a farm: each check finds its kind of fault."""

import dataclasses
import errno
import json
import os

import pytest
from msgspec.structs import replace

from bridge.core.log.feature_level import SUPPORTED_LEVEL, UnsupportedLevelError
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode
from consensus.storage.disk import DiskHangsError
from tests.destinations import new_demo_leaf
from tests.effort import each_case, over_seeds
from tests.operator_views import farm_view
from tests.simulation.farm.checks import (
    Publication,
    base32_of,
    check_acknowledged,
    check_exclusions,
    check_linearizable,
    check_publications,
    objection_to_views,
    writes_in,
)
from tests.simulation.farm.nemeses import ENDING, Fault, Nemesis, draw_faults, explains_end
from tests.simulation.farm.operators import damage_reports
from tests.simulation.farm.workload import Call, Kind

NOW_S = 1_800_000_000
NAMES = ["node-1", "node-2", "node-3"]
MASTER, LEAF = new_master_key(), new_demo_leaf()
KEY = MASTER.sign_transient(NOW_S)


def entry(request: str, key: int, value: int) -> tuple[int, int, bytes]:
    return 1, 0, json.dumps({"request": request, "key": key, "value": value}).encode()


def write(request: str, value: int, called: int, answered: int | None, index: int | None) -> Call:
    return Call("c", Kind.WRITE, called, 0.0, key=0, value=value, request=request, answered=answered, index=index)


def read(found: dict[int, int], called: int, answered: int) -> Call:
    return Call("d", Kind.READ, called, 0.0, found=found, answered=answered)


def publication(after_s: int = 0, cost: int = 3) -> Publication:
    second_s = NOW_S + after_s
    structure = encode(KEY.sign(second_s, (MetaLease(LEAF.hash, cost=cost, ends_s=second_s + 900),)))
    return Publication(
        0.0, "node-1", MASTER.destination.hash, structure, second_s, is_agreed=True, excluded=frozenset()
    )


@over_seeds(20)
def test_faults_of_seed_repeat_and_end_within_time_limit(seed: int) -> None:
    faults = draw_faults(seed, NAMES, 60.0)
    assert faults == draw_faults(seed, NAMES, 60.0)
    assert all(0 <= each.at_s <= each.until_s <= 60.0 for each in faults)
    for number, first in enumerate(faults):
        for second in faults[number + 1 :]:
            both_end = {first.nemesis, second.nemesis} <= ENDING and set(first.hosts) & set(second.hosts)
            assert not both_end or second.at_s > first.until_s


def test_faults_of_each_kind_are_drawn() -> None:
    plans = (draw_faults(seed, NAMES, 240.0, has_routers=seed % 2 == 1, has_operator=True) for seed in range(40))
    assert {fault.nemesis for faults in plans for fault in faults} == set(Nemesis)


@each_case(
    ("leader", "removed", "found"),
    [(1, (), None), (3, (), "the leader is one of"), (1, ("node-2",), "has the members")],
)
def test_contradictory_views_are_found(leader: int, removed: tuple[str, ...], found: str | None) -> None:
    views = {}
    for number in (1, 2, 3):
        view = farm_view(number, leader=leader if number == 2 else 1, servers=3)
        farm, raft = replace(view.farm, level=SUPPORTED_LEVEL), replace(view.raft, learners=())
        views[f"node-{number}"] = replace(view, farm=farm, raft=raft)
    objection = objection_to_views(views, views.keys() - set(removed))
    assert objection is None if found is None else found in (objection or "")


def test_repeated_request_counts_once() -> None:
    writes = writes_in({1: entry("a-1-1", 0, 5), 2: entry("a-1-2", 0, 6), 3: entry("a-1-1", 0, 5)})
    assert {name: (each.index, each.before) for name, each in writes.items()} == {"a-1-1": (1, 0), "a-1-2": (2, 5)}


def test_lost_write_is_found() -> None:
    writes = writes_in({1: entry("a-1-1", 0, 5)})
    assert not list(check_acknowledged([write("a-1-1", 5, 1, 2, 1)], writes))
    assert list(check_acknowledged([write("a-1-2", 6, 3, 4, 2)], writes))
    assert list(check_acknowledged([write("a-1-1", 5, 1, 2, 7)], writes))


def test_stale_read_is_found() -> None:
    writes = writes_in({1: entry("a-1-1", 0, 5)})
    first = write("a-1-1", 5, 1, 2, 1)
    assert not list(check_linearizable([first, read({0: 5}, 3, 4)], writes))
    assert list(check_linearizable([first, read({}, 3, 4)], writes))
    assert list(check_linearizable([read({0: 5}, 1, 2), write("a-1-1", 5, 3, 4, 1)], writes))


def test_wrong_structures_are_found() -> None:
    masters = frozenset({MASTER.destination.hash})
    good = publication()
    assert not list(check_publications([good, publication(1)], masters, frozenset()))
    found = [each.check for each in check_publications([good, publication(cost=4)], masters, frozenset())]
    assert found == ["one structure per second"]
    found = [each.check for each in check_publications([good], masters, frozenset({b"other"}))]
    assert found == ["admitted signer"]
    assert [each.check for each in check_publications([good], frozenset(), frozenset())] == ["signed by the master"]


def test_published_excluded_leaf_is_found() -> None:
    assert not list(check_exclusions([publication()]))
    leaves = frozenset({base32_of(LEAF.hash)})
    known = dataclasses.replace(publication(), excluded=leaves)
    assert [each.check for each in check_exclusions([known])] == ["excluded leaf"]
    earlier = dataclasses.replace(publication(), excluded_before=leaves)
    assert [each.check for each in check_exclusions([earlier])] == ["earlier exclusion"]


def test_damage_reports_leave_out_other_failures() -> None:
    others = (os.strerror(errno.ENOSPC), str(UnsupportedLevelError(3, "0.1.0")), str(DiskHangsError()))
    texts = (*others, "damage at byte 7: move it away")
    failures = [(name, text) for text in texts for name in ("node-1", "node-2")]
    assert damage_reports(failures, "node-2") == [("node-2", texts[-1])]


@pytest.mark.parametrize(
    ("failure", "name", "explained"),
    [
        (os.strerror(errno.ENOSPC), "node-1", True),
        (str(DiskHangsError()), "node-1", True),
        (str(DiskHangsError()), "node-2", False),
        (str(UnsupportedLevelError(3, "0.1.0")), "node-2", True),
        (str(UnsupportedLevelError(3, "0.1.0")), "node-1", False),
        ("damage at byte 7: move it away", "node-1", False),
    ],
)
def test_end_of_process_needs_a_fault_that_explains_it(failure: str, name: str, explained: bool) -> None:  # noqa: FBT001 - a column of the table
    hangs = Fault(8, 9, Nemesis.HANGING_DISK, ("node-1",))
    outdated = Fault(8, 9, Nemesis.OLD_VERSION, ("node-2",))
    assert explains_end([hangs, outdated], name, failure) is explained
