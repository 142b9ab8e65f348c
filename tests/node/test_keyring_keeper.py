"""Storage of the keyring in use: one writer, the newest keyring, and callers that never wait for the disk."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event as ThreadEvent

import pytest
import trio

import gossip
from gossip.core.effects import Alarm
from gossip.core.keyring import Keyring
from gossip.node import state_files
from gossip.node.state_files import RETRY_LAST_S, KeyringKeeper, StateError, keep_keys, known_keyring
from tests.node.gossip_farm import RING, in_simulated_time
from tests.node.gossip_network import MemoryNetwork
from tests.node.test_gossip_group import HOME, seed_of, until_member

FIRST = Keyring.of(b"1" * 32)
SECOND = FIRST.install(b"2" * 32).use(b"2" * 32)
THIRD = SECOND.install(b"3" * 32).use(b"3" * 32)
NEXT_ERA = THIRD.rekeyed(b"4" * 32, 1, 1)
BOUND_S = 60
"""Limit in seconds of real time, for work that takes milliseconds."""


class Disk:
    """A disk that writes keyrings into a directory, unless it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.alarms: list[Alarm] = []
        self.stored: list[Keyring] = []
        monkeypatch.setattr(state_files, "keep_keys", self._write)

    def _write(self, directory: Path, keyring: Keyring) -> None:
        if self.is_full:
            raise StateError("the disk is full")
        keep_keys(directory, keyring)

    @asynccontextmanager
    async def keeper(self, directory: Path) -> AsyncIterator[KeyringKeeper]:
        """Run a keeper of this disk until the block ends."""
        keeper = KeyringKeeper(directory, None, self.alarms.append, self.stored.append)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keeper.run)
            yield keeper
            nursery.cancel_scope.cancel()


@in_simulated_time
async def test_keeper_stores_newer_era_after_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    assert NEXT_ERA.clock < THIRD.clock, "the clock of an era restarts"
    async with disk.keeper(tmp_path) as keeper:
        disk.is_full = True
        keeper.keep(THIRD)
        await keeper.settle(1)
        disk.is_full = False
        keeper.keep(NEXT_ERA)
        await trio.sleep(RETRY_LAST_S)
        assert known_keyring(tmp_path, FIRST.label) == NEXT_ERA
        assert disk.stored == [NEXT_ERA]
        assert [alarm.over for alarm in disk.alarms] == [False, True]


@in_simulated_time
async def test_keeper_ignores_older_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    async with disk.keeper(tmp_path) as keeper:
        keeper.keep(NEXT_ERA)
        keeper.keep(THIRD)
        await keeper.settle(1)
        assert known_keyring(tmp_path, FIRST.label) == NEXT_ERA


@in_simulated_time
async def test_failing_keeper_keeps_its_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = Disk(monkeypatch)
    async with disk.keeper(tmp_path) as keeper:
        disk.is_full = True
        for keyring in (SECOND, THIRD):
            keeper.keep(keyring)
            await trio.sleep(RETRY_LAST_S)
        assert [alarm.over for alarm in disk.alarms] == [False]
        assert disk.stored == []


@in_simulated_time
async def test_ending_keeper_stores_last_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with Disk(monkeypatch).keeper(tmp_path) as keeper:
        await trio.lowlevel.checkpoint()
        keeper.keep(SECOND)
    assert known_keyring(tmp_path, FIRST.label) == SECOND


class SlowDisk:
    """A disk whose first write hangs until the test releases it."""

    def __init__(self) -> None:
        self.began, self.released, self.writes = ThreadEvent(), ThreadEvent(), 0

    def write(self, directory: Path, keyring: Keyring) -> None:
        """Write durably after the release."""
        self.writes += 1
        self.began.set()
        if not self.released.wait(BOUND_S):
            raise StateError("the test did not release the disk")
        keep_keys(directory, keyring)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDisk]:
    disk = SlowDisk()
    monkeypatch.setattr(state_files, "keep_keys", disk.write)
    yield disk
    disk.released.set()


async def test_keeper_stores_newest_keyring_after_slow_write(
    tmp_path: Path, slow_disk: SlowDisk, nursery: trio.Nursery
) -> None:
    stored: list[Keyring] = []
    keeper = KeyringKeeper(tmp_path, None, lambda _: None, stored.append)
    nursery.start_soon(keeper.run)
    keeper.keep(SECOND)
    await trio.to_thread.run_sync(slow_disk.began.wait, BOUND_S)
    keeper.keep(THIRD)
    assert slow_disk.writes == 1, "one writer"
    slow_disk.released.set()
    await keeper.settle(BOUND_S)
    assert known_keyring(tmp_path, FIRST.label) == THIRD
    assert stored == [SECOND, THIRD]


async def test_group_with_hung_disk_exchanges_keys(tmp_path: Path, slow_disk: SlowDisk) -> None:
    network = MemoryNetwork()
    with trio.fail_after(BOUND_S):
        async with (
            gossip.open_group(HOME, key=RING, state_directory=tmp_path, network=network) as alice,
            gossip.open_group(HOME, key=RING, seeds=seed_of(alice), network=network) as boris,
        ):
            await until_member(alice, boris)
            name = await gossip.KeyManager(boris).install()
            await trio.to_thread.run_sync(slow_disk.began.wait, BOUND_S)
            listing = await gossip.KeyManager(boris).list()
            assert listing.is_everywhere, "alice replies with the new keys"
            assert listing.unstored == (alice.node_id,)
            with pytest.raises(gossip.KeyringError, match="and stored"):
                await gossip.KeyManager(boris).use(name)
            slow_disk.released.set()
