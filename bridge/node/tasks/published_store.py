"""The second that this node published last, of each master, remembered over restarts.

A structure that was published without a quorum stands in no log. Its publisher reports the second, so that what the
farm commits next is later; were that forgotten by a restart, clients could go on with the older list until its end. The
file is written after each hand-over: one that is lost or behind only makes the next second depend on the clock alone.
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
    """The file, and what it says. Masters are named by the hexadecimal hash of their destination.

    Without a directory it remembers as long as the process lives.
    """

    def __init__(self, state_dir: Path | None) -> None:
        self._path = None if state_dir is None else state_dir / FILE_NAME
        self._seconds = self._read()

    def second(self, master_hash: bytes) -> int:
        """The last second that was noted; 0 if none was."""
        return self._seconds.get(master_hash.hex(), 0)

    async def note(self, master_hash: bytes, second: int) -> None:
        """A structure of this second was handed over. Without space on the disk the older note stays.

        A second that no structure can have is not noted: with it, no second of any master would be read again.
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
        with suppress(OSError):
            await trio.to_thread.run_sync(replace_file, self._path, msgspec.json.encode(_PublishedFile(self._seconds)))

    def _read(self) -> dict[str, int]:
        if self._path is None:
            return {}
        try:
            with self._path.open("rb") as file:
                return msgspec.json.decode(file.read(FILE_LIMIT_BYTES), type=_PublishedFile).seconds
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return {}
