"""Files with a line for each client: read at the start, and again while the node runs.

    read_lines   ──▶ the lines of a file that are not comments, each with its position for error texts
    ListedFile   ──▶ watch: checks the file every 5 s, and reads it if it has changed

So clients are listed or removed without a restart. If the file cannot be read, the node keeps the clients of the last
successful reading, and an alarm reports it. So a mistake of an operator in the file does not exclude all clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Generic

import trio

from bridge.api.alarms import AlarmType
from bridge.node.events.alarms import Alarms
from bridge.node.security.key_files import ChangedFiles, Content, KeyFileError, read_private_file
from consensus import sleep_to_tick

LOOK_EVERY_S: Final = 5.0
LINES_LIMIT: Final = 1_024


class ListedFile(ABC, Generic[Content]):
    """The clients of one or several files. A subclass keeps them in `_take`."""

    def __init__(self, read: Callable[[], Content], paths: Iterable[Path], alarm: AlarmType, plural: str) -> None:
        """Set the reader of the files at `paths`; `plural` names the clients in the alarm."""
        self._reader = ChangedFiles(read, *paths)
        self._taken: Content | None = None
        self._alarm = alarm
        self._plural = plural

    @abstractmethod
    def _take(self, content: Content) -> None:
        """Keep the clients that were read."""

    async def watch(self, alarms: Alarms) -> None:
        """Use a changed file, until canceled."""
        while True:
            await sleep_to_tick(LOOK_EVERY_S)
            await self.reload(alarms)

    async def reload(self, alarms: Alarms) -> None:
        """Use the present content of the file, if it is valid."""
        try:
            content = await trio.to_thread.run_sync(self._reader.read)
        except KeyFileError as error:
            alarms.set(self._alarm, f"{error}; the {self._plural} that were read before stay in use")
            return
        if content is not self._taken:
            self._taken = content
            self._take(content)
        alarms.clear(self._alarm)


def read_lines(path: Path, limit_bytes: int, plural: str) -> list[tuple[str, str]]:
    """Return the place and the text of each line that is neither empty nor a comment; raise KeyFileError."""
    lines = read_private_file(path, limit_bytes).splitlines()
    found = [
        (f"{path}, line {number}", line)
        for number, line in enumerate(lines, start=1)
        if line.strip() and not line.lstrip().startswith("#")
    ]
    if len(found) > LINES_LIMIT:
        raise KeyFileError(f"{path} lists {len(found)} {plural}, at most {LINES_LIMIT} are read")
    return found
