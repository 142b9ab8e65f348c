"""The clients of Kafka in the farm's state: idempotent producers, and the offsets of consumer groups.

    {"kafkaProducer":{"name":…}}                at index i ──▶ producer id i, epoch 0, next sequence 0
    {"request":"kafka:ID.EPOCH.SEQUENCE",…}     an entry of a producer, signed by the node that received it
        ──▶ sequence is the next one            new: counts, and its index is recorded
        ──▶ sequence is an earlier one          duplicate: a copy, which a reader of the topic does not see
        ──▶ sequence is a later one             out of order: does not count. A later epoch begins with sequence 0
        ──▶ epoch is an earlier one             fenced: does not count
        ──▶ another user's producer             foreign: does not count
        ──▶ the producer is not known           unknown: unused for a day, or displaced by others
    {"kafkaOffset":{"group":…,"offset":…}}      replaces the offset of the group

docs/reference/kafka.md ("Producing") has the rules for owners, shares and expiry; docs/explanation/other-protocols.md
explains why this table is separate from sessions. Sequences count records and begin again at 0 after 2^31 - 1. The
indexes of the last records are kept as runs of adjacent entries. So a client that repeats a batch receives the first
copy's index.

In a full table of producers or skipped indexes, the author with the most rows loses rows; among equals, the first in
order. So all servers choose the same rows, also after a restart. A full table of groups refuses a new group. Producers
and groups expire by log time, so all servers drop them together.
"""

import hashlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from bridge.core.log.fields import PRINCIPAL_CHARACTERS, is_principal

Row = TypeVar("Row")
Name = TypeVar("Name", str, bytes)

PRODUCERS_MAX: Final = 1_024
"""Maximum number of producers that began at one node; below `BOUNDS_LEVEL`, of all producers."""
PRODUCERS_OF_USER_MAX: Final = PRODUCERS_MAX // 2
PRODUCERS_OF_ALL_MAX: Final = 2 * PRODUCERS_MAX
PRODUCER_EXPIRY_MS: Final = 24 * 3600 * 1000
"""Kafka's `producer.id.expiration.ms`."""
RUNS_MAX: Final = 8
"""Kafka keeps 5 batches of a producer, the most that a client has in flight."""
GROUPS_MAX: Final = 100
"""Maximum number of groups of one user; below `BOUNDS_LEVEL`, of all groups."""
GROUPS_OF_NODE_MAX: Final = 2 * GROUPS_MAX
"""Maximum number of groups that began at one node. The log's leader writes the groups of all users."""
GROUPS_OF_ALL_MAX: Final = 4 * GROUPS_MAX
GROUP_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""Kafka's `offsets.retention.minutes`."""
SKIPPED_MAX: Final = 4_096
SEQUENCES: Final = 2**31
EPOCH_MAX: Final = 2**15 - 1
_MARK: Final = "kafka:"
_TEXT_CHARACTERS_MAX: Final = len(_MARK) + 19 + 5 + 10 + PRINCIPAL_CHARACTERS + 3
_PARTS_WITH_PRINCIPAL: Final = 4
_PRINCIPAL_PURPOSE: Final = b"garlic farm kafka principal\x00"


def principal_hash(cluster_id: bytes, principal: str | None) -> str:
    """Return the user as entries name it; empty on a listener that does not authenticate its clients.

    A hash has one length, also for the subject of a certificate, and differs from farm to farm.
    """
    if principal is None:
        return ""
    digest = hashlib.sha256(_PRINCIPAL_PURPOSE + cluster_id + principal.encode()).hexdigest()
    return digest[:PRINCIPAL_CHARACTERS]


class Owner(Struct, frozen=True):
    """The author of a row: the user, by `principal_hash`, and the node that signed the entry."""

    principal: str
    node_id: bytes


class Produced(Struct, frozen=True):
    """The producer of an entry, and the place of the entry in the producer's sequence."""

    producer_id: int
    epoch: int
    sequence: int
    principal: str = ""
    """The user, by `principal_hash`; empty if unknown, and in entries from below `BOUNDS_LEVEL`."""

    def __str__(self) -> str:
        user = f".{self.principal}" if self.principal else ""
        return f"{_MARK}{self.producer_id}.{self.epoch}.{self.sequence}{user}"


