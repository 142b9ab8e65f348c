"""Feedback to each of several farms: weighed, fenced and submitted apart, by a few threads while there are rows.

    rows of a batch ──▶ by farm ──▶ the farm's queue ──▶ in turn ──▶ one of `WORKERS` threads ──▶ its `Feedback`
                                                          │               └── to whom? `FarmsFile`, or the one farm
                                                          └── farms that were slow: `SLOW_WORKERS` of the threads

A batch hands over rows and goes on: it waits for no farm. A thread looks at one batch of a farm and then at the farm
that has waited the longest, and a farm has one thread at a time. A farm that cannot be reached is given up after
seconds (`CONTACT_SECONDS`); one that took `SLOW_SECONDS` waits for a thread apart from the others until it is quick
again. So farms that hang, however many, keep at least `WORKERS` - `SLOW_WORKERS` threads for the others from their
second batch on, and their first costs each thread those seconds. A queue keeps the newest `QUEUE_BATCHES` batches of a
farm, which are more than the twenty minutes that count.

Each farm has smoothed figures of its own, and an entry for it is made from its log alone: `throughIndex` and the
cluster id fence it.

The farms' file is read again when it changes, and a farm's new place holds from its next rows on. What is wrong with
one farm's place, such as a token file that is gone, is told once and silences that farm only.
"""

import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.feedback.client_key import ClientKeyError, load_client_key
from pipeline.feedback.submitting import Feedback, NodeSubmission, Submission
from pipeline.source.endpoint import CredentialError, load_credentials
from pipeline.source.farms import FarmNodes, nodes_of_farms
from pipeline.source.log_client import FarmLogError
from pipeline.tables.recent import by_farm

QUEUE_BATCHES = 512
WORKERS, SLOW_WORKERS, SLOW_SECONDS = 16, 4, 2.0
"""Threads: most wait for answers, and each may start a job of Spark. A look at a quick farm takes milliseconds."""
FINISH_SECONDS = 120.0
"""How long the end of a run waits for what is on its way."""


@dataclass(frozen=True, slots=True)
class Reach:
    """How a farm is reached: to submit, and by which options of the source `farm` it alone is read."""

    submission: Submission
    source: Mapping[str, str]


class Reaches(Protocol):
    """Knows how farms are reached."""

    def of(self, cluster: str, name: str | None) -> Reach | None:
        """How this farm is; None where nothing is submitted to it. The same object as long as nothing changes."""
        ...


@dataclass(frozen=True, slots=True)
class OneReach:
    """The only farm of a run, which is named by options."""

    reach: Reach

    def of(self, _cluster: str, _name: str | None) -> Reach | None:
        """The one."""
        return self.reach


class FarmsFile:
    """The farms of a file, as it is now. Raises FarmLogError at first if it cannot be read; later that is told."""

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self._lock = threading.Lock()
        self._nodes = nodes_of_farms(path)
        self._changed = _version(path)
        self._reaches: dict[tuple[str, str], Reach | None] = {}
        self._report_directories({})

    def of(self, cluster: str, name: str | None) -> Reach | None:
        """By the name of the farm in the file; a node that belongs to another cluster is submitted nothing."""
        with self._lock:
            self._read_again()
            if name is None or (nodes := self._nodes.get(name)) is None:
                return None
            if (cluster, name) not in self._reaches:
                self._reaches[cluster, name] = self._reach(cluster, name, nodes)
            return self._reaches[cluster, name]

    def _read_again(self) -> None:
        try:
            changed = _version(self._path)
            if changed == self._changed:
                return
            self._changed = changed
            known, self._nodes = self._nodes, nodes_of_farms(self._path)
        except (OSError, FarmLogError):
            # Who reads the farms tells it. They stay as they were.
            return
        # A file that it names may have changed with it.
        self._reaches.clear()
        self._report_directories(known)

    def _reach(self, cluster: str, name: str, nodes: FarmNodes) -> Reach | None:
        try:
            credentials = load_credentials(nodes.token_file, nodes.certificate)
            key = None if nodes.client_key is None else load_client_key(nodes.client_key)
        except (CredentialError, ClientKeyError) as error:
            self._tell(f"{name}: no factors are submitted to it: {error}. Then change {self._path}, or touch it")
            return None
        return Reach(NodeSubmission(nodes.addresses, credentials, cluster, key), nodes.options())

    def _report_directories(self, known: Mapping[str, FarmNodes | None]) -> None:
        for name, nodes in self._nodes.items():
            if nodes is None and known.get(name, FarmNodes(())) is not None:
                self._tell(f"{name}: no factors are submitted to it, since a directory can only be read")


