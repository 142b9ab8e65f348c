"""Exactly-once execution: the executed requests of each client, with their results (Raft section 8).

A leader may fail after it has committed a command and before its reply; the client then repeats the command. So each
client numbers its requests, and the state machine keeps the newest numbers of each client with their results. A known
number gets its result and is not executed. The table is replicated state: committed entries change it in log order,
from index, log time and request. `change_results` changes it outside the log, for a state that begins a new cluster.

A session expires after `expiry_ms` of log time without requests, or if more than `sessions_max` exist and it is the
least recently used. A later request of an expired session must not be executed as new. So each request contains the
*start* of its session: a log index that the client saw before the session's first request. Each session has a last
index: the index of the latest entry with a request of this session. The *floor* is the greatest last index of all
expired sessions:

    unknown client, start at the floor or after  new: no expired session can be this one
    unknown client, start below the floor        perhaps expired: refused; the client begins a session with a new start
    start at the request's own index or after    refused: the client cannot have seen it, and no floor would exclude it

A client need not be registered by an entry: any index that it has seen can be its start. A client may have `window`
requests under way, in any order. A number below the window is refused, because its result is no longer stored.
"""

from collections.abc import Callable
from enum import Enum

from msgspec import Struct, field

from consensus.core.model import Index, Milliseconds
from consensus.sessions.table_bytes import NUMBER_BYTES, TableReader, number_bytes, text_bytes

CLIENT_BYTES_MAX = 64
SEQUENCE_MAX = 2**63 - 1
_FORMAT = 1
_DIGITS_MAX = 19


class SessionTableError(ValueError):
    """Bytes that are not a session table of this format and within these limits."""


class RequestId(Struct, frozen=True):
    """The permanent id of a request: the client, the start of its session, and the client's own number, from 1 on."""

    client: str
    session_start: Index
    sequence: int

    def __post_init__(self) -> None:
        if not 1 <= len(self.client.encode()) <= CLIENT_BYTES_MAX:
            raise ValueError(f"a client's name has 1 to {CLIENT_BYTES_MAX} bytes, not {len(self.client.encode())}")
        if not (0 <= self.session_start <= SEQUENCE_MAX and 1 <= self.sequence <= SEQUENCE_MAX):
            numbers = f"session start {self.session_start} and sequence {self.sequence}"
            raise ValueError(f"{numbers} must be 63-bit numbers, from 0 and 1 on")

    def __str__(self) -> str:
        """Return its form in a text protocol; `parse_request_id` reads it."""
        return f"{self.client}-{self.session_start}-{self.sequence}"


def parse_request_id(text: str) -> RequestId | None:
    """Parse `CLIENT-START-SEQUENCE`; the client's name may contain dashes. Return None for any other text."""
    client, session_start, sequence = ["", "", *text.rsplit("-", 2)][-3:]
    if not all(part.isascii() and part.isdigit() and len(part) <= _DIGITS_MAX for part in (session_start, sequence)):
        return None
    try:
        return RequestId(client, int(session_start), int(sequence))
    except ValueError:
        return None


class RequestStatus(Enum):
    """Treatment of a request."""

    NEW = "new"
    """Execute it, and `record` the result."""
    DUPLICATE = "duplicate"
    """Do not execute it; return the stored result."""
    EXPIRED = "expired"
    """Refuse it: the table no longer shows whether it was executed."""


class SessionLimits(Struct, frozen=True):
    """Bounds of the table. Every server must have the same, because they determine which sessions expire."""

    sessions_max: int = 1024
    window: int = 16
    """Results kept per client: the limit for its requests under way."""
    result_bytes_max: int = 1024
    """A longer result is not stored: a repeated request is then reported as executed, without its result."""
    expiry_ms: Milliseconds = 3_600_000
    reserved_prefix: str = ""
    """Prefix of preferred clients' names.

    A full table drops other sessions first, because any client can fill the table with them. Empty: no session is
    preferred.
    """

    @property
    def table_bytes_max(self) -> int:
        """Size of the longest `SessionTable.dump`."""
        result = 2 * NUMBER_BYTES + 1 + self.result_bytes_max
        session = 6 * NUMBER_BYTES + CLIENT_BYTES_MAX + self.window * result
        return 1 + 3 * NUMBER_BYTES + self.sessions_max * session

    def is_reserved(self, client: str) -> bool:
        """Return True if sessions of other clients are dropped before this client's."""
        return self.reserved_prefix != "" and client.startswith(self.reserved_prefix)


DEFAULT_LIMITS = SessionLimits()


class _Session(Struct):
    last_index: Index
    last_ms: Milliseconds
    highest: int = 0
    results: dict[int, bytes | None] = field(default_factory=dict)


