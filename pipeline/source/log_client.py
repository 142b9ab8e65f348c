"""Reads a farm's committed log through the nodes' control endpoints, with failover between them.

It runs inside Spark's planner and worker processes, which share no memory. So it is synchronous, is created from
picklable values, and keeps one connection while it reads one range.

    status(cluster)     the cluster, the first index and the commit index: from the first node that replies
    statuses(cluster)   the status of every node that replies
    range(first, end)   the entries between, from any node that has them

*Failover.* A node may stop in the middle of a range, or have fewer entries than the node that reported the end of the
log. It may have compacted more than another, or belong to another farm. In each case reading continues at the next
address with the missing entry: an index holds the same entry at every node. A range fails after `ROUNDS` rounds over
all nodes without a new entry. It also fails if no node can be reached for `SILENCE_SECONDS`, such as during a restart
of the farm. The error has the last failure of each node.
"""

import base64
import http.client
import ssl
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.source.daemon_pool import DaemonPool
from pipeline.source.endpoint import LOST, CredentialError, Credentials, Endpoint, load_credentials

NO_CREDENTIALS = Credentials()
ROUNDS = 20
ROUND_PAUSE_SECONDS = 1.0
SILENCE_SECONDS = 120.0
"""The limit of the wait for a farm without a responsive node."""
QUERIES_AT_ONCE = 16
LOG_TIME_END_MS = 2**32 * 1000
"""The limit of log time, in the year 2106: a publication stores its time as seconds in four bytes."""
_NUMBERS_END = 2**63
_SHOWN = 100
SHOWN_MAX = 20
_WITHOUT_CLUSTER = (
    "it has not joined a cluster yet: `garlicfarm status` shows a leader when it has. If it shows one now, update this"
    " node: its version does not send the id of its cluster with the log"
)

COMPACTED = (
    "start again with a new output directory: from the oldest entry that a node still has (the default), or with"
    " --directory STATE_DIR --start snapshot from the snapshot of a node"
)


OTHER_CLUSTER = (
    "read another farm, or a farm created again by `garlicfarm recover`, into another output directory: it numbers"
    " its servers from the beginning"
)


class FarmLogError(Exception):
    """The farm's log cannot be read; the text has the address, the event and the remedy."""


def credentials_of(options: Mapping[str, str]) -> Credentials:
    """Load the files of a source's options `tokenFile` and `certificate`. Raise FarmLogError."""
    token, certificate = options.get("tokenFile"), options.get("certificate")
    try:
        return load_credentials(Path(token) if token else None, Path(certificate) if certificate else None)
    except CredentialError as error:
        raise FarmLogError(str(error)) from error


class FarmSilentError(FarmLogError):
    """No node replies: the farm may be restarting, or it may have ended."""