@dataclass(slots=True)
class _Farm:
    """A farm of which rows have come. `in_turn`: it waits for a thread, or has one."""

    cluster: str
    waiting: deque[pa.Table] = field(default_factory=lambda: deque(maxlen=QUEUE_BATCHES))
    in_turn: bool = False
    is_slow: bool = False
    reach: Reach | None = None
    feedback: Feedback | None = None


class FarmsFeedback:
    """Listens to the batches of one run, and gives each farm its own rows."""

    def __init__(self, session: SparkSession, reaches: Reaches, tell: Callable[[str], None]) -> None:
        self._session = session
        self._reaches = reaches
        self._tell = tell
        self._farms: dict[str, _Farm] = {}
        self._changed = threading.Condition()
        """Guards what follows, and `_Farm`'s waiting rows and turn."""
        self._quick, self._slow = deque[_Farm](), deque[_Farm]()
        self._workers = self._slow_workers = 0

    def after_batch(self, found: pa.Table | None) -> None:
        """Hands over what `recent_rows` found in one batch; waits for nothing."""
        if found is None:
            return
        for rows in by_farm(found):
            cluster = rows.column("farm")[0].as_py()
            # What waits for a farm that hangs must not keep the whole batch in memory, of which it is a part.
            own = rows.take(pa.array(range(rows.num_rows), pa.int64()))
            with self._changed:
                farm = self._farms.setdefault(cluster, _Farm(cluster))
                farm.waiting.append(own)
                if not farm.in_turn:
                    self._queue(farm)
                    self._start_worker()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Waits until all that was handed over is looked at, for that long at most."""
        with self._changed:
            self._changed.wait_for(lambda: not any(farm.in_turn for farm in self._farms.values()), seconds)

    def _queue(self, farm: _Farm) -> None:
        farm.in_turn = True
        (self._slow if farm.is_slow else self._quick).append(farm)

    def _start_worker(self) -> None:
        if self._workers < WORKERS:
            self._workers += 1
            # A daemon: a farm that hangs must not keep a process that ends.
            threading.Thread(target=self._work, name=f"feedback {self._workers}", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._changed:
                farm = self._next()
                if farm is None:
                    self._workers -= 1
                    return
                was_slow, rows = farm.is_slow, farm.waiting.popleft()
            begun_s = monotonic()
            try:
                self._look(farm.cluster, farm, rows)
            except Exception as error:  # noqa: BLE001 - the farm's next rows are looked at whatever became of these
                self._tell(f"factors not submitted, by a fault of the pipeline: {error!r}")
            with self._changed:
                if was_slow:
                    self._slow_workers -= 1
                farm.is_slow = monotonic() - begun_s >= SLOW_SECONDS
                farm.in_turn = False
                if farm.waiting:
                    self._queue(farm)
                self._changed.notify_all()

    def _next(self) -> _Farm | None:
        """The farm whose turn it is; None where there is none for another thread."""
        if self._quick:
            return self._quick.popleft()
        if self._slow and self._slow_workers < SLOW_WORKERS:
            self._slow_workers += 1
            return self._slow.popleft()
        return None

    def _look(self, cluster: str, farm: _Farm, rows: pa.Table) -> None:
        name = rows.column("farm_name")[0].as_py()
        reach = self._reaches.of(cluster, name)
        if reach is None:
            return
        if farm.feedback is None:
            farm.feedback = Feedback(self._session, reach.source, reach.submission, self._telling(name))
        elif farm.reach is not reach:
            farm.feedback.reached_by(reach.submission, reach.source)
        farm.reach = reach
        farm.feedback.after_batch(rows)

    def _telling(self, name: str | None) -> Callable[[str], None]:
        return self._tell if name is None else lambda text: self._tell(f"{name}: {text}")


def _version(path: Path) -> tuple[int, int]:
    now = path.stat()
    return now.st_mtime_ns, now.st_size
