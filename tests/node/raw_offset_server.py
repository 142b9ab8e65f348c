"""A server of another make, as the running implementation stores a log, without one line of our codec.

It takes messages over bare TCP and keeps two files, as byte arrays:

    data     records: term 8 │ value type 1 │ value, one after the other
    index    offsets of 8 bytes into the data, one for each record

A log pack's records go to the end of `data`, and its offsets, *as they came*, to the end of `index`; or both to where
the entry at the pack's place lies, and what follows is cut off. Entry `i` is what lies between its offset and the next
one, or the end of the data. A pack is executed whole, committed or not. A server that has not been invited may have
elected itself (`elects_itself`), and then holds an entry of its own. After `compact_after` executed entries it drops
those, and moves its data to the front. What would end the process of the original raises `Died`.
"""

import gzip
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

import trio

_HEAD = struct.Struct(">BiiQQQQI")
_REPLY = struct.Struct(">BiiQQB")
_ENTRY_HEAD = struct.Struct(">QBI")
_RECORD_HEAD = struct.Struct(">QB")
_OFFSET = struct.Struct(">Q")
_SIZES = struct.Struct(">II")
_TWO = struct.Struct(">QQ")
_SERVER = struct.Struct(">iI")


class Died(Exception):  # noqa: N818 - what happened to it, no error of the program
    """The process has ended itself."""


class ClosedConnection(Exception):  # noqa: N818 - likewise
    """It cannot answer, and closes the connection."""


class Said(IntEnum):
    """The requests that it knows."""

    VOTE = 1
    APPEND = 3
    SYNC_LOG = 10
    JOIN = 12
    LEAVE = 14
    SNAPSHOT = 16


@dataclass
class Request:
    """One request, read from its head."""

    kind: int
    source: int
    term: int
    previous_term: int
    previous: int
    commit: int
    entries: list[tuple[int, int, bytes]]


def servers_of(configuration: bytes) -> tuple[int, ...]:
    """The servers that a configuration names: after two indexes, an id and an endpoint with its length each."""
    found, at = [], _TWO.size
    while at < len(configuration):
        server, length = _SERVER.unpack_from(configuration, at)
        found.append(server)
        at += _SERVER.size + length
    return tuple(found)


