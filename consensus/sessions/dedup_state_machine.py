"""A state machine that executes each client's request once, for services without their own session table.

    command ──▶ a request in an envelope ──▶ table: new ─▶ execute, store │ repeated, expired ─▶ nothing
            └▶ a malformed envelope ──▶ nothing
            └▶ a clock entry ──▶ log time, which expires sessions
            └▶ an opening ──▶ nothing; its index is a start for its sender's session (`table`)
            └▶ any other entry ──▶ executed each time that it is in the log

The envelope is one byte of kind and fields in network byte order. The result of a request is available by its id, on
any server that has applied the entry. Log time comes from the clock entries that the leader appends (`log_time_clock`);
without them a session ends only if too many clients are active.
"""

import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from itertools import chain

import trio

from consensus.core.model import COMMAND, Entry, Index, LogId, Milliseconds
from consensus.sessions.table import (
    DEFAULT_LIMITS,
    RequestId,
    RequestStatus,
    SessionLimits,
    SessionTable,
    SessionTableError,
)
from consensus.sessions.table_bytes import NUMBER_MAX

Execute = Callable[[Index, bytes], Awaitable[bytes]]
"""Executes the command at an index and returns its result."""

Restore = Callable[[LogId, AsyncIterator[bytes]], Awaitable[None]]
"""Restores the service's state from its own part of a snapshot."""

_REQUEST, _CLOCK, _OPENING = b"\xf1", b"\xf2", b"\xf3"
_REQUEST_HEAD = struct.Struct(">BQQ")
_CLOCK_TIME = struct.Struct(">Q")
_DUMP_SIZE = struct.Struct(">Q")

OPENING_ENTRY = _OPENING
"""An entry without effect. Its sender uses the index of the entry as the start of a session."""


def request_entry(request: RequestId, command: bytes) -> bytes:
    """Return the envelope: an entry with the command and the id of its request."""
    client = request.client.encode()
    return _REQUEST + _REQUEST_HEAD.pack(len(client), request.session_start, request.sequence) + client + command


def clock_entry(log_time_ms: Milliseconds) -> bytes:
    """Return an entry that advances log time; the state machine ignores earlier times, and times beyond 63 bits."""
    return _CLOCK + _CLOCK_TIME.pack(log_time_ms)


class DedupStateMachine:
    """The state machine of a `ConsensusServer` for a service, whose requests it executes once each."""

    def __init__(
        self,
        execute: Execute,
        limits: SessionLimits = DEFAULT_LIMITS,
        snapshot: Callable[[], Iterator[bytes]] = lambda: iter(()),
        restore: Restore | None = None,
        clock_s: Callable[[], float] = trio.current_time,
    ) -> None:
        """Wrap a service. Without `snapshot` and `restore`, only the results of requests are in snapshots.

        `clock_s` is the local clock for the age of log time; the state does not depend on it.
        """
        self._clock_s = clock_s
        self._execute = execute
        self._snapshot = snapshot
        self._restore = restore or _nothing_to_restore
        self.log_time_ms: Milliseconds = 0
        """Log time of the applied clock entries; 0 before the first."""
        self.log_time_at_s = 0.0
        """Local time when an entry or a snapshot set `log_time_ms`; not part of the state."""
        self.sessions = SessionTable(limits)

    async def apply(self, first: Index, entries: tuple[Entry, ...]) -> None:
        """Apply committed entries."""
        for index, entry in enumerate(entries, start=first):
            if entry.kind == COMMAND:
                await self._apply_entry(index, entry.data)

    def request_of(self, command: bytes) -> RequestId | None:
        """Return the request id of an envelope; None for any other command."""
        opened = _open(command) if command[:1] == _REQUEST else None
        return None if opened is None else opened[0]

    def was_executed(self, request: RequestId) -> bool:
        """Return True if the table contains this request."""
        return self.sessions.was_executed(request)

    def result_of(self, request: RequestId) -> bytes | None:
        """Return the stored result; None if the request was not executed or has expired, or the result is too long."""
        return self.sessions.result_of(request) if self.sessions.was_executed(request) else None

    def snapshot(self) -> Iterator[bytes]:
        """Return log time, the table, and then the service's own snapshot, all of this moment."""
        table = self.sessions.dump()
        return chain((_DUMP_SIZE.pack(len(table)) + _CLOCK_TIME.pack(self.log_time_ms) + table,), self._snapshot())

    async def restore(self, last: LogId, state: AsyncIterator[bytes]) -> None:
        """Restore log time and the table from a snapshot; pass the rest to the service."""
        data = b""
        head = _DUMP_SIZE.size + _CLOCK_TIME.size
        size, limit = 0, self.sessions.limits.table_bytes_max
        async for chunk in state:
            data += chunk
            if len(data) >= head:
                (size,) = _DUMP_SIZE.unpack_from(data)
            if size > limit:
                raise SessionTableError(f"a snapshot's session table has {size} bytes; the limit is {limit}")
            if len(data) >= head + size:
                break
        if len(data) < head + size:
            raise SessionTableError(f"a snapshot of {len(data)} bytes does not contain a complete session table")
        (log_time_ms,) = _CLOCK_TIME.unpack_from(data, _DUMP_SIZE.size)
        self.sessions = SessionTable.load(data[head : head + size], self.sessions.limits)
        self.log_time_ms, self.log_time_at_s = log_time_ms, self._clock_s()
        await self._restore(last, _behind(data[head + size :], state))

    async def _apply_entry(self, index: Index, data: bytes) -> None:
        match data[:1]:
            case b"\xf1":
                await self._apply_envelope(index, data)
            case b"\xf2" if len(data) == 1 + _CLOCK_TIME.size:
                (time_ms,) = _CLOCK_TIME.unpack_from(data, 1)
                if self.log_time_ms < time_ms <= NUMBER_MAX:
                    self.log_time_ms, self.log_time_at_s = time_ms, self._clock_s()
                self.sessions.expire(self.log_time_ms)
            case b"\xf3":
                pass
            case _:
                await self._execute(index, data)

    async def _apply_envelope(self, index: Index, data: bytes) -> None:
        opened = _open(data)
        if opened is None:
            return  # a malformed envelope
        request, command = opened
        if self.sessions.admit(request, index, self.log_time_ms) is RequestStatus.NEW:
            self.sessions.record(request, await self._execute(index, command))


def _open(data: bytes) -> tuple[RequestId, bytes] | None:
    head = 1 + _REQUEST_HEAD.size
    if len(data) < head:
        return None
    client_bytes, session_start, sequence = _REQUEST_HEAD.unpack_from(data, 1)
    try:
        request = RequestId(data[head : head + client_bytes].decode(), session_start, sequence)
    except ValueError:
        return None
    return request, data[head + client_bytes :]


async def _behind(data: bytes, state: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if data:
        yield data
    async for chunk in state:
        yield chunk


async def _nothing_to_restore(_last: LogId, _state: AsyncIterator[bytes]) -> None:
    await trio.lowlevel.checkpoint()
