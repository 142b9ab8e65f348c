"""The linearizability checker, tested on histories whose verdict is known."""

import itertools
from random import Random

import pytest

from tests.effort import each_case
from tests.simulation.consensus.linearizability import NOTHING, Operation, Verdict, judge, judge_key


def _write(value: int, found: int | None, called: int, answered: int | None, key: int = 1) -> Operation:
    return Operation(key, value, found, called, answered)


def _read(found: int, called: int, answered: int, key: int = 1) -> Operation:
    return Operation(key, None, found, called, answered)


GOOD = {
    "empty history": [],
    "sequential calls": [_write(7, NOTHING, 1, 2), _read(7, 3, 4), _write(8, 7, 5, 6), _read(8, 7, 8)],
    "read during write returns old or new value": [_write(7, NOTHING, 1, 6), _read(NOTHING, 2, 3), _read(7, 4, 5)],
    "unanswered write takes effect late": [_write(7, None, 1, None), _read(NOTHING, 2, 3), _read(7, 4, 5)],
    "unanswered write never takes effect": [_write(7, None, 1, None), _read(NOTHING, 2, 3)],
    "concurrent writes, ordered by a later read": [
        _write(7, 8, 1, 4),
        _write(8, NOTHING, 2, 3),
        _read(7, 5, 6),
    ],
    "independent keys": [_write(7, NOTHING, 1, 2, key=1), _read(NOTHING, 3, 4, key=2)],
}
BAD = {
    "stale read": [_write(7, NOTHING, 1, 2), _read(NOTHING, 3, 4)],
    "lost write": [_write(7, NOTHING, 1, 2), _write(8, NOTHING, 3, 4)],
    "read of an unwritten value": [_write(7, NOTHING, 1, 2), _read(9, 3, 4)],
    "write applied twice": [_write(7, NOTHING, 1, 2), _write(8, 7, 3, 4), _read(7, 5, 6)],
    "later read returns older value": [_write(7, NOTHING, 1, 8), _read(7, 2, 3), _read(NOTHING, 4, 5)],
    "two writes found the same value": [_write(7, NOTHING, 1, 4), _write(8, NOTHING, 2, 3)],
    "read before the write's call": [_read(7, 1, 2), _write(7, NOTHING, 3, 4)],
}


@each_case("name", GOOD)
def test_possible_history_is_judged_linearizable(name: str) -> None:
    assert judge(GOOD[name]).verdict is Verdict.LINEARIZABLE


@each_case("name", BAD)
def test_impossible_history_is_judged_contradictory(name: str) -> None:
    judgment = judge(BAD[name])
    assert judgment.verdict is Verdict.CONTRADICTORY
    assert judgment.key == 1


@pytest.mark.parametrize("bad", [False, True])
def test_long_concurrent_history_is_judged(bad: bool) -> None:  # noqa: FBT001 - a pytest parameter
    """Judge a long history of overlapping calls; an exhaustive search would be too slow."""
    count, width = 4_000, 40
    history = [_write(value, value - 1, 10 * value, 10 * (value + width) + 1) for value in range(1, count)]
    history += [_read(value, 10 * value + 2, 10 * (value + width) + 3) for value in range(1, count)]
    history += [_write(count + value, None, 10 * value + 4, None) for value in range(1, count)]
    if bad:
        history.append(_read(count // 2, 10 * (count // 2 + 2 * width) + 5, 10 * (count // 2 + 3 * width) + 6))
    assert judge(history).verdict is (Verdict.CONTRADICTORY if bad else Verdict.LINEARIZABLE)


def test_value_written_twice_is_rejected() -> None:
    with pytest.raises(ValueError, match="written twice"):
        judge([_write(7, NOTHING, 1, 2), _write(7, 7, 3, 4)])


def _drawn(random: Random) -> list[Operation]:
    """Draw a few operations with random overlaps and random results."""
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


def _has_explanation(operations: list[Operation]) -> bool:
    """Return True if some order of the operations, with any of the unanswered writes, explains all results."""
    certain = [operation for operation in operations if operation.answered is not None]
    unanswered = [operation for operation in operations if operation.answered is None]
    for count in range(len(unanswered) + 1):
        for taken in itertools.combinations(unanswered, count):
            for order in itertools.permutations([*certain, *taken]):
                in_time = all(
                    later.answered is None or earlier.called < later.answered
                    for earlier, later in itertools.combinations(order, 2)
                )
                if in_time and _is_valid_sequential_run(order):
                    return True
    return False


def _is_valid_sequential_run(order: tuple[Operation, ...]) -> bool:
    value = NOTHING
    for operation in order:
        if operation.found not in (None, value):
            return False
        value = value if operation.written is None else operation.written
    return True


@pytest.mark.parametrize("seed", range(4))
def test_judge_agrees_with_exhaustive_search(seed: int) -> None:
    random = Random(seed)
    verdicts = set()
    for _ in range(400):
        history = _drawn(random)
        has_order = _has_explanation(history)
        verdicts.add(has_order)
        expected = Verdict.LINEARIZABLE if has_order else Verdict.CONTRADICTORY
        assert judge_key(history) is expected, f"seed {seed}: {history}"
    assert verdicts == {True, False}
