"""Scenarios that any correct Raft implementation passes, on one replica or a small group.

docs/reference/raft-rules.md lists them. Other scenarios of this list are in `raft/`: diverging logs, figure 8,
disruptive servers, overwritten entries, reordered appends. `tests/spec` has scenarios by section;
`tests/simulation/consensus` combines all faults.
"""

from itertools import count
from random import Random

import pytest
from msgspec.structs import replace

from consensus.core.effects import Outcome, Persist, ProposalResolved, Role, Send
from consensus.core.events import DeadlineReached, Event, PeerExtensions, Persisted, Proposed, Received
from consensus.core.features import GARLIC_FARM, KRAFT, ZMQ_RAFT, Extensions, Features
from consensus.core.log import describe_entries
from consensus.core.messages import AppendEntries, AppendReply, RequestVote, VoteReply
from consensus.core.model import Entry, HardState, LogId, integer_id
from consensus.core.options import lan
from consensus.core.raft import Raft
from tests.effort import each_case
from tests.spec.raft_bench import FIVE, FOUR, THREE, TWO, Bench, entries_of, group

AT = LogId


class Group:
    """Several replicas with fast disks and a perfect network, except for the disconnected servers."""

    def __init__(self, features: Features, logs: dict[int, tuple[tuple[Entry, ...], HardState]]) -> None:
        self.now = 0
        self.off: set[int] = set()
        self.resolved: list[ProposalResolved] = []
        self.rafts = {
            number: Raft(
                number,
                group(len(logs)),
                hard_state,
                describe_entries(entries),
                replace(lan(), check_invariants=True),
                features,
                Random(number),
                0,
            )
            for number, (entries, hard_state) in logs.items()
        }
        for number in logs:
            for other in logs:
                if number != other:
                    self.step(number, PeerExtensions(other, Extensions(pre_vote=True)))

    def step(self, number: int, event: Event) -> None:
        """Give one server an event, and process all events that follow immediately."""
        waiting: list[tuple[int, Event]] = [(number, event)]
        while waiting:
            at, what = waiting.pop(0)
            for effect in self.rafts[at].step(what, self.now):
                match effect:
                    case Persist():
                        waiting.insert(0, (at, Persisted(effect.number)))
                    case Send(recipient, message, _) if not {at, recipient} & self.off:
                        waiting.append((integer_id(recipient), Received(at, message)))
                    case ProposalResolved():
                        self.resolved.append(effect)
                    case _:
                        pass

    def run(self, duration_ms: int) -> None:
        end = self.now + duration_ms
        while True:
            number = min(self.rafts, key=lambda which: self.rafts[which].deadline)
            if self.rafts[number].deadline > end:
                break
            self.now = max(self.now, self.rafts[number].deadline)
            self.step(number, DeadlineReached())
        self.now = end

    def leaders(self) -> list[int]:
        return [number for number, raft in self.rafts.items() if raft.describe().role is Role.LEADER]


@pytest.fixture(params=[GARLIC_FARM, KRAFT], ids=["append", "fetch"])
def features(request: pytest.FixtureRequest) -> Features:
    found = request.param
    assert isinstance(found, Features)
    return found


def new_group(features: Features, size: int) -> Group:
    return Group(features, {number: ((), HardState(0)) for number in range(1, size + 1)})


@each_case("role", list(Role))
@each_case(
    "message",
    [
        RequestVote(term=9, candidate=TWO, last=AT(5, 5), correlation=1),
        AppendEntries(term=9, leader=TWO, previous=AT(1, 1), entries=(), commit=0, correlation=1),
        VoteReply(term=9, granted=False, correlation=1),
        AppendReply(term=9, success=False, next_index=1, correlation=1),
    ],
    ids=lambda message: type(message).__name__,
)
def test_higher_term_makes_follower_except_vote_to_leader(
    role: Role, message: RequestVote | AppendEntries | VoteReply | AppendReply
) -> None:
    bench = Bench(1)
    if role is Role.CANDIDATE:
        bench.expire()
    if role is Role.LEADER:
        bench.lead()
    bench.receive(TWO, message)
    ignores_vote = role is Role.LEADER and isinstance(message, RequestVote)
    assert (bench.about.role, bench.about.term) == ((Role.LEADER, 2) if ignores_vote else (Role.FOLLOWER, 9))


@pytest.mark.parametrize(
    "message",
    [
        RequestVote(term=1, candidate=TWO, last=AT(5, 1), correlation=1),
        RequestVote(term=1, candidate=TWO, last=AT(5, 1), correlation=1, pre_vote=True),
        AppendEntries(term=1, leader=TWO, previous=AT(1, 1), entries=entries_of(1), commit=1, correlation=1),
    ],
    ids=["vote", "pre-vote", "append"],
)
def test_stale_request_gets_reply_with_current_term(message: RequestVote | AppendEntries) -> None:
    bench = Bench(1, term=4)
    before = bench.about
    bench.receive(TWO, message)
    assert bench.about == before
    (send,) = bench.all(Send)
    assert isinstance(send.message, VoteReply | AppendReply)
    assert send.message.term == 4


