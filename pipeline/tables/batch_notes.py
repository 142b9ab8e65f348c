"""The record of batches and their ranges, kept separate from the tables and from Spark's checkpoint.

    begin: batch N reads entries 2001 to 3000 of farm F ──▶ the tables commit N ──▶ done: reports has N, clocks has N …

Spark numbers batches, and a table identifies a batch by its number. This is correct only while checkpoint and tables
are from the same time. After a checkpoint was restored from a backup, or lost its last file in a power failure, Spark
gives the number N to other entries. But the tables already have a batch N, so they would skip these entries. And if a
table is restored from a backup, its lost batches are not repeated. The numbers in Spark and Delta Lake do not reveal
either case.

So `batches-log.json` (for traces `batches-events.json`) records the range of a batch before a table commits it. After
all commits it records the last batch of each table. The derived tables may lag, so their last batches are a separate
part. `TableDamagedError` reports a batch with a gap after the last batch, a recorded number with another range, and a
table that lacks an earlier batch. The file is replaced as a whole (`pipeline/output/documents.py`). The last entries of
farms stay in JSON between two batches. As objects, the entries of 100,000 farms would take a tenth of the driver's
memory.
"""

import shlex
from collections.abc import Mapping
from enum import Enum
from typing import Final

import msgspec
from msgspec import Raw, Struct

from pipeline.output.buckets import Output
from pipeline.output.documents import Document
from pipeline.tables.files import ALL_FROM_BACKUP, OF_WATCH, TableDamagedError


class Continuity(Enum):
    """The relation of a batch's first entry to the last one of the batch before."""

    NEXT = "by one"
    """A farm's own log has an entry at each index."""
    LATER = "at some distance"
    """A topic lacks indexes whose entries are not for its readers."""
    UNKNOWN = "in no order"
    """The cursor of a node's trace (its last events) begins again when the node restarts."""


class Range(Struct, frozen=True, array_like=True):
    """The first and the last index of the entries of one farm in a batch."""

    first: int
    last: int


_NONE: Final = Raw(b"{}")
_NO_TABLES: Final[Mapping[str, int]] = {}
_ranges = msgspec.json.Decoder(dict[str, Range]).decode
_indexes = msgspec.json.Decoder(dict[str, int]).decode


class _Noted(Struct, frozen=True, rename="camel"):
    begun: int
    """The batch whose commits may be incomplete."""
    done: int
    """The last batch that all tables have."""
    ranges: Raw
    """The entries of the begun batch, by farm."""
    through: Raw
    """The last index of each farm before the begun batch."""
    tables: dict[str, int]
    """The last batch of each table, at the end of the batch `done`."""
    base: int = 0
    """The tables' number for batch 0 of the present checkpoint; above 0 after a repair, because Spark then counts from
    0 again.
    """
    starts: Raw = _NONE
    """The first entry of each farm in the present checkpoint. A repetition of batch 0 begins there again."""
    derived: dict[str, int] = {}
    """The last batch of each derived table, and of `gold_windows`."""
    of_topic: bool = False
    """True if a batch is from a topic (`Continuity.LATER`)."""


class NotedBatches(Struct, frozen=True, rename="camel"):
    """The part of the notes that a reader of the tables compares with them."""

    begun: int
    tables: dict[str, int]
    derived: dict[str, int] = {}
    of_topic: bool = False

    def is_other(self, table: str, batch: int) -> bool:
        """Return True if a derived table with this last batch does not match the record."""
        return not self.derived.get(table, -1) <= batch <= self.begun


def noted_batches(output: Output, query: str) -> NotedBatches | None:
    """Return the last batches of a query, for a reader; None without a record. Raise TableDamagedError."""
    path = _path(output, query)
    content = Document(path).read()
    try:
        return None if content is None else msgspec.json.decode(content, type=NotedBatches)
    except msgspec.MsgspecError as error:
        raise _damaged(path, error) from error


def refuse_older(root: Output, batch: int, noted: int) -> None:
    """Raise TableDamagedError if a table ends with an earlier batch than its record states."""
    if batch < noted:
        end = "is missing or empty" if batch < 0 else f"ends with batch {batch}"
        raise TableDamagedError(
            f"{root} {end} and had batch {noted} before: it is older than the other tables, or its last commit was"
            f" lost; {ALL_FROM_BACKUP if root.name in OF_WATCH else repair_remedy(root.parent)}"
        )


