"""The client of a farm on a loopback SAM bridge: dead, slow and withdrawn leaves, and the restart of the bridge."""

import errno
import socket
from math import inf
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from bridge.connect import (
    STREAMS_LIMIT,
    ClientCounter,
    FarmClient,
    LeafSilentError,
    NoLeafError,
    NoSessionError,
    StreamLimitError,
    connect,
)
from bridge.connect.opening import LATE_LIMIT, LATE_S
from bridge.core.connecting.leaves import LeafFailure
from bridge.core.connecting.reply_times import MEASURED_FROM
from bridge.sam.connection import SamBridge
from bridge.sam.loopback import serve_loopback_bridge
from bridge.sam.session import SamSession
from bridge.wire.i2p.farm_link import LinkError
from tests.node.connect_stage import LIFE_S, ConnectStage, connect_stage, request, until

BOTH_KINDS = pytest.mark.parametrize("java_like", [False, True], ids=["i2pd", "java"])


def requests(stage: ConnectStage) -> list[bytes]:
    return [line for leaf in stage.leaves for line in leaf.requests]


def state_of(farm: FarmClient, stage: ConnectStage, number: int) -> str:
    address = {leaf.address: leaf.state.value for leaf in farm.status().leaves}
    hashes = {each.hash: address_text for each, address_text in zip(farm._table.listed(), address, strict=True)}
    return address[hashes[stage.leaves[number].hash]]


@BOTH_KINDS
async def test_request_gets_reply_of_leaf(tmp_path: Path, autojump_clock: MockClock, *, java_like: bool) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=java_like) as stage, stage.client() as farm:
        assert (await request(farm)).startswith("leaf-")
        await farm.wait_ready()
        status = farm.status()
    assert (status.ready, status.problem, status.demo, status.last_error) == (True, None, False, None)
    assert sum(leaf.successes for leaf in status.leaves) == 1
    assert (status.streams, status.counters["streams_opened"], status.counters["structures_accepted"]) == (0, 1, 1)


@BOTH_KINDS
async def test_dead_leaf_fails_once_and_is_last(tmp_path: Path, autojump_clock: MockClock, *, java_like: bool) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=java_like) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await request(farm, b"0")
        stage.network.dead.add(stage.leaves[0].hash)
        began_s = trio.current_time()
        replies: list[str] = []
        failures: list[str] = []
        for number in range(1, 21):
            try:
                replies.append(await request(farm, b"%d" % number))
            except LeafSilentError as error:
                failures.append(str(error))
        assert trio.current_time() - began_s < 6
        assert all("did not reply within 5.0 s: nothing was sent twice" in failure for failure in failures)
        assert len(failures) == (0 if java_like else 1)
        assert "leaf-0" not in replies
        assert len(requests(stage)) == len(set(requests(stage))) == 1 + len(replies)
        await until(lambda: state_of(farm, stage, 0) == "failed")


async def test_java_client_opens_next_leaf_after_half_of_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=True) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await farm.wait_ready()
        stage.network.dead.add(stage.leaves[0].hash)
        began_s = trio.current_time()
        assert await request(farm) != "leaf-0"
        assert trio.current_time() - began_s == pytest.approx(2.5, abs=0.3)
        assert (farm.counters[ClientCounter.RACES], state_of(farm, stage, 0)) == (1, "suspect")
        await request(farm)
        assert trio.current_time() - began_s == pytest.approx(2.5, abs=0.3)
        await until(lambda: state_of(farm, stage, 0) == "failed")
        assert len(requests(stage)) == 2


