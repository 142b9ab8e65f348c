"""What a node tells systemd: the datagrams of sd_notify, received on a socket as systemd has one."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from bridge.node.events.service_manager import LOOK_S, PINGS_IN_A_PERIOD, ServiceManager

DATAGRAM_BYTES = 4096


class Manager:
    """The other side: a datagram socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0)
        self.environment = {"NOTIFY_SOCKET": address}

    def heard(self) -> list[str]:
        """Everything that has come."""
        found = []
        while True:
            try:
                found.append(self.socket.recv(DATAGRAM_BYTES).decode())
            except BlockingIOError:
                return found


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    made = Manager(str(tmp_path / "notify") if request.param == "path" else f"@garlicfarm-test-{os.getpid()}")
    with made.socket:
        yield made


def test_without_the_variable_nothing_is_sent() -> None:
    told = ServiceManager({})
    told.ready()
    told.stopping()
    assert told.watchdog_period_s is None


def nothing_stuck() -> tuple[str, ...]:
    return ()


def test_ready_and_stopping_are_datagrams_of_their_own(manager: Manager) -> None:
    told = ServiceManager(manager.environment)
    told.ready()
    told.stopping()
    assert manager.heard() == ["READY=1", "STOPPING=1"]


async def test_the_watchdog_hears_of_the_loop_at_least_three_times_a_period(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    told = ServiceManager({**manager.environment, "WATCHDOG_USEC": "6000000"})
    with trio.move_on_after(11.9):
        await told.run(nothing_stuck, str)
    assert manager.heard() == ["WATCHDOG=1"] * (2 * PINGS_IN_A_PERIOD)


async def test_a_verdict_is_told_once_in_one_line_also_without_a_watchdog(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    verdicts = iter(["", "Healthy,\ncan lose 1 of 3", "Healthy, can lose 1 of 3", "No quorum", "No quorum"])
    with trio.move_on_after(4.5 * LOOK_S):
        await ServiceManager(manager.environment).run(nothing_stuck, lambda: next(verdicts))
    assert manager.heard() == ["STATUS=Healthy, can lose 1 of 3", "STATUS=No quorum"]


async def test_a_node_that_is_stuck_says_nothing_until_it_goes_on(
    manager: Manager, autojump_clock: trio.testing.MockClock
) -> None:
    del autojump_clock
    reasons = iter([(), ("entry 7 is committed and has not been applied",), ("the same",), ()])
    told = ServiceManager({**manager.environment, "WATCHDOG_USEC": "60000000"})
    with trio.move_on_after(3.5 * LOOK_S):
        await told.run(lambda: next(reasons), str)
    assert manager.heard() == ["WATCHDOG=1"] * 2


async def test_a_loop_that_does_not_come_round_says_nothing(manager: Manager) -> None:
    told = ServiceManager({**manager.environment, "WATCHDOG_USEC": "60000"})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(told.run, nothing_stuck, str)
        await trio.testing.wait_all_tasks_blocked()
        assert manager.heard() == ["WATCHDOG=1"]
        time.sleep(0.5)  # noqa: ASYNC251 - the loop stands still: eight periods pass
        assert manager.heard() == []
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"WATCHDOG_USEC": ""},
        {"WATCHDOG_USEC": "soon"},
        {"WATCHDOG_USEC": "-5"},
        {"WATCHDOG_USEC": "٣"},
        {"WATCHDOG_USEC": "0"},
        {"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"},
    ],
)
async def test_a_watchdog_that_is_not_for_this_process_is_not_served(manager: Manager, more: dict[str, str]) -> None:
    told = ServiceManager({**manager.environment, **more}, pid=77)
    with trio.move_on_after(0.05):
        await told.run(nothing_stuck, str)
    assert told.watchdog_period_s is None
    assert manager.heard() == []


def test_the_watchdog_of_this_very_process_is_served(manager: Manager) -> None:
    told = ServiceManager({**manager.environment, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "77"}, pid=77)
    assert told.watchdog_period_s == 3


@pytest.mark.parametrize("address", ["relative", "vsock:2:1234", "/" + "x" * 200])
def test_an_address_that_is_no_unix_socket_is_passed_over(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address}).ready()


def test_a_manager_that_has_gone_is_told_of_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")})
    with caplog.at_level(logging.WARNING):
        told.ready()
        told.stopping()
    assert [record.getMessage() for record in caplog.records] == [
        "the service manager does not take READY=1: No such file or directory"
    ]


def test_a_manager_that_does_not_read_blocks_nothing(manager: Manager) -> None:
    told = ServiceManager(manager.environment)
    for _ in range(10_000):
        told.ready()
