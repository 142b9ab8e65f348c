"""What the fuzzers share says when something does not hold, and when the inputs prove nothing."""

from random import Random

import pytest

from tests.simulation.fuzzing import FuzzError, Subject, Tally, play, run


def subject(*, bad: bytes = b"", expected: frozenset[str] = frozenset({"even", "odd"})) -> Subject:
    """Single bytes, of which `bad` must not be."""

    def check(data: bytes, _: Random) -> list[str]:
        if data == bad:
            raise ValueError("not this one")
        return ["odd" if data[0] % 2 else "even"]

    return Subject(make=lambda random: random.randbytes(1), check=check, expected=expected, name="bytes")


def test_whatever_is_raised_is_told_with_the_seed_and_the_input() -> None:
    with pytest.raises(FuzzError, match=r"bytes, seed 7: ValueError: not this one: 2a$"):
        play(subject(bad=b"\x2a"), 7, 10_000, Tally())


def test_of_a_huge_input_the_beginning_is_told() -> None:
    def check(data: bytes, _: Random) -> list[str]:
        raise ValueError(len(data))

    huge = Subject(make=lambda _: bytes(9), check=check, expected=frozenset(), shown_bytes=4)
    with pytest.raises(FuzzError, match=r"^seed 0: ValueError: 9: 00000000…$"):
        play(huge, 0, 1, Tally())


def test_a_run_holds_only_if_nothing_fails_and_every_outcome_occurs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(subject(), 0, 1_000)
    assert "bytes: 1,000 inputs: even " in capsys.readouterr().out
    assert not run(subject(bad=b"\x2a"), 0, 10_000)
    assert "not this one: 2a" in capsys.readouterr().out
    assert not run(subject(expected=frozenset({"even", "odd", "neither"})), 0, 1_000)
    assert "never seen: neither" in capsys.readouterr().out
