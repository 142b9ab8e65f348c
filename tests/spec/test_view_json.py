"""FarmView as JSON: stable keys, complete data, and exactly one error type for invalid documents."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bridge.api.json import DocumentError, decode, encode
from bridge.api.view import FarmView, LocalFarmView, best_view
from tests.effort import each_case
from tests.operator_views import farm_view, forming_view, local_farm


@pytest.mark.parametrize("view", [farm_view(), farm_view(2), forming_view()], ids=["leader", "follower", "forming"])
def test_view_decodes_to_encoded_view(view: FarmView) -> None:
    assert decode(encode(view), FarmView) == view


def keys_of(value: object, path: str = "") -> set[str]:
    match value:
        case dict():
            return {f"{path}{key}" for key in value}.union(
                *(keys_of(item, f"{path}{key}.") for key, item in value.items())
            )
        case list():
            return set().union(*(keys_of(item, path) for item in value))
        case _:
            return set()


def test_view_keys_equal_documented_keys() -> None:
    found = keys_of(json.loads(encode(farm_view())))
    assert found == set(DOCUMENTED.split())


DOCUMENTED = """
schema takenAtMs node farm gossip raft verdict members publishing reports weights removed alarms events counters
node.name node.nodeId node.raftId node.generation node.pid node.version node.uptimeMs node.phase node.controlAddress
node.stateDirectory node.zmqAddress node.kafkaAddress node.directory node.directory.address node.directory.problem
farm.label farm.level farm.cluster farm.clusterId farm.expect farm.demo
gossip.peerCount gossip.capacity gossip.knownCount gossip.counters gossip.counters.pings_sent
gossip.counters.datagrams_dropped gossip.otherFarms gossip.otherFarms.address gossip.otherFarms.label
verdict.kind verdict.severity verdict.text verdict.canLose verdict.voters verdict.ready verdict.advice
raft.majorities raft.electionTimeoutMs raft.leaderlessMs raft.standsStill
raft.udpBlocked raft.notReporting
raft.role raft.term raft.leaderId raft.leaderName raft.leaderEndpoint raft.firstIndex raft.lastIndex raft.commitIndex
raft.appliedIndex raft.logTimeMs raft.voters raft.voters.raftId raft.voters.endpoint raft.voters.name raft.followers
raft.learners raft.learners.raftId raft.learners.endpoint raft.learners.name raft.waits
raft.voters.evicted raft.learners.evicted
raft.followers.raftId raft.followers.name raft.followers.matchIndex raft.followers.lagEntries
raft.links raft.links.raftId raft.links.name raft.links.connected raft.links.extensions
raft.followers.lastContactMs raft.counters raft.transferTarget raft.counters.elections_started
members.nodeId members.name members.status members.generation members.number members.address members.isSelf
members.isPeer members.rttMs members.peerCount members.capacity members.raftId members.endpoint members.serverRole
members.statusAgeMs members.certificate members.evicted members.level
publishing.master publishing.publisherId publishing.publisherName publishing.reason publishing.publishedS
publishing.expiresS publishing.secondsToExpiry publishing.leaseSetFile publishing.entries
publishing.entries.destination publishing.entries.name publishing.entries.cost publishing.entries.endS
publishing.entries.healthy publishing.publishedBy publishing.contentHash publishing.forced publishing.standings
publishing.standings.parts publishing.standings.parts.label publishing.standings.parts.value
publishing.standings.parts.points publishing.standings.parts.maximum publishing.standings.choice
reports.leaves.conditions reports.leaves.conditions.condition reports.leaves.conditions.holds
reports.leaves.conditions.sinceMs reports.leaves.conditions.lastError reports.leaves.conditions.failures
publishing.standings.raftId publishing.standings.name publishing.standings.preferred publishing.standings.score
publishing.standings.inability publishing.standings.standby publishing.publishedByName publishing.withoutQuorum
publishing.handedOverS publishing.handedOverBy publishing.handedOverByName publishing.seen publishing.lookUps
publishing.lookUps.raftId publishing.lookUps.name publishing.lookUps.found publishing.lookUps.fetchMs
publishing.lookUps.ageMs
reports.raftId reports.name reports.ageMs reports.stale reports.score reports.canPublish reports.publishing
reports.attached reports.clockOff reports.healthyDestinations reports.destinations reports.jobLagMs
reports.cpuPercent reports.memoryPercent reports.masters reports.leaves reports.leaves.destination
reports.leaves.master reports.leaves.healthy reports.leaves.load reports.leaves.excluded reports.directory
weights.excluded weights.excluded.destination weights.excluded.name weights.costs weights.costs.destination
weights.costs.name weights.costs.factor weights.factors weights.factors.destination weights.factors.name
weights.factors.factor weights.factors.said weights.factors.ageMs weights.throughIndex weights.formula
alarms.kind alarms.severity alarms.text alarms.action events.timeMs events.kind events.text counters.control_requests
"""


def test_view_keys_all_in_documentation() -> None:
    text = (Path(__file__).parents[2] / "docs" / "reference" / "json.md").read_text()
    named = {key.rpartition(".")[2] for key in DOCUMENTED.split() if ".counters." not in f".{key}"}
    assert sorted(key for key in named if f"`{key}`" not in text and f"`{key}[]`" not in text) == []


def test_unknown_key_of_newer_version_ignored() -> None:
    newer = {**json.loads(encode(farm_view())), "weather": "fine"}
    assert decode(json.dumps(newer).encode(), FarmView) == farm_view()


def test_other_schema_refused_with_version() -> None:
    other = {**json.loads(encode(farm_view())), "schema": 2}
    with pytest.raises(DocumentError, match="schema 2, this version understands 1"):
        decode(json.dumps(other).encode(), FarmView)


@each_case("data", [b"", b"[]", b"{", b"null", b'{"schema":1}', b"[" * 100_000, b"\xff\xfe"])
def test_invalid_view_raises_document_error(data: bytes) -> None:
    with pytest.raises(DocumentError):
        decode(data, FarmView)


@given(position=st.integers(0, 10_000), replacement=st.sampled_from(["null", "[]", "{}", "-1", '"x"', "1e999", ""]))
def test_mutated_view_decodes_or_raises_document_error(position: int, replacement: str) -> None:
    text = encode(farm_view()).decode()
    at = position % len(text)
    mutated = text[:at] + replacement + text[at + 1 :]
    try:
        decode(mutated.encode(), FarmView)
    except DocumentError:
        return


def test_best_view_of_local_farm_is_leaders() -> None:
    chosen = best_view(local_farm())
    assert chosen is not None
    assert chosen.node.raft_id == chosen.raft.leader_id


def test_local_farm_without_replies_lacks_view() -> None:
    assert best_view(LocalFarmView(0, "farm-state", ())) is None
