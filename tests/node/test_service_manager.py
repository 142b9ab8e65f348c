"""Notifications of a node to systemd: the datagrams of sd_notify, received on a socket like systemd's."""

import logging
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from bridge.node.events.service_manager import LOOK_S, PINGS_IN_A_PERIOD, ServiceManager

DATAGRAM_BYTES = 4096


class Manager:
    """The manager's side: a datagram socket."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self.socket.settimeout(0)
        self.environment = {"NOTIFY_SOCKET": address}

    def received(self) -> list[str]:
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


def test_notification_without_socket_variable_is_not_sent() -> None:
    service = ServiceManager({})
    service.ready()
    service.stopping()
    assert service.watchdog_period_s is None


def stuck_reasons() -> tuple[str, ...]:
    return ()


def test_ready_and_stopping_are_separate_datagrams(manager: Manager) -> None:
    service = ServiceManager(manager.environment)
    service.ready()
    service.stopping()
    assert manager.received() == ["READY=1", "STOPPING=1"]


async def test_watchdog_is_notified_three_times_per_period(manager: Manager, autojump_clock: MockClock) -> None:
    service = ServiceManager({**manager.environment, "WATCHDOG_USEC": "6000000"})
    with trio.move_on_after(11.9):
        await service.run(stuck_reasons, str)
    assert manager.received() == ["WATCHDOG=1"] * (2 * PINGS_IN_A_PERIOD)


async def test_changed_verdict_is_sent_as_one_line(manager: Manager, autojump_clock: MockClock) -> None:
    verdicts = iter(["", "Healthy,\ncan lose 1 of 3", "Healthy, can lose 1 of 3", "No quorum", "No quorum"])
    with trio.move_on_after(4.5 * LOOK_S):
        await ServiceManager(manager.environment).run(stuck_reasons, lambda: next(verdicts))
    assert manager.received() == ["STATUS=Healthy, can lose 1 of 3", "STATUS=No quorum"]


async def test_stuck_node_skips_watchdog(manager: Manager, autojump_clock: MockClock) -> None:
    reasons = iter([(), ("entry 7 is committed and has not been applied",), ("the same",), ()])
    service = ServiceManager({**manager.environment, "WATCHDOG_USEC": "60000000"})
    with trio.move_on_after(3.5 * LOOK_S):
        await service.run(lambda: next(reasons), str)
    assert manager.received() == ["WATCHDOG=1"] * 2


async def test_blocked_loop_skips_watchdog(manager: Manager, nursery: trio.Nursery) -> None:
    service = ServiceManager({**manager.environment, "WATCHDOG_USEC": "60000"})
    nursery.start_soon(service.run, stuck_reasons, str)
    await trio.testing.wait_all_tasks_blocked()
    assert manager.received() == ["WATCHDOG=1"]
    time.sleep(0.5)  # noqa: ASYNC251 - blocks the loop for eight periods
    assert manager.received() == []


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
async def test_missing_invalid_or_foreign_watchdog_is_not_served(manager: Manager, more: dict[str, str]) -> None:
    service = ServiceManager({**manager.environment, **more}, pid=77)
    with trio.move_on_after(0.05):
        await service.run(stuck_reasons, str)
    assert service.watchdog_period_s is None
    assert manager.received() == []


def test_watchdog_of_this_process_is_served(manager: Manager) -> None:
    service = ServiceManager({**manager.environment, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "77"}, pid=77)
    assert service.watchdog_period_s == 3


@pytest.mark.parametrize("address", ["relative", "vsock:2:1234", "/" + "x" * 200])
def test_address_of_other_kind_is_ignored(address: str) -> None:
    ServiceManager({"NOTIFY_SOCKET": address}).ready()


def test_missing_manager_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "missing")})
    with caplog.at_level(logging.WARNING):
        service.ready()
        service.stopping()
    assert [record.getMessage() for record in caplog.records] == [
        "the service manager does not take READY=1: No such file or directory"
    ]


def test_unread_socket_does_not_block_node(manager: Manager) -> None:
    service = ServiceManager(manager.environment)
    for _ in range(10_000):
        service.ready()
