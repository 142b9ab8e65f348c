"""Requests of the Raft port with each field at its limits, written from the document, byte by byte.

A server must accept one kind of hostile request: an append of a reachable term that fits onto its log. Raft does not
tolerate Byzantine leaders, and such a leader makes logs diverge. So the module does not make such appends.
"""

import gzip
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random

LONGS = (0, 1, -1, 2**31 - 1, 2**32, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
INTS = (0, 1, -1, 2**31 - 1, -(2**31), 77)
SIZES = (0, 1, 2**31 - 1, 2**32 - 1)
KINDS = (1, 3, 5, 6, 8, 10, 12, 14, 16, 64, 66, 68, 70)
"""The types of requests."""
APPENDS = {3, 10, 12, 16}
"""Requests of a leader. Those made here never fit onto a log."""
OUT_OF_REACH = 2**62
BOMB_BYTES = 64 * 2**20
NO_REQUESTS = (0, 2, 4, 65, 99, 255)


@dataclass(frozen=True)
class RequestFields:
    """The fixed fields of one request, and the bytes of its entries."""

    kind: int
    source: int
    destination: int
    term: int
    last_term: int
    last_index: int
    commit: int
    entries: bytes = b""
    size: int | None = None
    """The announced size, or None for the size of the entries."""

    def packed(self) -> bytes:
        """Return the request in wire format. Numbers are cut to the size of their field."""
        numbers = (each % 2**64 for each in (self.term, self.last_term, self.last_index, self.commit))
        size = len(self.entries) if self.size is None else self.size
        return struct.pack(">BiiQQQQI", self.kind, self.source, self.destination, *numbers, size) + self.entries


def entry(term: int, kind: int, value: bytes, size: int | None = None) -> bytes:
    return struct.pack(">QBI", term % 2**64, kind, len(value) if size is None else size) + value


def servers(*found: tuple[int, bytes]) -> bytes:
    return b"".join(struct.pack(">iI", server_id, len(text)) + text for server_id, text in found)


@cache
def bomb() -> bytes:
    return gzip.compress(bytes(BOMB_BYTES))


def values(random: Random) -> Iterator[bytes]:
    """Yield entries with inner fields at their limits."""
    long = random.choice(LONGS) % 2**64
    identity = random.choice(INTS)
    level = b'{"level":{"number":65535,"version":"9.9.9"}}'
    for term in (0, 1, long):
        yield entry(term, random.choice((0, 1, 3, 4, 5, 66, 255)), random.randbytes(random.choice((0, 1, 200))))
        yield entry(term, 1, level)
        yield entry(term, 1, b"{" * 70_000)
        yield entry(term, 1, b"", size=random.choice(SIZES))
    text = random.choice((b"", b"x" * 70_000, b"tcp://\xff\x00:0", b"tcp://127.0.0.1:7669"))
    yield entry(0, 2, struct.pack(">QQ", long, long) + servers((identity, text), (identity, text)))
    yield entry(0, 3, servers((identity, text)))
    yield entry(0, 3, struct.pack(">i", identity))
    records = struct.pack(">QB", long, 1) + b"{}"
    plain = struct.pack(">IIQ", 8, len(records), long) + records
    yield entry(0, 4, gzip.compress(plain))
    yield entry(0, 4, gzip.compress(struct.pack(">II", *random.choices(SIZES, k=2))))
    yield entry(0, 4, bomb())
    configuration = struct.pack(">QQ", 1, 0) + servers((1, b"tcp://127.0.0.1:1"))
    for offset, data in ((long, b"x"), (0, random.randbytes(300)), (0, b"")):
        piece = struct.pack(">QI", offset, len(data)) + data + bytes([random.choice((0, 1, 255))])
        yield entry(1, 5, struct.pack(">QQI", OUT_OF_REACH, 1, len(configuration)) + configuration + piece)


def requests(plausible: RequestFields, random: Random) -> Iterator[RequestFields]:
    """Yield each type with each field at each limit, and with random combinations. No append fits onto a log."""
    made: list[RequestFields] = []
    for kind in KINDS:
        base = replace(plausible, kind=kind)
        made += [replace(base, term=each) for each in LONGS]
        made += [replace(base, last_term=each) for each in LONGS]
        made += [replace(base, last_index=each) for each in LONGS]
        made += [replace(base, commit=each) for each in LONGS]
        made += [replace(base, source=each) for each in INTS]
        made += [replace(base, destination=each) for each in INTS]
        made += [replace(base, size=each) for each in SIZES]
        made += [replace(base, entries=each) for each in values(random)]
        combinations = (random.choices(LONGS, k=4) for _ in range(10))
        made += [replace(base, term=a, last_term=b, last_index=c, commit=d) for a, b, c, d in combinations]
    made += [replace(plausible, kind=kind) for kind in NO_REQUESTS]
    random.shuffle(made)
    for fields in made:
        yield replace(fields, last_index=OUT_OF_REACH, last_term=1) if _might_fit(fields) else fields


def _might_fit(fields: RequestFields) -> bool:
    return fields.kind in APPENDS and fields.term % 2**64 not in {0, 1} and fields.last_index != OUT_OF_REACH


def in_batches(fields: Sequence[RequestFields], size: int) -> Iterator[bytes]:
    """Yield several requests per connection. The last one is invalid: the server closes and does not read further."""
    end = struct.pack(">B", 255) + bytes(44)
    for start in range(0, len(fields), size):
        yield b"".join(each.packed() for each in fields[start : start + size]) + end
