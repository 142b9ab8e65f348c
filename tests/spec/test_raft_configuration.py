"""Plan of a configuration change, tested for safety: majorities of consecutive steps always intersect."""

from itertools import combinations, pairwise

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from consensus.core.effects import ChangeRefusal, Persist
from consensus.core.entry_data import configuration_entry, configuration_head, no_op_entry, no_op_head
from consensus.core.features import KRAFT, JointConsensus, LeaderRecords, Strategy
from consensus.core.log import Log, RecoveredLog
from consensus.core.membership import CatchUp, first_step, leave_joint, newcomers, target_refusal
from consensus.core.model import Configuration, Entry, EntryKind, NoOp, Server, ServerId, possible_configuration
from consensus.core.options import lan
from consensus.core.replication.progress import Progress
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import Bench

TIMEOUT_MS = lan().election_timeout_min_ms


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Return a simple (not joint) configuration of servers 1 to 7, some of them at a second address."""
    ids = draw(st.lists(st.integers(1, 7), min_size=1, max_size=7, unique=True))
    count = draw(st.integers(1, len(ids)))
    servers = tuple(Server(number, f"tcp://{number}:{draw(st.integers(1, 2))}") for number in ids)
    return Configuration(servers[:count], (), servers[count:])


def quorums(configuration: Configuration) -> list[frozenset[ServerId]]:
    """Return sets of servers that decide in this configuration, among them all minimal ones."""
    deciding = [frozenset[ServerId]()]
    for servers in filter(None, (configuration.voters, configuration.old_voters)):
        ids = [server.server_id for server in servers]
        chosen = [frozenset(some) for some in combinations(ids, len(ids) // 2 + 1)]
        deciding = [one | other for one in deciding for other in chosen]
    return deciding


def steps(current: Configuration, target: Configuration, joint: JointConsensus) -> list[Configuration] | ChangeRefusal:
    """Return all configurations from `current` to `target`, in the order of the log."""
    step = first_step(current, target, joint=joint, learners=True)
    if isinstance(step, ChangeRefusal):
        return step
    return [current, step, leave_joint(step)] if step.is_joint else [current, step]


@given(configurations(), configurations(), st.sampled_from(JointConsensus))
def test_consecutive_steps_have_intersecting_majorities(
    current: Configuration, target: Configuration, joint: JointConsensus
) -> None:
    """Two configurations with disjoint majorities could elect two leaders in one term."""
    assert target_refusal(current, target) is None
    path = steps(current, target, joint)
    if isinstance(path, ChangeRefusal):
        assert joint is JointConsensus.NEVER
        assert path is ChangeRefusal.MORE_THAN_ONE_SERVER
        assert len(current.voter_ids ^ target.voter_ids) > 1
        return
    assert path[-1] == target
    for before, after in pairwise(path):
        assert possible_configuration(after)
        assert all(one & other for one in quorums(before) for other in quorums(after))


@given(configurations(), configurations())
def test_new_voters_must_catch_up_before_voting(current: Configuration, target: Configuration) -> None:
    """The servers that must catch up are exactly the voters of the target that do not vote now, including learners."""
    expected = target.voter_ids - current.voter_ids
    assert {server.server_id for server in newcomers(current, target)} == expected


@given(configurations(), configurations())
def test_learners_refused_by_protocol_without_learners(current: Configuration, target: Configuration) -> None:
    """The refusal does not depend on other changes."""
    step = first_step(current, target, joint=JointConsensus.FOR_SEVERAL, learners=False)
    assert (step is ChangeRefusal.NO_LEARNERS) == bool(target.learners)


@given(st.lists(st.tuples(st.integers(0, 3 * TIMEOUT_MS), st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_new_server_catches_up_in_short_round_or_is_dropped(changes: list[tuple[int, int, int]]) -> None:
    """The model applies the rule directly: a round ends when all entries from its beginning are stored."""
    options, now, last, progress = lan(), 0, 5, Progress(1)
    catch_up = CatchUp(last, now, began_ms=now)
    goal, began, rounds = last, 0, 1
    for wait_ms, grows, stores in changes:
        now += wait_ms
        last += grows
        progress.reached(min(last, progress.match + stores), last, now)
        refusal = catch_up.check(progress, last, now, options)
        expected, done = None, False
        while progress.match >= goal and not done and expected is None:
            if now - began <= TIMEOUT_MS:
                done = True
            elif rounds == options.catch_up_rounds:
                expected = ChangeRefusal.CATCH_UP_TOO_SLOW
            else:
                goal, began, rounds = last, now, rounds + 1
        if not done and expected is None and now - progress.advanced_ms >= options.catch_up_stall_ms:
            expected = ChangeRefusal.CATCH_UP_STALLED
        assert (refusal, catch_up.caught_up) == (expected, done)
        if done or expected is not None:
            return
        assert catch_up.round_number <= options.catch_up_rounds


def test_change_of_two_servers_needs_joint_consensus() -> None:
    """Without joint consensus, {1,2,3} and {1,4,5} could decide at the same time, by the majorities {2,3} and {4,5}."""
    old = Configuration(tuple(Server(number, "") for number in (1, 2, 3)))
    new = Configuration(tuple(Server(number, "") for number in (1, 4, 5)))
    assert any(not one & other for one in quorums(old) for other in quorums(new))
    assert first_step(old, new, joint=JointConsensus.NEVER, learners=True) is ChangeRefusal.MORE_THAN_ONE_SERVER


def test_first_leader_appends_configuration_after_no_op() -> None:
    """Servers that join later get the configuration only from the log, so each committed log must contain it."""
    log = Log(RecoveredLog(), Configuration((Server(1, "tcp://1"),)))
    assert not log.names_configuration
    log.append((no_op_entry(1, NoOp(1, (1,), (1,))), configuration_entry(1, log.configuration)))
    assert log.names_configuration
    assert log.configuration_index == 2
    bench = Bench(voters=1, features=replace(KRAFT, replication=Strategy.APPEND)).expired()
    (entries,) = (persist.entries for persist in bench.all(Persist) if persist.entries)
    assert [entry.kind for entry in entries] == [EntryKind.NO_OP, EntryKind.CONFIGURATION]


def test_protocol_records_between_no_op_and_members() -> None:
    records = LeaderRecords(head=lambda: b"at noon", controls=lambda: (b"version 1",))
    bench = FetchBench(features=KRAFT, leader_records=records).lead()
    no_op, control, members = bench.raft._replica.log.entries(1, 9, 1_000) or ()
    assert no_op == no_op_entry(1, NoOp(1, (1, 2, 3), (1, 2)), b"at noon")
    assert control == Entry(1, EntryKind.CONTROL, b"version 1")
    assert members == configuration_entry(1, bench.about.configuration, b"at noon")
    assert no_op_head(no_op.data) == configuration_head(members.data) == b"at noon"


def test_no_op_names_servers_like_wire() -> None:
    """The leader's own entry must equal the entry that its followers decode."""
    bench = FetchBench(leader_records=LeaderRecords(named=lambda server_id: f"server {server_id}")).lead()
    named = tuple(f"server {number}" for number in (1, 2, 3))
    assert bench.raft._replica.log.entries(1, 9, 1_000) == (no_op_entry(1, NoOp(named[0], named, named[:2])),)


def test_leader_of_log_without_members_appends_them() -> None:
    """The leader may have fetched the no-op of the first leader, but not the following entries."""
    bench = FetchBench(features=KRAFT, entries=(no_op_entry(1, NoOp(2)),), term=1).lead()
    written = bench.raft._replica.log.entries(2, 9, 1_000) or ()
    assert [entry.kind for entry in written] == [EntryKind.NO_OP, EntryKind.CONFIGURATION]


def test_static_voters_not_written_to_log() -> None:
    bench = FetchBench().lead()
    assert bench.raft._replica.log.entries(1, 9, 1_000) == (no_op_entry(1, NoOp(1, (1, 2, 3), (1, 2))),)
