"""The writer of a farm's log into a new state directory, for load tests and demonstrations.

The bytes come from the same planner that a running server uses (`consensus.storage.planner`). So readers and verifiers
of a real log can read this one, and a second description of the format is not needed. Entries become durable in groups
of thousands with one sync each.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bridge.core.formation.founding import FormationState, Founder, Founding
from bridge.node.membership.forming import FILE_NAME as FORMATION_FILE
from bridge.node.offline.stored_farm import StoredFarmError
from bridge.node.raft.commit_store import write_commit_index
from bridge.node.raft.storage_note import RAFT_DIRECTORY
from bridge.wire.membership.formation_state import encode_formation_state
from consensus import Configuration, Entry, HardState, Persist, Server, configuration_entry
from consensus.storage import OutOfSpaceError, StorageError, StorageOptions, open_directory, replace_file

GROUP_ENTRIES = 4096


class StoredFarmWriter:
    """A growing state directory; the end of its `with` block completes it. Failed writes raise StoredFarmError."""

    def __init__(self, directory: Path, founders: Sequence[bytes], log_time_base_ms: int, nonce: bytes) -> None:
        """Create the log of a farm. The promises of all founders have this time and nonce (`bridge.core.formation`)."""
        founding = Founding(tuple(Founder(each, log_time_base_ms, nonce) for each in sorted(founders)))
        node_id = founding.founders[0]
        if directory.exists() and any(directory.iterdir()):
            raise StoredFarmError(f"'{directory}' is not empty: name a directory that does not exist yet")
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(directory / FORMATION_FILE, encode_formation_state(FormationState(known=founding)))
            self._disk, recovery = open_directory(directory / RAFT_DIRECTORY, node_id, 1, StorageOptions())
        except (OSError, StorageError) as error:
            raise StoredFarmError(
                f"a log cannot be created in '{directory}': {error}; name another directory"
            ) from error
        self._directory = directory
        self.cluster_id = founding.cluster_id
        """The cluster id for the signatures of this log's entries."""
        self._storage = recovery.storage
        self._pending: list[Entry] = []
        self._group = 0

    @property
    def last_index(self) -> int:
        """The index of the last appended entry."""
        return self._storage.last.index + len(self._pending)

    def append(self, term: int, value: bytes) -> None:
        """Append one application entry."""
        self._pending.append(Entry.command(term, value))
        if len(self._pending) >= GROUP_ENTRIES:
            self._flush()

    def append_configuration(self, term: int, voters: Sequence[tuple[int, str]]) -> None:
        """Append the member set, by Raft id and endpoint."""
        servers = tuple(Server(server_id, endpoint) for server_id, endpoint in voters)
        self._pending.append(configuration_entry(term, Configuration(servers)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Make everything durable, and note it as committed, as at a clean stop. After an error, only close files."""
        try:
            if kind is None:
                self._flush()
                self._disk.perform_all(self._storage.plan_close())
                write_commit_index(self._directory, self._storage.last.index)
        except (OSError, OutOfSpaceError) as error:
            raise self._failed(error) from error
        finally:
            self._disk.close()

    def _flush(self) -> None:
        if not self._pending:
            return
        self._group += 1
        last, entries = self._storage.last, tuple(self._pending)
        hard_state = None if entries[-1].term == last.term else HardState(entries[-1].term, None)
        persist = Persist(number=self._group, hard_state=hard_state, first=last.index + 1, entries=entries)
        try:
            self._disk.perform_all(self._storage.plan((persist,)))
        except (OSError, OutOfSpaceError) as error:
            raise self._failed(error) from error
        self._storage.done()
        self._pending.clear()

    def _failed(self, error: Exception) -> StoredFarmError:
        return StoredFarmError(f"the log in '{self._directory}' cannot be written: {error}; free some space")
