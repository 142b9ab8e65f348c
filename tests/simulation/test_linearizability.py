"""The judge of client histories, on histories whose verdict is known."""

import itertools
from random import Random

import pytest

from tests.simulation.consensus.linearizability import NOTHING, Operation, Verdict, judge, judge_key


def _write(value: int, found: int | None, called: int, answered: int | None, key: int = 1) -> Operation:
    return Operation(key, value, found, called, answered)


def _read(found: int, called: int, answered: int, key: int = 1) -> Operation:
    return Operation(key, None, found, called, answered)


GOOD = {
    "nothing happens": [],
    "one after the other": [_write(7, NOTHING, 1, 2), _read(7, 3, 4), _write(8, 7, 5, 6), _read(8, 7, 8)],
    "a read beside a write may see either": [_write(7, NOTHING, 1, 6), _read(NOTHING, 2, 3), _read(7, 4, 5)],
    "a write without an answer took effect late": [_write(7, None, 1, None), _read(NOTHING, 2, 3), _read(7, 4, 5)],
    "a write without an answer never took effect": [_write(7, None, 1, None), _read(NOTHING, 2, 3)],
    "two writes at once, in the order that the later read tells": [
        _write(7, 8, 1, 4),
        _write(8, NOTHING, 2, 3),
        _read(7, 5, 6),
    ],
    "keys do not know each other": [_write(7, NOTHING, 1, 2, key=1), _read(NOTHING, 3, 4, key=2)],
}
BAD = {
    "a stale read": [_write(7, NOTHING, 1, 2), _read(NOTHING, 3, 4)],
    "a lost write": [_write(7, NOTHING, 1, 2), _write(8, NOTHING, 3, 4)],
    "a value that was never written": [_write(7, NOTHING, 1, 2), _read(9, 3, 4)],
    "a write applied twice": [_write(7, NOTHING, 1, 2), _write(8, 7, 3, 4), _read(7, 5, 6)],
    "reads that go back": [_write(7, NOTHING, 1, 8), _read(7, 2, 3), _read(NOTHING, 4, 5)],
    "two writes that both found the same": [_write(7, NOTHING, 1, 4), _write(8, NOTHING, 2, 3)],
    "a write seen before it was called": [_read(7, 1, 2), _write(7, NOTHING, 3, 4)],
}


@pytest.mark.parametrize("name", GOOD)
def test_a_history_that_one_store_can_have_shown_is_linearizable(name: str) -> None:
    assert judge(GOOD[name]).verdict is Verdict.LINEARIZABLE


@pytest.mark.parametrize("name", BAD)
def test_a_history_that_no_single_store_can_have_shown_is_contradictory(name: str) -> None:
    judgment = judge(BAD[name])
    assert judgment.verdict is Verdict.CONTRADICTORY
    assert judgment.key == 1


@pytest.mark.parametrize("bad", [False, True])
def test_a_long_history_of_many_clients_at_once_is_decided_too(bad: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Twenty clients whose calls all overlap: a search for an order gave such histories up."""
    count, width = 4_000, 40
    history = [_write(value, value - 1, 10 * value, 10 * (value + width) + 1) for value in range(1, count)]
    history += [_read(value, 10 * value + 2, 10 * (value + width) + 3) for value in range(1, count)]
    history += [_write(count + value, None, 10 * value + 4, None) for value in range(1, count)]
    if bad:
        history.append(_read(count // 2, 10 * (count // 2 + 2 * width) + 5, 10 * (count // 2 + 3 * width) + 6))
    assert judge(history).verdict is (Verdict.CONTRADICTORY if bad else Verdict.LINEARIZABLE)


def test_a_value_that_is_written_twice_is_no_history_that_can_be_judged() -> None:
    with pytest.raises(ValueError, match="written twice"):
        judge([_write(7, NOTHING, 1, 2), _write(7, 7, 3, 4)])


def _drawn(random: Random) -> list[Operation]:
    """A few operations that overlap anyhow, and found anything."""
    count = random.randint(1, 5)
    moments = random.sample(range(1, 2 * count + 1), 2 * count)
    operations = []
    for number in range(count):
        called, answered = sorted(moments[2 * number : 2 * number + 2])
        found = random.choice([NOTHING, *range(1, count + 1)])
        if random.random() < 0.5:
            operations.append(_read(found, called, answered))
        elif random.random() < 0.2:
            operations.append(_write(number + 1, None, called, None))
        else:
            operations.append(_write(number + 1, found, called, answered))
    return operations


def _explained(operations: list[Operation]) -> bool:
    """Try every order of every choice of the unanswered writes."""
    certain = [operation for operation in operations if operation.answered is not None]
    open_ones = [operation for operation in operations if operation.answered is None]
    for count in range(len(open_ones) + 1):
        for taken in itertools.combinations(open_ones, count):
            for order in itertools.permutations([*certain, *taken]):
                in_time = all(
                    later.answered is None or earlier.called < later.answered
                    for earlier, later in itertools.combinations(order, 2)
                )
                if in_time and _is_run(order):
                    return True
    return False


def _is_run(order: tuple[Operation, ...]) -> bool:
    value = NOTHING
    for operation in order:
        if operation.found not in (None, value):
            return False
        value = value if operation.written is None else operation.written
    return True


@pytest.mark.parametrize("seed", range(4))
def test_the_judge_agrees_with_trying_every_order(seed: int) -> None:
    random = Random(seed)
    verdicts = set()
    for _ in range(400):
        history = _drawn(random)
        explained = _explained(history)
        verdicts.add(explained)
        wanted = Verdict.LINEARIZABLE if explained else Verdict.CONTRADICTORY
        assert judge_key(history) is wanted, f"seed {seed}: {history}"
    assert verdicts == {True, False}
