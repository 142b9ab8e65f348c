"""Compaction of a plain replicated log: a program of the operator makes the snapshot, since only it knows the state.

    previous snapshot, entries up to the prune index ──▶ Compactor ──▶ file ──▶ the server's snapshot ──▶ a shorter log

A snapshot covers the entries up to the *prune index*, the last index before the first entry with a fresh request id.
After a restart a server must find the fresh ids in its log (`executed_requests`). The npm package `zmq-raft` requires
the same. Each peer compacts its own log; the bytes may differ from peer to peer.

`CommandCompactor` runs a program. Its standard input, with the most significant byte of each number first:

    length 8 │ previous snapshot          length 0: absent
    index 8 │ length 4 │ entry …          in order, without a gap; an entry has the form of the wire (`entries`)

Its standard output is the new snapshot. It counts only if the program reads everything, ends with status 0 and keeps
its time limit. A failure is reported, does not change the log, and is retried later. Without a program the log grows
without limit, like the package's log.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from struct import Struct
from subprocess import PIPE
from typing import Final, Protocol

import trio

from consensus.core.model import Entry, Index, LogId, SnapshotDescription
from consensus.protocols.zmq_raft.peer.executed_requests import ExecutedRequests, PreparedSnapshot
from consensus.protocols.zmq_raft.wire.entries import entry_frame
from consensus.server.block_nursery import single_errors
from consensus.server.errors import ServerBusyError, ServerStoppedError
from consensus.server.server import ConsensusServer
from consensus.server.storage_reads import SnapshotChunk

_LENGTH: Final = Struct(">Q")
_ENTRY: Final = Struct(">QI")
_CHUNK_BYTES: Final = 64 * 1024
_REMOVE_S: Final = 1.0
"""Seconds to wait at the end of a compaction for the removal of its file."""
_CHUNK_ENTRIES: Final = 1000
_BUSY_S: Final = 0.05
_OUTPUT_BYTES: Final = 2000
_SHARE: Final = 4
"""A compaction must replace at least this part of the entries (a quarter), so that compactions are rare."""


class CompactionError(Exception):
    """No new snapshot was made; the text is the reason."""


@dataclass(frozen=True, slots=True)
class CompactionSource:
    """Input of a snapshot: the previous one, and the entries after it. Each is read once, in this order."""

    snapshot_bytes: int
    """Size of the previous snapshot; 0 without one."""
    snapshot: AsyncIterator[bytes]
    entries: AsyncIterator[tuple[Index, Entry]]


class Compactor(Protocol):
    """Makes snapshots."""

    async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Write the snapshot that covers all of `source`; raises `CompactionError`."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """Report of a success: the snapshot now covers the log up to `index`."""

    index: Index
    size_bytes: int


@dataclass(frozen=True, slots=True)
class CompactionFailed:
    """Report of a failure: the log is unchanged."""

    reason: str


@dataclass(frozen=True, slots=True)
class CompactionOptions:
    """Conditions and limits of a compaction."""

    log_bytes: int = 64 * 1024 * 1024
    """Least size of the log for a compaction."""
    min_entries: int = 1000
    """Least number of entries that a new snapshot replaces; it must also replace a quarter of the log's entries."""
    check_s: float = 10.0
    retry_s: float = 600.0
    """Delay before a retry after a failure."""
    max_snapshot_bytes: int = 4 * 1024 * 1024 * 1024


