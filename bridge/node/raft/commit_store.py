"""How far the log is known to be committed, noted beside it for readers of a stopped node's directory.

Raft keeps no commit index on disk, and rightly: a server learns it anew from its leader. But a reader of a stopped
node's directory cannot ask a leader, and the newest entries in a log may never have been committed. So the node notes,
now and then and when it stops, how far it had applied. A note that is behind only hides entries; one that is ahead
cannot exist, because what was committed stays so. Hence it needs no order with the log's own writes, and its writer may
be left behind: it is a thread, for the two syncs of a note are as slow as the disk.
"""

import json
from collections.abc import Callable
from pathlib import Path

import trio

from consensus import MAX_NUMBER
from consensus.storage import replace_file

FILE_NAME = "committed.json"
NOTE_PERIOD_SECONDS = 30.0
END_SECONDS = 1.0
"""How long the end of a node waits for its last note."""


def write_commit_index(state_dir: Path, index: int) -> None:
    """Notes that entries up to `index` are committed. Raises OSError; ValueError for what the reader would refuse."""
    if not 0 <= index <= MAX_NUMBER:
        raise ValueError(f"no entry has the index {index}")
    replace_file(state_dir / FILE_NAME, json.dumps({"committed": index}).encode() + b"\n")


def read_commit_index(state_dir: Path) -> int | None:
    """The index that is noted in the directory; None if none is."""
    try:
        found = json.loads((state_dir / FILE_NAME).read_bytes())["committed"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= MAX_NUMBER else None


async def keep_commit_index(state_dir: Path, applied: Callable[[], int]) -> None:
    """Note what `applied` returns, every half minute and at the end. A full disk only leaves an older note.

    A disk that hangs delays nothing but the next note, and the end by `END_SECONDS` at most.
    """
    noted = 0
    try:
        while True:
            await trio.sleep(NOTE_PERIOD_SECONDS)
            noted = await _note(state_dir, noted, applied())
    finally:
        with trio.move_on_after(END_SECONDS, shield=True):
            await _note(state_dir, noted, applied())


async def _note(state_dir: Path, noted: int, index: int) -> int:
    if index > noted:
        try:
            await trio.to_thread.run_sync(write_commit_index, state_dir, index, abandon_on_cancel=True)
        except OSError:
            return noted
    return index
