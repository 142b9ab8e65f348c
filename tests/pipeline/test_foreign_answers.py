"""Wrong answers at a control endpoint: they are passed over with the reason, and never hold a run up."""

import json
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
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
from tests.pipeline.farm_log_server import EPOCH_MS, served, three_servers
from tests.processes import END_S

CLUSTER = "00112233445566778899aabbccddeeff"
"""That of `three_servers`."""
Answer = Callable[[str], bytes]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds follow one another at once."""
    monkeypatch.setattr(log_client, "ROUND_PAUSE_SECONDS", 0.0)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def __init__(self, path: Path, answer: Answer) -> None:
        self.answer = answer
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self.server.answer(self.path)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Keeps the test's output clean."""

    def address_string(self) -> str:
        return "unix"


@contextmanager
def answering(path: Path, answer: Answer) -> Iterator[str]:
    """Something that answers at a socket as it likes."""
    with _Server(path, answer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown()
            thread.join(END_S)


def log_of(page: dict[str, Any] | bytes) -> Answer:
    """A member of the cluster that answers a question for the log so."""

    def answer(target: str) -> bytes:
        if target == "/v1/cluster":
            return json.dumps({"clusterId": CLUSTER}).encode()
        return page if isinstance(page, bytes) else json.dumps(page).encode()

    return answer


def entry(index: Any = 1, **other: Any) -> dict[str, Any]:
    return {"index": index, "term": 1, "kind": "application", "logTimeMs": EPOCH_MS, "value": "{}", **other}


def page(*entries: object, **other: Any) -> dict[str, Any]:
    return {"firstIndex": 1, "commitIndex": 1_000, "entries": entries, **other}


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (b"[" * 200_000, "status 200"),
        (b'{"firstIndex": 1e999, "commitIndex": 5, "entries": []}', "malformed"),
        (b'{"firstIndex": NaN, "commitIndex": 5, "entries": []}', "malformed"),
        (page(entry(), commitIndex=2**63), "malformed"),
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
def test_a_page_that_no_node_gives_is_passed_over_with_the_reason(
    told: dict[str, Any] | bytes, why: str, tmp_path: Path
) -> None:
    ours = three_servers(minutes=1)
    with answering(tmp_path / "one.sock", log_of(told)) as first:
        with pytest.raises(FarmLogError, match=why):
            list(FarmLog((first,)).range(1, 3, page_size=2, cluster=CLUSTER))
        # and where another node has the entries, they are taken from there
        with served(ours, tmp_path / "two.sock") as second:
            found = FarmLog((first, second)).range(1, 3, page_size=2, cluster=CLUSTER)
            assert [(each.index, each.kind) for each in found] == [(1, "configuration"), (2, "application")]


def test_an_answer_that_comes_in_drops_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ANSWER_SECONDS", -1.0)
    with (
        answering(tmp_path / "one.sock", lambda _: b"{}") as address,
        Endpoint(address, Credentials()) as node,
        pytest.raises(TimeoutError, match="not complete"),
    ):
        node.get("/v1/cluster")


def test_an_answer_that_is_too_large_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "RESPONSE_LIMIT_BYTES", 1_000)
    with (
        answering(tmp_path / "one.sock", lambda _: b" " * 1_001) as address,
        Endpoint(address, Credentials()) as node,
        pytest.raises(ValueError, match="larger than 1000 bytes"),
    ):
        node.get("/v1/cluster")


def test_one_connection_serves_many_questions(tmp_path: Path) -> None:
    with (
        answering(tmp_path / "one.sock", lambda target: json.dumps({"asked": target}).encode()) as address,
        Endpoint(address, Credentials()) as node,
    ):
        assert [node.get(f"/{number}") for number in range(3)] == [{"asked": f"/{number}"} for number in range(3)]


def test_nodes_that_hang_are_waited_for_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # given three that take connections and say nothing, until all three were asked
    log, asked = three_servers(minutes=1), threading.Barrier(3)

    def hang(_: str) -> bytes:
        asked.wait(timeout=20.0)
        return b"too late"

    with (
        answering(tmp_path / "one.sock", hang) as one,
        answering(tmp_path / "two.sock", hang) as two,
        answering(tmp_path / "three.sock", hang) as three,
        served(log, tmp_path / "four.sock") as four,
    ):
        monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 20.0)
        assert [found.address for found in FarmLog((one, two, three, four)).statuses()] == [four]
    assert not asked.broken


def test_a_question_for_the_length_of_the_log_fetches_no_entry(tmp_path: Path) -> None:
    asked: list[str] = []

    def answer(target: str) -> bytes:
        asked.append(target)
        return log_of(page())(target)

    with answering(tmp_path / "one.sock", answer) as address:
        assert FarmLog((address,)).bounds() == (1, 1_000)
    assert asked == ["/v1/cluster", "/v1/log?from=1&limit=0"]


