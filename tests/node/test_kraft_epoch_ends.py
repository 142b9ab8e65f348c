"""The end of a term in the log, as OffsetForLeaderEpoch reports it. Consumers drop records beyond it, and no others."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from consensus.core.log import Log, RecoveredLog, TermRun
from consensus.core.model import ORIGIN, Configuration, Entry, LogId
from consensus.protocols.kafka.topic.epoch_ends import end_of_term
from consensus.protocols.kafka.topic.served_topic import MAX_OFFSET
from consensus.server.errors import NotLeaderError, ServerBusyError
from consensus.server.server import ConsensusServer


@dataclass
class Replica:
    """A log with entries of these terms; a snapshot covers the entries up to `start`."""

    terms: list[int]
    start: LogId = ORIGIN
    term: int = 0
    applied: int | None = None
    newest_term: int = 0
    """The term that a read barrier discovers."""
    knows_leader: bool = True
    barriers: int = field(default=0, init=False)

    def divergence(self, other: LogId) -> LogId:
        """Return the divergence by the log's own rule."""
        runs: list[TermRun] = []
        first = self.start.index + 1
        for index, term in enumerate(self.terms, first):
            if not runs or runs[-1].term != term:
                runs.append(TermRun(index, term))
        entries = tuple(Entry.command(term, b"") for term in self.terms)
        return Log(RecoveredLog(tuple(runs), first, entries, (), self.start), Configuration(())).divergence(other)

    @property
    def role(self) -> Any:
        return SimpleNamespace(term=max(self.term, self.terms[-1] if self.terms else self.start.term))

    def final(self) -> int:
        return self.start.index + len(self.terms) if self.applied is None else self.applied

    async def barrier(self) -> int:
        """Take over the newest term."""
        await trio.lowlevel.checkpoint()
        self.barriers += 1
        if not self.knows_leader:
            raise NotLeaderError(None)
        self.term = max(self.term, self.newest_term)
        return self.final()

    async def end_of(self, term: int) -> int | None:
        return await end_of_term(cast("ConsensusServer", self), term, self.final, self.barrier)


@pytest.mark.parametrize(
    ("term", "end"), [(0, 0), (1, 3), (2, 5), (3, 5), (4, MAX_OFFSET)], ids=["none", "1", "2", "no entries", "newest"]
)
async def test_term_ends_at_start_of_later_term(term: int, end: int) -> None:
    assert await Replica([1, 1, 1, 2, 2, 4, 4]).end_of(term) == end


async def test_compacted_term_ends_at_start_of_log() -> None:
    replica = Replica([9, 9], LogId(26, 7))
    assert [await replica.end_of(term) for term in (3, 7, 8, 9)] == [26, 26, 26, MAX_OFFSET]


async def test_unapplied_entries_do_not_end_term() -> None:
    assert await Replica([1, 1, 2, 2], applied=2).end_of(1) == MAX_OFFSET


async def test_lagging_server_does_not_end_newer_term() -> None:
    replica = Replica([1, 1], newest_term=3)
    assert await replica.end_of(3) == MAX_OFFSET
    assert replica.barriers == 1


async def test_unused_term_has_end_none() -> None:
    replica = Replica([1, 1], newest_term=2)
    assert await replica.end_of(3) is None


async def test_unknown_term_without_leader_is_busy() -> None:
    with pytest.raises(ServerBusyError):
        await Replica([1, 1], knows_leader=False).end_of(3)


async def test_prefix_of_same_log_is_never_cut() -> None:
    random = Random(20_261_127)
    for _ in range(200):
        terms = sorted(random.choices(range(1, 9), k=random.randrange(1, 30)))
        position = random.randrange(1, len(terms) + 1)
        # Another server has a shorter or longer log, and may have compacted a part
        count = random.randrange(1, len(terms) + 1)
        start = random.randrange(count)
        before = LogId(start, terms[start - 1] if start else 0)
        replica = Replica(terms[start:count], before, newest_term=terms[-1])
        end = await replica.end_of(terms[position - 1])
        assert end is not None
        assert end >= min(position, max(start, position)), (terms, position, start, count)


@pytest.mark.parametrize("old_terms", [[3, 3, 3], [3, 4, 5]], ids=["same-term", "later-terms"])
async def test_records_read_before_recovery_are_cut(old_terms: list[int]) -> None:
    # Given a backup at entry 26 of term 3; the old farm wrote more entries after it
    kept, lost_terms = LogId(26, 3), 2**16
    recovered = Replica([kept.term + lost_terms + 1] * 50, kept)
    for term in old_terms:
        assert await recovered.end_of(term) == kept.index
