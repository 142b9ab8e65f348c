"""Times of the hops of entries through one server, for `consensus_budget`: wrappers around the methods at each hop.

    READ      decrypted bytes of a socket         DISK      the disk's thread begins a group
    REQUEST   a decoded request, before the step  SYNCED    … and has written and synced it
    SENT      bytes given to the kernel           STORED    … and the event loop has the result
    ACK       a decoded reply, before the step    REPLIED   the reply to a request was sent

A server without these wrappers does not pay for marks. A wrapper adds the times of each call to lists; `take` empties
them.
"""

from collections.abc import Callable
from functools import wraps
from time import monotonic_ns
from typing import Any

from consensus.net.direct_stream import DirectStream
from consensus.net.tls_stream import TlsStream
from consensus.protocols.garlic_farm.node.connection import ServerConnection
from consensus.server.server import ConsensusServer
from consensus.storage.directory import Directory
from consensus.storage.disk_worker import DiskWorker

Marks = dict[str, list[int]]
"""The times of each hop, in nanoseconds of the monotonic clock, ascending."""
READ, REQUEST, SENT, ACK = "read", "request", "sent", "ack"
DISK, SYNCED, STORED, REPLIED = "disk", "synced", "stored", "replied"
_HOPS: tuple[tuple[type, str, str | None, str | None], ...] = (
    (TlsStream, "_decrypt", None, READ),
    (ServerConnection, "_begin", REQUEST, None),
    (DirectStream, "_push", None, SENT),
    (ConsensusServer, "deliver_reply", ACK, None),
    (Directory, "perform_all", DISK, SYNCED),
    (DiskWorker, "_ended", STORED, None),
    (ServerConnection, "_settle", None, REPLIED),
)
"""Class, method, the mark before a call and the mark after it."""


class HopMarks:
    """The marks of this process, from its creation on."""

    def __init__(self) -> None:
        self._marks: Marks = {hop: [] for *_, before, after in _HOPS for hop in (before, after) if hop is not None}
        for owner, name, before, after in _HOPS:
            setattr(owner, name, self._marked(getattr(owner, name), before, after))

    def take(self) -> Marks:
        """Return the marks since the last call."""
        taken = {hop: times.copy() for hop, times in self._marks.items()}
        for times in self._marks.values():
            times.clear()
        return taken

    def _marked(self, method: Callable[..., Any], before: str | None, after: str | None) -> Callable[..., Any]:
        starts, ends = self._marks.get(before or ""), self._marks.get(after or "")

        @wraps(method)
        def marked(*arguments: object, **options: object) -> object:
            if starts is not None:
                starts.append(monotonic_ns())
            result = method(*arguments, **options)
            if ends is not None and result != b"" and not (after == READ and result is None):
                ends.append(monotonic_ns())
            return result

        return marked
