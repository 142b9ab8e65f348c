"""The directory of a node at a SAM bridge: its key, its sessions, and the problems that it reports."""

import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.core.log.records import ReportedDirectory
from bridge.node.events.event_log import EventLog
from bridge.node.tasks import directory as directory_module
from bridge.node.tasks import directory_requests
from bridge.node.tasks.directory import ACCEPT_FAILURES_MAX, KEY_FILE, OPENING, Directory
from bridge.node.tasks.directory_requests import DirectoryRequest
from bridge.sam.connection import SamBridge, SamError, UnreadablePeerError
from bridge.sam.loopback import LoopbackNetwork, serve_loopback_bridge
from bridge.sam.session import SamSession, open_session
from bridge.wire.i2p.structure_exchange import (
    REPLY_LIMIT_BYTES,
    ReplyStatus,
    StructureReply,
    decode_reply,
    encode_request,
)
from bridge.wire.i2p.structures import hash_of_address
from tests.node.farm_stage import Stage
from tests.node.memory_server import until
from tests.node.unexpected_errors import fail_first, tracebacks

REPLY = StructureReply(ReplyStatus.STRUCTURE, b"structure")
LIMIT_S = 60


@pytest.fixture
async def nursery(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[trio.Nursery]:
    monkeypatch.setattr(directory_module, "RETRY_FIRST_S", 0.02)
    monkeypatch.setattr(directory_module, "RETRY_LONGEST_S", 0.02)
    with trio.fail_after(LIMIT_S):
        async with trio.open_nursery() as opened:
            yield opened
            opened.cancel_scope.cancel()


@pytest.fixture
async def network() -> LoopbackNetwork:
    return LoopbackNetwork()


def directory_at(bridge: SamBridge, state_dir: Path) -> tuple[Directory, EventLog]:
    trace = EventLog("node-1", lambda: 0)
    return Directory(bridge, state_dir, trace, lambda _: REPLY), trace


async def until_serving(directory: Directory) -> bytes:
    await until(lambda: directory.status.problem is None)
    return hash_of_address(directory.status.destination_hash or "")


async def until_failed(directory: Directory, text: str) -> str:
    await until(lambda: text in (directory.status.problem or ""))
    return directory.status.problem or ""


async def requested(bridge: SamBridge, destination_hash: bytes) -> StructureReply:
    async with open_session(bridge) as session:
        stream = await session.connect(destination_hash, LIMIT_S)
        async with stream:
            await stream.send_all(encode_request(b"a" * 32))
            received = b""
            while len(received) < 4 + len(REPLY.structure):
                part = await stream.receive_some(REPLY_LIMIT_BYTES)
                assert part
                received += part
    return decode_reply(received)


@pytest.mark.parametrize("java_like", [False, True])
async def test_directory_replies_at_its_own_destination(
    nursery: trio.Nursery, tmp_path: Path, *, java_like: bool
) -> None:
    bridge = await nursery.start(serve_loopback_bridge, LoopbackNetwork(java_like=java_like))
    directory, trace = directory_at(bridge, tmp_path)
    assert directory.status == ReportedDirectory(problem=OPENING)
    nursery.start_soon(directory.run)
    own = await until_serving(directory)
    for _ in range(3):
        assert await requested(bridge, own) == REPLY
    assert [event.kind for event in trace.recent(10)] == ["directory-opened"]
    await until(lambda: directory.counts[DirectoryRequest.STRUCTURE] == 3)


async def test_unexpected_error_ends_only_one_exchange(
    nursery: trio.Nursery,
    network: LoopbackNetwork,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, _ = directory_at(bridge, tmp_path)
    fail_first(monkeypatch, directory_requests, "decode_request")
    nursery.start_soon(directory.run)
    own = await until_serving(directory)
    async with open_session(bridge) as session, await session.connect(own, LIMIT_S) as stream:
        await stream.send_all(encode_request(b"a" * 32))
        assert await stream.receive_some(1) == b""
    assert await requested(bridge, own) == REPLY
    assert tracebacks(caplog) == 1


async def test_key_is_private_and_kept_over_restart(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path
) -> None:
    bridge = await nursery.start(serve_loopback_bridge, network)
    hashes = []
    for _ in range(2):
        directory, _ = directory_at(bridge, tmp_path)
        async with trio.open_nursery() as run:
            run.start_soon(directory.run)
            hashes.append(await until_serving(directory))
            run.cancel_scope.cancel()
    assert hashes[0] == hashes[1]
    assert stat.S_IMODE((tmp_path / KEY_FILE).stat().st_mode) == 0o600


async def test_session_is_made_again_after_router_ends_it(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path
) -> None:
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, trace = directory_at(bridge, tmp_path)
    nursery.start_soon(directory.run)
    own = await until_serving(directory)
    network.end_session(own)
    await until_failed(directory, "ended the session")
    assert await until_serving(directory) == own
    assert await requested(bridge, own) == REPLY
    assert [event.kind for event in trace.recent(10)] == ["directory-opened", "directory-failed", "directory-opened"]
    assert (tmp_path / KEY_FILE).read_text()[400:] not in repr((trace.recent(10), directory.status))


async def test_session_without_lease_set_is_replaced(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "CHECK_FIRST_S", 0.05)
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, trace = directory_at(bridge, tmp_path)
    monkeypatch.setattr(network, "has_lease_set", lambda _: False)
    nursery.start_soon(directory.run)
    await until_failed(directory, "the network does not find its lease set")
    monkeypatch.undo()
    own = await until_serving(directory)
    assert await requested(bridge, own) == REPLY
    assert [event.kind for event in trace.recent(10)][:3] == [
        "directory-opened",
        "directory-failed",
        "directory-opened",
    ]


async def test_published_directory_is_checked_once(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "CHECK_FIRST_S", 0.05)
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, trace = directory_at(bridge, tmp_path)
    nursery.start_soon(directory.run)
    await until_serving(directory)
    await until(lambda: directory.counts[DirectoryRequest.BROKEN] == 1)
    await until(lambda: len(network.hashes) == 1)  # The session of the check has ended.
    assert [event.kind for event in trace.recent(10)] == ["directory-opened"]


async def test_peers_of_unknown_kind_do_not_end_session(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept, failures = SamSession.accept, list(range(2 * ACCEPT_FAILURES_MAX))

    async def failing(session: SamSession) -> tuple[bytes, trio.SocketStream]:
        if failures:
            failures.pop()
            raise UnreadablePeerError("the line is not the peer's destination")
        return await accept(session)

    monkeypatch.setattr(SamSession, "accept", failing)
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, trace = directory_at(bridge, tmp_path)
    nursery.start_soon(directory.run)
    assert await requested(bridge, await until_serving(directory)) == REPLY
    assert [event.kind for event in trace.recent(10)] == ["directory-opened"]


async def test_session_that_accepts_no_stream_is_replaced(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory_module, "ACCEPT_RETRY_S", 0.001)
    accept, failures = SamSession.accept, [ACCEPT_FAILURES_MAX - 1, ACCEPT_FAILURES_MAX]

    async def failing(session: SamSession) -> tuple[bytes, trio.SocketStream]:
        if failures and failures[0]:
            failures[0] -= 1
            raise SamError("the bridge refused STREAM ACCEPT")
        del failures[:1]
        return await accept(session)

    monkeypatch.setattr(SamSession, "accept", failing)
    bridge = await nursery.start(serve_loopback_bridge, network)
    directory, trace = directory_at(bridge, tmp_path)
    nursery.start_soon(directory.run)
    own = await until_serving(directory)
    assert await requested(bridge, own) == REPLY
    await until(lambda: len(trace.recent(10)) == 3)
    assert [event.kind for event in trace.recent(10)] == ["directory-opened", "directory-failed", "directory-opened"]
    assert await requested(bridge, own) == REPLY


async def test_router_without_sam_is_reported_once(nursery: trio.Nursery, tmp_path: Path) -> None:
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    directory, trace = directory_at(SamBridge("127.0.0.1", port), tmp_path)
    nursery.start_soon(directory.run)
    problem = await until_failed(directory, f"127.0.0.1:{port}")
    await trio.sleep(0.1)
    assert directory.status == ReportedDirectory(None, problem)
    assert [event.kind for event in trace.recent(10)] == ["directory-failed"]
    assert not (tmp_path / KEY_FILE).exists()


async def test_unreadable_key_is_reported_and_kept(
    nursery: trio.Nursery, network: LoopbackNetwork, tmp_path: Path
) -> None:
    bridge = await nursery.start(serve_loopback_bridge, network)
    path = tmp_path / KEY_FILE
    path.write_text("not a key")
    path.chmod(0o600)
    directory, _ = directory_at(bridge, tmp_path)
    nursery.start_soon(directory.run)
    assert str(path) in await until_failed(directory, "is not a key of SAM")
    path.chmod(0o644)
    await until_failed(directory, "chmod 600")
    assert path.read_text() == "not a key"


@pytest.mark.usefixtures("machine_clock")
async def test_report_has_hash_of_directory(autojump_clock: MockClock, tmp_path: Path) -> None:
    directory, _ = directory_at(SamBridge("127.0.0.1", 1), tmp_path)

    async def serve_later() -> None:
        await trio.sleep(100)
        directory.status = ReportedDirectory("d" * 52)
        await trio.sleep_forever()

    directory.run = serve_later  # type: ignore[method-assign]  # the directory of this story
    stage = Stage(period_ms=30_000, directory=directory)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(stage.background_tasks.run)
        await trio.sleep(99)
        assert stage.applied_state.state.servers[1].report.directory == ReportedDirectory(problem=OPENING)
        await trio.sleep(10)
        nursery.cancel_scope.cancel()
    assert stage.applied_state.state.servers[1].report.directory == ReportedDirectory("d" * 52)
    assert autojump_clock.current_time() >= 109
