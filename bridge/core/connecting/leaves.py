"""The leaves of a farm, the outcomes of one client's streams to them, and the order of its attempts.

    structure ─▶ replace ──────────────────┐
    streams   ─▶ replied, suspect, failed ─┴─▶ order ─▶ the leaf to try first, the next one, …

    weight of a leaf    1 / max(cost, 10)
    cheapest            weighed cost at most 4 times the least; a cost above 100 (unhealthy) only without any other

The first leaves of the order are the cheapest, drawn at random by weight. The more expensive ones follow by cost, then
suspect leaves, then failed ones, the oldest failure first. The farm changes a published cost only for a difference of
10, so smaller costs do not differ here either: with a weight of 1 / cost all clients would use an idle leaf.

A failed leaf is last for 600 s or until it replies: a router may keep the old lease set of a leaf for so long, the time
until its leases end. A leaf is suspect if half of the timeout of a reply has passed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Final

from bridge.core.connecting.reply_times import NetworkDoubt, ReplyTimes
from bridge.core.connecting.structures import ListedLeaf

LEAST_WEIGHED_COST: Final = 10
"""The margin of published costs (docs/reference/publishing-rules.md)."""
CHEAPEST_FACTOR: Final = 4
UNHEALTHY_ABOVE: Final = 100
FAILURE_COUNTS_S: Final = 600.0
RECORDS_MAX: Final = 64
"""Leaves in memory, listed or not: four structures without a common leaf."""


class LeafState(StrEnum):
    """State of a leaf for this client."""

    UNTRIED = "untried"
    """The client has not received a byte from it, and no attempt failed."""
    GOOD = "good"
    SUSPECT = "suspect"
    """A reply is overdue by half of its timeout."""
    FAILED = "failed"
    ENDED = "ended"
    """Its entry in the structure has ended."""


@dataclass(slots=True)
class LeafRecord:
    """One leaf. Times without a zone are seconds of the client's monotonic clock."""

    hash: bytes
    cost: int
    ends_s: int
    """The end of its entry, in Unix seconds."""
    listed: bool = True
    times: ReplyTimes = field(default_factory=ReplyTimes)
    received_at_s: float | None = None
    """The time of the last byte from it, on any stream."""
    suspect_until_s: float = 0.0
    failed_at_s: float | None = None
    last_failure: str | None = None
    successes: int = 0
    failures: int = 0
    streams: int = 0
    """Open streams."""

    @property
    def weighed_cost(self) -> int:
        """The cost as the choice uses it."""
        return max(self.cost, LEAST_WEIGHED_COST)

    def is_failed(self, now_s: float) -> bool:
        """Return True if its last failure still counts."""
        return self.failed_at_s is not None and now_s - self.failed_at_s < FAILURE_COUNTS_S

    def state(self, now_s: float, unix_s: float) -> LeafState:
        """Return its state for this client."""
        if self.ends_s <= unix_s:
            return LeafState.ENDED
        if self.is_failed(now_s):
            return LeafState.FAILED
        if now_s < self.suspect_until_s:
            return LeafState.SUSPECT
        return LeafState.GOOD if self.successes else LeafState.UNTRIED


