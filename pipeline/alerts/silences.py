"""Silences: an operator suppresses the alerts of some servers for a limited time, such as during maintenance.

    garlicfarm pipeline silence --server 3 --for 2h --reason … ──▶ <output>/silences.json ──▶ read by the run

The silences are in a file, since only the run may write the tables. The file is replaced as a whole, under a lock (in
a bucket by a conditional write). So two concurrent commands do not lose a change, and the run reads a complete file.
Silences end automatically, by the clock of the reading machine; `add` removes them from the file.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline.alerts.outages import FailedServer
from pipeline.output.buckets import Output
from pipeline.output.documents import Document

SILENCES_FILE = "silences.json"
LOCK_FILE = ".silences.lock"
SILENCES_MAX = 1_000
REASON_MAX = 200


class SilencesError(Exception):
    """The silences file cannot be used; the text has the fault and the remedy."""


class Silence(Struct, frozen=True, forbid_unknown_fields=True):
    """A server (its Raft id or its name) without alerts until a time.

    `farm`: only in the farm with this cluster id or name; empty: in any farm.
    """

    number: int
    server: str
    until_ms: int
    reason: str = ""
    farm: str = ""

    def covers(self, server: FailedServer, now_ms: int) -> bool:
        """Return True if an alert of this server is silenced now."""
        is_of_farm = self.farm in {"", server.farm, server.farm_name}
        return now_ms < self.until_ms and is_of_farm and self.server in {str(server.server_id), server.name}


@dataclass(frozen=True, slots=True)
class Silences:
    """The silences of an output directory."""

    output: Output

    def active(self, now_ms: int) -> list[Silence]:
        """Return the silences that have not ended. Raise SilencesError."""
        return [each for each in self._all(Document(self.output / SILENCES_FILE)) if now_ms < each.until_ms]

    def add(self, servers: tuple[str, ...], until_ms: int, reason: str, farm: str, now_ms: int) -> list[Silence]:
        """Add silences of servers, and return them. Raise SilencesError."""
        with self._alone() as document:
            known = self._all(document)
            number = max((each.number for each in known), default=0)
            added = [Silence(number + place, server, until_ms, reason, farm) for place, server in enumerate(servers, 1)]
            kept = [each for each in known if now_ms < each.until_ms]
            if len(kept) + len(added) > SILENCES_MAX:
                raise SilencesError(f"there are {len(kept)} silences, and {SILENCES_MAX} at most: end some with --end")
            _write(document, [*kept, *added])
        return added

    def end(self, numbers: tuple[int, ...], now_ms: int) -> None:
        """End silences by their numbers. Raise SilencesError."""
        with self._alone() as document:
            known = self._all(document)
            missing = set(numbers) - {each.number for each in known if now_ms < each.until_ms}
            if missing:
                raise SilencesError(f"silence {', '.join(map(str, sorted(missing)))} does not exist, or has ended")
            # The file contains ended silences until `add` has used the next number: no number is used twice.
            _write(document, [replace(each, until_ms=now_ms) if each.number in numbers else each for each in known])

    def _all(self, document: Document) -> list[Silence]:
        try:
            return msgspec.json.decode(document.read() or b"[]", type=list[Silence])
        except (OSError, msgspec.MsgspecError) as error:
            path = self.output / SILENCES_FILE
            raise SilencesError(f"{path} cannot be read ({error}): correct it, or remove it to end all") from error

    @contextmanager
    def _alone(self) -> Iterator[Document]:
        """Yield the file; no other command writes it until the end of the block. Raise SilencesError."""
        document = Document(self.output / SILENCES_FILE)
        if not isinstance(self.output, Path):
            try:
                yield document
            except OSError as error:
                raise SilencesError(f"{self.output / SILENCES_FILE} was not changed: {error}") from error
            return
        if not self.output.is_dir():
            raise SilencesError(f"{self.output} does not exist: name the --output of the run")
        try:
            lock = os.open(self.output / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SilencesError(
                f"{self.output} cannot be written: {error.strerror or error}; run this command as the user of the run"
            ) from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield document
        except OSError as error:
            raise SilencesError(
                f"{self.output / SILENCES_FILE} cannot be written: {error.strerror or error}"
            ) from error
        finally:
            os.close(lock)


def _write(document: Document, silences: list[Silence]) -> None:
    document.write(msgspec.json.format(msgspec.json.encode(silences), indent=1) + b"\n")