def produced_in(request: str | None) -> Produced | None:
    """Parse the result of `str`; return None for any other text."""
    if request is None or not request.startswith(_MARK) or len(request) > _TEXT_CHARACTERS_MAX:
        return None
    numbers, principal = request[len(_MARK) :].split("."), ""
    if len(numbers) == _PARTS_WITH_PRINCIPAL and is_principal(numbers[-1]):
        principal = numbers.pop()
    if len(numbers) != _PARTS_WITH_PRINCIPAL - 1:
        return None
    try:
        producer_id, epoch, sequence = map(int, numbers)
    except ValueError:
        return None
    made = Produced(producer_id, epoch, sequence, principal)
    is_possible = made.producer_id >= 0 and 0 <= made.epoch <= EPOCH_MAX and 0 <= made.sequence < SEQUENCES
    return made if is_possible and str(made) == request else None


class ProducedStatus(Enum):
    """Verdict on an entry of a producer."""

    NEW = "new"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out-of-order"
    FENCED = "fenced"
    """The entry has an earlier epoch than the producer."""
    FOREIGN = "foreign"
    """The producer belongs to another user."""
    UNKNOWN = "unknown"
    """The producer was dropped, or never existed."""


class Run(Struct, frozen=True):
    """Adjacent entries with adjacent sequences."""

    sequence: int
    index: int
    count: int


class Producer(Struct, frozen=True):
    """One producer. `sequence` is the next one, `used_ms` the log time of its last entry."""

    name: str
    used_ms: int
    epoch: int = 0
    sequence: int = 0
    runs: tuple[Run, ...] = ()
    principal: str = ""
    """Owner of the producer; empty before its first entry of `BOUNDS_LEVEL`, and on listeners without users."""
    node_id: bytes = b""
    """The node that began it; empty below `BOUNDS_LEVEL`."""

    def judge(self, produced: Produced) -> ProducedStatus:
        """Return the verdict on an entry of this producer now."""
        if self.principal not in {"", produced.principal}:
            return ProducedStatus.FOREIGN
        if produced.epoch < self.epoch:
            return ProducedStatus.FENCED
        if produced.epoch > self.epoch:
            # The first batch of the new epoch may arrive after this one, because a client sends several batches at a
            # time and repeats them.
            return ProducedStatus.OUT_OF_ORDER if produced.sequence else ProducedStatus.NEW
        ahead = (produced.sequence - self.sequence) % SEQUENCES
        if ahead == 0:
            return ProducedStatus.NEW
        return ProducedStatus.OUT_OF_ORDER if ahead < SEQUENCES // 2 else ProducedStatus.DUPLICATE

    def index_of(self, produced: Produced) -> int | None:
        """Return the index of the first copy of this entry; None if it is not known."""
        if produced.epoch != self.epoch:
            return None
        for run in reversed(self.runs):
            offset = (produced.sequence - run.sequence) % SEQUENCES
            if offset < run.count:
                return run.index + offset
        return None

    def after(self, produced: Produced, index: int, log_time_ms: int) -> "Producer":
        """Return this producer after a new entry at `index`."""
        runs = self.runs if produced.epoch == self.epoch else ()
        last = runs[-1] if runs else None
        if last is not None and last.index + last.count == index:
            runs = (*runs[:-1], replace(last, count=last.count + 1))
        else:
            runs = (*runs, Run(produced.sequence, index, 1))[-RUNS_MAX:]
        next_sequence = (produced.sequence + 1) % SEQUENCES
        owner = self.principal or produced.principal
        return Producer(self.name, log_time_ms, produced.epoch, next_sequence, runs, owner, self.node_id)


class NotedOffset(Struct, frozen=True):
    """The offset of a consumer group, noted at `noted_ms` of log time.

    `leader_epoch` is -1 if its client did not send it.
    """

    offset: int
    leader_epoch: int
    metadata: str
    noted_ms: int
    principal: str = ""
    """The owner of the group; empty before its first entry of `BOUNDS_LEVEL`, and on listeners without users."""
    node_id: bytes = b""
    """The node whose entry began the group; empty below `BOUNDS_LEVEL`."""


