"""Queries that run beside each other: begun one after the other, and begun again when a start was lost.

    to begin ──(all that run have come to rest once)──▶ running ──(its start was lost)──▶ to begin, and that is told
                                                             ├──────(of anything else)──▶ the end of all: the reason
                                                             └──────────────(its end)──▶ done

To begin a query Spark starts Python processes, and each has ten seconds to call back: a limit that cannot be set. Three
queries that begin at once, on a machine that has other work as well, miss it now and then. So a query begins when those
before it rest, having done their first batch or found nothing to do. A query that ended by a lost start begins again
from its checkpoint, and nothing is lost or doubled. This is tried `LOST_STARTS_MAX` times in a row: a machine on which
it never ends has another fault.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException

from pipeline.source.log_client import FarmLogError
from pipeline.spark.failures import is_lost_start, reason_of

LOST_STARTS_MAX = 5
_RESTS = "Waiting for"
"""How Spark's status text of a query begins that waits for its next trigger, or for data."""


class RunningQuery(Protocol):
    """What is used of Spark's `StreamingQuery`; the names are Spark's."""

    @property
    def isActive(self) -> bool:  # noqa: N802
        """Whether it has not ended."""

    @property
    def status(self) -> dict[str, Any]:
        """What it is doing."""

    @property
    def lastProgress(self) -> Any:  # noqa: N802
        """Its newest batch; None before the first."""

    def exception(self) -> Exception | None:
        """The error that ended it."""

    def awaitTermination(self, timeout: int) -> Any:  # noqa: N802
        """Returns when it has ended, or after so many seconds."""

    def stop(self) -> None:
        """Ends it."""


@dataclass(slots=True)
class Kept:
    """One query that is kept running, and how it is begun."""

    name: str
    begin: Callable[[], RunningQuery]
    query: RunningQuery | None = None
    rested: bool = False
    done: bool = False
    lost_starts: int = 0


class SideBySide:
    """Some queries, of which an earlier one begins earlier. Ask `step` about once a second."""

    def __init__(self, kept: Sequence[Kept], tell: Callable[[str], None]) -> None:
        self._kept = tuple(kept)
        self._tell = tell

    @property
    def running(self) -> RunningQuery | None:
        """The first of those that run."""
        return next((each.query for each in self._kept if each.query is not None), None)

    def step(self) -> bool:
        """Look at all and begin what may begin; False when all have come to their end.

        Raises FarmLogError when one has failed for good.
        """
        for each in self._kept:
            if each.query is not None:
                self._look(each, each.query)
        following = next((each for each in self._kept if each.query is None and not each.done), None)
        if following is not None and all(each.rested for each in self._kept if each.query is not None):
            self._begin(following)
        return not all(each.done for each in self._kept)

    def wait(self, seconds: int) -> None:
        """Until the next step: so long, or until the first that runs has ended."""
        query = self.running
        if query is None:
            time.sleep(seconds)
            return
        try:
            query.awaitTermination(seconds)
        except StreamingQueryException:
            return  # the next step sees it

    def stop(self) -> None:
        """Ends all that run."""
        for each in self._kept:
            if each.query is not None:
                each.query.stop()

    def _look(self, each: Kept, query: RunningQuery) -> None:
        # In this order: what ended meanwhile has its reason by then.
        active = query.isActive
        failure = query.exception()
        if failure is not None:
            self._failed(each, failure)
            return
        if not active:
            each.query, each.done = None, True
            return
        if query.lastProgress is not None:
            each.lost_starts = 0
        waits = not query.status["isTriggerActive"] and str(query.status["message"]).startswith(_RESTS)
        each.rested = each.rested or waits or query.lastProgress is not None

    def _begin(self, each: Kept) -> None:
        try:
            each.query = each.begin()
        except (PySparkException, Py4JError) as error:
            self._failed(each, error)

    def _failed(self, each: Kept, failure: Exception) -> None:
        each.query, each.rested = None, False
        if not is_lost_start(str(failure)):
            raise FarmLogError(reason_of(str(failure))) from failure
        each.lost_starts += 1
        if each.lost_starts > LOST_STARTS_MAX:
            raise FarmLogError(
                f"{each.name} could not be begun: {each.lost_starts} times in a row a Python process of Spark's took"
                " more than ten seconds to start. Free some processor or memory on this machine, then run the same"
                " command again: it goes on where it was",
            ) from failure
        self._tell(
            f"{each.name}: a Python process of Spark's took more than ten seconds to start, as on a busy machine;"
            f" begun again from the last batch ({each.lost_starts} of at most {LOST_STARTS_MAX} times in a row)",
        )
