"""The farm's Kafka topic as a source of a run: Spark's own connector reads it, and its records become rows of `farm`.

    topic farm-log ─▶ Spark's connector ─▶ offset, value, timestamp, headers ─▶ decoded as for the source `farm`

A record holds the bytes of an application entry. Its offset is the index less one, its timestamp is log time, and a
header has the term (docs/reference/kafka.md). So the rows are the same as from the source `farm`, except for entries
that the topic hides from clients. These are configurations, entries without content, copies of entries, and records of
Kafka's own clients. The connector is a jar that Spark fetches by its Maven coordinates (`connector`); PySpark does not
include it.

A record does not name its cluster, and Spark's checkpoint identifies the topic by its name only. After `garlicfarm
recover` during the run, Spark would continue at the same offset of the new farm's topic. So the brokers are queried for
the farm's id before the stream begins, and before each batch is written. A run refuses tables of another cluster: read
each farm's topic into a separate output.
"""

import json
import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from consensus.net.backoff import Backoff
from pipeline import ignore
from pipeline.decode.columns import Row, record_batches
from pipeline.decode.entries import APPLICATION
from pipeline.schemas import ENTRIES
from pipeline.source.log_client import OTHER_CLUSTER, SILENCE_SECONDS, FarmLogError, FarmSilentError, LogStatus
from pipeline.source.ranges import LogRange, SnapshotRange
from pipeline.source.stored_log import KnownTime

FORMAT = "kafka"
TOPIC = "farm-log"
SERVERS, TOPIC_OPTION = "kafka.bootstrap.servers", "subscribe"
TERM = "term"
BROKER_TIMEOUT_MS = 15_000
"""The limit of the query for the farm's id; Kafka's own default is a minute."""
PAUSES_S = 1.0, 15.0
"""The first and the longest pause before the brokers are queried again."""
POLLS_S = 0.005, 0.1
"""The first and the longest time between two checks for a reply and for the end of the run."""
_TIMEOUTS = ("request.timeout.ms", "default.api.timeout.ms")
REFUSALS = (
    (
        re.compile("SslAuthenticationException|SSLHandshakeException|Failed to load SSL"),
        "correct the files of --kafka-option kafka.ssl.…, or the certificate of the broker",
    ),
    (
        re.compile("SaslAuthenticationException|SaslMechanismException|SaslStateException"),
        "correct --kafka-option kafka.sasl.mechanism=… and kafka.sasl.jaas.config=…, or add the user to the broker",
    ),
    (
        re.compile("AuthorizationException"),
        "let the user of --kafka-option kafka.sasl.jaas.config=… read the topic",
    ),
    (
        re.compile("UnknownTopic|InvalidTopicException"),
        f"name the topic with --kafka-option {TOPIC_OPTION}=TOPIC, and brokers with it by --kafka",
    ),
    (
        re.compile("UnsupportedVersionException"),
        "update the brokers: they do not support a request of Spark's connector",
    ),
    # The name of a host can be unknown for a moment.
    (
        re.compile(r"(?:ConfigException|Failed to (?:create new|construct) )(?!(?s:.)*No resolvable)"),
        "correct --kafka and --kafka-option",
    ),
)
"""The permanent errors of Kafka's clients, each with its remedy."""
CAUSES_MAX = 10
MOST_ENTRIES, MOST_OFFSETS = "maxEntriesPerBatch", "maxOffsetsPerTrigger"
"""The limit of a batch, as an option of the source `farm` and of the connector."""
_OFFSET_TO_INDEX = 1
_UNKNOWN_MS = -1


def connector() -> str:
    """Return the Maven coordinates of Spark's connector for this PySpark."""
    return f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"


def kafka_stream(
    session: SparkSession, options: Mapping[str, str], farm: str, first_entry: int | None = None
) -> DataFrame:
    """Return the log as an unbounded table with the columns of the source `farm`.

    `options`: `kafka.bootstrap.servers`, `subscribe`, and others of Spark's connector (`kafka.security.protocol`,
    `maxOffsetsPerTrigger`). `farm`: the cluster id (`refuse_other_farm`). `first_entry`: the first entry without a
    checkpoint; by default the options determine it.
    """
    records = session.readStream.format(FORMAT).options(**options_of(options, first_entry)).load()
    return _columns_of(records).mapInArrow(partial(rows_of_records, farm), ENTRIES)


