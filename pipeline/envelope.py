"""The rows of the source `farm`: an envelope around an entry's text, as Arrow record batches.

Parsing happens in the JVM, where one malformed entry becomes NULLs; here nothing is looked into but whether the bytes
are text. A record batch ends after ten thousand rows, or earlier when its bodies grow large: a few entries of ten
megabytes must not become one allocation.
"""

import base64
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

ROWS_PER_RECORD_BATCH = 10_000
BYTES_PER_RECORD_BATCH = 32 * 1024 * 1024

SCHEMA = StructType(
    [
        StructField("index", LongType(), nullable=False),
        StructField("term", LongType(), nullable=False),
        StructField("kind", StringType(), nullable=False),
        StructField("log_time", TimestampType(), nullable=True),
        StructField("body", StringType(), nullable=False),
        StructField("encoding", StringType(), nullable=False),
        StructField("body_bytes", IntegerType(), nullable=False),
    ]
)
ARROW_SCHEMA = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("term", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("log_time", pa.timestamp("us", tz="UTC"), nullable=True),
        pa.field("body", pa.string(), nullable=False),
        pa.field("encoding", pa.string(), nullable=False),
        pa.field("body_bytes", pa.int32(), nullable=False),
    ]
)

Row = tuple[int, int, str, int | None, bytes]
"""Index, term, kind, log time in milliseconds, the entry's bytes."""


def record_batches(rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
    """The rows in order, in batches."""
    taken: list[Row] = []
    size_bytes = 0
    for row in rows:
        taken.append(row)
        size_bytes += len(row[4])
        if len(taken) >= ROWS_PER_RECORD_BATCH or size_bytes >= BYTES_PER_RECORD_BATCH:
            yield _record_batch(taken)
            taken, size_bytes = [], 0
    if taken:
        yield _record_batch(taken)


def _record_batch(rows: list[Row]) -> pa.RecordBatch:
    indexes, terms, kinds, times_ms, raw = zip(*rows, strict=True)
    bodies, encodings = _texts(raw)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(indexes, pa.int64()),
            pa.array(terms, pa.int64()),
            pa.array(kinds, pa.string()),
            pa.array(times_ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            bodies,
            encodings,
            pc.binary_length(bodies),
        ],
        schema=ARROW_SCHEMA,
    )


def _texts(bodies: tuple[bytes, ...]) -> tuple[pa.Array, pa.Array]:
    """Text where the bytes are UTF-8, else base64. Nearly always all are, and then Arrow checks them at once."""
    try:
        texts = pa.array(bodies, pa.binary()).cast(pa.string())
    except pa.ArrowInvalid:
        pairs = [_text(body) for body in bodies]
        return pa.array([text for text, _ in pairs], pa.string()), pa.array([word for _, word in pairs], pa.string())
    return texts, pa.array(["text"] * len(bodies), pa.string())


def _text(body: bytes) -> tuple[str, str]:
    try:
        return body.decode(), "text"
    except UnicodeDecodeError:
        return base64.b64encode(body).decode(), "base64"
