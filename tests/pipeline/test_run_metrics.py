"""Metrics of a run: values added by a batch, the computation of the lag, and the endpoint for Prometheus."""

import json
import math
import re
import socket
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from pipeline.cli.commands import run
from pipeline.cli.options import serving_metrics
from pipeline.lake import Lake
from pipeline.run import count_batch, entries_in, may_have_more, may_leave_farms_waiting, newest_of, places
from pipeline.serve.metrics import LOOPBACK, RunMetrics, address
from pipeline.source.kafka import MOST_OFFSETS, SERVERS
from pipeline.source.shares import SHARE_LEAST
from pipeline.tables.tasks import outcome_of, work
from tests.pipeline.farm_log_server import MadeUpLog, arrow_entries_of, three_servers

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def value(metrics: RunMetrics, name: str) -> float:
    (found,) = re.findall(rf"^garlicfarm_pipeline_{name} (\S+)$", metrics.exposition().decode(), re.MULTILINE)
    return float(found)


@pytest.mark.parametrize("few_rows", [20_000, 0], ids=["rows-in-memory", "rows-in-files"])
def test_batch_counts_entries_and_quarantined_entries(tmp_path: Path, few_rows: int) -> None:
    log = three_servers(minutes=2)
    log.add(value="not json at all")
    log.add(base64="//79")
    plan = replace(Lake(tmp_path, 60_000).plan, few_rows=few_rows)
    halves = arrow_entries_of(log).combine_chunks().to_batches(max_chunksize=1 + log.commit_index // 2)
    outcome = outcome_of(each for half in halves for each in work(plan, [half]))
    assert len(halves) == 2
    metrics = RunMetrics(lambda: log.log_time_ms / 1000 + 7)
    count_batch(outcome, 0.7, metrics)
    assert value(metrics, "entries_total") == log.commit_index
    assert value(metrics, "quarantined_entries_total") == 2
    assert value(metrics, "batch_seconds_count") == 1
    assert value(metrics, r'batch_seconds_bucket\{le="0.5"\}') == 0
    assert value(metrics, r'batch_seconds_bucket\{le="1.0"\}') == 1
    assert value(metrics, "lag_seconds") == 7
    assert value(metrics, "farms") == 1


def test_lag_excludes_farm_without_reply() -> None:
    def progress(read: dict[str, int], newest: dict[str, int] | None) -> dict[str, object]:
        offsets = [None if each is None else json.dumps({"farms": each}) for each in (read, newest)]
        return {"sources": [{"endOffset": offsets[0], "latestOffset": offsets[1]}]}

    # given a farm read up to a high index, which has not replied since the start of the run
    read, newest, farms, _ = places(progress({"gone": 1_000_001, "here": 11}, {"here": 101, "new": 6}))
    assert newest - read == 90 + 5
    assert farms == {"here", "new"}
    assert places(progress({"only": 11}, None)) == (10, 0, frozenset(), {})


@pytest.mark.parametrize(("most", "is_full"), [(20, True), (21, True), (30, False)])
def test_topic_batch_is_full_by_span_of_indexes(tmp_path: Path, most: int, *, is_full: bool) -> None:
    # given entries with gaps: the topic does not show every entry
    log = three_servers(minutes=2)
    log.entries = [each for each in log.entries[:20] if each["index"] not in {1, 5, 6, 7, 8}]
    outcome = outcome_of(work(Lake(tmp_path, 60_000).plan, arrow_entries_of(log).to_batches()))
    assert may_have_more(outcome, {SERVERS: "127.0.0.1:9092", MOST_OFFSETS: str(most)}) is is_full
    assert may_have_more(outcome, {"node": "a", "maxEntriesPerBatch": "15"})
    assert not may_have_more(outcome, {"node": "a", "maxEntriesPerBatch": "16"})


@pytest.mark.parametrize(("count", "expected"), [(SHARE_LEAST, True), (SHARE_LEAST + 1, False)])
def test_batch_with_small_shares_may_be_a_turn(tmp_path: Path, count: int, *, expected: bool) -> None:
    log = three_servers(minutes=20)
    log.entries = log.entries[:count]
    outcome = outcome_of(work(Lake(tmp_path, 60_000).plan, arrow_entries_of(log).to_batches()))
    assert (entries_in(outcome), may_leave_farms_waiting(outcome)) == (count, expected)


def test_log_time_of_last_entry_counts_as_newest(tmp_path: Path) -> None:
    log, days_ms, plan = MadeUpLog(), 40 * 86_400_000, Lake(tmp_path, 60_000).plan
    for by_ms in (days_ms, 1_000, 1_000 - days_ms, 1_000):
        log.tick(by_ms)
    for count in (1, 2, 3, 4):
        batches = arrow_entries_of(log).combine_chunks().to_batches(max_chunksize=count)
        outcome = outcome_of(each for batch in batches for each in work(plan, [batch]))
        assert newest_of(outcome) == {log.cluster_id: datetime.fromtimestamp(log.log_time_ms / 1000, UTC)}


def test_lag_is_unknown_before_first_batch() -> None:
    now = NOON.timestamp()
    metrics = RunMetrics(lambda: now)
    assert math.isnan(value(metrics, "lag_seconds"))
    assert math.isnan(value(metrics, "lag_entries")), "0 would mean that the run is up to date"
    metrics.progressed(0, 0)
    assert math.isnan(value(metrics, "lag_entries"))
    metrics.batch_done(1.0, 5, 0, {"a": NOON - timedelta(seconds=30), "b": NOON - timedelta(seconds=384)})
    metrics.progressed(60, 100)
    assert (value(metrics, "lag_seconds"), value(metrics, "lag_entries")) == (384, 40)
    # a batch without entries of a farm does not change the lag of the farm
    metrics.batch_done(1.0, 5, 0, {"b": NOON})
    metrics.progressed(100, 100)
    assert (value(metrics, "lag_seconds"), value(metrics, "lag_entries")) == (30, 0)
    # a farm whose clock is ahead does not lag
    metrics.batch_done(1.0, 1, 0, {"a": NOON + timedelta(seconds=9)})
    assert value(metrics, "lag_seconds") == 0


def test_lag_excludes_unlisted_farm_until_listed_again() -> None:
    now = NOON.timestamp()
    metrics = RunMetrics(lambda: now)
    metrics.batch_done(1.0, 5, 0, {"a": NOON - timedelta(seconds=30), "b": NOON - timedelta(seconds=384)})
    for farms, behind_s in ((set[str](), 384), ({"a"}, 30), (set[str](), 30), ({"a", "b"}, 384)):
        metrics.progressed(100, 100, farms)
        assert value(metrics, "lag_seconds") == behind_s
    # With many farms, the source reports the removed farms instead; they replace the earlier removed ones.
    for removed, lag_s in (({"b"}, 30.0), (set[str](), 384.0), ({"a", "b"}, math.nan)):
        metrics.progressed(100, 100, {"a"})
        metrics.progressed(100, 100, removed=removed)
        assert value(metrics, "lag_seconds") == pytest.approx(lag_s, nan_ok=True)


def test_time_since_batch_is_defined_before_first_batch() -> None:
    now = [1_000.0]
    metrics = RunMetrics(lambda: now[0])
    now[0] += 240
    assert (value(metrics, "seconds_since_batch"), math.isnan(value(metrics, "lag_seconds"))) == (240, True)
    metrics.batch_done(1.0, 5, 0, {})
    now[0] += 3
    assert value(metrics, "seconds_since_batch") == 3


def test_lost_starts_are_counted_from_zero() -> None:
    metrics = RunMetrics()
    assert value(metrics, "lost_starts_total") == 0
    metrics.start_lost()
    assert value(metrics, "lost_starts_total") == 1


def test_address_defaults_to_loopback() -> None:
    assert address("9400") == (LOOPBACK, 9400)
    assert address("0.0.0.0:9400") == ("0.0.0.0", 9400)  # noqa: S104 - the test does not listen there
    assert address("[::1]:9400") == ("::1", 9400)
    for wrong in ("", "nine", "host:", "65536", "a b:1", "http://host:1", "::1:9400"):
        with pytest.raises(ValueError, match="neither a port nor HOST:PORT"):
            address(wrong)
    result = CliRunner().invoke(run, ["--metrics", "http://host:1"])
    assert (result.exit_code, "neither a port nor HOST:PORT" in result.output) == (2, True)


def test_metrics_are_served_only_during_run() -> None:
    log_lines: list[str] = []
    with serving_metrics(LOOPBACK, 0, log_lines.append) as metrics:
        metrics.batch_done(1.0, 5, 1, {"a": NOON})
        (found,) = re.findall(r"Metrics: (http://127\.0\.0\.1:\d+/metrics)", log_lines[0])
        with urllib.request.urlopen(found, timeout=60) as answer:  # noqa: S310 - this test's own
            assert answer.headers["Content-Type"].startswith("text/plain; version=")
            assert "garlicfarm_pipeline_quarantined_entries_total 1.0" in answer.read().decode()
    with pytest.raises(OSError, match="refused"), urllib.request.urlopen(found, timeout=60):  # noqa: S310 - see above
        pass


def test_occupied_address_fails_with_remedy() -> None:
    with socket.create_server((LOOPBACK, 0)) as other:
        port = other.getsockname()[1]
        message = f"cannot listen for metrics on 127.0.0.1:{port}: .* Choose another --metrics"
        with pytest.raises(click.ClickException, match=message), serving_metrics(LOOPBACK, port, lambda _: None):
            pass
