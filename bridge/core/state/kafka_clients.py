"""What the farm's state knows of Kafka's clients: idempotent producers, and the offsets of consumer groups.

    {"kafkaProducer":{"name":…}}                at index i ──▶ producer id i, epoch 0, next sequence 0
    {"request":"kafka:ID.EPOCH.SEQUENCE",…}     an entry that a producer had committed, signed by the node that took it
        ──▶ sequence is the next one            new: counts, and its place is remembered
        ──▶ was before                          duplicate: a copy, which a reader of the topic does not see
        ──▶ lies ahead, or the epoch is another out of order, fenced: does not count either
        ──▶ the producer is not known           unknown: it was silent for a day, or others displaced it
    {"kafkaOffset":{"group":…,"offset":…}}      replaces the offset of the group

The table of sessions (`consensus.sessions`) cannot serve a producer. It knows 16 requests of a client at a time, and a
batch of Kafka's has hundreds of records, each of which is an entry; and a request that overtakes another is new there,
while Kafka promises that the records of a producer stay in order.

A producer id is the index of an entry, so no two producers ever have the same. Sequences count records and begin again
at 0 after 2^31 - 1. A producer that raises its epoch begins at sequence 0 again (KIP-360). The places of the last
records are kept as runs of adjacent entries: a client that repeats a batch is told where its first copy stands.

Expiry goes by log time, so it is the same on all servers. The number of producers, groups and runs is bounded, so the
state is. The newest skipped indexes are kept, since the list is in each snapshot. It also has the copies of requests
that are not a producer's (`consensus.sessions`), so that a reader of the topic sees each of them once, on every server.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

PRODUCERS_MAX: Final = 1_024
PRODUCER_EXPIRY_MS: Final = 24 * 3600 * 1000
"""Kafka's `producer.id.expiration.ms`."""
RUNS_MAX: Final = 8
"""Kafka remembers 5 batches of a producer, as many as a client has under way."""
GROUPS_MAX: Final = 100
GROUP_EXPIRY_MS: Final = 7 * 24 * 3600 * 1000
"""Kafka's `offsets.retention.minutes`."""
SKIPPED_MAX: Final = 4_096
SEQUENCES: Final = 2**31
EPOCH_MAX: Final = 2**15 - 1
_MARK: Final = "kafka:"
_TEXT_CHARACTERS_MAX: Final = len(_MARK) + 19 + 5 + 10 + 2


@dataclass(frozen=True, slots=True)
class Produced:
    """How an entry names its producer, and its place in what that one produces."""

    producer_id: int
    epoch: int
    sequence: int

    def __str__(self) -> str:
        """The text of the member `request`."""
        return f"{_MARK}{self.producer_id}.{self.epoch}.{self.sequence}"


def produced_in(request: str | None) -> Produced | None:
    """Reverse of `str`; None for any other text."""
    if request is None or not request.startswith(_MARK) or len(request) > _TEXT_CHARACTERS_MAX:
        return None
    try:
        made = Produced(*map(int, request[len(_MARK) :].split(".")))
    except (ValueError, TypeError):
        return None
    is_possible = made.producer_id >= 0 and 0 <= made.epoch <= EPOCH_MAX and 0 <= made.sequence < SEQUENCES
    return made if is_possible and str(made) == request else None


