"""The structure of a client: hostile directories, the cache, refreshes, and structures that have ended."""

import os
import pwd
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.connect import ClientCounter, LeafSilentError, NoLeafError, default_cache_dir
from bridge.connect.structure_keeper import StructureKeeper, _read_file
from bridge.wire.i2p.destination_keys import new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, encode, sign
from bridge.wire.i2p.structure_exchange import STRUCTURE_LIMIT_BYTES, ReplyStatus, StructureReply, encode_reply
from tests.node.connect_stage import LIFE_S, ConnectStage, connect_stage, request, until

MEBIBYTE = 1 << 20
read_cache = StructureKeeper._read_cache


def with_leaves(stage: ConnectStage, count: int) -> bytes:
    second = int(stage.unix_s())
    leases = tuple(MetaLease(number.to_bytes(32, "big"), 10, second + LIFE_S) for number in range(count))
    key = stage.master.as_signing_key()
    return encode(sign(replace(key.sign(second, leases[:1]), leases=leases), key.private_key))


def of_other_address(stage: ConnectStage) -> bytes:
    second = int(stage.unix_s())
    return encode(new_master_key().as_signing_key().sign(second, (MetaLease(bytes(32), 1, second + LIFE_S),)))


def with_wrong_signature(stage: ConnectStage) -> bytes:
    structure = stage.structure([20, 20, 20])
    return structure[:-1] + bytes([structure[-1] ^ 1])


def written_files(directory: Path) -> list[Path]:
    return list(directory.iterdir())


HOSTILE: dict[str, tuple[Callable[[ConnectStage], bytes], str]] = {
    "other-address": (of_other_address, "the structure is for .*, not for "),
    "wrong-signature": (with_wrong_signature, "the signature of the structure does not hold"),
    "ended": (lambda stage: stage.structure([20], published_s=int(stage.unix_s()) - LIFE_S), "expired 0 s ago"),
    "future": (lambda stage: stage.structure([20], published_s=int(stage.unix_s()) + 700), "check the clock"),
    "255-leaves": (lambda stage: with_leaves(stage, 255), "it has 255 entries; at most 16 are allowed"),
    "rubbish": (lambda _: bytes(range(256)) * 255, "this is not a Meta LeaseSet2"),
    "trailing-bytes": (lambda stage: stage.structure([20]) + b"x", "this is not a Meta LeaseSet2"),
}


async def test_clock_of_stage_does_not_overtake_thread(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock), trio.open_nursery() as nursery:
        nursery.start_soon(trio.sleep, 1)
        began_s = trio.current_time()
        # The thread needs several times the clock's threshold.
        await trio.to_thread.run_sync(threading.Event().wait, 0.1)
        assert trio.current_time() == began_s


