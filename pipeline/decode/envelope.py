"""The rows of the source `farm`: an envelope around an entry's text, as Arrow record batches.

Parsing happens in the JVM, where one malformed entry becomes NULLs; this module only checks whether the bytes are text.
A record batch ends after four thousand rows, or earlier when its bodies grow large: a few entries of ten megabytes must
not become one allocation.
"""

import base64
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType, TimestampType

ROWS_PER_RECORD_BATCH = 4_000
"""Two megabytes of reports: what a processor keeps near. Ten thousand take a third longer, each."""
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
    columns = _Columns()
    size_bytes = 0
    for index, term, kind, time_ms, body in rows:
        columns.indexes.append(index)
        columns.terms.append(term)
        columns.kinds.append(kind)
        columns.times_ms.append(time_ms)
        columns.bodies.append(body)
        size_bytes += len(body)
        if len(columns.indexes) >= ROWS_PER_RECORD_BATCH or size_bytes >= BYTES_PER_RECORD_BATCH:
            yield _record_batch(columns)
            columns, size_bytes = _Columns(), 0
    if columns.indexes:
        yield _record_batch(columns)


@dataclass(slots=True)
class _Columns:
    """Rows on their way, by column: thousands of tuples kept until a batch is full cost as much as the batch itself."""

    indexes: list[int] = field(default_factory=list)
    terms: list[int] = field(default_factory=list)
    kinds: list[str] = field(default_factory=list)
    times_ms: list[int | None] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)


def _record_batch(columns: _Columns) -> pa.RecordBatch:
    bodies, encodings = _texts(columns.bodies)
    times = pa.array(columns.times_ms, pa.int64()).cast(pa.timestamp("ms", tz="UTC"))
    return pa.RecordBatch.from_arrays(
        [
            pa.array(columns.indexes, pa.int64()),
            pa.array(columns.terms, pa.int64()),
            pa.array(columns.kinds, pa.string()),
            times.cast(pa.timestamp("us", tz="UTC")),
            bodies,
            encodings,
            pc.binary_length(bodies),
        ],
        schema=ARROW_SCHEMA,
    )


def _texts(bodies: Sequence[bytes]) -> tuple[pa.Array, pa.Array]:
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
