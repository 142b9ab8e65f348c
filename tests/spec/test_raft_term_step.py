"""A term far ahead: one message raises our term by at most TERM_STEP_MAX, so no single message can end all elections.

The message is refused or dropped at the new term, and does not change the vote, the leader or the log. A correct
sender succeeds after several retries (`tests/scenarios/test_raft_scenarios.py` tests whole groups).
"""

import pytest
from msgspec.structs import replace

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
from tests.effort import each_case
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


def reply_of(bench: Bench) -> tuple[int, int]:
    """Return the term of the only reply of the latest step, and the number of the Persist that it waits for."""
    (send,) = (send for send in bench.all(Send) if send.recipient == TWO)
    return send.message.term, send.after


def kind(message: Message) -> str:
    return type(message).__name__


@each_case("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
@each_case("message", PUSHED, ids=kind)
def test_request_of_highest_term_raises_term_by_one_step(message: Message, features: Features) -> None:
    bench = Bench(5, fast=False, features=features)
    bench.receive(TWO, message)
    (persist,) = bench.all(Persist)
    assert persist.hard_state is not None
    assert (persist.hard_state.term, persist.hard_state.voted_for, persist.entries) == (STEP, None, ())
    assert reply_of(bench) == (STEP, persist.number)
    assert (bench.about.leader, bench.terms) == (None, [5])


@pytest.mark.parametrize("message", FETCHED, ids=kind)
def test_fetch_request_of_highest_epoch_raises_one_step(message: Message) -> None:
    bench = FetchBench(5, fast=False)
    bench.receive(TWO, message)
    (persist,) = bench.all(Persist)
    assert persist.hard_state is not None
    assert (persist.hard_state.term, persist.hard_state.voted_for) == (STEP, None)
    assert reply_of(bench) == (STEP, persist.number)
    assert bench.about.leader is None


def test_pre_vote_of_highest_term_keeps_term() -> None:
    bench = Bench(5)
    assert bench.request_vote(FAR, AT(9, 5), pre_vote=True).granted
    bench.receive(TWO, TimeoutNow(FAR, TWO, 1))
    assert bench.about.term == 5


@each_case(
    "reply",
    [
        AppendReply(term=FAR, success=True, next_index=2, correlation=0),
        AppendReply(term=FAR, success=False, next_index=1, correlation=0),
        SnapshotReply(term=FAR, accepted=True, next_offset=0, installed=True, correlation=0),
        TimeoutNowReply(FAR, accepted=True, correlation=0),
        VoteReply(term=FAR, granted=True, correlation=0),
    ],
    ids=kind,
)
def test_reply_of_highest_term_deposes_leader_by_one_step(reply: Message) -> None:
    bench = Bench(5).lead()
    (append,) = bench.appends(TWO)
    bench.receive(TWO, replace(reply, correlation=append.correlation))
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 6 + TERM_STEP_MAX)
    assert bench.about.commit_index == 0


@pytest.mark.parametrize("reply", [BeginQuorumEpochReply, EndQuorumEpochReply])
def test_announcement_reply_of_highest_epoch_raises_one_step(
    reply: type[BeginQuorumEpochReply | EndQuorumEpochReply],
) -> None:
    bench = FetchBench(5).lead()
    bench.receive(TWO, reply(term=FAR, leader=THREE, correlation=1))
    assert (bench.about.role, bench.about.term, bench.about.leader) == (Role.FOLLOWER, 6 + TERM_STEP_MAX, None)


@pytest.mark.parametrize("error", [None, RefusalReason.NOT_LEADER])
def test_fetch_reply_of_highest_epoch_raises_one_step(error: RefusalReason | None) -> None:
    bench = FetchBench(5)
    fetch = bench.follow(TWO, 5)
    bench.reply(fetch, () if error else suffix(2, FAR), term=FAR, commit=2, error=error)
    assert (bench.about.term, bench.terms, bench.about.leader) == (STEP, [5], None)


def test_refused_candidate_raises_one_step_and_retries() -> None:
    bench = Bench(5).expired()
    bench.grant(TWO, granted=False, term=FAR)
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, 6 + TERM_STEP_MAX)
    bench.expire()
    bench.grant(TWO)
    assert (bench.about.role, bench.about.term) == (Role.LEADER, 7 + TERM_STEP_MAX)


def test_term_within_one_step_adopted() -> None:
    bench = Bench(5)
    assert bench.append(STEP, AT(1, 5), suffix(2, STEP)).success
    assert (bench.about.term, bench.about.leader) == (STEP, TWO)


@pytest.mark.parametrize("features", [GARLIC_FARM, ZMQ_RAFT], ids=lambda features: features.name)
def test_server_at_term_0_adopts_leader_term(features: Features) -> None:
    bench = Bench(features=features)
    assert bench.append(2**40, ORIGIN, suffix(1, 2**40)).success
    assert (bench.about.term, bench.about.leader, bench.terms) == (2**40, TWO, [2**40])


def test_server_at_term_0_adopts_term_of_snapshot() -> None:
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


def test_server_at_epoch_0_adopts_epoch_of_leader() -> None:
    announced = FetchBench()
    assert announced.begin(TWO, 2**40).error is None
    assert announced.about.term == 2**40
    fetching = FetchBench().expired()
    target, fetch = next(iter(fetching.fetches.items()))
    fetching.reply(fetch, suffix(1, 2**40), term=2**40, sender=target, leader=target)
    assert (fetching.about.term, fetching.terms) == (2**40, [2**40])


def test_server_at_term_0_limits_candidate_to_one_step() -> None:
    bench = Bench()
    reply = bench.request_vote(2**40)
    assert (reply.granted, reply.term) == (False, TERM_STEP_MAX)


def test_server_at_last_term_never_campaigns() -> None:
    bench = Bench(5, term=MAX_NUMBER).expired()
    assert (bench.about.role, bench.about.term, bench.all(Send)) == (Role.FOLLOWER, MAX_NUMBER, [])
    assert bench.append(MAX_NUMBER, AT(1, 5)).success
    bench.receive(TWO, TimeoutNow(MAX_NUMBER, TWO, 1))
    assert (bench.about.role, bench.about.term) == (Role.FOLLOWER, MAX_NUMBER)


@pytest.mark.parametrize("last", [2**31 - 1, 2**53 - 1])
def test_server_at_last_term_of_protocol_never_campaigns(last: int) -> None:
    bench = Bench(5, term=last, options=replace(lan(), max_term=last)).expired()
    bench.receive(TWO, TimeoutNow(last, TWO, 1))
    assert (bench.about.role, bench.about.term, bench.all(RequestVote)) == (Role.FOLLOWER, last, [])


def test_server_before_last_term_leads_last_term() -> None:
    bench = Bench(5, term=MAX_NUMBER - 1).lead()
    assert bench.about.term == MAX_NUMBER


def test_server_at_last_term_sends_no_pre_vote() -> None:
    bench = Bench(5, term=MAX_NUMBER, pre_vote=True).expired()
    assert bench.all(Send) == []
