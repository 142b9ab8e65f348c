"""Counts in texts for operators."""

import pytest

from consensus import LogId, counted
from consensus.storage.planner import RecoveryReport
from pipeline.serve.gaps import Gap, sentence


@pytest.mark.parametrize(("number", "text"), [(0, "0 nodes"), (1, "1 node"), (2, "2 nodes")])
def test_counted_noun_has_its_number(number: int, text: str) -> None:
    assert counted(number, "node") == text


def test_counted_uses_given_plural() -> None:
    assert (counted(1, "entry", "entries"), counted(2, "entry", "entries")) == ("1 entry", "2 entries")


def test_recovery_of_one_entry_has_singular_nouns() -> None:
    lines = RecoveryReport(1, 1, LogId(1, 1), torn_bytes=1, torn_at="log-1").lines()
    assert lines[0].startswith("1 entry in 1 segment, the last at index 1 of term 1;")
    assert lines[1].startswith("an unfinished write of 1 byte was cut at log-1")


def test_gap_of_one_entry_has_singular_noun_and_verb() -> None:
    gap = Gap("farm", 11, 11, is_gone=False, after=None, until=None)
    assert sentence((gap,)).startswith("1 entry of unknown days is missing")
