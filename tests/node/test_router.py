"""The file router: real probes of local services, and published structures that are complete on disk or absent."""

import errno
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from bridge.core.log.records import ConditionStatus, LeafFault
from bridge.node.router.host import HostSampler, LoopLag
from bridge.node.router.router import NO_ROUTER, FileRouter, Router, RouterError, ServedLeaf
from bridge.wire.i2p.destination_keys import MasterKey, new_master_key
from bridge.wire.i2p.meta_lease_set import MetaLease, build, decode, encode, sign, verify
from tests.destinations import new_demo_leaf

NOW_S = 1_767_225_600
LEAF = new_demo_leaf()


def file_router(directory: Path, *leaves: ServedLeaf, demo: bool = True) -> FileRouter:
    return FileRouter(
        directory,
        leaves,
        HostSampler(),
        LoopLag(),
        demo=demo,
        clock=lambda: NOW_S * 1000,
    )


def structure(master: MasterKey, published_s: int = NOW_S) -> bytes:
    leases = (MetaLease(LEAF.hash, cost=0, ends_s=published_s + 900),)
    return encode(master.as_signing_key().sign(published_s, leases))


def unpublished(master: MasterKey) -> bytes:
    """Return a structure signed by the right key, and marked unpublished."""
    leases = (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),)
    return encode(sign(build(master.destination, NOW_S, leases, unpublished=True), master.private_key))


def contents(directory: Path) -> list[bytes]:
    return [path.read_bytes() for path in directory.iterdir()]


@asynccontextmanager
async def local_service(port: int = 0) -> AsyncIterator[int]:
    """Run a service that accepts connections; yield its port."""
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, trio.SocketStream.aclose, port, host="127.0.0.1")
        listeners: list[trio.SocketListener] = await nursery.start(serve)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


async def test_published_structure_is_stored_under_master_address(tmp_path: Path) -> None:
    master = new_master_key(demo=True)
    router: Router = file_router(tmp_path / "published")
    await router.publish_meta_lease_set(master.destination.hash, structure(master))
    [path] = (tmp_path / "published").iterdir()
    assert path.name == master.destination.address.replace(".b32.i2p", ".meta-ls2")
    assert path.read_bytes() == structure(master)
    assert verify(decode(path.read_bytes())).holds


async def test_structure_is_replaced_by_later_one_only(tmp_path: Path) -> None:
    master, router = new_master_key(), file_router(tmp_path)
    await router.publish_meta_lease_set(master.destination.hash, structure(master, NOW_S))
    await router.publish_meta_lease_set(master.destination.hash, structure(master, NOW_S + 1))
    replaced = f"published at second {NOW_S + 1}; a structure of second {NOW_S} does not replace"
    with pytest.raises(RouterError, match=replaced):
        await router.publish_meta_lease_set(master.destination.hash, structure(master, NOW_S))
    assert router.path_of(master.destination.hash).read_bytes() == structure(master, NOW_S + 1)


async def test_repeated_structure_is_accepted(tmp_path: Path) -> None:
    master, router = new_master_key(), file_router(tmp_path)
    for _ in range(2):
        await router.publish_meta_lease_set(master.destination.hash, structure(master))
    assert router.path_of(master.destination.hash).read_bytes() == structure(master)


async def test_invalid_file_is_replaced(tmp_path: Path) -> None:
    master, router = new_master_key(), file_router(tmp_path)
    router.path_of(master.destination.hash).write_bytes(b"half a structu")
    await router.publish_meta_lease_set(master.destination.hash, structure(master))
    assert router.path_of(master.destination.hash).read_bytes() == structure(master)


async def test_structure_refused_by_router_is_not_written(tmp_path: Path) -> None:
    master, other, router = new_master_key(), new_master_key(), file_router(tmp_path)
    good = structure(master)
    for offered, reason in (
        (b"rubbish", "not a Meta LeaseSet2"),
        (structure(other), "is for .*b32.i2p, not for"),
        (good[:-1] + bytes([good[-1] ^ 1]), "signature is invalid"),
        (unpublished(master), "marked unpublished"),
    ):
        with pytest.raises(RouterError, match=reason):
            await router.publish_meta_lease_set(master.destination.hash, offered)
    assert contents(tmp_path) == []


