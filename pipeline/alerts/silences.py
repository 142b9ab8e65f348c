"""Silences: servers whose alerts an operator holds back for a while, such as during maintenance.

    garlicfarm pipeline silence --server 3 --for 2h --reason … ──▶ <output>/silences.json ──▶ read by the run

The silences are in a file, since only the run may write the tables. It is written aside and renamed, under a lock, so
that two concurrent commands lose nothing, and the run reads a complete file. A silence ends automatically, by the clock
of the reading machine; the next file omits ended silences.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from pipeline.alerts.outages import FailedServer

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

    output: Path

    def active(self, now_ms: int) -> list[Silence]:
        """Return the silences that have not ended. Raise SilencesError."""
        return [each for each in self._all() if now_ms < each.until_ms]

    def add(self, servers: tuple[str, ...], until_ms: int, reason: str, farm: str, now_ms: int) -> list[Silence]:
        """Add silences of servers, and return them. Raise SilencesError."""
        with self._alone():
            known = self._all()
            number = max((each.number for each in known), default=0)
            added = [Silence(number + place, server, until_ms, reason, farm) for place, server in enumerate(servers, 1)]
            kept = [each for each in known if now_ms < each.until_ms]
            if len(kept) + len(added) > SILENCES_MAX:
                raise SilencesError(f"there are {len(kept)} silences, and {SILENCES_MAX} at most: end some with --end")
            self._write([*kept, *added])
        return added

    def end(self, numbers: tuple[int, ...], now_ms: int) -> None:
        """End silences by their numbers. Raise SilencesError."""
        with self._alone():
            kept = [each for each in self._all() if now_ms < each.until_ms]
            missing = set(numbers) - {each.number for each in kept}
            if missing:
                raise SilencesError(f"silence {', '.join(map(str, sorted(missing)))} does not exist, or has ended")
            self._write([each for each in kept if each.number not in numbers])

    def _all(self) -> list[Silence]:
        path = self.output / SILENCES_FILE
        try:
            return msgspec.json.decode(path.read_bytes(), type=list[Silence])
        except FileNotFoundError:
            return []
        except (OSError, msgspec.MsgspecError) as error:
            raise SilencesError(f"{path} cannot be read ({error}): correct it, or remove it to end all") from error

    def _write(self, silences: list[Silence]) -> None:
        path = self.output / SILENCES_FILE
        aside = path.with_name(f".{SILENCES_FILE}.new")
        aside.write_bytes(msgspec.json.format(msgspec.json.encode(silences), indent=1) + b"\n")
        aside.rename(path)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self.output.is_dir():
            raise SilencesError(f"{self.output} does not exist: name the --output of the run")
        try:
            lock = os.open(self.output / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SilencesError(f"{self.output} cannot be written: {error.strerror or error}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        except OSError as error:
            raise SilencesError(
                f"{self.output / SILENCES_FILE} cannot be written: {error.strerror or error}"
            ) from error
        finally:
            os.close(lock)
