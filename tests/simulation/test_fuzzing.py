"""The shared parts of the fuzzers: they report failed checks, and inputs that prove nothing."""

from random import Random

import pytest

from tests.simulation.fuzzing import GROWTHS, SHOWN_BYTES, FuzzError, Subject, Tally, mutated, play, run


class Bytes(Subject[bytes]):
    """A subject of single bytes that fails for `bad`."""

    name = "bytes"

    def __init__(
        self, *, bad: bytes = b"", expected: frozenset[str] = frozenset({"even", "odd"}), size: int = 1
    ) -> None:
        self.expected = expected
        self._bad = bad
        self._size = size

    def make(self, random: Random) -> bytes:
        return random.randbytes(self._size)

    def check(self, data: bytes, random: Random) -> str:
        """Return the parity of the first byte."""
        del random
        if data[:1] == self._bad or len(data) > 1:
            raise ValueError("not this one")
        return "odd" if data[0] % 2 else "even"


def test_play_error_contains_seed_and_input() -> None:
    with pytest.raises(FuzzError, match=r"bytes, seed 7: ValueError: not this one: 2a$"):
        play(Bytes(bad=b"\x2a"), 7, 10_000, Tally())


def test_play_error_of_huge_input_is_shortened() -> None:
    with pytest.raises(FuzzError) as failure:
        play(Bytes(size=SHOWN_BYTES + 1), 0, 1, Tally())
    assert failure.value.args[0].endswith("…")
    assert len(failure.value.args[0].rpartition(": ")[2]) == 2 * SHOWN_BYTES + 1


def test_run_fails_on_error_or_missing_outcome(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(Bytes(), 0, 1_000)
    assert "bytes: 1,000 inputs: even " in capsys.readouterr().out
    assert not run(Bytes(bad=b"\x2a"), 0, 10_000)
    assert "not this one: 2a" in capsys.readouterr().out
    assert not run(Bytes(expected=frozenset({"even", "odd", "neither"})), 0, 1_000)
    assert "outcomes that never occurred: neither" in capsys.readouterr().out


def test_mutated_inputs_are_huge_or_foreign_sometimes() -> None:
    random, data = Random(1), bytes(1_000)
    made = [mutated(data, random, [data], [b"\0"]) for _ in range(2_000)]
    assert max(GROWTHS) < max(map(len, made)) < 2 * max(GROWTHS)
    assert data in made
    long = [mutated(data, random, [data], [bytes(70_000)]) for _ in range(200)]
    assert max(map(len, long)) <= 8 * max(GROWTHS)
    assert any(len(set(each)) > 200 for each in made), "no input of random bytes"
