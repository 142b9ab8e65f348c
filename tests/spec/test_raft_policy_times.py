"""The six policies for elections: one time each, with a default, and the relations that keep them safe."""

import pytest
from msgspec.structs import fields, replace

from consensus.core.effects import Role
from consensus.core.events import DeadlineReached, PeerExtensions
from consensus.core.features import Extensions
from consensus.core.membership import CatchUp
from consensus.core.messages import Fetch
from consensus.core.model import LogId
from consensus.core.options import Options, PolicyTimes, lan
from consensus.core.replication.progress import Progress
from tests.effort import each_case
from tests.spec.fetch_bench import FetchBench
from tests.spec.raft_bench import THREE, TWO, Bench, entries_of

AT = LogId
NAMES = tuple(each.name for each in fields(PolicyTimes))
DEFAULTS = {
    "leader_stickiness_ms": 1_000,
    "check_quorum_ms": 1_000,
    "lease_ms": 1_000,
    "stall_timeout_ms": 5_000,
    "catch_up_round_ms": 1_000,
    "keep_alive_ms": 333,
}


def with_time(name: str, time_ms: int, *, lease_clock_bound_ms: int | None = None) -> Options:
    return replace(lan(), policies=PolicyTimes(**{name: time_ms}), lease_clock_bound_ms=lease_clock_bound_ms)


def times(options: Options) -> dict[str, int]:
    return {name: getattr(options, name) for name in NAMES}


def test_policy_times_are_derived_from_minimum() -> None:
    assert times(lan()) == DEFAULTS


def test_policy_times_follow_replaced_minimum() -> None:
    doubled = replace(lan(), election_timeout_min_ms=2_000)
    assert times(doubled) == {name: 2 * time_ms for name, time_ms in DEFAULTS.items()} | {"keep_alive_ms": 666}


@each_case("name", sorted({*NAMES} - {"leader_stickiness_ms"}))
def test_policy_time_leaves_other_times_unchanged(name: str) -> None:
    assert times(with_time(name, 700)) == DEFAULTS | {name: 700}


def test_stickiness_changes_only_derived_lease() -> None:
    assert times(with_time("leader_stickiness_ms", 700)) == DEFAULTS | {"leader_stickiness_ms": 700, "lease_ms": 700}


def test_candidate_is_refused_until_stickiness_time_ends() -> None:
    bench = Bench(1, options=with_time("leader_stickiness_ms", 400))
    bench.append(term=2, previous=AT(1, 1))
    assert not bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=399).granted
    assert bench.request_vote(term=9, last=AT(5, 2), sender=THREE, after_ms=1).granted


def test_check_quorum_time_ends_leadership() -> None:
    bench = Bench(voters=5, options=with_time("check_quorum_ms", 400)).lead()
    began_ms = bench.now
    while bench.is_(Role.LEADER):
        bench.expire()
    assert bench.now - began_ms == 400


def test_lease_ends_after_its_time_less_bound() -> None:
    bench = Bench(options=with_time("lease_ms", 600, lease_clock_bound_ms=100)).lead()
    leader = bench.raft._role.as_leader
    assert leader is not None
    leader.lease.renew(bench.now)
    assert leader.lease.holds(bench.now + 499)
    assert not leader.lease.holds(bench.now + 500)


def test_stall_timeout_ends_leadership() -> None:
    bench = Bench(voters=2, options=with_time("stall_timeout_ms", 2_000)).lead()
    for append in bench.appends(TWO):
        bench.matched(TWO, append)
    bench.fast = False
    bench.propose(b"x")
    began_ms = bench.now
    while bench.is_(Role.LEADER):
        bench.now = min(max(bench.now, bench.raft.deadline), bench.now + 100)
        bench.step(DeadlineReached())
        for append in bench.appends(TWO):
            bench.matched(TWO, append, append.previous.index)
    assert 2_000 <= bench.now - began_ms <= 2_100


@pytest.mark.parametrize(("round_ms", "caught_up"), [(499, False), (500, True)])
def test_catch_up_round_time_limits_last_round(round_ms: int, *, caught_up: bool) -> None:
    server = CatchUp(goal=1, requested_ms=0, began_ms=0)
    options = with_time("catch_up_round_ms", round_ms)
    assert server.check(Progress(next=2, match=1), last_index=5, now=500, options=options) is None
    assert server.caught_up is caught_up


def test_writing_follower_fetches_at_keep_alive_interval() -> None:
    bench = FetchBench(1, fast=False, options=with_time("keep_alive_ms", 200))
    fetch = bench.follow()
    bench.reply(fetch, entries_of(1, 1)[1:])
    sent_ms = []
    while bench.now < 1_000:
        bench.step(DeadlineReached(), after_ms=50)
        for sign in bench.sent(Fetch, TWO):
            sent_ms.append(bench.now)
            bench.reply(sign)
    assert sent_ms == [200, 400, 600, 800, 1_000]


@each_case(
    ("policies", "text"),
    [
        (PolicyTimes(leader_stickiness_ms=100), "leader stickiness must be above the heartbeat"),
        (PolicyTimes(leader_stickiness_ms=1_001), "at most the minimum election timeout of 1000 ms"),
        (PolicyTimes(check_quorum_ms=100), "check-quorum time must be above the heartbeat"),
        (PolicyTimes(keep_alive_ms=1_000), "keep-alive time must lie between 0 and 1000 ms"),
        (PolicyTimes(check_quorum_ms=500, keep_alive_ms=500), "keep-alive time must lie between 0 and 500 ms"),
        (PolicyTimes(lease_ms=1_001), "would outlast the leader stickiness of 1000 ms"),
        (PolicyTimes(leader_stickiness_ms=800, lease_ms=801), "would outlast the leader stickiness of 800 ms"),
        (PolicyTimes(lease_ms=50), "must lie between 0 and the lease of 50 ms"),
        (PolicyTimes(stall_timeout_ms=0), "at least 1"),
        (PolicyTimes(catch_up_round_ms=0), "at least 1"),
    ],
)
def test_contradictory_policy_times_are_rejected(policies: PolicyTimes, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        replace(lan(), policies=policies, lease_clock_bound_ms=50)


def test_peer_with_shorter_lease_does_not_keep_leases() -> None:
    bench = Bench(options=with_time("lease_ms", 600, lease_clock_bound_ms=100)).lead()
    bench.step(PeerExtensions(TWO, Extensions(lease_ms=599)))
    bench.step(PeerExtensions(THREE, Extensions(lease_ms=600)))
    assert not bench.raft._replica.keeps_leases(TWO)
    assert bench.raft._replica.keeps_leases(THREE)
