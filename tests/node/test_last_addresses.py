"""The file with the last addresses of servers: restarts, changes and damage."""

import errno
import json
import os
from collections.abc import Callable, Collection
from pathlib import Path

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from bridge.node.membership.last_addresses import FILE_NAME, RETRY_S, LastAddresses
from bridge.node.membership.member_directory import MemberDirectory
from bridge.wire.membership.metadata import encode_metadata
from consensus.protocols.garlic_farm import PeerAddress
from gossip import Member, Status
from tests.node.test_member_directory import FINGERPRINT, METADATA, OWN, B, C, member

ADDRESS = PeerAddress("10.0.0.2", 7669, FINGERPRINT)


def addresses_of(state_dir: Path, *members: Member) -> LastAddresses:
    directory = MemberDirectory(OWN, "own-name", lambda: members)
    directory.refresh()
    return LastAddresses(state_dir, directory)


def stored_servers(state_dir: Path) -> set[bytes]:
    stored = addresses_of(state_dir)
    return {each for each in (B, C) if stored.address_of(each) is not None}


async def store(addresses: LastAddresses, state_dir: Path, servers: Collection[bytes]) -> None:
    """Follow until the file has the addresses of exactly these servers."""
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(addresses.follow, lambda: servers)
            while stored_servers(state_dir) != servers:
                await trio.lowlevel.checkpoint()
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fingerprint", [FINGERPRINT, None])
async def test_stored_address_is_used_after_restart(tmp_path: Path, fingerprint: bytes | None) -> None:
    known = member(B, encode_metadata(replace(METADATA, fingerprint=fingerprint)))
    await store(addresses_of(tmp_path, known), tmp_path, {B})
    assert addresses_of(tmp_path).address_of(B) == PeerAddress(ADDRESS.host, ADDRESS.port, fingerprint)


@pytest.mark.parametrize("status", [Status.ALIVE, Status.DEAD])
async def test_address_of_gossip_replaces_stored_address(tmp_path: Path, status: Status) -> None:
    former = encode_metadata(replace(METADATA, endpoint="tcp://10.0.0.9:7669"))
    await store(addresses_of(tmp_path, member(B, former)), tmp_path, {B})
    assert addresses_of(tmp_path, member(B, encode_metadata(METADATA), status)).address_of(B) == ADDRESS


async def test_address_of_removed_server_is_deleted(tmp_path: Path) -> None:
    known = [member(each, encode_metadata(METADATA)) for each in (B, C)]
    await store(addresses_of(tmp_path, *known), tmp_path, {B, C})
    await store(addresses_of(tmp_path, *known), tmp_path, {C})
    assert addresses_of(tmp_path).address_of(B) is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"[]",
        json.dumps({B.hex(): {"host": "10.0.0.2", "port": 0, "fingerprint": None}}).encode(),
        json.dumps({B.hex(): {"host": "10.0.0.2", "port": 7669, "fingerprint": "AAAA"}}).encode(),
        json.dumps({"b": {"host": "10.0.0.2", "port": 7669, "fingerprint": None}}).encode(),
    ],
)
async def test_damaged_file_is_ignored_and_replaced(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    assert addresses_of(tmp_path).address_of(B) is None
    await store(addresses_of(tmp_path, member(B, encode_metadata(METADATA))), tmp_path, {B})


async def test_failed_write_is_repeated_after_change_or_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    known, attempts = member(B, encode_metadata(METADATA)), []
    directory = MemberDirectory(OWN, "own-name", lambda: [known])
    directory.refresh()

    async def write(replace_file: Callable[[Path, bytes], None], path: Path, content: bytes) -> None:
        attempts.append(content)
        if len(attempts) <= 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace_file(path, content)

    monkeypatch.setattr(trio.to_thread, "run_sync", write)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(LastAddresses(tmp_path, directory).follow, lambda: {B})
        await wait_all_tasks_blocked()
        assert len(attempts) == 1
        directory.refresh()
        await wait_all_tasks_blocked()
        assert len(attempts) == 2
        await trio.sleep(2 * RETRY_S)
        nursery.cancel_scope.cancel()
    assert (len(attempts), stored_servers(tmp_path)) == (3, {B})
