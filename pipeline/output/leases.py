"""The lock of the only writer of a bucket's prefix: an object that its holder must renew.

    create .lock (If-None-Match) ──▶ renew every `RENEW_S` (If-Match) ──▶ delete at the end
           └── exists ──▶ unchanged for `LIFETIME_S`: its holder was killed ──▶ replace it (If-Match)
                      └─▶ changed: its holder is active ──▶ refuse

A waiting process measures the lifetime by its own monotonic clock, from its first request for the object. So no times
of two machines are compared. After a killed run the next one waits for `LIFETIME_S`.

The lock only prevents two runs from disturbing each other. It does not prove that its holder is the only writer: a
suspended machine continues after its lock has ended. The tables stay correct because every write that counts is
conditional. These are the commits of delta-rs (each carries the number of rows, `pipeline/tables/delta.py`), the
checkpoint and the record of batches (`documents.py`). The first write of the earlier holder fails.
"""

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from pipeline.output.buckets import BucketError, BucketPath, OvertakenError, refuse_unconditional
from pipeline.source.log_client import FarmLogError

LIFETIME_S: Final = 30.0
RENEW_S: Final = 10.0
LOOK_S: Final = 2.0


class Lease:
    """The lock of this process. `clock`: monotonic seconds."""

    def __init__(
        self,
        path: BucketPath,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._path = path
        self._clock = clock
        self._wait = wait
        self._holder = f"process {os.getpid()} on {socket.gethostname()}"
        self._id = str(uuid.uuid4())
        self._renewals = 0
        self._tag: str | None = None

    def take(self, notify: Callable[[str], None]) -> None:
        """Create the lock, or replace an ended lock. Raise FarmLogError if its holder is active."""
        seen: str | None = None
        began = self._clock()
        while True:
            found = self._path.read()
            if found is None or (found[1] == seen and self._clock() - began >= LIFETIME_S):
                try:
                    self._tag = self._path.write(self._content(), seen if found is not None else None)
                except OvertakenError:
                    raise self._refusal("another process") from None
                return
            holder = _field_of(found[0], "holder") or "an unknown process"
            if seen is None:
                seen = found[1]
                notify(f"{self._path} is held by {holder}: waiting up to {LIFETIME_S:.0f} s for a renewal")
            elif found[1] != seen:
                raise self._refusal(holder)
            self._wait(LOOK_S)

    def renew(self) -> None:
        """Show that the holder is active. Raise OvertakenError if another process has the lock, BucketError."""
        self._renewals += 1
        try:
            self._tag = self._path.write(self._content(), self._tag)
        except OvertakenError:
            # An earlier renewal may have been successful, and its reply was lost.
            found = self._path.read()
            if found is None or _field_of(found[0], "id") != self._id:
                raise
            self._tag = found[1]

    def release(self) -> None:
        """Delete the lock if this process still has it."""
        found = self._path.read()
        if found is not None and _field_of(found[0], "id") == self._id:
            self._path.unlink()

    def _content(self) -> bytes:
        return json.dumps({"holder": self._holder, "id": self._id, "renewals": self._renewals}).encode()

    def _refusal(self, holder: str) -> FarmLogError:
        return FarmLogError(
            f"another pipeline ({holder}) writes into {self._path.parent}: stop that one, or choose another --output"
        )


@contextmanager
def leased(lock: BucketPath, notify: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock while the block runs. Raise FarmLogError, BucketError."""
    refuse_unconditional(lock.parent)
    lease, ended = Lease(lock), threading.Event()
    lease.take(notify)

    def renew() -> None:
        while not ended.wait(RENEW_S):
            try:
                lease.renew()
            except OvertakenError:
                notify(f"another process has taken {lock}: one of the two runs ends with its next write")
                return
            except BucketError:
                # The next round tries again; without the store the run cannot write either.
                continue

    thread = threading.Thread(target=renew, name="lock of the bucket", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join(RENEW_S)
        # In an outage a renewal lasts for minutes; the lock ends without it.
        if not thread.is_alive():
            # The error of the run matters more than the lock.
            with suppress(BucketError):
                lease.release()


def _field_of(content: bytes, name: str) -> str:
    """Return a field of a lock; empty without it."""
    try:
        return str(json.loads(content)[name])
    except (ValueError, KeyError, TypeError):
        return ""
