"""Trace validation: the production core makes only steps of the model, and planted bugs make others."""

import pytest

from tests.effort import IS_SOAK, each_case, over_seeds
from tests.simulation.consensus.all_mutants import ALL_MUTANTS
from tests.simulation.consensus.history import SHORT
from tests.simulation.consensus.profile import STRATEGIES, Kind
from tests.simulation.consensus.trace import TraceError, run_traced

SEEDS = {"append": 29, "fetch": 129, "kraft": 1, "zmq": 70}
"""A history of each strategy.

In history 29, entries become durable after a later term has begun. In 129, a fetching follower cuts its log by index
and term.
"""
ACTIONS = {
    "append": ("Timeout", "UpdateTerm", "Vote", "BecomeLeader", "AppendEntry", "AcceptEntry", "AdvanceCommit"),
    "fetch": ("FetchEntry", "FetchTruncate", "LearnCommit", "Sync", "Crash", "Resign"),
    "kraft": ("FetchEntry", "AdvanceCommit", "LearnCommit"),
    "zmq": ("AppendEntry", "AcceptEntry", "AdvanceCommit", "ChangeServers", "InstallSnapshot", "Crash"),
}
"""Actions that must occur in these histories."""
REJECTED_AT = {
    "vote-before-persist": 0,
    "vote-request-before-persist": 0,
    "append-reply-before-persist": 0,
    "old-term-by-counting": 0,
    "leader-counts-itself-early": 7,
    "vote-for-any-log": 1,
    "vote-twice": 0,
    "truncate-matching-prefix": 4,
    "commit-beyond-match": 16,
    "stale-append-accepted": 0,
    "match-by-index-only": 10,
    "vote-forgotten": 1,
    "acknowledged-on-append": 0,
    "joint-majority-of-the-union": 6,
    "joint-majority-of-the-new": 4,
    "learner-counted-as-voter": 0,
    "leader-outside-counts-itself": 3,
    "switch-without-joint-consensus": 6,
    "change-before-own-term-commit": 6,
    "change-before-the-last-is-committed": 0,
    "fetch-without-correlation": 3,
    "fetch-reply-for-another-end": 3,
    "fetch-before-durable": 0,
    "divergence-by-whole-terms": 3,
    "fetch-old-term-by-counting": 0,
    "fetch-leader-counts-itself-early": 7,
    "kraft-epoch-of-the-newest-entry": 0,
    "zmq-success-of-less": 5,
    "zmq-reply-of-another-request": 0,
    "zmq-no-checkpoint": 0,
}
"""The seed whose history the model rejects with the planted bug."""
_PLANTED = {mutant.name: mutant for mutant in ALL_MUTANTS}


@pytest.mark.parametrize("strategy", SEEDS)
def test_production_steps_are_steps_of_the_model(strategy: str) -> None:
    actions = run_traced(SEEDS[strategy], SHORT, STRATEGIES[strategy]).trace.actions
    assert all(actions[name] for name in ACTIONS[strategy]), actions


@over_seeds(200, quick=3)
def test_step_after_evidence_of_an_end_is_in_the_model(seed: int) -> None:
    run = run_traced(seed, SHORT, STRATEGIES["append"], Kind.ENDED)
    assert run.trace.actions["BecomeLeader"]


@pytest.mark.search
@each_case("name", REJECTED_AT)
def test_planted_bug_is_not_a_step_of_the_model(name: str) -> None:
    mutant = _PLANTED[name]
    history = (REJECTED_AT[name], SHORT, STRATEGIES[mutant.strategy], mutant.kind)
    with mutant.planted(), pytest.raises(TraceError):
        run_traced(*history)
    if IS_SOAK:
        run_traced(*history)


def test_planted_bug_list_names_existing_bugs() -> None:
    assert REJECTED_AT.keys() <= _PLANTED.keys()
