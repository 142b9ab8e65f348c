"""Simulated histories in the test run: a few seeds of each strategy, planted bugs, and repeatability."""

import dataclasses
import os
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from consensus.core.features import Features
from consensus.core.log import RecoveredLog
from consensus.core.model import Configuration, HardState, ServerId
from consensus.core.raft import Raft
from tests.effort import IS_SOAK, each_case, few_of
from tests.simulation.consensus.all_mutants import ALL_MUTANTS
from tests.simulation.consensus.checker import ViolationError
from tests.simulation.consensus.command import FINDINGS, find_mutant, main, main_mutants
from tests.simulation.consensus.history import SHORT, run_history
from tests.simulation.consensus.mutants import Mutant
from tests.simulation.consensus.profile import STRATEGIES, Kind, Profile

BLOCKS, BLOCK = (10, 20) if IS_SOAK else (1, 3)
"""Tests per strategy, and histories per test; five histories may lack crashes or snapshots."""
FOUND_AT = {
    "append-reply-before-persist": 0,
    "durable-beyond-truncation": 0,
    "fetch-before-durable": 0,
    "snapshot-without-sessions": 11,
    "request-executed-again": 1,
    "append-without-sync": 1,
    "term-without-bound": 0,
    "leader-of-a-term-not-reached": 0,
    "evidence-outweighs-a-lease": 4,
    "heartbeat-behind-the-disk": 0,
    "hung-disk-keeps-its-leader": 0,
    "new-proposals-keep-a-stalled-leader": 2,
    "append-not-sent-counts": 99,
    "refusal-of-a-stranger-counts": 0,
    "zmq-heartbeat-beside-a-request": 0,
    "zmq-probe-behind-the-match": 0,
    "zmq-reply-of-another-request": 0,
    "zmq-read-without-checkpoint": 1,
    "kraft-vote-for-another-directory": 34,
    "kraft-fetch-of-another-directory": 8,
    "kraft-high-watermark-at-once": 0,
    "kraft-high-watermark-of-a-moment-later": 0,
    "kraft-epoch-of-the-newest-entry": 0,
    "kraft-sequence-of-the-batch": 0,
    "kraft-match-by-offset-alone": 0,
}
"""A seed whose history shows the bug. `python -m tests.simulation consensus-mutants` finds all bugs."""
LONG_SEARCHES = {"hung-disk-keeps-its-leader", "new-proposals-keep-a-stalled-leader"}
"""Bugs with long histories: only `make soak` finds them."""
SHOWN_AT = {
    "vote-for-any-log": 1,
    "no-back-off": 1,
    "read-before-own-term-commit": 1,
    "snapshot-with-another-configuration": 1,
    "leader-counts-itself-early": 7,
    "match-by-index-only": 10,
    "joint-majority-of-the-union": 4,
    "fetch-leader-counts-itself-early": 7,
    "snapshot-forgets-the-configuration": 9,
    "rot-taken-for-a-tear": 29,
    "zmq-late-answer-says-where-to-go-on": 4,
    "zmq-success-of-less": 5,
    "kraft-vote-for-another-directory": 8,
    "kraft-fetch-of-another-directory": 8,
    "kraft-high-watermark-of-a-moment-later": 9,
    "joint-majority-of-the-new": 6,
    "configuration-outlives-its-entry": 3,
    "snapshot-over-a-better-log": 20,
    "fetch-reply-for-another-end": 3,
    "divergence-by-whole-terms": 4,
    "snapshot-without-directory-sync": 4,
    "covered-before-the-snapshot-is-durable": 34,
    "refusal-of-a-stranger-counts": 4,
    "zmq-refusal-without-hint-begins-anew": 4,
    "kraft-leader-of-another-epoch": 2,
}
"""The seed whose short history calls and shows the bug; the search for the others begins at 0."""
CALLED_AT: dict[tuple[str, Kind | None], tuple[int, ...]] = {
    ("append", None): (21, 29),
    ("append", Kind.FIGURE_8): (7,),
    ("append", Kind.STORM): (4,),
    ("append", Kind.MEMBERSHIP): (4,),
    ("append", Kind.FAR_TERMS): (20,),
    ("append", Kind.ENDED): (18,),
    ("append", Kind.LEASE): (16,),
    ("append", Kind.PAUSED): (14,),
    ("append", Kind.SLOW_DISKS): (2,),
    ("append", Kind.HUNG_DISKS): (18,),
    ("fetch", None): (16,),
    ("fetch", Kind.MEMBERSHIP): (12,),
    ("fetch", Kind.FIGURE_8): (26,),
    ("fetch", Kind.LEASE): (14,),
    ("zmq", None): (15,),
    ("zmq", Kind.GENERAL): (23,),
    ("zmq", Kind.FIGURE_8): (18,),
    ("zmq", Kind.MEMBERSHIP): (9,),
    ("kraft", None): (2, 8),
}
"""The seeds of short histories that together call all functions with planted bugs."""
COMPARED_LINES = 1_400
"""Length of the compared part of a history without bugs, in lines. Each bug shows in it."""
SHOWN_WITHIN = 100
"""Maximum number of short histories per planted bug; usually the first one calls the bug and changes."""
RARELY_SHOWN = (
    "vote-forgotten",
    "learner-counted-as-voter",
    "snapshot-with-another-configuration",
    "snapshot-over-a-better-log",
    "late-transfer-ends-the-promise",
    "late-refusal-ends-the-promise",
    "expired-session-begins-anew",
    "covered-before-the-snapshot-is-durable",
    "append-not-sent-counts",
    "zmq-append-sent-twice",
    "kraft-leader-of-another-epoch",
)
"""Bugs that change less than one short history in ten: they only have to be called."""


