"""The clock of tests that waits for sockets: with many descriptors, and without a reply from the kernel."""

import resource
import socket
from contextlib import ExitStack
from unittest.mock import patch

import pytest
import trio

from tests import processes

SELECT_LIMIT = 1_024


def test_bytes_are_awaited_with_many_descriptors() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * SELECT_LIMIT + soft), hard))
    try:
        with ExitStack() as opened:
            while opened.enter_context(socket.socket()).fileno() < SELECT_LIMIT:
                pass

            async def wait() -> bool:
                return processes._bytes_arrive()

            assert not trio.run(wait)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_wait_for_loopback_is_bounded() -> None:
    with patch.object(processes, "END_S", 0.01):
        ends = processes._loopback.__wrapped__()
    with ends[0], ends[1]:
        for each in ends:
            with pytest.raises(TimeoutError):
                each.recv(1)
