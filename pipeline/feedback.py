"""Feedback: after each batch the judgement of the leaves is brought up to date, and now and then it is submitted.

    batch ──▶ recent rows ──▶ Weighing ──▶ proposal? ──▶ caught up? ──▶ POST /v1/submit to any node that answers

A driver that starts anew remembers nothing, so before its first batch it looks at the `WARM_ENTRIES` entries before it.
While it works through a backlog it submits nothing: what was right an hour ago is nobody's business now. Caught up is
who is at most `BEHIND_MS` of log time behind the farm.

The farm accepts an entry only if it was made from more of the log than the last one, so a batch that is repeated after
a crash, or a second pipeline by mistake, changes nothing twice. And it needs none of this: whatever fails here, in
reading, judging or submitting, is told and counted, and the tables go on.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from pipeline.endpoint import LOST, Credentials, Endpoint
from pipeline.feedback_rows import recent
from pipeline.log_client import FarmLog, FarmLogError
from pipeline.weighing import Proposal, Weighing

WARM_ENTRIES = 20_000
BEHIND_MS = 120_000


class NotSubmittedError(Exception):
    """A proposal was not committed: who said what."""


class Submission(Protocol):
    """The farm, as far as feedback needs it."""

    def oldest(self) -> int:
        """The first index that can be read."""
        ...

    def log_time_ms(self) -> int | None:
        """Log time of the newest committed entry."""
        ...

    def submit(self, entry: Mapping[str, object]) -> int:
        """Have one application entry committed; its index. Raises `NotSubmittedError`."""
        ...


@dataclass(frozen=True, slots=True)
class NodeSubmission:
    """Submits by whichever of the nodes answers."""

    addresses: tuple[str, ...]
    credentials: Credentials

    def oldest(self) -> int:
        """As the nodes tell."""
        return FarmLog(self.addresses, self.credentials).oldest()

    def log_time_ms(self) -> int | None:
        """As the first node that answers tells."""
        log = FarmLog(self.addresses, self.credentials)
        _, commit = log.bounds()
        newest = next(iter(log.range(commit, commit + 1, page_size=1)), None)
        return None if newest is None else newest.log_time_ms

    def submit(self, entry: Mapping[str, object]) -> int:
        """Once: an entry of unknown fate is not repeated, the next proposal comes anyhow."""
        said: list[str] = []
        for address in self.addresses:
            try:
                with Endpoint(address, self.credentials) as node:
                    answer = node.post("/v1/submit", entry)
            except LOST as error:
                said.append(f"{address}: {str(error) or type(error).__name__}")
                continue
            if answer.get("outcome") == "committed":
                return int(answer["index"])
            said.append(f"{address}: {answer.get('outcome')} {answer.get('reason') or ''}".strip())
            if answer.get("outcome") == "unknown":
                break
        raise NotSubmittedError("; ".join(said))


class Feedback:
    """Listens to the batches of one run. Without a `submission` it only judges."""

    def __init__(
        self,
        session: SparkSession,
        source: Mapping[str, str],
        submission: Submission | None,
        tell: Callable[[str], None],
    ) -> None:
        self._session = session
        self._source = {name: value for name, value in source.items() if name not in {"start", "end"}}
        self._submission = submission
        self._tell = tell
        self._warm = False
        self.weighing = Weighing()
        self.submitted = 0
        self.failed = 0

    def after_batch(self, entries: DataFrame) -> None:
        """Take the entries of one batch into account; never raises for what the farm or Spark refuses."""
        if self._submission is None:
            return
        try:
            rows = recent(entries)
            if rows and not self._warm:
                self._look_back(self._submission, rows[0].index)
            for row in rows:
                self.weighing.observe(row)
            proposal = self.weighing.propose()
            if proposal is not None:
                self._propose(self._submission, proposal)
        except (FarmLogError, NotSubmittedError, PySparkException) as error:
            self.failed += 1
            self._tell(f"factors not submitted: {str(error).strip().splitlines()[0]}")

    def _look_back(self, submission: Submission, first: int) -> None:
        self._warm = True
        start = max(first - WARM_ENTRIES, submission.oldest())
        if start >= first:
            return
        options = {**self._source, "start": str(start), "end": str(first - 1)}
        for row in recent(self._session.read.format("farm").options(**options).load()):
            self.weighing.observe(row)

    def _propose(self, submission: Submission, proposal: Proposal) -> None:
        newest_ms = submission.log_time_ms()
        if newest_ms is None or newest_ms - self.weighing.log_time_ms > BEHIND_MS:
            return
        self.weighing.submitted()
        index = submission.submit(proposal.entry())
        self.submitted += 1
        self._tell(
            f"factors of {len(proposal.factors)} leaves, made from the log up to {proposal.through_index}, are entry"
            f" {index}"
        )
