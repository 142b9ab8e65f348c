"""Feedback to several farms: a few threads weigh the rows of each farm, and submit its factors, separately.

    rows of a batch ──▶ by farm ──▶ the farm's queue ──▶ in turn ──▶ one of `WORKERS` threads ──▶ its `Feedback`
                                                         │               └── the farm's `Reach`: from `Reaches`
                                                          └── farms that were slow: `SLOW_WORKERS` of the threads

A batch queues rows and continues, without waiting for any farm. A thread handles one batch of a farm, and then the farm
that has waited the longest. A farm has one thread at a time. An unreachable farm is skipped after seconds
(`CONTACT_SECONDS`). A farm that took `SLOW_SECONDS` waits in a separate queue until it is quick again. So at least
`WORKERS` - `SLOW_WORKERS` threads stay free for the other farms, for any number of hanging farms. A slow farm occupies
one of these threads only for its first slow batch. A queue keeps the newest `QUEUE_BATCHES` batches of a farm.

Each farm has separate smoothed figures, and an entry for it is made from its log alone. The proof and the
`throughIndex` of an entry make it invalid in another farm, and after a newer entry.

The farms' file and the files that it refers to are read again when they change. A farm's new `Reach` applies from its
next rows on. A fault of one farm's settings, such as a missing token file, is reported once and stops only the feedback
to that farm.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Protocol

import pyarrow as pa

from pipeline.feedback.client_key import ClientKeyError, load_client_key
from pipeline.feedback.rows import rows_in_log
from pipeline.feedback.submitting import Feedback, NodeSubmission, Submission
from pipeline.source.endpoint import CredentialError, load_credentials
from pipeline.source.farms import FarmNodes, nodes_of_farms, version_of
from pipeline.source.log_client import FarmLogError
from pipeline.tables.recent import by_farm

QUEUE_BATCHES = 512
WORKERS, SLOW_WORKERS, SLOW_SECONDS = 16, 4, 2.0
"""The numbers of threads: most wait for replies, and each may read the log. A quick farm takes milliseconds."""
FINISH_SECONDS = 120.0
"""The limit of the wait for pending rows at the end of a run."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The access to a farm: for submissions, and the options of the source `farm` to read it alone."""

    submission: Submission
    source: Mapping[str, str]


class Reaches(Protocol):
    """The source of the farms' `Reach`."""

    def of(self, cluster: str, name: str | None) -> Reach | None:
        """Return the access to this farm, the same object until its content changes; None without submissions."""
        ...


