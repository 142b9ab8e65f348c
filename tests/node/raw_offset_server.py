"""A server of another implementation that stores its log as raw offsets and records, without our codec.

It receives messages over plain TCP and keeps two files as byte arrays:

    data     consecutive records: term 8 │ value type 1 │ value
    index    offsets of 8 bytes into the data, one per record

A log pack's records are appended to `data`, and its offsets, *unchanged*, to `index`. If the pack's position is inside
the log, both files are first cut off there. Entry `i` ends at the next offset or at the end of the data. A pack is
executed completely, committed or not.

Before its invitation a server may have elected itself (`elects_itself`); its log then contains its own entry. After
`compact_after` executed entries it drops them and moves its data to the front. It raises `Died` if the process of that
implementation would end.
"""

import gzip
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import IntEnum

import trio

from consensus.protocols.garlic_farm.node.dialer import PeerAddress

_HEAD = struct.Struct(">BiiQQQQI")
_REPLY = struct.Struct(">BiiQQB")
_ENTRY_HEAD = struct.Struct(">QBI")
_RECORD_HEAD = struct.Struct(">QB")
_OFFSET = struct.Struct(">Q")
_SIZES = struct.Struct(">II")
_TWO = struct.Struct(">QQ")
_SERVER = struct.Struct(">iI")


class Died(Exception):  # noqa: N818 - an event of the simulated process, not an error
    """The process has ended itself."""


class ClosedConnection(Exception):  # noqa: N818 - an event, not an error
    """The server cannot reply, and closes the connection."""


class RequestKind(IntEnum):
    """Supported requests."""

    VOTE = 1
    APPEND = 3
    SYNC_LOG = 10
    JOIN = 12
    LEAVE = 14
    SNAPSHOT = 16


@dataclass
class Request:
    """One request, parsed from its head."""

    kind: int
    source: int
    term: int
    previous_term: int
    previous: int
    commit: int
    entries: list[tuple[int, int, bytes]]


def servers_of(configuration: bytes) -> tuple[int, ...]:
    """Return the servers of a configuration: after two indexes, an id and a length-prefixed endpoint each."""
    found, at = [], _TWO.size
    while at < len(configuration):
        server, length = _SERVER.unpack_from(configuration, at)
        found.append(server)
        at += _SERVER.size + length
    return tuple(found)


