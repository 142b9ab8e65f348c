"""Worked example of docs/explanation/publishing.md, executed. The test reads its figures from the document."""

import re
from functools import cache
from pathlib import Path

from bridge.core.log.hashes import hash_of
from bridge.core.log.records import CostFactor, Factors, LeafStatus, Publication, Report
from bridge.core.log.weights import FACTOR_ENDS_MS, weighed
from bridge.core.publishing.candidates import candidates_of, score
from bridge.core.publishing.publication import Pace, plan_publication
from bridge.core.publishing.publisher_election import PublisherChanged
from tests.spec.farm_stories import BASE_MS, MASTER, PERIOD_MS, TUNING, Log, report

TEXT = (Path(__file__).parents[2] / "docs" / "explanation" / "publishing.md").read_text(encoding="utf-8")
REPORTED_AT_MS = 10_000
UPTIME_AT_THE_START = {1: 60, 2: 60, 3: 3}


@cache
def rows() -> dict[int, list[int]]:
    """Map each server to its cells of the table."""
    found = re.findall(r"^\| server (\d) \|(.*)\|$", TEXT, flags=re.MULTILINE)
    return {int(name): [int(cell) for cell in cells.split("|")] for name, cells in found}


def report_of(server_id: int, after_ms: int = 0) -> Report:
    """Return the report of a server of the table, `after_ms` after the beginning."""
    lag, uptime, bandwidth, processor, memory, connections, _, _ = rows()[server_id]
    return report(
        server_id,
        BASE_MS + after_ms,
        job_lag_ms=lag,
        uptime_ms=uptime * 60_000 + after_ms,
        current_bandwidth_bytes_per_s=bandwidth * 1_000,
        cpu_percent=processor,
        memory_percent=memory,
        destinations=(
            LeafStatus(
                f"leaf{server_id}",
                healthy=True,
                configured_tunnels=4,
                current_tunnels=4,
                configured_connections=100,
                current_connections=connections,
            ),
        ),
    )


def period(log: Log, number: int, *servers: int) -> list[object]:
    """Append a period: the running servers report 10 seconds after its start, then comes the clock entry."""
    log.append(*(report_of(each, number * PERIOD_MS + REPORTED_AT_MS) for each in servers))
    return list(log.clock((number + 1) * PERIOD_MS))


def publish_at(log: Log, server_id: int, after_ms: int) -> Publication:
    plan = plan_publication(log.farm.state, MASTER, server_id, Pace(), BASE_MS + after_ms, handed_over=None)
    assert plan is not None
    log.append(plan.publication)
    return plan.publication


def test_table_figures_match_code() -> None:
    log = Log(*(report_of(each) for each in rows()))
    assert {server_id: cells[1] for server_id, cells in rows().items()} == UPTIME_AT_THE_START
    assert {each.server_id: each.score for each in candidates_of(log.farm.state, MASTER, TUNING)} == {
        server_id: cells[-2] for server_id, cells in rows().items()
    }
    assert log.leaves == {f"leaf{server_id}": cells[-1] for server_id, cells in rows().items()}


def test_example_steps_match_code() -> None:
    log = Log()
    # Hysteresis: server 1 reports first; server 2 leads by 189 and becomes the publisher at the third clock entry.
    assert period(log, 0, 1, 2, 3) == []
    assert log.publisher == 1
    assert score(report_of(2)) - score(report_of(1)) == 189
    assert period(log, 1, 1, 2, 3) == []
    assert period(log, 2, 1, 2, 3) == [PublisherChanged(MASTER, 2, 1)]
    # Seven minutes later server 3 has 957 points, 43 more than server 2.
    for number in range(3, 20):
        assert period(log, number, 1, 2, 3) == []
    assert score(report_of(3, 7 * 60_000)) == 957 == score(report_of(2)) + 43
    last = publish_at(log, 2, 600_000)
    # Staleness: the last report of server 2 is from 10:10; it is fresh at 10:30 and stale at 11:00.
    assert period(log, 20, 1, 2, 3) == []
    assert period(log, 21, 1, 3) == [PublisherChanged(MASTER, 3, 2)]
    assert log.farm.state.log_time_ms == BASE_MS + 660_000
    assert sorted(log.leaves) == ["leaf1", "leaf3"]
    assert publish_at(log, 3, 660_000).published_s > last.published_s
    # Fewer than half: the last report of server 1 is from 10:40; it is stale at 11:30.
    assert period(log, 22, 3) == []
    assert log.leaves == {"leaf3": 4, "leaf2": 108, "leaf1": 137}


def test_example_weights_match_code() -> None:
    log = Log()
    period(log, 0, 1, 2, 3)
    log.append(CostFactor(hash_of("leaf3"), 1.5))
    assert log.leaves == {"leaf3": 16, "leaf2": 8, "leaf1": 37}
    one = hash_of("leaf1")
    log.append(Factors(len(log.records), "breaks", {one: 1.2}))
    assert weighed(37, one, log.farm.state.weights, log.farm.state.log_time_ms) == 42
    period(log, 1, 1, 2, 3)
    assert log.leaves["leaf1"] == 37
    log.append(Factors(len(log.records), "breaks", {one: 1.2}))
    assert log.leaves["leaf1"] == 48
    for number in range(2, 2 + FACTOR_ENDS_MS // PERIOD_MS):
        period(log, number, 1, 2, 3)
    assert not log.farm.state.weights.factors
    assert log.leaves["leaf1"] == 38


def test_document_text_has_figures() -> None:
    figures = ("leads by 189", "957 points", "by 43", "20 s old", "50 s old", "leaf 2 at 108", "leaf 1 at 137")
    for words in (*figures, "= 16", "cost of 42", "= 48", "changes to 38", "keeps 38"):
        assert words in " ".join(TEXT.split()), words
