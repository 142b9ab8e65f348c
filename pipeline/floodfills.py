"""The closest floodfill routers to each destination, yesterday, today and tomorrow.

I2P's network database keeps the LeaseSet of a destination at the floodfills closest to its routing key
(https://geti2p.net/en/docs/how/network-database, "Kademlia closeness metric" and "keyspace rotation"):

    routing key = SHA-256(32 bytes of the destination's hash ‖ the UTC date as the text yyyyMMdd)
    distance    = routing key XOR the router's hash, as one 256-bit number

The router's hash is used unchanged; only the destination's key rotates, at midnight UTC.

The plain join compares every pair: 2,000 destinations on 3 days and 20,000 routers are 120 million distances of 256
bits. But sorted by hash, routers with a common prefix are next to each other. A router that shares a longer prefix is
closer than any that shares a shorter one. So a binary search in the sorted hashes finds, for each key, the longest
prefix that at least `count` routers share. Only those few are compared, over all 256 bits. This is exact: it omits only
routers that are further away than `count` others. Prefixes are searched up to 64 bits; if more routers than `count`
share even those, all of them are compared.

In Spark the destinations are spread over `partitions` rows, each with its destinations and all routers, and numpy
computes each row in one pass. 20,000 routers are 640 kB.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pipeline.schemas import FLOODFILLS, arrow_schema
from pipeline.tables.delta import Table, TableSpec
from pipeline.tables.tasks import write_in_tasks

SPEC = TableSpec("closest_floodfills", arrow_schema(FLOODFILLS), ("destination", "day", "rank"), "interval 1 hours")
HASH_BYTES = 32
CLOSEST_DEFAULT = 4
"""The number of floodfills that get a LeaseSet when a router floods it."""
PARTITIONS = 8
_WORDS = 4
_WORD_BITS = 64

Words = npt.NDArray[np.uint64]


def closest_floodfills(
    destinations: DataFrame, routers: DataFrame, today: date, count: int = CLOSEST_DEFAULT
) -> DataFrame:
    """Return `count` rows per destination and day, the closest first (columns: `pipeline.schemas.FLOODFILLS`).

    `destinations` has the column `destination`, `routers` the column `router`: hashes in hexadecimal. Other values than
    64 hexadecimal digits are omitted.
    """
    days = tuple(today + timedelta(days=offset) for offset in (-1, 0, 1))

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for part in batch.to_pylist():
                rows = _rows(part["destinations"], part["routers"], days, count)
                yield pa.RecordBatch.from_pylist(rows, SPEC.schema)

    all_routers = _hashes(routers, "router").agg(f.array_sort(f.collect_list("router")).alias("routers"))
    spread = (
        _hashes(destinations, "destination")
        .groupBy(f.pmod(f.hash("destination"), f.lit(PARTITIONS)).alias("part"))
        .agg(f.array_sort(f.collect_list("destination")).alias("destinations"))
    )
    pairs = spread.repartition(PARTITIONS, "part").crossJoin(f.broadcast(all_routers)).select("destinations", "routers")
    return pairs.mapInArrow(work, FLOODFILLS)


def keep(output: Path, rows: DataFrame) -> None:
    """Replace the rows of the table. Only its owner can read it, since it reveals addresses."""
    (output / SPEC.name).mkdir(0o700, parents=True, exist_ok=True)
    table = Table(output, SPEC)
    batch = table.committed(SPEC.name) + 1
    table.exchange([(SPEC.name, batch)], write_in_tasks(rows, table.root, SPEC.schema), table.files())
    table.sweep(full=True)


def routing_key(destination_hash: bytes, day: date) -> bytes:
    """Return the position of a destination in the key space on that day (UTC)."""
    return sha256(destination_hash + f"{day:%Y%m%d}".encode()).digest()


def utc_today() -> date:
    """Return the current day of I2P's key space."""
    return datetime.now(UTC).date()


def closest(keys: Words, routers: Words, count: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield for each key the places of the closest routers in `routers`, closest first.

    Both are rows of four big-endian 64-bit words; `routers` are sorted.
    """
    first = np.ascontiguousarray(routers[:, 0])
    low, high = _shared_prefix(np.ascontiguousarray(keys[:, 0]), first, min(count, len(routers)))
    for key, start, end in zip(keys, low, high, strict=True):
        distance = routers[start:end] ^ key
        # lexsort takes its last key first.
        order = np.lexsort((distance[:, 3], distance[:, 2], distance[:, 1], distance[:, 0]))[:count]
        yield start + order


def _shared_prefix(keys: Words, first: Words, enough: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return per key the range of routers that share its longest prefix common to at least `enough` of them."""
    low = np.zeros(len(keys), np.int64)
    high = np.full(len(keys), len(first), np.int64)
    for bits in range(1, _WORD_BITS + 1):
        rest = np.uint64((1 << (_WORD_BITS - bits)) - 1)
        start = np.searchsorted(first, keys & ~rest, "left")
        end = np.searchsorted(first, keys | rest, "right")
        fits = end - start >= enough
        if not fits.any():
            break
        low, high = np.where(fits, start, low), np.where(fits, end, high)
    return low, high


def _rows(destinations: list[str], routers: list[str], days: tuple[date, ...], count: int) -> list[dict[str, Any]]:
    if not destinations or not routers:
        return []
    named = [(destination, day) for destination in destinations for day in days]
    keys = _words([routing_key(bytes.fromhex(destination), day) for destination, day in named])
    sorted_routers = _words([bytes.fromhex(router) for router in routers])
    rows = []
    for (destination, day), key, places in zip(named, keys, closest(keys, sorted_routers, count), strict=True):
        for rank, place in enumerate(places, 1):
            distance = (sorted_routers[place] ^ key).astype(">u8").tobytes().hex()
            rows.append(dict(zip(SPEC.schema.names, (destination, day, rank, routers[place], distance), strict=True)))
    return rows


def _words(hashes: list[bytes]) -> Words:
    return np.frombuffer(b"".join(hashes), ">u8").astype(np.uint64).reshape(len(hashes), _WORDS)


def _hashes(table: DataFrame, column: str) -> DataFrame:
    lower = f.lower(f.col(column))
    return table.select(lower.alias(column)).where(f.col(column).rlike(f"^[0-9a-f]{{{2 * HASH_BYTES}}}$")).distinct()