@pytest.mark.search
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_history_keeps_invariants_and_recovers(block: int, strategy: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1_000_000 + block * BLOCK, 1_000_000 + (block + 1) * BLOCK):
        report = run_history(seed, SHORT, STRATEGIES[strategy])
        assert report.counts["steps"] >= SHORT.steps, f"seed {seed}"
        assert report.counts["calls"] >= SHORT.calls, f"seed {seed}"
        counts += report.counts
    # Faults must have occurred, and work must have been done.
    for what in ("elections", "crashes", "commits", "writes answered", "reads answered", "messages lost", "snapshots"):
        assert counts[what] >= BLOCK, counts
    assert counts["keys judged"] >= BLOCK


@pytest.mark.search
@pytest.mark.parametrize(
    "mutant",
    [
        pytest.param(mutant, marks=pytest.mark.soak if mutant.name in LONG_SEARCHES else ())
        for mutant in ALL_MUTANTS
        if mutant.name in FOUND_AT
    ],
    ids=lambda mutant: mutant.name,
)
def test_planted_bug_is_found(mutant: Mutant) -> None:
    seed, _ = find_mutant(mutant, 0, 150) if IS_SOAK else find_mutant(mutant, FOUND_AT[mutant.name], 1)
    assert seed is not None, f"{mutant.name} ({mutant.story}) survived: the simulator does not detect it"


def _recording_calls(replacement: Any, name: str, called: set[str]) -> Any:
    inside: Any = replacement.fget if isinstance(replacement, property) else replacement

    def recording(*details: Any, **named: Any) -> Any:
        called.add(name)
        return inside(*details, **named)

    return property(recording) if isinstance(replacement, property) else recording


@cache
def _lines_without_bugs(seed: int, strategy: str, kind: Kind | None) -> tuple[int, ...]:
    lines: list[int] = []

    def keep(line: str) -> None:
        lines.append(hash(line))
        if len(lines) == COMPARED_LINES:
            raise _HistoryDecidedError

    with suppress(_HistoryDecidedError):
        run_history(seed, SHORT, STRATEGIES[strategy], keep, kind)
    return tuple(lines)


class _HistoryDecidedError(Exception):
    """Ends a history when its rest cannot show anything new."""


def _changes_the_history(mutant: Mutant, seed: int, called: set[str], *, differs: bool) -> bool:
    """Return True if the planted bug changes this history, or an earlier one (`differs`).

    The history stops when a change was shown and each changed function was called.
    """
    lines = iter(() if differs else _lines_without_bugs(seed, mutant.strategy, mutant.kind))
    names = _names(mutant)

    def compare(line: str) -> None:
        nonlocal differs
        differs = differs or next(lines, hash(line)) != hash(line)
        if differs and called >= names:
            raise _HistoryDecidedError

    with mutant.planted():
        try:
            run_history(seed, SHORT, STRATEGIES[mutant.strategy], compare, mutant.kind)
        except (_HistoryDecidedError, *FINDINGS):
            return True
    return differs


def _names(mutant: Mutant) -> set[str]:
    return {name for _, name, _ in mutant.changes}


@pytest.mark.soak
@pytest.mark.parametrize(
    "mutant",
    # If another test finds a bug with a single change, it has called the changed function.
    [mutant for mutant in ALL_MUTANTS if mutant.name not in FOUND_AT or len(mutant.changes) > 1],
    ids=lambda mutant: mutant.name,
)
def test_planted_bug_is_called_and_changes_history(mutant: Mutant) -> None:
    called: set[str] = set()
    changes = tuple((owner, name, _recording_calls(wrong, name, called)) for owner, name, wrong in mutant.changes)
    differs = mutant.name in RARELY_SHOWN
    for seed in range(SHOWN_AT.get(mutant.name, 0), SHOWN_WITHIN):
        differs = _changes_the_history(dataclasses.replace(mutant, changes=changes), seed, called, differs=differs)
        if differs and called == _names(mutant):
            return
    assert called == _names(mutant), f"{mutant.name} replaces a function that no history calls"
    assert differs, f"{mutant.name} is called, but does not change a history"


