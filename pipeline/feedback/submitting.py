"""Feedback: each batch updates the figures of the servers; due factors of leaves are submitted to the farm.

    batch ──▶ recent rows ──▶ Weighing ──▶ proposal? ──▶ caught up? removed servers?
                 ──▶ POST /v1/submit to any node that replies ──▶ accepted, or refused with a reason

A restarted driver starts without state, so with its first rows it also reads up to `WARM_ENTRIES` earlier entries.
While it processes a backlog it submits nothing, since the factors would be out of date. It has caught up if its log
time is at most `BEHIND_MS` older than the farm's. The pipeline also requests the list of servers that an operator
removed, because their reports do not count. The entry about a removal may be months old.

The farm accepts an entry only if it was made from more of the log than the last accepted entry. So it accepts a
submission once, even if a batch is repeated after a crash. The farm may refuse a committed entry; the submitting node
reports the verdict. The tables do not depend on the feedback: if reading, weighing or submitting fails, the
failure is shown and counted, and the tables continue.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from pipeline.feedback.client_key import ClientKey
from pipeline.feedback.rows import ReadRows, recent
from pipeline.feedback.weighing import Row, Weighing
from pipeline.source.endpoint import LOST, Credentials, Endpoint
from pipeline.source.log_client import FarmLog, FarmLogError

WARM_ENTRIES = 20_000
BEHIND_MS = 120_000
CONTACT_SECONDS = 3.0
"""The limit of a pause in the reply to a status request, in seconds.

Up to 16 nodes get status requests concurrently. So an unreachable farm with up to 16 addresses is skipped after about
this time. Other requests wait longer (`pipeline/source/endpoint.py`).
"""


class NotSubmittedError(Exception):
    """A request failed at all tried nodes; a proposal may still be in the log. The text has each node's reply."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A proposal is in the log."""

    index: int
    refusal: str = ""
    """The farm's reason not to accept it; empty if accepted."""


class Submission(Protocol):
    """The farm's interface for feedback."""

    def oldest(self) -> int:
        """Return the first index that can be read."""
        ...

    def log_time_ms(self) -> int | None:
        """Return the log time of the newest committed entry."""
        ...

    def removed(self) -> frozenset[int]:
        """Return the servers that an operator removed from the farm. Raise NotSubmittedError."""
        ...

    def submit(self, entry: Mapping[str, object]) -> Submitted:
        """Commit one application entry. Raise NotSubmittedError."""
        ...


@dataclass(frozen=True, slots=True)
class NodeSubmission:
    """Access through the nodes at `addresses` that belong to `cluster`; None: to any cluster."""

    addresses: tuple[str, ...]
    credentials: Credentials
    cluster: str | None = None
    client_key: ClientKey | None = None
    """Signs the submissions; without it the accepting node signs an entry in its own name."""

    def oldest(self) -> int:
        """Return the start of the range without gaps in the logs of the responsive nodes."""
        return FarmLog(self.addresses, self.credentials).oldest(self.cluster, CONTACT_SECONDS)

    def log_time_ms(self) -> int | None:
        """Return the log time at the responsive node with the highest commit index."""
        found = FarmLog(self.addresses, self.credentials).statuses(self.cluster, CONTACT_SECONDS)
        ahead = max(found, key=lambda each: each.commit_index)
        commit, log = ahead.commit_index, FarmLog((ahead.address,), self.credentials)
        newest = next(iter(log.range(commit, commit + 1, page_size=1, cluster=self.cluster)), None)
        return None if newest is None else newest.log_time_ms

    def removed(self) -> frozenset[int]:
        """Return the removed servers from the first responsive node of the farm."""
        errors: list[str] = []
        for address in self.addresses:
            try:
                with self._node(address) as node:
                    return frozenset(node.get("/v1/view").get("removed", ()))
            except LOST as error:
                errors.append(f"{address}: {str(error) or type(error).__name__}")
        raise NotSubmittedError("; ".join(errors))

    def submit(self, entry: Mapping[str, object]) -> Submitted:
        """Submit to one node after another until one accepts.

        A repetition is safe, because the farm accepts a `throughIndex` only once.
        """
        errors: list[str] = []
        signed = self._signed(entry)
        for address in self.addresses:
            try:
                with self._node(address) as node:
                    answer = node.post("/v1/submit", signed)
            except LOST as error:
                errors.append(f"{address}: {str(error) or type(error).__name__}")
                continue
            outcome, index, reason = answer.get("outcome"), answer.get("index"), str(answer.get("reason") or "")
            if outcome == "committed" and isinstance(index, int):
                return Submitted(index, reason)
            if outcome == "committed":
                reason = f"and names the index {index!r}: it may be in the log, or not"
            errors.append(f"{address}: {outcome} {reason}".strip())
            if outcome in {"committed", "unknown"}:
                break
        raise NotSubmittedError("; ".join(errors))

    def _signed(self, entry: Mapping[str, object]) -> Mapping[str, object] | bytes:
        """Return the entry for all tried nodes. With a client key it is signed once, so the farm accepts it once."""
        if self.client_key is None or self.cluster is None:
            return entry
        return self.client_key.sign(entry, self.cluster)

    @contextmanager
    def _node(self, address: str) -> Iterator[Endpoint]:
        """Connect to a node, and check its cluster, if `cluster` is set. Raise one of `LOST`."""
        with Endpoint(address, self.credentials) as node:
            found = None if self.cluster is None else node.get("/v1/cluster").get("clusterId")
            if found != self.cluster:
                raise ValueError(
                    f"belongs to {f'the cluster {found}' if found else 'no cluster'}, not to {self.cluster}"
                )
            yield node


