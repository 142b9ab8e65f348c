"""Invalid replies of a control endpoint: the pipeline reports the reason, skips the node, and never hangs.

A small server sends arbitrary bytes as a log page or as a trace.
"""

import json
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from pipeline.schemas import LATEST_MS
from pipeline.source import endpoint, log_client, ranges, traces
from pipeline.source.endpoint import Credentials, Endpoint
from pipeline.source.log_client import FarmLog, FarmLogError
from pipeline.source.traces import EVENTS_LOST, NodeTrace, same_place
from tests.pipeline.farm_log_server import EPOCH_MS, Reply, reply_at, serve_log, three_servers
from tests.processes import END_S

CLUSTER = "00112233445566778899aabbccddeeff"
"""The cluster id of `three_servers`."""


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)


def log_replies(page: dict[str, Any] | bytes) -> Reply:
    """Return the replies of a node with `page` as its log page."""
    return lambda _: page if isinstance(page, bytes) else json.dumps(page).encode()


def entry(index: Any = 1, **other: Any) -> dict[str, Any]:
    return {"index": index, "term": 1, "kind": "application", "logTimeMs": EPOCH_MS, "value": "{}", **other}


def page(*entries: object, **other: Any) -> dict[str, Any]:
    return {"clusterId": CLUSTER, "firstIndex": 1, "commitIndex": 1_000, "entries": entries, **other}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (b"[" * 200_000, "status 200"),
        (b'{"firstIndex": 1e999, "commitIndex": 5, "entries": []}', "malformed"),
        (b'{"firstIndex": NaN, "commitIndex": 5, "entries": []}', "malformed"),
        (page(entry(), commitIndex=2**63), "malformed"),
        (page(entry(), clusterId=7), "malformed"),
        (page(entry(), clusterId=""), "malformed"),
        (page(entry(), clusterId=None), "has not joined a cluster yet"),
        (page(entry(), clusterId="ff"), "belongs to the cluster ff"),
        (page(entry(), firstIndex=True), "malformed"),
        (page(entry(term=2**63)), "malformed"),
        (page(entry(term=-1)), "malformed"),
        (page(entry(logTimeMs=10**15)), "malformed"),
        (page(entry(kind="\ud800")), "malformed"),
        (page(entry(value=None, base64="*")), "malformed"),
        (page("no entry at all"), "malformed"),
        (page(entry(1), entry(2), entry(3)), "it returned 3 entries instead of at most 2"),
        (page(entry(1), entry(3)), "it returned entry 3 instead of entry 2"),
        (page(entry(1), entry(2), commitIndex=1), "committed up to 1 only"),
    ],
)
def test_invalid_page_is_skipped_with_reason(reply: dict[str, Any] | bytes, why: str, tmp_path: Path) -> None:
    ours = three_servers(minutes=1)
    with reply_at(tmp_path / "one.sock", log_replies(reply)) as first:
        with pytest.raises(FarmLogError, match=why):
            list(FarmLog((first,)).range(1, 3, page_size=2, cluster=CLUSTER))
        # If another node has the entries, they come from that node.
        with serve_log(ours, tmp_path / "two.sock") as second:
            found = FarmLog((first, second)).range(1, 3, page_size=2, cluster=CLUSTER)
            assert [(each.index, each.kind) for each in found] == [(1, "configuration"), (2, "application")]


def test_slow_reply_times_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", -1.0)
    with (
        reply_at(tmp_path / "one.sock", lambda _: b"{}") as address,
        Endpoint(address, Credentials()) as node,
        pytest.raises(TimeoutError, match="not complete"),
    ):
        node.get("/v1/cluster")


def test_oversized_reply_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RESPONSE_LIMIT_BYTES", 1_000)
    with (
        reply_at(tmp_path / "one.sock", lambda _: b" " * 1_001) as address,
        Endpoint(address, Credentials()) as node,
        pytest.raises(ValueError, match="larger than 1000 bytes"),
    ):
        node.get("/v1/cluster")


def test_connection_is_reused_for_several_requests(tmp_path: Path) -> None:
    with (
        reply_at(tmp_path / "one.sock", lambda target: json.dumps({"path": target}).encode()) as address,
        Endpoint(address, Credentials()) as node,
    ):
        assert [node.get(f"/{number}") for number in range(3)] == [{"path": f"/{number}"} for number in range(3)]


def test_hanging_nodes_are_awaited_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given three nodes that accept connections and do not reply until all three have a request
    log, all_requested = three_servers(minutes=1), threading.Barrier(3)

    def hang(_: str) -> bytes:
        all_requested.wait(timeout=60.0)
        return b"too late"

    with (
        reply_at(tmp_path / "one.sock", hang) as one,
        reply_at(tmp_path / "two.sock", hang) as two,
        reply_at(tmp_path / "three.sock", hang) as three,
        serve_log(log, tmp_path / "four.sock") as four,
    ):
        monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 60.0)
        assert [found.address for found in FarmLog((one, two, three, four)).statuses()] == [four]
    assert not all_requested.broken


