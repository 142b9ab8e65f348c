"""Concurrent queries: they begin in order, and again after a lost start.

    to begin ──(all running ones have rested once)──────▶ running ──(its start was lost)──▶ a pause, then to begin
                                                             ├──────(any other error)──▶ all end, with its reason
                                                             └──────────────(its end)──▶ done

Queries that begin together miss Spark's limit for the start of its Python processes more often (`lost_starts.py`). So a
query begins when the earlier queries rest, after their first batch or without data. A query that ended by a lost start
begins again from its checkpoint after a pause, without loss or duplication of entries.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException

from pipeline.source.log_client import FarmLogError
from pipeline.spark.failures import is_lost_start, reason_of
from pipeline.spark.lost_starts import LostStarts, RetryPolicy

_RESTS = "Waiting for"
"""The beginning of Spark's status text of a query that waits for its next trigger, or for data."""


class RunningQuery(Protocol):
    """The used part of Spark's `StreamingQuery`; the names are Spark's."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        """True until the query has ended."""

    @property
    def status(self) -> dict[str, Any]:
        """Current activity of the query."""

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """Newest batch of the query; None before the first."""

    def exception(self) -> Exception | None:
        """Return the error that ended the query."""

    def awaitTermination(self, timeout: int) -> Any:  # noqa: N802
        """Return when the query has ended, or after this number of seconds."""

    def stop(self) -> None:
        """End the query."""


@dataclass(slots=True)
class QueryState:
    """A query to keep running, with the function that begins it."""

    name: str
    begin: Callable[[], RunningQuery]
    query: RunningQuery | None = None
    rested: bool = False
    done: bool = False
    not_before_s: float = 0.0
    """The time of the next start, by the clock of `RetryPolicy`."""


class SideBySide:
    """Some queries, begun in order. Call `step` about once a second."""

    def __init__(self, kept: Sequence[QueryState], retry_policy: RetryPolicy) -> None:
        self._kept = tuple(kept)
        self._clock = retry_policy.clock
        self._lost_starts = {each.name: LostStarts(each.name, retry_policy) for each in kept}

    @property
    def running(self) -> RunningQuery | None:
        """The first running query."""
        return next((each.query for each in self._kept if each.query is not None), None)

    def step(self) -> bool:
        """Check all queries and begin the next; return False when all have ended.

        Raises FarmLogError when one has failed permanently.
        """
        for each in self._kept:
            if each.query is not None:
                self._check_query(each, each.query)
        next_query = next((each for each in self._kept if each.query is None and not each.done), None)
        rested = all(each.rested for each in self._kept if each.query is not None)
        if next_query is not None and rested and self._clock() >= next_query.not_before_s:
            self._begin(next_query)
        return not all(each.done for each in self._kept)

    def wait(self, seconds: int) -> None:
        """Wait until the next step, or until the first running query has ended."""
        query = self.running
        if query is None:
            time.sleep(seconds)
            return
        try:
            query.awaitTermination(seconds)
        except StreamingQueryException:
            return  # the next step handles it

    def stop(self) -> None:
        """End all running queries; raise an error of one after the others have ended."""
        with ExitStack() as ends:
            for each in reversed(self._kept):
                if each.query is not None:
                    ends.callback(each.query.stop)

    def _check_query(self, each: QueryState, query: RunningQuery) -> None:
        # A query may end between the two calls: in this order, its reason is known then.
        active = query.isActive
        failure = query.exception()
        if failure is not None:
            self._failed(each, failure)
            return
        if not active:
            each.query, each.done = None, True
            return
        if query.lastProgress is not None:
            self._lost_starts[each.name].reset()
        waits = not query.status["isTriggerActive"] and str(query.status["message"]).startswith(_RESTS)
        each.rested = each.rested or waits or query.lastProgress is not None

    def _begin(self, each: QueryState) -> None:
        try:
            each.query = each.begin()
        except (PySparkException, Py4JError) as error:
            self._failed(each, error)

    def _failed(self, each: QueryState, failure: Exception) -> None:
        each.query, each.rested = None, False
        if isinstance(failure, FarmLogError | OSError):
            raise failure  # of a query in this process
        if not is_lost_start(str(failure)):
            raise FarmLogError(reason_of(failure)) from failure
        each.not_before_s = self._clock() + self._lost_starts[each.name].pause_s(failure)
