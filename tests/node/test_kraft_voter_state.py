"""`quorum-state` is a copy of the state in a voter's storage.

It is written after the storage, and again after a full disk.
"""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from threading import Event

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from consensus.core.effects import Role, RoleChanged
from consensus.protocols.kraft.operators.quorum_directory import QuorumDirectory, QuorumState, read_directory
from consensus.protocols.kraft.replica.open_voter import VoterError, open_voter
from consensus.server.status import Notice
from consensus.storage.directory import Directory
from consensus.storage.disk import DiskOperation
from tests.node.test_kraft_voter import batch, formatted, opened

pytestmark = pytest.mark.usefixtures("small_segments")


async def test_quorum_state_is_written_after_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # In the opposite order, a kill between the two writes would make the server refuse its storage as an older copy at
    # every start.
    write, perform = QuorumDirectory.write_state, Directory.perform_all
    may_store, is_written, writes = Event(), trio.Event(), list[tuple[int, bool]]()

    def write_and_note(directory: QuorumDirectory, state: QuorumState) -> None:
        writes.append((state.leader_epoch, may_store.is_set()))
        write(directory, state)
        if state.leader_epoch:
            trio.from_thread.run_sync(is_written.set)

    def perform_later(directory: Directory, operations: Sequence[DiskOperation], start: int = 0) -> None:
        may_store.wait(60)
        perform(directory, operations, start)

    # The test waits until all tasks are blocked, so no task may poll in short intervals.
    monkeypatch.setattr("consensus.protocols.kraft.replica.open_voter._STATE_WAIT_S", 1.0)
    monkeypatch.setattr(QuorumDirectory, "write_state", write_and_note)

    [settings] = formatted(tmp_path, 1, dynamic=True)
    is_candidate, leads = trio.Event(), trio.Event()

    def observe(notice: Notice) -> None:
        if isinstance(notice, RoleChanged) and notice.role is Role.CANDIDATE:
            # Given a disk that is slow when the server votes for itself
            monkeypatch.setattr(Directory, "perform_all", perform_later)
            is_candidate.set()
        if isinstance(notice, RoleChanged) and notice.role is Role.LEADER:
            leads.set()

    with trio.fail_after(60):
        async with open_voter(settings, observe=observe) as voter:
            await is_candidate.wait()
            # When only work that waits for the disk is left
            await trio.testing.wait_all_tasks_blocked(0.1)
            may_store.set()
            await leads.wait()
            await voter.server.wait_commit(1)
            await is_written.wait()
    # Then quorum-state was not written before the storage
    assert [epoch for epoch, is_stored in writes if epoch and not is_stored] == []


async def test_full_disk_delays_quorum_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`quorum-state` is a copy. It is written when the disk has space."""
    write, tries = QuorumDirectory.write_state, list[QuorumState]()
    is_written = trio.Event()

    def write_when_there_is_space(directory: QuorumDirectory, state: QuorumState) -> None:
        tries.append(state)
        if len(tries) < 4:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(directory, state)
        if state.leader_id == 1:
            trio.from_thread.run_sync(is_written.set)

    monkeypatch.setattr(QuorumDirectory, "write_state", write_when_there_is_space)
    monkeypatch.setattr("consensus.protocols.kraft.replica.open_voter._STATE_RETRY_S", 0.01)
    [settings] = formatted(tmp_path, 1, dynamic=True)
    async with opened([settings]) as quorum:
        leader = await quorum.leader()
        await leader.topic.append(batch(b"one"), None)
        await is_written.wait()
        state = read_directory(settings).read_state()
        assert state is not None
        assert (state.leader_id, state.leader_epoch) == (1, leader.server.role.term)
    assert len(tries) >= 4


def test_unwritable_state_is_named_in_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error must not name the listener, which works."""

    def fail(_directory: QuorumDirectory, _state: QuorumState) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async def run() -> None:
        [settings] = formatted(tmp_path, 1, dynamic=True)
        async with open_voter(settings):
            await trio.sleep(20)

    monkeypatch.setattr(QuorumDirectory, "write_state", fail)
    with pytest.raises(VoterError, match=r"quorum-state.*cannot be written"):
        trio.run(run)


def test_voter_with_invalid_host_raises_voter_error(tmp_path: Path) -> None:
    async def run() -> None:
        [settings] = formatted(tmp_path, 1, dynamic=True)
        first = replace(settings.listeners[0], host="a..b")
        with trio.fail_after(20):
            async with open_voter(replace(settings, listeners=(first,))):
                await trio.sleep_forever()

    with pytest.raises(VoterError, match=r"cannot listen on a\.\.b:[0-9]+: .*change listeners"):
        trio.run(run)


def test_voter_with_busy_port_raises_voter_error(tmp_path: Path) -> None:
    async def run() -> None:
        [settings] = formatted(tmp_path, 1, dynamic=True)
        first = settings.listeners[0]
        with trio.fail_after(60):
            listeners = await trio.open_tcp_listeners(first.port, host=first.host)
            try:
                async with open_voter(settings):
                    await trio.sleep_forever()
            finally:
                for each in listeners:
                    await each.aclose()

    with pytest.raises(
        VoterError, match=r"cannot listen on .*: Address already in use\. Stop the program that listens there"
    ):
        trio.run(run)