def test_bounds_do_not_fetch_entries(tmp_path: Path) -> None:
    requests: list[str] = []

    def reply(target: str) -> bytes:
        requests.append(target)
        return log_replies(page())(target)

    with reply_at(tmp_path / "one.sock", reply) as address:
        assert FarmLog((address,)).bounds() == (1, 1_000)
    assert requests == ["/v1/log?from=1&limit=0"]


def test_hanging_node_does_not_delay_reachable_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, end_of_test = three_servers(minutes=1), threading.Event()

    def hang(_: str) -> bytes:
        end_of_test.wait(END_S)
        return b"too late"

    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 3_600.0)
    monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", -1.0)
    monkeypatch.setattr(ranges, "LOOK_AROUND_PATIENCE_SECONDS", 0.05)
    with serve_log(log, tmp_path / "one.sock") as one, reply_at(tmp_path / "two.sock", hang) as two:
        try:
            of_nodes = ranges.NodeRanges((one, two), Credentials(), 100)
            assert [of_nodes.status(CLUSTER).commit_index for _ in range(3)] == [log.commit_index] * 3
        finally:
            end_of_test.set()


def trace_replies(events: Callable[[int, int], dict[str, Any]], name: str = "node-1") -> Reply:
    """Return the replies of a node whose trace page of `limit` events from `first` on is `events(first, limit)`."""

    def reply(target: str) -> bytes:
        url = urlsplit(target)
        if url.path == "/v1/view":
            about = {"name": name, "generation": 1}
            return json.dumps({"takenAtMs": EPOCH_MS, "node": about, "raft": {"logTimeMs": EPOCH_MS}}).encode()
        query = parse_qs(url.query)
        return json.dumps(events(int(query["from"][0]), int(query["limit"][0]))).encode()

    return reply


def event(cursor: Any, **other: Any) -> dict[str, Any]:
    return {"cursor": cursor, "timeMs": EPOCH_MS, "logTimeMs": None, "kind": "k", "node": "n", "data": {}, **other}


@pytest.mark.parametrize(
    "reply",
    [
        {"next": float("inf"), "events": []},
        {"next": 2**63, "events": []},
        {"next": 2, "events": []},
        {"next": 9, "events": None},
        {"next": 9},
    ],
)
def test_invalid_trace_is_skipped(reply: dict[str, Any], tmp_path: Path) -> None:
    with reply_at(tmp_path / "one.sock", trace_replies(lambda _, __: reply)) as address:
        assert NodeTrace(address, Credentials()).end("1:5:0:0:aa:node-1") is None


def test_invalid_node_name_is_skipped(tmp_path: Path) -> None:
    with reply_at(tmp_path / "one.sock", trace_replies(lambda _, __: {"next": 9, "events": []}, "\ud800")) as address:
        assert NodeTrace(address, Credentials()).end(None) is None


def test_endless_trace_is_read_up_to_page_limit(tmp_path: Path) -> None:
    def endless(first: int, limit: int) -> dict[str, Any]:
        return {"next": first + limit, "events": [event(first)] * limit}

    with reply_at(tmp_path / "one.sock", trace_replies(endless)) as address:
        end = NodeTrace(address, Credentials()).end(None)
    assert end is not None
    assert same_place(end, f"1:{traces.PAGES_AT_ONCE * traces.PAGE_EVENTS + 1}")


@pytest.mark.parametrize(
    "page_of",
    [
        lambda first, _: {"events": [event(first - 1)]},
        lambda first, _: {"events": [event(first), event(first)]},
        lambda first, _: {"events": [event(first, timeMs=float("inf"))]},
        lambda first, _: {"events": [event(first, node="\ud800")]},
        lambda _, __: {"events": ["no event"]},
        lambda _, __: {"events": 5},
    ],
)
def test_invalid_events_count_as_lost(page_of: Callable[[int, int], dict[str, Any]], tmp_path: Path) -> None:
    with reply_at(tmp_path / "one.sock", trace_replies(page_of)) as address:
        trace = NodeTrace(address, Credentials())
        rows = list(islice(trace.rows(trace.stretch("1:3", f"1:9:0:{EPOCH_MS}:aa:node-1")), 10))
    assert [(row[0], row[1], row[5], row[6]) for row in rows] == [("node-1", 8, EVENTS_LOST, '{"lost": 6}')]


def test_trace_with_single_event_pages_is_read_up_to_limit(tmp_path: Path) -> None:
    with reply_at(tmp_path / "one.sock", trace_replies(lambda first, _: {"events": [event(first)]})) as address:
        trace = NodeTrace(address, Credentials())
        rows = list(trace.rows(trace.stretch("1:1", f"1:{2**62}:0:{EPOCH_MS}:aa:node-1")))
    assert len(rows) == traces.PAGES_AT_ONCE + 1
    assert json.loads(rows[-1][6]) == {"lost": 2**62 - 1 - traces.PAGES_AT_ONCE}


def test_log_time_outside_calendar_is_null(tmp_path: Path) -> None:
    with reply_at(tmp_path / "one.sock", trace_replies(lambda first, _: {"events": [event(first)]})) as address:
        trace = NodeTrace(address, Credentials())
        (row,) = trace.rows(trace.stretch("1:1", f"1:2:{-LATEST_MS}:{EPOCH_MS}:aa:node-1"))
    assert (row[2], row[3]) == (EPOCH_MS, None)
