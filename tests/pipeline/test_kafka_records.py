"""Records of the farm's Kafka topic: their rows equal the rows of the source `farm` for the same entries."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from itertools import count
from math import inf
from pathlib import Path
from signal import SIGINT
from types import SimpleNamespace
from typing import cast
from unittest.mock import MagicMock, Mock, call

import pyarrow as pa
import pytest
from click.testing import CliRunner
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from pipeline.cli.commands import run
from pipeline.cli.options import Engine
from pipeline.cli.places import Topic
from pipeline.decode.columns import Row, record_batches
from pipeline.run import RunSettings, _while_farm, start_query
from pipeline.source import kafka
from pipeline.source.kafka import (
    MOST_OFFSETS,
    SERVERS,
    TOPIC,
    await_same_farm,
    connector,
    options_of,
    refuse_other_farm,
    rows_of_records,
)
from pipeline.source.log_client import FarmLogError, FarmSilentError
from pipeline.spark.failures import reason_of
from tests.effort import each_case
from tests.pipeline.farm_log_server import EPOCH_MS, with_proof

FARM = "00112233445566778899aabbccddeeff"


def records(*rows: tuple[int, bytes | None, int, list[dict[str, object]]]) -> pa.RecordBatch:
    """Return a batch with the columns that a run selects from Spark's connector."""
    headers = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    columns = zip(*rows, strict=True)
    types = (pa.int64(), pa.binary(), pa.int64(), headers)
    arrays = [pa.array([*values], kind) for values, kind in zip(columns, types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, names=["offset", "value", "time_ms", "headers"])


def test_record_row_has_index_term_and_time_of_entry() -> None:
    clock = with_proof(json.dumps({"clock": {"time": EPOCH_MS, "id": 1}})).encode()
    batch = records(
        (4, clock, EPOCH_MS, [{"key": "term", "value": b"3"}]),
        (9, b"\xff\x00", -1, [{"key": "other", "value": b"x"}, {"key": "term", "value": b"4"}]),
    )
    rows: list[Row] = [(5, 3, "application", EPOCH_MS, clock), (10, 4, "application", None, b"\xff\x00")]
    assert list(rows_of_records(FARM, iter([batch]))) == list(record_batches(rows, FARM))


def test_invalid_record_is_refused() -> None:
    batch = records((0, None, EPOCH_MS, []), (1, b"{}", EPOCH_MS, [{"key": "term", "value": b"-1"}]))
    (made,) = rows_of_records(FARM, iter([batch]))
    assert made.column("entry").to_pylist() == ["refused", "refused"]
    assert made.column("term").to_pylist() == [0, 0]


def test_missing_connector_error_names_remedy() -> None:
    def no_jvm(*_: object, packages: tuple[str, ...]) -> SparkSession:
        assert packages == (connector(),)
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    with pytest.raises(FarmLogError, match=r"--conf spark\.jars"):
        Engine(None, None, (), no_jvm).opened(Topic(servers="127.0.0.1:9092"))


def test_connector_option_overrides_general_option() -> None:
    assert options_of({SERVERS: "a:1", "maxEntriesPerBatch": "9"})[MOST_OFFSETS] == "9"
    options = options_of({SERVERS: "a:1", "maxEntriesPerBatch": "9", MOST_OFFSETS: "5", "startingOffsets": "latest"})
    assert (options[MOST_OFFSETS], options["startingOffsets"]) == ("5", "latest")
    assert "maxEntriesPerBatch" not in options


def test_repaired_tables_of_topic_are_continued_at_next_offset() -> None:
    given = {SERVERS: "a:1", "subscribe": "log", "startingOffsets": "latest", "startingTimestamp": "5"}
    assert options_of(given)["startingTimestamp"] == "5"
    # Spark ignores the case of an option.
    for spelled in (given, {**given, "startingoffsets": "latest", "STARTINGTIMESTAMP": "5"}):
        options = options_of(spelled, 27)
        assert options.pop("startingOffsets") == '{"log": {"0": 26}}'
        assert not [name for name in options if name.lower().startswith("starting")]


def test_run_does_not_skip_lost_records_of_topic() -> None:
    result = CliRunner().invoke(run, ["--kafka", "127.0.0.1:9092", "--kafka-option", "failOnDataLoss=false"])
    assert (result.exit_code, "a run must stop if the topic has lost records" in result.output) == (2, True)


def test_spelling_of_connector_options_is_ignored() -> None:
    given = ("SUBSCRIBE", "log"), ("maxoffsetspertrigger", "5"), ("Kafka.ssl.key.password", "a")
    options = Topic(servers="a:1", settings=given).options()
    assert options == {SERVERS: "a:1", "subscribe": "log", MOST_OFFSETS: "5", "kafka.ssl.key.password": "a"}


def test_topic_requires_connector_and_rejects_submission() -> None:
    place = Topic(servers="127.0.0.1:9092", settings=(("subscribe", "log"),))
    assert place.options() == {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "log"}
    assert place.packages() == (connector(),)
    result = CliRunner().invoke(run, ["--kafka", "127.0.0.1:9092", "--start", "500"])
    assert (result.exit_code, "startingOffsets" in result.output) == (2, True)
    with pytest.raises(FarmLogError, match="--submit needs a control endpoint"):
        place.reaches(None, lambda _: None)


def test_topic_of_recovered_farm_is_refused_by_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "cluster_of", lambda *_: FARM)
    with pytest.raises(FarmLogError, match=f"contain the cluster ff.* belongs to {FARM}: .*garlicfarm recover"):
        refuse_other_farm(cast("SparkSession", None), {SERVERS: "a:1"}, {FARM, "ff" * 16})


