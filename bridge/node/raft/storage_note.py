"""A note that this node has a Raft storage, with the Raft id of that storage."""

import re
from pathlib import Path

from consensus.storage import STATE_FILE, Recovery, StorageError, replace_file

RAFT_DIRECTORY = "raft"
STORAGE_NOTE = "raft-made"
STORAGE_NOTE_TEXT = (
    b"The Raft storage of this node has been made. Keep this file: without it a lost storage goes unnoticed.\n"
)
_NOTED_ID = re.compile(rb"^Raft id ([1-9][0-9]{0,9})$", re.MULTILINE)
_LIMIT_BYTES = 1024


class StorageNote:
    """The note in `state_dir`."""

    def __init__(self, state_dir: Path) -> None:
        self.storage = state_dir / RAFT_DIRECTORY
        self._file = state_dir / STORAGE_NOTE

    def check_not_lost(self, *, had_storage: bool) -> None:
        """Raise `StorageError` if the storage is missing and the note, or `had_storage`, shows that there was one."""
        if (had_storage or self._file.exists()) and not (self.storage / STATE_FILE).exists():
            raise StorageError(
                f"{self.storage} is missing, and with it this server's votes and acknowledgments: the same server"
                " could now undo both. Restore the directory, or give this node a new state directory and another"
                " name: it then joins as a new node",
            )

    def record(self, server_id: int, recovery: Recovery) -> None:
        """Write that the storage belongs to `server_id`.

        Raise `StorageError` if it belongs to another server and contains a vote or entries.
        """
        noted = self._noted_id()
        if noted == server_id:
            return
        if noted is not None and (recovery.report.last.index > 0 or recovery.hard_state.voted_for is not None):
            raise StorageError(
                f"the Raft storage of this node was created for server {noted}, and this node is server {server_id}"
                " now: a storage never serves two servers, since its vote and its log would count twice. Give"
                " this node a new state directory and another name: it then joins as a new node",
            )
        # `garlicfarm recover` writes a note without an id. Adding the id is safe, because the server of a
        # recovered storage is a founder, and keeps its id permanently.
        replace_file(self._file, STORAGE_NOTE_TEXT + b"Raft id %d\n" % server_id)

    def _noted_id(self) -> int | None:
        try:
            with self._file.open("rb") as file:
                found = _NOTED_ID.search(file.read(_LIMIT_BYTES))
        except FileNotFoundError:
            return None
        return None if found is None else int(found[1])