class LeafTable:
    """The leaves of the structure in use, with the outcomes of this client's streams."""

    def __init__(self, base_timeout_s: float) -> None:
        self._base_timeout_s = base_timeout_s
        self._records: dict[bytes, LeafRecord] = {}
        self._all_times = ReplyTimes()
        self._doubt = NetworkDoubt()

    def replace(self, leaves: Sequence[ListedLeaf]) -> tuple[bytes, ...]:
        """Use the leaves of a newer structure; return the leaves that it withdraws.

        A withdrawn leaf was listed as healthy, and is now unlisted or listed as unhealthy. A higher load alone does
        not withdraw a leaf.
        """
        healthy = [each.hash for each in self._records.values() if each.listed and each.cost <= UNHEALTHY_ABOVE]
        listed = {leaf.hash: leaf for leaf in leaves}
        for record in self._records.values():
            record.listed = record.hash in listed
        for leaf in leaves:
            known = self._records.pop(leaf.hash, None) or LeafRecord(leaf.hash, leaf.cost, leaf.ends_s)
            known.cost, known.ends_s = leaf.cost, leaf.ends_s
            self._records[leaf.hash] = known
        self._drop_oldest_unlisted()
        return tuple(each for each in healthy if each not in listed or listed[each].cost > UNHEALTHY_ABOVE)

    def _drop_oldest_unlisted(self) -> None:
        # Leaves of the structure are the newest in the dictionary. A leaf with open streams keeps its record.
        surplus = len(self._records) - RECORDS_MAX
        for unlisted in [each for each in self._records.values() if not each.listed and not each.streams]:
            if surplus <= 0:
                break
            del self._records[unlisted.hash]
            surplus -= 1

    def __contains__(self, leaf_hash: bytes) -> bool:
        """Return True if the table has a record of a leaf."""
        return leaf_hash in self._records

    def __getitem__(self, leaf_hash: bytes) -> LeafRecord:
        """Return the record of a leaf that the table has."""
        return self._records[leaf_hash]

    def listed(self) -> list[LeafRecord]:
        """Return the leaves of the structure in use, the cheapest first."""
        return sorted((each for each in self._records.values() if each.listed), key=lambda each: (each.cost, each.hash))

    def order(self, now_s: float, unix_s: float, random: Random) -> list[bytes]:
        """Return the leaves to try, the first one first; entries that have ended are left out."""
        groups: dict[LeafState, list[LeafRecord]] = {}
        for record in self.listed():
            groups.setdefault(record.state(now_s, unix_s), []).append(record)
        suspects = groups.get(LeafState.SUSPECT, [])
        failed = groups.get(LeafState.FAILED, [])
        usable = groups.get(LeafState.UNTRIED, []) + groups.get(LeafState.GOOD, [])
        ordered = [
            *_by_weight(usable, random),
            *_by_weight(suspects, random),
            *sorted(failed, key=lambda each: each.failed_at_s or 0.0),
        ]
        return [each.hash for each in ordered]

    def timeout_s(self, leaf_hash: bytes) -> float:
        """Return the time to wait for the first byte of a reply from a leaf."""
        times = self._records[leaf_hash].times or self._all_times
        return times.timeout_s(self._base_timeout_s, self._doubt.factor)

    def replied(self, leaf_hash: bytes, reply_s: float, now_s: float) -> None:
        """Record the first reply of a stream, `reply_s` seconds after its request."""
        record = self._records[leaf_hash]
        record.times.add(reply_s)
        self._all_times.add(reply_s)
        record.successes += 1
        self.received(leaf_hash, now_s)

    def received(self, leaf_hash: bytes, now_s: float) -> None:
        """Record that the leaf is alive: a byte arrived on one of its streams."""
        record = self._records[leaf_hash]
        record.received_at_s = now_s
        record.suspect_until_s = 0.0
        record.failed_at_s = None
        self._doubt.replied()

    def suspect(self, leaf_hash: bytes, now_s: float) -> None:
        """Put a leaf after the others until its reply is due."""
        self._records[leaf_hash].suspect_until_s = now_s + self.timeout_s(leaf_hash)

    def failed(self, leaf_hash: bytes, reason: str, now_s: float, *, unanswered_since_s: float | None = None) -> None:
        """Put a leaf last. `unanswered_since_s` is the time of the request if the reason is its missing reply."""
        record = self._records[leaf_hash]
        record.failed_at_s = now_s
        record.failures += 1
        record.last_failure = reason
        if unanswered_since_s is not None:
            self._doubt.failed(unanswered_since_s, now_s, sum(each.listed for each in self._records.values()))

    def forgive(self, leaf_hash: bytes) -> None:
        """Withdraw the last failure of a leaf: it had another cause."""
        record = self._records[leaf_hash]
        if record.failed_at_s is not None:
            record.failed_at_s = None
            record.failures -= 1


def _by_weight(records: Sequence[LeafRecord], random: Random) -> list[LeafRecord]:
    """Return the cheapest leaves drawn by weight, then the others by cost."""
    if not records:
        return []
    healthy = [each for each in records if each.cost <= UNHEALTHY_ABOVE] or records
    most = CHEAPEST_FACTOR * min(each.weighed_cost for each in healthy)
    cheapest = [each for each in healthy if each.weighed_cost <= most]
    others = [each for each in records if each not in cheapest]
    drawn: list[LeafRecord] = []
    while cheapest:
        (chosen,) = random.choices(cheapest, weights=[1 / each.weighed_cost for each in cheapest])
        cheapest.remove(chosen)
        drawn.append(chosen)
    return drawn + sorted(others, key=lambda each: each.cost)
