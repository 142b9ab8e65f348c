"""The history of a run: each operation of a client with its times and result, in memory and in a file.

Values are unique, so an entry of the log identifies its write. All times are nanoseconds of the machine's monotonic
clock, which all processes of a run share. An operation without an answer has an unknown result: it may take effect at
any later time, or never.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, TextIO

import msgspec


class Protocol(Enum):
    """The protocol of a client."""

    GARLIC_FARM = "garlic-farm"
    ZMQ = "zmq"
    KAFKA = "kafka"


class Outcome(Enum):
    """Result of an operation."""

    OK = "ok"
    FAILED = "failed"
    """Refused: it did not take effect, and never will."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Operation:
    """A write of a register, or a linearizable read of all registers."""

    protocol: Protocol
    client: str
    value: int | None
    """The written value; None: a read."""
    key: int
    called_ns: int
    answered_ns: int
    outcome: Outcome
    index: int | None = None
    """Index of the written entry, or of the last entry that the read includes."""
    found: Mapping[int, int] = field(default_factory=dict)
    """The value of each register that a read has found."""
    detail: str = ""


def entry(key: int, value: int) -> bytes:
    return b'{"jepsen":{"key":%d,"value":%d}}' % (key, value)


def written(data: bytes) -> tuple[int, int] | None:
    """Return key and value of an entry of the workload, or None for another entry."""
    if b'"jepsen"' not in data:
        return None
    try:
        found = msgspec.json.decode(data)["jepsen"]
        return int(found["key"]), int(found["value"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None


class History:
    """The operations in the order of their ends; each is also a line of a file."""

    def __init__(self, path: Path | None = None) -> None:
        self.operations: list[Operation] = []
        self._file: TextIO | None = None if path is None else path.open("w", encoding="utf-8")

    def add(self, operation: Operation) -> None:
        self.operations.append(operation)
        if self._file is not None:
            self._file.write(json.dumps(asdict(operation), default=_value) + "\n")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


def _value(each: Any) -> Any:
    return each.value