class FarmRefusedError(FarmSilentError):
    """Each node refuses this program: its credentials are wrong, or nodes are being replaced."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One committed entry. `body` is its bytes."""

    index: int
    term: int
    kind: str
    log_time_ms: int | None
    """Log time; None if the entry is older than the node's record of log times."""
    body: bytes


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The range of the log at one node or directory."""

    cluster: str
    first_index: int
    commit_index: int
    address: str = ""


@dataclass(frozen=True, slots=True)
class LogPage:
    """Some committed entries, and the range of the log."""

    cluster: str | None
    """The cluster of the node; None if the node is not a server of a farm yet."""
    first_index: int
    commit_index: int
    entries: tuple[LogEntry, ...]


@dataclass(frozen=True, slots=True)
class FarmLog:
    """The committed log, from any of `addresses`. Picklable."""

    addresses: tuple[str, ...]
    credentials: Credentials = NO_CREDENTIALS

    def status(self, cluster: str | None = None) -> LogStatus:
        """Return the status of the first node that belongs to `cluster`, or to any cluster if None.

        Raises FarmLogError when all nodes belong to other clusters, FarmRefusedError when all refuse the request, and
        FarmSilentError for other failures.
        """
        failures = _Failures()
        for address in self.addresses:
            answer = self._status_of(address, cluster)
            if isinstance(answer, LogStatus):
                return answer
            failures.add(address, answer)
        raise failures.of_all(cluster)

    def statuses(self, cluster: str | None = None, timeout_s: float | None = None) -> list[LogStatus]:
        """Return the status of all responsive nodes of `cluster`, or of the first one's cluster.

        Raise the errors of `status`. At most `QUERIES_AT_ONCE` nodes are queried concurrently.
        """
        failures = _Failures()
        found: list[LogStatus] = []
        with DaemonPool(QUERIES_AT_ONCE) as pool:
            answers = pool.map(lambda address: self._status_of(address, cluster, timeout_s), self.addresses)
            for address, answer in zip(self.addresses, answers, strict=True):
                if not isinstance(answer, LogStatus):
                    failures.add(address, answer)
                elif not found or answer.cluster == found[0].cluster:
                    found.append(answer)
        if not found:
            raise failures.of_all(cluster)
        return found

    def bounds(self) -> tuple[int, int]:
        """Return the first index that the log still holds, and the commit index."""
        found = self.status()
        return found.first_index, found.commit_index

    def oldest(self, cluster: str | None = None, timeout_s: float | None = None) -> int:
        """Return the start of the range without gaps in the logs of the responsive nodes."""
        return first_without_gap(self.statuses(cluster, timeout_s))

    def range(self, first: int, end: int, *, page_size: int, cluster: str | None = None) -> Iterator[LogEntry]:
        """Yield committed entries with first <= index < end, in order; raise FarmLogError if no node has them."""
        next_index, rounds, replied_at_s = first, 0, time.monotonic()
        failures = _Failures()
        while rounds < ROUNDS and time.monotonic() - replied_at_s <= SILENCE_SECONDS:
            first_index, has_reply = next_index, False
            for address in self.addresses:
                try:
                    with Endpoint(address, self.credentials) as node:
                        while next_index < end:
                            for entry in _entries(node, next_index, min(page_size, end - next_index), cluster):
                                next_index += 1
                                yield entry
                        return
                except LOST as error:
                    failures.add(address, error)
                    has_reply = has_reply or not _is_unreachable(error)
            if has_reply or next_index > first_index:
                rounds, replied_at_s = 0 if next_index > first_index else rounds + 1, time.monotonic()
            time.sleep(ROUND_PAUSE_SECONDS)
        raise FarmLogError(f"entry {next_index} cannot be read: {failures}")

    def _status_of(self, address: str, cluster: str | None, timeout_s: float | None = None) -> LogStatus | Exception:
        """Return the status of a node of the cluster, or its error."""
        try:
            with Endpoint(address, self.credentials, timeout_s) as node:
                found = _status(node)
                _check_same(found.cluster, cluster)
        except LOST as error:
            return error
        # Share the caller's text, so that the replies of many farms do not hold equal copies.
        return found if cluster is None else replace(found, cluster=cluster)


def first_without_gap(statuses: Sequence[LogStatus]) -> int:
    """Return the first index such that some node has each entry from there up to the newest one.

    A node that has just joined does not have entries yet, and reports 1 as the first index. The log of a node after a
    long isolation ends before the other logs begin. Between the log of such a node and the other logs, entries are
    missing.
    """
    newest, *others = sorted(statuses, key=lambda each: each.commit_index, reverse=True)
    first = newest.first_index
    for each in others:
        if each.commit_index >= first - 1:
            first = min(first, each.first_index)
    return first


class _ForeignError(ValueError):
    """The node belongs to another cluster."""


class _Failures:
    """The errors of nodes by address."""

    def __init__(self) -> None:
        self._errors: dict[str, Exception] = {}

    def add(self, address: str, error: Exception) -> None:
        self._errors[address] = error

    def __str__(self) -> str:
        return "; ".join(f"{address}: {_words(error)}" for address, error in self._errors.items())

    def of_all(self, cluster: str | None) -> FarmLogError:
        """Return the error for a failure of all nodes."""
        foreign = [isinstance(error, _ForeignError) for error in self._errors.values()]
        if foreign and all(foreign):
            return FarmLogError(f"the tables contain the cluster {cluster} ({self}): {OTHER_CLUSTER}")
        # The system also refuses the control socket of another user.
        if self._errors and all(isinstance(error, PermissionError) for error in self._errors.values()):
            return FarmRefusedError(
                f"each node refuses the request ({self}): correct the files of the farm's token and certificate, or run"
                " this command as the user of the node"
            )
        hint = f" To read another farm: {OTHER_CLUSTER}." if any(foreign) else ""
        return FarmSilentError(
            f"no node replies ({self}); is the farm running? Start its nodes, or name another node of it.{hint}"
        )


def _words(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def _is_unreachable(error: Exception) -> bool:
    """Return True if the node was not reached, or refuses this program. Both can end when the node is replaced."""
    return isinstance(error, OSError | http.client.HTTPException) and not isinstance(error, ssl.SSLError)


def _status(node: Endpoint) -> LogStatus:
    page = _page(node, 1, 0)  # the first entry may be a large one
    if page.cluster is None:
        raise ValueError(_WITHOUT_CLUSTER)
    return LogStatus(page.cluster, page.first_index, page.commit_index, node.address)


def _check_same(found: str | None, cluster: str | None) -> None:
    if cluster is not None and found is None:
        raise ValueError(_WITHOUT_CLUSTER)
    if cluster is not None and found != cluster:
        raise _ForeignError(f"belongs to the cluster {found}, not to {cluster}")


def _entries(node: Endpoint, first: int, limit: int, cluster: str | None) -> tuple[LogEntry, ...]:
    page = _page(node, first, limit)
    _check_same(page.cluster, cluster)
    if len(page.entries) > limit:
        raise ValueError(f"it returned {len(page.entries)} entries instead of at most {limit}")
    if first < page.first_index:
        raise ValueError(f"entries {first} to {page.first_index - 1} were compacted away; {COMPACTED}")
    if not page.entries:
        raise ValueError(f"it has committed up to {page.commit_index} only, less than another node")
    for place, entry in enumerate(page.entries, start=first):
        if entry.index != place:
            raise ValueError(f"it returned entry {entry.index} instead of entry {place}")
    if page.entries[-1].index > page.commit_index:
        raise ValueError(
            f"it returned entry {page.entries[-1].index}, and has committed up to {page.commit_index} only"
        )
    return page.entries


def _page(node: Endpoint, first: int, limit: int) -> LogPage:
    answer = node.get(f"/v1/log?from={first}&limit={limit}")
    try:
        return LogPage(
            cluster=_cluster(answer.get("clusterId")),
            first_index=_number(answer["firstIndex"]),
            commit_index=_number(answer["commitIndex"]),
            entries=tuple(_entry(item) for item in answer["entries"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"its answer about the log is malformed: {error!r}") from error


def _entry(item: dict[str, Any]) -> LogEntry:
    index, term, time_ms, kind = item["index"], item["term"], item["logTimeMs"], item["kind"]
    # One expression, since it runs for each entry.
    if (
        type(index) is not int
        or type(term) is not int
        or not 0 <= index < _NUMBERS_END > term >= 0
        or (time_ms is not None and (type(time_ms) is not int or not 0 <= time_ms < LOG_TIME_END_MS))
        or type(kind) is not str
        or not kind.isascii()
    ):
        raise ValueError(f"the entry {index!r} of term {term!r}, kind {kind!r}, log time {time_ms!r}"[:_SHOWN])
    text = item.get("value")
    body = text.encode("utf-8", "replace") if type(text) is str else base64.b64decode(item["base64"], validate=True)
    return LogEntry(index, term, kind, time_ms, body)


def _cluster(value: Any) -> str | None:
    if value is not None and (type(value) is not str or not value):
        raise ValueError(f"the cluster {value!r}"[:_SHOWN])
    return value


def _number(value: Any) -> int:
    """Return a number that fits into a column of the tables: a count or a time, no boolean and no fraction."""
    if type(value) is not int or not 0 <= value < _NUMBERS_END:
        raise ValueError(f"the number {value!r}"[:_SHOWN])
    return value


def shortened(texts: Collection[str]) -> list[str]:
    """Return at most `SHOWN_MAX` texts, and the number of the others: a lost connection affects thousands of farms."""
    more = len(texts) - SHOWN_MAX
    return [*islice(texts, SHOWN_MAX), *([f"and {more} more"] if more > 0 else [])]
