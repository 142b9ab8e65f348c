"""Complete reads of a range of the log although nodes stop, lag, compact entries or belong to another cluster."""

import copy
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.schemas import ENTRIES
from pipeline.source import log_client, ranges
from pipeline.source.endpoint import Credentials, Endpoint
from pipeline.source.farm import FarmDataSource, FarmStreamReader
from pipeline.source.log_client import FarmLog, FarmLogError, FarmRefusedError, FarmSilentError, LogEntry
from pipeline.source.offsets import Offset
from tests.pipeline.farm_log_server import MadeUpLog, serve_log, three_servers


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pause between two rounds, and wait long for an unresponsive farm."""
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", 3600.0)


def read(log: FarmLog, end: int, cluster: str) -> Iterator[LogEntry]:
    return log.range(1, end, page_size=3, cluster=cluster)


def test_node_stopping_within_range_is_replaced(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    end = log.commit_index + 1
    with serve_log(log, tmp_path / "two.sock") as second:
        with serve_log(log, tmp_path / "one.sock") as first:
            entries = read(FarmLog((first, second)), end, log.cluster_id)
            first_entries = [next(entries) for _ in range(5)]
        requests_before = log.requests
        rest = list(entries)
        assert log.requests > requests_before
    assert [entry.index for entry in first_entries + rest] == list(range(1, end))


def test_node_without_next_entry_is_skipped(tmp_path: Path) -> None:
    whole = three_servers(minutes=1)
    lagging, compacted = copy.deepcopy(whole), copy.deepcopy(whole)
    lagging.entries = lagging.entries[:10]
    compacted.first_index, compacted.entries = 8, compacted.entries[7:]
    with serve_log(lagging, tmp_path / "one.sock") as first, serve_log(compacted, tmp_path / "two.sock") as second:
        log = FarmLog((second, first))
        entries = list(read(log, whole.commit_index + 1, whole.cluster_id))
        assert log.oldest() == 1
    assert [entry.index for entry in entries] == list(range(1, whole.commit_index + 1))


def test_node_of_another_cluster_is_skipped(tmp_path: Path) -> None:
    ours, foreign = three_servers(minutes=1), three_servers(minutes=2)
    foreign.cluster_id = "ff" * 16
    with serve_log(foreign, tmp_path / "one.sock") as first:
        with pytest.raises(FarmLogError, match="belongs to the cluster ffff"):
            list(read(FarmLog((first,)), 5, ours.cluster_id))
        with serve_log(ours, tmp_path / "two.sock") as second:
            assert len(list(read(FarmLog((first, second)), 5, ours.cluster_id))) == 4


def test_entry_on_no_node_fails_with_reason_of_each_node(tmp_path: Path) -> None:
    log = MadeUpLog(first_index=5)
    log.report(1, uptime=1)
    with serve_log(log, tmp_path / "one.sock") as first:
        absent = str(tmp_path / "absent.sock")
        with pytest.raises(FarmLogError, match=r"(?s)entry 1 cannot be read.*compacted away.*absent\.sock"):
            list(read(FarmLog((first, absent)), 3, log.cluster_id))


def test_stream_continues_after_short_outage_of_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = three_servers(minutes=1)
    stream = FarmDataSource({"node": str(tmp_path / "one.sock")}).streamReader(ENTRIES)
    with serve_log(log, tmp_path / "one.sock"):
        start = stream.initialOffset()
    # Without a reply the offset does not change, and the progress does not show a new entry.
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert stream.reportLatestOffset() is None
    with serve_log(log, tmp_path / "one.sock"):
        assert next_of(stream, start) == log.commit_index + 1
    assert stream.reportLatestOffset() == {"farms": {log.cluster_id: log.commit_index + 1}}
    # until the outage exceeds its limit
    stream.latestOffset(start, ReadAllAvailable())
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmSilentError, match="is the farm running"):
        stream.latestOffset(start, ReadAllAvailable())


def test_unreadable_control_socket_is_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def connect(*_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "connect", connect)
    with pytest.raises(FarmRefusedError, match=r"one\.sock: .*Permission denied.*as the user of the node"):
        FarmLog(("one.sock",)).status()


def test_tcp_without_credentials_is_refusal() -> None:
    with pytest.raises(FarmRefusedError, match="TCP needs a token file and a certificate file"):
        FarmLog(("https://host:1",)).statuses()


def test_refusal_ends_run_at_start_and_later_after_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, is_refused = three_servers(minutes=1), [True]

    def exchange(self: Endpoint, *request: Any) -> tuple[int, dict[str, Any]]:
        refusal = {"error": {"code": "unauthorized", "text": "send a token"}}
        return (401, refusal) if is_refused[0] else served(self, *request)

    served = Endpoint._exchange
    monkeypatch.setattr(Endpoint, "_exchange", exchange)
    with serve_log(log, tmp_path / "one.sock") as address:
        stream = stream_of(address)
        reason = r"each node refuses the request \(.*: status 401: send a token\): .*token and certificate"
        with pytest.raises(FarmLogError, match=reason):
            stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        is_refused[0] = False
        start = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        is_refused[0] = True
        assert stream.latestOffset(start, ReadAllAvailable()) == start
        monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
        with pytest.raises(FarmLogError, match="each node refuses the request"):
            stream.latestOffset(start, ReadAllAvailable())


def test_range_continues_after_refusal_of_all_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, rounds = three_servers(minutes=1), [0]

    def exchange(self: Endpoint, *request: Any) -> tuple[int, dict[str, Any]]:
        return (401, {"error": "unauthorized"}) if rounds[0] <= log_client.ROUNDS else served(self, *request)

    def pause(_: float) -> None:
        rounds[0] += 1

    served = Endpoint._exchange
    monkeypatch.setattr(Endpoint, "_exchange", exchange)
    monkeypatch.setattr("pipeline.source.log_client.time.sleep", pause)
    with serve_log(log, tmp_path / "one.sock") as address:
        assert len(list(read(FarmLog((address,)), 5, log.cluster_id))) == 4


def test_range_retries_longer_for_unresponsive_farm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, waited = three_servers(minutes=1), [0]
    farm = FarmLog((str(tmp_path / "one.sock"),))
    with ExitStack() as later:

        def restart_node(_: float) -> None:
            waited[0] += 1
            if waited[0] == 2 * log_client.ROUNDS:
                later.enter_context(serve_log(log, tmp_path / "one.sock"))

        monkeypatch.setattr("pipeline.source.log_client.time.sleep", restart_node)
        assert len(list(read(farm, 5, log.cluster_id))) == 4
    assert waited[0] == 2 * log_client.ROUNDS
    # The wait has a limit.
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmLogError, match=r"entry \d+ cannot be read"):
        list(read(farm, 5, log.cluster_id))


def next_of(stream: DataSourceStreamReader, start: Offset) -> int:
    """Return the index of the next entry, for a single farm."""
    (following,) = stream.latestOffset(start, ReadAllAvailable())["farms"].values()
    return int(following)


def stream_of(*addresses: str) -> FarmStreamReader:
    stream = FarmDataSource({"node": ",".join(addresses)}).streamReader(ENTRIES)
    assert isinstance(stream, FarmStreamReader)
    return stream


def test_isolated_node_does_not_delay_stream(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node, first in the list, that replies without new entries
    whole = three_servers(minutes=2)
    cut_off = copy.deepcopy(whole)
    cut_off.entries = cut_off.entries[:10]
    with serve_log(cut_off, tmp_path / "one.sock") as first, serve_log(whole, tmp_path / "two.sock") as second:
        # then a run to the end of the log gets the end from the other node
        stream = stream_of(first, second)
        start = {"farms": {whole.cluster_id: 1}}
        stream.prepareForTriggerAvailableNow()
        assert next_of(stream, start) == whole.commit_index + 1
        # and a run that follows the log checks the other nodes after a time without new entries
        stream = stream_of(first, second)
        assert next_of(stream, start) == 11
        monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", -1.0)
        assert next_of(stream, start) == whole.commit_index + 1
        # and continues with the node that has more entries
        monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", 3600.0)
        assert next_of(stream, start) == whole.commit_index + 1


def test_status_of_known_cluster_has_callers_text(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "one.sock") as one:
        assert FarmLog((one,)).status(log.cluster_id).cluster is log.cluster_id


def test_last_responsive_node_is_requested_first(tmp_path: Path) -> None:
    log, absent = three_servers(minutes=1), str(tmp_path / "absent.sock")
    with serve_log(log, tmp_path / "one.sock") as first:
        of_nodes = ranges.NodeRanges((absent, first), Credentials(), 100)
        found = of_nodes.status()
        assert of_nodes.plan(1, 5, found.cluster).addresses == (first, absent)


def test_new_stream_starts_at_oldest_entry_of_any_node(tmp_path: Path) -> None:
    whole = three_servers(minutes=1)
    compacted = copy.deepcopy(whole)
    compacted.first_index, compacted.entries = 8, compacted.entries[7:]
    with serve_log(compacted, tmp_path / "one.sock") as first, serve_log(whole, tmp_path / "two.sock") as second:
        stream = stream_of(first, second)
        found = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert found["begins"] == {whole.cluster_id: {"next": 1}}


def test_stream_start_skips_entries_before_gap(tmp_path: Path) -> None:
    # given a node without entries, an isolated node, and two nodes with compacted logs
    whole = three_servers(minutes=1)
    empty, cut_off, compacted, lagging = (copy.deepcopy(whole) for _ in range(4))
    empty.entries = []
    cut_off.entries = cut_off.entries[:4]
    compacted.first_index, compacted.entries = 12, compacted.entries[11:]
    lagging.first_index, lagging.entries = 8, lagging.entries[7:11]
    with (
        serve_log(empty, tmp_path / "one.sock") as one,
        serve_log(cut_off, tmp_path / "two.sock") as two,
        serve_log(compacted, tmp_path / "three.sock") as three,
        serve_log(lagging, tmp_path / "four.sock") as four,
    ):
        # then a new run starts after the gap
        stream = stream_of(one, two, three, four)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["begins"] == {whole.cluster_id: {"next": 8}}
        (partition,) = stream.partitions(start, end)
        rows = [index for batch in stream.read(partition) for index in batch.column("index").to_pylist()]
        assert rows == list(range(8, whole.commit_index + 1))
        # and a run with its offset inside the gap fails before it plans a batch
        with pytest.raises(FarmLogError, match="entries 5 to 7 were compacted away"):
            stream_of(three, four).latestOffset({"farms": {whole.cluster_id: 5}}, ReadAllAvailable())


def test_stream_skips_nodes_of_other_cluster(tmp_path: Path) -> None:
    ours, foreign, joining = (three_servers(minutes=1) for _ in range(3))
    foreign.cluster_id, joining.cluster_id = "ff" * 16, ""
    start: Offset = {"farms": {ours.cluster_id: 1}}
    with (
        serve_log(foreign, tmp_path / "one.sock") as first,
        serve_log(joining, tmp_path / "two.sock") as second,
        serve_log(ours, tmp_path / "three.sock") as third,
    ):
        end = stream_of(first, second, third).latestOffset(start, ReadAllAvailable())
        assert end == {"farms": {ours.cluster_id: ours.commit_index + 1}}
        # A joining node may belong to our cluster.
        with pytest.raises(FarmSilentError, match="not joined a cluster yet"):
            FarmLog((first, second)).status(ours.cluster_id)
        with pytest.raises(FarmLogError, match=r"garlicfarm recover.* another output") as error:
            stream_of(first).latestOffset(start, ReadAllAvailable())
        assert not isinstance(error.value, FarmSilentError)


def test_start_after_end_of_log_is_rejected(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "one.sock") as first, pytest.raises(FarmLogError, match="choose an earlier one"):
        FarmDataSource({"node": first, "start": "5000"}).reader(ENTRIES).partitions()


def test_read_of_empty_range_returns_no_rows(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with serve_log(log, tmp_path / "one.sock") as first:
        reader = FarmDataSource({"node": first, "start": str(log.commit_index + 1)}).reader(ENTRIES)
        assert reader.partitions() == []
        assert list(reader.read(InputPartition(None))) == [], "Spark reads such a partition for an empty plan"


def test_state_directory_is_read_through_its_socket(tmp_path: Path) -> None:
    with serve_log(three_servers(minutes=1), tmp_path / "control.sock"):
        assert FarmLog((str(tmp_path),)).status().commit_index > 0