@dataclass
class RawOffsetServer:
    """One server. `changed` is set by every request."""

    server_id: int
    elects_itself: bool = False
    compact_after: int | None = None
    term: int = 0
    start: int = 1
    """The index of the first entry that is stored."""
    snapshot_term: int = 0
    index: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    executed: list[bytes] = field(default_factory=list)
    executed_to: int = 0
    commit: int = 0
    catching_up: bool = False
    leads: bool = False
    snapshot: bytearray = field(default_factory=bytearray)
    packs: int = 0
    compacted: int = 0
    closed: int = 0
    invited_at: tuple[int, int] | None = None
    """Index of the invitation's configuration, and of the one before."""
    heard: list[Said] = field(default_factory=list)
    death: Died | None = None
    break_after: set[Said] = field(default_factory=set)
    """Kinds of requests after whose second the connection breaks, once, before the answer."""
    changed: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        """Elect itself: its own configuration is the first entry."""
        if self.elects_itself:
            self.term, self.leads = 1, True
            own = b"tcp://127.0.0.1:1"
            self._append(1, 2, _TWO.pack(1, 0) + _SERVER.pack(self.server_id, len(own)) + own)

    # -- what a test asks ----------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.start + len(self.index) // _OFFSET.size - 1

    def entry(self, index: int) -> tuple[int, int, bytes]:
        """Term, value type and value of an entry, as they lie in the files."""
        begin = self._offset(index)
        end = self._offset(index + 1) if index < self.last else len(self.data)
        record = bytes(self.data[begin:end])
        if not begin <= end <= len(self.data) or len(record) < _RECORD_HEAD.size:
            raise Died(f"entry {index} lies at {begin} to {end} of {len(self.data)} bytes")
        term, kind = _RECORD_HEAD.unpack_from(record)
        if kind not in {1, 2}:
            raise Died(f"entry {index} has value type {kind}")
        return term, kind, record[_RECORD_HEAD.size :]

    def commands(self) -> list[bytes]:
        """The values of all stored entries that are a user's, executed or not."""
        found = (self.entry(index) for index in range(self.start, self.last + 1))
        return [value for _, kind, value in found if kind == 1]

    @property
    def members(self) -> tuple[int, ...]:
        """The servers of the last configuration that is stored."""
        found = (self.entry(index) for index in range(self.last, self.start - 1, -1))
        return next((servers_of(value) for _, kind, value in found if kind == 2), ())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that a request may bring about, or it has died."""
        while not holds():
            if self.death is not None:
                raise self.death
            await self.changed.wait()

    # -- as a leader ---------------------------------------------------------------------------------------------------

    def submit(self, value: bytes) -> None:
        """Append a user's entry to its own log."""
        self._append(self.term, 1, value)

    def pack(self, first: int, count: int) -> bytes:
        """A log pack of its files' bytes: offsets and records as they lie there."""
        end = self._offset(first + count) if first + count <= self.last else len(self.data)
        offsets = self.index[(first - self.start) * _OFFSET.size :][: count * _OFFSET.size]
        records = self.data[self._offset(first) : end]
        return gzip.compress(_SIZES.pack(len(offsets), len(records)) + offsets + records)

    def chunk(self, last: int, data: bytes) -> bytes:
        """A snapshot's only chunk."""
        members = self.entry(1)[2]
        head = _TWO.pack(last, self.term) + struct.pack(">I", len(members)) + members
        return head + struct.pack(">QI", 0, len(data)) + data + b"\x01"

    async def says(
        self, stream: trio.SocketStream, to: int, kind: Said, after: int, entries: list[tuple[int, int, bytes]]
    ) -> tuple[bool, int] | None:
        """Its request, of entries behind `after`, and the answer: accepted, next index. None: it was closed."""
        log = b"".join(_ENTRY_HEAD.pack(term, form, len(value)) + value for term, form, value in entries)
        before = self.entry(after)[0] if kind is Said.APPEND and after else 0
        head = (int(kind), self.server_id, to, self.term, before, after, self.last)
        await stream.send_all(_HEAD.pack(*head, len(log)) + log)
        answer = b""
        while len(answer) < _REPLY.size:
            received = await stream.receive_some(_REPLY.size - len(answer))
            if not received:
                return None
            answer += received
        answered, source, destination, _, following, accepted = _REPLY.unpack(answer)
        assert (answered, source, destination) == (kind + 1, to, self.server_id)
        return bool(accepted), following

    # -- the network ---------------------------------------------------------------------------------------------------

    async def listen(self, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve on loopback, without TLS and handshake; tells the port."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, listeners)
            task_status.started(int(listeners[0].socket.getsockname()[1]))

    async def _serve(self, stream: trio.SocketStream) -> None:
        received = bytearray()

        async def exactly(count: int) -> bytes:
            while len(received) < count:
                data = await stream.receive_some(65_536)
                if not data:
                    raise trio.BrokenResourceError
                received.extend(data)
            taken = bytes(received[:count])
            del received[:count]
            return taken

        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                while self.death is None:
                    *head, size = _HEAD.unpack(await exactly(_HEAD.size))
                    request = _read(head, await exactly(size))
                    answer = self._answer_or_die(request)
                    self.changed.set()
                    self.changed = trio.Event()
                    if answer is None:
                        return
                    await stream.send_all(answer)

    def _answer_or_die(self, request: Request) -> bytes | None:
        kind = Said(request.kind)
        self.heard.append(kind)
        try:
            accepted, following = self._take(kind, request)
        except ClosedConnection:
            self.closed += 1
            return None
        except Died as death:
            self.death = death
            return None
        if kind in self.break_after and self.heard.count(kind) >= 2:
            self.break_after.discard(kind)
            return None
        return _REPLY.pack(kind + 1, self.server_id, request.source, self.term, following, accepted)

    # -- what the original does ----------------------------------------------------------------------------------------

    def _take(self, kind: Said, request: Request) -> tuple[bool, int]:
        match kind:
            case Said.JOIN:
                return self._join(request), self.last + 1
            case Said.SYNC_LOG:
                return self._sync(request), self.last + 1
            case Said.APPEND:
                accepted = self._appended(request)
                return accepted, request.previous + len(request.entries) + 1 if accepted else self.last + 1
            case Said.SNAPSHOT:
                return self._install(request)
            case Said.VOTE | Said.LEAVE:
                self.term = max(self.term, request.term)
                return True, self.last + 1

    def _join(self, request: Request) -> bool:
        if self.catching_up:
            return False
        ((_, _, configuration),) = request.entries
        self.invited_at = _TWO.unpack_from(configuration)
        self.catching_up, self.leads, self.term = True, False, request.term
        self.commit = self.executed_to = 0
        self.executed.clear()
        return True

    def _sync(self, request: Request) -> bool:
        if not self.catching_up:
            return False
        ((_, kind, pack),) = request.entries
        assert kind == 4, kind
        plain = gzip.decompress(pack)
        index_size, log_size = _SIZES.unpack_from(plain)
        offsets = plain[_SIZES.size : _SIZES.size + index_size]
        records = plain[_SIZES.size + index_size :]
        assert len(records) == log_size
        place = request.previous + 1 - self.start
        if not 0 <= place <= len(self.index) // _OFFSET.size:
            raise Died(f"a pack after {request.previous} where the log holds {self.start} to {self.last}")
        end = self._offset(self.start + place) if place * _OFFSET.size < len(self.index) else len(self.data)
        self.index[place * _OFFSET.size :] = offsets
        self.data[end:] = records
        self.packs += 1
        self._commit(self.last)
        return True

    def _appended(self, request: Request) -> bool:
        self._hear_leader(request)
        before = request.previous
        if before and before < self.start - 1:
            raise ClosedConnection
        if before and (before > self.last or self._term_at(before) != request.previous_term):
            return False
        for place, (term, kind, value) in enumerate(request.entries, start=before + 1):
            if place <= self.last and self.entry(place)[0] == term:
                continue
            if place <= self.last:
                del self.data[self._offset(place) :]
                del self.index[(place - self.start) * _OFFSET.size :]
            self._append(term, kind, value)
        self._commit(request.commit)
        return True

    def _hear_leader(self, request: Request) -> None:
        if request.term > self.term:
            self.term, self.leads = request.term, False
        if self.leads and request.term == self.term:
            raise Died(f"server {request.source} leads in term {self.term}, and so does this one")

    def _install(self, request: Request) -> tuple[bool, int]:
        self._hear_leader(request)
        ((_, _, value),) = request.entries
        last, last_term = _TWO.unpack_from(value)
        (configuration_length,) = struct.unpack_from(">I", value, _TWO.size)
        at = _TWO.size + 4
        members = servers_of(value[at : at + configuration_length])
        at += configuration_length
        offset, length = struct.unpack_from(">QI", value, at)
        data, done = value[at + 12 : at + 12 + length], value[-1]
        if last <= self.commit:
            return False, 0
        self.snapshot[offset:] = data
        if done:
            if self.server_id not in members and not self.catching_up:
                raise Died("the snapshot's configuration has removed this server")
            self._drop_through(min(last, self.last))
            if last >= self.last:
                self.index.clear()
                self.data.clear()
            self.start, self.snapshot_term = last + 1, last_term
            self.commit = self.executed_to = last
        return True, offset + length

    def _commit(self, index: int) -> None:
        self.commit = max(self.commit, index)
        while self.executed_to < min(self.commit, self.last):
            self.executed_to += 1
            _, kind, value = self.entry(self.executed_to)
            if kind == 1:
                self.executed.append(value)
            elif self.server_id in servers_of(value):
                self.catching_up = False
            self._compact_if_due()

    def _compact_if_due(self) -> None:
        if self.compact_after is None or self.executed_to - self.start <= self.compact_after:
            return
        assert self.invited_at is not None
        if self.invited_at[0] > self.executed_to and self.invited_at[1] == 0:
            raise Died("there must be a configuration at index 1")
        self._drop_through(self.executed_to - 1)
        self.compacted += 1

    def _drop_through(self, index: int) -> None:
        """Drop the entries up to `index`; the data of those that stay moves to the front, and their offsets with it."""
        if index < self.start:
            return
        self.snapshot_term = self.entry(index)[0]
        moved = self._offset(index + 1) if index < self.last else len(self.data)
        kept = [self._offset(each) - moved for each in range(index + 1, self.last + 1)]
        del self.data[:moved]
        self.index[:] = b"".join(_OFFSET.pack(each) for each in kept)
        self.start = index + 1

    def _append(self, term: int, kind: int, value: bytes) -> None:
        self.index += _OFFSET.pack(len(self.data))
        self.data += _RECORD_HEAD.pack(term, kind) + value

    def _offset(self, index: int) -> int:
        (offset,) = _OFFSET.unpack_from(self.index, (index - self.start) * _OFFSET.size)
        return int(offset)

    def _term_at(self, index: int) -> int:
        return self.snapshot_term if index == self.start - 1 else self.entry(index)[0]


def _read(head: list[int], log: bytes) -> Request:
    kind, source, _, term, previous_term, previous, commit = head
    entries, at = [], 0
    while at < len(log):
        entry_term, value_type, size = _ENTRY_HEAD.unpack_from(log, at)
        at += _ENTRY_HEAD.size
        entries.append((entry_term, value_type, log[at : at + size]))
        at += size
    return Request(kind, source, term, previous_term, previous, commit, entries)
