"""Reads a farm's committed log through the nodes' control endpoints, with failover between them.

Runs inside Spark's planner and worker processes, which share no memory with anything: it is synchronous, made anew from
picklable values, and keeps one connection for as long as one range is read.

    bounds()            where the log begins and how far it is committed: GET /v1/log
    cluster_id()        whose log it is: a checkpoint of one farm must not be continued on another
    range(first, end)   the entries between, from whichever node has them

*Failover.* A node may die in the middle of a range, lag behind the one that announced the end of it, have compacted
more than another, or belong to another farm. Each is a reason to go on with the next address at the very entry that is
missing: an index holds the same entry at every node. Only when all of them failed, time and again, the range is given
up, with what each of them said.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from pipeline.endpoint import LOST, Credentials, Endpoint

T = TypeVar("T")

NO_CREDENTIALS = Credentials()
ROUNDS = 20
ROUND_PAUSE_SECONDS = 1.0

COMPACTED = (
    "start again with a new output directory: from the oldest entry that a node still has (which is where a new one"
    " begins), or with --directory STATE_DIR --start snapshot from what the snapshot of a node holds"
)


class FarmLogError(Exception):
    """The farm's log cannot be read: which address, what happened, what to do."""


class FarmSilentError(FarmLogError):
    """No node answers: it may be a moment, such as a restart of the farm, or the end of it."""


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


@dataclass(frozen=True, slots=True)
class FarmLog:
    """The committed log, as any of `addresses` tells it. Picklable."""

    addresses: tuple[str, ...]
    credentials: Credentials = NO_CREDENTIALS

    def cluster_id(self) -> str:
        """The id of the cluster that the answering node belongs to.

        Raises FarmLogError when no node answers or the node belongs to no cluster yet.
        """
        found = self._ask(_cluster_id)
        if found is None:
            raise FarmLogError("the node has not joined a cluster yet; wait until `garlicfarm status` shows a leader")
        return found

    def bounds(self) -> tuple[int, int]:
        """First index that the log still holds, and the commit index."""
        page = self._ask(lambda node: _page(node, 1, 1))
        return page.first_index, page.commit_index

    def oldest(self) -> int:
        """The first index that any node which answers still holds."""
        found = []
        for address in self.addresses:
            try:
                found.append(FarmLog((address,), self.credentials).bounds()[0])
            except FarmLogError:
                continue
        return min(found) if found else self.bounds()[0]

    def range(self, first: int, end: int, *, page_size: int, cluster: str | None = None) -> Iterator[LogEntry]:
        """Committed entries with first <= index < end, in order; raises FarmLogError when one is not to be had."""
        following = first
        failures: dict[str, str] = {}
        for _ in range(ROUNDS):
            for address in self.addresses:
                try:
                    with Endpoint(address, self.credentials) as node:
                        _check_cluster(node, cluster)
                        while following < end:
                            for entry in _entries(node, following, min(page_size, end - following)):
                                following += 1
                                yield entry
                        return
                except LOST as error:
                    failures[address] = _words(error)
            time.sleep(ROUND_PAUSE_SECONDS)
        raise FarmLogError(f"entry {following} is not to be had: {_told(failures)}")

    def _ask(self, question: Callable[[Endpoint], T]) -> T:
        failures: dict[str, str] = {}
        for address in self.addresses:
            try:
                with Endpoint(address, self.credentials) as node:
                    return question(node)
            except LOST as error:
                failures[address] = _words(error)
        raise FarmSilentError(
            f"no node's control endpoint answered ({_told(failures)}); is the farm running? Name another with --node.",
        )


def _cluster_id(node: Endpoint) -> str | None:
    found = node.get("/v1/cluster").get("clusterId")
    return found if isinstance(found, str) and found else None


def _check_cluster(node: Endpoint, cluster: str | None) -> None:
    if cluster is not None and (found := _cluster_id(node)) != cluster:
        raise ValueError(f"belongs to the cluster {found}, not to {cluster}")


def _entries(node: Endpoint, first: int, limit: int) -> tuple[LogEntry, ...]:
    page = _page(node, first, limit)
    if first < page.first_index:
        raise ValueError(f"entries {first} to {page.first_index - 1} were compacted away; {COMPACTED}")
    if not page.entries:
        raise ValueError(f"it has committed up to {page.commit_index} only: it lags behind another node")
    for place, entry in enumerate(page.entries, start=first):
        if entry.index != place:
            raise ValueError(f"asked for entry {place} it gave entry {entry.index}")
    return page.entries


def _page(node: Endpoint, first: int, limit: int) -> LogPage:
    answer = node.get(f"/v1/log?from={first}&limit={limit}")
    try:
        return LogPage(
            first_index=int(answer["firstIndex"]),
            commit_index=int(answer["commitIndex"]),
            entries=tuple(_entry(item) for item in answer["entries"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its answer about the log is malformed: {error!r}") from error


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


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__


def _told(failures: dict[str, str]) -> str:
    return "; ".join(f"{address}: {text}" for address, text in failures.items())