async def test_late_reply_shows_that_leaf_is_alive(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        stage.leaves[0].delay_s = 9.0  # A reply may be so late if i2pd repeats a lost packet.
        with pytest.raises(LeafSilentError):
            await request(farm)
        assert state_of(farm, stage, 0) == "failed"
        await until(lambda: state_of(farm, stage, 0) != "failed", LATE_S)
        await until(lambda: farm._opener._late == 0)


@pytest.mark.parametrize(("is_quick", "waits_s"), [(True, "[1-3]"), (False, "5")])
async def test_timeout_below_base_needs_quick_stream(
    tmp_path: Path, autojump_clock: MockClock, *, is_quick: bool, waits_s: str
) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        for _ in range(MEASURED_FROM):
            await request(farm)
        stage.leaves[0].is_silent = True
        stream = await farm.open_stream(is_quick=is_quick)
        await stream.send_all(b"hello\n")
        with pytest.raises(LeafSilentError, match=rf"did not reply within {waits_s}\.\d s"):
            await stream.receive_some()
        await stream.aclose()


async def test_failed_stream_may_be_closed_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        stage.leaves[0].is_silent = True
        stream = await farm.open_stream()
        await stream.send_all(b"hello\n")
        with pytest.raises(LeafSilentError):
            await stream.receive_some()
        await stream.aclose()
        await until(lambda: farm._opener._late == 1)
        await stream.aclose()
        await until(lambda: farm._opener._late == 0)
        assert farm.status().streams == 0


async def test_streams_that_wait_for_late_replies_are_bounded(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        stage.leaves[0].is_silent = True

        async def fail() -> None:
            with pytest.raises(LeafSilentError):
                await request(farm)
            assert farm._opener._late <= LATE_LIMIT

        async with trio.open_nursery() as nursery:
            for _ in range(LATE_LIMIT + 8):
                nursery.start_soon(fail)
        assert farm._opener._late == LATE_LIMIT
        await until(lambda: farm._opener._late == 0)
        assert farm.status().streams == 0


def slow_look_up(monkeypatch: pytest.MonkeyPatch, leaf_hash: bytes) -> None:
    """Let the router need 11 s for one leaf: i2pd queries a third floodfill."""
    connect_now = SamSession.connect

    async def connect_slowly(session: SamSession, destination_hash: bytes, timeout_s: float) -> trio.SocketStream:
        if destination_hash == leaf_hash:
            await trio.sleep(11)
        return await connect_now(session, destination_hash, timeout_s)

    monkeypatch.setattr(SamSession, "connect", connect_slowly)


async def test_failed_leaf_does_not_win_against_slow_look_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=2) as stage, stage.client() as farm:
        stage.publish(10, 100)
        stage.network.dead.add(stage.leaves[0].hash)
        with pytest.raises(LeafSilentError):
            await request(farm)
        slow_look_up(monkeypatch, stage.leaves[1].hash)
        assert await request(farm) == "leaf-1"


async def test_second_of_two_failed_leaves_wins_against_slow_look_up(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 10, 10)
        await farm.wait_ready()
        lost, dead, slow = stage.leaves
        for leaf in (lost, dead):
            stage.network.dead.add(leaf.hash)
            farm._failed(leaf.hash, LeafFailure(reason="a packet was lost", unanswered_since_s=trio.current_time()))
            await trio.sleep(2)
        stage.network.dead.discard(lost.hash)
        slow_look_up(monkeypatch, slow.hash)
        began_s = trio.current_time()
        assert await request(farm) == lost.name
        assert trio.current_time() - began_s < 5


@BOTH_KINDS
async def test_leaf_without_lease_set_is_skipped_immediately(
    tmp_path: Path, autojump_clock: MockClock, *, java_like: bool
) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=java_like) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await farm.wait_ready()
        stage.network.end_session(stage.leaves[0].hash)
        await until(lambda: stage.leaves[0].hash not in stage.network.hashes)
        stage.network.forget_lease_sets()
        began_s = trio.current_time()
        assert await request(farm) != "leaf-0"
        assert trio.current_time() - began_s < 0.5
        assert farm.counters[ClientCounter.LEAF_CHANGES] == 1


async def test_first_stream_tries_all_leaves_twice(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=True) as stage, stage.client() as farm:
        await farm.wait_ready()
        stage.network.dead.update(leaf.hash for leaf in stage.leaves)
        async with trio.open_nursery() as nursery:

            async def revive() -> None:
                await until(lambda: all(each.failures for each in farm.status().leaves))
                stage.network.dead.clear()

            nursery.start_soon(revive)
            assert (await request(farm)).startswith("leaf-")
        assert len(requests(stage)) == 1