class NodesReach:
    """The access to one farm through its nodes. A changed file of the token, the certificate or the key is read again.

    An unreadable file is reported once, and read again at each call.
    """

    def __init__(self, nodes: FarmNodes, cluster: str, notify: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._cluster = cluster
        self._notify = notify
        self._versions: list[tuple[int, ...] | None] = []
        self._reach: Reach | None = None
        self._problem = ""

    def of(self, _cluster: str, _name: str | None) -> Reach | None:
        """Return the access with the present files; None if a file is unusable."""
        try:
            self._reach = self.load()
        except (CredentialError, ClientKeyError) as error:
            self._reach = None
            if str(error) != self._problem:
                self._notify(f"no factors are submitted: {error}")
            self._problem = str(error)
        return self._reach

    def load(self) -> Reach:
        """Return the access with the present files. Raise CredentialError or ClientKeyError."""
        nodes = self._nodes
        versions = [*map(_version_of, (nodes.token_file, nodes.certificate, nodes.client_key))]
        if self._reach is None or versions != self._versions:
            credentials = load_credentials(nodes.token_file, nodes.certificate)
            key = None if nodes.client_key is None else load_client_key(nodes.client_key)
            submission = NodeSubmission(nodes.addresses, credentials, self._cluster, key)
            self._reach, self._versions, self._problem = Reach(submission, nodes.options()), versions, ""
        return self._reach


def _version_of(file: Path | None) -> tuple[int, ...] | None:
    with suppress(FarmLogError):
        return None if file is None else version_of(file)
    return None


class FarmsFile:
    """The farms of a file, always current. The constructor raises FarmLogError if it is unreadable."""

    def __init__(self, path: Path, notify: Callable[[str], None]) -> None:
        self._path = path
        self._notify = notify
        self._lock = threading.Lock()
        self._nodes: dict[str, FarmNodes | None] = {}
        self._changed: tuple[int, ...] = ()
        self._reaches: dict[tuple[str, str], NodesReach] = {}
        self._read_again()

    def of(self, cluster: str, name: str | None) -> Reach | None:
        """Return the access to the farm of this name; None for a directory, an unlisted farm or an unusable file."""
        with self._lock:
            with suppress(FarmLogError):
                # The reader of the farms' file reports the error. The farms remain unchanged until the next call.
                self._read_again()
            if name is None or (nodes := self._nodes.get(name)) is None:
                return None
            if (cluster, name) not in self._reaches:
                self._reaches[cluster, name] = NodesReach(nodes, cluster, lambda text: self._notify(f"{name}: {text}"))
            return self._reaches[cluster, name].of(cluster, name)

    def _read_again(self) -> None:
        changed = version_of(self._path)
        if changed == self._changed:
            return
        known, self._nodes = self._nodes, nodes_of_farms(self._path)
        self._changed = changed
        self._reaches.clear()
        self._report_directories(known)

    def _report_directories(self, known: Mapping[str, FarmNodes | None]) -> None:
        for name, nodes in self._nodes.items():
            if nodes is None and known.get(name, FarmNodes(())) is not None:
                self._notify(f"{name}: no factors are submitted to it, since a directory can only be read")


@dataclass(slots=True)
class _Farm:
    """A farm with received rows. `is_scheduled`: it waits for a thread, or has one."""

    cluster: str
    waiting: deque[pa.Table] = field(default_factory=lambda: deque(maxlen=QUEUE_BATCHES))
    is_scheduled: bool = False
    is_slow: bool = False
    reach: Reach | None = None
    feedback: Feedback | None = None


class FarmsFeedback:
    """The listener to the batches of one run, which gives each farm its own rows."""

    def __init__(self, reaches: Reaches, notify: Callable[[str], None]) -> None:
        self._reaches = reaches
        self._notify = notify
        self._farms: dict[str, _Farm] = {}
        self._changed = threading.Condition()
        """Guards the attributes below, and `waiting` and `is_scheduled` of each `_Farm`."""
        self._quick, self._slow = deque[_Farm](), deque[_Farm]()
        self._workers = self._slow_workers = 0

    def after_batch(self, found: pa.Table | None) -> None:
        """Queue the rows that `recent_rows` found in one batch; do not wait."""
        if found is None:
            return
        for rows in by_farm(found):
            cluster = rows.column("farm")[0].as_py()
            # The waiting rows of a hanging farm must not pin the whole batch in memory.
            own = rows.take(pa.array(range(rows.num_rows), pa.int64()))
            with self._changed:
                farm = self._farms.setdefault(cluster, _Farm(cluster))
                farm.waiting.append(own)
                if not farm.is_scheduled:
                    self._queue(farm)
                    self._start_worker()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Wait until all queued rows are handled, at most for that long."""
        with self._changed:
            self._changed.wait_for(lambda: not any(farm.is_scheduled for farm in self._farms.values()), seconds)

    def _queue(self, farm: _Farm) -> None:
        farm.is_scheduled = True
        (self._slow if farm.is_slow else self._quick).append(farm)

    def _start_worker(self) -> None:
        if self._workers < WORKERS:
            self._workers += 1
            # A daemon: a hanging farm must not keep the process from ending.
            threading.Thread(target=self._work, name=f"feedback {self._workers}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                farm = self._next()
                if farm is None:
                    self._workers -= 1
                    return
                was_slow, rows = farm.is_slow, farm.waiting.popleft()
            began_s = monotonic()
            try:
                self._submit_factors(farm.cluster, farm, rows)
            except Exception as error:  # noqa: BLE001 - the farm's next rows are handled in any case
                self._notify(f"factors not submitted because of a bug in the pipeline: {error!r}")
            with self._changed:
                if was_slow:
                    self._slow_workers -= 1
                farm.is_slow = monotonic() - began_s >= SLOW_SECONDS
                farm.is_scheduled = False
                if farm.waiting:
                    self._queue(farm)
                self._changed.notify_all()

    def _next(self) -> _Farm | None:
        """Remove the next farm from its queue and return it; None if no farm may use another thread."""
        if self._quick:
            return self._quick.popleft()
        if self._slow and self._slow_workers < SLOW_WORKERS:
            self._slow_workers += 1
            return self._slow.popleft()
        return None

    def _submit_factors(self, cluster: str, farm: _Farm, rows: pa.Table) -> None:
        name = rows.column("farm_name")[0].as_py()
        reach = self._reaches.of(cluster, name)
        if reach is None:
            return
        if farm.feedback is None:
            farm.feedback = Feedback(rows_in_log, reach.source, reach.submission, self._notifying(name))
        elif farm.reach is not reach:
            farm.feedback.reached_by(reach.submission, reach.source)
        farm.reach = reach
        farm.feedback.after_batch(rows)

    def _notifying(self, name: str | None) -> Callable[[str], None]:
        return self._notify if name is None else lambda text: self._notify(f"{name}: {text}")
