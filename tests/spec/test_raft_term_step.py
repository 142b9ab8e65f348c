"""A term that is far ahead: one message moves ours by TERM_STEP_MAX only, so that no single message ends elections.

What carried it is refused or dropped at the new term, and nothing else about it counts: no vote, no leader, no entry.
Who is honest tries again and is met after some tries (`tests/scenarios/test_raft_scenarios.py` plays whole groups).
"""

from dataclasses import replace

import pytest

from consensus.core.effects import Persist, Role, Send
from consensus.core.features import GARLIC_FARM, ZMQ_RAFT, Features
from consensus.core.messages import (
    AppendEntries,
    AppendReply,
    BeginQuorumEpoch,
    BeginQuorumEpochReply,
    EndQuorumEpoch,
    EndQuorumEpochReply,
    Fetch,
    InstallSnapshot,
    Message,
    RefusalReason,
    RequestVote,
    SnapshotReply,
    TimeoutNow,
    TimeoutNowReply,
    VoteReply,
)
from consensus.core.model import MAX_NUMBER, ORIGIN, LogId
from consensus.core.options import lan
from consensus.core.replica import TERM_STEP_MAX
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO, Bench, group, suffix

AT = LogId
FAR = MAX_NUMBER
STEP = 5 + TERM_STEP_MAX
PUSHED = (
    RequestVote(term=FAR, candidate=TWO, last=AT(9, FAR), correlation=1),
    RequestVote(term=FAR, candidate=TWO, last=AT(9, FAR), correlation=1, transfer=True),
    AppendEntries(term=FAR, leader=TWO, previous=AT(1, 5), entries=suffix(2, FAR), commit=2, correlation=1),
    InstallSnapshot(
        term=FAR, leader=TWO, last=AT(9, FAR), configuration=group(3), offset=0, data=b"x", done=True, correlation=1
    ),
)
FETCHED = (
    RequestVote(term=FAR, candidate=TWO, last=AT(9, FAR), correlation=1),
    Fetch(term=FAR, replica=TWO, position=AT(9, FAR), commit=0, max_wait_ms=100, max_bytes=1_000, correlation=1),
    BeginQuorumEpoch(term=FAR, leader=TWO, correlation=1),
    EndQuorumEpoch(term=FAR, leader=TWO, preferred=(group(3).voters[0].server_id,), correlation=1),
)


def answered(bench: Bench) -> tuple[int, int]:
    """The term of the one answer of the latest step, and the number of the Persist that it waits for."""
    (send,) = (send for send in bench.all(Send) if send.recipient == TWO)
    return send.message.term, send.after


def told(message: Message) -> str:
    """The kind of message, for the name of a test."""
    return type(message).__name__


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
@pytest.mark.parametrize("message", PUSHED, ids=told)
def test_a_request_of_the_highest_term_moves_a_voter_by_one_step_and_is_refused(
    message: Message, features: Features
) -> None:
    bench = Bench(5, fast=False, features=features)
    bench.receive(TWO, message)
    (persist,) = bench.all(Persist)
    assert persist.hard_state is not None
    assert (persist.hard_state.term, persist.hard_state.voted_for, persist.entries) == (STEP, None, ())
    assert answered(bench) == (STEP, persist.number)
    assert (bench.about.leader, bench.terms) == (None, [5])


@pytest.mark.parametrize("message", FETCHED, ids=told)
def test_a_request_of_the_highest_epoch_moves_a_replica_that_fetches_by_one_step(message: Message) -> None:
    bench = FetchBench(5, fast=False)
    bench.receive(TWO, message)
    (persist,) = bench.all(Persist)
    assert persist.hard_state is not None
    assert (persist.hard_state.term, persist.hard_state.voted_for) == (STEP, None)
    assert answered(bench) == (STEP, persist.number)
    assert bench.about.leader is None


def test_a_question_of_the_highest_term_changes_no_term() -> None:
    bench = Bench(5)
    assert bench.ask(FAR, AT(9, 5), pre_vote=True).granted
    bench.receive(TWO, TimeoutNow(FAR, TWO, 1))
    assert bench.about.term == 5


@pytest.mark.parametrize(
    "reply",
    [
        AppendReply(term=FAR, success=True, next_index=2, correlation=0),
        AppendReply(term=FAR, success=False, next_index=1, correlation=0),
        SnapshotReply(term=FAR, accepted=True, next_offset=0, installed=True, correlation=0),
        TimeoutNowReply(FAR, accepted=True, correlation=0),
        VoteReply(term=FAR, granted=True, correlation=0),
    ],
    ids=told,
)
def test_a_reply_of_the_highest_term_deposes_a_leader_by_one_step_and_acknowledges_nothing(reply: Message) -> None:
    bench = Bench(5)
    bench.lead()
    (append,) = bench.appends(TWO)
    bench.receive(TWO, replace(reply, correlation=append.correlation))
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 6 + TERM_STEP_MAX)
    assert bench.about.commit_index == 0


