"""The offset of a stream: the next entry of each farm.

    up to `WHOLE_FARMS`   {"farms": {CLUSTER: NEXT INDEX, …}, …}
    more                  {"shards": [NAME, …], "read": N, "begun": N}   in a run (`pipeline/tables/offset_shards.py`)

The offset also contains `begins`, the first entry of each new farm, and `times`, log time at the next entry of a
directory. The engines store an offset as one line of JSON, and report it as their progress. The functions here read
both forms. `read` is the number of the entries before the offset, and `begun` is this number for new farms alone.
"""

from collections.abc import Mapping
from typing import Any, Final

WHOLE_FARMS: Final = 1_000
"""The greatest number of farms in a whole offset or report, which then has about 90 KB."""

Offset = dict[str, Any]


class WholeOffsets:
    """Offsets that the checkpoint stores as a whole."""

    def stored(self, offset: Offset) -> Offset:
        """Return the form for the checkpoint."""
        return offset

    def loaded(self, offset: Offset) -> Offset:
        """Return the offset with all farms, from the form in the checkpoint. Raise FarmLogError."""
        return offset

    def changed(self, start: Offset, end: Offset) -> tuple[Offset, Offset]:
        """Return the offsets with the farms of a batch; they may lack farms without new entries. Raise FarmLogError."""
        return start, end


def entries_before(offset: Mapping[str, Any]) -> int:
    """Return the number of the entries before an offset, also of entries that were never read."""
    if "shards" in offset:
        return int(offset["read"])
    farms: dict[str, int] = offset.get("farms", {})
    return sum(farms.values()) - len(farms)


def entries_between(start: Mapping[str, Any], end: Mapping[str, Any]) -> int:
    """Return the number of entries of a batch. Spark does not report the start of its first batch."""
    if not start:
        # A new checkpoint after a repair begins with farms that the tables have. Their number is not in shards.
        ends, new = end.get("farms", {}), end.get("begins", {})
        return sum(ends[cluster] - each["next"] for cluster, each in new.items())
    known = start.get("farms", {})
    begins = end.get("begins", {}).items()
    new_entries = sum(each["next"] - 1 for cluster, each in begins if cluster not in known)
    return entries_before(end) - entries_before(start) - int(end.get("begun", new_entries))