async def test_failed_write_keeps_old_structure_without_leftovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    master, router = new_master_key(), file_router(tmp_path)
    await router.publish_meta_lease_set(master.destination.hash, structure(master))

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", descriptor)

    monkeypatch.setattr("consensus.storage.durable_file.os.fsync", full_disk)
    with pytest.raises(RouterError, match="No space left on device; free space"):
        await router.publish_meta_lease_set(master.destination.hash, structure(master, NOW_S + 1))
    assert contents(tmp_path) == [structure(master)]


async def test_stopping_removes_own_structure(tmp_path: Path) -> None:
    master, router = new_master_key(), file_router(tmp_path)
    await router.publish_meta_lease_set(master.destination.hash, structure(master))
    await router.stop_publishing_meta_lease_set(master.destination.hash)
    assert contents(tmp_path) == []
    await router.stop_publishing_meta_lease_set(master.destination.hash)


async def test_stopping_keeps_structure_of_later_publisher(tmp_path: Path) -> None:
    master, deposed, successor = new_master_key(), file_router(tmp_path), file_router(tmp_path)
    await deposed.publish_meta_lease_set(master.destination.hash, structure(master))
    await successor.publish_meta_lease_set(master.destination.hash, structure(master, NOW_S + 1))
    await deposed.stop_publishing_meta_lease_set(master.destination.hash)
    assert successor.path_of(master.destination.hash).read_bytes() == structure(master, NOW_S + 1)


async def test_leaf_is_healthy_while_service_replies(tmp_path: Path) -> None:
    async with local_service() as port:
        router = file_router(tmp_path, ServedLeaf(LEAF, ("127.0.0.1", port)))
        assert await router.local_leaf_hashes(new_master_key().destination.hash) == (LEAF.hash,)
        status = await router.local_leaf_status(LEAF.hash)
        assert status.healthy
        assert status.destination == LEAF.base64
        assert status.uptime_ms == 0
    stopped = await router.local_leaf_status(LEAF.hash)
    assert not stopped.healthy
    assert stopped.uptime_ms is None


async def test_uptime_starts_when_leaf_becomes_healthy(tmp_path: Path, autojump_clock: MockClock) -> None:
    router = file_router(tmp_path, ServedLeaf(LEAF))
    await router.local_leaf_status(LEAF.hash)
    autojump_clock.jump(7.5)
    assert (await router.local_leaf_status(LEAF.hash)).uptime_ms == 7_500


async def test_probe_of_unresponsive_service_times_out(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def black_hole(host: str, port: int) -> trio.SocketStream:
        await trio.sleep_forever()
        raise AssertionError((host, port))

    monkeypatch.setattr("bridge.node.router.router.trio.open_tcp_stream", black_hole)
    router = file_router(tmp_path, ServedLeaf(LEAF, ("127.0.0.1", 9)))
    before_s = trio.current_time()
    assert not (await router.local_leaf_status(LEAF.hash)).healthy
    assert trio.current_time() - before_s == pytest.approx(2.0)


async def test_condition_keeps_last_error_and_counts_failures(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with local_service() as port:
        router = file_router(tmp_path, ServedLeaf(LEAF, ("127.0.0.1", port)))

    async def service() -> ConditionStatus:
        conditions = {each.condition: each for each in (await router.local_leaf_status(LEAF.hash)).conditions}
        assert conditions[LeafFault.ROUTER].failures == 0
        assert LeafFault.LEASE_SET not in conditions, "a demonstration does not look it up"
        return conditions[LeafFault.SERVICE]

    assert await service() == ConditionStatus(LeafFault.SERVICE, 0, 1, "Connection refused")
    autojump_clock.jump(5)
    assert await service() == ConditionStatus(LeafFault.SERVICE, 5_000, 1, "Connection refused")
    async with local_service(port):
        assert await service() == ConditionStatus(LeafFault.SERVICE, 0, 1, "Connection refused")
        autojump_clock.jump(7)
        assert (await service()).age_ms == 7_000
    assert await service() == ConditionStatus(LeafFault.SERVICE, 0, 2, "Connection refused")


async def test_leaf_without_probe_lacks_service_condition(tmp_path: Path) -> None:
    status = await file_router(tmp_path, ServedLeaf(LEAF), demo=False).local_leaf_status(LEAF.hash)
    assert status.conditions == (ConditionStatus(LeafFault.ROUTER, 0, 1, NO_ROUTER),)


async def test_probe_of_resetting_service_reports_unhealthy_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a reset, the kernel drops the peer's address: getpeername raises ENOTCONN."""

    def reset(_socket: object) -> None:
        raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))

    async with local_service() as port:
        monkeypatch.setattr("trio._socket._SocketType.getpeername", reset)
        router = file_router(tmp_path, ServedLeaf(LEAF, ("127.0.0.1", port)))
        assert not (await router.local_leaf_status(LEAF.hash)).healthy


