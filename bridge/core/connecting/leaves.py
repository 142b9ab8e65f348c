"""The leaves of a farm (destinations of its service), one client's streams to them, and the order of its attempts.

    structure ─▶ replace ──────────────────┐
    streams   ─▶ replied, suspect, failed ─┴─▶ order ─▶ the leaf to try first, the next one, …

    weight of a leaf    1 / max(cost, 10)
    cheapest leaves     max(cost, 10) is at most 4 times the least; an unhealthy leaf (cost above 100) counts only if
                        all leaves are unhealthy

The cheapest leaves come first, drawn at random by weight. The more expensive leaves follow in order of cost, then
suspect leaves, then failed leaves. Among failed leaves, three facts decide in this order: no failure in the last 5 s,
fewer failures in a row, a more recent byte. For 20 s after a missing reply, leaves that have sent a byte since the
unanswered request come before all others. A leaf's load changes the published cost only in steps of at least 10, so all
costs below 10 have the same weight. With a weight of 1 / cost, all clients would use the same idle leaf.

After its first failure, a leaf counts as failed until it sends a byte, for at most 40 s. If the router did not open a
stream, the limit is 10 s: the first look-up of a lease set may take long. Each further failure without a byte doubles
the time, up to 600 s. A router keeps the old lease set of a dead leaf for up to 600 s, but the farm usually withdraws
the leaf sooner. A leaf is suspect after half of a reply's timeout.
"""

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from random import Random
from typing import Final

from msgspec import Struct, field

from bridge.core.connecting.reply_times import NetworkDoubt, ReplyTimes
from bridge.core.connecting.structures import ListedLeaf

LEAST_WEIGHED_COST: Final = 10
"""The least change of a published cost by the load of a leaf (docs/reference/publishing-rules.md)."""
CHEAPEST_FACTOR: Final = 4
UNHEALTHY_ABOVE: Final = 100
FAILURE_COUNTS_S: Final = 40.0
NOT_OPENED_COUNTS_S: Final = 10.0
JUST_FAILED_S: Final = 5.0
OPENING_LEAST_S: Final = 12.0
"""i2pd looks a lease set up at a floodfill (a router that stores it), then after 5 s and 10 s at others."""
PROVEN_FOR_S: Final = 20.0
"""Seconds after a missing reply during which leaves with a later byte come first: a router replaces broken tunnels."""
FAILURE_COUNTS_MAX_S: Final = 600.0
_DOUBLINGS_MAX: Final = 6
RECORDS_MAX: Final = 64
"""Above this number, unlisted leaves without open streams are dropped: four structures without a common leaf fit."""


class LeafState(StrEnum):
    """State of a leaf for this client."""

    UNTRIED = "untried"
    """No counted reply has come from it, and no failure counts now."""
    GOOD = "good"
    SUSPECT = "suspect"
    """Half of a reply's timeout passed without a reply."""
    FAILED = "failed"
    ENDED = "ended"
    """The entry of the leaf in the structure has ended."""


class LeafFailure(Struct, frozen=True, kw_only=True):
    """One failure of a leaf."""

    reason: str
    unanswered_since_s: float | None = None
    """The time of the request, or of the attempt to open a stream, if the reason is a missing reply."""
    is_opened: bool = True
    """False if the router did not open a stream."""


