"""A range of the log is read whole, whichever nodes die, lag, have forgotten or belong elsewhere meanwhile."""

import copy
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline.schemas import ENTRIES
from pipeline.source import log_client, ranges
from pipeline.source.endpoint import Credentials
from pipeline.source.farm import FarmDataSource, FarmStreamReader, Offset
from pipeline.source.log_client import FarmLog, FarmLogError, FarmSilentError, LogEntry
from tests.pipeline.farm_log_server import MadeUpLog, served, three_servers


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow one another at once."""
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", 3600.0)


def read(log: FarmLog, end: int, cluster: str) -> Iterator[LogEntry]:
    return log.range(1, end, page_size=3, cluster=cluster)


def test_a_node_that_dies_in_the_middle_of_a_range_is_replaced_by_another(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    end = log.commit_index + 1
    with served(log, tmp_path / "two.sock") as second:
        with served(log, tmp_path / "one.sock") as first:
            entries = read(FarmLog((first, second)), end, log.cluster_id)
            begun = [next(entries) for _ in range(5)]
        asked_before = log.requests
        rest = list(entries)
        assert log.requests > asked_before
    assert [entry.index for entry in begun + rest] == list(range(1, end))


def test_a_node_that_lags_or_has_compacted_more_is_passed_over_at_the_very_entry(tmp_path: Path) -> None:
    whole = three_servers(minutes=1)
    lagging, forgetful = copy.deepcopy(whole), copy.deepcopy(whole)
    lagging.entries = lagging.entries[:10]
    forgetful.first_index, forgetful.entries = 8, forgetful.entries[7:]
    with served(lagging, tmp_path / "one.sock") as first, served(forgetful, tmp_path / "two.sock") as second:
        log = FarmLog((second, first))
        entries = list(read(log, whole.commit_index + 1, whole.cluster_id))
        assert log.oldest() == 1
    assert [entry.index for entry in entries] == list(range(1, whole.commit_index + 1))


def test_a_node_of_another_farm_gives_nothing(tmp_path: Path) -> None:
    ours, foreign = three_servers(minutes=1), three_servers(minutes=2)
    foreign.cluster_id = "ff" * 16
    with served(foreign, tmp_path / "one.sock") as first:
        with pytest.raises(FarmLogError, match="belongs to the cluster ffff"):
            list(read(FarmLog((first,)), 5, ours.cluster_id))
        with served(ours, tmp_path / "two.sock") as second:
            assert len(list(read(FarmLog((first, second)), 5, ours.cluster_id))) == 4


def test_what_no_node_has_is_given_up_with_what_each_of_them_said(tmp_path: Path) -> None:
    log = MadeUpLog(first_index=5)
    log.report(1, uptime=1)
    with served(log, tmp_path / "one.sock") as first:
        absent = str(tmp_path / "absent.sock")
        with pytest.raises(FarmLogError, match=r"(?s)entry 1 is not to be had.*compacted away.*absent\.sock"):
            list(read(FarmLog((first, absent)), 3, log.cluster_id))


def test_a_stream_outlives_a_farm_that_is_silent_for_a_moment_and_not_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = three_servers(minutes=1)
    stream = FarmDataSource({"node": str(tmp_path / "one.sock")}).streamReader(ENTRIES)
    with served(log, tmp_path / "one.sock"):
        start = stream.initialOffset()
    # while no node answers there is nothing new, and the progress shows what was known
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    assert stream.reportLatestOffset() is None
    with served(log, tmp_path / "one.sock"):
        assert next_of(stream, start) == log.commit_index + 1
    assert stream.reportLatestOffset() == {"farms": {log.cluster_id: log.commit_index + 1}}
    # until it has been too long
    stream.latestOffset(start, ReadAllAvailable())
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmSilentError, match="is the farm running"):
        stream.latestOffset(start, ReadAllAvailable())


def test_a_range_waits_for_a_farm_that_is_silent_for_longer_than_for_one_that_says_no(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, waited = three_servers(minutes=1), [0]
    farm = FarmLog((str(tmp_path / "one.sock"),))
    with ExitStack() as later:

        def come_back(_: float) -> None:
            waited[0] += 1
            if waited[0] == 2 * log_client.ROUNDS:
                later.enter_context(served(log, tmp_path / "one.sock"))

        monkeypatch.setattr("pipeline.source.log_client.time.sleep", come_back)
        assert len(list(read(farm, 5, log.cluster_id))) == 4
    assert waited[0] == 2 * log_client.ROUNDS
    # but not for ever
    monkeypatch.setattr(log_client, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmLogError, match="is not to be had"):
        list(read(farm, 5, log.cluster_id))


def next_of(stream: DataSourceStreamReader, start: Offset) -> int:
    """The entry that would be read next, of a single farm."""
    (following,) = stream.latestOffset(start, ReadAllAvailable())["farms"].values()
    return int(following)


def stream_of(*addresses: str) -> FarmStreamReader:
    stream = FarmDataSource({"node": ",".join(addresses)}).streamReader(ENTRIES)
    assert isinstance(stream, FarmStreamReader)
    return stream


def test_a_node_that_is_cut_off_from_its_farm_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given a node, asked first, that answers and knows of nothing new
    whole = three_servers(minutes=2)
    cut_off = copy.deepcopy(whole)
    cut_off.entries = cut_off.entries[:10]
    with served(cut_off, tmp_path / "one.sock") as first, served(whole, tmp_path / "two.sock") as second:
        # then a run to the end of the log knows the end from the other one
        stream = stream_of(first, second)
        start = {"farms": {whole.cluster_id: 1}}
        stream.prepareForTriggerAvailableNow()
        assert next_of(stream, start) == whole.commit_index + 1
        # and one that follows the log finds it out when nothing was new for a while
        stream = stream_of(first, second)
        assert next_of(stream, start) == 11
        monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", -1.0)
        assert next_of(stream, start) == whole.commit_index + 1
        # and stays with the one that knows more
        monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", 3600.0)
        assert next_of(stream, start) == whole.commit_index + 1


def test_the_node_that_answered_last_is_asked_first(tmp_path: Path) -> None:
    log, absent = three_servers(minutes=1), str(tmp_path / "absent.sock")
    with served(log, tmp_path / "one.sock") as first:
        of_nodes = ranges.NodeRanges((absent, first), Credentials(), 100)
        found = of_nodes.status()
        assert of_nodes.plan(1, 5, found.cluster).addresses == (first, absent)


def test_a_new_stream_begins_with_the_oldest_entry_that_any_node_has(tmp_path: Path) -> None:
    whole = three_servers(minutes=1)
    forgetful = copy.deepcopy(whole)
    forgetful.first_index, forgetful.entries = 8, forgetful.entries[7:]
    with served(forgetful, tmp_path / "one.sock") as first, served(whole, tmp_path / "two.sock") as second:
        stream = stream_of(first, second)
        found = stream.latestOffset(stream.initialOffset(), ReadAllAvailable())
        assert found["begins"] == {whole.cluster_id: {"next": 1}}


def test_what_leads_to_no_newer_entry_is_no_place_to_begin(tmp_path: Path) -> None:
    # given a node that holds nothing yet, one that was cut off long ago, and two that have compacted the log since
    whole = three_servers(minutes=1)
    just_come, cut_off, forgetful, lagging = (copy.deepcopy(whole) for _ in range(4))
    just_come.entries = []
    cut_off.entries = cut_off.entries[:4]
    forgetful.first_index, forgetful.entries = 12, forgetful.entries[11:]
    lagging.first_index, lagging.entries = 8, lagging.entries[7:11]
    with (
        served(just_come, tmp_path / "one.sock") as one,
        served(cut_off, tmp_path / "two.sock") as two,
        served(forgetful, tmp_path / "three.sock") as three,
        served(lagging, tmp_path / "four.sock") as four,
    ):
        # then a new run begins behind the gap
        stream = stream_of(one, two, three, four)
        start = stream.initialOffset()
        end = stream.latestOffset(start, ReadAllAvailable())
        assert end["begins"] == {whole.cluster_id: {"next": 8}}
        (partition,) = stream.partitions(start, end)
        rows = [index for batch in stream.read(partition) for index in batch.column("index").to_pylist()]
        assert rows == list(range(8, whole.commit_index + 1))
        # and one that was to read on within it hears of it, before anything is planned
        with pytest.raises(FarmLogError, match="entries 5 to 7 were compacted away"):
            stream_of(three, four).latestOffset({"farms": {whole.cluster_id: 5}}, ReadAllAvailable())


def test_nodes_of_no_cluster_or_another_one_are_passed_over_by_a_stream_as_well(tmp_path: Path) -> None:
    ours, foreign, joining = (three_servers(minutes=1) for _ in range(3))
    foreign.cluster_id, joining.cluster_id = "ff" * 16, ""
    start: Offset = {"farms": {ours.cluster_id: 1}}
    with (
        served(foreign, tmp_path / "one.sock") as first,
        served(joining, tmp_path / "two.sock") as second,
        served(ours, tmp_path / "three.sock") as third,
    ):
        end = stream_of(first, second, third).latestOffset(start, ReadAllAvailable())
        assert end == {"farms": {ours.cluster_id: ours.commit_index + 1}}
        # who is about to join may be of ours
        with pytest.raises(FarmSilentError, match="not joined a cluster yet"):
            FarmLog((first, second)).status(ours.cluster_id)
        with pytest.raises(FarmLogError, match="garlicfarm recover") as refused:
            stream_of(first).latestOffset(start, ReadAllAvailable())
        assert not isinstance(refused.value, FarmSilentError)


def test_an_index_that_is_not_there_yet_is_no_place_to_begin(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with served(log, tmp_path / "one.sock") as first, pytest.raises(FarmLogError, match="choose an earlier one"):
        FarmDataSource({"node": first, "start": "5000"}).reader(ENTRIES).partitions()


def test_where_nothing_is_committed_yet_there_is_no_row(tmp_path: Path) -> None:
    log = three_servers(minutes=1)
    with served(log, tmp_path / "one.sock") as first:
        reader = FarmDataSource({"node": first, "start": str(log.commit_index + 1)}).reader(ENTRIES)
        assert reader.partitions() == []
        assert list(reader.read(InputPartition(None))) == [], "that is what Spark asks then"