def _columns_of(records: DataFrame) -> DataFrame:
    return records.selectExpr("offset", "value", "unix_millis(timestamp) AS time_ms", "headers")


def refuse_other_farm(
    session: SparkSession, options: Mapping[str, str], stored: Collection[str], check: Callable[[], None] = ignore
) -> str:
    """Return the cluster id of the topic's farm; `stored`: the clusters in the tables, or of read records.

    `check`: raises an error at the end of the run. Raise FarmSilentError when no broker replies, FarmLogError if the
    connector is missing or another cluster is stored.
    """
    farm = cluster_of(session, options, check)
    if others := sorted({*stored} - {farm}):
        raise FarmLogError(
            f"the tables contain the cluster {others[0]}, and the topic belongs to {farm}: {OTHER_CLUSTER}"
        )
    return farm


def await_same_farm(
    session: SparkSession,
    options: Mapping[str, str],
    farm: str,
    notify: Callable[[str], None],
    check: Callable[[], None],
) -> None:
    """Return when a broker confirms the farm. Raise FarmLogError for another one, or after `SILENCE_SECONDS`."""
    pauses, end_s = Backoff(*PAUSES_S), time.monotonic() + SILENCE_SECONDS
    while True:
        try:
            refuse_other_farm(session, options, {farm}, check)
        except FarmSilentError as error:
            if time.monotonic() >= end_s:
                raise
            notify(f"{error}; the batch waits for a broker")
            _wait(pauses.next_s(), check)
        else:
            return


def _wait(seconds: float, check: Callable[[], None], is_over: Callable[[], bool] = lambda: False) -> None:
    until_s, polls = time.monotonic() + seconds, Backoff(*POLLS_S)
    while time.monotonic() < until_s and not is_over():
        check()
        time.sleep(polls.next_s())


def options_of(
    options: Mapping[str, str], first_entry: int | None = None, end_entry: int | None = None
) -> dict[str, str]:
    """Return the options of Spark's connector: the options of a run, completed by defaults.

    `first_entry` replaces every option about the start; `end_entry` is the index after the last entry of a batch.
    """
    named = {MOST_OFFSETS: options[MOST_ENTRIES]} if MOST_ENTRIES in options else {}
    of_run = {TOPIC_OPTION: TOPIC, "startingOffsets": "earliest", **named}
    theirs = {name: value for name, value in options.items() if name != MOST_ENTRIES}
    found = {**of_run, **theirs, "includeHeaders": "true"}
    if first_entry is None:
        return found
    # Spark ignores the case of its options.
    starts = "startingoffsets", "startingtime"
    kept = {name: value for name, value in found.items() if not name.lower().startswith(starts)}
    places = {"startingOffsets": first_entry, "endingOffsets": end_entry}
    return kept | {
        name: json.dumps({found[TOPIC_OPTION]: {"0": entry - _OFFSET_TO_INDEX}})
        for name, entry in places.items()
        if entry is not None
    }