async def test_stream_without_leaf_reports_tried_leaves_and_age(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=True) as stage, stage.client() as farm:
        await farm.wait_ready()
        stage.network.dead.update(leaf.hash for leaf in stage.leaves)
        await trio.sleep(240)
        with pytest.raises(NoLeafError, match=r"no leaf answered: 3 tried, the last structure is [45]m\d\ds old; last"):
            await farm.open_stream()
        assert farm.status().streams == 0


async def test_slow_network_is_not_taken_for_dead_leaves(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        for leaf in stage.leaves:
            leaf.delay_s = 12.0
        failures = 0
        for _ in range(12):
            try:
                await request(farm)
            except LeafSilentError:
                failures += 1
        # Each leaf fails with timeouts of 5 and 10 s. With 20 s it replies in time, so the client knows its reply time.
        assert failures <= 6
        assert all(leaf.patience_s == pytest.approx(48, abs=0.5) for leaf in farm.status().leaves)


async def test_slow_reply_does_not_fail_while_leaf_replies_to_others(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        await request(farm)
        async with await farm.open_stream() as slow, trio.open_nursery() as nursery:
            stage.leaves[0].delay_s = 30.0
            await slow.send_all(b"slow\n")
            await until(lambda: b"slow" in stage.leaves[0].requests)
            stage.leaves[0].delay_s = 0.0

            async def replies() -> None:
                while True:
                    await request(farm, b"quick")
                    await trio.sleep(2)

            nursery.start_soon(replies)
            assert await slow.receive_some() == b"leaf-0\n"
            nursery.cancel_scope.cancel()
        assert stage.leaves[0].requests.count(b"slow") == 1


async def test_infinite_timeout_waits_for_reply(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client(patience_s=inf) as farm:
        stage.leaves[0].delay_s = LIFE_S + 100.0
        assert await request(farm) == "leaf-0"
        assert farm.status().leaves[0].patience_s is None


async def test_withdrawn_leaf_fails_waiting_stream_before_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await request(farm)
        await trio.sleep(6)
        stage.leaves[0].is_silent = True
        stage.publish(-1, 100, 100)
        began_s = trio.current_time()
        with pytest.raises(LeafSilentError, match="the farm has withdrawn it"):
            await request(farm)
        assert trio.current_time() - began_s == pytest.approx(2.5, abs=0.3)
        assert await request(farm) != "leaf-0"
        assert farm.counters[ClientCounter.STREAMS_SILENT] == 1


async def test_new_streams_avoid_leaf_after_half_of_timeout(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await request(farm)
        stage.leaves[0].is_silent = True
        async with trio.open_nursery() as nursery:

            async def silent() -> None:
                with pytest.raises(LeafSilentError):
                    await request(farm)

            nursery.start_soon(silent)
            await trio.sleep(2.6)
            assert {await request(farm) for _ in range(10)} == {"leaf-1", "leaf-2"}


async def test_waiting_streams_of_dead_leaf_fail_together(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await request(farm)
        stage.network.dead.add(stage.leaves[0].hash)
        failed_s: list[float] = []

        async def one(delay_s: float) -> None:
            await trio.sleep(delay_s)
            with pytest.raises(LeafSilentError):
                await request(farm)
            failed_s.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(one, number / 10)
        assert max(failed_s) - min(failed_s) < 0.2
        assert {leaf.patience_s for leaf in farm.status().leaves} == {5.0}


@BOTH_KINDS
async def test_service_that_closes_is_replaced_before_first_byte(
    tmp_path: Path, autojump_clock: MockClock, *, java_like: bool
) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=java_like) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        stage.leaves[0].closes = True
        async with await farm.open_stream() as stream:
            await trio.sleep(1)
            await stream.send_all(b"one\n")
            assert await stream.receive_some() in {b"leaf-1\n", b"leaf-2\n"}
        assert state_of(farm, stage, 0) == "failed"
        assert farm.status().streams == 0


async def test_leaf_that_greets_replaces_closed_leaf_unseen(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        stage.leaves[0].closes = True
        stage.leaves[1].banner = stage.leaves[2].banner = b"welcome\n"
        async with await farm.open_stream() as stream:
            assert await stream.receive_some() == b"welcome\n"
            assert await request(farm) == "welcome"


async def test_next_leaf_greets_instead_of_dead_leaf(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.publish(10, 100, 100)
        await farm.wait_ready()
        for leaf in stage.leaves:
            leaf.banner = b"welcome\n"
        stage.network.dead.add(stage.leaves[0].hash)
        began_s = trio.current_time()
        async with await farm.open_stream() as stream:
            assert await stream.receive_some() == b"welcome\n"
            assert trio.current_time() - began_s == pytest.approx(5.0, abs=0.3)
            assert state_of(farm, stage, 0) == "failed"
            await stream.send_all(b"hello\n")
            assert await stream.receive_some() == b"leaf-1\n" or stage.leaves[2].requests == [b"hello"]
        assert farm.status().streams == 0


async def test_unused_stream_moves_once_to_each_leaf(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        async with await farm.open_stream() as stream:
            with trio.move_on_after(600):
                await stream.receive_some()
            assert farm.counters[ClientCounter.STREAMS_OPENED] == 3
            assert (farm.status().streams, sum(leaf.streams for leaf in farm.status().leaves)) == (1, 1)
            assert {leaf.state.value for leaf in farm.status().leaves} == {"untried"}
            async with trio.open_nursery() as nursery:
                received: list[bytes] = []

                async def receive() -> None:
                    received.append(await stream.receive_some())

                nursery.start_soon(receive)
                await trio.sleep(60)
                await stream.send_all(b"late\n")
            assert len(requests(stage)) == len(received) == 1
        assert farm.counters[ClientCounter.STREAMS_FAILED] == 0


async def test_bytes_sent_while_waiting_for_greeting_keep_the_leaf(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        for leaf in stage.leaves:
            leaf.delay_s = 4.0
        async with await farm.open_stream() as stream, trio.open_nursery() as nursery:
            leaf_before = stream.leaf
            received: list[bytes] = []

            async def receive() -> None:
                received.append(await stream.receive_some())

            nursery.start_soon(receive)
            await trio.sleep(4)
            await stream.send_all(b"now\n")
            await until(lambda: bool(received))
            assert stream.leaf == leaf_before
        assert requests(stage) == [b"now"]


async def test_stream_without_bytes_never_fails(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        async with await farm.open_stream() as stream:
            with trio.move_on_after(600) as waiting:
                await stream.receive_some()
            assert waiting.cancelled_caught
            await stream.send_all(b"late\n")
            assert await stream.receive_some() == b"leaf-0\n"
        assert state_of(farm, stage, 0) == "good"


async def test_later_exchange_fails_only_if_a_reply_is_expected(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        async with await farm.open_stream() as stream:
            await stream.send_all(b"one\n")
            assert await stream.receive_some() == b"leaf-0\n"
            stage.leaves[0].delay_s = 100.0
            await stream.send_all(b"two\n")
            assert await stream.receive_some() == b"leaf-0\n"
            stage.leaves[0].is_silent = True
            stream.expect_reply()
            await stream.send_all(b"three\n")
            began_s = trio.current_time()
            with pytest.raises(LeafSilentError):
                await stream.receive_some()
            assert trio.current_time() - began_s == pytest.approx(5.0, abs=0.3)
            with pytest.raises(LeafSilentError):
                await stream.send_all(b"four\n")
        assert stage.leaves[0].requests == [b"one", b"two", b"three"]


async def test_long_request_gets_more_time(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        stage.leaves[0].delay_s = 60.0
        async with await farm.open_stream() as stream:
            await stream.send_all(b"x" * 600_000 + b"\n")
            assert await stream.receive_some() == b"leaf-0\n"


async def test_client_continues_after_restart_of_bridge(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, trio.open_nursery() as nursery:
        router = trio.CancelScope()

        async def restarting(task_status: trio.TaskStatus[SamBridge]) -> None:
            with router:
                await serve_loopback_bridge(stage.network, task_status=task_status)

        own: SamBridge = await nursery.start(restarting)
        async with connect(stage.link, bridge=own, cache_dir=tmp_path, unix_s=stage.unix_s) as farm:
            await request(farm)
            await until(lambda: farm.status().sessions == 2)
            router.cancel()
            await until(lambda: farm.status().sessions == 0)
            assert "is making a session" not in (farm.status().problem or "")
            nursery.start_soon(serve_loopback_bridge, stage.network, own.port)
            assert (await request(farm)).startswith("leaf-")
            await until(lambda: farm.status().sessions == 2, 120)
            assert farm.status().leaves[0].failures == 0
        nursery.cancel_scope.cancel()


async def test_spare_session_is_used_without_delay(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        stage.network.session_delay_s = 20.0
        await request(farm)
        await until(lambda: farm.status().sessions == 2)
        stage.network.end_session(next(iter(farm._pool._ready)).hash)
        await until(lambda: farm.status().sessions == 1)
        began_s = trio.current_time()
        await request(farm)
        assert trio.current_time() - began_s < 0.5
        await until(lambda: farm.status().sessions == 2)


async def test_missing_bridge_is_reported_with_remedy(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            bridge = SamBridge("127.0.0.1", unused.getsockname()[1])
            async with connect(stage.link, bridge=bridge, cache_dir=tmp_path) as farm:
                with pytest.raises(NoSessionError, match=f"nothing answers at {bridge}.*enable SAM"):
                    await farm.open_stream()
                assert "enable SAM" in (farm.status().problem or "")


async def test_streams_are_bounded(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=1) as stage, stage.client() as farm:
        await request(farm)
        farm._opener.streams = STREAMS_LIMIT
        with pytest.raises(StreamLimitError, match=f"{STREAMS_LIMIT} streams are open"):
            await farm.open_stream()


async def test_canceled_opening_closes_its_stream(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, java_like=True) as stage, stage.client() as farm:
        await farm.wait_ready()
        stage.network.connect_delay_s = 1.0
        for timeout_s in (0.5, 0.99, 1.0, 1.01):
            with trio.move_on_after(timeout_s):
                await (await farm.open_stream()).aclose()
        await trio.sleep(10)
        assert farm.status().streams == 0
        assert [leaf.streams for leaf in farm.status().leaves] == [0, 0, 0]


async def test_client_connects_only_to_the_bridge(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected: set[object] = set()
    with trio.socket.socket() as unused:
        kind = type(unused)
    original = kind.connect

    async def observed(self: trio.socket.SocketType, address: object) -> None:
        connected.add(address)
        await original(self, address)

    def refused(*arguments: object, **options: object) -> None:
        raise OSError(errno.EPERM, f"a look-up of {arguments}, {options}")

    async with connect_stage(tmp_path, autojump_clock) as stage:
        monkeypatch.setattr(kind, "connect", observed)
        monkeypatch.setattr(socket, "gethostbyname", refused)
        async with stage.client() as farm:
            await request(farm)
            stage.network.dead.add(stage.leaves[0].hash)
            for _ in range(10):
                try:
                    await request(farm)
                except LeafSilentError:
                    continue
            await farm.refresh()
    assert connected == {(stage.bridge.host, stage.bridge.port)}


@pytest.mark.parametrize("patience_s", [0.0, -1.0, float("nan")])
async def test_invalid_timeout_is_refused(patience_s: float, tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        with pytest.raises(ValueError, match="must be positive"):
            async with connect(stage.link, patience_s=patience_s):
                pass
        with pytest.raises(LinkError):
            async with connect("https://example.org"):
                pass