class ProducedStatus(Enum):
    """What an entry of a producer is."""

    NEW = "new"
    DUPLICATE = "duplicate"
    OUT_OF_ORDER = "out-of-order"
    FENCED = "fenced"
    """Of an epoch that the producer has left."""
    UNKNOWN = "unknown"
    """The producer is forgotten, or never was."""


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent entries with adjacent sequences."""

    sequence: int
    index: int
    count: int


@dataclass(frozen=True, slots=True)
class Producer:
    """One producer. `sequence` is the next one, `used_ms` the log time of its last entry."""

    name: str
    used_ms: int
    epoch: int = 0
    sequence: int = 0
    runs: tuple[Run, ...] = ()

    def judge(self, produced: Produced) -> ProducedStatus:
        """What an entry with this name would be now."""
        if produced.epoch < self.epoch:
            return ProducedStatus.FENCED
        if produced.epoch > self.epoch:
            # The first batch of the new epoch may come after this one: its client sends several, and again.
            return ProducedStatus.OUT_OF_ORDER if produced.sequence else ProducedStatus.NEW
        ahead = (produced.sequence - self.sequence) % SEQUENCES
        if ahead == 0:
            return ProducedStatus.NEW
        return ProducedStatus.OUT_OF_ORDER if ahead < SEQUENCES // 2 else ProducedStatus.DUPLICATE

    def index_of(self, produced: Produced) -> int | None:
        """Where its first copy stands; None if it has none, or that is forgotten."""
        if produced.epoch != self.epoch:
            return None
        for run in reversed(self.runs):
            offset = (produced.sequence - run.sequence) % SEQUENCES
            if offset < run.count:
                return run.index + offset
        return None

    def after(self, produced: Produced, index: int, log_time_ms: int) -> "Producer":
        """This producer after a new entry at `index`."""
        runs = self.runs if produced.epoch == self.epoch else ()
        last = runs[-1] if runs else None
        if last is not None and last.index + last.count == index:
            runs = (*runs[:-1], replace(last, count=last.count + 1))
        else:
            runs = (*runs, Run(produced.sequence, index, 1))[-RUNS_MAX:]
        following = (produced.sequence + 1) % SEQUENCES
        return Producer(self.name, log_time_ms, produced.epoch, following, runs)


@dataclass(frozen=True, slots=True)
class NotedOffset:
    """What a consumer group has noted, at `noted_ms` of log time. `leader_epoch` is -1 if its client did not say it."""

    offset: int
    leader_epoch: int
    metadata: str
    noted_ms: int


@dataclass(frozen=True, slots=True)
class KafkaClients:
    """The tables after some entry."""

    producers: Mapping[int, Producer] = field(default_factory=dict)
    groups: Mapping[str, NotedOffset] = field(default_factory=dict)
    skipped: tuple[int, ...] = ()
    """The newest entries that do not count: of producers, and copies of requests."""

    def judge(self, produced: Produced, log_time_ms: int) -> ProducedStatus:
        """What an entry with this name would be at this log time."""
        producer = self.producer(produced.producer_id, log_time_ms)
        return ProducedStatus.UNKNOWN if producer is None else producer.judge(produced)

    def producer(self, producer_id: int, log_time_ms: int) -> Producer | None:
        """The producer, unless it was silent for too long."""
        found = self.producers.get(producer_id)
        return None if found is None or _is_over(found.used_ms, PRODUCER_EXPIRY_MS, log_time_ms) else found

    def id_of(self, name: str) -> int | None:
        """The producer that began under this name."""
        return next((each for each, producer in self.producers.items() if producer.name == name), None)

    def admit(self, produced: Produced, index: int, log_time_ms: int) -> tuple["KafkaClients", ProducedStatus]:
        """Judge the entry at `index`, and remember it; indexes rise."""
        verdict = self.judge(produced, log_time_ms)
        if verdict is not ProducedStatus.NEW:
            return self.skipping(index), verdict
        known = self.producers[produced.producer_id]
        producers = {**self.producers, produced.producer_id: known.after(produced, index, log_time_ms)}
        return replace(self, producers=producers), verdict

    def skipping(self, index: int) -> "KafkaClients":
        """These tables after an entry at `index` that does not count; indexes rise."""
        skipped = (*self.skipped, index)
        kept = skipped[-SKIPPED_MAX // 2 :] if len(skipped) > SKIPPED_MAX else skipped
        return replace(self, skipped=kept)

    def is_skipped(self, index: int) -> bool:
        """Whether the entry at `index` does not count; no longer known of very old ones."""
        place = bisect_left(self.skipped, index)
        return place < len(self.skipped) and self.skipped[place] == index

    def begun(self, name: str, index: int, log_time_ms: int) -> "KafkaClients":
        """These tables and a producer that begins with the entry at `index`."""
        kept = {
            each: producer
            for each, producer in self.producers.items()
            if not _is_over(producer.used_ms, PRODUCER_EXPIRY_MS, log_time_ms)
        }
        while len(kept) >= PRODUCERS_MAX:
            del kept[min(kept, key=lambda each: (kept[each].used_ms, each))]
        return replace(self, producers={**kept, index: Producer(name, log_time_ms)})

    def has_room_for(self, group: str, log_time_ms: int) -> bool:
        """Whether the group could note an offset."""
        return group in self.groups or len(self._living_groups(log_time_ms)) < GROUPS_MAX

    def noted(self, group: str, noted: NotedOffset) -> "KafkaClients":
        """These tables with the group's new offset; as they are if there are too many groups."""
        groups = {**self._living_groups(noted.noted_ms), group: noted}
        return self if len(groups) > GROUPS_MAX else replace(self, groups=groups)

    def _living_groups(self, log_time_ms: int) -> Mapping[str, NotedOffset]:
        return {
            group: noted
            for group, noted in self.groups.items()
            if not _is_over(noted.noted_ms, GROUP_EXPIRY_MS, log_time_ms)
        }


def _is_over(since_ms: int, limit_ms: int, log_time_ms: int) -> bool:
    return log_time_ms - since_ms > limit_ms
