"""The note of a node that its Raft storage exists, and for which Raft id it was created.

A server is its storage: its votes and the entries that it acknowledged. The note is a file next to the formation file.
A founder whose storage is lost does not start again with an empty one: under the same Raft id it would vote a second
time in a term, and acknowledged entries would be lost. A storage that holds an entry or a vote serves no second Raft
id, because its one vote and its one copy would count as two.
"""

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
                f"{self.storage} is gone, and with it what this server voted and acknowledged: as the same server it"
                " could undo both. Put the directory back as it was, or give this node a new state directory and"
                " another name: it then joins as a new node",
            )

    def record(self, server_id: int, recovery: Recovery) -> None:
        """Write that the storage is of `server_id`; raises `StorageError` if it is of another server."""
        noted = self._noted_id()
        if noted == server_id:
            return
        if noted is not None and (recovery.report.last.index > 0 or recovery.hard_state.voted_for is not None):
            raise StorageError(
                f"the Raft storage of this node was made as server {noted}, and this node is server {server_id} now:"
                " one storage never serves two, since its vote and its copy of the log would count twice. Give this"
                " node a new state directory and another name: it then joins as a new node",
            )
        # A recovered storage has a note without an id: its server is a founder, and keeps its id permanently.
        replace_file(self._file, STORAGE_NOTE_TEXT + b"Raft id %d\n" % server_id)

    def _noted_id(self) -> int | None:
        """Return the Raft id in the note; None if there is no note, or no id in it."""
        try:
            with self._file.open("rb") as file:
                found = _NOTED_ID.search(file.read(_LIMIT_BYTES))
        except FileNotFoundError:
            return None
        return None if found is None else int(found[1])
