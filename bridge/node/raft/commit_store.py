"""A file with a lower bound of the commit index, for readers of a stopped node's directory.

Raft does not store its commit index: a server receives it again from its leader. A reader of a stopped node's directory
cannot query a leader, and the newest entries of a log may be uncommitted. So the node writes the index of its last
applied entry periodically and when it stops.

The index in the file is never above the commit index, because committed entries stay committed. An outdated file only
hides the newest entries from its reader. So the file and the log may be written in any order, and a slow write may be
abandoned. The write runs in a thread, because its two syncs wait for the disk.
"""

import json
from collections.abc import Callable
from pathlib import Path

import trio

from consensus import MAX_NUMBER, sleep_to_tick
from consensus.storage import replace_file

FILE_NAME = "committed.json"
NOTE_PERIOD_SECONDS = 30.0
END_SECONDS = 1.0
"""The longest time that a stopping node waits for its last write of the file."""


def write_commit_index(state_dir: Path, index: int) -> None:
    """Store that entries up to `index` are committed. Raise OSError, or ValueError for an index out of range."""
    if not 0 <= index <= MAX_NUMBER:
        raise ValueError(f"no entry has the index {index}")
    replace_file(state_dir / FILE_NAME, json.dumps({"committed": index}).encode() + b"\n")


def read_commit_index(state_dir: Path) -> int | None:
    """Return the commit index in the directory's file; None without a valid file."""
    try:
        found = json.loads((state_dir / FILE_NAME).read_bytes())["committed"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    return found if isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= MAX_NUMBER else None


async def keep_commit_index(state_dir: Path, applied: Callable[[], int]) -> None:
    """Write the result of `applied` every half minute and at the end, if it has risen.

    If the disk is full, an old file stays. If the disk hangs, later writes wait, and the node stops at most
    `END_SECONDS` later.
    """
    noted = 0
    try:
        while True:
            await sleep_to_tick(NOTE_PERIOD_SECONDS)
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
