"""The shares of a process's descriptors that unknown clients may use."""

import pytest

from bridge.node.settings.descriptors import LEAST, RESERVED, DescriptorError, shares_of
from tests.effort import each_case


@each_case("limit", [LEAST, 512, 1024, 2048, 2304, 1_000_000])
def test_shares_leave_reserve_untouched(limit: int) -> None:
    shares = shares_of(limit)
    raft = shares.raft_established + shares.raft_handshakes
    waiting = shares.raft_unknown_waiting + shares.raft_known_waiting
    # Equal numbers of places with a token, without a token, and waiting; known sources have half as many in addition.
    remote = shares.control_remote * 3 + shares.control_remote // 2
    clients = 2 * shares.kafka
    assert raft + waiting + shares.control_local + remote + clients + RESERVED <= limit
    rooms = (shares.raft_handshakes, shares.raft_known_waiting, shares.control_local, shares.control_remote)
    assert min(*rooms, shares.kafka) >= 1


def test_low_limit_is_refused_with_command_that_raises_it() -> None:
    with pytest.raises(DescriptorError, match="ulimit -n 2304"):
        shares_of(LEAST - 1)