def repair_remedy(output: Output) -> str:
    """Return the remedy for tables, records and checkpoints from different times."""
    return (
        f"stop the pipeline and run `garlicfarm pipeline repair --output {shlex.quote(str(output))}`, {ALL_FROM_BACKUP}"
    )


def refuse_record(output: Output, query: str, record: NotedBatches | None, last: int) -> None:
    """Raise TableDamagedError if a record cannot belong to tables with the last batch `last`."""
    if found := _fault(None if record is None else record.begun, last):
        raise _other_record(_path(output, query), found)


def _fault(begun: int | None, last: int, *, may_be_missing: bool = False) -> str:
    """Return the fault of a record with the last batch `begun`; each batch is recorded before a table commits it."""
    if begun is None:
        return "" if last < 0 or may_be_missing else "it is missing"
    return "" if last <= begun else f"it ends with batch {begun}, and the tables have batch {last}"


class BatchNotes:
    """The notes about the batches of one query."""

    def __init__(self, output: Output, query: str, continuity: Continuity = Continuity.NEXT) -> None:
        """Raise TableDamagedError if the file cannot be read."""
        self.path = _path(output, query)
        self._document = Document(self.path)
        self._continuity = continuity
        self._noted = self._load()

    @property
    def is_empty(self) -> bool:
        """True if no batch has begun yet."""
        return self._noted is None

    @property
    def base(self) -> int:
        """The tables' number for batch 0 of the present checkpoint."""
        return 0 if self._noted is None else self._noted.base

    @property
    def starts(self) -> dict[str, int]:
        """The first entry of each farm in the present checkpoint; a farm without one begins as the source decides."""
        return {} if self._noted is None else _indexes(self._noted.starts)

    @property
    def done(self) -> int:
        """The last batch that all tables have; -1 without one."""
        return -1 if self._noted is None else self._noted.done

    @property
    def of_topic(self) -> bool:
        """True if this run or an earlier one reads a topic, which lacks indexes between two entries."""
        return self._continuity is Continuity.LATER or (self._noted is not None and self._noted.of_topic)

    def batch_of(self, table: str) -> int:
        """Return the last batch of a table at the end of the batch `done`; -1 without one."""
        return -1 if self._noted is None else self._noted.tables.get(table, -1)

    def next_entries(self) -> dict[str, int]:
        """Return the entry of each farm after the batch `done`."""
        noted = self._noted
        if noted is None:
            return {}
        last = _indexes(noted.through) if noted.begun > noted.done else _through(noted)
        return {farm: each + 1 for farm, each in last.items()}

    def begun_entries(self) -> dict[str, Range]:
        """Return the entries of the begun batch if its commits may be incomplete, otherwise nothing."""
        noted = self._noted
        return _ranges(noted.ranges) if noted is not None and noted.begun > noted.done else {}

    def begin_numbers(self) -> None:
        """Begin new numbers: batch 0 of the next checkpoint follows the last begun batch, which all tables have."""
        noted = self._noted
        if noted is not None:
            through = _through(noted)
            starts = _json({farm: each + 1 for farm, each in through.items()})
            begun, derived, of_topic = noted.begun, noted.derived, self.of_topic
            new = _Noted(begun, begun, _NONE, _json(through), noted.tables, begun + 1, starts, derived, of_topic)
            self._store(new)

    def check_tables(self, committed: Mapping[str, int], *, may_be_missing: bool = False) -> None:
        """Raise TableDamagedError if a table lacks a batch that it had, or has a batch that the record lacks.

        `committed`: the last batch of each table. `may_be_missing`: an earlier version wrote the tables without a
        record.
        """
        if found := self.fault(committed, may_be_missing=may_be_missing):
            raise _other_record(self.path, found)
        for name, batch in (self._noted.tables if self._noted is not None else {}).items():
            refuse_older(self.path.parent / name, committed.get(name, batch), batch)

    def fault(self, committed: Mapping[str, int], *, may_be_missing: bool = False) -> str:
        """Return the fault of the record; empty if it can belong to the tables, whose last batches are `committed`.

        `may_be_missing`: an earlier version wrote the tables without a record.
        """
        begun = None if self._noted is None else self._noted.begun
        return _fault(begun, max(committed.values(), default=-1), may_be_missing=may_be_missing)

    def rebuild(
        self, committed: Mapping[str, int], last_entries: Mapping[str, int], derived: Mapping[str, int] = _NO_TABLES
    ) -> None:
        """Replace the notes by notes of complete batches: the last batch of each table, the last entry of each farm.

        `begin_numbers` stores the notes, because no known checkpoint fits them.
        """
        last = max(committed.values(), default=-1)
        tables = dict(committed)
        self._noted = _Noted(
            last, last, _NONE, _json(last_entries), tables, derived=dict(derived), of_topic=self.of_topic
        )

    def begin(self, batch: int, ranges: Mapping[str, Range]) -> None:
        """Record a batch's ranges before the first table commits it. Raise TableDamagedError if it does not fit."""
        noted = self._noted
        if noted is None:
            self._store(_Noted(batch, batch - 1, _json(ranges), _NONE, {}, of_topic=self.of_topic))
            return
        if batch == noted.begun:
            self._refuse_other(batch, ranges, noted)
            return
        if batch != noted.done + 1:
            side = "older" if batch <= noted.done else "newer"
            raise TableDamagedError(
                f"the checkpoint in {self.path.parent} is {side} than the tables: it continues with batch {batch}, and"
                f" the tables end with batch {noted.done}; {repair_remedy(self.path.parent)}"
            )
        through = _through(noted)
        for farm, each in ranges.items():
            self._refuse_gap(farm, each.first, through.get(farm))
        entries, before, of_topic = _json(ranges), _json(through), self.of_topic
        self._store(msgspec.structs.replace(noted, begun=batch, ranges=entries, through=before, of_topic=of_topic))

    def end(self, batch: int, committed: Mapping[str, int], derived: Mapping[str, int] | None = None) -> None:
        """Record that all tables have a batch; `committed` has the last batch of each.

        `derived`: the last batch of each derived table; None if they are unchanged.
        """
        noted = self._noted
        if noted is not None and noted.done < batch:
            known = noted.derived if derived is None else dict(derived)
            self._store(msgspec.structs.replace(noted, done=batch, tables=dict(committed), derived=known))

    @property
    def derived(self) -> Mapping[str, int]:
        """The last batch of each derived table."""
        return _NO_TABLES if self._noted is None else self._noted.derived

    def end_derived(self, derived: Mapping[str, int]) -> None:
        """Record the last batch of each derived table."""
        if self._noted is not None and self._noted.derived != derived:
            self._store(msgspec.structs.replace(self._noted, derived=dict(derived)))

    def _refuse_other(self, batch: int, ranges: Mapping[str, Range], noted: _Noted) -> None:
        if ranges != (begun := _ranges(noted.ranges)):
            raise TableDamagedError(
                f"the checkpoint in {self.path.parent} is older than the tables: its batch {batch} has"
                f" {_words(ranges)}, and batch {batch} of the tables has {_words(begun)};"
                f" {repair_remedy(self.path.parent)}"
            )

    def _refuse_gap(self, farm: str, first: int, through: int | None) -> None:
        if through is None or self._continuity is Continuity.UNKNOWN:
            return
        if first == through + 1 or (self._continuity is Continuity.LATER and first > through):
            return
        side = "newer" if first > through else "older"
        raise TableDamagedError(
            f"the checkpoint in {self.path.parent} is {side} than the tables: it continues farm {farm} with entry"
            f" {first}, and the tables end with entry {through}; {repair_remedy(self.path.parent)}"
        )

    def _load(self) -> _Noted | None:
        content = self._document.read()
        if content is None:
            return None
        try:
            noted = msgspec.json.decode(content, type=_Noted)
            _through(noted), _indexes(noted.starts)
        except msgspec.MsgspecError as error:
            raise _damaged(self.path, error) from error
        return noted

    def _store(self, noted: _Noted) -> None:
        self._document.write(msgspec.json.encode(noted))
        self._noted = noted


def _path(output: Output, query: str) -> Output:
    return output / f"batches-{query}.json"


def _other_record(path: Output, fault: str) -> TableDamagedError:
    return TableDamagedError(f"{path} does not belong to the tables: {fault}; {repair_remedy(path.parent)}")


def _damaged(path: Output, error: Exception) -> TableDamagedError:
    return TableDamagedError(f"{path} is damaged ({error}): {ALL_FROM_BACKUP}")


def _through(noted: _Noted) -> dict[str, int]:
    """Return the last index of each farm at the end of the begun batch."""
    through = _indexes(noted.through)
    through.update((farm, each.last) for farm, each in _ranges(noted.ranges).items())
    return through


def _json(entries: Mapping[str, Range] | Mapping[str, int]) -> Raw:
    return Raw(msgspec.json.encode(entries))


def _words(ranges: Mapping[str, Range]) -> str:
    if not ranges:
        return "no entries"
    return ", ".join(f"entries {each.first} to {each.last} of {farm}" for farm, each in sorted(ranges.items()))
