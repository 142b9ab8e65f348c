"""A range of the log is read whole, whichever nodes die, lag, have forgotten or belong elsewhere meanwhile."""

import copy
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable

from pipeline import log_client, source
from pipeline.envelope import SCHEMA
from pipeline.log_client import FarmLog, FarmLogError, FarmSilentError, LogEntry
from pipeline.source import FarmDataSource
from tests.pipeline.farm_log_server import MadeUpLog, served, three_servers


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow one another at once."""
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)


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
        nobody = str(tmp_path / "nobody.sock")
        with pytest.raises(FarmLogError, match=r"(?s)entry 1 is not to be had.*compacted away.*nobody\.sock"):
            list(read(FarmLog((first, nobody)), 3, log.cluster_id))


def test_a_stream_outlives_a_farm_that_is_silent_for_a_moment_and_not_one_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = three_servers(minutes=1)
    stream = FarmDataSource({"node": str(tmp_path / "one.sock")}).streamReader(SCHEMA)
    with served(log, tmp_path / "one.sock"):
        start = stream.initialOffset()
    # while nobody answers there is nothing new
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    with served(log, tmp_path / "one.sock"):
        assert stream.latestOffset(start, ReadAllAvailable())["next"] == log.commit_index + 1
    # until it has been too long
    stream.latestOffset(start, ReadAllAvailable())
    monkeypatch.setattr(source, "SILENCE_SECONDS", -1.0)
    with pytest.raises(FarmSilentError, match="is the farm running"):
        stream.latestOffset(start, ReadAllAvailable())