@pytest.mark.parametrize("fails", [False, True])
def test_batch_after_recovery_of_farm_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, fails: bool
) -> None:
    """After the recovery, the tasks label records of the new cluster with the old id, or fail at the next offset."""
    present, written = [FARM], list[int]()
    monkeypatch.setattr(kafka, "cluster_of", lambda *_: present[0])
    settings = RunSettings(tmp_path, {SERVERS: "a:1"})
    write = _while_farm(cast("SparkSession", None), settings, FARM, lambda _, number: written.append(number))
    write([], 0)

    def results() -> Iterator[pa.RecordBatch]:
        present[0] = "ff" * 16
        if fails:
            raise Py4JError("some data may have been lost")
        yield records((0, b"{}", EPOCH_MS, []))

    with pytest.raises(FarmLogError, match=f"contain the cluster {FARM}, and the topic belongs to ff"):
        write(results(), 1)
    assert written == [0]


@pytest.mark.parametrize("is_final", [False, True])
def test_batch_during_restart_of_broker_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_final: bool
) -> None:
    """If no broker returns, the run ends after a limit, and the next run reads the batch again."""
    now_s, lines, written = [0.0], list[str](), list[int]()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    def cluster_of(*_: object) -> str:
        if is_final or now_s[0] < 60:
            raise FarmSilentError("no broker at a:1 returns the id of its cluster")
        return FARM

    monkeypatch.setattr(kafka, "cluster_of", cluster_of)
    monkeypatch.setattr(kafka, "time", Mock(sleep=sleep, monotonic=lambda: now_s[0]))
    settings = RunSettings(tmp_path, {SERVERS: "a:1"}, notify=lines.append)
    write = _while_farm(cast("SparkSession", None), settings, FARM, lambda _, number: written.append(number))
    with pytest.raises(FarmSilentError) if is_final else nullcontext():
        write([], 0)
    assert written == ([] if is_final else [0])
    assert lines[0] == "no broker at a:1 returns the id of its cluster; the batch waits for a broker"


@pytest.mark.parametrize("is_refused", [False, True])
def test_batch_without_broker_ends_with_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_refused: bool
) -> None:
    """Ctrl-C is pressed while a request waits for its reply, or before the pause after an error."""
    now_s, written, polls = [0.0], list[int](), count()
    settings, session = RunSettings(tmp_path, {SERVERS: "a:1"}), MagicMock()

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    def press_ctrl_c() -> bool:
        # The second signal would end pytest.
        if (number := next(polls)) == 0:
            settings.interrupt.note(SIGINT, None)
        assert number < 10
        return is_refused

    client = session._jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value
    reply = client.describeCluster.return_value.clusterId.return_value
    reply.isDone, reply.get = press_ctrl_c, Mock(side_effect=Py4JJavaError("", Mock(_target_id="o1")))
    monkeypatch.setattr(kafka, "time", Mock(sleep=sleep, monotonic=lambda: now_s[0]))
    write = _while_farm(session, settings, FARM, lambda _, number: written.append(number))
    with ThreadPoolExecutor() as callbacks, pytest.raises(InterruptedError):
        callbacks.submit(write, [], 0).result()
    assert (written, now_s[0] < 1) == ([], True)
    # Other requests do not delay the end.
    client.close.assert_called_once_with(session._jvm.java.time.Duration.ZERO)


class JavaError(SimpleNamespace):
    """An exception of the JVM."""

    _target_id = "o1"

    def __init__(self, *texts: str) -> None:
        cause = JavaError(*texts[1:]) if texts[1:] else None
        super().__init__(toString=lambda: texts[0], getCause=lambda: cause)


ERRORS = "org.apache.kafka.common.errors."
CREATION = "org.apache.kafka.common.KafkaException: Failed to create new KafkaAdminClient"


