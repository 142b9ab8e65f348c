"""Made-up logs of a farm for the tests of the pipeline.

A test serves a log at a Unix socket, like a node's control endpoint, or converts it directly to rows of the source
`farm`.
"""

import base64
import json
import socketserver
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from bridge.core.log.hashes import hash_of
from pipeline.decode.columns import ARROW_SCHEMA, record_batches
from pipeline.schemas import ENTRIES
from tests.processes import END_S

Reply = Callable[[str], bytes]
"""The body of the response to a GET request for a target."""
Accept = Callable[[bytes], tuple[int, Mapping[str, object]]]
"""The status and body of the response to a POST request."""
EPOCH_MS = 1_767_225_600_000
"""2026-01-01T00:00:00Z."""


def destination(name: str) -> str:
    """Return a made-up destination in I2P's base64: 384 random bytes as its keys, and a certificate for Ed25519."""
    return base64.b64encode(Random(name).randbytes(384) + bytes.fromhex("05000400070000"), altchars=b"-~").decode()


def address(name: str) -> str:
    """Return the b32 address of the destination `name`."""
    return hash_of(destination(name))


def with_proof(text: str) -> str:
    """Return a JSON object with a syntactically valid proof as its last member; return other text unchanged."""
    try:
        members = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not (isinstance(members, dict) and members and text.endswith("}")) or "proof" in members:
        return text
    return f'{text[:-1]},"proof":"{"A" * 43}.1.{"A" * 86}"}}'


@dataclass
class MadeUpLog:
    """The entries of an imaginary farm, and the trace and replies of its node."""

    cluster_id: str = "00112233445566778899aabbccddeeff"
    first_index: int = 1
    entries: list[dict[str, Any]] = field(default_factory=list)
    log_time_ms: int = EPOCH_MS
    requests: int = 0
    generation: int = 1
    events: list[dict[str, Any]] = field(default_factory=list)
    """The node's trace; cursors count from `first_cursor`."""
    first_cursor: int = 1
    clock_ahead_ms: int = 0
    removed: tuple[int, ...] = ()
    submit_answer: tuple[int, Mapping[str, object]] = (200, {})
    submitted: list[bytes] = field(default_factory=list)

    def add_event(self, kind: str, *, log_time: bool = False, **data: Any) -> None:
        cursor = self.first_cursor + len(self.events)
        log_time_ms = self.log_time_ms if log_time else None
        time_ms = self.log_time_ms + self.clock_ahead_ms
        self.events.append(
            {
                "cursor": cursor,
                "timeMs": time_ms,
                "logTimeMs": log_time_ms,
                "kind": kind,
                "node": "node-1",
                "data": data,
            }
        )

    def view(self) -> dict[str, Any]:
        """Return the members of GET /v1/view that the source `farm_events` and feedback read."""
        return {
            "takenAtMs": self.log_time_ms + self.clock_ahead_ms,
            "node": {"name": "node-1", "generation": self.generation},
            "farm": {"clusterId": self.cluster_id},
            "raft": {"logTimeMs": self.log_time_ms},
            "removed": [*self.removed],
        }

    def event_page(self, first: int, limit: int) -> dict[str, Any]:
        """Return the reply to GET /v1/events."""
        offset = max(first - self.first_cursor, 0)
        events = self.events[offset : offset + limit]
        return {"next": self.first_cursor + offset + len(events), "lost": 0, "events": events}

    def add(self, kind: str = "application", *, proven: bool = True, **value: str) -> None:
        """Append an entry with `value=` text or `base64=`. An object gets a proof unless `proven` is False.

        The pipeline cannot verify proofs, so the proof only has the right form.
        """
        index = self.first_index + len(self.entries)
        if kind == "application" and proven and "value" in value:
            value["value"] = with_proof(value["value"])
        self.entries.append({"index": index, "term": 1, "kind": kind, "logTimeMs": self.log_time_ms, **value})

    def tick(self, milliseconds: int, leader: int = 1) -> None:
        """Add a clock entry of the leader, `milliseconds` after the previous one."""
        self.log_time_ms += milliseconds
        self.add(value=json.dumps({"clock": {"time": self.log_time_ms, "id": leader}}))

    def report(self, server_id: int, **router: Any) -> None:
        """Add a server's report."""
        body = {
            "cluster": "farm",
            "date": self.log_time_ms,
            "id": server_id,
            "router": {"attached": True, **router},
            "destinations": [
                {"destination": destination("a"), "healthy": True},
                {"destination": destination("b"), "healthy": server_id != 2},
            ],
        }
        self.add(value=json.dumps(body))

    @property
    def commit_index(self) -> int:
        """Return the last index: all entries are committed."""
        return self.first_index + len(self.entries) - 1

    def page(self, first: int, limit: int) -> dict[str, Any]:
        """Return the reply to GET /v1/log."""
        offset = max(first - self.first_index, 0)
        return {
            "clusterId": self.cluster_id or None,
            "firstIndex": self.first_index,
            "lastIndex": self.commit_index,
            "commitIndex": self.commit_index,
            "entries": self.entries[offset : offset + limit],
        }