async def test_stream_before_first_query_does_not_repeat_query(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = StructureKeeper.query

    async def late(keeper: StructureKeeper) -> None:
        await trio.sleep(1)
        await query(keeper)

    monkeypatch.setattr(StructureKeeper, "query", late)
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        await request(farm)
        await trio.sleep(20)
        assert farm.counters[ClientCounter.FETCHES] == 1


@pytest.mark.parametrize("kind", HOSTILE)
async def test_hostile_structure_is_refused_with_one_line(tmp_path: Path, autojump_clock: MockClock, kind: str) -> None:
    make, reason = HOSTILE[kind]
    async with connect_stage(tmp_path, autojump_clock) as stage:
        stage.directories[0].reply = encode_reply(StructureReply(ReplyStatus.STRUCTURE, make(stage)))
        async with stage.client() as farm:
            with pytest.raises(NoLeafError, match=reason) as caught:
                await farm.open_stream()
            status = farm.status()
    assert "\n" not in str(caught.value)
    assert status.counters["structures_refused"] == status.directories[0].failures == 1
    assert written_files(tmp_path) == []


async def many_bytes(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\1\0\xff\xff")
    for _ in range(10):
        await stream.send_all(bytes(MEBIBYTE))


async def many_wrong_bytes(stream: trio.SocketStream) -> None:
    for _ in range(10):
        await stream.send_all(b"x" * MEBIBYTE)


async def slow_bytes(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\1\0\xff\xff")
    while True:
        await stream.send_all(b"x")
        await trio.sleep(1)


async def early_end(stream: trio.SocketStream) -> None:
    await stream.send_all(b"\1\0\xff\xffxxx")


@pytest.mark.parametrize(
    ("serve", "reason", "within_s"),
    [
        (many_bytes, "not a Meta LeaseSet2", 1),
        (many_wrong_bytes, "uses version 120 of the exchange", 1),
        (slow_bytes, "did not reply completely within 20 s", 21),
        (early_end, f"the reply ends {STRUCTURE_LIMIT_BYTES - 3} bytes too early", 1),
    ],
)
async def test_hostile_reply_is_bounded_in_bytes_and_time(
    tmp_path: Path,
    autojump_clock: MockClock,
    serve: Callable[[trio.SocketStream], object],
    reason: str,
    within_s: float,
) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        stage.directories[0].serve_reply = serve  # type: ignore[assignment]
        async with stage.client() as farm:
            began_s = trio.current_time()
            tracemalloc.start()
            try:
                with pytest.raises(NoLeafError, match=reason):
                    await farm.open_stream()
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert trio.current_time() - began_s < within_s
            # The bridge and the directory run in this process too, and store a part of the ten megabytes.
            assert peak < 4 * MEBIBYTE


async def test_first_query_is_not_reported_as_failed(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        stage.directories[0].serve_reply = slow_bytes
        async with stage.client() as farm:
            await until(lambda: farm.status().sessions > 0)
            problem = farm.status().problem
    assert problem == "no structure is known; the client queries the directories for the present one: wait"


@pytest.mark.parametrize("status", [each for each in ReplyStatus if each is not ReplyStatus.STRUCTURE])
async def test_refusing_directory_is_reported(tmp_path: Path, autojump_clock: MockClock, status: ReplyStatus) -> None:
    texts = {
        ReplyStatus.UNKNOWN_ADDRESS: "get a new link",
        ReplyStatus.NOTHING_PUBLISHED: "has not published",
        ReplyStatus.TOO_MANY_REQUESTS: "too many requests",
    }
    async with connect_stage(tmp_path, autojump_clock) as stage:
        stage.directories[0].reply = encode_reply(StructureReply(status))
        async with stage.client() as farm:
            with pytest.raises(NoLeafError, match=texts[status]):
                await farm.open_stream()


async def test_old_structure_does_not_replace_newer(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        old = stage.structure([20, -1, -1], published_s=int(stage.unix_s()) - 60)
        async with stage.client() as farm:
            await request(farm)
            stage.directories[0].reply = encode_reply(StructureReply(ReplyStatus.STRUCTURE, old))
            with pytest.raises(NoLeafError, match="60 s older than the newest accepted structure"):
                await farm.refresh()
            assert len(farm.status().leaves) == 3
            assert (await request(farm)).startswith("leaf-")
        monkeypatch.setattr(StructureKeeper, "_read_cache", read_cache_late)
        async with stage.client(seed=2) as restarted:
            with pytest.raises(NoLeafError, match="60 s older"):
                await restarted.refresh()
            assert len(restarted.status().leaves) == 3


async def read_cache_late(keeper: StructureKeeper) -> None:
    """Read the cache of a client with a slow disk."""
    await trio.sleep(30)
    await read_cache(keeper)


async def test_dead_directories_delay_a_reply_by_20_s_at_most(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, directories=6) as stage:
        stage.network.dead.update(each.hash for each in stage.directories[1:])
        async with stage.client() as farm:
            began_s = trio.current_time()
            assert (await request(farm)).startswith("leaf-")
            assert trio.current_time() - began_s <= 21
            assert stage.directories[0].requests == 1


async def test_newer_structure_of_second_directory_is_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, directories=2) as stage, stage.client() as farm:
        await request(farm)
        await trio.sleep(10)
        newer = stage.structure([20, 20, -1])
        stage.directories[1].reply = encode_reply(StructureReply(ReplyStatus.STRUCTURE, newer))
        for _ in range(3):
            await farm.refresh()
        assert len(farm.status().leaves) == 2


async def test_structure_is_refreshed_before_it_ends(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        for _ in range(4):
            await request(farm)
            await trio.sleep(310)
            stage.publish(20, 20, 20)
        assert 4 <= stage.directories[0].requests <= 5
        assert farm.counters[ClientCounter.STRUCTURES_ACCEPTED] >= 4


async def test_cached_structure_serves_without_directories(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path / "cache", autojump_clock) as stage:
        async with stage.client() as farm:
            await request(farm)
        (file,) = written_files(tmp_path / "cache")
        assert file.name == f"{stage.link.address.removesuffix('.b32.i2p')}.meta-ls2"
        assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        stage.directories[0].reply = encode_reply(StructureReply(ReplyStatus.NOTHING_PUBLISHED))
        async with stage.client() as farm:
            assert (await request(farm)).startswith("leaf-")
            await trio.sleep(LIFE_S)
            with pytest.raises(NoLeafError, match=r"is 1[56]m\d\ds old and ended .* ago, and none of 1 directories"):
                await farm.open_stream()
            assert (farm.status().structure_ends_in_s or 0) <= 0
            await trio.sleep(1)
            stage.publish(20, 20, 20)
            await until(lambda: farm.status().ready, 120)
            assert (await request(farm)).startswith("leaf-")


async def test_ended_structure_omits_failure_before_last_success(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        stage.directories[0].reply = encode_reply(StructureReply(ReplyStatus.NOTHING_PUBLISHED))
        async with stage.client() as farm:
            with pytest.raises(NoLeafError, match="has not published"):
                await farm.wait_ready()
            stage.publish(20, 20, 20)
            await farm.refresh()
            stage.start_s += LIFE_S  # The machine was suspended, so no query has failed since.
            problem = farm.status().problem or ""
    assert problem.endswith("ago; the client queries the directories for the present one: wait")


async def test_newer_structure_of_other_client_stays_in_cache(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        await farm.wait_ready()
        (file,) = written_files(tmp_path)
        newest = stage.structure([20, 20, 20], published_s=int(stage.unix_s()) + 500)
        file.write_bytes(newest)
        await trio.sleep(30)
        stage.publish(20, 20, 20)
        await farm.refresh()
        assert farm.counters[ClientCounter.STRUCTURES_ACCEPTED] == 2
        assert file.read_bytes() == newest


async def test_accepted_structure_is_cached_despite_end_of_query(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        await farm.wait_ready()
        (file,) = written_files(tmp_path)
        newer = stage.structure([20, 20, 20], published_s=int(stage.unix_s()) + 500)
        with trio.CancelScope() as scope:
            scope.cancel()
            await farm._keeper._judge(newer)
        assert file.read_bytes() == newer


def test_directory_in_place_of_cache_leaks_no_descriptor(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(OSError, match="not a regular file"):
            _read_file(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


@pytest.mark.parametrize("kind", ["rubbish", "other-address", "fifo", "directory", "link", "large"])
async def test_damaged_cache_is_not_used(tmp_path: Path, autojump_clock: MockClock, kind: str) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage:
        path = tmp_path / f"{stage.link.address.removesuffix('.b32.i2p')}.meta-ls2"
        match kind:
            case "fifo":
                os.mkfifo(path)
            case "directory":
                path.mkdir()
            case "link":
                path.symlink_to("/dev/zero")
            case _:
                content = {"rubbish": b"x", "other-address": of_other_address(stage), "large": bytes(5 * MEBIBYTE)}
                path.write_bytes(content[kind])
        async with stage.client() as farm:
            assert (await request(farm)).startswith("leaf-")
            assert farm.counters[ClientCounter.CACHE_FAILURES] >= 1


async def test_cache_that_cannot_be_written_is_reported(tmp_path: Path, autojump_clock: MockClock) -> None:
    (tmp_path / "cache").write_text("a file")
    async with connect_stage(tmp_path / "cache", autojump_clock) as stage, stage.client() as farm:
        assert (await request(farm)).startswith("leaf-")
        assert f"{tmp_path}/cache" in (farm.status().last_error or "")


async def test_failed_leaf_is_withdrawn_without_another_failure(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with connect_stage(tmp_path, autojump_clock, leaves=2) as stage, stage.client() as farm:
        stage.publish(10, 100)
        await farm.wait_ready()
        stage.leaves[0].is_silent = True
        with pytest.raises(LeafSilentError):
            await request(farm)
        await trio.sleep(7)  # The query after the failure returns the old list.
        stage.publish(-1, 100)
        await until(lambda: len(farm.status().leaves) == 1, 20)


async def test_failures_of_leaves_query_directories_at_most_every_5_s(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    async with connect_stage(tmp_path, autojump_clock) as stage, stage.client() as farm:
        await farm.wait_ready()
        for leaf in stage.leaves:
            leaf.closes = True
        for _ in range(25):
            async with await farm.open_stream() as stream:
                await stream.receive_some()
            await trio.sleep(0.4)
        assert stage.directories[0].requests <= 5


def test_cache_is_in_the_cache_directory_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/me")
    assert default_cache_dir() == Path("/var/cache/me/garlicfarm")
    for unset in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", unset)
        monkeypatch.setenv("HOME", "/home/me")
        assert default_cache_dir() == Path("/home/me/.cache/garlicfarm")
    monkeypatch.setenv("HOME", "relative")
    assert default_cache_dir() == Path(pwd.getpwuid(os.getuid()).pw_dir) / ".cache/garlicfarm"
