"""The clock of tests that waits for sockets: with many descriptors, and without a reply from the kernel."""

import os
import resource
import socket
from collections.abc import Iterator
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
        ends = processes._Loopback()._ends
    with ends[0], ends[1]:
        for each in ends:
            with pytest.raises(TimeoutError):
                each.recv(1)


@pytest.fixture
def loopback() -> Iterator[processes._Loopback]:
    made = processes._Loopback()
    with made._ends[0], made._ends[1]:
        made.settle()
        yield made


def is_skipped(loopback: processes._Loopback) -> bool:
    with patch("os.sched_setaffinity") as moved:
        loopback.settle()
    return not moved.called


def test_bytes_are_awaited_after_each_packet(loopback: processes._Loopback) -> None:
    sender, receiver = loopback._ends
    sender.send(b"x")
    assert not is_skipped(loopback)
    assert receiver.recv(2) == b"x"


def test_packet_sent_during_wait_is_awaited(loopback: processes._Loopback) -> None:
    """The packet follows the last step, so no step has waited for it."""
    with socket.socket(type=socket.SOCK_DGRAM) as other:
        other.bind(("127.0.0.1", 0))
        with patch("os.sched_setaffinity", lambda *_: other.sendto(b"x", other.getsockname())):
            loopback._arrived = -1
            loopback.settle()
    assert not is_skipped(loopback)


def test_wait_is_skipped_only_if_own_packets_are_counted(loopback: processes._Loopback) -> None:
    """A counter of another network namespace counts only foreign packets, or none."""
    with patch.object(processes, "_sent_packets", iter([7, 7, 8, 9]).__next__):
        assert not any(is_skipped(loopback) for _ in range(4))
    processors = len(os.sched_getaffinity(0))
    with patch.object(processes, "_sent_packets", iter([7, 7 + 4 * processors]).__next__):
        assert [is_skipped(loopback) for _ in range(2)] == [False, True]


def test_packets_of_loopback_are_counted() -> None:
    before = processes._sent_packets()
    with socket.socket(type=socket.SOCK_DGRAM) as sender:
        sender.bind(("127.0.0.1", 0))
        sender.sendto(b"x", sender.getsockname())
    assert processes._sent_packets() > before