def rows_of_records(farm: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield rows of the source `farm` from records: offset, value, time_ms and headers."""
    for batch in batches:
        yield from record_batches(_rows(batch), farm)


def _rows(batch: pa.RecordBatch) -> Iterator[Row]:
    columns = (batch.column(name).to_pylist() for name in ("offset", "value", "time_ms", "headers"))
    for offset, value, time_ms, headers in zip(*columns, strict=True):
        known_ms = None if time_ms is None or time_ms == _UNKNOWN_MS else time_ms
        yield offset + _OFFSET_TO_INDEX, _term(headers or ()), APPLICATION, known_ms, value or b""


def _term(headers: Any) -> int:
    for header in headers:
        if header["key"] == TERM and header["value"].isdigit():
            return int(header["value"])
    return 0


def cluster_of(session: SparkSession, options: Mapping[str, str], check: Callable[[], None] = ignore) -> str:
    """Return the cluster id from the brokers. Raise FarmLogError, and FarmSilentError when no broker replies."""
    return str(_requested(session, options, lambda _, admin: admin.describeCluster().clusterId(), check))


def refuse_unknown_topic(session: SparkSession, options: Mapping[str, str], check: Callable[[], None] = ignore) -> None:
    """Raise FarmLogError if the brokers do not have the topic. Spark's connector would wait a minute for it."""
    topic = options_of(options)[TOPIC_OPTION]
    _requested(session, options, lambda _, admin: admin.describeTopics([topic]).allTopicNames(), check)


def _requested(
    session: SparkSession,
    options: Mapping[str, str],
    request: Callable[[Any, Any], Any],
    check: Callable[[], None] = ignore,
) -> Any:
    """Return the brokers' reply. `request` gets the JVM's package `org.apache.kafka` and an admin client."""
    java: Any = session._jvm  # noqa: SLF001 - there is no other way to it
    properties = java.java.util.Properties()
    if not any(f"kafka.{each}" in options for each in _TIMEOUTS):
        for each in _TIMEOUTS:
            properties.setProperty(each, str(BROKER_TIMEOUT_MS))
    for name, value in options.items():
        if name.startswith("kafka."):
            properties.setProperty(name.removeprefix("kafka."), value)
    kafka = java.org.apache.kafka
    client = kafka.clients.admin.AdminClient
    if not callable(getattr(client, "create", None)):
        raise FarmLogError(
            f"Spark's connector for Kafka is not there: give Spark --packages {connector()} (or the option --conf"
            f" spark.jars.packages={connector()})"
        )
    try:
        admin = client.create(properties)
        try:
            reply = request(kafka, admin)
            _wait(math.inf, check, reply.isDone)
            return reply.get()
        finally:
            admin.close(java.java.time.Duration.ZERO)
    except Py4JJavaError as error:
        raise _failure(options.get(SERVERS), error.java_exception) from error


def _failure(servers: str | None, error: Any) -> FarmLogError:
    """Return FarmLogError with the remedy for a refusal, and FarmSilentError for any other error of a Java client."""
    causes = list[str]()
    while error is not None and len(causes) < CAUSES_MAX:
        causes.append(str(error.toString()))
        error = error.getCause()
    text = "\n".join(causes)
    for pattern, remedy in REFUSALS:
        if pattern.search(text):
            return FarmLogError(f"the topic at {servers} cannot be read: {causes[-1]}; {remedy}")
    return FarmSilentError(f"the brokers at {servers} did not reply: {causes[-1]}")


class TopicRanges:
    """The records of a topic as a place of the log (`pipeline/source/ranges.py`), for a repair.

    The topic lacks the entries that are not for its readers, so a range lacks rows for some indexes.
    """

    def __init__(self, session: SparkSession, options: Mapping[str, str]) -> None:
        self._session = session
        self._options = options

    def status(self, cluster: str | None = None, *, of_all: bool = False) -> LogStatus:
        """Return the first offset and the end of the topic, as indexes; any broker has all records."""
        del of_all
        farm = refuse_other_farm(self._session, self._options, () if cluster is None else {cluster})
        return LogStatus(farm, self._offset("earliest") + _OFFSET_TO_INDEX, self._offset("latest"))

    def oldest(self, cluster: str) -> int:
        """Return the index of the first offset."""
        return self.status(cluster).first_index

    def snapshot_index(self) -> int:
        """Raise FarmLogError, since a topic does not have a snapshot."""
        raise FarmLogError("a topic does not have a snapshot: name a state directory with --directory")

    def time_before(self, index: int, known: KnownTime | None) -> None:
        """Return None, since each record has its log time."""

    def plan(self, first: int, end: int, cluster: str, known: KnownTime | None = None) -> LogRange:
        """Return the range."""
        del known
        return LogRange(first, end, cluster)

    def rows(self, partition: LogRange | SnapshotRange) -> Iterator[Row]:
        """Read the records with one job of Spark. It fails if the topic loses records in the meantime."""
        if isinstance(partition, SnapshotRange):
            raise FarmLogError("a topic does not have a snapshot")
        options = options_of(self._options, partition.first, partition.end)
        for batch in _columns_of(self._session.read.format(FORMAT).options(**options).load()).toArrow().to_batches():
            yield from _rows(batch)

    def _offset(self, end: str) -> int:
        """Return the `earliest` or the `latest` offset of the topic's only partition."""
        topic = options_of(self._options)[TOPIC_OPTION]

        def request(kafka: Any, admin: Any) -> Any:
            partition = kafka.common.TopicPartition(topic, 0)
            return admin.listOffsets({partition: getattr(kafka.clients.admin.OffsetSpec, end)()}).partitionResult(
                partition
            )

        return int(_requested(self._session, self._options, request).offset())
