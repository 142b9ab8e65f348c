"""The id of an update: 12 unique bytes with the time of the request.

    reqid = seconds since 1970, 4 (most significant byte first) │ machine 3 │ process 2 │ counter 3

The leader stores the ids of the updates in its log. It replies to a repeated update with the index of the first one, so
an update is executed once, even if it is sent often. The leader refuses a request that is too old, because it may have
dropped the id. It also refuses a request from too far in the future, because it would have to store the id too long.

    ──────────────┬──────────────────── 7 h 45 min ────────────────────┬───────── 15 min ─────────┬──────────
     EXPIRED      │ FRESH                                             now                    FRESH │ FUTURE

The log keeps ids for 8 hours (the npm package's `requestIdTtl`). Clocks of clients and servers differ, so there is a
margin of 15 minutes at both ends (`Window`). This module does not read a clock: the server passes its time.
"""

import struct
from typing import Final

from msgspec import Struct

from consensus.protocols.zmq_raft.wire.frames import REQUEST_ID_BYTES, ZmqRaftError

_SECONDS: Final = struct.Struct(">I")
_MACHINE_BYTES: Final = 3
_LAST_COUNTER: Final = 2**24 - 1
NO_REQUEST_ID: Final = bytes(REQUEST_ID_BYTES)
"""Id of entries without a client's request."""


class Window(Struct, frozen=True):
    """The range of fresh ids: from `past_ms` before now to `future_ms` after it. They are kept for `kept_ms`."""

    past_ms: int = (8 * 60 - 15) * 60 * 1000
    future_ms: int = 15 * 60 * 1000

    @property
    def kept_ms(self) -> int:
        """The package's `requestIdTtl`.

        Ids are kept for longer than they are accepted, because leaders' clocks differ.
        """
        return self.past_ms + self.future_ms

    @classmethod
    def of_ttl(cls, ttl_ms: int) -> "Window":
        """Return the window of a cluster whose servers keep ids for `ttl_ms`."""
        future_ms = cls().future_ms
        return cls(ttl_ms - future_ms, future_ms)


DEFAULT_WINDOW: Final = Window()


def make_request_id(seconds: int, machine: bytes, process: int, counter: int) -> bytes:
    """Return an id made at `seconds` since 1970 (32 bits), on `machine` (3 bytes); the counter wraps at 2**24.

    Only the last 16 bits of `process` are used. Raises `ZmqRaftError`.
    """
    if len(machine) != _MACHINE_BYTES or not 0 <= seconds < 2**32:
        raise ZmqRaftError(f"a request id has 3 bytes of machine and 32 bits of time, not {len(machine)} and {seconds}")
    tail = (process & 0xFFFF).to_bytes(2, "big") + (counter & _LAST_COUNTER).to_bytes(3, "big")
    return _SECONDS.pack(seconds) + machine + tail


def request_seconds(request_id: bytes) -> int:
    """Return the time of the request, in seconds since 1970; raises `ZmqRaftError`."""
    if len(request_id) != REQUEST_ID_BYTES:
        raise ZmqRaftError(
            f"a request id of {len(request_id)} bytes; only ids of {REQUEST_ID_BYTES} bytes contain a time"
        )
    (seconds,) = _SECONDS.unpack_from(request_id)
    return int(seconds)


def is_fresh(request_id: bytes, now_ms: int, window: Window = DEFAULT_WINDOW) -> bool:
    """Return True if the leader accepts an update with this id at `now_ms` since 1970; raises `ZmqRaftError`."""
    return -window.future_ms <= now_ms - request_seconds(request_id) * 1000 <= window.past_ms


class RequestIds:
    """The ids of one process, each with the next number of its counter; `counter` should begin at a random number."""

    def __init__(self, machine: bytes, process: int, counter: int) -> None:
        self._machine = machine
        self._process = process
        self._counter = counter

    def next(self, seconds: int) -> bytes:
        """Return an id that this object has not returned yet, for up to 2**24 ids in a second."""
        request_id = make_request_id(seconds, self._machine, self._process, self._counter)
        self._counter = (self._counter + 1) & _LAST_COUNTER
        return request_id
