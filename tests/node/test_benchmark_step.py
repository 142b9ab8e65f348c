"""The benchmark of single steps runs the core of this tree, counts calls and compares trees turn by turn."""

from pathlib import Path

import pytest

from benchmarks import consensus_step_driver
from benchmarks.child import ChildError
from benchmarks.consensus_step import BASE, HERE, Side, checkout, figures
from benchmarks.consensus_step_driver import Names, Rounds, calls_of_steps, time_of_steps

STEPS = {
    "leader: proposal of 1 entry",
    "leader: persisted, 1 entry",
    "follower: AppendEntries of 1 entry",
    "follower: persisted, 1 entry",
    "leader: AppendReply, 1 entry",
    "leader: proposal of 64 entries",
    "leader: persisted, 64 entries",
    "follower: AppendEntries of 64 entries",
    "follower: persisted, 64 entries",
    "leader: AppendReply, 64 entries",
}


def test_steps_of_round_are_counted_until_entries_commit() -> None:
    rounds = Rounds(Names())
    before = rounds.groups[0].leader.describe().commit_index
    calls = calls_of_steps(rounds)
    assert set(calls) == STEPS
    assert min(calls.values()) >= 1
    assert min(time_of_steps(rounds).values()) > 0
    after = rounds.groups[0].leader.describe().commit_index
    assert after - before == 65 * (1 + 4), "one round of each size is counted, four are timed"


STEP = "leader: AppendReply, 1 entry"


def side(name: str, microseconds: list[float], calls: float) -> Side:
    # `figures` uses only the calls and turns of a side, so it does not need a process.
    return Side(name, None, {STEP: calls}, [{STEP: each} for each in microseconds])  # type: ignore[arg-type]


def test_ratios_pair_turns_of_one_round() -> None:
    rows = figures([side(BASE, [40, 80, 40], 154), side(HERE, [16, 32, 20], 60)])
    shown = {row.name: row for row in rows}
    assert shown[f"{STEP}: {BASE}"].note == "154 calls in Python"
    assert shown[f"  {HERE} / {BASE}"].values == (0.4, 0.4, 0.5)


def test_tree_without_class_of_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consensus_step_driver, "NAMES", ("Raft", "NoSuchClass"))
    with pytest.raises(SystemExit, match=r"consensus\.core of this tree lacks NoSuchClass"):
        Names()


def test_base_outside_checkouts_or_commits_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match="no-such-commit is neither a checkout nor a commit"):
        checkout("no-such-commit", tmp_path)
    (tmp_path / "consensus").mkdir()
    assert checkout(str(tmp_path), tmp_path / "elsewhere") == tmp_path
