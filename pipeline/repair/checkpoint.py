"""The comparison of Spark's checkpoint with the tables, and the replacement of a checkpoint that differs.

    <output>/checkpoint/offsets/N    the next entry of each farm after batch N, written before the batch
    <output>/checkpoint/commits/N    written after the batch

The record of batches has the same facts for the tables (`pipeline/tables/batch_notes.py`). A checkpoint that differs
cannot be corrected, since Spark's numbers of batches begin at 0 with each checkpoint. So a repair moves it aside, and
the record begins new numbers. The next checkpoint's batch 0 follows the last batch of the tables, and reads from there.
"""

from collections.abc import Mapping

from pipeline.local.checkpoint import EVENTS_CHECKPOINT, is_of_topic, last_number, read_offset
from pipeline.output.buckets import Output
from pipeline.source.log_client import FarmLogError
from pipeline.tables.batch_notes import BatchNotes
from pipeline.tables.offset_shards import OffsetShards


def checkpoint_fault(output: Output, name: str, notes: BatchNotes) -> str:
    """Return the fault of a checkpoint; empty if it fits, or if no record of batches exists.

    The offsets of a trace are not compared: their cursors begin again with each start of a node.
    """
    if notes.is_empty:
        return ""
    checkpoint = output / name
    if not checkpoint.exists():
        return "it is missing"
    planned, committed = last_number(checkpoint / "offsets"), last_number(checkpoint / "commits")
    done = notes.done - notes.base
    # The last planned batch may be incomplete, or complete in the tables but not recorded by Spark.
    fits = (planned == done + 1 and committed == done) or (planned == done and done - 1 <= committed <= done)
    if not fits:
        return f"it ends with batch {committed + notes.base}, and the tables end with batch {notes.done}"
    for number in range(max(min(done, committed), 0), planned + 1):
        file = checkpoint / "offsets" / str(number)
        # Spark refuses to start with an empty file, which a power failure leaves.
        offset = read_offset(file)
        is_whole = name == EVENTS_CHECKPOINT or offset is None or "shards" not in offset
        if offset is None or (not is_whole and _next_entries(file) is None):
            return f"its file offsets/{number} is missing or damaged"
    return "" if done < 0 or name == EVENTS_CHECKPOINT else _offsets_fault(checkpoint / "offsets" / str(done), notes)


def _offsets_fault(file: Output, notes: BatchNotes) -> str:
    if is_of_topic(file.parent.parent):
        return _topic_fault(file, notes)
    offsets = _next_entries(file)
    if offsets is None:
        return f"its file offsets/{file.name} is damaged"
    for farm, entry in notes.next_entries().items():
        if offsets.get(farm, entry) != entry:
            return f"it continues farm {farm} with entry {offsets[farm]}, and the tables with entry {entry}"
    return ""


def _topic_fault(file: Output, notes: BatchNotes) -> str:
    """Return the fault of a topic's next offset, which equals the last read index. The topic may lack this index."""
    try:
        through = max(int(end) for partitions in (read_offset(file) or {}).values() for end in partitions.values())
    except (AttributeError, TypeError, ValueError):
        return f"its file offsets/{file.name} is damaged"
    for farm, entry in notes.next_entries().items():
        if entry - 1 > through:
            return f"it continues farm {farm} with entry {through + 1}, and the tables with entry {entry}"
    return ""


def set_aside(output: Output, name: str) -> Output | None:
    """Rename a checkpoint or a table, so that runs no longer use it; return its new place."""
    path = output / name
    if not path.exists():
        return None
    number = 1
    while (aside := output / f".replaced-{name}-{number}").exists():
        number += 1
    return path.rename(aside)  # type: ignore[arg-type]


def _next_entries(file: Output) -> Mapping[str, int] | None:
    """Return the next entry of each farm."""
    try:
        offset = OffsetShards(file.parent.parent).loaded(read_offset(file) or {})
        return {str(farm): int(entry) for farm, entry in offset["farms"].items()}
    except (FarmLogError, ValueError, KeyError, AttributeError, TypeError):
        return None
