"""Feedback to each of several farms: weighed, fenced and submitted apart, by a thread for as long as it has rows.

    rows of a batch ──▶ by farm ──▶ the farm's queue ──▶ a thread while it is not empty ──▶ its `Feedback`
                                                              └── to whom? `FarmsFile`, or the one farm

A batch hands over rows and goes on: it waits for no farm. A farm that cannot be reached holds up its own thread alone,
and its queue keeps the newest `QUEUE_BATCHES` batches, which are more than the twenty minutes that count. Each farm has
smoothed figures of its own, and an entry for it is made from its log alone: `throughIndex` and the cluster id fence it.

The farms' file is read again when it changes, and a farm's new place holds from its next rows on. What is wrong with
one farm's place, such as a token file that is gone, is told once and silences that farm only.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pyarrow as pa
from pyspark.sql import SparkSession

from pipeline.feedback.client_key import ClientKeyError, load_client_key
from pipeline.feedback.rows import by_farm
from pipeline.feedback.submitting import Feedback, NodeSubmission, Submission
from pipeline.source.endpoint import CredentialError, load_credentials
from pipeline.source.farms import FarmNodes, nodes_of_farms
from pipeline.source.log_client import FarmLogError

QUEUE_BATCHES = 512
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
        self._changed = _changed(path)
        self._reaches: dict[tuple[str, str], Reach | None] = {}
        self._tell_directories({})

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
            changed = _changed(self._path)
            if changed == self._changed:
                return
            self._changed = changed
            known, self._nodes = self._nodes, nodes_of_farms(self._path)
        except (OSError, FarmLogError):
            # Who reads the farms tells it. They stay as they were.
            return
        # A file that it names may have changed with it.
        self._reaches.clear()
        self._tell_directories(known)

    def _reach(self, cluster: str, name: str, nodes: FarmNodes) -> Reach | None:
        try:
            credentials = load_credentials(nodes.token_file, nodes.certificate)
            key = None if nodes.client_key is None else load_client_key(nodes.client_key)
        except (CredentialError, ClientKeyError) as error:
            self._tell(f"{name}: no factors are submitted to it: {error}. Then change {self._path}, or touch it")
            return None
        return Reach(NodeSubmission(nodes.addresses, credentials, cluster, key), nodes.options())

    def _tell_directories(self, known: Mapping[str, FarmNodes | None]) -> None:
        for name, nodes in self._nodes.items():
            if nodes is None and known.get(name, FarmNodes(())) is not None:
                self._tell(f"{name}: no factors are submitted to it, since a directory can only be read")


@dataclass(slots=True)
class _Farm:
    """A farm of which rows have come."""

    waiting: deque[pa.Table] = field(default_factory=lambda: deque(maxlen=QUEUE_BATCHES))
    thread: threading.Thread | None = None
    reach: Reach | None = None
    feedback: Feedback | None = None


class FarmsFeedback:
    """Listens to the batches of one run, and gives each farm its own rows."""

    def __init__(self, session: SparkSession, reaches: Reaches, tell: Callable[[str], None]) -> None:
        self._session = session
        self._reaches = reaches
        self._tell = tell
        self._lock = threading.Lock()
        self._farms: dict[str, _Farm] = {}

    def after_batch(self, found: pa.Table | None) -> None:
        """Hands over what `recent_rows` found in one batch; waits for nothing."""
        if found is None:
            return
        for rows in by_farm(found):
            cluster = rows.column("farm")[0].as_py()
            with self._lock:
                farm = self._farms.setdefault(cluster, _Farm())
                farm.waiting.append(rows)
                if farm.thread is None:
                    # A daemon: a farm that hangs must not keep a process that ends.
                    farm.thread = threading.Thread(
                        target=self._work, args=(cluster, farm), name=f"feedback {cluster}", daemon=True
                    )
                    farm.thread.start()

    def finish(self, seconds: float = FINISH_SECONDS) -> None:
        """Waits until all that was handed over is looked at, for that long at most."""
        until_s = time.monotonic() + seconds
        with self._lock:
            threads = [farm.thread for farm in self._farms.values() if farm.thread is not None]
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))

    def _work(self, cluster: str, farm: _Farm) -> None:
        while True:
            with self._lock:
                if not farm.waiting:
                    farm.thread = None
                    return
                rows = farm.waiting.popleft()
            try:
                self._look(cluster, farm, rows)
            except Exception as error:  # noqa: BLE001 - the farm's next rows are looked at whatever became of these
                self._tell(f"factors not submitted, by a fault of the pipeline: {error!r}")

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


def _changed(path: Path) -> tuple[int, int]:
    now = path.stat()
    return now.st_mtime_ns, now.st_size