class Compaction:
    """Compacts one server's log; `run` does so when it is due. `file` holds a snapshot while it is being made."""

    def __init__(
        self,
        server: ConsensusServer,
        machine: ExecutedRequests,
        compactor: Compactor,
        file: Path,
        report: Callable[[Compacted | CompactionFailed], None],
        options: CompactionOptions | None = None,
    ) -> None:
        self._server = server
        self._machine = machine
        self._compactor = compactor
        self._file = file
        self._report = report
        self._options = options or CompactionOptions()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Compact the log whenever it is due, until canceled."""
        task_status.started()
        while True:
            wait_s = self._options.check_s
            if self.is_due:
                try:
                    self._report(await self.compact())
                except (CompactionError, OSError) as error:
                    self._report(CompactionFailed(str(error)))
                    wait_s = self._options.retry_s
                except ServerStoppedError:
                    return
            await trio.sleep(wait_s)

    @property
    def is_due(self) -> bool:
        """Return True if the log is large, and enough of it may be replaced."""
        description = self._server.describe()
        if description.log_bytes < self._options.log_bytes:
            return False
        covered = _covered(description.raft.snapshot)
        prunable = self._machine.prune_index - covered
        return prunable >= self._options.min_entries and prunable * _SHARE >= self._machine.applied - covered

    async def compact(self) -> Compacted:
        """Replace the log up to the prune index; raises `CompactionError`, `OSError` or `ServerStoppedError`."""
        before = self._server.describe().raft.snapshot
        index = self._machine.prune_index
        if index <= _covered(before):
            raise CompactionError("no entry may be replaced: none follows the snapshot, or the next one has a fresh id")
        try:
            await self._make(before, index)
            self._machine.prepare(PreparedSnapshot(index, self._chunks))
            snapshot = await self._server.take_snapshot()
        finally:
            self._machine.prepare(None)
            with trio.move_on_after(_REMOVE_S, shield=True), suppress(OSError):
                await trio.to_thread.run_sync(partial(self._file.unlink, missing_ok=True), abandon_on_cancel=True)
        if snapshot is None or snapshot.last.index != index:
            raise CompactionError("the server did not store the snapshot: it has a newer one, or its disk is full")
        return Compacted(index, snapshot.size_bytes)

    async def _make(self, before: SnapshotDescription | None, index: Index) -> None:
        room = self._options.max_snapshot_bytes
        async with await trio.open_file(self._file, "wb") as output:

            async def write(data: bytes) -> None:
                nonlocal room
                room -= len(data)
                if room < 0:
                    raise CompactionError(f"the snapshot is larger than {self._options.max_snapshot_bytes} bytes")
                await output.write(data)

            size_bytes = 0 if before is None else before.size_bytes
            async with (
                aclosing(self._snapshot(before)) as snapshot,
                aclosing(self._entries(_covered(before) + 1, index)) as entries,
            ):
                await self._compactor.compact(CompactionSource(size_bytes, snapshot, entries), write)

    async def _chunks(self) -> AsyncIterator[bytes]:
        async with await trio.open_file(self._file, "rb") as made:
            while data := await made.read(_CHUNK_BYTES):
                yield data

    async def _snapshot(self, stored: SnapshotDescription | None) -> AsyncGenerator[bytes, None]:
        offset = 0
        while stored is not None and offset < stored.size_bytes:
            chunk = await self._chunk(stored.last, offset)
            yield chunk.data
            offset += len(chunk.data)

    async def _chunk(self, last: LogId, offset: int) -> SnapshotChunk:
        while True:
            try:
                chunk = await self._server.read_snapshot(offset, _CHUNK_BYTES)
            except ServerBusyError:
                await trio.sleep(_BUSY_S)
                continue
            if chunk is None or chunk.last != last:
                raise CompactionError("the leader's snapshot replaced this snapshot during the compaction")
            return chunk

    async def _entries(self, first: Index, last: Index) -> AsyncGenerator[tuple[Index, Entry], None]:
        while first <= last:
            try:
                entries = await self._server.read(first, min(_CHUNK_ENTRIES, last - first + 1), _CHUNK_BYTES)
            except ServerBusyError:
                await trio.sleep(_BUSY_S)
                continue
            if not entries:
                raise CompactionError(f"entry {first} is no longer in the log")
            for index, entry in enumerate(entries, first):
                yield index, entry
            first += len(entries)


@dataclass(slots=True)
class CommandCompactor:
    """Runs a program, without a shell, for each compaction (the module describes its input and output)."""

    command: Sequence[str]
    timeout_s: float = 600.0
    _output: bytearray = field(default_factory=bytearray)

    async def compact(self, source: CompactionSource, write: Callable[[bytes], Awaitable[object]]) -> None:
        """Feed the program and write its output; raises `CompactionError`, or the exceptions of `write`."""
        self._output.clear()
        try:
            process = await trio.lowlevel.open_process(self.command, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        except OSError as error:
            raise CompactionError(f"{self.command[0]} cannot be started: {error.strerror or error}") from error
        unread: list[bool] = []
        try:
            with single_errors(), trio.move_on_after(self.timeout_s) as time:
                await self._exchange(process, source, write, unread)
        finally:
            await _end(process)
        if time.cancelled_caught:
            raise CompactionError(f"{self.command[0]} did not end within {self.timeout_s:g} s")
        if process.returncode != 0:
            raise CompactionError(f"{self.command[0]} ended with status {process.returncode}{self._last_output()}")
        if unread:
            raise CompactionError(f"{self.command[0]} ended before it had read everything{self._last_output()}")

    async def _exchange(
        self,
        process: trio.Process,
        source: CompactionSource,
        write: Callable[[bytes], Awaitable[object]],
        unread: list[bool],
    ) -> None:
        if process.stdin is None or process.stdout is None or process.stderr is None:
            raise CompactionError("the program lacks a pipe")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen, process.stderr)
            nursery.start_soon(_feed, process.stdin, source, unread)
            async for data in process.stdout:
                await write(bytes(data))
            await process.wait()

    async def _listen(self, errors: trio.abc.ReceiveStream) -> None:
        async for data in errors:
            self._output += data
            del self._output[:-_OUTPUT_BYTES]

    def _last_output(self) -> str:
        text = self._output.decode(errors="replace").strip()
        return f": {text}" if text else ""


async def _feed(stdin: trio.abc.SendStream, source: CompactionSource, unread: list[bool]) -> None:
    async with stdin, aclosing(_framed(source)) as parts:
        try:
            async for part in parts:
                await stdin.send_all(part)
        except trio.BrokenResourceError:
            unread.append(True)


async def _framed(source: CompactionSource) -> AsyncGenerator[bytes, None]:
    """Yield the input of a program, in parts of about 64 KiB."""
    pending = bytearray(_LENGTH.pack(source.snapshot_bytes))
    async for data in source.snapshot:
        pending += data
        yield bytes(pending)
        pending.clear()
    async for index, entry in source.entries:
        frame = entry_frame(entry)
        pending += _ENTRY.pack(index, len(frame))
        pending += frame
        if len(pending) >= _CHUNK_BYTES:
            yield bytes(pending)
            pending.clear()
    yield bytes(pending)


async def _end(process: trio.Process) -> None:
    """End the program and release its pipes, even after a failed compaction."""
    with trio.CancelScope(shield=True):
        if process.returncode is None:
            process.kill()
        await process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                await trio.aclose_forcefully(pipe)


def _covered(snapshot: SnapshotDescription | None) -> Index:
    return 0 if snapshot is None else snapshot.last.index
