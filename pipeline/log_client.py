"""Reads a farm's committed log through a node's control endpoint, with failover between nodes.

Runs inside Spark's planner and worker processes, which share no memory with anything: so it is synchronous, keeps no
connection between calls, and is made anew from a picklable list of addresses. An address is the path of a node's
control socket (a Unix socket of mode 0600: whoever may run the pipeline may read the log).

    committed(first)      one page from index `first`: GET /v1/log, only entries at or below the commit index
    cluster()             who leads, and the cluster id: a checkpoint of one farm must not be continued on another
"""

import http.client
import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

TIMEOUT_SECONDS = 10.0
RESPONSE_LIMIT_BYTES = 64 * 1024 * 1024


class FarmLogError(Exception):
    """The farm's log cannot be read: which address, what happened, what to do."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One committed entry. `body` is its text, or base64 of its bytes when `encoding` says so."""

    index: int
    term: int
    kind: str
    log_time_ms: int | None
    """None for an entry that is too old for the node to tell."""
    body: str
    encoding: str


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some committed entries, and how far the log goes."""

    first_index: int
    commit_index: int
    entries: tuple[LogEntry, ...]


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket; the host name is only for the Host header."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


@dataclass(frozen=True, slots=True)
class FarmLog:
    """The committed log, as any of `addresses` tells it. Picklable."""

    addresses: tuple[str, ...]

    def cluster_id(self) -> str:
        """The id of the cluster that the answering node belongs to.

        Raises FarmLogError when no node answers or the node belongs to no cluster yet.
        """
        answer = self._get("/v1/cluster")
        cluster_id = answer.get("clusterId")
        if not isinstance(cluster_id, str) or not cluster_id:
            raise FarmLogError("the node has not joined a cluster yet; wait until `garlicfarm status` shows a leader")
        return cluster_id

    def bounds(self) -> tuple[int, int]:
        """First index that the log still holds, and the commit index."""
        page = self.committed(1, limit=1, allow_compacted=True)
        return page.first_index, page.commit_index

    def committed(self, first: int, *, limit: int, allow_compacted: bool = False) -> LogPage:
        """At most `limit` committed entries from index `first` on.

        Raises FarmLogError when no node answers, an answer is malformed, or `first` was compacted away.
        """
        answer = self._get(f"/v1/log?from={first}&limit={limit}")
        try:
            page = LogPage(
                first_index=int(answer["firstIndex"]),
                commit_index=int(answer["commitIndex"]),
                entries=tuple(_entry(item) for item in answer["entries"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise FarmLogError(f"the control endpoint's answer about the log is malformed: {error!r}") from error
        if first < page.first_index and not allow_compacted:
            raise FarmLogError(
                f"entries {first} to {page.first_index - 1} were compacted away before they were read; start again"
                " with a new output directory, from the oldest entry that is left",
            )
        return page

    def range(self, first: int, end: int, *, page_size: int) -> Iterator[LogEntry]:
        """Committed entries with first <= index < end, in order; raises FarmLogError when one is missing."""
        expected = first
        while expected < end:
            page = self.committed(expected, limit=min(page_size, end - expected))
            if not page.entries:
                raise FarmLogError(
                    f"entry {expected} is not to be had (the node has committed up to {page.commit_index}):"
                    " this node lags behind the one that announced it, or belongs to another farm; try again",
                )
            for entry in page.entries:
                if entry.index != expected:
                    raise FarmLogError(f"asked for entry {expected} and was given entry {entry.index}")
                expected += 1
                yield entry

    def _get(self, target: str) -> dict[str, Any]:
        failures = []
        for address in self.addresses:
            try:
                return _fetch(address, target)
            except (OSError, http.client.HTTPException, ValueError) as error:
                failures.append(f"{address}: {str(error) or type(error).__name__}")
        raise FarmLogError(
            "no node's control endpoint answered (" + "; ".join(failures) + "); is the farm running?"
            " Name another with --node.",
        )


def _fetch(address: str, target: str) -> dict[str, Any]:
    connection = _UnixConnection(address)
    try:
        connection.request("GET", target, headers={"Connection": "close"})
        response = connection.getresponse()
        body = response.read(RESPONSE_LIMIT_BYTES + 1)
        if len(body) > RESPONSE_LIMIT_BYTES:
            raise ValueError(f"the answer is larger than {RESPONSE_LIMIT_BYTES} bytes")
        if response.status != http.client.OK:
            raise ValueError(f"status {response.status}: {body[:200].decode('utf-8', 'replace')}")
        answer = json.loads(body)
    finally:
        connection.close()
    if not isinstance(answer, dict):
        raise TypeError("the answer is not a JSON object")
    return answer


def _entry(item: dict[str, Any]) -> LogEntry:
    text = item.get("value")
    encoding = "text" if isinstance(text, str) else "base64"
    return LogEntry(
        index=int(item["index"]),
        term=int(item["term"]),
        kind=str(item["kind"]),
        log_time_ms=None if item["logTimeMs"] is None else int(item["logTimeMs"]),
        body=text if isinstance(text, str) else str(item["base64"]),
        encoding=encoding,
    )
