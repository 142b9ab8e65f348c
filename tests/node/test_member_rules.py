"""Who may come and go by the Garlic Farm protocol's own words in a farm, and what the door says before there is one."""

import pytest

from bridge.node.member_rules import FarmMemberRules
from bridge.node.replica import FrontDoor
from consensus.core.position import Configuration, Server, ServerId
from consensus.node.garlic_farm_dial import PeerAddress
from consensus.wire.garlic_farm.errors import Fault, GarlicFarmError
from consensus.wire.garlic_farm.messages import JoinClusterRequest
from consensus.wire.garlic_farm.values import Configuration as WireConfiguration
from consensus.wire.garlic_farm.values import LogEntry

FOURTH = Server(ServerId(4), "tcp://10.0.0.4:7669")
KNOWN = PeerAddress("10.0.0.4", 7669, bytes(32))


def rules(*voters: int, known: PeerAddress | None = KNOWN, voters_max: int = 5) -> FarmMemberRules:
    ids = frozenset(map(ServerId, voters))
    return FarmMemberRules(lambda _: known, lambda: ids, 3, voters_max)


def members(*voters: int) -> Configuration:
    return Configuration(tuple(Server(ServerId(each), f"tcp://10.0.0.{each}:7669") for each in voters))


def test_a_router_whose_id_the_log_has_given_out_may_come_and_is_found_where_it_says_itself() -> None:
    assert rules(1, 2, 3).may_add(FOURTH) == KNOWN


def test_an_id_that_the_log_has_not_given_out_is_refused_with_the_way_to_join() -> None:
    refusal = rules(1, 2, 3, known=None).may_add(FOURTH)
    assert isinstance(refusal, str)
    assert "give the router the farm key and start it" in refusal


def test_nobody_comes_beyond_the_most_voters() -> None:
    refusal = rules(1, 2, 3, voters_max=3).may_add(FOURTH)
    assert isinstance(refusal, str)
    assert "the farm has 3 voters already" in refusal


def test_a_farm_is_not_talked_below_the_number_of_its_founders() -> None:
    assert rules().may_remove(ServerId(4), members(1, 2, 3, 4)) is None
    assert rules().may_remove(ServerId(3), members(1, 2, 3)) == "a farm of 3 needs another voter in its place first"


def test_a_node_without_a_server_takes_no_invitation_and_says_so() -> None:
    configuration = LogEntry(1, WireConfiguration(1, 0, ()))
    with pytest.raises(GarlicFarmError, match="has not started its Raft server yet") as refused:
        FrontDoor().membership_request(JoinClusterRequest(1, 4, 1, 0, 3, 3, (configuration,)), 7, lambda _: None)
    assert refused.value.fault is Fault.BUSY