class SessionTable:
    """The sessions of all clients, the least recently used first."""

    def __init__(self, limits: SessionLimits = DEFAULT_LIMITS) -> None:
        self.limits = limits
        self.floor: Index = 0
        """The greatest last index of all sessions that have expired so far."""
        self._now_ms: Milliseconds = 0
        self._sessions: dict[tuple[str, Index], _Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def admit(self, request: RequestId, index: Index, now_ms: Milliseconds) -> RequestStatus:
        """Classify the request in the entry at `index`, at this log time. Call `record` next for a new request."""
        self.expire(now_ms)
        name = (request.client, request.session_start)
        session = self._sessions.pop(name, None)
        if session is None:
            if not self.floor <= request.session_start < index:
                return RequestStatus.EXPIRED
            self._make_room()
            session = _Session(index, self._now_ms)
        session.last_index, session.last_ms = index, self._now_ms
        self._sessions[name] = session
        if request.sequence in session.results:
            return RequestStatus.DUPLICATE
        return RequestStatus.NEW if request.sequence > session.highest - self.limits.window else RequestStatus.EXPIRED

    def record(self, request: RequestId, result: bytes) -> None:
        """Store the result of the executed request for every repetition of it."""
        session = self._sessions[request.client, request.session_start]
        stored_result = result if len(result) <= self.limits.result_bytes_max else None
        session.results[request.sequence] = stored_result
        session.highest = max(session.highest, request.sequence)
        oldest = session.highest - self.limits.window
        for sequence in [sequence for sequence in session.results if sequence <= oldest]:
            del session.results[sequence]

    def has(self, client: str, session_start: Index) -> bool:
        """Return True if this client has a session that began there."""
        return (client, session_start) in self._sessions

    def count(self, prefix: str) -> int:
        """Return the number of sessions of clients whose names begin with `prefix`."""
        return sum(client.startswith(prefix) for client, _ in self._sessions)

    def was_executed(self, request: RequestId) -> bool:
        """Return True if exactly this request is stored."""
        session = self._sessions.get((request.client, request.session_start))
        return session is not None and request.sequence in session.results

    def result_of(self, request: RequestId) -> bytes | None:
        """Return the first result of an executed request; None if it was too long to be kept."""
        return self._sessions[request.client, request.session_start].results[request.sequence]

    def expire(self, now_ms: Milliseconds) -> None:
        """Set log time to `now_ms` (only `turn_back` sets it back); sessions without recent requests expire."""
        if self._now_ms == 0:
            self._begin_time(now_ms)
        self._now_ms = max(self._now_ms, now_ms)
        while self._sessions:
            longest_silent = next(iter(self._sessions.values()))
            if self._now_ms - longest_silent.last_ms <= self.limits.expiry_ms:
                return
            self._expire_longest_silent()

    def turn_back(self, by_ms: Milliseconds) -> None:
        """Set log time back by `by_ms`; the idle time of each client does not change."""
        self._now_ms = max(0, self._now_ms - by_ms)
        for session in self._sessions.values():
            session.last_ms = max(0, session.last_ms - by_ms)

    def change_results(self, changed: Callable[[bytes], bytes]) -> None:
        """Replace each stored result; for a state that begins a new cluster."""
        for session in self._sessions.values():
            for sequence, result in session.results.items():
                session.results[sequence] = None if result is None else changed(result)

    def dump(self) -> bytes:
        """Return the whole table for a snapshot: equal tables give equal bytes."""
        parts = [
            bytes([_FORMAT]),
            number_bytes(self.floor),
            number_bytes(self._now_ms),
            number_bytes(len(self._sessions)),
        ]
        for (client, session_start), session in self._sessions.items():
            parts += [
                text_bytes(client.encode()),
                number_bytes(session_start),
                number_bytes(session.last_index),
                number_bytes(session.last_ms),
            ]
            parts += [number_bytes(session.highest), number_bytes(len(session.results))]
            for sequence, result in sorted(session.results.items()):
                parts += [number_bytes(sequence), b"\0" if result is None else b"\1" + text_bytes(result)]
        return b"".join(parts)

    @classmethod
    def load(cls, data: bytes, limits: SessionLimits = DEFAULT_LIMITS) -> "SessionTable":
        """Return the table from `dump`, under the same limits; raises `SessionTableError`."""
        table, reader = cls(limits), TableReader(data, "a session table", SessionTableError)
        if reader.take(1) != bytes([_FORMAT]):
            raise SessionTableError(f"a session table has format {data[0]}, not {_FORMAT}")
        table.floor, table._now_ms = reader.number(), reader.number()
        for _ in range(reader.number(table.limits.sessions_max)):
            name, session = _load_session(reader, limits)
            if name in table._sessions:
                raise SessionTableError(f"a session table names the client {name[0]!r} twice")
            table._sessions[name] = session
        reader.end()
        return table

    def _begin_time(self, now_ms: Milliseconds) -> None:
        """Count the idle time of sessions from now, because log time begins now."""
        for session in self._sessions.values():
            session.last_ms = now_ms

    def _make_room(self) -> None:
        if len(self._sessions) >= self.limits.sessions_max:
            longest_silent = next(iter(self._sessions))
            others = (name for name in self._sessions if not self.limits.is_reserved(name[0]))
            self._end(next(others, longest_silent))

    def _expire_longest_silent(self) -> None:
        self._end(next(iter(self._sessions)))

    def _end(self, name: tuple[str, Index]) -> None:
        self.floor = max(self.floor, self._sessions.pop(name).last_index)


def _load_session(reader: TableReader, limits: SessionLimits) -> tuple[tuple[str, Index], _Session]:
    try:
        client = reader.text(CLIENT_BYTES_MAX).decode()
    except UnicodeDecodeError as error:
        raise SessionTableError("a session table contains a client's name that is not text") from error
    name = (client, reader.number())
    session = _Session(reader.number(), reader.number(), reader.number())
    for _ in range(reader.number(limits.window)):
        sequence = reader.number()
        session.results[sequence] = reader.text(limits.result_bytes_max) if reader.take(1) == b"\1" else None
    return name, session