class LeafRecord(Struct):
    """One leaf. Times are seconds of the client's monotonic clock, except `ends_s`."""

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
    failed_until_s: float = 0.0
    failures_in_row: int = 0
    """Failures since the last byte from it."""
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
        return self.failed_at_s is not None and now_s < self.failed_until_s

    @property
    def retry_at_s(self) -> float:
        """The earliest time of another attempt: an earlier one would fail for the same reason."""
        return -inf if self.failed_at_s is None else self.failed_at_s + JUST_FAILED_S

    def failed_rank(self, now_s: float) -> tuple[bool, int, float, float]:
        """Return its rank among failed leaves. A recent byte ranks higher, because a dead leaf does not send."""
        newest_s = -inf if self.received_at_s is None else self.received_at_s
        return now_s < self.retry_at_s, self.failures_in_row, -newest_s, self.failed_at_s or 0.0

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
    """The leaves of the structure in use, and some earlier ones, with the outcomes of this client's streams."""

    def __init__(self, base_timeout_s: float) -> None:
        self.base_timeout_s = base_timeout_s
        self._records: dict[bytes, LeafRecord] = {}
        self._all_times = ReplyTimes()
        self._doubt = NetworkDoubt()
        self._unanswered_since_s = -inf
        """The time of the last request without a reply."""
        self._unanswered_at_s = -inf
        """The end of the client's wait for that reply."""

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
        return leaf_hash in self._records

    def __getitem__(self, leaf_hash: bytes) -> LeafRecord:
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
        proven: list[LeafRecord] = []
        if now_s < self._unanswered_at_s + PROVEN_FOR_S:
            proven = [each for each in usable if (each.received_at_s or -inf) > self._unanswered_since_s]
            # A leaf that has not sent a byte since its failure is not tried next, even if its failure no longer counts.
            failed += [each for each in (*usable, *suspects) if each.failures_in_row]
            usable, suspects = ([each for each in some if not each.failures_in_row] for some in (usable, suspects))
        ordered = [
            *_by_weight(proven, random),
            *_by_weight([each for each in usable if each not in proven], random),
            *_by_weight(suspects, random),
            *sorted(failed, key=lambda each: each.failed_rank(now_s)),
        ]
        return [each.hash for each in ordered]

    def has_failed(self, now_s: float) -> bool:
        """Return True if a listed leaf counts as failed: a newer structure may withdraw it."""
        return any(each.is_failed(now_s) for each in self._records.values() if each.listed)

    def timeout_s(self, leaf_hash: bytes) -> float:
        """Return the time to wait for the first byte of a reply from a leaf."""
        own = self._records[leaf_hash].times
        least_s = (own if own.is_measured else self._all_times).least_s(self.base_timeout_s)
        return (own or self._all_times).timeout_s(self.base_timeout_s, least_s, self._doubt.factor)

    def opening_timeout_s(self, leaf_hash: bytes) -> float:
        """Return the time to wait for the router to open a stream: it may have to look up the lease set."""
        return max(OPENING_LEAST_S, self.timeout_s(leaf_hash))

    def replied(self, leaf_hash: bytes, reply_s: float, now_s: float, *, is_late: bool = False) -> None:
        """Record the first reply of a stream, `reply_s` seconds after its request."""
        record = self._records[leaf_hash]
        record.times.add(reply_s, is_late=is_late)
        self._all_times.add(reply_s, is_late=is_late)
        record.successes += 1
        self.received(leaf_hash, now_s)

    def received(self, leaf_hash: bytes, now_s: float) -> None:
        """Record that the leaf is alive: a byte arrived on one of its streams."""
        self._revive(leaf_hash, now_s)
        self._doubt.replied()

    def _revive(self, leaf_hash: bytes, now_s: float) -> None:
        record = self._records[leaf_hash]
        record.received_at_s = now_s
        record.suspect_until_s = 0.0
        record.failed_at_s = None
        record.failures_in_row = 0

    def replied_late(self, leaf_hash: bytes, reply_s: float, now_s: float) -> None:
        """Record a reply after its stream has failed: the leaf is alive.

        A time above the base timeout is not added to the measured times, because a router may have repeated a lost
        packet. Such a time doubles the factor `NetworkDoubt` instead, because the network may be slow.
        """
        if reply_s <= self.base_timeout_s:
            self.replied(leaf_hash, reply_s, now_s, is_late=True)
        else:
            self._revive(leaf_hash, now_s)
            self._doubt.late(now_s - reply_s, now_s)

    def suspect(self, leaf_hash: bytes, now_s: float) -> None:
        """Put a leaf after the usable ones, for one timeout from now."""
        self._records[leaf_hash].suspect_until_s = now_s + self.timeout_s(leaf_hash)

    def failed(self, leaf_hash: bytes, failure: LeafFailure, now_s: float) -> None:
        """Put a leaf among the failed ones for some time."""
        record = self._records[leaf_hash]
        first_s = FAILURE_COUNTS_S if failure.is_opened else NOT_OPENED_COUNTS_S
        counts_s = min(first_s * 2.0 ** min(record.failures_in_row, _DOUBLINGS_MAX), FAILURE_COUNTS_MAX_S)
        record.failed_at_s, record.failed_until_s = now_s, now_s + counts_s
        record.failures += 1
        record.failures_in_row += 1
        record.last_failure = failure.reason
        if failure.unanswered_since_s is not None:
            if failure.is_opened:
                self._unanswered_since_s = max(self._unanswered_since_s, failure.unanswered_since_s)
                self._unanswered_at_s = now_s
            listed = sum(each.listed for each in self._records.values())
            self._doubt.failed(failure.unanswered_since_s, now_s, listed)

    def forgive(self, leaf_hash: bytes) -> None:
        """Withdraw the last failure of a leaf, because the cause was not the leaf."""
        record = self._records[leaf_hash]
        if record.failed_at_s is not None:
            record.failed_at_s = None
            record.failures -= 1
            record.failures_in_row -= 1


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