class KafkaClients(Struct, frozen=True):
    """The tables after some entry."""

    producers: Mapping[int, Producer] = field(default_factory=dict)
    groups: Mapping[str, NotedOffset] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    """Indexes of the newest entries that do not count: ineffective entries of producers, and copies of requests."""
    skipped_of: tuple[str, ...] = ()
    """From `BOUNDS_LEVEL` on, the author of each of `skipped`: a user, a node or a client key. Empty for unknown
    authors and earlier entries."""

    def judge(self, produced: Produced, log_time_ms: int) -> ProducedStatus:
        """Return the verdict on an entry of a producer at this log time."""
        producer = self.producer(produced.producer_id, log_time_ms)
        return ProducedStatus.UNKNOWN if producer is None else producer.judge(produced)

    def producer(self, producer_id: int, log_time_ms: int) -> Producer | None:
        """Return the producer, unless it was unused for too long."""
        found = self.producers.get(producer_id)
        return None if found is None or _is_over(found.used_ms, PRODUCER_EXPIRY_MS, log_time_ms) else found

    def id_of(self, name: str) -> int | None:
        """Return the id of the producer that began under this name."""
        return next((each for each, producer in self.producers.items() if producer.name == name), None)

    def admit(
        self, produced: Produced, index: int, log_time_ms: int, author: str | None = None
    ) -> tuple["KafkaClients", ProducedStatus]:
        """Judge the entry at `index`, and record it; indexes rise. `author` as for `skipping`."""
        verdict = self.judge(produced, log_time_ms)
        if verdict is not ProducedStatus.NEW:
            return self.skipping(index, author), verdict
        known = self.producers[produced.producer_id]
        producers = {**self.producers, produced.producer_id: known.after(produced, index, log_time_ms)}
        return replace(self, producers=producers), verdict

    def skipping(self, index: int, author: str | None = None) -> "KafkaClients":
        """Return these tables after an entry at `index` that does not count; indexes rise.

        `author` is the author of the entry, empty for an unknown one; None below `BOUNDS_LEVEL`. In a full table the
        author with the most rows loses the older half of them, so an author with few rows keeps all.
        """
        skipped = (*self.skipped, index)
        if author is None:
            kept = skipped[-SKIPPED_MAX // 2 :] if len(skipped) > SKIPPED_MAX else skipped
            return replace(self, skipped=kept)
        authors = (*("",) * (len(self.skipped) - len(self.skipped_of)), *self.skipped_of, author)
        if len(skipped) > SKIPPED_MAX:
            skipped, authors = _newest_of_each(skipped, authors)
        return replace(self, skipped=skipped, skipped_of=authors)

    def is_skipped(self, index: int) -> bool:
        """Return True if the entry at `index` does not count; False after its index has left the list."""
        place = bisect_left(self.skipped, index)
        return place < len(self.skipped) and self.skipped[place] == index

    def with_producer(self, name: str, index: int, log_time_ms: int, owner: Owner | None = None) -> "KafkaClients":
        """Return these tables with a producer that begins with the entry at `index`.

        Callers pass `owner` only from `BOUNDS_LEVEL` on.
        """
        kept = {
            each: producer
            for each, producer in self.producers.items()
            if not _is_over(producer.used_ms, PRODUCER_EXPIRY_MS, log_time_ms)
        }
        if owner is None:
            while len(kept) >= PRODUCERS_MAX:
                del kept[_longest_silent(kept, kept)]
            return replace(self, producers={**kept, index: Producer(name, log_time_ms)})
        while (crowd := _crowd(kept, owner)) is not None:
            del kept[_longest_silent(kept, crowd)]
        newcomer = Producer(name, log_time_ms, principal=owner.principal, node_id=owner.node_id)
        return replace(self, producers={**kept, index: newcomer})

    def group(self, name: str, log_time_ms: int) -> NotedOffset | None:
        """Return the last offset that the group has noted; None without one, or if the offset is too old."""
        found = self.groups.get(name)
        return None if found is None or _is_over(found.noted_ms, GROUP_EXPIRY_MS, log_time_ms) else found

    def group_refusal(self, group: str, log_time_ms: int, owner: Owner | None = None) -> str | None:
        """Return the reason why the group cannot note an offset; None if it can.

        Callers pass `owner` only from `BOUNDS_LEVEL` on.
        """
        living = self.living_groups(log_time_ms)
        known = living.get(group)
        if owner is None:
            is_full = group not in self.groups and len(living) >= GROUPS_MAX
            return _no_group(GROUPS_MAX, "") if is_full else None
        if known is not None:
            return None if known.principal in {"", owner.principal} else f"the group {group} belongs to another user"
        if sum(each.principal == owner.principal for each in living.values()) >= GROUPS_MAX:
            return _no_group(GROUPS_MAX, " of this user")
        if sum(each.node_id == owner.node_id for each in living.values()) >= GROUPS_OF_NODE_MAX:
            return _no_group(GROUPS_OF_NODE_MAX, f" that began at the node {owner.node_id.hex()}")
        return _no_group(GROUPS_OF_ALL_MAX, "") if len(living) >= GROUPS_OF_ALL_MAX else None

    def noted(self, group: str, noted: NotedOffset, owner: Owner | None = None) -> "KafkaClients":
        """Return these tables with the group's new offset; unchanged if `group_refusal` has a reason."""
        if owner is not None:
            if self.group_refusal(group, noted.noted_ms, owner) is not None:
                return self
            known = self.living_groups(noted.noted_ms).get(group)
            node_id = owner.node_id if known is None else known.node_id
            noted = replace(noted, principal=owner.principal, node_id=node_id)
        groups = {**self.living_groups(noted.noted_ms), group: noted}
        return self if owner is None and len(groups) > GROUPS_MAX else replace(self, groups=groups)

    def living_groups(self, log_time_ms: int) -> Mapping[str, NotedOffset]:
        """Return the last offset of each group; omit groups whose offset is too old."""
        return {
            group: noted
            for group, noted in self.groups.items()
            if not _is_over(noted.noted_ms, GROUP_EXPIRY_MS, log_time_ms)
        }


def offset_refusal(offset: int, end: int) -> str | None:
    """Return the reason why a group cannot note this offset while the log ends before index `end`; None if it can."""
    if offset <= end:
        return None
    return f"the offset {offset} is beyond the end of the log, {end}: a group notes the offset of its next record"


def _is_over(since_ms: int, limit_ms: int, log_time_ms: int) -> bool:
    return log_time_ms - since_ms > limit_ms


def _crowd(producers: Mapping[int, Producer], owner: Owner) -> Iterable[int] | None:
    """Return the candidates to drop for a new producer of this owner; None while its shares and the table have room.

    If the user's share is full, they are the user's producers. If the node's share is full, they belong to this node;
    in a full table, to the node with the most. Within a node, they belong to the user with the most.
    """
    of_user = [each for each, producer in producers.items() if producer.principal == owner.principal]
    if len(of_user) >= PRODUCERS_OF_USER_MAX:
        return of_user
    of_node = [each for each, producer in producers.items() if producer.node_id == owner.node_id]
    if len(of_node) < PRODUCERS_MAX:
        if len(producers) < PRODUCERS_OF_ALL_MAX:
            return None
        of_node = _largest_holder(producers, lambda each: producers[each].node_id)
    return _largest_holder(of_node, lambda each: producers[each].principal)


def _largest_holder(rows: Iterable[Row], author_of: Callable[[Row], Name]) -> list[Row]:
    """Return the rows of the author with the most rows."""
    authors = [(author_of(row), row) for row in rows]
    holder = _most(author for author, _ in authors)
    return [row for author, row in authors if author == holder]


def _newest_of_each(rows: Sequence[int], authors: Sequence[str]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """Drop the older half of the rows of the author with the most rows; return the other rows.

    `authors` has the author of each row.
    """
    holder = _most(authors)
    given_up = (authors.count(holder) + 1) // 2
    kept: list[tuple[int, str]] = []
    for row, author in zip(rows, authors, strict=True):
        if author == holder and given_up:
            given_up -= 1
        else:
            kept.append((row, author))
    return tuple(row for row, _ in kept), tuple(author for _, author in kept)


def _most(authors: Iterable[Name]) -> Name:
    counted = Counter(authors)
    return min(counted, key=lambda each: (-counted[each], each))


def _longest_silent(producers: Mapping[int, Producer], crowd: Iterable[int]) -> int:
    return min(crowd, key=lambda each: (producers[each].used_ms, each))


def _no_group(count: int, whose: str) -> str:
    return (
        f"{count} groups{whose} committed offsets within the last week, the limit: use one of them, or wait until one"
        " has not committed for a week"
    )
