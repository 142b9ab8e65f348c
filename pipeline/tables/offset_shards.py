"""The offsets of many farms as files of shards.

    up to `WHOLE_FARMS`   {"farms": {CLUSTER: NEXT INDEX, …}, …}         as a whole in the checkpoint
    more                  {"shards": [NAME, …], "read": N, "begun": N}   NAME is a file in <checkpoint>/shards

Spark stores an offset as one line of JSON. It passes the line through the JVM several times a batch, and in each report
of the progress. With 100,000 farms the line would have nine megabytes. With shards it has less than a kilobyte.

The first digit of a cluster id determines the shard of a farm. If there are too many farms for one batch, they take
turns (`pipeline/source/shares.py`), and a batch changes few shards. The name of a shard is the hash of its content. So
a shard without new entries is not written again, and equal offsets are equal texts. A shard is durable before its
offset is returned, so a repeated batch finds it. Shards that no offset of the checkpoint names are removed.
"""

import re
from collections import deque
from collections.abc import Collection, Sequence
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec

from pipeline.output.buckets import Output
from pipeline.output.documents import Document, sync
from pipeline.source.log_client import FarmLogError
from pipeline.source.offsets import WHOLE_FARMS, Offset, WholeOffsets, entries_before
from pipeline.tables.batch_notes import repair_remedy

SWEEP_OFFSETS: Final = 100
"""The number of stored offsets between two removals."""
FOLDER: Final = "shards"
_NAME = re.compile(rb"\b[0-9a-f]{32}\b")
_PARTS = ("farms", "begins", "times")


class OffsetShards(WholeOffsets):
    """The offsets of a checkpoint, with shards if there are many farms."""

    def __init__(self, checkpoint: Output) -> None:
        self._checkpoint = checkpoint
        self._known: dict[str, bytes] = {}
        """The shards of the last two offsets, the start and the end of a batch, by name."""
        self._last: deque[tuple[str, ...]] = deque(maxlen=2)
        self._stored = 0

    def stored(self, offset: Offset) -> Offset:
        """Store the shards of an offset with many farms; return the offset with their names."""
        if len(offset["farms"]) <= WHOLE_FARMS:
            return offset
        shards: dict[str, Offset] = {}
        for part in _PARTS:
            for cluster, value in offset.get(part, {}).items():
                shards.setdefault(cluster[:1], {}).setdefault(part, {})[cluster] = value
        contents = [msgspec.json.encode(each, order="sorted") for _, each in sorted(shards.items())]
        names = tuple(blake2b(each, digest_size=16).hexdigest() for each in contents)
        folder = self._checkpoint / FOLDER
        if isinstance(folder, Path) and not folder.is_dir():
            folder.mkdir(parents=True)
            sync(folder.parent, folder.parent.parent)
        for name, content in zip(names, contents, strict=True):
            if name not in self._known:
                Document(folder / name).write(content)
        self._remember(names, contents)
        self._stored += 1
        if self._stored % SWEEP_OFFSETS == 0:
            self._sweep()
        new_entries = sum(each["next"] - 1 for each in offset.get("begins", {}).values())
        return {"shards": [*names], "read": entries_before(offset), "begun": new_entries}

    def loaded(self, offset: Offset) -> Offset:
        """Return the whole offset. Raise FarmLogError if a shard is missing or damaged."""
        return self._without(offset, frozenset())

    def changed(self, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """Return both offsets without the shards that they have in common. Raise FarmLogError."""
        common = frozenset(start.get("shards", ())) & frozenset(end.get("shards", ()))
        return self._without(start, common), self._without(end, common)

    def _without(self, offset: Offset, omitted: Collection[str]) -> Offset:
        if "shards" not in offset:
            return offset
        names = tuple(offset["shards"])
        contents = [self._known[name] if name in self._known else self._read(name) for name in names]
        self._remember(names, contents)
        whole: Offset = {"farms": {}}
        for name, content in zip(names, contents, strict=True):
            for part, values in msgspec.json.decode(content).items() if name not in omitted else ():
                whole.setdefault(part, {}).update(values)
        return whole

    def _read(self, name: str) -> bytes:
        file = self._checkpoint / FOLDER / name
        content = Document(file).read() or b""
        if blake2b(content, digest_size=16).hexdigest() != name:
            raise FarmLogError(f"{file} is missing or damaged: {repair_remedy(self._checkpoint.parent)}")
        return content

    def _remember(self, names: tuple[str, ...], contents: Sequence[bytes]) -> None:
        if names in self._last:
            self._last.remove(names)
        self._last.append(names)
        known = {**self._known, **dict(zip(names, contents, strict=True))}
        self._known = {name: known[name] for name in set(chain.from_iterable(self._last))}

    def _sweep(self) -> None:
        """Remove the shards that neither an offset of the checkpoint nor one of the last two offsets names."""
        # List the shards before the offsets. New shards of another process that continues this checkpoint are then not
        # in the list, and stay.
        stored, offsets = [*(self._checkpoint / FOLDER).iterdir()], self._checkpoint / "offsets"
        used = {*self._known}
        for file in offsets.iterdir() if offsets.is_dir() else ():
            used |= {name.decode() for name in _NAME.findall(Document(file).read() or b"")}
        for file in stored:
            if file.name not in used:
                file.unlink(missing_ok=True)
