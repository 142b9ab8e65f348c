"""Servers that the Garlic Farm protocol may add to a farm or remove, and the gateway's reply before the founding."""

import pytest
from msgspec.structs import replace

from bridge.node.raft.member_rules import FarmMemberRules
from bridge.node.raft.replica import RequestGateway
from consensus.core.model import Configuration, Server
from consensus.core.replication.progress import ProgressState
from consensus.core.status import FollowerProgress
from consensus.protocols.garlic_farm.node.dialer import PeerAddress
from consensus.protocols.garlic_farm.wire.errors import Fault, GarlicFarmError
from consensus.protocols.garlic_farm.wire.messages import JoinClusterRequest
from consensus.protocols.garlic_farm.wire.values import Configuration as WireConfiguration
from consensus.protocols.garlic_farm.wire.values import LogEntry
from tests.spec.test_build_view import RAFT

FOURTH = Server(4, "tcp://10.0.0.4:7669")
KNOWN = PeerAddress("10.0.0.4", 7669, bytes(32))


def rules(*voters: int, known: PeerAddress | None = KNOWN, answers: bool = False, removed: int = 0) -> FarmMemberRules:
    contact_ms = 10 if answers else 60_000
    followers = (FollowerProgress(4, 9, 10, 0, contact_ms, ProgressState.REPLICATING, contact_ms),)
    described = replace(RAFT, configuration=members(*voters), followers=followers)
    return FarmMemberRules(lambda _: known, lambda: described, lambda: (removed,), 3, 5, 3_000)


def members(*voters: int) -> Configuration:
    return Configuration(tuple(Server(each, f"tcp://10.0.0.{each}:7669") for each in voters))


def test_admitted_server_is_added_at_announced_address() -> None:
    assert rules(1, 2, 3).may_add(FOURTH) == KNOWN


def test_unassigned_id_is_refused_with_way_to_join() -> None:
    refusal = rules(1, 2, 3, known=None).may_add(FOURTH)
    assert isinstance(refusal, str)
    assert "give the node the farm key and start it" in refusal


def test_server_beyond_voters_max_is_refused() -> None:
    refusal = rules(1, 2, 3, 5, 6).may_add(FOURTH)
    assert isinstance(refusal, str)
    assert "the farm has 5 voters, the limit of consensus.voters_max" in refusal


def test_removed_server_cannot_add_itself() -> None:
    refusal = rules(1, 2, 3, removed=4).may_add(FOURTH)
    assert isinstance(refusal, str)
    assert "the log has removed this server" in refusal


def test_replying_server_is_removed_only_by_log() -> None:
    refusal = rules(1, 2, 3, 4, answers=True).may_remove(4, members(1, 2, 3, 4))
    assert refusal is not None
    assert "it answers, and would be added again" in refusal
    assert rules(1, 2, 3, 4, answers=True, removed=4).may_remove(4, members(1, 2, 3, 4)) is None


def test_removal_keeps_number_of_founders() -> None:
    assert rules().may_remove(4, members(1, 2, 3, 4)) is None
    assert rules().may_remove(3, members(1, 2, 3)) == "a farm of 3 needs another voter as a replacement first"


def test_node_without_server_refuses_invitation() -> None:
    configuration = LogEntry(1, WireConfiguration(1, 0, ()))
    with pytest.raises(GarlicFarmError, match="has not started its Raft server yet") as refused:
        RequestGateway(lambda: None, lambda _: False).membership_request(
            JoinClusterRequest(
                source=1,
                destination=4,
                term=1,
                last_log_term=0,
                last_log_index=3,
                commit_index=3,
                entries=(configuration,),
            ),
            lambda _: None,
        )
    assert refused.value.fault is Fault.BUSY
