"""The judge of simulated histories: when a world that makes no progress is excused, and that little else is.

A server that finds rot is gone for ever. The world lets a bit turn only where a majority is left, but what the others
hold may have changed since: then no server can be elected, and no implementation could go on. Everything else that
stands still is a fault. So the excuse is tried here with logs by hand, with bugs that stop a world in which a server is
gone, and with runs that need it too often.
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
from tests.simulation.consensus import command
from tests.simulation.consensus.checker import Checker, StandstillError
from tests.simulation.consensus.history import SHORT, Report, World
from tests.simulation.consensus.marks import NO_ELECTION_LEFT
from tests.simulation.consensus.nemesis import named

LOSING_WORLDS = (29, 31, 114)
"""The first seeds whose worlds lose a server to rot."""


def _judge(logs: Mapping[ServerId, list[Entry]]) -> Checker:
    """A group of 2, 3 and 4 at first, in which each server holds its log on its disk."""
    judge = Checker(list(logs), Configuration(named([2, 3, 4])), GARLIC_FARM)
    for server, log in logs.items():
        judge.shadows[server].durable = log
    return judge


def _words(*terms: Term) -> list[Entry]:
    return [Entry(term, EntryKind.COMMAND, b"word") for term in terms]


def test_a_server_that_is_gone_is_an_excuse_if_no_other_can_be_elected_without_it() -> None:
    # Server 3 would make 6 a voter, and needs its vote by that; 6 knows nothing of it, and has the longer log.
    makes_6_a_voter = configuration_entry(4, Configuration(named([2, 3, 4, 6])))
    judge = _judge({2: _words(2), 3: [*_words(2, 4), makes_6_a_voter], 4: _words(2, 4, 8), 6: _words(2, 4, 8)})
    assert judge.took_the_election([4])


def test_a_server_that_is_gone_is_no_excuse_if_another_can_be_elected() -> None:
    makes_6_a_voter = configuration_entry(4, Configuration(named([2, 3, 4, 6])))
    judge = _judge({2: _words(2), 3: [*_words(2, 4), makes_6_a_voter], 4: _words(2, 4, 8), 6: _words(2, 4)})
    assert not judge.took_the_election([4])


def test_a_server_that_is_gone_is_no_excuse_for_others_that_stand_in_each_others_way() -> None:
    needs_6 = [*_words(2), configuration_entry(2, Configuration(named([2, 6])))]
    judge = _judge({2: needs_6, 3: needs_6, 4: needs_6, 6: _words(8), 9: []})
    assert not judge.took_the_election([9])


@contextmanager
def _no_campaigns(world: World) -> Iterator[None]:
    """When the trouble is over every leader resigns, and no server stands for election."""
    expire, may_campaign = Leader.expire, vars(Replica)["may_campaign"].fget
    with (
        patch.object(Leader, "expire", lambda leader: world.trouble and expire(leader)),
        patch.object(Replica, "may_campaign", property(lambda replica: world.trouble and may_campaign(replica))),
    ):
        yield


@contextmanager
def _no_commits(world: World) -> Iterator[None]:
    """When the trouble is over no leader commits anything."""
    may_commit = ProgressTracker._may_commit

    def never_when_healed(tracker: ProgressTracker, index: Index) -> bool:
        return world.trouble and may_commit(tracker, index)

    with patch.object(ProgressTracker, "_may_commit", never_when_healed):
        yield


@pytest.mark.parametrize("planted", [_no_campaigns, _no_commits])
def test_a_bug_that_stops_a_world_is_found_there_although_a_server_is_gone(
    planted: Callable[[World], AbstractContextManager[None]],
) -> None:
    for seed in LOSING_WORLDS:
        world = World(seed)
        with planted(world), pytest.raises(StandstillError, match="liveness"):
            world.run(SHORT)
        assert any(machine.gone for machine in world.machines.values()), f"seed {seed} loses no server: find another"


def _excused(seed: int, *_details: object) -> Report:
    return Report(seed, 0, Counter(histories=1), Counter({NO_ELECTION_LEFT: int(seed < 2)}))


def test_a_run_fails_in_which_the_excuse_is_needed_often(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "run_history", _excused)
    assert command.main(["--strategy", "append", "--from", "1", "--seeds", "200"]) == 0
    assert command.main(["--strategy", "append", "--seeds", "200"]) == 1
    assert capsys.readouterr().out.endswith(f"too often, 2 times: {NO_ELECTION_LEFT}\n")
