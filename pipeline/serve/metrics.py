"""Metrics of a run for Prometheus: the lag of its tables, the duration of batches, the refused entries.

    a batch is committed ─▶ `batch_done` ────┐
    Spark reports progress ─▶ `progressed` ──┤
    alerts are delivered ─▶ `count_attempt` ─┴▶ RunMetrics ─▶ GET /metrics at the address of `run --metrics`

The endpoint is prometheus_client's own, in a thread. Any program that reaches the address can read the figures, so a
port without a host means loopback. The figures are totals or maxima over all farms, without names, destinations or
addresses. All counters start with the process. An unknown figure is `NaN`, which alerts do not treat as a number.

The lag in seconds is the age of the newest entry in the tables by its log time, for the farm with the greatest age.
Between two reports of a farm this lag rises to the reporting period. It includes any cause of delay: the pipeline, the
path to the nodes, or a farm without commits. The lag in entries excludes a farm without commits, since it counts only
existing entries.
"""

import math
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from threading import Lock

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    start_http_server,
)

PREFIX = "garlicfarm_pipeline"
LOOPBACK = "127.0.0.1"
PORT_MAX = 65_535
BATCH_SECONDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1_800.0)
_ADDRESS = re.compile(r"(?:(?P<host>[^\s:\[\]]+|\[[0-9A-Fa-f:.%]+\]):)?(?P<port>\d{1,5})")


class RunMetrics:
    """The figures of one run; several threads may call its methods."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # its own
        self._clock = clock
        self._lock = Lock()
        self._newest: dict[str, float] = {}
        self._followed: frozenset[str] = frozenset()
        self._removed: frozenset[str] = frozenset()
        self._registry = CollectorRegistry()
        self._lag_entries = self._gauge(
            "lag_entries",
            "Entries in the logs that are not in the tables, of all farms. It falls to 0 between batches; if it"
            " grows, batches are too slow or fail: check batch_seconds and the output of the run.",
        )
        self._lag_entries.set(math.nan)
        lag_seconds = self._gauge(
            "lag_seconds",
            "Seconds since the log time of the newest entry in the tables, for the farm with the largest value. A"
            " healthy farm commits each reporting period; more is a lag of the pipeline, or a farm without commits."
            " Farms removed from the file of several farms do not count.",
        )
        lag_seconds.set_function(self._lag_s)
        farms = self._gauge("farms", "Farms with entries that this run has read since its start.")
        farms.set_function(lambda: len(self._newest))
        since_batch = self._gauge(
            "seconds_since_batch",
            "Seconds since the last commit of a batch, or since this run began. Unlike lag_seconds it is a"
            " number while nothing has been read yet.",
        )
        self._batch_at_s = clock()
        since_batch.set_function(lambda: max(0.0, self._clock() - self._batch_at_s))
        self._lost_starts = self._counter(
            "lost_starts",
            "Starts of Spark's Python processes that took more than ten seconds. Each is tried again after a pause;"
            " many mean that the machine has too little processor time.",
        )
        self._entries = self._counter("entries", "Entries that this run has put into the tables.")
        self._quarantined = self._counter(
            "quarantined_entries",
            "Entries of this run that could not be decoded and are in the table quarantine. A few come from newer"
            " versions; a steady growth is a client whose entries the farm refuses: see their reasons.",
        )
        self._batches = Histogram(
            f"{PREFIX}_batch_seconds",
            "Seconds to read, decode and commit a batch.",
            buckets=BATCH_SECONDS,
            registry=self._registry,
        )

        self._alerts = self._gauge(
            "alerts",
            "Alerts that fire now and are not held back: servers down (`run --alert-webhook` or `--alert-command`).",
        )
        self._alerts.set(math.nan)
        self._held_back = self._gauge(
            "alerts_held_back_farms",
            "Farms without alerts now, because their batches are full and contain only old entries.",
        )
        self._delivered = self._counter(
            "alert_messages_delivered",
            "Messages that a receiver of alerts accepted.",
        )
        self._undelivered = self._counter(
            "alert_messages_failed",
            "Failed rounds of attempts to deliver a message about an alert. It is tried again every five minutes: the"
            " output of the run names the receiver and the reason.",
        )

    def batch_done(self, seconds: float, entries: int, quarantined: int, newest: Mapping[str, datetime]) -> None:
        """Count a batch in the tables; `newest` has the log time of the newest entry of each farm in it."""
        self._entries.inc(entries)
        self._quarantined.inc(quarantined)
        self._batches.observe(seconds)
        self._batch_at_s = self._clock()
        with self._lock:
            self._newest |= {farm: moment.timestamp() for farm, moment in newest.items()}

    def progressed(
        self, read: int, there: int, farms: Collection[str] = (), removed: Collection[str] | None = None
    ) -> None:
        """Record the numbers of read and existing entries of all logs, and their farms; 0 means unknown.

        With many farms, only the farms that have left the file are known: `removed`.
        """
        if farms or removed is not None:
            with self._lock:
                self._followed, self._removed = frozenset(farms), frozenset(removed or ())
        if there:
            self._lag_entries.set(max(0, there - read))

    def set_firing(self, firing: int) -> None:
        """Set the number of firing alerts."""
        self._alerts.set(firing)

    def alerts_held_back(self, farms: int) -> None:
        """Set the number of farms without alerts now."""
        self._held_back.set(farms)

    def start_lost(self) -> None:
        """Count a start of one of Spark's Python processes that took too long."""
        self._lost_starts.inc()

    def count_attempt(self, *, is_delivered: bool) -> None:
        """Count a delivered message about an alert, or a failed round of attempts."""
        (self._delivered if is_delivered else self._undelivered).inc()

    def exposition(self) -> bytes:
        """Return the metrics as Prometheus' text."""
        return generate_latest(self._registry)

    @contextmanager
    def serving(self, host: str, port: int) -> Iterator[int]:
        """Serve at this address until the end, and yield the port. Raise OSError if it cannot listen."""
        server, thread = start_http_server(port, host, self._registry)
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"{PREFIX}_{name}", text, registry=self._registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"{PREFIX}_{name}", text, registry=self._registry)

    def _lag_s(self) -> float:
        with self._lock:
            # A farm that is no longer in the file of farms does not count as late.
            farms = (self._newest.keys() & self._followed if self._followed else self._newest.keys()) - self._removed
            newest = (self._newest[farm] for farm in farms)
            behind_s = self._clock() - min(newest, default=math.nan)
        # Not below 0, because a farm's clock may be ahead. An unknown value (NaN) stays unknown.
        return 0.0 if behind_s < 0 else behind_s


def address(text: str) -> tuple[str, int]:
    """Return host and port of `HOST:PORT`, or of a port alone, which is on loopback. Raise ValueError."""
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > PORT_MAX:
        raise ValueError(f"{text!r} is neither a port nor HOST:PORT, such as 9400 or 127.0.0.1:9400")
    return (found["host"] or LOOPBACK).strip("[]"), int(found["port"])
