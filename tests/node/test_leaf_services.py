"""The leaves of `up`: each serves its page while its node runs, and ends with it like a leaf of a lost machine."""

import errno
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from socket import create_server

import pytest
import trio
import trio.testing

from bridge.node.local import leaf_services
from bridge.node.local.farm_files import LocalFarm, NodeFiles, leaf_key
from bridge.node.local.leaf_services import REQUEST_LIMIT_BYTES, start_bridge
from bridge.sam.connection import LeafUnreachableError
from bridge.sam.session import SamSession, open_session
from tests.node.unexpected_errors import fail_first, tracebacks

BOUND_S = 60.0
REQUEST = b"GET / HTTP/1.1\r\nHost: leaf\r\n\r\n"


@dataclass
class Stage:
    """One leaf, the exit event of its node's process, and a client of the bridge."""

    leaf: bytes
    exited: trio.Event
    by_hand: dict[str, int]
    client: SamSession

    async def get(self, request: bytes = REQUEST, timeout_s: float = 1.0) -> bytes:
        """Return the bytes that the leaf sends; raise LeafUnreachableError if it is down."""
        stream = await self.client.connect(self.leaf, timeout_s)
        async with stream:
            await stream.send_all(request)
            received = b""
            while not received.endswith(b"\n"):
                part = await stream.receive_some()
                if not part:
                    break
                received += part
            return received

    async def get_when_up(self) -> bytes:
        """Return the page as soon as the leaf serves it."""
        while True:
            try:
                return await self.get()
            except LeafUnreachableError:
                await trio.sleep(0.01)

    async def get_until_down(self) -> None:
        """Request the page until a request fails. A request during the end of the leaf may not get a reply."""
        while True:
            with trio.move_on_after(1):
                await self.get(timeout_s=0.2)


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    node = NodeFiles("node-1", directory, 1, 2)
    exited, by_hand = trio.Event(), dict[str, int]()
    farm = LocalFarm(directory, (node,), continued=False)
    with trio.fail_after(BOUND_S):
        async with trio.open_nursery() as nursery:
            services = await start_bridge(nursery)
            nursery.start_soon(services.run, farm, (exited,), by_hand.get)
            async with open_session(services.bridge) as client:
                yield Stage(leaf_key(node).destination.hash, exited, by_hand, client)
            nursery.cancel_scope.cancel()


async def test_page_has_node_leaf_and_number_of_requests(tmp_path: Path) -> None:
    async with stage(tmp_path) as farm:
        await farm.get_when_up()
        head, _, text = (await farm.get()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert f"Content-Length: {len(text)}".encode() in head
    assert text.startswith(b"node-1 served request 2 at its leaf ")


async def test_leaf_ends_with_its_node_and_returns_with_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as farm:
        await farm.get_when_up()
        farm.exited.set()
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LeafUnreachableError):
            await farm.get(timeout_s=0.1)
        farm.by_hand["node-1"] = os.getpid()
        assert b"node-1 served request 2" in await farm.get_when_up()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports the end of another program's child")
async def test_leaf_ends_with_a_node_started_by_hand(tmp_path: Path) -> None:
    async with stage(tmp_path) as farm, trio.open_nursery() as nursery:
        process = await nursery.start(partial(trio.run_process, ["cat"], stdin=subprocess.PIPE, check=False))
        farm.exited.set()
        farm.by_hand["node-1"] = process.pid
        await farm.get_when_up()
        process.kill()
        await process.wait()
        # The last view of the node still has this process.
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(LeafUnreachableError):
            await farm.get(timeout_s=0.5)
        nursery.cancel_scope.cancel()


async def test_leaf_ends_with_node_if_system_hides_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may not permit `pidfd_open`, and older versions of Linux lack it."""

    def refuse(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    async with stage(tmp_path) as farm:
        farm.exited.set()
        farm.by_hand["node-1"] = os.getpid()
        await farm.get_when_up()
        del farm.by_hand["node-1"]
        with pytest.raises(LeafUnreachableError):
            await farm.get_until_down()


async def test_request_without_end_does_not_get_page(tmp_path: Path) -> None:
    async with stage(tmp_path) as farm:
        await farm.get_when_up()
        assert await farm.get(b"x" * (REQUEST_LIMIT_BYTES + 1)) == b""
        assert await farm.get(b"HEAD" + REQUEST[3:]) != b""


async def test_unexpected_error_of_page_ends_only_its_exchange(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage(tmp_path) as farm:
        await farm.get_when_up()
        fail_first(monkeypatch, leaf_services._Page, "_exchange")
        assert await farm.get() == b""
        assert b"node-1 served request 2" in await farm.get()
    assert tracebacks(caplog) == 1


async def test_bridge_uses_free_port_if_its_own_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    with create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        monkeypatch.setattr("bridge.node.local.leaf_services.BRIDGE_PORT", taken)
        async with trio.open_nursery() as nursery:
            services = await start_bridge(nursery)
            nursery.cancel_scope.cancel()
    assert services.bridge.port != taken