def test_a_node_that_hangs_holds_nothing_up_while_another_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, end_of_test = three_servers(minutes=1), threading.Event()

    def hang(_: str) -> bytes:
        end_of_test.wait(END_S)
        return b"too late"

    monkeypatch.setattr(endpoint, "TIMEOUT_SECONDS", 3_600.0)
    monkeypatch.setattr(ranges, "LOOK_AROUND_SECONDS", -1.0)
    monkeypatch.setattr(ranges, "LOOK_AROUND_PATIENCE_SECONDS", 0.05)
    with served(log, tmp_path / "one.sock") as one, answering(tmp_path / "two.sock", hang) as two:
        try:
            of_nodes = ranges.NodeRanges((one, two), Credentials(), 100)
            assert [of_nodes.status(CLUSTER).commit_index for _ in range(3)] == [log.commit_index] * 3
        finally:
            end_of_test.set()


def trace_of(events: Callable[[int, int], dict[str, Any]], name: str = "node-1") -> Answer:
    """A node whose trace answers a question for `limit` events from `first` on as it likes."""

    def answer(target: str) -> bytes:
        url = urlsplit(target)
        if url.path == "/v1/view":
            about = {"name": name, "generation": 1}
            return json.dumps({"takenAtMs": EPOCH_MS, "node": about, "raft": {"logTimeMs": EPOCH_MS}}).encode()
        asked = parse_qs(url.query)
        return json.dumps(events(int(asked["from"][0]), int(asked["limit"][0]))).encode()

    return answer


def event(cursor: Any, **other: Any) -> dict[str, Any]:
    return {"cursor": cursor, "timeMs": EPOCH_MS, "logTimeMs": None, "kind": "k", "node": "n", "data": {}, **other}


@pytest.mark.parametrize(
    "told",
    [
        {"next": float("inf"), "events": []},
        {"next": 2**63, "events": []},
        {"next": 2, "events": []},
        {"next": 9, "events": None},
        {"next": 9},
    ],
)
def test_a_trace_that_no_node_gives_is_passed_over(told: dict[str, Any], tmp_path: Path) -> None:
    with answering(tmp_path / "one.sock", trace_of(lambda _, __: told)) as address:
        assert NodeTrace(address, Credentials()).end("1:5:0:0:aa:node-1") is None


def test_a_name_that_is_no_text_is_passed_over(tmp_path: Path) -> None:
    with answering(tmp_path / "one.sock", trace_of(lambda _, __: {"next": 9, "events": []}, "\ud800")) as address:
        assert NodeTrace(address, Credentials()).end(None) is None


def test_a_trace_without_an_end_is_not_listened_to_for_ever(tmp_path: Path) -> None:
    def endless(first: int, limit: int) -> dict[str, Any]:
        return {"next": first + limit, "events": [event(first)] * limit}

    with answering(tmp_path / "one.sock", trace_of(endless)) as address:
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
def test_events_that_no_node_tells_count_as_lost(page_of: Callable[[int, int], dict[str, Any]], tmp_path: Path) -> None:
    with answering(tmp_path / "one.sock", trace_of(page_of)) as address:
        trace = NodeTrace(address, Credentials())
        rows = list(islice(trace.rows(trace.stretch("1:3", f"1:9:0:{EPOCH_MS}:aa:node-1")), 10))
    assert [(row[0], row[1], row[5], row[6]) for row in rows] == [("node-1", 8, EVENTS_LOST, '{"lost": 6}')]


def test_events_of_which_each_page_tells_one_are_not_listened_to_for_ever(tmp_path: Path) -> None:
    with answering(tmp_path / "one.sock", trace_of(lambda first, _: {"events": [event(first)]})) as address:
        trace = NodeTrace(address, Credentials())
        rows = list(trace.rows(trace.stretch("1:1", f"1:{2**62}:0:{EPOCH_MS}:aa:node-1")))
    assert len(rows) == traces.PAGES_AT_ONCE + 1
    assert json.loads(rows[-1][6]) == {"lost": 2**62 - 1 - traces.PAGES_AT_ONCE}


def test_a_log_time_that_no_calendar_shows_is_none(tmp_path: Path) -> None:
    with answering(tmp_path / "one.sock", trace_of(lambda first, _: {"events": [event(first)]})) as address:
        trace = NodeTrace(address, Credentials())
        (row,) = trace.rows(trace.stretch("1:1", f"1:2:{-LATEST_MS}:{EPOCH_MS}:aa:node-1"))
    assert (row[2], row[3]) == (EPOCH_MS, None)