async def test_leaf_without_router_is_healthy_only_in_demonstration(tmp_path: Path) -> None:
    async with local_service() as port:
        probed, unprobed = ServedLeaf(LEAF, ("127.0.0.1", port)), ServedLeaf(new_demo_leaf())
        router = file_router(tmp_path, probed, unprobed, demo=False)
        assert not (await router.local_router_status()).attached
        for leaf in (probed, unprobed):
            assert not (await router.local_leaf_status(leaf.destination.hash)).healthy


async def test_demonstration_leaf_is_healthy_without_service(tmp_path: Path) -> None:
    router = file_router(tmp_path, ServedLeaf(LEAF))
    assert (await router.local_router_status()).attached
    assert (await router.local_leaf_status(LEAF.hash)).healthy


async def test_status_of_unknown_leaf_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RouterError, match="is not a leaf of this node"):
        await file_router(tmp_path).local_leaf_status(LEAF.hash)


async def test_file_router_lacks_remote_measurements(tmp_path: Path) -> None:
    assert await file_router(tmp_path).remote_measured_status(LEAF.hash) is None


async def test_router_status_has_host_figures_only(tmp_path: Path) -> None:
    status = await file_router(tmp_path).local_router_status()
    assert status.uptime_ms is not None
    assert status.uptime_ms > 0
    assert status.memory_percent is not None
    assert 0 < status.memory_percent < 100
    assert status.job_lag_ms is None
    assert status.exploratory_tunnels is None
    assert status.participating_tunnels is None
    assert status.configured_bandwidth_bytes_per_s is None


@pytest.mark.parametrize(
    ("published_s", "end_s", "reason"),
    [
        (NOW_S - 601, NOW_S + 900, "more than 10 minutes ago"),
        (NOW_S + 61, NOW_S + 900, "published 61 s from now"),
        (NOW_S + 60, NOW_S + 60 + 65_535, None),
        (NOW_S + 62, NOW_S + 62 + 65_535, "its latest end is too far in the future"),
        (NOW_S - 600, NOW_S + 900, None),
    ],
)
async def test_publication_time_is_checked_like_a_router_does(
    tmp_path: Path, published_s: int, end_s: int, reason: str | None
) -> None:
    """The file router refuses a published second that a floodfill would refuse."""
    master, router = new_master_key(demo=True), file_router(tmp_path)
    offered = encode(master.as_signing_key().sign(published_s, (MetaLease(LEAF.hash, cost=0, ends_s=end_s),)))
    if reason is None:
        await router.publish_meta_lease_set(master.destination.hash, offered)
        assert contents(tmp_path) == [offered]
        return
    with pytest.raises(RouterError, match=reason) as refused:
        await router.publish_meta_lease_set(master.destination.hash, offered)
    assert "correct it (NTP)" in str(refused.value)
    assert contents(tmp_path) == []


async def test_revocations_and_upper_flag_bits_are_refused(tmp_path: Path) -> None:
    master, router = new_master_key(demo=True), file_router(tmp_path)
    plain = build(master.destination, NOW_S, (MetaLease(LEAF.hash, cost=0, ends_s=NOW_S + 900),))
    for unverifiable in (
        replace(plain, revocations=(bytes(32),)),
        replace(plain, leases=(replace(plain.leases[0], flags=0x0103),)),
    ):
        with pytest.raises(RouterError, match="a Java router cannot verify it"):
            await router.publish_meta_lease_set(master.destination.hash, encode(sign(unverifiable, master.private_key)))
    assert contents(tmp_path) == []