@each_case("place", {(each.strategy, each.kind): None for each in ALL_MUTANTS})
def test_functions_with_planted_bugs_are_called(place: tuple[str, Kind | None]) -> None:
    strategy, kind = place
    mutants = [each for each in ALL_MUTANTS if (each.strategy, each.kind) == place]
    called: set[str] = set()
    changes = {
        (owner, name): _recording_calls(vars(owner)[name], name, called)
        for each in mutants
        for owner, name, _ in each.changes
    }
    recorded = dataclasses.replace(mutants[0], changes=tuple((*each, calls) for each, calls in changes.items()))
    for seed in CALLED_AT[place]:
        with recorded.planted():
            run_history(seed, SHORT, STRATEGIES[strategy], kind=kind)
    assert called == {name for _, name in changes}, "change the seeds in CALLED_AT, or the planted bugs"


@each_case("mutant", ALL_MUTANTS, ids=lambda mutant: mutant.name)
def test_planted_bug_replaces_only_definition(mutant: Mutant) -> None:
    """A module that imports the function by name would continue to use the correct one."""
    modules = [module for name, module in sys.modules.items() if name.split(".")[0] == "consensus"]
    planted_in = [owner for owner, _, _ in mutant.changes]
    for owner, name, _ in mutant.changes:
        original = vars(owner)[name]
        elsewhere = [
            module.__name__
            for module in modules
            if module not in planted_in and any(value is original for value in vars(module).values())
        ]
        assert not elsewhere, f"{mutant.name} leaves {name} as it is in {elsewhere}"


def test_planted_bug_names_are_unique() -> None:
    names = [mutant.name for mutant in ALL_MUTANTS]
    assert len(names) == len(set(names))
    assert {*FOUND_AT, *SHOWN_AT} <= set(names)


def _trace_in_another_process(arguments: list[str]) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    command = [sys.executable, "-m", "tests.simulation", *arguments]
    root = Path(__file__).parents[2]
    return subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True).stdout


def _lines(trace: str) -> list[str]:
    return [line for line in trace.splitlines() if " histories in " not in line]


@pytest.mark.soak
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_history_trace_is_equal_in_every_process(strategy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The two processes have different hash seeds, unless the environment sets one."""
    arguments = ["consensus", "--seed", "3", "--short", "--strategy", strategy, "--trace"]
    assert main(arguments) == 0
    own = capsys.readouterr().out
    assert len(own) > 100_000
    differs = [
        pair
        for pair in zip(_lines(own), _lines(_trace_in_another_process(arguments)), strict=True)
        if pair[0] != pair[1]
    ]
    assert differs[:1] == []


def test_history_trace_differs_by_seed() -> None:
    assert run_history(1, SHORT).trace_digest != run_history(2, SHORT).trace_digest


def test_violation_prints_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consensus", "--seeds", "50", "--mutant", "append-reply-before-persist"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.startswith("again: python -m tests.simulation consensus --strategy append --seed ")
    arguments = line.split("tests.simulation ")[1].removesuffix(" --trace").split()
    assert main(arguments) == 1


@pytest.mark.parametrize("chosen", few_of({"two": ["--strategy", "append", "--strategy", "fetch"], "all": []}, "two"))
def test_long_run_prints_counts_and_paths(chosen: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "1", "--short", *chosen]) == 0
    output = capsys.readouterr().out
    assert output.startswith("append: 1 histories in ")
    assert "fetch: 1 histories in " in output
    assert "elections" in output
    assert "paths that ran:" in output


def test_unknown_planted_bug_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main_mutants(["no-such-bug"])
    assert "vote-twice" in capsys.readouterr().err


def _never_campaigning(
    features: Features,
    server_id: ServerId,
    configuration: Configuration,
    hard_state: HardState,
    log: RecoveredLog,
    profile: Profile,
    random: Random,
    now: int,
) -> Raft:
    options = replace(profile.options, election_timeout_max_ms=10**9, election_timeout_min_ms=10**9 - 1)
    return Raft(
        server_id, configuration, hard_state, log, replace(options, check_invariants=True), features, random, now
    )


def test_history_without_leader_fails_liveness() -> None:
    with pytest.raises(ViolationError, match="liveness"):
        run_history(1, SHORT, make_core=_never_campaigning)
