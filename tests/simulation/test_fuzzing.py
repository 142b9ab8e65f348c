"""The shared parts of the fuzzers: they report failed checks, and inputs that prove nothing."""

from random import Random

import pytest

from tests.simulation.fuzzing import FuzzError, Subject, Tally, play, run


def subject(*, bad: bytes = b"", expected: frozenset[str] = frozenset({"even", "odd"})) -> Subject:
    """Return a subject of single bytes that fails for `bad`."""

    def check(data: bytes, _: Random) -> list[str]:
        if data == bad:
            raise ValueError("not this one")
        return ["odd" if data[0] % 2 else "even"]

    return Subject(make=lambda random: random.randbytes(1), check=check, expected=expected, name="bytes")


def test_play_error_contains_seed_and_input() -> None:
    with pytest.raises(FuzzError, match=r"bytes, seed 7: ValueError: not this one: 2a$"):
        play(subject(bad=b"\x2a"), 7, 10_000, Tally())


def test_play_error_of_huge_input_is_shortened() -> None:
    def check(data: bytes, _: Random) -> list[str]:
        raise ValueError(len(data))

    huge = Subject(make=lambda _: bytes(9), check=check, expected=frozenset(), shown_bytes=4)
    with pytest.raises(FuzzError, match=r"^seed 0: ValueError: 9: 00000000…$"):
        play(huge, 0, 1, Tally())


def test_run_fails_on_error_or_missing_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(subject(), 0, 1_000)
    assert "bytes: 1,000 inputs: even " in capsys.readouterr().out
    assert not run(subject(bad=b"\x2a"), 0, 10_000)
    assert "not this one: 2a" in capsys.readouterr().out
    assert not run(subject(expected=frozenset({"even", "odd", "neither"})), 0, 1_000)
    assert "outcomes that never occurred: neither" in capsys.readouterr().out
