"""A server that lost its storage never returns with the same Raft id, even if its other state remains."""

from pathlib import Path

import msgspec
import pytest

from bridge.core.formation.founding import Founder, Founding
from bridge.node.membership.admissions import FILE_NAME, AdmissionStore
from bridge.node.raft.storage_note import RAFT_DIRECTORY, STORAGE_NOTE, StorageNote
from consensus.core.effects import Persist
from consensus.core.model import Entry, HardState, ServerId
from consensus.storage.directory import open_directory
from consensus.storage.disk import StorageError
from consensus.storage.planner import StorageOptions

FOUNDER, LATER = b"a" * 8, b"b" * 8
FOUNDING = Founding((Founder(FOUNDER, 0, b"n" * 16),))


def notes_of(directory: Path, node_id: bytes, servers: dict[int, str], *, founded: bool) -> AdmissionStore:
    content = {"cluster": FOUNDING.cluster_id.hex(), "servers": servers}
    (directory / FILE_NAME).write_bytes(msgspec.json.encode(content))
    return AdmissionStore(directory, FOUNDING, node_id, founded=founded)


def opened(directory: Path, node_id: bytes, server_id: int, *, had_storage: bool = False) -> None:
    """Open the storage like a node, and close it."""
    note = StorageNote(directory)
    note.check_not_lost(had_storage=had_storage)
    disk, recovery = open_directory(note.storage, node_id, 1, StorageOptions(segment_bytes=65_536))
    try:
        note.record(server_id, recovery)
    finally:
        disk.close()


def test_admitted_node_with_empty_storage_does_not_start(tmp_path: Path) -> None:
    """The node may have voted under that id. It has lost the directory `raft` with its votes, and its storage note."""
    notes = notes_of(tmp_path, LATER, {1: FOUNDER.hex(), 2: LATER.hex()}, founded=False)
    with pytest.raises(StorageError, match="new state directory and another name"):
        opened(tmp_path, LATER, notes.own_id or 0, had_storage=notes.was_server)
    assert not (tmp_path / RAFT_DIRECTORY).exists()


@pytest.mark.parametrize("node_id", [FOUNDER, LATER], ids=["founder", "new node with a Raft id from a member"])
def test_first_start_of_server_creates_storage(tmp_path: Path, node_id: bytes) -> None:
    notes = notes_of(tmp_path, node_id, {1: FOUNDER.hex()}, founded=node_id == FOUNDER)
    opened(tmp_path, node_id, notes.own_id or 0, had_storage=notes.was_server)
    assert (tmp_path / STORAGE_NOTE).exists()


def store(directory: Path, entries: tuple[Entry, ...], voted_for: ServerId | None) -> None:
    """Store data like a server that has stopped since."""
    disk, recovery = open_directory(directory / RAFT_DIRECTORY, LATER, 1, StorageOptions(segment_bytes=65_536))
    disk.perform_all(
        recovery.storage.plan(
            [Persist(number=1, hard_state=HardState(3, voted_for), truncate_from=None, first=1, entries=entries)]
        )
    )
    recovery.storage.done()
    disk.close()


def opened_as(directory: Path, server_id: int) -> None:
    opened(directory, LATER, server_id)


@pytest.mark.parametrize(("entries", "voted_for"), [((Entry.command(3, b"{}"),), None), ((), 1)], ids=["entry", "vote"])
def test_used_storage_is_refused_for_other_raft_id(
    tmp_path: Path, entries: tuple[Entry, ...], voted_for: ServerId | None
) -> None:
    opened_as(tmp_path, 5)
    store(tmp_path, entries, voted_for)
    with pytest.raises(StorageError, match=r"server 5, and this node is server 9 now.*new state directory and another"):
        opened_as(tmp_path, 9)
    # And the refusal did not change the storage: it still belongs to server 5
    opened_as(tmp_path, 5)


def test_empty_storage_is_accepted_for_other_raft_id(tmp_path: Path) -> None:
    opened_as(tmp_path, 5)
    store(tmp_path, (), None)
    opened_as(tmp_path, 9)
    store(tmp_path, (Entry.command(3, b"{}"),), None)
    with pytest.raises(StorageError, match="server 9, and this node is server 5 now"):
        opened_as(tmp_path, 5)
