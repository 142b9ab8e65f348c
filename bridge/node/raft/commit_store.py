"""How far the log is known to be committed, noted beside it for readers of a stopped node's directory.

Raft keeps no commit index on disk, and rightly: a server learns it anew from its leader. But a reader of a stopped
node's directory cannot ask a leader, and the newest entries in a log may never have been committed. So the node notes,
now and then and when it stops, how far it had applied. A note that is behind only hides entries; one that is ahead
cannot exist, because what was committed stays so. Hence it needs no order with the log's own writes.
"""

import json
from collections.abc import Callable
from pathlib import Path

import trio

from consensus import MAX_NUMBER
from consensus.storage import replace_file

FILE_NAME = "committed.json"
NOTE_PERIOD_SECONDS = 30.0


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
    """Notes what `applied` tells, every half minute and at the end. A full disk only leaves an older note."""
    noted = 0
    try:
        while True:
            await trio.sleep(NOTE_PERIOD_SECONDS)
            noted = _note(state_dir, noted, applied())
    finally:
        _note(state_dir, noted, applied())


def _note(state_dir: Path, noted: int, index: int) -> int:
    if index > noted:
        try:
            write_commit_index(state_dir, index)
        except OSError:
            return noted
    return index