@dataclass
class RawOffsetServer:
    """One server. Each request sets `changed`."""

    server_id: int
    elects_itself: bool = False
    compact_after: int | None = None
    term: int = 0
    start: int = 1
    """Index of the first stored entry."""
    snapshot_term: int = 0
    index: bytearray = field(default_factory=bytearray)
    data: bytearray = field(default_factory=bytearray)
    executed: list[bytes] = field(default_factory=list)
    executed_to: int = 0
    commit: int = 0
    catching_up: bool = False
    leads: bool = False
    snapshot: bytearray = field(default_factory=bytearray)
    chunks: list[int] = field(default_factory=list)
    """Offsets of the received chunks of a snapshot."""
    packs: int = 0
    compacted: int = 0
    invited_at: tuple[int, int] | None = None
    """Index of the invitation's configuration, and of the previous one."""
    invited_to: tuple[int, ...] = ()
    """Servers of the invitation's configuration."""
    received: list[RequestKind] = field(default_factory=list)
    death: Died | None = None
    break_after: set[RequestKind] = field(default_factory=set)
    """Kinds of requests whose second one breaks the connection before the reply, once."""
    changed: trio.Event = field(default_factory=trio.Event)

    def __post_init__(self) -> None:
        """Elect itself: its own configuration is the first entry."""
        if self.elects_itself:
            self.term, self.leads = 1, True
            own = b"tcp://127.0.0.1:1"
            self._append(1, 2, _TWO.pack(1, 0) + _SERVER.pack(self.server_id, len(own)) + own)

    # -- queries by tests ----------------------------------------------------------------------------------------------

    @property
    def last(self) -> int:
        return self.start + len(self.index) // _OFFSET.size - 1

    def entry(self, index: int) -> tuple[int, int, bytes]:
        """Return term, value type and value of an entry, as stored in the files."""
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
        """Return the values of all stored user entries, executed or not."""
        found = (self.entry(index) for index in range(self.start, self.last + 1))
        return [value for _, kind, value in found if kind == 1]

    @property
    def members(self) -> tuple[int, ...]:
        """Return the servers of the last stored configuration."""
        found = (self.entry(index) for index in range(self.last, self.start - 1, -1))
        return next((servers_of(value) for _, kind, value in found if kind == 2), ())

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until a condition is true after a request; raise if the server has died."""
        while not holds():
            if self.death is not None:
                raise self.death
            await self.changed.wait()

    # -- as a leader ---------------------------------------------------------------------------------------------------

    def submit(self, value: bytes) -> None:
        """Append a user's entry to its own log."""
        self._append(self.term, 1, value)

    def pack(self, first: int, count: int) -> bytes:
        """Return a log pack with the files' bytes: offsets and records as stored."""
        end = self._offset(first + count) if first + count <= self.last else len(self.data)
        offsets = self.index[(first - self.start) * _OFFSET.size :][: count * _OFFSET.size]
        records = self.data[self._offset(first) : end]
        return gzip.compress(_SIZES.pack(len(offsets), len(records)) + offsets + records)

    def chunk(self, last: int, data: bytes) -> bytes:
        members = self.entry(1)[2]
        head = _TWO.pack(last, self.term) + struct.pack(">I", len(members)) + members
        return head + struct.pack(">QI", 0, len(data)) + data + b"\x01"

    async def send_request(
        self, stream: trio.SocketStream, to: int, kind: RequestKind, after: int, entries: list[tuple[int, int, bytes]]
    ) -> tuple[bool, int] | None:
        """Send a request with the entries after `after`; return (accepted, next index), or None if it was closed."""
        log = b"".join(_ENTRY_HEAD.pack(term, form, len(value)) + value for term, form, value in entries)
        before = self.entry(after)[0] if kind is RequestKind.APPEND and after else 0
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

    async def listen(self, task_status: trio.TaskStatus[PeerAddress] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve on loopback without TLS and handshake, and report the address."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            await nursery.start(trio.serve_listeners, self._serve, listeners)
            task_status.started(PeerAddress("127.0.0.1", int(listeners[0].socket.getsockname()[1]), None))

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
        kind = RequestKind(request.kind)
        self.received.append(kind)
        try:
            accepted, following = self._take(kind, request)
        except ClosedConnection:
            return None
        except Died as death:
            self.death = death
            return None
        if kind in self.break_after and self.received.count(kind) >= 2:
            self.break_after.discard(kind)
            return None
        return _REPLY.pack(kind + 1, self.server_id, request.source, self.term, following, accepted)

    # -- behavior of the original --------------------------------------------------------------------------------------

    def _take(self, kind: RequestKind, request: Request) -> tuple[bool, int]:
        match kind:
            case RequestKind.JOIN:
                return self._join(request), self.last + 1
            case RequestKind.SYNC_LOG:
                return self._sync(request), self.last + 1
            case RequestKind.APPEND:
                accepted = self._appended(request)
                return accepted, request.previous + len(request.entries) + 1 if accepted else self.last + 1
            case RequestKind.SNAPSHOT:
                return self._install(request)
            case RequestKind.VOTE | RequestKind.LEAVE:
                self.term = max(self.term, request.term)
                return True, self.last + 1

    def _join(self, request: Request) -> bool:
        if self.catching_up:
            return False
        ((_, _, configuration),) = request.entries
        self.invited_at = _TWO.unpack_from(configuration)
        self.invited_to = servers_of(configuration)
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
        self._update_term(request)
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

    def _update_term(self, request: Request) -> None:
        if request.term > self.term:
            self.term, self.leads = request.term, False
        if self.leads and request.term == self.term:
            raise Died(f"server {request.source} leads in term {self.term}, and so does this one")

    def _install(self, request: Request) -> tuple[bool, int]:
        self._update_term(request)
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
        self.chunks.append(offset)
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
        """Drop the entries up to `index`; move the remaining data to the front, and adapt the offsets."""
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
