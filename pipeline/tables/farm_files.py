"""A small table of the newest state, in files by farm: a batch reads and writes only the files of its farms.

    file 1   farms 00… to 3a…   up to `FILE_ROWS` rows, in the order of the keys
    file 2   farms 3b… to 7f…   …

The state has a row for each server of each farm, so with many farms it is too large for the driver's memory. A farm's
rows are in one file, and the commit states the first and the last farm of each file. The rows of a new farm go into the
file whose farms precede it. More than `FILE_ROWS` rows are written into several files of about equal size, so each has
room for more rows. Files with overlapping ranges of farms count as one, for example after another program has merged
files. If there is only one file, its rows stay in memory.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.output.buckets import Output
from pipeline.tables.delta import StoredFile, Table, TableSpec
from pipeline.tables.files import DataFile, write_files

FILE_ROWS: Final = 32_768
_LAST: Final = "\U0010ffff"


@dataclass(slots=True)
class Change:
    """Written files, and the files that they replace."""

    added: list[DataFile] = field(default_factory=list)
    removed: list[StoredFile] = field(default_factory=list)


class FarmFiles:
    """A table in files by farm. `sorted_by` of its specification begins with `farm`."""

    def __init__(self, output: Output, spec: TableSpec) -> None:
        self.table = Table(output, spec)
        self._order = [(each, "ascending") for each in spec.sorted_by]
        self._kept: dict[str, pa.Table] = {}
        """The rows of the only file, by its path."""

    def change(
        self, found: pa.Table, merge: Callable[[pa.Table, pa.Table], pa.Table], *, is_new: bool = False
    ) -> Change:
        """Write the files that a batch changes. They become part of the table with `commit`.

        `merge` returns the new rows of some farms from their known rows and their rows in `found`. `is_new` is True for
        a table without rows.
        """
        files = self.table.files()
        change = Change(removed=files) if is_new else Change()
        for part, rows in _parts([] if is_new else files, found.sort_by("farm")):
            known = self._rows(part)
            merged = merge(known, rows).sort_by(self._order)
            if merged.equals(known):
                continue
            change.removed += part
            for piece in pieces(merged, FILE_ROWS):
                written = write_files(self.table.root, self.table.spec.schema, piece)
                change.added += written
                self._kept = {each.path: piece for each in written} if piece is merged and len(files) <= 1 else {}
        return change

    def commit(self, batches: Sequence[tuple[str, int]], change: Change) -> None:
        """Commit a change for some batches of queries; do nothing if there are neither batches nor changed files."""
        if batches or change.added or change.removed:
            self.table.exchange(batches, change.added, change.removed)

    def _rows(self, files: Sequence[StoredFile]) -> pa.Table:
        if len(files) == 1 and files[0].path in self._kept:
            return self._kept[files[0].path]
        return self.table.rows(files)


def pieces(rows: pa.Table, most: int) -> Iterator[pa.Table]:
    """Divide rows in order of farm into parts of about equal size, with about `most` rows at most and whole farms."""
    if rows.num_rows <= most:
        if rows.num_rows:
            yield rows
        return
    ends = pc.run_end_encode(rows.column("farm").combine_chunks()).run_ends.to_pylist()
    begin, size = 0, -(-rows.num_rows // -(-rows.num_rows // most))
    while begin < rows.num_rows:
        end = ends[min(bisect_left(ends, begin + size), len(ends) - 1)]
        yield rows.slice(begin, end - begin)
        begin = end


def _parts(files: Sequence[StoredFile], found: pa.Table) -> Iterator[tuple[list[StoredFile], pa.Table]]:
    """Yield the files that contain farms of `found`, each with its rows."""
    groups: list[list[StoredFile]] = []
    last = ""
    for file in sorted(files, key=lambda each: each.first_farm or ""):
        if groups and (file.first_farm or "") <= last:
            groups[-1].append(file)
        else:
            groups.append([file])
        last = max(last, file.last_farm or _LAST)
    farms = found.column("farm")
    begins = [0, *(pc.sum(pc.less(farms, group[0].first_farm)).as_py() or 0 for group in groups[1:])]
    for group, begin, end in zip(groups or [[]], begins, [*begins[1:], found.num_rows], strict=True):
        if begin < end:
            yield group, found.slice(begin, end - begin)
