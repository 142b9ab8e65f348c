"""Reconciliation of the group's servers: additions, removals, and conditions without a change."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from bridge.core.formation.member import FarmMember, MemberStatus
from bridge.core.log.records import Admission
from bridge.core.membership.admission import Admitted, Standing, admit, next_raft_id, of_founders
from bridge.core.membership.reconcile import (
    AddLearner,
    Admit,
    Decision,
    Group,
    HandOver,
    Promote,
    Proposal,
    Reconciler,
    ReconcileSettings,
    Remove,
)
from tests.effort import over_seeds
from tests.members import farm_member

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus
GRACE_MS, SETTLE_MS, STEP_MS = 120_000, 10_000, 1_000
PERIOD_MS = 2_000
MANUAL = ReconcileSettings(expect=3, voters_max=5, grace_ms=GRACE_MS, settle_ms=SETTLE_MS)
SETTINGS = ReconcileSettings(
    expect=3, voters_max=5, grace_ms=GRACE_MS, settle_ms=SETTLE_MS, admits_all=True, admission_every_ms=PERIOD_MS
)


def identity(number: int) -> bytes:
    """Return the NodeId of node `number`."""
    return bytes([number]) * 8


def names(*numbers: int) -> dict[int, Admitted]:
    """Return the admissions of these nodes: node k is server k."""
    return {number: Admitted(identity(number), f"node-{number}") for number in numbers}


class Story:
    """A leader, at first server 1, which decides once a second. Its proposals take effect immediately by default."""

    def __init__(self, voters: int = 3, rules: ReconcileSettings = SETTINGS, others: int = 0) -> None:
        self.settings = rules
        self.reconciler = Reconciler(rules)
        self.now_ms = 0
        self.leader = 1
        self.admitted: dict[int, Admitted] = names(*range(1, voters + others + 1))
        self.status = dict.fromkeys(range(2, voters + others + 1), ALIVE)
        self.voters = set(range(1, voters + 1))
        self.learners: set[int] = set()
        self.unresponsive: set[int] = set()
        self.not_serving: set[int] = set()
        self.removed: set[int] = set()
        self.losing_vote: set[int] = set()
        self.decision = Decision()

    def members(self) -> tuple[FarmMember, ...]:
        return tuple(
            farm_member(
                identity(number),
                name=f"node-{number}",
                status=status,
                raft_id=None if number in self.not_serving else number,
            )
            for number, status in self.status.items()
            if number != self.leader
        )

    def healthy_voters(self) -> set[int]:
        return {number for number in self.voters if self.status.get(number, ALIVE) in {ALIVE, SUSPECT}}

    def lead(self, number: int) -> None:
        self.leader, self.reconciler = number, Reconciler(self.settings)

    def group(self) -> Group:
        """Return the group as Raft reports it."""
        answering = {
            number
            for number in self.voters | self.learners
            if self.status.get(number, DEAD) in {ALIVE, SUSPECT} and number not in self.unresponsive
        }
        return Group(
            self.leader,
            frozenset(self.voters),
            frozenset(self.learners),
            frozenset(answering),
            frozenset(self.learners & answering),
            frozenset(self.removed),
            frozenset(self.losing_vote),
        )

    def decide(self) -> Proposal | None:
        """Decide once, and return the proposal without carrying it out."""
        self.decision = self.reconciler.decide(self.now_ms, self.members(), self.admitted, self.group())
        self.now_ms += STEP_MS
        return self.decision.proposal

    def carry_out(self, proposal: Proposal) -> None:
        match proposal:
            case Admit(node_id, name):
                table, _ = admit(
                    self.admitted, Admission(node_id, name, server_id=next_raft_id(self.admitted, node_id))
                )
                self.admitted = dict(table)
            case AddLearner(number):
                self.learners.add(number)
            case Promote(number):
                self.learners.remove(number)
                self.voters.add(number)
            case Remove(number):
                self.voters.discard(number)
                self.learners.discard(number)
            case HandOver():
                before = self.leader
                self.lead(min(self.voters - {before}))
                self.status[before] = ALIVE

    def run(self, for_ms: int) -> list[Proposal]:
        """Decide for `for_ms`, and carry out each proposal; return all proposals."""
        proposals = []
        for _ in range(for_ms // STEP_MS):
            proposal = self.decide()
            if proposal is not None:
                proposals.append(proposal)
                self.carry_out(proposal)
        return proposals


# -- additions ---------------------------------------------------------------------------------------------------------


def test_new_node_admitted_added_and_promoted_in_steps() -> None:
    story = Story()
    story.status[4] = ALIVE
    assert story.run(3 * SETTLE_MS) == [Admit(identity(4), "node-4"), AddLearner(4), Promote(4)]


def test_voter_losing_vote_before_eviction_not_promoted() -> None:
    story = Story(voters=4)
    assert story.run(3 * SETTLE_MS) == []
    # When server 4 has become a learner, and its eviction is not in the log yet
    story.voters, story.learners, story.losing_vote = {1, 2, 3}, {4}, {4}
    assert story.run(3 * SETTLE_MS) == []
    # Then the leader promotes it again only after the eviction has failed
    story.losing_vote = set()
    assert story.run(STEP_MS) == [Promote(4)]


def test_admitted_node_added_after_its_start() -> None:
    story = Story()
    story.status[4], story.not_serving = ALIVE, {4}
    assert story.run(3 * SETTLE_MS) == [Admit(identity(4), "node-4")]
    assert story.decision.waits == ("node-4 is admitted as server 4; its Raft server has to start",)


def test_servers_beyond_voters_max_stay_learners() -> None:
    story = Story(voters=5, others=2)
    assert story.run(10 * SETTLE_MS) == [AddLearner(6), AddLearner(7)]
    assert story.voters == {1, 2, 3, 4, 5}


def test_lagging_learner_does_not_vote() -> None:
    story = Story(others=1)
    story.unresponsive = {4}
    assert story.run(10 * SETTLE_MS) == [AddLearner(4)]
    assert "node-4 receives the log" in story.decision.waits


def test_single_voter_waits_for_two_others() -> None:
    story = Story(voters=1, others=1, rules=replace(SETTINGS, expect=1))
    assert story.run(5 * SETTLE_MS) == [AddLearner(2)]
    assert any("node-2 can vote; it waits for one more voter" in text for text in story.decision.waits)
    story.status[3] = ALIVE
    assert story.run(5 * SETTLE_MS)[-2:] == [Promote(2), Promote(3)]


def test_identity_under_used_name_refused() -> None:
    story = Story()
    story.status[4] = ALIVE
    story.admitted[9] = Admitted(identity(9), "node-4")
    assert story.run(3 * SETTLE_MS) == []
    [refused] = story.decision.refused
    assert "the name node-4 belongs to the identity 0909090909090909" in refused


def test_second_running_node_of_name_not_for_approval() -> None:
    story = Story()
    story.status[4] = ALIVE
    story.admitted[1] = replace(story.admitted[1], name="node-4")
    story.run(3 * SETTLE_MS)
    [refused] = [text for text in story.decision.refused if "node-4" in text]
    assert "two running nodes have the name node-4" in refused
    assert "do not approve it" in refused


def test_failed_proposal_retried_after_others() -> None:
    story = Story(others=2)
    story.learners = {4, 5}
    story.run(SETTLE_MS)
    assert story.decide() == Promote(4)
    story.reconciler.failed(Promote(4), story.now_ms)
    assert story.decide() == Promote(5)
    story.now_ms += SETTINGS.retry_ms
    assert story.decide() == Promote(4)


# -- removals ----------------------------------------------------------------------------------------------------------


def test_leaving_server_removed_immediately() -> None:
    story = Story(voters=4)
    story.status[4] = LEFT
    assert story.decide() == Remove(4)


def test_dead_voter_removed_after_grace_time() -> None:
    story = Story(voters=4)
    story.status[4] = DEAD
    assert story.run(GRACE_MS) == []
    assert story.decision.waits == ("node-4 has been dead for 1 min; removed after 2 min",)
    assert story.run(2 * STEP_MS) == [Remove(4)]


def test_wait_for_grace_time_shows_obstacle() -> None:
    story = Story(voters=3)
    story.status[3] = DEAD
    assert story.run(GRACE_MS) == []
    (waits,) = story.decision.waits
    assert waits.endswith("removed after 2 min at the earliest: a farm of 3 needs another voter as a replacement first")


def test_dead_voter_dropped_by_gossip_still_removed() -> None:
    story = Story(voters=4)
    story.status[4] = DEAD
    story.run(GRACE_MS // 2)
    del story.status[4]
    assert story.run(GRACE_MS // 2 + 2 * STEP_MS) == [Remove(4)]


def test_voter_answering_leader_is_not_dead() -> None:
    story = Story(voters=4)
    members = replace(story.group(), answering=frozenset({2, 3, 4}))
    story.status[4] = DEAD
    found = [
        story.reconciler.decide(now_ms, story.members(), story.admitted, members).proposal
        for now_ms in range(0, 3 * GRACE_MS, STEP_MS)
    ]
    assert set(found) == {None}


def test_dead_voter_replaced_before_removal() -> None:
    story = Story(others=1)
    story.learners = {4}
    story.settings = replace(SETTINGS, voters_max=3)
    story.reconciler = Reconciler(story.settings)
    story.status[3] = DEAD
    assert story.run(GRACE_MS + 5 * STEP_MS) == [Promote(4), Remove(3)]


def test_dead_voter_without_replacement_not_removed() -> None:
    story = Story(voters=3)
    story.status[3] = DEAD
    assert story.run(3 * GRACE_MS) == []
    assert story.decision.waits == (
        "node-3 has been dead for 5 min; not removed: a farm of 3 needs another voter as a replacement first",
    )


def test_server_not_removed_without_majority() -> None:
    story = Story(voters=5)
    story.status.update({3: DEAD, 4: DEAD, 5: DEAD})
    assert story.run(3 * GRACE_MS) == []
    assert all("too few of the other voters are healthy" in text for text in story.decision.waits)


def test_dead_learner_removed_after_grace_time() -> None:
    story = Story(voters=5, others=1)
    story.learners, story.status[6] = {6}, DEAD
    assert story.run(GRACE_MS) == []
    assert story.run(2 * STEP_MS) == [Remove(6)]


def test_returning_server_keeps_its_raft_id() -> None:
    story = Story(voters=4)
    story.status[4] = LEFT
    story.run(2 * STEP_MS)
    story.status[4] = ALIVE
    assert story.run(3 * SETTLE_MS) == [AddLearner(4), Promote(4)]


def test_founder_name_recorded_once() -> None:
    story = Story()
    story.admitted = of_founders((identity(1), identity(2), identity(3)))
    assert story.run(5 * SETTLE_MS) == [Admit(identity(2), "node-2"), Admit(identity(3), "node-3")]


# -- stable cases ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("voters", [3, 4, 5])
def test_suspicion_alone_ignored(voters: int) -> None:
    story = Story(voters=voters)
    story.status = dict.fromkeys(story.status, SUSPECT)
    assert story.run(5 * GRACE_MS) == []


@pytest.mark.parametrize("status", [SUSPECT, DEAD])
def test_answering_learner_settles_despite_gossip_status(status: MemberStatus) -> None:
    """A short false status in gossip must not restart the settle time."""
    story = Story(voters=4)
    story.admitted |= names(5)
    story.learners, story.status[5] = {5}, ALIVE
    for second in range(SETTLE_MS // STEP_MS):
        story.status[5] = status if second % 3 else ALIVE
        group = replace(story.group(), answering=frozenset({2, 3, 4, 5}), caught_up=frozenset({5}))
        assert story.reconciler.decide(story.now_ms, story.members(), story.admitted, group).proposal is None
        story.now_ms += STEP_MS
    story.status[5] = ALIVE
    assert story.decide() == Promote(5)


def test_suspicion_keeps_settle_time_of_new_node() -> None:
    story = Story(rules=MANUAL)
    story.status[7] = ALIVE
    for second in range(SETTLE_MS // STEP_MS + 1):
        story.status[7] = SUSPECT if second % 3 == 2 else ALIVE
        story.decide()
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7)]


@given(st.data())
def test_flapping_member_ignored(data: st.DataObject) -> None:
    """All intervals in one status are shorter than the settle and grace times."""
    story = Story(voters=4, others=1)
    story.learners = set(data.draw(st.sampled_from([(), (5,)])))
    proposals = []
    for _ in range(data.draw(st.integers(5, 20))):
        for number in (4, 5):
            story.status[number] = data.draw(st.sampled_from([ALIVE, SUSPECT]))
        proposals += story.run(data.draw(st.integers(1, SETTLE_MS // STEP_MS - 1)) * STEP_MS)
        for number in (4, 5):
            story.status[number] = DEAD
        proposals += story.run(data.draw(st.integers(1, 20)) * STEP_MS)
    assert proposals == []


def test_new_node_waits_for_approval_by_operator() -> None:
    story = Story(rules=MANUAL)
    story.status |= {7: ALIVE, 8: ALIVE}
    assert story.run(60_000) == []
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7), identity(8)]
    story.carry_out(Admit(identity(8), "node-8"))
    assert AddLearner(4) in story.run(1_000), "the steps after an admission do not need an operator"
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7)]


def test_member_names_recorded_without_operator() -> None:
    story = Story(rules=MANUAL)
    story.admitted[2] = Admitted(identity(2))
    story.admitted[3] = Admitted(identity(3), "an earlier name")
    assert story.run(2 * SETTLE_MS) == [Admit(identity(2), "node-2"), Admit(identity(3), "node-3")]


def test_admissions_limited_to_one_per_period() -> None:
    story = Story(rules=replace(SETTINGS, admission_every_ms=30_000))
    story.status |= dict.fromkeys(range(10, 100), ALIVE)
    admitted = [each for each in story.run(300_000) if isinstance(each, Admit)]
    assert len(admitted) == 10
    assert story.decision.awaiting_approval == ()


def test_longest_waiting_node_listed_first() -> None:
    story = Story(rules=MANUAL)
    story.status[99] = ALIVE
    story.run(SETTLE_MS)
    story.status |= dict.fromkeys(range(10, 90), ALIVE)
    story.run(2 * SETTLE_MS)
    assert story.decision.awaiting_approval[0].node_id == identity(99)
    assert len(story.decision.awaiting_approval) == 81


@given(st.data())
def test_random_changes_keep_bounds_and_healthy_servers(data: st.DataObject) -> None:
    chosen = ReconcileSettings(
        expect=data.draw(st.integers(1, 5)),
        voters_max=data.draw(st.sampled_from([1, 3, 5])),
        grace_ms=20_000,
        settle_ms=3_000,
        retry_ms=5_000,
    )
    story = Story(voters=chosen.expect, others=data.draw(st.integers(0, 4)), rules=chosen)
    down_since_ms: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        for number in story.status:
            story.status[number] = data.draw(st.sampled_from([ALIVE, ALIVE, ALIVE, SUSPECT, DEAD, LEFT]))
            if story.status[number] in {ALIVE, SUSPECT}:
                down_since_ms.pop(number, None)
            else:
                down_since_ms.setdefault(number, story.now_ms)
        for _ in range(data.draw(st.integers(1, 40))):
            when = story.now_ms
            proposal = story.decide()
            match proposal:
                case Remove(number):
                    assert number != 1
                    assert story.status[number] is LEFT or when - down_since_ms[number] >= chosen.grace_ms
                    if number in story.voters:
                        assert len(story.voters) > chosen.expect
                        rest = story.voters - {number}
                        healthy = {1} | {each for each in rest if story.status.get(each) in {ALIVE, SUSPECT}}
                        assert 2 * len(healthy & rest) > len(rest)
                case Promote(number):
                    assert story.status[number] is ALIVE
                case _:
                    pass
            if proposal is not None:
                story.carry_out(proposal)
            assert chosen.expect <= len(story.voters) <= chosen.ceiling + 1
            if all(status in {ALIVE, SUSPECT} for status in story.status.values()) and isinstance(proposal, Promote):
                assert len(story.voters) <= chosen.ceiling
            assert not story.voters & story.learners


@over_seeds(20)
def test_group_with_changing_nodes_keeps_majority(seed: int) -> None:
    """No proposal removes the majority, under any leader. After the changes the group reaches its target."""
    random = Random(seed)
    rules = replace(SETTINGS, grace_ms=20_000, settle_ms=3_000)
    story = Story(others=6, rules=rules)
    story.status[1] = ALIVE
    for _ in range(400):
        if random.random() < 0.2:
            story.status[random.randint(1, 9)] = random.choice([ALIVE, ALIVE, SUSPECT, DEAD, LEFT])
        healthy = story.healthy_voters()
        if 2 * len(healthy) <= len(story.voters):
            continue  # no server can lead
        if story.leader not in healthy or random.random() < 0.02:
            story.lead(random.choice(sorted(healthy)))
        proposal = story.decide()
        if proposal is not None:
            story.carry_out(proposal)
        assert 2 * len(story.healthy_voters()) > len(story.voters), f"seed {seed}: {proposal} took the majority away"
        assert rules.expect <= len(story.voters) <= rules.ceiling + 1
    story.status = dict.fromkeys(range(1, 10), ALIVE)
    story.lead(min(story.voters))
    story.run(120_000)
    assert story.voters | story.learners == set(range(1, 10))
    assert len(story.voters) == rules.ceiling


def test_full_group_admits_no_more_servers() -> None:
    story = Story(voters=5, others=58)
    story.learners = set(range(6, 64))
    story.status[64] = ALIVE
    assert story.run(3 * SETTLE_MS) == []


def test_group_reaches_target_after_changes() -> None:
    """Two of nine nodes die permanently: five servers vote, two are learners, and the dead ones are removed."""
    story = Story(voters=3, others=6)
    story.status.update({2: DEAD, 7: DEAD})
    story.run(3 * GRACE_MS)
    assert story.voters | story.learners == {1, 3, 4, 5, 6, 8, 9}
    assert len(story.voters) == 5
    assert story.run(3 * GRACE_MS) == []


def set_standing(story: Story, number: int, standing: Standing) -> None:
    """Change `Admitted.standing` of node `number`, as an operator does."""
    story.admitted[number] = replace(story.admitted[number], standing=standing)


def test_evicted_voter_removed_down_to_founder_count() -> None:
    story = Story(voters=4)
    set_standing(story, 4, Standing.EVICTED)
    story.run(2 * STEP_MS)
    assert story.voters == {1, 2, 3}
    set_standing(story, 3, Standing.EVICTED)
    story.run(30 * STEP_MS)
    assert story.voters == {1, 2, 3}
    assert "server 3 (node-3) is evicted; not removed: a farm of 3 needs another voter" in " ".join(
        story.decision.waits
    )


def test_evicted_learner_removed_permanently() -> None:
    story = Story(voters=3, others=1)
    story.learners = {4}
    set_standing(story, 4, Standing.EVICTED)
    story.run(60 * STEP_MS)
    assert (story.voters, story.learners) == ({1, 2, 3}, set())


def test_retired_server_removed_after_successor_votes() -> None:
    story = Story(voters=4, others=1)
    set_standing(story, 4, Standing.RETIRED)
    story.status[4] = DEAD
    story.admitted[5] = Admitted(identity(5), "node-4")
    seats = []
    for _ in range(60):
        story.run(1 * STEP_MS)
        seats.append(frozenset(story.voters))
    assert frozenset({1, 2, 3}) not in seats
    assert seats[-1] == {1, 2, 3, 5}


def test_retired_server_removed_without_live_successor() -> None:
    story = Story(voters=4, others=1)
    set_standing(story, 4, Standing.RETIRED)
    story.status[4] = story.status[5] = DEAD
    story.admitted[5] = Admitted(identity(5), "node-4")
    story.run(5 * STEP_MS)
    assert story.voters == {1, 2, 3}


def test_identity_without_public_key_admitted_again() -> None:
    story = Story(voters=3)
    member = replace(story.members()[0], credential=b"its key")
    reconciler = Reconciler(SETTINGS)
    for now_ms in (0, SETTLE_MS):
        decision = reconciler.decide(now_ms, (member,), story.admitted, story.group())
    assert decision.proposal == Admit(member.node_id, member.name, b"its key")