class Feedback:
    """The feedback of one farm in one run, from its rows in the batches. `source`: options that read only this farm."""

    def __init__(
        self,
        read_rows: ReadRows,
        source: Mapping[str, str],
        submission: Submission,
        notify: Callable[[str], None],
    ) -> None:
        self._read_rows = read_rows
        self._notify = notify
        self.reached_by(submission, source)
        self._warm = False
        self.weighing = Weighing()
        self.accepted = 0
        self.refused = 0
        self.failed = 0

    def reached_by(self, submission: Submission, source: Mapping[str, str]) -> None:
        """Change the access to the farm; keep the figures."""
        self._submission = submission
        self._source = {name: value for name, value in source.items() if name not in {"start", "end"}}

    def after_batch(self, found: pa.Table) -> None:
        """Process the result of `recent_rows` in one batch; never raise: the tables do not depend on it."""
        try:
            rows = recent(found)
            if rows and not self._warm:
                # If this fails, the next rows repeat it; the earlier entries then include this batch.
                rows = [*self._before(self._submission, rows[0].index), *rows]
                self._warm = True
            for row in rows:
                self.weighing.observe(row)
            if self.weighing.propose() is not None:
                self._propose(self._submission)
        except (FarmLogError, NotSubmittedError) as error:
            self.failed += 1
            self._notify(f"factors not submitted: {error}")
        except Exception as error:  # noqa: BLE001 - otherwise an entry that causes an error would fail each repetition
            self.failed += 1
            self._notify(f"factors not submitted because of a bug in the pipeline: {error!r}")

    def _before(self, submission: Submission, first: int) -> list[Row]:
        """Return the rows before the first batch of this run."""
        start = max(first - WARM_ENTRIES, submission.oldest())
        if start >= first:
            return []
        return self._read_rows({**self._source, "start": str(start), "end": str(first - 1)})

    def _propose(self, submission: Submission) -> None:
        newest_ms = submission.log_time_ms()
        if newest_ms is None or newest_ms - self.weighing.log_time_ms > BEHIND_MS:
            return
        proposal = self.weighing.propose(submission.removed())
        if proposal is None:
            return
        self.weighing.submitted()
        found = submission.submit(proposal.entry())
        entry = (
            f"factors (leaves: {len(proposal.factors)}), made from the log up to {proposal.through_index}, are entry"
            f" {found.index}"
        )
        if found.refusal:
            self.refused += 1
            self._notify(f"{entry}, which the farm did not accept: {found.refusal}")
        else:
            self.accepted += 1
            self._notify(entry)
