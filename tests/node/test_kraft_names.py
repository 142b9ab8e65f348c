"""Where the replicas of a quorum are: by the configuration, and by what messages tell of others."""

import pytest

from consensus.core.model import Configuration, ReplicaKey
from consensus.protocols.kraft.operators.settings import Endpoint
from consensus.protocols.kraft.replica.quorum_names import TOLD_MAX, QuorumNames, server_of

ONE, TWO, THREE = (ReplicaKey(number, bytes([number]) * 16) for number in (1, 2, 3))
LISTENER = Endpoint("CONTROLLER", "10.0.0.1", 9093)


@pytest.fixture
def names() -> QuorumNames:
    """Of replica 1, with replica 2 as the other voter."""
    voters = [server_of(key, (Endpoint("CONTROLLER", f"10.0.0.{key.id}", 9093),)) for key in (ONE, TWO)]
    return QuorumNames(ONE, (LISTENER,), Configuration(tuple(voters)))


def test_a_leader_that_the_log_does_not_name_yet_is_found_where_a_message_says(names: QuorumNames) -> None:
    assert names.endpoint(ReplicaKey(3)) is None
    names.learned({3: ("10.0.0.3", 9093)})
    assert names.voter_key(3) is None
    assert names.endpoint(ReplicaKey(3)) == ("10.0.0.3", 9093)


def test_a_message_moves_no_voter_whose_address_the_log_has(names: QuorumNames) -> None:
    names.learned({2: ("10.0.0.66", 1)})
    assert names.endpoint(TWO) == ("10.0.0.2", 9093)
    assert names.endpoint(ReplicaKey(2)) is None


def test_a_told_address_is_not_that_of_another_directory(names: QuorumNames) -> None:
    names.learned({3: ("10.0.0.3", 9093)})
    assert names.endpoint(THREE) is None


def test_the_addresses_that_are_remembered_are_bounded(names: QuorumNames) -> None:
    for number in range(10, 20 + TOLD_MAX):
        names.learned({number: ("10.0.0.3", number)})
    assert names.endpoint(ReplicaKey(10)) is None
    assert names.endpoint(ReplicaKey(19 + TOLD_MAX)) == ("10.0.0.3", 19 + TOLD_MAX)


def test_addresses_in_messages_are_other_places_of_a_voter(names: QuorumNames) -> None:
    """The newest three are kept; none of them moves it."""
    for port in range(1, 6):
        names.learned({2: ("10.0.0.66", port)})
    assert names.elsewhere(TWO) == tuple(("10.0.0.66", port) for port in (5, 4, 3))
    assert names.endpoint(TWO) == ("10.0.0.2", 9093)
