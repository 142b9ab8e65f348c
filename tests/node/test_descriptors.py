"""What of a process's descriptors strangers may take."""

import pytest

from bridge.node.settings.descriptors import LEAST, RESERVED, DescriptorError, shares_of


@pytest.mark.parametrize("limit", [LEAST, 512, 1024, 2048, 2304, 1_000_000])
def test_all_shares_together_leave_the_reserve_alone(limit: int) -> None:
    shares = shares_of(limit)
    raft = shares.raft_established + shares.raft_handshakes
    waiting = shares.raft_strangers_waiting + shares.raft_known_waiting
    # With a token, without one, and waiting: of those there may be half as many again from known sources.
    remote = shares.control_remote * 3 + shares.control_remote // 2
    clients = 2 * shares.kafka
    assert raft + waiting + shares.control_local + remote + clients + RESERVED <= limit
    rooms = (shares.raft_handshakes, shares.raft_known_waiting, shares.control_local, shares.control_remote)
    assert min(*rooms, shares.kafka) >= 1


def test_too_low_a_limit_is_refused_with_the_command_that_raises_it() -> None:
    with pytest.raises(DescriptorError, match="ulimit -n 2304"):
        shares_of(LEAST - 1)
