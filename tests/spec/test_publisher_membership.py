"""Which sixteen of many leaves are listed: the healthy first, members before newcomers, at every server the same."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from bridge.core.publishing.lease_set import LEAVES_MAX, is_healthy, select_leaves
from bridge.core.state.farm_state import FarmState
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, leaf, report


def test_healthy_leaves_take_the_places_of_a_dead_servers_leaves_at_once() -> None:
    """Sixteen leaves of one server fill the structure; it dies, and five leaves of two others wait outside."""
    log = Log()
    log.append(report(1, destinations=tuple(leaf(f"dead{number:02}") for number in range(LEAVES_MAX))))
    assert sorted(log.leaves) == [f"dead{number:02}" for number in range(LEAVES_MAX)]
    log.append(report(2, destinations=(leaf("a", load=0.5), leaf("b", load=0.9))))
    log.append(report(3, destinations=(leaf("c", load=1.0), leaf("d"), leaf("e", healthy=False))))
    log.append(report(2, BASE_MS + 2 * PERIOD_MS, destinations=(leaf("a", load=0.5), leaf("b", load=0.9))))
    log.append(report(3, BASE_MS + 2 * PERIOD_MS, destinations=(leaf("c"), leaf("d"), leaf("e", healthy=False))))
    log.clock(2 * PERIOD_MS)
    assert sorted(log.leaves) == ["a", "b", "c", "d", *(f"dead{number:02}" for number in range(5)), "e"]
    assert [name for name in log.leaves if log.leaves[name] < 100] == ["a", "b", "c", "d"]


def test_a_hostile_member_with_sixty_four_leaves_leaves_every_honest_one_its_place() -> None:
    """Its leaves cost nothing and came first: all sixteen places were its own, and none of the others'."""
    log = Log()
    log.append(report(4, destinations=tuple(leaf(f"hostile{number:02}") for number in range(64))))
    assert len(log.leaves) == LEAVES_MAX
    for server_id in (1, 2, 3):
        honest = (leaf(f"honest{server_id}a", load=0.9), leaf(f"honest{server_id}b", load=1.0))
        log.append(report(server_id, destinations=honest))
    assert {f"honest{server_id}{each}" for server_id in (1, 2, 3) for each in "ab"} <= log.leaves.keys()
    assert sum(name.startswith("hostile") for name in log.leaves) == LEAVES_MAX // 4


def test_a_node_that_claims_the_leaves_of_others_uses_up_its_own_places() -> None:
    """Counted to the node that claims more, or to the lower Raft id, honest leaves would wait behind hostile ones."""
    log = Log()
    honest = {
        server_id: tuple(leaf(f"honest{server_id}{each}", load=0.9) for each in "abcd") for server_id in (2, 3, 4)
    }
    claimed = tuple(replace(each, healthy=False) for leaves in honest.values() for each in leaves)
    log.append(report(1, destinations=(*claimed, *(leaf(f"hostile{number:02}") for number in range(52)))))
    for server_id, leaves in honest.items():
        log.append(report(server_id, destinations=leaves))
    assert {each.destination for leaves in honest.values() for each in leaves} <= log.leaves.keys()
    assert len(log.leaves) == LEAVES_MAX


def test_of_more_servers_than_places_each_has_one_at_most() -> None:
    log = Log()
    log.append(
        *(report(server_id, destinations=(leaf(f"{server_id}a"), leaf(f"{server_id}b"))) for server_id in range(1, 21))
    )
    assert len(log.leaves) == LEAVES_MAX
    assert len({name[:-1] for name in log.leaves}) == LEAVES_MAX


def test_a_server_at_its_limit_exchanges_its_own_leaves_alone() -> None:
    log = Log()
    log.append(report(1, destinations=tuple(leaf(f"one{number:02}", load=0.5) for number in range(8))))
    log.append(report(2, destinations=tuple(leaf(f"two{number:02}", load=0.9) for number in range(8))))
    log.append(report(1, destinations=(*(leaf(f"one{number:02}", load=0.5) for number in range(8)), leaf("cheap"))))
    assert "cheap" not in log.leaves
    log.clock(1)
    assert "cheap" in log.leaves
    assert sum(name.startswith("two") for name in log.leaves) == 8


def healthy_in(state: FarmState) -> set[str]:
    """The destinations that count as healthy."""
    return {
        each.destination
        for server in state.serving(MASTER)
        for each in server.report.destinations
        if is_healthy(state, server, each, TUNING)
    }


def known_in(state: FarmState) -> set[str]:
    """All destinations that any node reports."""
    return {each.destination for server in state.serving(MASTER) for each in server.report.destinations}


def server_of(name: str) -> str:
    """Who reports a leaf of these stories."""
    return name.partition("-")[0]


def eventful(log: Log, random: Random, number: int) -> None:
    """A period in which servers fall silent, leaves fall ill, and loads wander."""
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
def test_whatever_happens_the_list_is_full_within_its_limits_and_healthy_first(seed: int) -> None:
    log, random = Log(), Random(seed)
    ill_listed = 0
    for number in range(1, 60):
        eventful(log, random, number)
        state = log.farm.state
        listed, healthy, known = set(log.leaves), healthy_in(state), known_in(state)
        says = f"seed {seed}, period {number}"
        assert listed <= known, says
        assert len(listed) <= LEAVES_MAX, says
        wanted = healthy if 2 * len(healthy) >= len(known) else known
        own = Counter(server_of(name) for name in wanted)
        each_may_have = LEAVES_MAX // len(own)
        assert len(listed) == sum(min(each_may_have, count) for count in own.values()), says
        places = Counter(server_of(name) for name in listed)
        assert max(places.values()) <= each_may_have, says
        for waiting in healthy - listed:
            server_id = server_of(waiting)
            assert places[server_id] == each_may_have, f"{says}: {waiting} waits though its server has room"
            ill = {name for name in listed - healthy if server_of(name) == server_id}
            assert not ill, f"{says}: {ill} are listed while the healthy {waiting} of the same server waits"
        ill_listed += bool(listed - healthy)
    assert ill_listed, "the story never came to the point"


@pytest.mark.parametrize("seed", range(4))
def test_a_second_election_from_the_same_state_changes_nothing_between_clock_entries(seed: int) -> None:
    log, random = Log(), Random(seed)
    for number in range(1, 30):
        eventful(log, random, number)
        again = select_leaves(log.farm.state, MASTER, TUNING, at_clock=False)
        assert again == log.master.leaves, f"seed {seed}, period {number}"


@pytest.mark.parametrize("seed", range(4))
def test_the_choice_does_not_depend_on_the_order_in_which_a_server_holds_its_tables(seed: int) -> None:
    log, random = Log(), Random(seed)
    for number in range(1, 20):
        eventful(log, random, number)
        state = log.farm.state
        shuffled = list(state.servers.items())
        random.shuffle(shuffled)
        other = replace(state, servers=dict(shuffled))
        for at_clock in (False, True):
            chosen = select_leaves(state, MASTER, TUNING, at_clock=at_clock)
            assert select_leaves(other, MASTER, TUNING, at_clock=at_clock) == chosen, f"seed {seed}, period {number}"