@each_case(
    "texts, remedy",
    [
        ((f"{ERRORS}SaslAuthenticationException: wrong password",), "sasl.jaas.config"),
        ((f"{ERRORS}SslAuthenticationException: no", "javax.net.ssl.SSLHandshakeException: PKIX"), "kafka.ssl"),
        ((f"{ERRORS}ClusterAuthorizationException: no",), "read the topic"),
        ((f"{ERRORS}UnknownTopicOrPartitionException: no",), "subscribe=TOPIC"),
        ((f"{ERRORS}TimeoutException: late", f"{ERRORS}UnknownTopicOrPartitionException: no"), "subscribe=TOPIC"),
        ((f"{ERRORS}UnsupportedVersionException: no",), "update the brokers"),
        (("org.apache.kafka.common.config.ConfigException: Invalid value",), "correct --kafka"),
        ((CREATION, "java.lang.IllegalArgumentException: no JAAS configuration"), "correct --kafka"),
    ],
)
def test_refusal_of_broker_is_not_retried(texts: tuple[str, ...], remedy: str) -> None:
    session, lines = MagicMock(), list[str]()
    client = session._jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value
    error = JavaError("java.util.concurrent.ExecutionException: it failed", *texts)
    client.describeCluster.return_value.clusterId.return_value.get.side_effect = Py4JJavaError("", error)
    with pytest.raises(FarmLogError, match=f"the topic at a:1 cannot be read: .*{remedy}") as refused:
        await_same_farm(session, {SERVERS: "a:1"}, FARM, lines.append, lambda: None)
    assert (isinstance(refused.value, FarmSilentError), lines) == (False, [])
    # An error of the tasks is reported with the same remedy.
    assert remedy in reason_of("\n".join(("Job aborted", *(f"Caused by: {each}" for each in texts))))


def test_run_over_unknown_topic_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = MagicMock()
    client = session._jvm.org.apache.kafka.clients.admin.AdminClient.create.return_value
    error = JavaError("ExecutionException: it failed", f"{ERRORS}UnknownTopicOrPartitionException: no")
    client.describeTopics.return_value.allTopicNames.return_value.get.side_effect = Py4JJavaError("", error)
    monkeypatch.setattr(kafka, "cluster_of", lambda *_: FARM)
    with pytest.raises(FarmLogError, match=r"the topic at a:1 cannot be read: .*subscribe=TOPIC"):
        start_query(session, RunSettings(tmp_path, {SERVERS: "a:1"}), available_now=True)
    client.describeTopics.assert_called_once_with([TOPIC])
    session.readStream.format.assert_not_called()


@each_case(
    "text",
    [
        "org.apache.hadoop.security.authorize.AuthorizationException: User a is not allowed",
        "java.lang.IllegalStateException: Failed to construct the plan",
    ],
)
def test_failure_outside_kafka_lacks_remedies_of_kafka(text: str) -> None:
    assert reason_of(text) == text


@each_case(
    "texts",
    [
        (f"{ERRORS}TimeoutException: Timed out waiting for a node assignment",),
        (CREATION, "org.apache.kafka.common.config.ConfigException: No resolvable bootstrap urls"),
    ],
)
def test_broker_without_reply_is_not_a_refusal(texts: tuple[str, ...]) -> None:
    session = MagicMock()
    session._jvm.org.apache.kafka.clients.admin.AdminClient.create.side_effect = Py4JJavaError("", JavaError(*texts))
    with pytest.raises(FarmSilentError, match=f"did not reply: {texts[-1]}"):
        refuse_other_farm(session, {SERVERS: "a:1"}, ())


def test_first_polls_for_reply_are_short(monkeypatch: pytest.MonkeyPatch) -> None:
    sleeps, polls = list[float](), count()
    monkeypatch.setattr(kafka, "time", Mock(sleep=sleeps.append, monotonic=lambda: 0.0))
    kafka._wait(inf, lambda: None, lambda: next(polls) == 7)
    assert sleeps == [0.005, 0.01, 0.02, 0.04, 0.08, 0.1, 0.1]


def test_first_query_for_farm_ends_with_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    query = Mock(side_effect=FarmSilentError("no broker"))
    monkeypatch.setattr(kafka, "cluster_of", query)
    settings, session = RunSettings(tmp_path, {SERVERS: "a:1"}), MagicMock()
    with pytest.raises(FarmSilentError):
        start_query(session, settings, available_now=True)
    query.assert_called_once_with(session, settings.source, settings.interrupt.check)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), Py4JError("no space")])
def test_error_of_tasks_without_broker_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    query = Mock(side_effect=FarmSilentError("no broker"))
    monkeypatch.setattr(kafka, "cluster_of", query)
    settings = RunSettings(tmp_path, {SERVERS: "a:1"})
    write = _while_farm(cast("SparkSession", None), settings, FARM, Mock())

    def results() -> Iterator[pa.RecordBatch]:
        yield records((0, b"{}", EPOCH_MS, []))
        raise error

    with pytest.raises(type(error)):
        write(results(), 0)
    expected = [call(None, settings.source, settings.interrupt.check)] if isinstance(error, Exception) else []
    assert query.call_args_list == expected
