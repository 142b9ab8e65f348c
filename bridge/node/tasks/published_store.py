"""The timestamp, in seconds, of this node's last structure (Meta LeaseSet2) for each master, stored on disk.

Without a quorum, a publisher publishes structures that are not in the log. Later its reports contain the timestamp of
the last structure, and the farm commits only later timestamps. If a restart lost the timestamp, the farm could commit
an earlier one, and routers would keep the old structure until it expires. So the node writes this file after each
hand-over. Without the file, or with an old file, the next timestamp depends only on the clock.
"""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec
import trio

from consensus.storage import replace_file

FILE_NAME = "published.json"
FILE_LIMIT_BYTES = 64 * 1024
MASTERS_MAX = 64

SECOND_LIMIT = 2**32
_Second = Annotated[int, msgspec.Meta(ge=0, lt=SECOND_LIMIT)]


class _PublishedFile(msgspec.Struct):
    seconds: dict[str, _Second]


class PublishedStore:
    """The file and its content. Masters are named by the hexadecimal hash of their destination.

    Without a directory the content is lost at the end of the process.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._path = None if state_dir is None else state_dir / FILE_NAME
        self._seconds = self._read()
        self._one_writer = trio.Lock()

    def second(self, master_hash: bytes) -> int:
        """Return the last stored timestamp, in seconds; 0 without one."""
        return self._seconds.get(master_hash.hex(), 0)

    async def note(self, master_hash: bytes, second: int) -> None:
        """Store the timestamp of a structure after its hand-over. On a full disk the older timestamp stays in the file.

        A timestamp out of range is not stored, because it would make the file unreadable for all masters.
        """
        if not 0 <= second < SECOND_LIMIT:
            await trio.lowlevel.checkpoint()
            return
        others = {name: known for name, known in self._seconds.items() if name != master_hash.hex()}
        while len(others) >= MASTERS_MAX:
            del others[next(iter(others))]
        self._seconds = {**others, master_hash.hex(): second}
        if self._path is None:
            return
        # The tasks of several masters call this, one after another, so that older content does not replace newer
        # content. If the node ends while a task waits for its turn, the shield lets it write: the router has the
        # structure already.
        with suppress(OSError), trio.CancelScope(shield=True):
            async with self._one_writer:
                content = msgspec.json.encode(_PublishedFile(self._seconds))
                await trio.to_thread.run_sync(replace_file, self._path, content)

    def _read(self) -> dict[str, int]:
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=_PublishedFile).seconds
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
