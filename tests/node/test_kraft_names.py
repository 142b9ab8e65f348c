"""Addresses of the replicas of a quorum: from the configuration, and from messages for other replicas."""

import pytest

from consensus.core.model import Configuration, ReplicaKey
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.quorum_names import ANNOUNCED_IDS_MAX, QuorumNames, server_of

ONE, TWO, THREE = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
LISTENER = Endpoint("CONTROLLER", "10.0.0.1", 9093)


@pytest.fixture
def names() -> QuorumNames:
    """Return the names of replica 1, with replica 2 as the other voter."""
    voters = [server_of(key, (Endpoint("CONTROLLER", f"10.0.0.{key.id}", 9093),)) for key in (ONE, TWO)]
    return QuorumNames(ONE, (LISTENER,), Configuration(tuple(voters)))


def test_leader_missing_in_log_is_found_by_message(names: QuorumNames) -> None:
    assert names.endpoint(ReplicaKey(3)) is None
    names.learned({3: ("10.0.0.3", 9093)})
    assert names.voter_key(3) is None
    assert names.endpoint(ReplicaKey(3)) == ("10.0.0.3", 9093)


def test_message_does_not_move_voter(names: QuorumNames) -> None:
    names.learned({2: ("10.0.0.66", 1)})
    assert names.endpoint(TWO) == ("10.0.0.2", 9093)
    assert names.endpoint(ReplicaKey(2)) is None


def test_message_address_is_for_one_directory(names: QuorumNames) -> None:
    names.learned({3: ("10.0.0.3", 9093)})
    assert names.endpoint(THREE) is None


def test_addresses_from_messages_are_bounded(names: QuorumNames) -> None:
    for number in range(10, 20 + ANNOUNCED_IDS_MAX):
        names.learned({number: ("10.0.0.3", number)})
    assert names.endpoint(ReplicaKey(10)) is None
    assert names.endpoint(ReplicaKey(19 + ANNOUNCED_IDS_MAX)) == ("10.0.0.3", 19 + ANNOUNCED_IDS_MAX)


def test_alternative_addresses_of_voter_are_newest_three(names: QuorumNames) -> None:
    for port in range(1, 6):
        names.learned({2: ("10.0.0.66", port)})
    assert names.elsewhere(TWO) == tuple(("10.0.0.66", port) for port in (5, 4, 3))
    assert names.endpoint(TWO) == ("10.0.0.2", 9093)