@pytest.mark.parametrize(("denials", "role"), [(2, Role.CANDIDATE), (3, Role.FOLLOWER)])
def test_candidate_of_five_steps_down_after_three_denials(denials: int, role: Role) -> None:
    bench = Bench(voters=5).expired()
    bench.grant(*(TWO, THREE, FOUR, FIVE)[:denials], granted=False)
    assert bench.about.role is role


def test_randomized_timeouts_rarely_expire_together() -> None:
    heartbeat_ms = lan().heartbeat_ms
    together = 0
    for seed in range(200):
        first, second, *_ = sorted(Bench(seed=seed * 5 + number).raft.deadline for number in range(5))
        # Two candidates collide if the second starts before it can have received a message of the first.
        together += second - first < heartbeat_ms // 2
    assert together < 60, f"{together} of 200 rounds"


def test_isolated_server_with_pre_vote_keeps_terms(features: Features) -> None:
    servers = new_group(features, 3)
    servers.run(5_000)
    (leader,) = servers.leaders()
    lagging = next(number for number in servers.rafts if number != leader)
    servers.off = {lagging}
    servers.run(60_000)
    terms = {raft.describe().term for raft in servers.rafts.values()}
    servers.off = set()
    servers.run(5_000)
    assert {raft.describe().term for raft in servers.rafts.values()} == terms
    assert servers.leaders() == [leader]


def test_leader_without_majority_resigns(features: Features) -> None:
    servers = new_group(features, 3)
    servers.run(5_000)
    (leader,) = servers.leaders()
    servers.off = {leader}
    servers.run(lan().election_timeout_min_ms + lan().heartbeat_ms)
    assert servers.rafts[leader].describe().role is Role.FOLLOWER


def test_pre_vote_allows_election_of_server_with_smaller_term(features: Features) -> None:
    # Server 2 has the better log and a small term; server 1 a higher term; server 3 is down. An election must succeed.
    logs = {1: (entries_of(1), HardState(9)), 2: (entries_of(1, 1, 1), HardState(1)), 3: (entries_of(1), HardState(1))}
    servers = Group(features, logs)
    servers.off = {3}
    servers.run(20_000)
    assert servers.leaders() == [2]


def test_lost_leader_is_usually_replaced_within_two_seconds(features: Features) -> None:
    times = []
    for seed in range(20):
        servers = new_group(features, 3)
        servers.run(5_000 + seed * 37)
        (leader,) = servers.leaders()
        servers.off = {leader}
        lost = servers.now
        while servers.leaders() in ([leader], []):
            servers.run(10)
        times.append(servers.now - lost)
    assert sorted(times)[10] <= 2_000, times
    assert max(times) <= 20_000, times


def test_outcomes_of_proposals_across_change_of_leader(features: Features) -> None:
    servers = new_group(features, 3)
    servers.run(5_000)
    (old,) = servers.leaders()
    numbers = count(1)
    servers.step(old, Proposed(proposal_id=next(numbers), commands=(b"committed",)))
    servers.off = {old}
    servers.step(old, Proposed(proposal_id=next(numbers), commands=(b"cut off",)))
    servers.run(10_000)
    (new,) = servers.leaders()
    servers.step(old, Proposed(proposal_id=next(numbers), commands=(b"refused",)))
    servers.step(new, Proposed(proposal_id=next(numbers), commands=(b"later",)))
    outcomes = {resolve.proposal_id: resolve.outcome for resolve in servers.resolved}
    assert outcomes == {1: Outcome.COMMITTED, 2: Outcome.UNKNOWN, 3: Outcome.NOT_LEADER, 4: Outcome.COMMITTED}
    servers.off = set()
    servers.run(5_000)
    ends = {raft.describe().last for raft in servers.rafts.values()}
    assert len(ends) == 1
    assert len({raft.describe().applied_index for raft in servers.rafts.values()}) == 1


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT, KRAFT], ids=lambda features: features.name)
@pytest.mark.parametrize("far", [1, 2], ids=["higher term with best log", "higher term with shorter log"])
def test_huge_term_gap_converges_by_retries(features: Features, far: int) -> None:
    gap = 2**30
    logs = {number: (entries_of(1, 1) if number == 1 else entries_of(1), HardState(1)) for number in (1, 2, 3)}
    logs[far] = (logs[far][0], HardState(gap))
    servers = Group(features, logs)
    servers.run(60_000)
    (leader,) = servers.leaders()
    servers.step(leader, Proposed(proposal_id=1, commands=(b"a whole command",)))
    servers.run(1_000)
    (term,) = {raft.describe().term for raft in servers.rafts.values()}
    assert term > gap
    assert [resolve.outcome for resolve in servers.resolved] == [Outcome.COMMITTED]


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT, KRAFT], ids=lambda features: features.name)
def test_majority_with_far_higher_term_is_followed(features: Features) -> None:
    gap = 2**30
    logs = {number: (entries_of(1), HardState(gap)) for number in (1, 2)}
    servers = Group(features, {**logs, 3: (entries_of(1), HardState(1))})
    servers.run(60_000)
    (leader,) = servers.leaders()
    servers.step(leader, Proposed(proposal_id=1, commands=(b"a whole command",)))
    servers.run(1_000)
    about = [raft.describe() for raft in servers.rafts.values()]
    assert {one.leader for one in about} == {leader}
    assert len({one.commit_index for one in about}) == 1
    assert [resolve.outcome for resolve in servers.resolved] == [Outcome.COMMITTED]