@pytest.mark.parametrize("reply", [BeginQuorumEpochReply, EndQuorumEpochReply])
def test_a_reply_to_an_announcement_of_the_highest_epoch_deposes_a_leader_by_one_step(
    reply: type[BeginQuorumEpochReply | EndQuorumEpochReply],
) -> None:
    bench = FetchBench(5)
    bench.lead()
    bench.receive(TWO, reply(term=FAR, leader=THREE, correlation=1))
    assert (bench.about.role, bench.about.term, bench.about.leader) == (Role.FOLLOWER, 6 + TERM_STEP_MAX, None)


@pytest.mark.parametrize("error", [None, RefusalReason.NOT_LEADER])
def test_an_answer_to_a_fetch_of_the_highest_epoch_brings_nothing_but_one_step(error: RefusalReason | None) -> None:
    bench = FetchBench(5)
    asked = bench.follow(TWO, 5)
    bench.reply(asked, () if error else suffix(2, FAR), term=FAR, commit=2, error=error)
    assert (bench.about.term, bench.terms, bench.about.leader) == (STEP, [5], None)


def test_a_candidate_takes_one_step_for_a_refusal_and_campaigns_again() -> None:
    bench = Bench(5)
    bench.expire()
    bench.grant(TWO, granted=False, term=FAR)
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 6 + TERM_STEP_MAX)
    bench.expire()
    bench.grant(TWO)
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 7 + TERM_STEP_MAX)


def test_a_term_within_one_step_is_taken_over_as_it_is() -> None:
    bench = Bench(5)
    assert bench.append(STEP, AT(1, 5), suffix(2, STEP)).success
    assert (bench.about.term, bench.about.leader) == (STEP, TWO)


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
def test_a_server_at_term_0_takes_its_leaders_term_at_once(features: Features) -> None:
    bench = Bench(features=features)
    assert bench.append(2**40, ORIGIN, suffix(1, 2**40)).success
    assert (bench.about.term, bench.about.leader, bench.terms) == (2**40, TWO, [2**40])


def test_a_server_at_term_0_takes_the_term_of_a_leader_that_sends_a_snapshot() -> None:
    bench = Bench()
    bench.receive(
        TWO,
        InstallSnapshot(
            term=2**40,
            leader=TWO,
            last=AT(9, 2**40),
            configuration=group(3),
            offset=0,
            data=b"x",
            done=False,
            correlation=1,
        ),
    )
    assert (bench.about.term, bench.about.leader) == (2**40, TWO)


def test_a_server_at_epoch_0_takes_the_epoch_of_a_leader_that_announces_itself_or_is_fetched_from() -> None:
    announced = FetchBench()
    assert announced.begin(TWO, 2**40).error is None
    assert announced.about.term == 2**40
    fetching = FetchBench()
    fetching.expire()
    target, asked = next(iter(fetching.asked.items()))
    fetching.reply(asked, suffix(1, 2**40), term=2**40, sender=target, leader=target)
    assert (fetching.about.term, fetching.terms) == (2**40, [2**40])


def test_a_server_at_term_0_believes_no_candidate_beyond_one_step() -> None:
    bench = Bench()
    reply = bench.ask(2**40)
    assert (reply.granted, reply.term) == (False, TERM_STEP_MAX)


def test_at_the_last_term_a_server_follows_and_votes_but_never_campaigns() -> None:
    bench = Bench(5, term=MAX_NUMBER)
    bench.expire()
    assert (bench.about.role, bench.about.term, bench.all(Send)) == (Role.FOLLOWER, MAX_NUMBER, [])
    assert bench.append(MAX_NUMBER, AT(1, 5)).success
    bench.receive(TWO, TimeoutNow(MAX_NUMBER, TWO, 1))
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, MAX_NUMBER)


@pytest.mark.parametrize("last", [2**31 - 1, 2**53 - 1])
def test_at_the_last_term_of_a_protocol_a_server_never_campaigns(last: int) -> None:
    bench = Bench(5, term=last, options=replace(lan(), max_term=last))
    bench.expire()
    bench.receive(TWO, TimeoutNow(last, TWO, 1))
    assert (bench.about.role, bench.about.term, bench.all(RequestVote)) == (Role.FOLLOWER, last, [])


def test_one_term_before_the_last_a_server_campaigns_and_leads_the_last_term() -> None:
    bench = Bench(5, term=MAX_NUMBER - 1)
    bench.lead()
    assert bench.about.term == MAX_NUMBER


def test_a_pre_vote_for_a_term_beyond_the_last_does_not_exist() -> None:
    bench = Bench(5, term=MAX_NUMBER, pre_vote=True)
    bench.expire()
    assert bench.all(Send) == []
