"""Exhaustive breadth-first search: it visits every state of a world once, and checks every claim in it.

States are equal up to a permutation of servers that leaves the initial configurations unchanged: no action and no claim
depends on a server's number. One state of each class is kept. Servers and records repeat in many states, so each gets a
number, and a state is a tuple of numbers.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise, permutations
from typing import Generic, TypeVar

from tests.spec.model.actions import Actions
from tests.spec.model.invariants import broken_in_state, broken_in_step
from tests.spec.model.rules import Rules
from tests.spec.model.state import NO_SERVER, Configuration, Log, Node, State, TermRecord, Version
from tests.spec.model.worlds import Action, World

Part = TypeVar("Part")
Order = tuple[int, ...]
"""A permutation: server `n` becomes server `order[n]`."""


@dataclass(frozen=True, slots=True)
class Exploration:
    """The result: the covered states, and the shortest story of a broken claim."""

    states: int
    transitions: int
    depth: int
    seconds: float
    """Processor time."""
    is_complete: bool
    broken: str | None = None
    story: tuple[Action, ...] = ()


class Numbering:
    """Numbers of servers and records, and the numbers of their permutations."""

    def __init__(self, world: World) -> None:
        places = range(len(world.initial))
        self.orders = [
            order for order in permutations(places) if _permuted_initial(world.initial, order) == world.initial
        ]
        self._nodes = _Table(self.orders, _permuted_node)
        self._records = _Table(self.orders, _permuted_record)

    def key(self, state: State) -> tuple[int, ...]:
        """Return the same numbers for all states that differ by a permutation only."""
        nodes = [self._nodes.numbers(node) for node in state.nodes]
        records = [self._records.numbers(record) for record in state.records]
        best: tuple[int, ...] | None = None
        for place, order in enumerate(self.orders):
            moved = [0] * len(nodes)
            for server, numbers in enumerate(nodes):
                moved[order[server]] = numbers[place]
            key = (*moved, *(numbers[place] for numbers in records), state.crashes, state.changes)
            if best is None or key < best:
                best = key
        assert best is not None
        return best

    def state(self, key: tuple[int, ...]) -> State:
        servers = len(self.orders[0])
        nodes = tuple(self._nodes.values[number] for number in key[:servers])
        records = tuple(self._records.values[number] for number in key[servers:-2])
        return State(nodes, records, *key[-2:])


class _Table(Generic[Part]):
    def __init__(self, orders: list[Order], permute: Callable[[Part, Order], Part]) -> None:
        self.values: list[Part] = []
        self._orders = orders
        self._permute = permute
        self._known: dict[Part, int] = {}
        self._permuted: dict[Part, tuple[int, ...]] = {}

    def numbers(self, value: Part) -> tuple[int, ...]:
        """Return the numbers of the value under every permutation."""
        found = self._permuted.get(value)
        if found is None:
            found = self._permuted[value] = tuple(self._number(self._permute(value, order)) for order in self._orders)
        return found

    def _number(self, value: Part) -> int:
        number = self._known.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


def explore(world: World, rules: Rules | None = None, states_max: int | None = None) -> Exploration:
    """Visit every state of the world, or stop at the first broken claim or after `states_max` states."""
    began, actions, numbering = time.process_time(), Actions(rules), Numbering(world)
    first = numbering.key(world.start(actions))
    parents: dict[tuple[int, ...], tuple[int, ...] | None] = {first: None}
    level, depth, transitions = [first], 0, 0

    def result(
        broken: str | None = None, last: tuple[int, ...] | None = None, step: Action | None = None
    ) -> Exploration:
        story = () if last is None or step is None else (*_story(world, actions, numbering, parents, last), step)
        complete = broken is None and not level
        seconds = time.process_time() - began
        return Exploration(len(parents), transitions, depth, seconds, complete, broken, story)

    while level:
        depth += 1
        following: list[tuple[int, ...]] = []
        for key in level:
            state = numbering.state(key)
            for action, successor in world.successors(actions, state):
                transitions += 1
                broken = broken_in_step(state, successor, action.server)
                reached = numbering.key(successor)
                if reached not in parents:
                    parents[reached] = key
                    following.append(reached)
                    broken = broken or broken_in_state(successor)
                if broken is not None:
                    return result(broken, key, action)
            if states_max is not None and len(parents) >= states_max:
                return result()
        level = following
    return result()


def _story(
    world: World,
    actions: Actions,
    numbering: Numbering,
    parents: dict[tuple[int, ...], tuple[int, ...] | None],
    last: tuple[int, ...],
) -> Iterator[Action]:
    """Yield the actions from the first state to `last`; the numbers of servers may change between two actions."""
    path = [last]
    while (parent := parents[path[-1]]) is not None:
        path.append(parent)
    path.reverse()
    for before, after in pairwise(path):
        yield next(
            action
            for action, successor in world.successors(actions, numbering.state(before))
            if numbering.key(successor) == after
        )


def _permuted_mask(mask: int, order: Order) -> int:
    return sum(1 << place for server, place in enumerate(order) if mask >> server & 1)


def _permuted_configuration(configuration: Configuration, order: Order) -> Configuration:
    return tuple(_permuted_mask(voters, order) for voters in configuration)


def _permuted_initial(initial: tuple[Configuration, ...], order: Order) -> tuple[Configuration, ...]:
    return tuple(_permuted_configuration(each, order) for each in _moved(initial, order))


def _moved(values: tuple[Part, ...], order: Order) -> tuple[Part, ...]:
    return tuple(value for _, value in sorted(zip(order, values, strict=True), key=lambda pair: pair[0]))


def _permuted_log(log: Log, order: Order) -> Log:
    return tuple(entry._replace(configuration=_permuted_configuration(entry.configuration, order)) for entry in log)


def _permuted_vote(vote: int, order: Order) -> int:
    return vote if vote == NO_SERVER else order[vote]


def _permuted_version(version: Version, order: Order) -> Version:
    return Version(version.term, _permuted_vote(version.vote, order), _permuted_log(version.log, order))


def _permuted_node(node: Node, order: Order) -> Node:
    return Node(
        node.term,
        _permuted_vote(node.vote, order),
        _permuted_log(node.log, order),
        node.role,
        node.commit,
        _permuted_configuration(node.initial, order),
        tuple(_permuted_version(version, order) for version in node.unsynced),
        (node.ahead[0], _permuted_vote(node.ahead[1], order)) if node.ahead else (),
    )


def _permuted_record(record: TermRecord, order: Order) -> TermRecord:
    return TermRecord(
        _permuted_mask(record.leaders, order),
        _permuted_log(record.log, order),
        record.commit,
        _moved(record.requests, order),
        tuple(_permuted_mask(given, order) for given in _moved(record.votes, order)),
        _moved(record.acknowledged, order),
    )