def three_servers(minutes: int) -> MadeUpLog:
    """Return a log with reports every 10 s. Server 3 sends nothing in the second minute, then reports a restart."""
    log = MadeUpLog()
    log.add("configuration", value='{"servers":[]}')
    for period in range(minutes * 6):
        log.tick(0 if period == 0 else 10_000)
        for server_id in (1, 2, 3):
            silent = server_id == 3 and 6 <= period < 12
            uptime_ms = period * 10_000 if server_id != 3 or period < 6 else (period - 12) * 10_000
            if not silent:
                log.report(server_id, uptime=uptime_ms, jobLag=float(server_id), cpuPercent=10.0)
    return log


def two_days() -> MadeUpLog:
    """Return a configuration, a clock entry and two reports every six hours, and an undecodable entry."""
    log = MadeUpLog()
    log.add("configuration", value='{"servers":[]}')
    for period in range(8):
        log.tick(0 if period == 0 else 21_600_000)
        for server_id in (1, 2):
            log.report(server_id, uptime=period)
    log.add(value="{not JSON", proven=False)
    return log


def arrow_entries_of(log: MadeUpLog, name: str | None = None) -> pa.Table:
    """Return the rows of the source `farm` for this log. `name` is the farm's name in a file of farms."""
    rows = (
        (
            int(entry["index"]),
            int(entry["term"]),
            str(entry["kind"]),
            entry["logTimeMs"],
            entry["value"].encode() if "value" in entry else base64.b64decode(entry["base64"]),
        )
        for entry in log.entries
    )
    return pa.Table.from_batches(record_batches(rows, log.cluster_id, name), ARROW_SCHEMA)


def entries_of(session: SparkSession, log: MadeUpLog) -> DataFrame:
    """Return these rows as a DataFrame. Reading the log through Spark would take seconds."""
    return session.createDataFrame(arrow_entries_of(log), ENTRIES)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, path: Path, reply: Reply, accept: Accept) -> None:
        self.reply = reply
        self.accept = accept
        super().__init__(str(path), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self._send(200, self.server.reply(self.path))

    def do_POST(self) -> None:
        status, answer = self.server.accept(self.rfile.read(int(self.headers["Content-Length"])))
        self._send(status, json.dumps(answer).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Do not log to the test's output."""

    def address_string(self) -> str:
        return "unix"


def _refuse(_: bytes) -> tuple[int, Mapping[str, object]]:
    return 405, {}


@contextmanager
def reply_at(path: Path, reply: Reply, accept: Accept = _refuse) -> Iterator[str]:
    """Serve the replies of `reply` at the Unix socket `path` while the block runs."""
    with _Server(path, reply, accept) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield str(path)
        finally:
            server.shutdown()
            thread.join(END_S)
            path.unlink()


def serve_log(log: MadeUpLog, path: Path) -> AbstractContextManager[str]:
    """Serve `log` at the Unix socket `path` while the block runs."""

    def reply(target: str) -> bytes:
        log.requests += 1
        url = urlsplit(target)
        if url.path == "/v1/cluster":
            return json.dumps({"clusterId": log.cluster_id}).encode()
        if url.path == "/v1/view":
            return json.dumps(log.view()).encode()
        page = log.event_page if url.path == "/v1/events" else log.page
        query = parse_qs(url.query)
        return json.dumps(page(int(query["from"][0]), int(query["limit"][0]))).encode()

    def accept(command: bytes) -> tuple[int, Mapping[str, object]]:
        log.submitted.append(command)
        return log.submit_answer

    return reply_at(path, reply, accept)
