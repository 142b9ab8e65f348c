"""Which servers should be in the group: the way in, the way out, and all that must change nothing."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
from tests.members import farm_member

ALIVE, SUSPECT, DEAD, LEFT = MemberStatus
GRACE_MS, SETTLE_MS, LOOK_MS = 600_000, 10_000, 1_000
PERIOD_MS = 2_000
ASKING = ReconcileSettings(expect=3, voters_max=5, grace_ms=GRACE_MS, settle_ms=SETTLE_MS)
SETTINGS = ReconcileSettings(
    expect=3, voters_max=5, grace_ms=GRACE_MS, settle_ms=SETTLE_MS, admits_all=True, admission_every_ms=PERIOD_MS
)


def identity(number: int) -> bytes:
    """The NodeId of router `number`."""
    return bytes([number]) * 8


def names(*numbers: int) -> dict[int, Admitted]:
    """These routers are admitted, router k as server k."""
    return {number: Admitted(identity(number), f"node-{number}") for number in numbers}


class Story:
    """A leader, server 1, looks once a second; what it proposes is done at once unless the story says otherwise."""

    def __init__(self, voters: int = 3, rules: ReconcileSettings = SETTINGS, others: int = 0) -> None:
        self.settings = rules
        self.reconciler = Reconciler(rules)
        self.now_ms = 0
        self.leader = 1
        self.admitted: dict[int, Admitted] = names(*range(1, voters + others + 1))
        self.status = dict.fromkeys(range(2, voters + others + 1), ALIVE)
        self.voters = set(range(1, voters + 1))
        self.learners: set[int] = set()
        self.silent: set[int] = set()
        self.not_serving: set[int] = set()
        self.removed: set[int] = set()
        self.losing_vote: set[int] = set()
        self.decision = Decision()

    def members(self) -> tuple[FarmMember, ...]:
        """What gossip shows."""
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

    def up(self) -> set[int]:
        """The voters that live."""
        return {number for number in self.voters if self.status.get(number, ALIVE) in {ALIVE, SUSPECT}}

    def lead(self, number: int) -> None:
        """Another server leads, and reckons anew."""
        self.leader, self.reconciler = number, Reconciler(self.settings)

    def group(self) -> Group:
        """What Raft shows."""
        answering = {
            number
            for number in self.voters | self.learners
            if self.status.get(number, DEAD) in {ALIVE, SUSPECT} and number not in self.silent
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

    def look(self) -> Proposal | None:
        """One look, and nothing is done."""
        self.decision = self.reconciler.decide(self.now_ms, self.members(), self.admitted, self.group())
        self.now_ms += LOOK_MS
        return self.decision.proposal

    def do(self, proposal: Proposal) -> None:
        """As the farm would."""
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

    def live(self, for_ms: int) -> list[Proposal]:
        """Everything that is proposed, and done, in that time."""
        done = []
        for _ in range(for_ms // LOOK_MS):
            proposal = self.look()
            if proposal is not None:
                done.append(proposal)
                self.do(proposal)
        return done


# -- the way in --------------------------------------------------------------------------------------------------------


def test_a_newcomer_is_admitted_gets_the_log_and_votes_one_step_at_a_time() -> None:
    story = Story()
    story.status[4] = ALIVE
    assert story.live(3 * SETTLE_MS) == [Admit(identity(4), "node-4"), AddLearner(4), Promote(4)]


def test_a_voter_that_gives_up_its_vote_to_be_evicted_does_not_get_it_back_in_between() -> None:
    story = Story(voters=4)
    assert story.live(3 * SETTLE_MS) == []
    # when it has become a learner, and the eviction is not in the log yet
    story.voters, story.learners, story.losing_vote = {1, 2, 3}, {4}, {4}
    assert story.live(3 * SETTLE_MS) == []
    # then it votes again only if the eviction came to nothing
    story.losing_vote = set()
    assert story.live(LOOK_MS) == [Promote(4)]


def test_a_newcomer_that_was_admitted_and_has_not_started_is_waited_for() -> None:
    story = Story()
    story.status[4], story.not_serving = ALIVE, {4}
    assert story.live(3 * SETTLE_MS) == [Admit(identity(4), "node-4")]
    assert story.decision.waits == ("node-4 is admitted as server 4; its Raft server has to start",)


def test_beyond_voters_max_others_stay_learners() -> None:
    story = Story(voters=5, others=2)
    assert story.live(10 * SETTLE_MS) == [AddLearner(6), AddLearner(7)]
    assert story.voters == {1, 2, 3, 4, 5}


def test_a_learner_that_is_not_caught_up_does_not_vote() -> None:
    story = Story(others=1)
    story.silent = {4}
    assert story.live(10 * SETTLE_MS) == [AddLearner(4)]
    assert "node-4 receives the log" in story.decision.waits


def test_one_voter_alone_waits_for_two_others() -> None:
    story = Story(voters=1, others=1, rules=replace(SETTINGS, expect=1))
    assert story.live(5 * SETTLE_MS) == [AddLearner(2)]
    assert any("node-2 can vote; it waits for one more voter" in text for text in story.decision.waits)
    story.status[3] = ALIVE
    assert story.live(5 * SETTLE_MS)[-2:] == [Promote(2), Promote(3)]


def test_an_identity_under_a_name_of_another_one_is_refused_in_words_and_disturbs_no_member() -> None:
    story = Story()
    story.status[4] = ALIVE
    story.admitted[9] = Admitted(identity(9), "node-4")
    assert story.live(3 * SETTLE_MS) == []
    [refused] = story.decision.refused
    assert "the name node-4 belongs to the identity 0909090909090909" in refused


def test_two_nodes_with_one_name_are_not_offered_for_approval() -> None:
    story = Story()
    story.status[4] = ALIVE
    story.admitted[1] = replace(story.admitted[1], name="node-4")
    story.live(3 * SETTLE_MS)
    [refused] = [text for text in story.decision.refused if "node-4" in text]
    assert "two running nodes have the name node-4" in refused
    assert "do not approve it" in refused


def test_what_failed_is_tried_again_later_and_others_get_their_turn() -> None:
    story = Story(others=2)
    story.learners = {4, 5}
    story.live(SETTLE_MS)
    assert story.look() == Promote(4)
    story.reconciler.failed(Promote(4), story.now_ms)
    assert story.look() == Promote(5)
    story.now_ms += SETTINGS.retry_ms
    assert story.look() == Promote(4)


# -- the way out -------------------------------------------------------------------------------------------------------


def test_one_that_leaves_is_removed_at_once() -> None:
    story = Story(voters=4)
    story.status[4] = LEFT
    assert story.look() == Remove(4)


def test_a_dead_voter_is_removed_after_the_grace_time_and_not_before() -> None:
    story = Story(voters=4)
    story.status[4] = DEAD
    assert story.live(GRACE_MS) == []
    assert story.decision.waits == ("node-4 is dead for 9 min; removed after 10 min",)
    assert story.live(2 * LOOK_MS) == [Remove(4)]


def test_one_that_gossip_has_forgotten_is_as_dead_as_before() -> None:
    story = Story(voters=4)
    story.status[4] = DEAD
    story.live(GRACE_MS // 2)
    del story.status[4]
    assert story.live(GRACE_MS // 2 + 2 * LOOK_MS) == [Remove(4)]


def test_a_voter_that_answers_the_leader_is_not_dead_whatever_gossip_says() -> None:
    story = Story(voters=4)
    members = replace(story.group(), answering=frozenset({2, 3, 4}))
    story.status[4] = DEAD
    found = [
        story.reconciler.decide(now_ms, story.members(), story.admitted, members).proposal
        for now_ms in range(0, 3 * GRACE_MS, LOOK_MS)
    ]
    assert set(found) == {None}


def test_a_dead_voter_is_replaced_before_it_is_removed() -> None:
    story = Story(others=1)
    story.learners = {4}
    story.settings = replace(SETTINGS, voters_max=3)
    story.reconciler = Reconciler(story.settings)
    story.status[3] = DEAD
    assert story.live(GRACE_MS + 5 * LOOK_MS) == [Promote(4), Remove(3)]


def test_without_a_replacement_a_farm_never_falls_below_expect() -> None:
    story = Story(voters=3)
    story.status[3] = DEAD
    assert story.live(3 * GRACE_MS) == []
    assert story.decision.waits == (
        "node-3 is dead for 29 min; not removed: a farm of 3 needs another voter as a replacement first",
    )


def test_without_a_majority_no_server_is_removed() -> None:
    story = Story(voters=5)
    story.status.update({3: DEAD, 4: DEAD, 5: DEAD})
    assert story.live(3 * GRACE_MS) == []
    assert all("too few of the other voters are healthy" in text for text in story.decision.waits)


def test_a_dead_learner_is_removed_after_the_grace_time() -> None:
    story = Story(voters=5, others=1)
    story.learners, story.status[6] = {6}, DEAD
    assert story.live(GRACE_MS) == []
    assert story.live(2 * LOOK_MS) == [Remove(6)]


def test_a_removed_server_that_comes_back_gets_its_old_raft_id() -> None:
    story = Story(voters=4)
    story.status[4] = LEFT
    story.live(2 * LOOK_MS)
    story.status[4] = ALIVE
    assert story.live(3 * SETTLE_MS) == [AddLearner(4), Promote(4)]


def test_a_founder_s_name_is_recorded_once() -> None:
    story = Story()
    story.admitted = of_founders((identity(1), identity(2), identity(3)))
    assert story.live(5 * SETTLE_MS) == [Admit(identity(2), "node-2"), Admit(identity(3), "node-3")]


# -- what changes nothing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("voters", [3, 4, 5])
def test_suspicion_alone_changes_nothing(voters: int) -> None:
    story = Story(voters=voters)
    story.status = dict.fromkeys(story.status, SUSPECT)
    assert story.live(5 * GRACE_MS) == []


@pytest.mark.parametrize("status", [SUSPECT, DEAD])
def test_a_learner_that_answers_settles_whatever_gossip_reports(status: MemberStatus) -> None:
    """A moment of a false verdict would otherwise start the settle time again, each time."""
    story = Story(voters=4)
    story.admitted |= names(5)
    story.learners, story.status[5] = {5}, ALIVE
    for second in range(SETTLE_MS // LOOK_MS):
        story.status[5] = status if second % 3 else ALIVE
        group = replace(story.group(), answering=frozenset({2, 3, 4, 5}), caught_up=frozenset({5}))
        assert story.reconciler.decide(story.now_ms, story.members(), story.admitted, group).proposal is None
        story.now_ms += LOOK_MS
    story.status[5] = ALIVE
    assert story.look() == Promote(5)


def test_a_suspicion_does_not_start_the_settle_time_of_a_newcomer_again() -> None:
    story = Story(rules=ASKING)
    story.status[7] = ALIVE
    for second in range(SETTLE_MS // LOOK_MS + 1):
        story.status[7] = SUSPECT if second % 3 == 2 else ALIVE
        story.look()
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7)]


@settings(max_examples=40)
@given(st.data())
def test_a_member_that_flaps_changes_nothing(data: st.DataObject) -> None:
    """Whatever it is called in between, every stretch of it is shorter than what would count."""
    story = Story(voters=4, others=1)
    story.learners = set(data.draw(st.sampled_from([(), (5,)])))
    done = []
    for _ in range(data.draw(st.integers(5, 20))):
        for number in (4, 5):
            story.status[number] = data.draw(st.sampled_from([ALIVE, SUSPECT]))
        done += story.live(data.draw(st.integers(1, SETTLE_MS // LOOK_MS - 1)) * LOOK_MS)
        for number in (4, 5):
            story.status[number] = DEAD
        done += story.live(data.draw(st.integers(1, 20)) * LOOK_MS)
    assert done == []


def test_a_newcomer_that_is_heard_is_not_admitted_but_told_of_until_an_operator_admits_it() -> None:
    story = Story(rules=ASKING)
    story.status |= {7: ALIVE, 8: ALIVE}
    assert story.live(60_000) == []
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7), identity(8)]
    story.do(Admit(identity(8), "node-8"))
    assert AddLearner(4) in story.live(1_000), "what follows an admission needs no operator"
    assert [each.node_id for each in story.decision.awaiting_approval] == [identity(7)]


def test_the_names_of_founders_and_of_members_are_recorded_without_an_operator() -> None:
    story = Story(rules=ASKING)
    story.admitted[2] = Admitted(identity(2))
    story.admitted[3] = Admitted(identity(3), "an earlier name")
    assert story.live(2 * SETTLE_MS) == [Admit(identity(2), "node-2"), Admit(identity(3), "node-3")]


def test_newcomers_are_admitted_one_in_a_period_where_all_are_let_in() -> None:
    story = Story(rules=replace(SETTINGS, admission_every_ms=30_000))
    story.status |= dict.fromkeys(range(10, 100), ALIVE)
    admitted = [each for each in story.live(300_000) if isinstance(each, Admit)]
    assert len(admitted) == 10
    assert story.decision.awaiting_approval == ()


def test_the_longest_waiting_newcomer_comes_first_whatever_crowd_comes_after_it() -> None:
    story = Story(rules=ASKING)
    story.status[99] = ALIVE
    story.live(SETTLE_MS)
    story.status |= dict.fromkeys(range(10, 90), ALIVE)
    story.live(2 * SETTLE_MS)
    assert story.decision.awaiting_approval[0].node_id == identity(99)
    assert len(story.decision.awaiting_approval) == 81


@settings(max_examples=60)
@given(st.data())
def test_whatever_happens_the_group_stays_within_its_bounds_and_removes_no_healthy_server(data: st.DataObject) -> None:
    chosen = ReconcileSettings(
        expect=data.draw(st.integers(1, 5)),
        voters_max=data.draw(st.sampled_from([1, 3, 5])),
        grace_ms=20_000,
        settle_ms=3_000,
        retry_ms=5_000,
    )
    story = Story(voters=chosen.expect, others=data.draw(st.integers(0, 4)), rules=chosen)
    gone_since: dict[int, int] = {}
    for _ in range(data.draw(st.integers(1, 15))):
        for number in story.status:
            story.status[number] = data.draw(st.sampled_from([ALIVE, ALIVE, ALIVE, SUSPECT, DEAD, LEFT]))
            if story.status[number] in {ALIVE, SUSPECT}:
                gone_since.pop(number, None)
            else:
                gone_since.setdefault(number, story.now_ms)
        for _ in range(data.draw(st.integers(1, 40))):
            when = story.now_ms
            proposal = story.look()
            match proposal:
                case Remove(number):
                    assert number != 1
                    assert story.status[number] is LEFT or when - gone_since[number] >= chosen.grace_ms
                    if number in story.voters:
                        assert len(story.voters) > chosen.expect
                        rest = story.voters - {number}
                        well = {1} | {each for each in rest if story.status.get(each) in {ALIVE, SUSPECT}}
                        assert 2 * len(well & rest) > len(rest)
                case Promote(number):
                    assert story.status[number] is ALIVE
                case _:
                    pass
            if proposal is not None:
                story.do(proposal)
            assert chosen.expect <= len(story.voters) <= chosen.ceiling + 1
            if all(status in {ALIVE, SUSPECT} for status in story.status.values()) and isinstance(proposal, Promote):
                assert len(story.voters) <= chosen.ceiling
            assert not story.voters & story.learners


@pytest.mark.parametrize("seed", range(20))
def test_farm_with_changing_nodes_keeps_its_majority_and_settles(seed: int) -> None:
    """No step takes a majority away, whichever server leads; when the churn is over the group is what it should be."""
    random = Random(seed)
    rules = replace(SETTINGS, grace_ms=20_000, settle_ms=3_000)
    story = Story(others=6, rules=rules)
    story.status[1] = ALIVE
    for _ in range(400):
        if random.random() < 0.2:
            story.status[random.randint(1, 9)] = random.choice([ALIVE, ALIVE, SUSPECT, DEAD, LEFT])
        up = story.up()
        if 2 * len(up) <= len(story.voters):
            continue  # no server can lead
        if story.leader not in up or random.random() < 0.02:
            story.lead(random.choice(sorted(up)))
        proposal = story.look()
        if proposal is not None:
            story.do(proposal)
        assert 2 * len(story.up()) > len(story.voters), f"seed {seed}: {proposal} took the majority away"
        assert rules.expect <= len(story.voters) <= rules.ceiling + 1
    story.status = dict.fromkeys(range(1, 10), ALIVE)
    story.lead(min(story.voters))
    story.live(120_000)
    assert story.voters | story.learners == set(range(1, 10))
    assert len(story.voters) == rules.ceiling


def test_a_full_group_admits_no_more_servers() -> None:
    story = Story(voters=5, others=58)
    story.learners = set(range(6, 64))
    story.status[64] = ALIVE
    assert story.live(3 * SETTLE_MS) == []


def test_after_all_changes_are_over_the_group_is_what_it_should_be() -> None:
    """Nine routers, of which two died for good: five vote, two learn, the dead are gone."""
    story = Story(voters=3, others=6)
    story.status.update({2: DEAD, 7: DEAD})
    story.live(3 * GRACE_MS)
    assert story.voters | story.learners == {1, 3, 4, 5, 6, 8, 9}
    assert len(story.voters) == 5
    assert story.live(3 * GRACE_MS) == []


def out(story: Story, number: int, standing: Standing) -> None:
    """A person has decided about router `number`."""
    story.admitted[number] = replace(story.admitted[number], standing=standing)


def test_an_evicted_voter_goes_at_once_though_it_answers_but_never_below_the_founders() -> None:
    story = Story(voters=4)
    out(story, 4, Standing.EVICTED)
    story.live(2 * LOOK_MS)
    assert story.voters == {1, 2, 3}
    out(story, 3, Standing.EVICTED)
    story.live(30 * LOOK_MS)
    assert story.voters == {1, 2, 3}
    assert "server 3 (node-3) is evicted; not removed: a farm of 3 needs another voter" in " ".join(
        story.decision.waits
    )


def test_an_evicted_learner_neither_stays_nor_votes_nor_comes_back() -> None:
    story = Story(voters=3, others=1)
    story.learners = {4}
    out(story, 4, Standing.EVICTED)
    story.live(60 * LOOK_MS)
    assert (story.voters, story.learners) == ({1, 2, 3}, set())


def test_the_seat_of_a_retired_server_is_given_up_only_when_its_successor_votes() -> None:
    story = Story(voters=4, others=1)
    out(story, 4, Standing.RETIRED)
    story.status[4] = DEAD
    story.admitted[5] = Admitted(identity(5), "node-4")
    seats = []
    for _ in range(60):
        story.live(1 * LOOK_MS)
        seats.append(frozenset(story.voters))
    assert frozenset({1, 2, 3}) not in seats
    assert seats[-1] == {1, 2, 3, 5}


def test_a_retired_server_goes_without_a_successor_that_lives() -> None:
    story = Story(voters=4, others=1)
    out(story, 4, Standing.RETIRED)
    story.status[4] = story.status[5] = DEAD
    story.admitted[5] = Admitted(identity(5), "node-4")
    story.live(5 * LOOK_MS)
    assert story.voters == {1, 2, 3}


def test_an_identity_without_a_recorded_public_key_is_admitted_again_with_it() -> None:
    story = Story(voters=3)
    member = replace(story.members()[0], credential=b"its key")
    reconciler = Reconciler(SETTINGS)
    for now_ms in (0, SETTLE_MS):
        decision = reconciler.decide(now_ms, (member,), story.admitted, story.group())
    assert decision.proposal == Admit(member.node_id, member.name, b"its key")
