"""Selection of sixteen leaves: healthy ones first, listed ones before new ones, identical on all servers."""

from collections import Counter
from random import Random

import pytest
from msgspec.structs import replace

from bridge.core.publishing.entries import LEAVES_MAX
from bridge.core.publishing.lease_set import is_healthy, select_leaves
from bridge.core.state.farm_state import FarmState
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, leaf, report


def test_healthy_leaves_replace_leaves_of_dead_server() -> None:
    """A server that fills the structure with sixteen leaves dies. Five leaves of other servers are not listed yet."""
    log = Log(report(1, destinations=tuple(leaf(f"dead{number:02}") for number in range(LEAVES_MAX))))
    assert sorted(log.leaves) == [f"dead{number:02}" for number in range(LEAVES_MAX)]
    log.append(report(2, destinations=(leaf("a", load=0.5), leaf("b", load=0.9))))
    log.append(report(3, destinations=(leaf("c", load=1.0), leaf("d"), leaf("e", healthy=False))))
    log.append(report(2, BASE_MS + 2 * PERIOD_MS, destinations=(leaf("a", load=0.5), leaf("b", load=0.9))))
    log.append(report(3, BASE_MS + 2 * PERIOD_MS, destinations=(leaf("c"), leaf("d"), leaf("e", healthy=False))))
    log.clock(2 * PERIOD_MS)
    assert sorted(log.leaves) == ["a", "b", "c", "d", *(f"dead{number:02}" for number in range(5)), "e"]
    assert [name for name in log.leaves if log.leaves[name] < 100] == ["a", "b", "c", "d"]


def test_hostile_leaves_do_not_displace_correct_ones() -> None:
    """Without shares, a hostile member's leaves with cost 0 would take all sixteen places."""
    log = Log(report(4, destinations=tuple(leaf(f"hostile{number:02}") for number in range(64))))
    assert len(log.leaves) == LEAVES_MAX
    for server_id in (1, 2, 3):
        correct = (leaf(f"correct{server_id}a", load=0.9), leaf(f"correct{server_id}b", load=1.0))
        log.append(report(server_id, destinations=correct))
    assert {f"correct{server_id}{each}" for server_id in (1, 2, 3) for each in "ab"} <= log.leaves.keys()
    assert sum(name.startswith("hostile") for name in log.leaves) == LEAVES_MAX // 4


def test_claimed_leaves_use_places_of_claimant() -> None:
    """A leaf counts for the reporting node with the fewest leaves, so false claims do not displace correct leaves."""
    log = Log()
    correct = {
        server_id: tuple(leaf(f"correct{server_id}{each}", load=0.9) for each in "abcd") for server_id in (2, 3, 4)
    }
    claimed = tuple(replace(each, healthy=False) for leaves in correct.values() for each in leaves)
    log.append(report(1, destinations=(*claimed, *(leaf(f"hostile{number:02}") for number in range(52)))))
    for server_id, leaves in correct.items():
        log.append(report(server_id, destinations=leaves))
    assert {each.destination for leaves in correct.values() for each in leaves} <= log.leaves.keys()
    assert len(log.leaves) == LEAVES_MAX


def test_more_servers_than_places_get_one_each() -> None:
    log = Log(
        *(report(server_id, destinations=(leaf(f"{server_id}a"), leaf(f"{server_id}b"))) for server_id in range(1, 21))
    )
    assert len(log.leaves) == LEAVES_MAX
    assert len({name[:-1] for name in log.leaves}) == LEAVES_MAX


def test_server_at_limit_replaces_only_its_own_leaves() -> None:
    log = Log(report(1, destinations=tuple(leaf(f"one{number:02}", load=0.5) for number in range(8))))
    log.append(report(2, destinations=tuple(leaf(f"two{number:02}", load=0.9) for number in range(8))))
    log.append(report(1, destinations=(*(leaf(f"one{number:02}", load=0.5) for number in range(8)), leaf("cheap"))))
    assert "cheap" not in log.leaves
    log.clock(1)
    assert "cheap" in log.leaves
    assert sum(name.startswith("two") for name in log.leaves) == 8


def healthy_in(state: FarmState) -> set[str]:
    return {
        each.destination
        for server in state.serving(MASTER)
        for each in server.report.destinations
        if is_healthy(state, server, each, TUNING)
    }


def known_in(state: FarmState) -> set[str]:
    return {each.destination for server in state.serving(MASTER) for each in server.report.destinations}


def server_of(name: str) -> str:
    return name.partition("-")[0]


def random_period(log: Log, random: Random, number: int) -> None:
    """Append a period with random missing reports, unhealthy leaves and loads."""
    for server_id in (1, 2, 3):
        if random.random() < 0.2:
            continue
        leaves = tuple(
            leaf(f"{server_id}-{each:02}", healthy=random.random() < 0.6, load=random.random())
            for each in range(random.choice((2, 9, 18)))
        )
        log.append(report(server_id, BASE_MS + number * PERIOD_MS - 1_000, destinations=leaves))
    log.clock(number * PERIOD_MS)


@pytest.mark.parametrize("seed", range(8))
def test_list_full_within_limits_with_healthy_leaves_first(seed: int) -> None:
    log, random = Log(), Random(seed)
    unhealthy_listed = 0
    for number in range(1, 60):
        random_period(log, random, number)
        state = log.farm.state
        listed, healthy, known = set(log.leaves), healthy_in(state), known_in(state)
        label = f"seed {seed}, period {number}"
        assert listed <= known, label
        assert len(listed) <= LEAVES_MAX, label
        eligible = healthy if 2 * len(healthy) >= len(known) else known
        own = Counter(server_of(name) for name in eligible)
        per_server = LEAVES_MAX // len(own)
        assert len(listed) == sum(min(per_server, count) for count in own.values()), label
        places = Counter(server_of(name) for name in listed)
        assert max(places.values()) <= per_server, label
        for waiting in healthy - listed:
            server_id = server_of(waiting)
            assert places[server_id] == per_server, f"{label}: {waiting} is not listed, although its server has a place"
            unhealthy = {name for name in listed - healthy if server_of(name) == server_id}
            assert not unhealthy, f"{label}: {unhealthy} are listed, but {waiting} of the same server is not"
        unhealthy_listed += bool(listed - healthy)
    assert unhealthy_listed, "no period listed an unhealthy leaf"


@pytest.mark.parametrize("seed", range(4))
def test_selection_repeated_between_clock_entries_is_stable(seed: int) -> None:
    log, random = Log(), Random(seed)
    for number in range(1, 30):
        random_period(log, random, number)
        again = select_leaves(log.farm.state, MASTER, TUNING, at_clock=False)
        assert again == log.master.leaves, f"seed {seed}, period {number}"


@pytest.mark.parametrize("seed", range(4))
def test_selection_independent_of_table_order(seed: int) -> None:
    log, random = Log(), Random(seed)
    for number in range(1, 20):
        random_period(log, random, number)
        state = log.farm.state
        shuffled = list(state.servers.items())
        random.shuffle(shuffled)
        other = replace(state, servers=dict(shuffled))
        for at_clock in (False, True):
            chosen = select_leaves(state, MASTER, TUNING, at_clock=at_clock)
            assert select_leaves(other, MASTER, TUNING, at_clock=at_clock) == chosen, f"seed {seed}, period {number}"
