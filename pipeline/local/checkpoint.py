"""A checkpoint directory in the form of Spark's, read and written without a JVM.

    <checkpoint>/metadata      the id of the query, made once
    <checkpoint>/offsets/N     the end of batch N: version, properties, offset of the source; written before the batch
    <checkpoint>/commits/N     written after the batch

Either engine continues a directory of the other one, since numbers and offsets have the same meaning. A batch with an
offset and without a commit is run again, with the same ends. Each file is synced under another name and then renamed,
so a kill or a power failure leaves a whole file or none. Spark also writes a checksum next to each file, and accepts a
file without a checksum.

The newest `KEPT` batches stay, which is Spark's default.
"""

import json
import time
import uuid
from pathlib import Path
from typing import Any, Final

from pipeline.output.buckets import Output
from pipeline.output.documents import Document, sync
from pipeline.tables.batch_notes import repair_remedy
from pipeline.tables.files import TableDamagedError

CHECKPOINT, EVENTS_CHECKPOINT = "checkpoint", "checkpoint-events"
"""The checkpoints of an output directory."""
KEPT: Final = 100
_VERSION = "v1"
_OFFSETS, _COMMITS = "offsets", "commits"

SourceOffset = dict[str, Any]
"""The place in all logs or traces between two batches; the source determines its form."""


class StoredCheckpoint:
    """The checkpoint of one query, which one process writes."""

    def __init__(self, root: Output) -> None:
        self._root = root

    @property
    def planned(self) -> int:
        """The last batch with an offset; -1 without one."""
        return last_number(self._root / _OFFSETS)

    @property
    def committed(self) -> int:
        """The last batch with a commit; -1 without one."""
        return last_number(self._root / _COMMITS)

    def offset(self, number: int) -> SourceOffset:
        """Return the end of a batch. Raise TableDamagedError."""
        file = self._root / _OFFSETS / str(number)
        found = read_offset(file)
        if found is None:
            raise TableDamagedError(f"{file} is missing or damaged; {repair_remedy(self._root.parent)}")
        return found

    def begin(self) -> None:
        """Make a checkpoint without batches. A bucket does not have empty folders."""
        if isinstance(self._root, Path):
            self._root.mkdir()
        else:
            self._write_id()

    def plan(self, number: int, offset: SourceOffset) -> None:
        """Record the end of a batch, before it begins."""
        if not (self._root / "metadata").is_file():
            self._write_id()
        properties = {"batchWatermarkMs": 0, "batchTimestampMs": time.time_ns() // 1_000_000, "conf": {}}
        self._write(_OFFSETS, str(number), "\n".join((_VERSION, json.dumps(properties), json.dumps(offset))))

    def commit(self, number: int) -> None:
        """Record that all tables have a batch."""
        self._write(_COMMITS, str(number), "\n".join((_VERSION, json.dumps({"nextBatchWatermarkMs": 0}))))
        for folder in (_OFFSETS, _COMMITS) if number >= KEPT else ():
            old = self._root / folder / f"{number - KEPT}"
            old.unlink(missing_ok=True)
            if isinstance(old, Path):
                old.with_name(f".{old.name}.crc").unlink(missing_ok=True)

    def _write_id(self) -> None:
        self._write("", "metadata", json.dumps({"id": str(uuid.uuid4())}))

    def _write(self, folder: str, name: str, content: str) -> None:
        directory = self._root / folder
        if isinstance(directory, Path) and not directory.is_dir():
            directory.mkdir(parents=True)
            sync(directory.parent, directory.parent.parent)
        Document(directory / name).write(content.encode())
        # A checksum of Spark's for an earlier file of this name would be wrong.
        if isinstance(directory, Path):
            (directory / f".{name}.crc").unlink(missing_ok=True)


def last_number(directory: Output) -> int:
    """Return the highest number among the names of a directory's files; -1 without one."""
    is_local = isinstance(directory, Path)
    names = [each.name for each in directory.iterdir()] if not is_local or directory.is_dir() else []
    return max((int(each) for each in names if each.isdecimal()), default=-1)


def read_offset(file: Output) -> SourceOffset | None:
    """Return the offset in a file of `offsets`; None if it is missing or damaged."""
    try:
        version, _, text = (Document(file).read() or b"").decode().splitlines()
        offset = json.loads(text)
    except ValueError:
        return None
    return offset if version == _VERSION and isinstance(offset, dict) else None


def is_of_topic(checkpoint: Output) -> bool:
    """Return True if a readable checkpoint has the offsets of a Kafka topic instead of the next entries of farms."""
    offset = read_offset(checkpoint / _OFFSETS / str(last_number(checkpoint / _OFFSETS)))
    return offset is not None and not offset.keys() & {"farms", "shards"}
