"""The judge of simulated histories accepts a world without progress in only one case.

A server that finds rot stops permanently. The world flips a bit only if a majority remains, but the logs of the others
may have changed since. If then no server can be elected, no implementation could continue. Every other world without
progress is a fault. These tests check the exception with manual logs, and with bugs that stop a world after the loss of
a server. They also check that runs may need the exception only rarely.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from unittest.mock import patch

import pytest

from consensus.core.entry_data import configuration_entry
from consensus.core.features import GARLIC_FARM
from consensus.core.leader import Leader
from consensus.core.model import Configuration, Entry, EntryKind, Index, ServerId, Term
from consensus.core.replica import Replica
from consensus.core.replication.progress import ProgressTracker
from tests.effort import IS_SOAK
from tests.simulation.consensus import command
from tests.simulation.consensus.checker import Checker, StandstillError
from tests.simulation.consensus.history import SHORT, Report, World
from tests.simulation.consensus.marks import NO_ELECTION_LEFT
from tests.simulation.consensus.nemesis import named

LOSING_WORLDS = (29, 31, 114) if IS_SOAK else (29,)
"""The first seeds whose worlds lose a server to rot."""


def _judge(logs: Mapping[ServerId, list[Entry]]) -> Checker:
    """Return the judge of a group of 2, 3 and 4 with these durable logs."""
    judge = Checker(list(logs), Configuration(named([2, 3, 4])), GARLIC_FARM)
    for server, log in logs.items():
        judge.shadows[server].durable = log
    return judge


def _commands(*terms: Term) -> list[Entry]:
    return [Entry(term, EntryKind.COMMAND, b"command") for term in terms]


def test_judge_lost_server_needed_for_election_is_excuse() -> None:
    # Server 3 would make 6 a voter, and then needs 6's vote; 6 does not have that entry, and has the longer log.
    makes_6_a_voter = configuration_entry(4, Configuration(named([2, 3, 4, 6])))
    judge = _judge(
        {2: _commands(2), 3: [*_commands(2, 4), makes_6_a_voter], 4: _commands(2, 4, 8), 6: _commands(2, 4, 8)}
    )
    assert judge.explains_missing_election([4])


def test_judge_electable_server_rules_out_excuse() -> None:
    makes_6_a_voter = configuration_entry(4, Configuration(named([2, 3, 4, 6])))
    judge = _judge({2: _commands(2), 3: [*_commands(2, 4), makes_6_a_voter], 4: _commands(2, 4, 8), 6: _commands(2, 4)})
    assert not judge.explains_missing_election([4])


def test_judge_deadlocked_logs_are_not_an_excuse() -> None:
    needs_6 = [*_commands(2), configuration_entry(2, Configuration(named([2, 6])))]
    judge = _judge({2: needs_6, 3: needs_6, 4: needs_6, 6: _commands(8), 9: []})
    assert not judge.explains_missing_election([9])


@contextmanager
def _no_campaigns(world: World) -> Iterator[None]:
    """Make every leader resign after the trouble, and let no server campaign."""
    expire, may_campaign = Leader.expire, vars(Replica)["may_campaign"].fget
    with (
        patch.object(Leader, "expire", lambda leader: world.trouble and expire(leader)),
        patch.object(Replica, "may_campaign", property(lambda replica: world.trouble and may_campaign(replica))),
    ):
        yield


@contextmanager
def _no_commits(world: World) -> Iterator[None]:
    """Let no leader commit after the trouble."""
    may_commit = ProgressTracker._may_commit

    def never_when_healed(tracker: ProgressTracker, index: Index) -> bool:
        return world.trouble and may_commit(tracker, index)

    with patch.object(ProgressTracker, "_may_commit", never_when_healed):
        yield


@pytest.mark.search
@pytest.mark.parametrize("planted", [_no_campaigns, _no_commits])
def test_planted_bug_found_despite_lost_server(planted: Callable[[World], AbstractContextManager[None]]) -> None:
    for seed in LOSING_WORLDS:
        world = World(seed)
        with planted(world), pytest.raises(StandstillError, match="liveness"):
            world.run(SHORT)
        assert any(machine.has_stopped for machine in world.machines.values()), (
            f"seed {seed} loses no server: find another"
        )


def _excused(seed: int, *_details: object) -> Report:
    return Report(seed, 0, Counter(histories=1), Counter({NO_ELECTION_LEFT: int(seed < 2)}))


def test_run_with_frequent_excuses_fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(command, "run_history", _excused)
    assert command.main(["--strategy", "append", "--from", "1", "--seeds", "200"]) == 0
    assert command.main(["--strategy", "append", "--seeds", "200"]) == 1
    assert capsys.readouterr().out.endswith(f"too often, 2 times: {NO_ELECTION_LEFT}\n")
